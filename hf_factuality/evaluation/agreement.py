"""How well verifiers agree with human labels: every figure with an interval, per kind, and what it costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_factuality._lazy import object_name
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.evaluation._shared import check_at_least_one, shown
from hf_factuality.evaluation.labelled_claims import (
    ClaimVerdict,
    LabelColumns,
    LabelledClaim,
    LabelledRows,
    judge_claims,
    read_labels,
)
from hf_factuality.functional.agreement import Confusion
from hf_factuality.functional.calibration import auroc, best_threshold, brier_score, expected_calibration_error
from hf_factuality.functional.metrics import bootstrap_interval
from hf_factuality.hub.tables import better
from hf_factuality.metrics._common import who_judges
from hf_factuality.verifiers.base import Verifier
from hf_factuality.verifiers.guard import GuardedVerifier, quiet_guard
from hf_factuality.verifiers.registry import load_verifier, served_arguments


if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Figure:
    """A figure with its 95 % interval; `None` where it is not defined. `n` is the number of claims that it is of."""

    value: float | None
    low: float | None
    high: float | None
    n: int


FIGURES = (
    "kappa",
    "accuracy",
    "balanced_accuracy",
    "tuned_balanced_accuracy",
    "auroc",
    "ece",
    "brier",
    "false_called_supported",
    "not_judged",
)
"""Figures of a verifier; docs/agree.md describes each."""
KIND_FIGURES = ("accuracy", "balanced_accuracy", "false_called_supported", "not_judged")
"""Those that are given for each kind too."""
_LOWER = {"ece", "brier", "false_called_supported", "not_judged", "tokens per claim"}
"""Of which less is better."""


@dataclass(frozen=True)
class VerifierAgreement:
    """How well one verifier agrees with the labels.

    Args:
        verifier (`str`), judge (`Mapping[str, Any]`):
            Its name, and what is known of the judge: model and revision.
        figures (`dict[str, Figure]`):
            By the names of `FIGURES`, and `repeatability`, if the claims were judged more than once.
        kinds (`dict[str, dict[str, Figure]]`):
            Per kind of claim, some of the figures; empty if the labels have no kinds.
        threshold (`float`, *optional*):
            Score from which a claim is best called supported, on all labels; for new claims.
        seconds (`float`), tokens (`int`, *optional*):
            Time for the claims once, and tokens as the servers of language models count them.
        verdicts (`list[ClaimVerdict]`):
            Per claim, in order.
    """

    verifier: str
    judge: Mapping[str, Any] | None
    figures: dict[str, Figure]
    kinds: dict[str, dict[str, Figure]]
    threshold: float | None
    seconds: float
    tokens: int | None
    verdicts: list[ClaimVerdict] = field(repr=False)

    @property
    def claims_per_second(self) -> float:
        """Claims that were judged per second."""
        return len(self.verdicts) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class AgreementResult:
    """What [`agree`] has found.

    Args:
        verifiers (`list[VerifierAgreement]`):
            One per verifier, in order.
        labels (`dict[str, int]`):
            Numbers of labelled claims: `claims`, `supported`, and `groups` of claims that share their evidence.
        notes (`list[str]`):
            What must be known to read the figures.
    """

    verifiers: list[VerifierAgreement]
    labels: dict[str, int]
    notes: list[str] = field(default_factory=list)

    def table(self) -> list[dict[str, str]]:
        """The figures as cells of a table, a row per figure and a column per verifier."""
        names = [*FIGURES, *(["repeatability"] if "repeatability" in self.verifiers[0].figures else [])]
        rows = [
            [name.replace("_", " "), better(name not in _LOWER), *(_shown(it.figures[name]) for it in self.verifiers)]
            for name in names
        ]
        rows.append(["claims per second", better(True), *(f"{it.claims_per_second:.1f}" for it in self.verifiers)])
        if any(it.tokens is not None for it in self.verifiers):
            rows.append(["tokens per claim", better(False), *(_per_claim(it) for it in self.verifiers)])
        return self._cells("figure", rows)

    def kinds_table(self) -> list[dict[str, str]]:
        """The accuracy per kind of claim as cells of a table; empty if the labels have no kinds."""
        kinds = self.verifiers[0].kinds
        rows = [[kind, better(True), *(_shown(it.kinds[kind]["accuracy"]) for it in self.verifiers)] for kind in kinds]
        return self._cells("accuracy of kind", rows)

    def _cells(self, first: str, rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        # Two verifiers may have one name, such as a class with other settings.
        names = [it.verifier for it in self.verifiers]
        names = [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
        return [dict(zip((first, "better if", *names), row, strict=True)) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as the command prints them."""
        return {"labels": dict(self.labels), "verifiers": [_plain(it) for it in self.verifiers], "notes": self.notes}

    def to_pandas(self) -> pandas.DataFrame:
        """A row per verifier, kind (`None`: all claims) and figure: `verifier`, `kind`, `figure`, `value`, `low`, `high`, `n`."""
        import pandas

        rows = [
            (it.verifier, kind, name, one.value, one.low, one.high, one.n)
            for it in self.verifiers
            for kind, figures in ((None, it.figures), *it.kinds.items())
            for name, one in figures.items()
        ]
        return pandas.DataFrame(rows, columns=("verifier", "kind", "figure", "value", "low", "high", "n"))


