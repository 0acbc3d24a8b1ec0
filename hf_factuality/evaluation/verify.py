"""Completions in; scores, labelled rows and a painted page out.

Files are read to their ends before anything is judged, and again while it is: memory stays small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hf_factuality.errors import JudgingError
from hf_factuality.evaluation._shared import (
    allowed_missing,
    check_at_least_one,
    check_choices,
    check_thresholds,
    counts,
    failures,
    limits_of,
    make_way,
    numbers,
    shown,
    shown_interval,
    split_names,
)
from hf_factuality.evaluation.guarantee import ClaimGuarantee, fit_guarantee, read_guarantee_labels
from hf_factuality.evaluation.job_summary import append_summary
from hf_factuality.evaluation.junit import JUnitCases
from hf_factuality.evaluation.labelled_claims import LabelledClaim, LabelledRows
from hf_factuality.evaluation.verify_input import AnswerSource, Columns, read_answers
from hf_factuality.evaluation.worst_answers import WorstSamples
from hf_factuality.functional.scoring import (
    CONTRADICTED_LABELS,
    count_claims,
    decided_precision,
    factual_precision,
    mean,
)
from hf_factuality.generation.failures import GIVE_UP_AFTER
from hf_factuality.generation.journal import dumps
from hf_factuality.hub.tables import better
from hf_factuality.io.ray import engine_of
from hf_factuality.io.transcripts import TranscriptTurn
from hf_factuality.metrics._arguments import check_argument_values, check_metric_args
from hf_factuality.metrics._claims import Answer, small_answer
from hf_factuality.metrics._common import Options, who_judges
from hf_factuality.metrics._registry import CLAIM_METRICS, METRIC_NAMES, Metric, compute, named_metrics
from hf_factuality.reading.same import distinct_units
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Verifier
from hf_factuality.verifiers.guard import GuardedVerifier, OverRay, quiet_guard
from hf_factuality.verifiers.registry import load_verifier, served_arguments
from hf_factuality.verifiers.searched import SearchedVerifier
from hf_factuality.verifiers.service import JudgedRow, JudgingReport, VerificationRequest, judge_rows, left_out


if TYPE_CHECKING:
    import pandas


SHARES = ("precision", "decided_precision", "precision_per_answer")
WORST = 10
"""Answers in a summary of a job."""
_SHORT = 3
"""Claims of an answer up to which equal ones are kept once: most rows of a long file are alike to a metric."""


class Metrics:
    """Metrics that are fed with verifications while they are made; their arguments are tried on one labelled claim."""

    def __init__(self, metrics: Mapping[str, Metric], arguments: Mapping[str, Mapping[str, Any]]):
        self._metrics = metrics
        self._arguments = {name: dict(arguments.get(name, {})) for name in metrics}
        self._answers: list[Answer] = []
        self._short: dict[tuple, Answer] = {}
        for name, given in self._arguments.items():
            check_metric_args(metrics[name], given, ("confidence_level", "resamples", "seed"))

    def add(self, judged: JudgedRow) -> None:
        if not self._arguments:
            return
        if judged.left_out == "missing":
            self._answers.append(Answer(problem="missing"))
            return
        unjudged = "no_evidence" if judged.left_out == "no_evidence" else None
        answer = small_answer(judged.row.shown.completion, Verification() if unjudged else judged.found, unjudged)
        if len(answer.labels) <= _SHORT:
            answer = self._short.setdefault(tuple(getattr(answer, name) for name in Answer.__slots__), answer)
        self._answers.append(answer)

    def compute(self, verifier: GuardedVerifier) -> dict[str, dict[str, Any]]:
        """Per metric its result, as if it had been given completions, evidence and this verifier."""
        extractor, judge = who_judges(verifier.verifier)
        return {
            name: {**compute(self._metrics[name], self._answers, **given), "extractor": extractor, "judge": judge}
            for name, given in self._arguments.items()
        }


class AnswerShares:
    """Claims of each answer that has some, for means over answers and for intervals; of a conversation the turns together."""

    def __init__(self) -> None:
        self.scored = 0
        # Claims supported, judged and decided, the sum of the answers' precisions, answers.
        self._units: list[tuple[float, ...]] = []
        self._known: dict[tuple[float, ...], tuple[float, ...]] = {}
        self._seen = 0
        self._place: str | None = None  # of the conversation that was seen last
        self._begun = False  # whether it has a unit
        self._own: list[int] = []  # units that are conversations

    def add(self, judged: JudgedRow, spans: Sequence[LabeledSpan]) -> None:
        turn = judged.row.turn
        if turn is None or turn.row != self._place:
            self._place, self._begun = None if turn is None else turn.row, False
            self._seen += turn is not None
        claims = count_claims([span.label for span in spans])
        if claims.precision is None:
            return
        self.scored += 1
        decided = claims.supported + sum(span.label in CONTRADICTED_LABELS for span in spans)
        unit: tuple[float, ...] = (claims.supported, claims.judged, decided, claims.precision, 1)
        if self._begun:
            self._units[-1] = tuple(map(sum, zip(self._units[-1], unit, strict=True)))
            return
        if turn is not None:
            self._begun = True
            self._own.append(len(self._units))
        self._units.append(self._known.setdefault(unit, unit))  # most answers of a long file are alike

    def mean_precision(self) -> float | None:
        """Mean over the answers."""
        return _ratio(3, 4)([sum(column) for column in zip(*self._units, strict=True)]) if self._units else None

    def intervals(self) -> dict[str, dict[str, Any] | None]:
        """Per share its interval; answers are drawn anew, and of a conversation all turns together, which share their evidence."""
        parts = {"precision": (0, 1), "decided_precision": (0, 2), "precision_per_answer": (3, 4)}
        return {name: Options().interval(self._units, _ratio(*of), summed=True) for name, of in parts.items()}

    def conversations(self) -> dict[str, Any]:
        """Of conversations with tools, if there are any, how many, and the mean of their precisions."""
        own = [self._units[place][0] / self._units[place][1] for place in self._own]
        return {"conversations": {"n": self._seen, "scored": len(own), "precision": mean(own)}} if self._seen else {}


def _ratio(above: int, below: int) -> Callable[[Sequence[float]], float | None]:
    return lambda sums: sums[above] / sums[below] if sums[below] else None


class Tally:
    """Counts over the rows that were seen."""

    def __init__(self):
        self.labels: Counter[Label | None] = Counter()
        self.repeated = 0
        self.declined = 0
        self.not_judged = 0
        self.kept: Counter[bool | None] = Counter()  # claims that the guarantee keeps and does not
        self.guarantee: ClaimGuarantee | None = None
        self.report = JudgingReport()
        self.shares = AnswerShares()

    def add(self, judged: JudgedRow) -> None:
        """Count a row, which [`judge_rows`] has counted in the report."""
        self.not_judged += not judged.found.judged or judged.left_out == "empty"
        self.declined += judged.left_out is None and judged.row.declines
        failed = judged.found.error is not None
        spans = () if failed else distinct_units(judged.found.spans, judged.row.shown.completion)
        self.shares.add(judged, spans)
        if not failed:
            self.labels.update(span.label for span in spans)
            self.repeated += len(judged.found.spans) - len(spans)
            if self.guarantee:
                self.kept.update(map(self.guarantee.keeps, spans))

    def summary(self) -> dict[str, Any]:
        """What is printed."""
        labels = self.labels
        spans = [span for label, n in labels.items() for span in [LabeledSpan(0, 0, label)] * n]
        named = {"unjudged" if label is None else label.value: n for label, n in labels.items()}
        return (
            {
                "precision": factual_precision(spans),
                "decided_precision": decided_precision(spans),
                "precision_per_answer": self.shares.mean_precision(),
                "intervals": self.shares.intervals(),
                "completions": self.report.rows,
                "scored": self.shares.scored,
                "not_judged": self.not_judged,
                "missing": self.report.missing,
                "empty": self.report.empty,
                "declined": self.declined,
                "claims": {
                    "supported": labels[Label.SUPPORTED] + labels[Label.HEDGED_SUPPORTED],
                    "contradicted": labels[Label.CONTRADICTED] + labels[Label.HEDGED_CONTRADICTED],
                    "unverifiable": labels[Label.UNVERIFIABLE],
                    "not_judged": labels[None],
                },
                "sentences": len(spans),
                "repeated": self.repeated,
                "labels": dict(sorted(named.items())),
            }
            | self._guaranteed()
            | self.shares.conversations()
        )

    def _guaranteed(self) -> dict[str, Any]:
        if not self.guarantee:
            return {}
        counted = {"kept": self.kept[True], "not_kept": self.kept[False]}
        return {"guarantee": {**self.guarantee.to_dict(), **counted}}


@dataclass(frozen=True)
class VerifiedCompletion:
    """A completion and what the verifier found. `place` is its line or row, `verification` is `None` if there was no completion,
    `declined` is whether it declines to answer, and `kept`, with a guarantee, whether each span is kept (`None`: no fact). `turn`
    is the turn of a conversation with tools that it is, with the passages that it was judged by."""

    place: str
    completion: str
    question: str | None
    verification: Verification | None
    declined: bool
    kept: tuple[bool | None, ...] | None = None
    turn: TranscriptTurn | None = None


@dataclass(frozen=True)
class VerifyResult:
    """What [`verify`] has found.

    Args:
        summary (`dict[str, Any]`):
            Precision and decided precision of all claims, the mean precision of an answer, under `intervals` their 95 %
            intervals, and counts of completions and claims; under `metrics` the results of metrics, under `guarantee` its
            threshold and how many claims it keeps, and under `conversations` how many have tools.
        rows (`list[VerifiedCompletion]`):
            The completions in order; empty with `keep_rows=False`.
        failures (`list[str]`):
            What is below `fail_under`, or left unjudged beyond `max_not_judged`, in words; empty if all is well.
        notes (`list[str]`):
            What must be known to read the scores, such as how evidence was joined.
        failed (`int`), first_reason (`str`, *optional*):
            Completions that the verifier failed on, and why it failed on the first.
    """

    summary: dict[str, Any]
    rows: list[VerifiedCompletion] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: int = 0
    first_reason: str | None = None

    @property
    def precision(self) -> float | None:
        """Share of the judged claims that the evidence supports; `None` without any."""
        return self.summary["precision"]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The result of each metric."""
        return self.summary.get("metrics", {})

    def table(self) -> list[dict[str, str]]:
        """The scores as cells of a table."""
        return _table(self.summary)

    def to_pandas(self) -> pandas.DataFrame:
        """A row per labelled span: `place`, `start`, `end`, `text`, `label` (`None`: not judged), `score`, `claim`, `evidence`,
        and `kept` with a guarantee."""
        import pandas

        columns = ["place", "start", "end", "text", "label", "score", "claim", "evidence"]
        spans = [
            (row.place, it.start, it.end, row.completion[it.start : it.end], it.label and it.label.value, it.score,
             it.claim, it.evidence)
            for row in self.rows if row.verification for it in row.verification.spans
        ]  # fmt: skip
        found = pandas.DataFrame(spans, columns=columns)
        if "guarantee" in self.summary:
            found["kept"] = [it for row in self.rows if row.verification for it in row.kept or ()]
        return found


