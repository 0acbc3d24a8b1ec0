"""The confidence that an answer states, and what it earns by being true. Plain numbers in, plain numbers out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import copysign, log

from hf_factuality.functional.scoring import SUPPORTED_LABELS, mean
from hf_factuality.spans import CONFIDENCE_TAG, STATED_CONFIDENCE, Label, scope_ranges


_NUMBER = re.compile(
    r"\s*(?:([01]|[01]?\.[0-9]{1,20})|([0-9]{1,2}(?:\.[0-9]{1,4})?|100(?:\.0{1,4})?)\s?%)\s*", re.ASCII
)
_WHOLE = re.compile(r"\s*(10|[0-9])\s*", re.ASCII)
LEAST = 0.001
"""Nearest that a probability comes to 0 and 1 in [`lovec`]."""


def _outside(text: str, opened: bool) -> list[tuple[int, int]]:
    """Characters that are no reasoning, whether or not they stand in the tags of the answer."""
    places = [0, *(place for block in scope_ranges(text, "think", opened) for place in block), len(text)]
    return list(zip(places[::2], places[1::2], strict=True))


def confidence_spans(text: str, opened: bool = False) -> list[tuple[int, int]]:
    """Characters of each `<confidence>...</confidence>` of a text, tags included, outside of its `<think>` blocks.

    `opened`: the prompt has opened a `<think>` block. Tags that are not closed, or hold others, are none.
    """
    return [found.span() for place in _outside(text, opened) for found in STATED_CONFIDENCE.finditer(text, *place)]


def stated_confidence(text: str, opened: bool = False) -> float | None:
    """The probability of being right that an answer states: the number in its one pair of tags `<confidence>`.

    A number from 0 to 1 ("0.8", ".8") or a percentage ("80%"). `None` if there is another number of pairs outside of the
    `<think>` blocks, a tag is left over there, or anything else stands between the tags.
    """
    spans = confidence_spans(text, opened)
    tags = [tag for place in _outside(text, opened) for tag in CONFIDENCE_TAG.finditer(text, *place)]
    if len(spans) != 1 or len(tags) != 2:
        return None
    match = _NUMBER.fullmatch(STATED_CONFIDENCE.fullmatch(text, *spans[0])[1])
    if match is None:
        return None
    value = float(match[1]) if match[1] else float(match[2]) / 100
    return value if value <= 1 else None


def rlcr(correct: bool, confidence: float | None, weights: tuple[float, float] = (1.0, 1.0)) -> float:
    """RLCR's reward (arXiv 2507.16806): w1 1[correct] - w2 (q - 1[correct])^2, in [-w2, w1].

    An answer without a number has the largest error, 1, so that leaving it out never pays.
    """
    error = 1.0 if confidence is None else (confidence - correct) ** 2
    return weights[0] * correct - weights[1] * error


def dcpo_calibration(
    confidence: float | None, correct: bool, group_mean: float, mix: float = 0.5, power: float = 1.0
) -> float:
    """DCPO's reward of the confidence (arXiv 2603.09117): -|q - (mix group mean + (1 - mix) 1[correct])|^power, in [-1, 0].

    `group_mean` is the share of the group's answers that are correct. With `power=2` the error of the released code. An answer
    without a number earns -1, the least; the released code reads it as a confidence of -1.
    """
    return -1.0 if confidence is None else -(abs(confidence - (mix * group_mean + (1 - mix) * correct)) ** power)


def lovec(
    labels: Sequence[Label | None], confidences: Sequence[float | None], extra: float = 0.0, weight: float = 1.0,
    power: float = 1.5,
) -> float | None:  # fmt: skip
    """LoVeC's reward of a long answer (arXiv 2505.23912): how well each sentence's number fits its label, by a log rule.

    The mean over the sentences that state a fact of 1 + (f ln c + (1 - f) ln(1 - c)) / R, times `weight`, plus `extra`, its
    terms of informativeness and format; then sign(r) |r|^power. f is 1 if the sentence is supported, else 0. c is clipped to
    [.001, .999], as in the released code, so that R = -ln .001 bounds the rule (calibration is only promised by bounded
    proper rules) and the mean lies in [0, 1]. A sentence without a number earns the least, 0; one that could not be judged is
    left out.

    Returns:
        `float`: `None` if there are sentences and none was judged; without any, that of `extra` alone.
    """
    rows = [(f, c) for f, c in zip(labels, confidences, strict=True) if f is not Label.NO_FACT]
    known = [(f in SUPPORTED_LABELS, c) for f, c in rows if f is not None]
    if rows and not known:
        return None
    paid = [0.0 if c is None else _fit(true, c) for true, c in known]
    total = weight * (mean(paid) if paid else 0.0) + extra
    return copysign(abs(total) ** power, total)


def _fit(true: bool, confidence: float) -> float:
    clipped = min(max(confidence, LEAST), 1 - LEAST)
    return 1 + log(clipped if true else 1 - clipped) / -log(LEAST)


def sentence_confidences(text: str, opened: bool = False) -> list[tuple[int, int, float | None]]:
    """Sentences and the numbers after them, as LoVeC has them: characters before each tag, and 0 to 10 as 0 to 1.

    `(start, end, confidence)` of what stands between two tags; what follows the last has no number, `None`, as has what comes
    before a tag with anything but a whole number from 0 to 10. Text in `<think>` blocks is left out.
    """
    found: list[tuple[int, int, float | None]] = []
    for low, high in scope_ranges(text, "answer", opened):
        for match in [*STATED_CONFIDENCE.finditer(text, low, high), None]:
            number = match and _WHOLE.fullmatch(match[1])
            if text[low : match.start() if match else high].strip():
                found.append((low, match.start() if match else high, int(number[1]) / 10 if number else None))
            low = match.end() if match else high
    return found