def agree(
    verifier: str | Verifier | Sequence[str | Verifier],
    labels: LabelledRows,
    *,
    verifier_base_url: str | None = None,
    verifier_tokens: int | None = None,
    claim_column: str = "claim",
    evidence_column: str = "evidence",
    label_column: str = "label",
    question_column: str = "question",
    kind_column: str = "kind",
    group_column: str = "group",
    repeats: int = 2,
    resamples: int = 1000,
    seed: int = 0,
) -> AgreementResult:
    """Measure how well verifiers agree with human labels.

    The labels are checked before anything is judged. Answers of language models are not taken from the cache, since a cached
    answer is no second opinion and costs nothing.

    Args:
        verifier (`str`, `Verifier` or a sequence of them):
            Names for [`load_verifier`], or verifiers.
        labels (`str`, `Path` or `Iterable[Mapping[str, Any]]`):
            A JSON Lines, JSON, CSV, TSV or Parquet file (`"-"`: JSON Lines on standard input), or rows, with the columns
            below. A label is `supported` or `not_supported`, one of our labels, a boolean, or 1 or 0.
        verifier_base_url (`str`, *optional*), verifier_tokens (`int`, *optional*):
            Server of verifiers that are language models, and room for an answer.
        claim_column, evidence_column, label_column, question_column, kind_column (`str`, *optional*):
            Columns of the labels; the last two may be missing.
        group_column (`str`, *optional*, defaults to `"group"`):
            Column that claims share which are not independent, such as the id of the answer that they are from; without it,
            claims with the same evidence are one group. Intervals draw whole groups.
        repeats (`int`, *optional*, defaults to 2):
            Times that each claim is judged, in the given order and then reversed; 1 leaves `repeatability` out.
        resamples (`int`, *optional*, defaults to 1000), seed (`int`, *optional*, defaults to 0):
            Draws of the bootstrap, and its seed, which also halves the groups for the tuned threshold.

    Returns:
        [`AgreementResult`]: figures with intervals, per verifier and kind.

    Raises:
        `DataError`: a row has no claim, or a label that says neither; the message names line and value. `ValueError`: an
        argument is wrong. `JudgingError`: a verifier failed on every claim.

    Example:

        >>> rows = [{"claim": "Ulm lies on the Danube.", "evidence": "Ulm lies on the Danube.", "label": "supported"}]
        >>> agree("lexical", rows).verifiers[0].figures["accuracy"].value
        1.0
    """
    check_at_least_one(repeats=repeats, verifier_tokens=verifier_tokens)
    if resamples < 0:
        raise ValueError(f"`resamples` must be at least 0, got {resamples}")
    given = [verifier] if isinstance(verifier, str) or not isinstance(verifier, Sequence) else list(verifier)
    if not given:
        raise ValueError("`verifier` names no verifier; give one or several")
    columns = LabelColumns(claim_column, evidence_column, label_column, question_column, kind_column, group_column)
    claims = read_labels(labels, columns)
    served = served_arguments(verifier_base_url, verifier_tokens)
    loaded = [load_verifier(it, **served) if isinstance(it, str) else load_verifier(it) for it in given]
    found = []
    with quiet_guard():
        for it, ready in zip(given, loaded, strict=True):
            name = it if isinstance(it, str) else object_name(it)
            try:
                found.append(_measure(name, ready, claims, repeats, resamples, seed))
            except (DataError, JudgingError) as error:
                raise type(error)(f"{name}: {error}") from None
    supported = sum(claim.supported for claim in claims)
    counts = {"claims": len(claims), "supported": supported, "groups": len({claim.group for claim in claims})}
    notes = [
        f"{len(claims)} claims ({supported} supported) in {counts['groups']} groups; intervals are 95 %, over groups"
    ]
    if supported in (0, len(claims)):
        notes.append("all claims have one label: kappa, balanced accuracy and AUROC are not defined")
    return AgreementResult(found, counts, notes)