def verify(
    completions: str | Path | Iterable[str | Mapping[str, Any]],
    *,
    evidence: str | Path | Iterable[str | Sequence[str] | Mapping[str, Any]] | None = None,
    verifier: str | Verifier = "small",
    verifier_tokens: int | None = None,
    scope: str = "answer",
    completion_column: str = "completion",
    question_column: str = "question",
    evidence_column: str | None = None,
    id_column: str | None = None,
    metrics: Metric | Sequence[Metric] = (),
    metric_args: Mapping[str, Mapping[str, Any]] | None = None,
    engine: str = "local",
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    out: str | Path | None = None,
    html: str | Path | None = None,
    html_rows: int = 200,
    junit: str | Path | None = None,
    job_summary: str | Path | None = None,
    guarantee: float | None = None,
    guarantee_labels: LabelledRows | None = None,
    fail_under: float | Mapping[str, float] | None = None,
    max_not_judged: float | None = None,
    keep_rows: bool = True,
) -> VerifyResult:
    """Label the sentences of completions, and measure how much of them the evidence supports.

    All arguments and files are checked before anything is judged.

    Args:
        completions (`str`, `Path` or `Iterable[str | Mapping[str, Any]]`):
            A JSON Lines, JSON, CSV, TSV or Parquet file (`"-"`: JSON Lines on standard input); or completions, or rows with
            the columns below, such as a `datasets.Dataset`.
        evidence (`str`, `Path` or `Iterable`, *optional*):
            A file of the same kinds, or a column of the completions (by default `evidence`); or for each completion its
            evidence, a text or a list of texts.
        verifier (`str` or `Verifier`, *optional*, defaults to `"small"`):
            A name for [`load_verifier`], or a verifier.
        verifier_tokens (`int`, *optional*):
            Room for an answer of a judge that is a language model.
        scope (`str`, *optional*, defaults to `"answer"`):
            What of a completion is judged: `"answer"`, `"think"` (its reasoning) or `"completion"`.
        completion_column, question_column (`str`, *optional*, default to `"completion"` and `"question"`):
            Columns of the completions; rows without the first may have chats in `messages`. A chat with tools is judged turn
            by turn, each by what tools had returned before it (docs/transcripts.md).
        evidence_column (`str`, *optional*):
            Column of the evidence, in its file or beside the completions.
        id_column (`str`, *optional*):
            Column that joins a file of evidence to the completions; by default `id`, else the order of rows.
        metrics (`str`, `Callable` or a sequence of them, *optional*):
            Metrics over claims: `anah`, `factscore`, `longwiki`, `safe`, `veriscore`, `"package.module:function"`, or a
            function of your own.
        metric_args (`Mapping[str, Mapping[str, Any]]`, *optional*):
            Per metric its arguments, as `{"factscore": {"gamma": 0}}`.
        engine (`str`, *optional*, defaults to `"local"`), workers (`int`, *optional*), gpus_per_worker (`float`, *optional*):
            `"ray"` judges in so many of Ray's workers, with so many GPUs each.
        out (`str` or `Path`, *optional*):
            File that each row is written to with its labelled spans, as JSON Lines, as it is judged.
        html (`str` or `Path`, *optional*), html_rows (`int`, *optional*, defaults to 200):
            File of a page with the sentences coloured by label (docs/report.md), and how many completions are on it, the lowest
            precision first.
        junit (`str` or `Path`, *optional*):
            File of JUnit's XML, a test case per answer: failed below the `fail_under` of the precision, skipped if it was not
            judged or states nothing; and one per threshold.
        job_summary (`str` or `Path`, *optional*):
            File that the scores and the worst answers are appended to as Markdown, such as `$GITHUB_STEP_SUMMARY`.
        guarantee (`float`, *optional*), guarantee_labels (`str`, `Path` or `Iterable[Mapping[str, Any]]`, *optional*):
            Share of the kept claims that is right at least, such as 0.9, with 90 % confidence; and labelled claims that the
            threshold is learnt from, as [`~hf_factuality.agree`] reads them. Of each group, or else of each evidence, one is
            drawn. The guarantee assumes that they are drawn like the claims of the completions. Claims that are not kept are
            marked in the result, in `out` and on the page.
        fail_under (`float` or `Mapping[str, float]`, *optional*):
            Least value of every metric (without metrics, of the precision), or per name (`precision`, `decided_precision`,
            `precision_per_answer` or a metric); what is lower is named in `failures` of the result.
        max_not_judged (`float`, *optional*):
            Share of the completions, or of their claims, that may be left unjudged before that is one of `failures`; 0.1 by
            default with `fail_under`, otherwise any.
        keep_rows (`bool`, *optional*, defaults to `True`):
            Whether the result holds every completion; without, memory stays small for files of any length.

    Returns:
        [`VerifyResult`]: scores, rows and what is below a threshold.

    Raises:
        `DataError`: the completions or their evidence cannot be used. `JudgingError`: the verifier fails again and again; what
        `out` holds is kept. `ValueError`: an argument is wrong; the message names it. `OSError`: a file cannot be written.
    """
    wanted = _metrics(metrics)
    names = list(wanted)
    thresholds = check_thresholds(fail_under, (*SHARES, *names), names or ["precision"])
    over_claims = Metrics(wanted, check_argument_values(metric_args or {}, names))
    allowed, runs = allowed_missing(max_not_judged, fail_under), engine_of(engine, workers, gpus_per_worker)
    check_choices({"scope": SCOPES}, {"scope": scope})
    check_at_least_one(html_rows=html_rows, verifier_tokens=verifier_tokens)
    labelled = _labelled(guarantee, guarantee_labels)
    out, html, junit, job_summary = (None if path is None else Path(path) for path in (out, html, junit, job_summary))
    columns = Columns(completion_column, question_column, evidence_column, id_column)
    kept: list[VerifiedCompletion] = []
    with ExitStack() as stack:
        source = stack.enter_context(read_answers(completions, evidence, columns))
        served = served_arguments(None, verifier_tokens) if isinstance(verifier, str) else {}
        guarded = GuardedVerifier(load_verifier(verifier, **served))
        if guarded.requires_evidence:
            source.require_evidence()
        taken = list(source.paths)
        for name, path in (("out", out), ("html", html), ("junit", junit), ("job_summary", job_summary)):
            if path:
                make_way(path, taken, name)
                if name in ("out", "job_summary"):
                    path.open("ab").close()  # what it holds stays until a row is judged
                taken.append(path)
        id_name = id_column or "id"
        page = WorstSamples(html_rows, id_name) if html else None
        worst = WorstSamples(WORST, id_name) if job_summary else None
        cases = JUnitCases(_least(thresholds)) if junit else None
        readers: list[RowReader] = [over_claims, *(it for it in (page, worst, cases) if it)]
        keeper = _Keeper(kept)
        if keep_rows:
            readers.append(keeper)
        stack.enter_context(quiet_guard())
        tally = Tally()
        if guarantee is not None:
            fitted = fit_guarantee(guarded, labelled, guarantee)
            tally.guarantee = keeper.guarantee = fitted
            for it in (page, worst):
                if it:
                    it.guarantee = fitted
        _judge(source, guarded, runs, scope, out, readers, tally)
        summary = tally.summary()
        if names:
            summary["metrics"] = over_claims.compute(guarded)
    if page and html:
        page.write(html, source.name, scope, _table(summary))
    written = [str(path) for path in (out, html, junit, job_summary) if path]
    scores = {name: found[name] for name, found in summary.get("metrics", {}).items()}
    scores |= {name: summary[name] for name in SHARES}
    claims = summary["claims"]
    below = failures(
        [(name, scores[name], threshold) for name, threshold in thresholds.items()],
        [
            ("", summary["not_judged"], summary["completions"], "completions could not be judged"),
            ("", claims["not_judged"], sum(claims.values()), "claims could not be judged"),
        ],
        allowed,
    )
    notes = _notes(summary, source) + ([tally.guarantee.describe()] if tally.guarantee else [])
    notes += limits_of(guarded.verifier)
    if cases and junit:
        gates = [(f"{name} at least {least:g}", name) for name, least in thresholds.items()]
        gates += [(f"at most {allowed:g} not judged", "")] if allowed is not None else []
        cases.write(junit, source.name, gates, below)
    if worst and job_summary:
        append_summary(job_summary, source.name, _table(summary), below, notes, worst)
    notes += [f"wrote {', '.join(written)}"] if written else []
    return VerifyResult(summary, kept, below, notes, tally.report.failed, tally.report.first_reason)


