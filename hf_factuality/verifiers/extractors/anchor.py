"""Where a completion states a claim: its very words, or the shortest stretch that holds most of them in order."""

from __future__ import annotations

import re
from bisect import bisect_left

from rapidfuzz.distance import LCSseq

from hf_factuality.reading.words import FUNCTION_WORDS


# Share of a claim's words that a sentence must hold, in order, for the claim to be found in it.
MIN_COVERAGE = 0.6
# And of all its words, those that stand around the sentence included.
MIN_SHARE = 0.25
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_HAN}]|\d+(?:[.,]\d+)*|[^\W\d_{_HAN}]+")
_FUNCTION = FUNCTION_WORDS | set("的了是在和与及也都就于")


def content_words(text: str) -> list[tuple[str, int, int]]:
    """Words that carry meaning, each Chinese character one, with their places."""
    found = []
    for match in _WORD.finditer(text):
        word = match.group().replace(",", "").casefold()
        if word not in _FUNCTION:
            found.append((word, *match.span()))
    return found


def find_exact(claim: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """The words of `claim` in `text`, whatever their case and the white space between them."""
    parts = claim.strip().rstrip(".。").split()
    if not parts:
        return None
    # Whole words; Chinese has no spaces to tell them by.
    before = r"(?<!\w)" if re.match(rf"[^\W{_HAN}]", parts[0]) else ""
    after = r"(?!\w)" if re.search(rf"[^\W{_HAN}]$", parts[-1]) else ""
    pattern = before + r"\s+".join(map(re.escape, parts)) + after
    found = re.compile(pattern, re.IGNORECASE).search(text, start, end)
    return found.span() if found else None


def anchor_claim(
    claim: str, text: str, sentence: tuple[int, int], elsewhere: frozenset[str] = frozenset()
) -> tuple[int, int, str]:
    """Start and end of the characters of a sentence that state a claim, and how they were found (see `Claim.anchor`).

    First the very words of the claim, then the shortest stretch that holds as long a subsequence of its words, in
    order, as the whole sentence does (function words aside), if that is most of them. Words that stand `elsewhere`,
    around the sentence, are not expected in it: a self-contained claim has them in place of pronouns.
    """
    start, end = sentence
    exact = find_exact(claim, text, start, end)
    if exact:
        return *exact, "exact"
    here = content_words(text[start:end])
    there = [word for word, _, _ in here]
    known = set(there)
    wanted = [word for word, _, _ in content_words(claim)]
    longest = LCSseq.similarity(wanted, there)
    expected = sum(word in known or word not in elsewhere for word in wanted)
    if not longest or longest < max(MIN_COVERAGE * expected, MIN_SHARE * len(wanted)):
        return start, end, "sentence"
    # The first place where it is complete, and from there back to the last place where it can begin.
    last = bisect_left(range(len(there)), longest, key=lambda i: LCSseq.similarity(wanted, there[: i + 1]))
    first = last - bisect_left(
        range(last + 1), longest, key=lambda i: LCSseq.similarity(wanted, there[last - i : last + 1])
    )
    return start + here[first][1], start + here[last][2], "aligned"