def _measure(
    name: str, verifier: Verifier, claims: Sequence[LabelledClaim], repeats: int, resamples: int, seed: int
) -> VerifierAgreement:
    guard, clients = GuardedVerifier(verifier, timeout=None), _clients(verifier)
    with _uncached(clients):
        judge_claims(guard, claims[:1])  # what is loaded with the first claim is no part of the speed
        before, started = _tokens(clients), time.perf_counter()
        verdicts = judge_claims(guard, claims)
        seconds, tokens = time.perf_counter() - started, _tokens(clients) - before
        rounds = [verdicts]
        for number in range(1, repeats):
            # In the other order, so that a verdict that depends on its batch shows.
            order = list(range(len(claims)))[:: -1 if number % 2 else 1]
            again = judge_claims(guard, [claims[i] for i in order])
            rounds.append([verdict for _, verdict in sorted(zip(order, again, strict=True), key=lambda it: it[0])])
    scores = [verdict.score for verdict in verdicts]
    tuned, threshold = _tuned(claims, scores, seed)
    known = _Verdicts(claims, [verdict.supported for verdict in verdicts], scores, tuned, resamples, seed)
    every = range(len(claims))
    figures = known.figures(FIGURES, every)
    if repeats > 1:
        same = [len({verdict.supported for verdict in own}) == 1 for own in zip(*rounds, strict=True)]
        figures["repeatability"] = known.share(same, every)
    kinds = sorted({claim.kind for claim in claims if claim.kind is not None})
    of_kind = {kind: [n for n in every if claims[n].kind == kind] for kind in kinds}
    by_kind = {kind: known.figures(KIND_FIGURES, rows) for kind, rows in of_kind.items()}
    _, judge = who_judges(verifier)
    return VerifierAgreement(name, judge, figures, by_kind, threshold, seconds, tokens if clients else None, verdicts)


_COUNTED: dict[str, tuple[str, Callable[[Confusion], float | None]]] = {
    "kappa": ("called", Confusion.kappa),
    "accuracy": ("called", Confusion.accuracy),
    "balanced_accuracy": ("called", Confusion.mean_recall),
    "tuned_balanced_accuracy": ("tuned", Confusion.mean_recall),
    "false_called_supported": ("called", Confusion.false_positive_rate),
}
"""Figure -> which verdicts it compares with the labels, and how."""
_SCORED: dict[str, Callable[..., float | None]] = {
    "auroc": auroc,
    "ece": expected_calibration_error,
    "brier": brier_score,
}
"""Figures of scores and labels."""


@dataclass(frozen=True)
class _Verdicts:
    """Per claim, what is compared with its label; `None` where it is not known."""

    claims: Sequence[LabelledClaim]
    called: Sequence[bool | None]
    scores: Sequence[float | None]
    tuned: Sequence[bool | None]
    resamples: int
    seed: int

    def figures(self, names: Sequence[str], rows: Sequence[int]) -> dict[str, Figure]:
        """The figures of these names, of some of the claims."""
        return {name: self._named(name, rows) for name in names}

    def _named(self, name: str, rows: Sequence[int]) -> Figure:
        if name == "not_judged":
            return self.share([self.called[n] is None for n in rows], rows)
        if name in _SCORED:
            return self._scored(_SCORED[name], [n for n in rows if self.scores[n] is not None])
        column, measure = _COUNTED[name]
        values = getattr(self, column)
        rows = [n for n in rows if values[n] is not None]
        cells = [Confusion.of([values[n]], [self.claims[n].supported]) for n in rows]
        return self._counted(cells, rows, lambda sums: measure(Confusion(*sums)))

    def share(self, values: Sequence[bool], rows: Sequence[int]) -> Figure:
        """Share of the claims of which something is so."""
        return self._counted(
            [(value, 1) for value in values], rows, lambda sums: sums[0] / sums[1] if sums[1] else None
        )

    def _counted(
        self, cells: Sequence[Sequence[float]], rows: Sequence[int], measure: Callable[[Sequence[float]], float | None]
    ) -> Figure:
        """A figure of sums over claims; its interval draws their groups with replacement."""
        groups = self._groups(list(range(len(rows))), rows)
        sums = [[sum(column) for column in zip(*(cells[i] for i in own), strict=True)] for own in groups]
        value = measure([sum(column) for column in zip(*sums, strict=True)]) if sums else None
        return self._figure(value, sums, measure, len(rows), summed=True)

    def _scored(self, measure: Callable[..., float | None], rows: Sequence[int]) -> Figure:
        """A figure of scores and labels."""

        def of(groups: Sequence[Sequence[int]]) -> float | None:
            own = [n for group in groups for n in group]
            return measure([self.scores[n] for n in own], [self.claims[n].supported for n in own])

        groups = self._groups(rows, rows)
        return self._figure(of(groups), groups, of, len(rows))

    def _groups(self, values: Sequence[int], rows: Sequence[int]) -> list[list[int]]:
        found: dict[Any, list[int]] = {}
        for value, n in zip(values, rows, strict=True):
            found.setdefault(self.claims[n].group, []).append(value)
        return list(found.values())

    def _figure(
        self, value: float | None, groups: Sequence[Any], measure: Any, n: int, summed: bool = False
    ) -> Figure:
        if value is None:
            return Figure(None, None, None, n)
        interval = bootstrap_interval(groups, measure, resamples=self.resamples, seed=self.seed, summed=summed)
        return Figure(value, *(interval or (None, None)), n)


