"""Statements of the same words: what is said twice is said once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from hf_factuality.spans import Label, LabeledSpan


_QUOTES, _STOPS = "\"'“”„«»()[]_`", ".,;:。，；：、"
_SAME = str.maketrans("‘’–—−‐‑", "''-----", "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff")
_SMALL = re.compile("[²³¹⁰-₟¼-¾⅐-⅞]")  # NFKC would read 10² as 102
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# From the verdict that speaks most against a statement to the one that speaks most for it. One without a fact says nothing of
# a statement that is judged elsewhere.
_ORDER = (
    Label.CONTRADICTED,
    Label.HEDGED_CONTRADICTED,
    Label.UNVERIFIABLE,
    Label.HEDGED_SUPPORTED,
    Label.SUPPORTED,
    Label.NO_FACT,
    None,
)


class _Stated(Protocol):
    text: str


T = TypeVar("T", bound=_Stated)


def words_of(text: str) -> tuple[str, ...]:
    """Words in order, without articles and punctuation; other symbols stay, since "-5" is not "5"."""
    if not text.isascii():
        text = unicodedata.normalize("NFC" if _SMALL.search(text) else "NFKC", text).translate(_SAME)
    text = _GROUPED.sub("", text.replace("**", ""))
    words = [word.lstrip(_QUOTES).rstrip(_QUOTES + _STOPS) for word in text.split()]
    # "Plan A" and "The The" are names.
    return tuple(w for i, w in enumerate(words) if w and (w if i else w.lower()) not in ("a", "an", "the"))


def _key(text: str) -> tuple[str, ...]:
    # An exclamation says nothing more.
    return tuple(map(str.lower, words_of(text.rstrip().rstrip("!！….。"))))


def by_words(claims: Iterable[T]) -> list[list[T]]:
    """Claims (anything with a `text`) of the same words, in order of finding; those without any word are left out."""
    found: dict[tuple[str, ...], list[T]] = {}
    for claim in claims:
        if words := _key(claim.text):
            found.setdefault(words, []).append(claim)
    return list(found.values())


def first_of_same(units: Sequence[LabeledSpan], text: str | None) -> list[int]:
    """Per sentence or claim of a completion, the number of the first one that has the same words; its own, if none has.

    A claim without a statement is read off the `text`. Where that is not known (`None`), or the claim is a bare label, which
    spans the whole text, it is like no other.
    """
    first: dict[object, int] = {}
    found = []
    for number, unit in enumerate(units):
        statement = unit.claim
        if statement is None:
            bare = text is None or (unit.start, unit.end) == (0, len(text))
            statement = "" if bare else unit.text(text)
        found.append(first.setdefault(_key(statement) or number, number))
    return found


def least_favourable(same: Sequence[int], labels: Sequence[Label | None]) -> dict[int, Label | None]:
    """Per first statement (see [`first_of_same`]), the least favourable of the labels that are known of it; `None` if none is."""
    found: dict[int, Label | None] = {}
    for number, label in zip(same, labels, strict=True):
        found[number] = min(found.get(number), label, key=_ORDER.index)
    return found


def distinct_units(units: Sequence[LabeledSpan], text: str | None) -> tuple[LabeledSpan, ...]:
    """Sentences or claims of a completion, each statement once, at the place where it stands first.

    Two are the same if they have the same words. Of labels that differ the least favourable one that is known counts, with
    its score; of equal labels the lowest score.
    """
    same = first_of_same(units, text)
    if len(set(same)) == len(units):
        return tuple(units)
    held: dict[int, list[LabeledSpan]] = {}
    for number, unit in zip(same, units, strict=True):
        held.setdefault(number, []).append(unit)
    return tuple(_merged(group) for group in held.values())


def _merged(group: Sequence[LabeledSpan]) -> LabeledSpan:
    if len(group) == 1:
        return group[0]
    least = min(group, key=lambda it: (_ORDER.index(it.label), it.score is None, it.score or 0.0))
    return replace(group[0], label=least.label, score=least.score, evidence=least.evidence, reason=least.reason)
