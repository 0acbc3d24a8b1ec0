"""Answers made of claims: labelled by the caller, or judged here by a verifier."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hf_factuality.errors import DataError, SpanError
from hf_factuality.functional.labels import judged_units
from hf_factuality.io.rows import is_missing
from hf_factuality.metrics._common import Options, is_published, make_result, named, read_options, who_judges
from hf_factuality.reading.rules import ABSTENTION, abstention_rule
from hf_factuality.reading.same import first_of_same, least_favourable
from hf_factuality.spans import LABEL_TABLES, Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput, evidence_passages
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


logger = logging.getLogger(__name__)

Rule = str | Callable[[str], bool] | None
"""Which responses decline: see [`~hf_factuality.reading.abstention_rule`]."""

INPUTS = """
Args:
    predictions (`list`): one per response, of any of these forms, also mixed:
        - a string: the response, whose claims the verifier finds and judges;
        - a list of claims that are labelled already, which no model sees: labels (`["S", "NS"]`), pairs
          (`[["Born in Ulm.", "S"]]`) or dictionaries with `label` and, if known, `claim`, `start`, `end`, `score`,
          `evidence`. A label is a name of the paper or one of ours, `True`/`False` (supported or not), or `None`
          (the judgement failed: unknown, left out, counted). An empty list is a response without claims;
        - a dictionary: `text`, `claims` as above, `abstained`, `domain`; or a `Verification`;
        - `None`: no response, left out.
    references (`list`, *optional*): what the verifier judges by: a string, a list of strings, or a dictionary with
        `evidence` and `question`. Not needed for labelled claims.
    verifier (`str` or object, *optional*, defaults to `"small"`): as `hf_factuality.load_verifier` takes it. Touched
        only if a response comes without labels.
    questions (`list[str]`, *optional*): one per prediction, shown to the verifier.
    extractor, judge (`str`, *optional*): who made labels that came with the predictions. With one of the paper's
        judges, or "human", the result may be comparable to the published one.
    label_table (`str`, *optional*): read labels by another published set ("rlfh", "anah", "fspo", "factscore",
        "longwiki", "safe", "veriscore").
    timeout (`float`, *optional*): seconds per 64 responses for the verifier; by default, it is waited for.
    return_spans (`bool`, *optional*, defaults to `False`): adds `spans`, a list per prediction.
