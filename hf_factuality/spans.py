"""Labelled character spans: the one schema that verifiers write and that credit, metrics and reports read.

A span is a half-open range of characters of the *decoded completion*, not of its tokens: policy, verifier and critic may
each have another tokenizer. This module and [`~hf_factuality.offsets`] import nothing else of the package.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any

from hf_factuality.errors import SpanError
from hf_factuality.offsets import TokenOffsets as TokenOffsets
from hf_factuality.offsets import token_offsets as token_offsets


class Label(str, Enum):
    """What the evidence says about a span.

    A judgement that failed or could not be parsed has no label: it is `None`, never one of these (unknown is not wrong).
    """

    SUPPORTED = "supported"
    """The evidence states it."""
    HEDGED_SUPPORTED = "hedged_supported"
    """Said with reservation ("perhaps"), and the evidence states it."""
    UNVERIFIABLE = "unverifiable"
    """A claim that the evidence neither states nor contradicts."""
    HEDGED_CONTRADICTED = "hedged_contradicted"
    """Said with reservation, and the evidence contradicts it."""
    CONTRADICTED = "contradicted"
    """The evidence contradicts it."""
    NO_FACT = "no_fact"
    """Holds nothing that could be checked."""


_TABLES = {
    "rlfh": {
        "correct": Label.SUPPORTED,
        "hedged correct": Label.HEDGED_SUPPORTED,
        "vague": Label.UNVERIFIABLE,
        "hedged wrong": Label.HEDGED_CONTRADICTED,
        "wrong": Label.CONTRADICTED,
    },
    "anah": {
        "ok": Label.SUPPORTED,
        "contradictory": Label.CONTRADICTED,
        "unverifiable": Label.UNVERIFIABLE,
        "nofact": Label.NO_FACT,
    },
    "fspo": {"entailed": Label.SUPPORTED, "neutral": Label.UNVERIFIABLE, "contradicted": Label.CONTRADICTED},
    "factscore": {
        "s": Label.SUPPORTED,
        # "Not supported" lumps contradicted and unmentioned facts together; against a knowledge source that is held to
        # be complete, as FActScore holds Wikipedia, both count against the answer.
        "ns": Label.CONTRADICTED,
        # Irrelevant facts are not judged against the source, and count in FActScore's denominator.
        "ir": Label.UNVERIFIABLE,
    },
    "veriscore": {
        "supported": Label.SUPPORTED,
        "contradicted": Label.CONTRADICTED,
        "inconclusive": Label.UNVERIFIABLE,
    },
    "safe": {
        "supported": Label.SUPPORTED,
        # As for FActScore's "NS": contradicted and unmentioned are one label, and both count against the answer.
        "not supported": Label.CONTRADICTED,
        # Not judged, and in none of SAFE's counts.
        "irrelevant": Label.NO_FACT,
    },
    "longwiki": {"true": Label.SUPPORTED, "false": Label.CONTRADICTED},  # `is_supported` as text
}
LABEL_TABLES: Mapping[str, Mapping[str, Label]] = MappingProxyType(
    {name: MappingProxyType(table) for name, table in _TABLES.items()}
)
"""Published label sets -> ours. Keys are lower case; `map_label` looks them up case-insensitively and *exactly*: RLFH's
released parser searched for substrings and so read "incorrect" as "correct"."""
RLFH_LABELS, ANAH_LABELS = LABEL_TABLES["rlfh"], LABEL_TABLES["anah"]


def map_label(name: str, table: str) -> Label | None:
    """Translate a published label into ours.

    Args:
        name (`str`):
            Label as the published code writes it. Case and surrounding white space do not matter; nothing else is
            forgiven, so that `"incorrect"` is never read as `"correct"`.
        table (`str`):
            One of `"rlfh"`, `"anah"`, `"fspo"`, `"factscore"`, `"veriscore"`, `"safe"`, `"longwiki"`.

    Returns:
        [`Label`] or `None` (a name that the table does not hold: the judgement is unknown).

    Raises:
        `SpanError`: `table` is none of these.
    """
    if table not in LABEL_TABLES:
        raise SpanError(f"unknown label table {table!r}; choose one of {sorted(LABEL_TABLES)}")
    return LABEL_TABLES[table].get(" ".join(name.split()).lower())


@dataclass(frozen=True)
class LabeledSpan:
    """A half-open range of characters of a completion, with its label.

    Args:
        start (`int`):
            First character (code points, not bytes).
        end (`int`):
            One past the last character; an empty span has `end == start`.
        label ([`Label`], *optional*):
            Verdict; `None` if it was not judged or the judgement failed.
        score (`float`, *optional*):
            Confidence in [0, 1] that the span is supported, if the judge gives one.
        claim (`str`, *optional*):
            The statement that was judged, if it is not the text of the span itself.
        evidence (`str`, *optional*):
            The passage that decided.
        reason (`str`, *optional*):
            Why it has its label, where no passage decided: `"not found"`.

    Raises:
        `SpanError`: the range is negative or reversed, the label is none of ours, the score is not in [0, 1].
    """

    start: int
    end: int
    label: Label | None = None
    score: float | None = None
    claim: str | None = None
    evidence: str | None = None
    reason: str | None = None

    def __post_init__(self):
        for name in ("start", "end"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise SpanError(f"span {name} must be an int (a character offset), got {value!r}")
        if not 0 <= self.start <= self.end:
            raise SpanError(f"span [{self.start}, {self.end}) is not a range: need 0 <= start <= end")
        if self.label is not None and not isinstance(self.label, Label):
            try:
                object.__setattr__(self, "label", Label(self.label))
            except ValueError:
                raise SpanError(
                    f"unknown label {self.label!r}; use one of {[label.value for label in Label]} or None for a "
                    "judgement that failed"
                ) from None
        if self.score is not None:
            if isinstance(self.score, bool) or not isinstance(self.score, (int, float)):
                raise SpanError(f"span score must be a number in [0, 1] or None, got {self.score!r}")
            if not (math.isfinite(self.score) and 0.0 <= self.score <= 1.0):
                raise SpanError(f"span score must be in [0, 1], got {self.score!r}")
        for name in ("claim", "evidence", "reason"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise SpanError(f"span {name} must be a str or None, got {type(value).__name__}")

    def text(self, completion: str) -> str:
        """The characters of `completion` that the span covers."""
        return completion[self.start : self.end]

    def shift(self, offset: int) -> LabeledSpan:
        """The same span `offset` characters further right."""
        return replace(self, start=self.start + offset, end=self.end + offset)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as stored in datasets and JSON; inverse of [`LabeledSpan.from_dict`]."""
        return {**asdict(self), "label": None if self.label is None else self.label.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LabeledSpan:
        """Inverse of [`LabeledSpan.to_dict`]; `SpanError`: a key is missing or unknown, or a value is invalid."""
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown or not {"start", "end"} <= set(data):
            raise SpanError(f"a span has the keys {list(cls.__dataclass_fields__)}, got {sorted(data)}")
        return cls(**data)


@dataclass(frozen=True)
class Verification:
    """What a verifier found in one completion.

    Args:
        spans (`tuple[LabeledSpan, ...]`):
            The judged units (sentences, clauses or anchored claims), which reports show, and which credit uses where there are
            no `claims`.
        claims (`tuple[LabeledSpan, ...]`, *optional*):
            Atomic claims, where the verifier splits finer than `spans`; each spans the text that states it, or its
            sentence if it could not be anchored. Empty for verifiers that judge whole spans.
        abstained (`bool`, *optional*, defaults to `False`):
            Whether the completion declines to answer.
        error (`str`, *optional*):
            Why the completion could not be judged. Such a verification carries no information: it is excluded from
            rewards and metrics, and counted.
        unanswered (`int`, *optional*, defaults to `0`):
            Claims (or sentences without their claims) about which a model gave no whole answer: it was cut at its length, or
            the request failed. Runs that keep verdicts ask again for such a verification.
    """

    spans: tuple[LabeledSpan, ...] = ()
    claims: tuple[LabeledSpan, ...] = field(default=())
    abstained: bool = False
    error: str | None = None
    unanswered: int = 0

    def __post_init__(self):
        for name in ("spans", "claims"):
            value = tuple(getattr(self, name))
            for span in value:
                if not isinstance(span, LabeledSpan):
                    raise SpanError(f"Verification.{name} must hold LabeledSpan, got {type(span).__name__}")
            object.__setattr__(self, name, value)

    @property
    def judged(self) -> bool:
        """Whether it says anything: no error, and not every span failed. No span at all is a finding, not a failure."""
        return self.error is None and (not self.spans or any(span.label is not None for span in self.spans))

    @property
    def failure(self) -> str | None:
        """Why it says nothing: the error, or the reason of the first span that has one; `None` if it says anything."""
        return None if self.judged else first_failure([self])

    def validate(self, completion: str) -> Verification:
        """Check that every span lies inside `completion`; returns itself. `SpanError` names the first that does not."""
        for span in (*self.spans, *self.claims):
            if span.end > len(completion):
                raise SpanError(
                    f"span [{span.start}, {span.end}) ends after the completion ({len(completion)} characters)"
                )
        return self

    def shift(self, offset: int) -> Verification:
        """The same findings for a text that has `offset` more characters in front."""
        return self._placed(lambda span: (span.start + offset, span.end + offset))

    def spread(self, ranges: Sequence[tuple[int, int]]) -> Verification:
        """The findings in [`scope_text`]'s text, as findings in the completion. A span over two ranges holds what is between."""

        ranges = ranges or [(0, 0)]
        begins = _begins(ranges)

        def at(place: int, character: int) -> int:  # in the part of that character
            number = bisect_right(begins, character) - 1
            first, last = ranges[number]
            return min(first + place - begins[number], last)

        return self._placed(lambda it: (at(it.start, it.start), at(it.end, max(it.start, it.end - 1))))

    def gather(self, ranges: Sequence[tuple[int, int]]) -> Verification:
        """Inverse of [`Verification.spread`]: findings in a completion, as findings in [`scope_text`]'s text."""

        ranges = ranges or [(0, 0)]
        begins, ends = _begins(ranges), [last for _, last in ranges]

        def at(place: int) -> int:
            number = min(bisect_left(ends, place), len(ends) - 1)
            first, last = ranges[number]
            return begins[number] + min(max(place - first, 0), last - first)

        return self._placed(lambda span: (at(span.start), at(span.end)))

    def _placed(self, where: Callable[[LabeledSpan], tuple[int, int]]) -> Verification:
        def moved(span: LabeledSpan) -> LabeledSpan:
            start, end = where(span)
            return replace(span, start=start, end=end)

        return replace(self, spans=tuple(map(moved, self.spans)), claims=tuple(map(moved, self.claims)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; inverse of [`Verification.from_dict`]."""
        return {
            "spans": [span.to_dict() for span in self.spans],
            "claims": [claim.to_dict() for claim in self.claims],
            "abstained": self.abstained,
            "error": self.error,
            **({"unanswered": self.unanswered} if self.unanswered else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verification:
        """Inverse of [`Verification.to_dict`]; `SpanError`: a key is unknown or a span is invalid."""
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            raise SpanError(f"a verification has the keys {list(cls.__dataclass_fields__)}, got {sorted(data)}")
        data = dict(data)
        for name in ("spans", "claims"):
            data[name] = tuple(LabeledSpan.from_dict(span) for span in data.get(name, ()))
        data["unanswered"] = data.get("unanswered") or 0  # tables write null where others have a number
        return cls(**data)


BETWEEN = "\n\n"
"""What stands between the parts of a completion that are shown as one text."""


def _begins(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Where each part begins in [`scope_text`]'s text."""
    return list(accumulate((last - first + len(BETWEEN) for first, last in ranges[:-1]), initial=0))


def first_failure(found: Iterable[Verification]) -> str:
    """Why verifications say nothing: the first error of all, else the first reason of a span."""
    found = list(found)
    errors = (it.error for it in found if it.error)
    reasons = (span.reason.removeprefix("not judged: ") for it in found for span in it.spans if span.reason)
    return next(chain(errors, reasons), "no sentence could be judged")