def _least(thresholds: Mapping[str, float]) -> float | None:
    """The precision that an answer must have by itself: that of the first share that is gated."""
    return next((thresholds[name] for name in SHARES if name in thresholds), None)


class RowReader(Protocol):
    """Is fed each row as it is judged."""

    def add(self, judged: JudgedRow) -> None: ...


class _Keeper:
    """Keeps the completions of the result."""

    def __init__(self, kept: list[VerifiedCompletion]):
        self._kept = kept
        self.guarantee: ClaimGuarantee | None = None

    def add(self, judged: JudgedRow) -> None:
        row, found = judged.row, None if judged.left_out == "missing" else judged.verification
        declined = judged.left_out is None and row.declines
        kept = tuple(map(self.guarantee.keeps, found.spans)) if self.guarantee and found else None
        item = row.input
        self._kept.append(VerifiedCompletion(row.key, item.completion, item.question, found, declined, kept, row.turn))


def _labelled(level: float | None, labels: LabelledRows | None) -> list[LabelledClaim]:
    """The labelled claims of a guarantee, checked before anything is judged."""
    if level is None:
        if labels is not None:
            raise ValueError(
                "`guarantee_labels` is not used: there is no `guarantee`; leave it out, or add a level such as 0.9"
            )
        return []
    if not 0 < level < 1:
        raise ValueError(f"`guarantee` is a share between 0 and 1, such as 0.9, got {level:g}")
    if labels is None:
        raise ValueError(
            f"`guarantee` {level:g} needs `guarantee_labels`, claims with evidence and a label; docs/agree.md"
        )
    return read_guarantee_labels(labels, level)


