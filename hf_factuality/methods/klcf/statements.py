"""Statements that say the same, by their words or by embeddings: never two that differ in a number, a name or a negation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hf_factuality.reading.same import by_words as by_words
from hf_factuality.reading.same import words_of as words_of
from hf_factuality.reading.words import FUNCTION_WORDS, PRONOUNS
from hf_factuality.spans import Label
from hf_factuality.verifiers.judges.lexical.text import NEGATION, NUMBER, tokens


_NUMERAL = re.compile(
    r"(first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|\w+teenth|\w+tieth|one|once|twice|"
    r"half|double|dozens?|hundreds?|thousands?|(m|b|tr)illions?)(?!\w)"
)
_NO_NAMES = FUNCTION_WORDS - PRONOUNS


class SampledClaim(NamedTuple):
    """What a sample (by its number) states, and the verdict on it."""

    sample: int
    text: str
    label: Label | None


def by_meaning(
    statements: Sequence[list[SampledClaim]], encode: Callable, threshold: float
) -> list[list[SampledClaim]]:
    """Each statement of [`by_words`] joined to the nearest earlier one, if their cosine is at least `threshold`.

    Both must have the same numbers, names and negations, and neither may only add words to the other: it says more.
    """
    vectors = encode([claims[0].text for claims in statements])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found: dict[int, list[SampledClaim]] = {}
    groups: dict[tuple, list[int]] = {}  # places of the firsts of the joined, which alone are compared
    for place, claims in enumerate(statements):
        firsts = groups.setdefault(_fixed(words_of(claims[0].text)), [])
        scores = vectors[firsts] @ vectors[place]
        best = int(scores.argmax()) if firsts else 0
        if firsts and scores[best] >= threshold and not _adds_words(claims, found[firsts[best]]):
            found[firsts[best]] += claims
        else:
            firsts.append(place)
            found[place] = list(claims)
    return list(found.values())


def _fixed(words: Sequence[str]) -> tuple:
    """What statements that say the same share: numbers and names, each in order, and negations. A word with anything but
    lower-case letters may be a name, as every word of a script without case; where none is to be seen, every word may."""
    numbers, names = [], []
    for place, word in enumerate(words):
        lower = word.lower()
        if any(map(str.isdecimal, word)) or _NUMERAL.match(lower) or any(t.kind == NUMBER for t in tokens(lower)):
            numbers.append(lower)
        elif not all(c.islower() or c in "-'" for c in word) and (place or lower not in _NO_NAMES):
            names.append(lower)
    return tuple(numbers), tuple(names or map(str.lower, words)), len(NEGATION.findall(" ".join(words)))


def _adds_words(claims: Sequence[SampledClaim], others: Sequence[SampledClaim]) -> bool:
    one, two = (Counter(words_of(of[0].text.lower())) for of in (claims, others))
    return one <= two or two <= one
