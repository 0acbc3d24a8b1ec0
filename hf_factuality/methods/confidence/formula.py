"""The confidence that an answer states, and what it earns by being true. Plain numbers in, plain numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, log

from hf_factuality.functional.scoring import SUPPORTED_LABELS, mean
from hf_factuality.spans import Label


LEAST = 0.001
"""Nearest that a probability comes to 0 and 1 in [`lovec`]."""


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