def _judge(
    source: AnswerSource,
    verifier: GuardedVerifier,
    engine: Mapping[str, Any],
    scope: str,
    path: Path | None,
    readers: Sequence[RowReader],
    tally: Tally,
) -> None:
    """Feed each row to the tally and the readers as it is judged, and write it."""
    rows: Iterator[VerificationRequest] = (
        VerificationRequest(it.input, scope, key=it.place, missing=it.missing, turn=it.turn) for it in source
    )
    judge = verifier
    if source.turns and verifier.requires_evidence:
        judge = verifier = GuardedVerifier(SearchedVerifier(verifier.verifier))
    if engine["workers"]:
        rows, again = tee(rows)
        ahead = (row.shown for row in again if left_out(verifier, row, None) is None)
        # What goes wrong with an answer is said in the worker; here, with Ray.
        judge = GuardedVerifier(OverRay(verifier.verifier, ahead, **engine), None, raises=(Exception,))
    try:
        with path.open("wb") if path else nullcontext() as out:
            for chunk in judge_rows(
                judge, rows, report=tally.report, give_up_after=GIVE_UP_AFTER, progress=" answers", total=source.total
            ):
                for judged in chunk:
                    tally.add(judged)
                    for reader in readers:
                        reader.add(judged)
                    if out:
                        found = None if judged.left_out == "missing" else judged.verification.to_dict()
                        row = {**judged.row.input.row, "verification": found}
                        if tally.guarantee and found is not None:
                            row["kept"] = [*map(tally.guarantee.keeps, judged.verification.spans)]
                        out.write(dumps(row))
                if out:
                    out.flush()
    except JudgingError as error:
        kept = f"; {path} holds the {tally.report.rows} rows until then" if path else ""
        raise JudgingError(f"{error}{kept}") from None