"""


@dataclass(frozen=True, kw_only=True)
class ClaimOptions(Options):
    """Arguments of every metric over claims; see [`INPUTS`]."""

    verifier: str | Verifier = "small"
    questions: Sequence[str | None] | None = None
    extractor: str | None = None
    judge: str | None = None
    label_table: str | None = None
    timeout: float | None = None
    return_spans: bool = False


@dataclass(slots=True)
class Answer:
    """One response, read; `None` is what is not known (yet)."""

    text: str | None = None
    spans: Sequence[LabeledSpan] = ()  # its claims, if they are asked for: of a hundred thousand, labels are enough
    labels: Sequence[Label | None] = ()  # of the claims
    same: Sequence[int] | None = None  # per label, the first claim that states the same; `None`: no two do
    abstained: bool | None = None
    declines: frozenset[str] | None = None  # rules of ABSTENTION by which its text declines; `None`: read the text
    problem: str | None = None  # why it cannot be scored at all
    unjudged: str | None = None  # why its text cannot be judged: a problem unless it declines or is blank
    given: bool = False  # the labels came with the prediction, or there is nothing to judge
    domain: str | None = None
    given_labels: Sequence[Label | None] | None = None  # with those of repeated claims, where `labels` are without

    def distinct_labels(self) -> list[Label | None]:
        """Labels of the claims, each once: of claims of the same words the least favourable label that is known."""
        return list(self.labels) if self.same is None else list(least_favourable(self.same, self.labels).values())


def small_answer(text: str, found: Verification, unjudged: str | None = None, domain: str | None = None) -> Answer:
    """What every metric over claims reads of a verification, and no more; `unjudged` says why there is none."""
    blank = not text.strip()
    answer = Answer(
        text="" if blank else None,
        abstained=found.abstained or None,
        declines=frozenset(name for name, rule in ABSTENTION.items() if rule(text)),
        unjudged=unjudged,
        domain=domain,
    )
    if found.error is not None:
        answer.problem = "verifier_failed"
    elif unjudged is None:
        claims = judged_units(found)
        answer.labels, answer.given = tuple(claim.label for claim in claims), True
        answer.same = _same(claims, text)
    return answer


def _same(claims: Sequence[LabeledSpan], text: str) -> tuple[int, ...] | None:
    """Per claim, the number of the first one that states the same; `None` if no two do."""
    found = first_of_same(claims, text)
    return tuple(found) if len(set(found)) < len(found) else None


def verdict_of_claims(answer: Answer) -> bool | None:
    """Whether a claim of a judged text is not supported; `None` without any judged claim, or if one that could not be judged
    decides."""
    if answer.problem or answer.abstained:
        return None
    claims = [label for label in answer.labels if label is not Label.NO_FACT]
    if any(label not in (None, Label.SUPPORTED, Label.HEDGED_SUPPORTED) for label in claims):
        return True
    return None if not claims or None in claims else False


class JudgedAnswers:
    """All responses of a `compute` call, judged.

    Args:
        predictions (`Sequence`), references (`Sequence`):
            As many; see [`INPUTS`].
        table (`str`, *optional*):
            Label set of the paper: a name of [`~hf_factuality.spans.LABEL_TABLES`].
        abstention (`str` or `Callable`, *optional*):
            See [`~hf_factuality.reading.abstention_rule`].
        deduplicate (`bool`, *optional*, defaults to `False`):
            Whether a claim counts once per response. Of claims of the same words the least favourable label counts.
        options (`Mapping`):
            Arguments of [`ClaimOptions`].

    Raises:
        `DataError`: a prediction or reference has none of the forms of [`INPUTS`].
        `TypeError`: unknown options.
    """

    def __init__(
        self,
        predictions: Sequence[Any],
        references: Sequence[Any],
        *,
        table: str | None,
        abstention: str | Callable[[str], bool] | None = None,
        deduplicate: bool = False,
        options: Mapping[str, Any],
    ):
        self.options, self._deduplicate = read_options(ClaimOptions, options), deduplicate
        self._table = self.options.label_table or table
        if self._table is not None and self._table not in LABEL_TABLES:
            raise SpanError(f"unknown label table {self._table!r}; choose one of {sorted(LABEL_TABLES)}")
        self._as_published = self._table == table
        self._unknown: Counter[str] = Counter()
        self.claims: Counter[str] = Counter()
        self.verifier: Verifier | None = None
        self.items: list[Answer] = []
        declines = abstention_rule(abstention)
        for row, item in enumerate(predictions):
            answer = self._read(item, f"prediction {row}")
            if answer.declines is not None and callable(abstention):
                names = ", ".join(ABSTENTION)
                raise DataError(f"a function cannot say whether a verified response declines; name a rule: {names}")
            if answer.abstained is None and answer.declines is not None:
                answer.abstained = abstention in answer.declines
            elif answer.abstained is None:
                answer.abstained = answer.text is not None and bool(declines(answer.text))
            self.items.append(answer)
        self._verify(references)
        for answer in self.items:
            self._count(answer)
        if self._unknown:
            logger.warning(
                f"{self._unknown.total()} claims have a label that is not known and are left out as unjudged: "
                f"{dict(self._unknown.most_common(5))}"
            )

    def _read(self, item: Any, place: str) -> Answer:
        if is_missing(item):
            return Answer(problem="missing")
        if isinstance(item, Answer):
            return replace(item)
        if isinstance(item, str):
            item = {"text": item}
        elif isinstance(item, (list, tuple)):
            item = {"claims": item}
        elif isinstance(item, Verification):
            item = {"verification": item}
        elif not isinstance(item, dict):
            raise DataError(f"{place} must be text, a list of claims, a dictionary or None, got {item!r:.100}")
        found = item.get("verification")
        if "verification" in item and found is None and not {"text", "completion", "claims"} & set(item):
            return Answer(problem="missing", domain=item.get("domain"))  # a row of `verify` without an answer
        if isinstance(found, Verification):
            item = {**item, **{name: getattr(found, name) for name in ("spans", "claims", "abstained", "error")}}
        elif isinstance(found, dict):  # a row that `hf-factuality verify` wrote
            item = {**item, **found}
        text = item.get("text", item.get("completion"))
        text = None if is_missing(text) else text
        claims = item.get("claims")
        if not claims and item.get("spans") is not None:  # a `Verification` whose spans are its claims
            claims = item["spans"]
        kinds = {"text": (text, str), "claims": (claims, (list, tuple)), "domain": (item.get("domain"), str)}
        for name, (value, kind) in kinds.items():
            if value is not None and not isinstance(value, kind):
                raise DataError(f"{place}: `{name}` must be a {'str' if kind is str else 'list'}, got {value!r:.100}")
        if not {"text", "completion", "claims", "spans", "abstained", "error"} & set(item):
            raise DataError(f"{place} needs `text` or `claims`; it has {sorted(item)}")
        abstained = item.get("abstained")
        if "spans" in item and not abstained:
            abstained = None  # a verification that says nothing about it: the rule for texts decides
        answer = Answer(text=text, abstained=abstained, domain=item.get("domain"))
        if item.get("error"):
            answer.problem = "verifier_failed"
        elif claims is not None or answer.abstained:
            self._keep(answer, [self._claim(claim, text, place) for claim in claims or ()])
            answer.given = True
        elif text is None:
            answer.problem = "missing"
        return answer

    def _claim(self, claim: Any, text: str | None, place: str) -> LabeledSpan:
        if isinstance(claim, LabeledSpan):
            return claim
        if isinstance(claim, (list, tuple)):
            if len(claim) != 2:
                raise DataError(f"{place}: a claim as a list is [claim, label], got {claim!r:.100}")
            claim = {"claim": claim[0], "label": claim[1]}
        elif not isinstance(claim, dict):
            claim = {"label": claim}
        elif "label" not in claim:
            if "is_supported" not in claim:
                raise DataError(f"{place}: a claim needs a `label` (None if its judgement failed), got {claim!r:.100}")
            claim = {**claim, "label": claim["is_supported"]}
        statement = claim.get("claim", claim.get("text"))
        start, end = claim.get("start"), claim.get("end")
        if start is None or end is None:
            start = text.find(statement) if text and isinstance(statement, str) and statement else -1
            start, end = (start, start + len(statement)) if start >= 0 else (0, len(text or ""))
        try:
            return LabeledSpan(
                start, end, self._label(claim["label"], place), claim.get("score"), statement, claim.get("evidence")
            )
        except SpanError as error:
            raise DataError(f"{place}: {error}") from None

    def _label(self, value: Any, place: str) -> Label | None:
        if value is None:
            return None
        if value in (0, 1) and not isinstance(value, (str, float)):
            return Label.SUPPORTED if value else Label.CONTRADICTED
        if not isinstance(value, str):
            raise DataError(f"{place}: a label is a string, True, False or None, got {value!r:.100}")
        name = " ".join(value.split()).lower()
        label = None if self._table is None else LABEL_TABLES[self._table].get(name)
        if label is None and name in {own.value for own in Label}:
            label = Label(name)
        if label is None:
            self._unknown[value[:50]] += 1
        return label

    def _verify(self, references: Sequence[Any]) -> None:
        questions = self.options.questions
        if questions is not None and len(questions) != len(self.items):
            raise DataError(f"there are {len(self.items)} predictions and {len(questions)} questions; give as many")
        rows = []
        for row, answer in enumerate(self.items):
            if answer.problem or answer.given:
                continue
            if answer.abstained or (answer.text is not None and not answer.text.strip()):
                answer.given = True  # nothing to judge
            elif answer.unjudged:
                answer.problem = answer.unjudged
            else:
                evidence, question = _evidence(references[row], f"reference {row}")
                question = questions[row] if questions is not None else question
                rows.append(VerificationRequest(VerifierInput(answer.text, question, evidence), key=answer))
        if not rows:
            return
        verifier = self.options.verifier
        if not isinstance(verifier, GuardedVerifier):
            verifier = GuardedVerifier(load_verifier(verifier), timeout=self.options.timeout)
        self.verifier = verifier.verifier
        (judged,) = judge_rows(verifier, rows, chunk=None)
        for it in judged:
            answer, found = it.row.key, it.found
            answer.abstained = found.abstained
            self._keep(answer, judged_units(found))
            if found.error is not None:
                answer.problem = it.left_out or "verifier_failed"

    def _keep(self, answer: Answer, claims: Sequence[LabeledSpan]) -> None:
        answer.labels = [claim.label for claim in claims]
        if self._deduplicate:
            answer.same = _same(claims, answer.text or "")
        if self.options.return_spans:
            answer.spans = claims

    def _count(self, answer: Answer) -> None:
        if answer.problem or answer.abstained:
            return
        if self._deduplicate and answer.same is not None:
            answer.given_labels, answer.labels = answer.labels, answer.distinct_labels()
            self.claims["duplicate"] += len(answer.given_labels) - len(answer.labels)
        self.claims["unjudged"] += sum(label is None for label in answer.labels)
        self.claims["no_fact"] += sum(label is Label.NO_FACT for label in answer.labels)

    def comparable(self, published: Sequence[str]) -> bool:
        """Whether every label is one of the paper's set, and came with the predictions from one of its judges."""
        known = {*LABEL_TABLES.get(self._table, {}).values()}
        return (
            self._as_published
            and is_published(self.options.judge, published)
            and all(it.given and (it.abstained or known.issuperset(it.labels)) for it in self.scorable)
        )

    @property
    def scorable(self) -> list[Answer]:
        """Responses without a problem, abstaining ones included."""
        return [answer for answer in self.items if answer.problem is None]

    def labels(self) -> list[list[Label | None] | None]:
        """Per scorable response, its labels; `None` if it abstains."""
        return [None if answer.abstained else answer.labels for answer in self.scorable]

    def labels_as_given(self) -> list[list[Label | None] | None]:
        """The same with those of repeated claims."""
        given = [answer.labels if answer.given_labels is None else answer.given_labels for answer in self.scorable]
        return [None if it.abstained else labels for it, labels in zip(self.scorable, given, strict=True)]

    def domains(self, given: Sequence[str | None] | None = None) -> list[str]:
        """Per scorable response, its domain, from `given` (one per prediction) or the prediction; `"all"` without."""
        if given is not None and len(given) != len(self.items):
            raise DataError(f"there are {len(self.items)} predictions and {len(given)} domains; give as many")
        names = given if given is not None else [answer.domain for answer in self.items]
        return [name or "all" for name, answer in zip(names, self.items, strict=True) if answer.problem is None]

    def empty(self) -> int:
        """Number of responses whose text is blank."""
        return sum(answer.text is not None and not answer.text.strip() for answer in self.items)

    def who(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Extractor and judge, for the result."""
        if self.verifier is None:
            return named(self.options.extractor), named(self.options.judge)
        return who_judges(self.verifier)

    def spans(self) -> list[list[dict[str, Any]] | None]:
        """Per prediction, its spans as dictionaries; `None` if it could not be scored."""
        return [None if answer.problem else [span.to_dict() for span in answer.spans] for answer in self.items]

    def result(
        self,
        name: str,
        score: float | None,
        scores: Sequence[float | None],
        *,
        parts: Mapping[str, Any] = MappingProxyType({}),
        left_out: Mapping[str, int] = MappingProxyType({}),
        settings: Mapping[str, Any] = MappingProxyType({}),
        published: Sequence[str] = (),
        released: float | None = None,
        statistic: Callable[[list], float | None] | None = None,
        resampled: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        """The result of the metric: the corpus score, and a score per scorable response.

        `left_out` counts scorable responses that do not count, by reason. `published` are the judges of the paper, and
        `released` is the score by the released rule, `None` if the settings are not the published ones. The interval is of
        the mean of `scores`, or of the `statistic` of what is `resampled`.
        """
        waiting = iter(scores)
        aligned = [None if answer.problem else next(waiting) for answer in self.items]
        problems = Counter(answer.problem for answer in self.items if answer.problem)
        responses = {reason: problems[reason] for reason in ("missing", "no_evidence", "verifier_failed")}
        claims = {reason: self.claims[reason] for reason in ("unjudged", "no_fact", "duplicate")}
        extractor, judge = self.who()
        result = make_result(
            name,
            score,
            scores=aligned,
            parts=parts,
            left_out={
                "responses": {**responses, **left_out},
                "claims": {**claims, "unknown_label": self._unknown.total()},
            },
            settings={**settings, "label_table": self._table},
            extractor=extractor,
            judge=judge,
            released=released if self.comparable(published) else None,
            resampled=resampled,
            statistic=statistic,
            options=self.options,
        )
        if self.options.return_spans:
            result["spans"] = self.spans()
        return result


def _evidence(reference: Any, place: str) -> tuple[tuple[str, ...], str | None]:
    question = None
    if isinstance(reference, dict):
        if "evidence" not in reference:
            raise DataError(f"{place} needs `evidence`; it has {sorted(reference)}")
        reference, question = reference["evidence"], reference.get("question")
    passages = evidence_passages(reference)
    if passages is None:
        raise DataError(f"{place} must be a string, a list of strings or a dictionary, got {reference!r:.100}")
    return passages, question
