"""Whether probabilities rank claims, and whether they mean what they say. Plain numbers in, plain numbers out.

A probability is in [0, 1], else `ValueError`; a label is whether the claim is true, or how often: from .5 on it ranks as true.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby
from math import exp, isfinite, isnan, log
from typing import NamedTuple

from hf_factuality.functional.scoring import mean


class Bin(NamedTuple):
    """Claims of like probability: how many, their mean probability, and the share that is true."""

    count: int
    confidence: float
    accuracy: float


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Probability that a true claim has a higher score than a false one, ties by half: the area under the ROC curve.

    `None` unless there are claims of both kinds; `ValueError` if a score is NaN.
    """
    pairs = sorted(zip(map(float, scores), map(_is_true, labels), strict=True))
    if any(isnan(score) for score, _ in pairs):
        raise ValueError("a score is NaN: leave unknown claims out")
    true = below = wins = 0.0
    for _, tied in groupby(pairs, key=lambda pair: pair[0]):
        here = [label for _, label in tied]
        wins += sum(here) * (below + here.count(False) / 2)
        true, below = true + sum(here), below + here.count(False)
    return wins / (true * below) if true and below else None


def brier_score(probabilities: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Mean squared difference of probability and truth (Brier, 1950), in [0, 1]; `None` without claims."""
    return mean([(p - y) ** 2 for p, y in _pairs(probabilities, labels)])


def reliability_bins(
    probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10, binning: str = "width"
) -> list[Bin]:
    """A reliability diagram: the claims in `bins` of rising probability, without empty ones.

    Those of `binning="width"` are equally wide (an edge belongs to the bin above it, 1 to the last), those of `"mass"` hold
    equally many claims, give or take one, but claims of one probability stay together, so that the order of the input does
    not matter. `ValueError` for less than one bin or another binning.
    """
    if bins < 1 or binning not in ("width", "mass"):
        raise ValueError(f"bins={bins!r} must be at least 1, and binning={binning!r} 'width' or 'mass'")
    pairs = sorted(_pairs(probabilities, labels), key=lambda pair: pair[0])
    found: dict[int, list[tuple[float, float]]] = {}
    first: dict[float, int] = {}  # rank of the first claim of a probability
    for rank, pair in enumerate(pairs):
        start = first.setdefault(pair[0], rank)
        place = min(int(pair[0] * bins), bins - 1) if binning == "width" else start * bins // len(pairs)
        found.setdefault(place, []).append(pair)
    return [Bin(len(own), mean([p for p, _ in own]), mean([y for _, y in own])) for own in found.values()]


def expected_calibration_error(
    probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10, binning: str = "width"
) -> float | None:
    """Mean over the claims of their bin's |share that is true - mean P(true)| (Naeini et al., 2015); `None` without claims.

    Bins as in [`reliability_bins`]. For many classes (arXiv 1706.04599) it would take the winning class's probability.
    """
    found = reliability_bins(probabilities, labels, bins, binning)
    return sum(own.count * abs(own.accuracy - own.confidence) for own in found) / len(labels) if found else None


def risk_coverage(scores: Sequence[float], labels: Sequence[bool]) -> list[tuple[float, float]]:
    """Of the 1, 2, ..., n claims with the highest scores, their share of all (coverage), and how many are false (risk).

    Claims of one score come in any order, so each takes its share of their false ones: the points do not depend on the order
    of the input. The mean of the risks is the area under the curve, AURC (arXiv 1805.08206); 0 is the best. `ValueError` if a
    score is NaN.
    """
    pairs = sorted(zip(map(float, scores), map(_is_true, labels), strict=True), reverse=True)
    if any(isnan(score) for score, _ in pairs):
        raise ValueError("a score is NaN: leave unknown claims out")
    found, false = [], 0
    for _, tied in groupby(pairs, key=lambda pair: pair[0]):
        here = [label for _, label in tied]
        own = here.count(False)
        for rank, n in enumerate(range(len(found) + 1, len(found) + 1 + len(here)), 1):
            found.append((n / len(pairs), (false + own * rank / len(here)) / n))
        false += own
    return found


def sigmoid(x: float) -> float:
    """`1 / (1 + exp(-x))`, for any x."""
    return 1.0 / (1.0 + exp(-x)) if x >= 0 else exp(x) / (1.0 + exp(x))


def fit_temperature(log_odds: Sequence[float], labels: Sequence[bool]) -> float:
    """The temperature T with the least log-loss of `sigmoid(log_odds / T)` on held-out claims (arXiv 1706.04599).

    `log_odds` are natural logarithms of P(true) / P(false), of two logits their difference. Returns a number from 0.01 (or
    the claims are separable) to 100 (or they are ranked no better than by chance). Raises `ValueError` for claims of one kind
    only, or log-odds that are not finite.
    """
    # The log-loss is convex in 1/T; the zero of its derivative is found by halving, in log(1/T).
    pairs = [(float(z), float(y)) for z, y in zip(log_odds, labels, strict=True)]
    if not 0 < sum(y for _, y in pairs) < len(pairs) or not all(isfinite(z) for z, _ in pairs):
        raise ValueError("a temperature needs finite log-odds of claims that are true and of claims that are false")
    low, high = -log(100), log(100)
    for _ in range(50):
        middle = (low + high) / 2
        rising = sum((sigmoid(exp(middle) * z) - y) * z for z, y in pairs) >= 0
        low, high = (low, middle) if rising else (middle, high)
    return exp(-(low + high) / 2)


def best_threshold(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """From which score on claims are best called true: the mean of the shares of true and of false claims that are told
    right (balanced accuracy) is highest. Half way between two scores, the lowest of several; needs claims of both kinds.
    """
    true, false = (sorted(s for s, y in zip(scores, labels, strict=True) if bool(y) is kind) for kind in (True, False))
    cuts = sorted({*true, *false})
    best = max(cuts, key=lambda cut: bisect_left(false, cut) / len(false) - bisect_left(true, cut) / len(true))
    return (best + cuts[max(cuts.index(best) - 1, 0)]) / 2


def _is_true(label: float) -> bool:
    return label >= 0.5


def _pairs(probabilities: Sequence[float], labels: Sequence[float]) -> list[tuple[float, float]]:
    pairs = [(float(p), float(y)) for p, y in zip(probabilities, labels, strict=True)]
    if wrong := [p for p, _ in pairs if not 0.0 <= p <= 1.0]:
        raise ValueError(f"a probability is in [0, 1], got {wrong[0]!r}")
    return pairs