def _metrics(given: Metric | Sequence[Metric]) -> dict[str, Metric]:
    """Metrics over claims by their names."""
    names, own = named_metrics(split_names(given))
    for name in names:
        if name not in CLAIM_METRICS and name not in own:
            known = f"; {name} needs other inputs: evaluate.load({name!r}), docs/metrics.md"
            hint = known if name in METRIC_NAMES else ""
            known = f"{', '.join(CLAIM_METRICS)}, or 'package.module:function'"
            raise ValueError(f"`metrics` {name!r} cannot be verified; choose of {known}{hint}")
    return {name: own.get(name, name) for name in names}


def _table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    header = ("measure", "score", "interval", "better if", "answers", "left out", "parts")
    judged = str(summary["completions"] - summary["not_judged"])
    claims = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in summary["claims"].items())
    unjudged = counts({"not judged": summary["not_judged"]})
    why = counts({name: summary[name] for name in ("missing", "empty")})
    unjudged += f" ({why})" if summary["missing"] or summary["empty"] else ""
    if summary["declined"]:  # which were judged, and state nothing
        judged += f" ({summary['declined']} declined)"
    per_answer = f"mean over the {summary['scored']} answers with claims"
    rows = [
        (name, shown(summary[name]), shown_interval(summary["intervals"][name]), better(True), judged, unjudged, parts)
        for name, parts in zip(SHARES, (claims, "without unverifiable", per_answer), strict=True)
    ]
    if own := summary.get("conversations"):
        parts = f"mean over the {own['scored']} of {own['n']} conversations with claims"
        rows.append(("precision_per_conversation", shown(own["precision"]), "", better(True), judged, "", parts))
    if promise := summary.get("guarantee"):
        counted = {"kept": promise["kept"], "not kept": promise["not_kept"]}
        share = promise["kept"] / sum(counted.values()) if any(counted.values()) else None
        rows.append(
            ("kept", shown(share), "", "", judged, "", ", ".join(f"{name} {n}" for name, n in counted.items()))
        )
    for name, found in summary.get("metrics", {}).items():
        left_out, interval = counts(found["left_out"]["responses"]), shown_interval(found["confidence_interval"])
        rows.append(
            (
                name,
                shown(found[name]),
                interval,
                better(True),
                str(found["n_scored"]),
                left_out,
                numbers(found["parts"]),
            )
        )
    return [dict(zip(header, row, strict=True)) for row in rows]


def _notes(summary: Mapping[str, Any], source: AnswerSource) -> list[str]:
    notes = [it for it in (source.pairing, source.transcripts) if it]
    found = summary.get("metrics", {}).get("factscore")
    if found and found["factscore"] is not None and found["settings"]["gamma"]:
        notes.append(
            "factscore: with the released length penalty; init_score and factscore.gamma=0 in metric_args without"
        )
    return notes