def _tuned(
    claims: Sequence[LabelledClaim], scores: Sequence[float | None], seed: int
) -> tuple[list[bool | None], float | None]:
    """Per claim whether a threshold that was tuned on the other half of the groups calls it supported, and the threshold of all."""
    judged = [n for n, score in enumerate(scores) if score is not None]
    groups = list(dict.fromkeys(claims[n].group for n in judged))
    random.Random(seed).shuffle(groups)
    first = set(groups[: len(groups) // 2])
    halves = [[n for n in judged if (claims[n].group in first) is side] for side in (True, False)]
    called: list[bool | None] = [None] * len(claims)
    for own, other in (halves, halves[::-1]):
        limit = _threshold(claims, scores, other)
        for n in own if limit is not None else ():
            called[n] = scores[n] >= limit
    return called, _threshold(claims, scores, judged)


def _threshold(claims: Sequence[LabelledClaim], scores: Sequence[float | None], rows: Sequence[int]) -> float | None:
    truth = [claims[n].supported for n in rows]
    return best_threshold([scores[n] for n in rows], truth) if len(set(truth)) == 2 else None


def _clients(verifier: Any) -> list[Any]:
    """Clients of servers that a verifier and its stages ask."""
    found, waiting, seen = [], [verifier], set()
    while waiting:
        it = waiting.pop()
        if it is None or id(it) in seen or isinstance(it, str):
            continue
        seen.add(id(it))
        if hasattr(it, "stats") and hasattr(it, "cache"):
            found.append(it)
        waiting += [getattr(it, name, None) for name in ("extractor", "judge", "client")]
        others = getattr(it, "judges", None)
        waiting += others if isinstance(others, (list, tuple)) else []
    return found


@contextmanager
def _uncached(clients: Sequence[Any]) -> Iterator[None]:
    caches = [client.cache for client in clients]
    for client in clients:
        client.cache = None
    try:
        yield
    finally:
        for client, cache in zip(clients, caches, strict=True):
            client.cache = cache


def _tokens(clients: Sequence[Any]) -> int:
    return sum(client.stats.tokens for client in clients)


def _per_claim(found: VerifierAgreement) -> str:
    return "" if found.tokens is None else f"{found.tokens / len(found.verdicts):.1f}"


def _shown(figure: Figure) -> str:
    interval = "" if figure.low is None or figure.high is None else f" ({figure.low:.2f} to {figure.high:.2f})"
    return f"{shown(figure.value)}{interval}"


def _plain(found: VerifierAgreement) -> dict[str, Any]:
    def plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
        return {name: vars(figure) for name, figure in figures.items()}

    return {
        "verifier": found.verifier,
        "judge": found.judge,
        "figures": plain(found.figures),
        "kinds": {kind: plain(figures) for kind, figures in found.kinds.items()},
        "threshold": found.threshold,
        "seconds": found.seconds,
        "claims_per_second": found.claims_per_second,
        "tokens": found.tokens,
    }
