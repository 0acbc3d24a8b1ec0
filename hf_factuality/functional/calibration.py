"""Whether probabilities rank claims, and whether they mean what they say. Plain numbers in, plain numbers out.

Probabilities are in [0, 1]; a label is whether the claim is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import exp, isfinite, log
from typing import NamedTuple

from hf_factuality.functional.scoring import mean


BINNINGS = ("width", "mass")
MAX_TEMPERATURE = 100.0
"""A fitted temperature is between this and its inverse: of separable claims the best would be 0."""


class Bin(NamedTuple):
    """Claims of like probability: how many, their mean probability, and the share that is true."""

    count: int
    confidence: float
    accuracy: float


def _pairs(probabilities: Sequence[float], labels: Sequence[bool]) -> list[tuple[float, bool]]:
    pairs = [(float(p), bool(y)) for p, y in zip(probabilities, labels, strict=True)]
    if wrong := [p for p, _ in pairs if not 0.0 <= p <= 1.0]:
        raise ValueError(f"a probability is in [0, 1], got {wrong[0]!r}")
    return pairs


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Probability that a true claim has a higher score than a false one, ties by half: the area under the ROC curve.

    `None` unless there are claims of both kinds; `ValueError` if a score is NaN.
    """
    pairs = sorted(zip(map(float, scores), map(bool, labels), strict=True))
    if any(score != score for score, _ in pairs):
        raise ValueError("a score is NaN: leave unknown claims out")
    below = wins = 0.0
    for _, tied in groupby(pairs, key=lambda pair: pair[0]):
        here = [label for _, label in tied]
        false = len(here) - sum(here)
        wins += sum(here) * (below + false / 2)
        below += false
    true = len(pairs) - below
    return wins / (true * below) if true and below else None


def brier_score(probabilities: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Mean squared difference of probability and truth (Brier, 1950), for two classes in [0, 1]; `None` without claims."""
    return mean([(p - y) ** 2 for p, y in _pairs(probabilities, labels)])


def reliability_bins(
    probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10, binning: str = "width"
) -> list[Bin]:
    """The claims in bins of rising probability, empty ones left out: a reliability diagram.

    Args:
        probabilities (`Sequence[float]`), labels (`Sequence[bool]`, as long):
            Of the claims.
        bins (`int`, *optional*, defaults to `10`):
            How many.
        binning (`str`, *optional*, defaults to `"width"`):
            `"width"`: of equal width; a probability on an edge belongs above it, 1 to the last bin. `"mass"`: of equally
            many claims, but for one; equal probabilities may be parted.

    Returns:
        `list[Bin]`.

    Raises:
        `ValueError`: no bins, an unknown binning, or a probability out of range.
    """
    if bins < 1 or binning not in BINNINGS:
        raise ValueError(f"bins={bins!r} must be at least 1, and binning={binning!r} one of {list(BINNINGS)}")
    pairs = sorted(_pairs(probabilities, labels), key=lambda pair: pair[0])  # not by label: ties stay as they came
    places = [
        min(int(p * bins), bins - 1) if binning == "width" else i * bins // len(pairs)
        for i, (p, _) in enumerate(pairs)
    ]
    found: dict[int, list[tuple[float, bool]]] = {}
    for place, pair in zip(places, pairs, strict=True):
        found.setdefault(place, []).append(pair)
    return [Bin(len(own), mean([p for p, _ in own]), mean([float(y) for _, y in own])) for own in found.values()]


def expected_calibration_error(
    probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10, binning: str = "width"
) -> float | None:
    """Mean over the claims of their bin's |share true - mean probability| (Naeini et al., 2015), of P(true).

    Unlike the form for classifiers of many classes (arXiv 1706.04599), which takes the probability of the winning class, so
    that half the range is empty. Arguments and errors as in [`reliability_bins`]; `None` without claims.
    """
    found = reliability_bins(probabilities, labels, bins, binning)
    gaps = [bin.count * abs(bin.accuracy - bin.confidence) for bin in found]
    return sum(gaps) / sum(bin.count for bin in found) if found else None


def sigmoid(x: float) -> float:
    """`1 / (1 + exp(-x))`, for any finite x."""
    return 1.0 / (1.0 + exp(-x)) if x >= 0 else exp(x) / (1.0 + exp(x))


def fit_temperature(log_odds: Sequence[float], labels: Sequence[bool]) -> float:
    """The temperature T whose `sigmoid(log_odds / T)` has the least log-loss on held-out claims (arXiv 1706.04599).

    The log-loss is convex in 1/T; its derivative is halved down to zero, in log(1/T).

    Args:
        log_odds (`Sequence[float]`):
            Natural logarithm of P(true) / P(false), finite: of two logits their difference.
        labels (`Sequence[bool]`, as long):
            Of both kinds.

    Returns:
        `float` between 0.01 and 100, the bounds included: 0.01 if the claims are separable, 100 if the model ranks them no
        better than chance.

    Raises:
        `ValueError`: claims of one kind only, or log-odds that are not finite.
    """
    pairs = [(float(z), bool(y)) for z, y in zip(log_odds, labels, strict=True)]
    if len({y for _, y in pairs}) < 2 or not all(isfinite(z) for z, _ in pairs):
        raise ValueError("a temperature needs finite log-odds of claims that are true and of claims that are false")
    low, high = -log(MAX_TEMPERATURE), log(MAX_TEMPERATURE)
    for _ in range(50):
        middle = (low + high) / 2
        slope = sum((sigmoid(exp(middle) * z) - y) * z for z, y in pairs)
        low, high = (middle, high) if slope < 0 else (low, middle)
    return exp(-(low + high) / 2)
