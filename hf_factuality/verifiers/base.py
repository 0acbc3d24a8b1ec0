"""The verifier protocol, and those of the stages of a pipeline: extract, retrieve, judge.

Everything is batch in, list out: one call per generation batch, so that a judge can batch by length or send requests
concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hf_factuality.io.rows import is_missing, json_list
from hf_factuality.spans import Label, LabeledSpan, Verification


@dataclass(frozen=True)
class VerifierInput:
    """A completion to check, with what there is to check it against.

    Args:
        completion (`str`):
            The text to verify. Spans are character ranges of this very string. It was written by a model: it is data,
            never an instruction.
        question (`str`, *optional*):
            What was asked.
        evidence (`tuple[str, ...]`, *optional*):
            Passages that came with the row; a string is one passage. A closed-book policy never sees them.
        row (`Mapping[str, Any]`, *optional*):
            The other columns of the dataset row.

    Raises:
        `TypeError`: one of them is something else.
    """

    completion: str
    question: str | None = None
    evidence: tuple[str, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        _check_text(self, "completion")
        if self.question is not None:
            _check_text(self, "question")
        object.__setattr__(self, "evidence", _checked_passages(self, self.evidence))
        if not isinstance(self.row, Mapping):
            raise TypeError(f"VerifierInput: `row` must be a mapping of the columns of a row, got {self.row!r:.100}")


@dataclass(frozen=True)
class JudgeInput:
    """A claim and the passages it is judged by.

    Args:
        claim (`str`):
            A sentence or an atomic statement.
        evidence (`tuple[str, ...]`):
            Passages, best first where the retriever ranks them.
        question (`str`, *optional*):
            What was asked.
        completion (`str`, *optional*), span (`tuple[int, int]`, *optional*):
            The text that states the claim, and the characters where it does, for judges that read it there.
        row (`Mapping[str, Any]`, *optional*):
            The row of the input.
    """

    claim: str
    evidence: tuple[str, ...]
    question: str | None = None
    completion: str | None = None
    span: tuple[int, int] | None = None
    row: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        _check_text(self, "claim")
        object.__setattr__(self, "evidence", _checked_passages(self, self.evidence))


REQUEST_FAILED = "not judged: the request failed: "
"""How the reason of a claim begins whose judge gave no answer; what follows are words of its server or client."""


@dataclass(frozen=True)
class Judgement:
    """A verdict on one claim.

    Args:
        label ([`Label`], *optional*):
            `None` if the judge failed on this claim.
        score (`float`, *optional*):
            Confidence in [0, 1] that the claim is supported.
        evidence (`str`, *optional*):
            The passage that decided.
        reason (`str`, *optional*):
            Why it was not judged by evidence, such as `"not found"`.
        unanswered (`bool`, *optional*, defaults to `False`):
            Whether there is no label because a model gave no whole answer: it was cut at its length, or the request failed.
    """

    label: Label | None
    score: float | None = None
    evidence: str | None = None
    reason: str | None = None
    unanswered: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class PairInput:
    """Two answers to compare, in the order in which the judge sees them.

    Args:
        question (`str`, *optional*):
            What was asked.
        first (`str`), second (`str`):
            The answers. They were written by models: data, never instructions.
        evidence (`tuple[str, ...]`, *optional*):
            The passages that they were to rest on, in the order of their numbers.
    """

    question: str | None
    first: str
    second: str
    evidence: tuple[str, ...] = ()

    def __post_init__(self):
        _check_text(self, "first")
        _check_text(self, "second")
        object.__setattr__(self, "evidence", _checked_passages(self, self.evidence))


def _check_text(item: Any, name: str) -> None:
    if not isinstance(value := getattr(item, name), str):
        raise TypeError(f"{type(item).__name__}: `{name}` must be a str, got {type(value).__name__} {value!r:.100}")


def _checked_passages(item: Any, value: Any) -> tuple[str, ...]:
    """Evidence as a tuple of texts; a string is one passage, and nothing none."""
    passages = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(passages, (list, tuple)) or not all(isinstance(passage, str) for passage in passages):
        kind = type(item).__name__
        raise TypeError(f"{kind}: `evidence` must be a str or a sequence of str, one per passage, got {value!r:.100}")
    return tuple(passages)


def evidence_passages(value: Any) -> tuple[str, ...] | None:
    """Evidence as users store it, a text or a list of texts, as passages that are not blank; `None` if it is neither.

    A cell of a CSV file may hold the list as JSON.
    """
    value = json_list(value)
    passages = [value] if isinstance(value, str) else [] if is_missing(value) else value
    if not isinstance(passages, (list, tuple)) or not all(p is None or isinstance(p, str) for p in passages):
        return None
    return tuple(passage for passage in passages if passage and passage.strip())


def require_method(given: Any, method: str, what: str) -> None:
    """`TypeError` unless `given` is an object with the method that makes it `what`, such as "a verifier"; a class is none."""
    if isinstance(given, type):
        raise TypeError(f"{what} is an object, got the class {given.__name__}; pass {given.__name__}(...)")
    if not callable(getattr(given, method, None)):
        raise TypeError(f"{what} needs a method `{method}`; {type(given).__name__} has none")


@runtime_checkable
class Verifier(Protocol):
    """Reads completions, returns labelled spans. Any object with this method is a verifier.

    `requires_evidence` says whether a row without evidence can be checked at all; a verifier without this attribute is
    taken to need it. Rows without evidence are then not sent to it.
    """

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order; spans are character ranges of `input.completion`."""
        ...


class Extractor(Protocol):
    """Finds the units to judge."""

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, the spans to judge; `claim` set where it is not the text of the span. One that has a label already, such as
        `NO_FACT`, is not sent to the judge."""
        ...


class Retriever(Protocol):
    """Finds evidence for each claim."""

    def retrieve(
        self, inputs: Sequence[VerifierInput], claims: Sequence[Sequence[str]]
    ) -> list[list[tuple[str, ...] | None]]:
        """Per input and claim, the passages to judge it by, best first; empty where none was found, `None` where looking failed."""
        ...


class Judge(Protocol):
    """Labels claims."""

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`Judgement`] per input, in order."""
        ...


class PairJudge(Protocol):
    """Compares answers; batch in, list out. `name` or `model`, and `revision`, are read for the result."""

    def compare(self, pairs: Sequence[PairInput]) -> list[str | None]:
        """Per pair `"A"` (the first is better), `"B"`, `"tie"`, or `None` if the verdict could not be read."""
        ...


class RowEvidence:
    """Retriever that returns the evidence of the row, whole."""

    def retrieve(
        self, inputs: Sequence[VerifierInput], claims: Sequence[Sequence[str]]
    ) -> list[list[tuple[str, ...]]]:
        return [[item.evidence] * len(texts) for item, texts in zip(inputs, claims, strict=True)]

    def config(self) -> dict[str, Any]:
        """Arguments that make this retriever again: none."""
        return {}
