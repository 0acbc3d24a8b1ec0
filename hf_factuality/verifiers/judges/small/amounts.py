"""Amounts of a claim as its evidence writes them, for the network: to it "330 metres" and "330 m" are two things."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from hf_factuality.verifiers.judges.lexical.analysis import split_words
from hf_factuality.verifiers.judges.lexical.lexicon import lexicon
from hf_factuality.verifiers.judges.lexical.quantities import Quantity, quantities


class WrittenAmount(NamedTuple):
    """An amount and where it stands."""

    amount: Quantity
    start: int
    end: int


@lru_cache(maxsize=1 << 12)
def amounts(text: str) -> tuple[WrittenAmount, ...]:
    """The amounts of a text, in order."""
    forms, places, _ = split_words(text)
    words = [form.lower() for form in forms]
    found = quantities(words, [lexicon().basic(word) for word in words])
    result = []
    for one in found:
        before = one.at > 0 and one.kind == "money" and words[one.at - 1] in "$€£¥"
        result.append(WrittenAmount(one, places[one.at - before][0], places[one.end - 1][1]))
    return tuple(result)


def in_words_of(claim: str, evidence: str) -> str:
    """The claim with each amount as the evidence writes the same one: "330 m" for "330 metres", "50%" for "half"."""
    theirs = amounts(evidence)
    if not theirs:
        return claim
    parts, at = [], 0
    for ours, start, end in amounts(claim):
        if start < at or not _stands_alone(claim, start, end) or _has(evidence, claim[start:end]):
            continue
        for other, first, last in theirs:
            if _same(ours, other) and _stands_alone(evidence, first, last):
                parts += [claim[at:start], evidence[first:last]]
                at = end
                break
    return "".join([*parts, claim[at:]])


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether an amount is no part of a word or a name: "half-brother", "the second half", "a 60-minute talk"."""
    if "-" in (text[start - 1 : start], text[end : end + 1]) or re.search(r"\d-", text[start:end]):
        return False
    return text[start:end].lower() != "half" or text[end:].startswith((" of ", " the "))


def _has(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None


def _same(ours: Quantity, theirs: Quantity) -> bool:
    """Whether two amounts are one, to the digit; a time of day is no duration."""
    return (
        ours[:3] == theirs[:3]
        and ours.kind not in ("rank", "times")  # "the Third Reich"
        and ours.bound == theirs.bound
        and ours.about == theirs.about
        and (ours.kind != "money" or ours.unit == theirs.unit)
        and (ours.kind != "time" or bool(ours.unit) == bool(theirs.unit))
        and {ours.unit, theirs.unit} != {"°c", "°f"}
    )


# "330 m (1,083 ft)"
_TWICE = re.compile(
    r"(?<![\d.,])(\d[\d.,]{0,20}[ \u00a0-]?[^\s\d().,]{1,20}(?: [^\W\d]{1,12})?) \(((?:about |approximately |~)?\d[^()]{1,40})\)"
)


def given_once(evidence: str, claim: str) -> str:
    """The evidence with one of two amounts of which the second stands in brackets: that of the claim, or the first."""

    def one(found: re.Match[str]) -> str:
        first, second = (amounts(part) for part in found.groups())
        if len(first) != 1 or len(second) != 1 or first[0].amount.kind != second[0].amount.kind:
            return found[0]
        return found[2] if _has(claim, found[2]) else found[1]

    return _TWICE.sub(one, evidence) if "(" in evidence else evidence
