"""Scores of choices, votes and probabilities, and confidence intervals. Plain numbers in, plain numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, isfinite, isnan

import numpy as np

from hf_factuality.functional._numbers import is_number
from hf_factuality.functional.scoring import mean


_MASK = (1 << 64) - 1


def seeded_choices(n: int, seed: int = 0) -> list[bool]:
    """Which of two candidates each of `n` items shows, `True` the hallucinated one; HaluEval's released code draws unseeded.

    Probability 1/2 each. The draw of an item depends on the seed and its position alone, not on how many items follow: the
    top bit of the generator SplitMix64, the same on every machine and for ever.
    """
    state, drawn = seed & _MASK, []
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        value = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        drawn.append(bool((value ^ (value >> 31)) >> 63))
    return drawn


def detection_accuracy(predicted: Sequence[bool | None], hallucinated: Sequence[bool | None]) -> dict:
    """HaluEval (arXiv 2305.11747): share of items whose verdict "hallucinated?" is right.

    `predicted` is `None` if the answer could not be read, which the released code counts as wrong; a truth of `None` leaves
    the item out.

    Returns:
        `dict`: `accuracy`; `accuracy_hallucinated` and `accuracy_right`, over the items that are and that are not
        hallucinated; `accuracy_released`, with unread verdicts as wrong; each `None` if it has no items. `correct`, per
        item 0, 1 or `None`. `unjudged` and `no_reference`, numbers of items left out.
    """
    pairs = list(zip(predicted, hallucinated, strict=True))
    correct = [None if None in pair else float(pair[0] == pair[1]) for pair in pairs]
    by_truth = {
        side: [value for value, (_, truth) in zip(correct, pairs, strict=True) if truth is side]
        for side in (True, False)
    }
    known = by_truth[True] + by_truth[False]
    return {
        "accuracy": mean(correct),
        "accuracy_hallucinated": mean(by_truth[True]),
        "accuracy_right": mean(by_truth[False]),
        "accuracy_released": mean([value or 0.0 for value in known]),
        "correct": correct,
        "unjudged": sum(value is None for value in known),
        "no_reference": len(pairs) - len(known),
    }


def majority(votes: Sequence[bool | None]) -> bool | None:
    """What more than half of all votes say, e.g. HalluQA's five; unread ones (`None`) say nothing.

    `None` if neither side has more than half (a tie, no votes, too many unread).
    """
    for side in (True, False):
        if 2 * sum(vote is side for vote in votes) > len(votes):
            return side
    return None


def non_hallucination_rate(hallucinated: Sequence[bool | None], released: Sequence[bool] | None = None) -> dict:
    """HalluQA (arXiv 2310.03368): share of answers without hallucination; undecided ones (`None`) are left out.

    `released` holds the verdicts as the released code reads them, where an answer whose votes could not all be read counts
    as hallucinated. By default, undecided answers do.

    Returns:
        `dict`: `rate`, `rate_released` (each `None` without answers), `scores` (per answer 1, 0 or `None`) and
        `unjudged`, the number left out.
    """
    scores = [None if verdict is None else float(not verdict) for verdict in hallucinated]
    if released is None:
        released = [verdict is not False for verdict in hallucinated]
    return {
        "rate": mean(scores),
        "rate_released": mean([float(not verdict) for verdict in released]),
        "scores": scores,
        "unjudged": sum(score is None for score in scores),
    }


_ROUNDING = 1e-3
"""What the logarithm of a probability near 1 may come to in 16 bits."""


def require_log_likelihoods(values: Sequence[float | None]) -> None:
    """`ValueError` for the first that is none: a finite number above 0, or no number; `None`, NaN and infinity are unknown."""
    for value in values:
        if not (value is None or hasattr(value, "__float__")) or (is_number(value) and value > _ROUNDING):
            raise ValueError(
                f"{value!r:.100} is no log-likelihood, which is at most 0: pass natural logarithms of probabilities, not "
                "probabilities, and not negative log-likelihoods"
            )


def _usable(log_likelihoods: Sequence[float | None], correct: Sequence[bool]) -> bool:
    if len(log_likelihoods) != len(correct):
        raise ValueError(f"{len(log_likelihoods)} log-likelihoods for {len(correct)} choices")
    require_log_likelihoods(log_likelihoods)
    known = all(value is not None and not isnan(value) and value < inf for value in log_likelihoods)
    return known and any(correct) and not all(correct) and max(log_likelihoods) > -inf


def mc1(log_likelihoods: Sequence[float | None], correct: Sequence[bool]) -> float | None:
    """TruthfulQA MC1 of one question (arXiv 2109.07958): 1 if the correct choice is the most likely one, else 0.

    Args:
        log_likelihoods (`Sequence[float | None]`):
            Natural logarithm of the probability of each choice, summed over its tokens (not a mean).
            Above 0 it is none: `ValueError`.
        correct (`Sequence[bool]`, as long, or `ValueError`):
            Exactly one is `True`.

    Returns:
        `float`, or `None` if not exactly one choice is correct, no choice is wrong, or a likelihood is missing, NaN or
        infinite (minus infinity is fine, unless all are). A tie with a wrong choice gives 0, as in the authors' code:
        a harness that takes the first maximum of choices sorted with the correct one first gives 1.
    """
    if not _usable(log_likelihoods, correct) or sum(map(bool, correct)) != 1:
        return None
    (right,) = (value for value, good in zip(log_likelihoods, correct, strict=True) if good)
    return float(right > max(value for value, good in zip(log_likelihoods, correct, strict=True) if not good))


def mc2(log_likelihoods: Sequence[float | None], correct: Sequence[bool]) -> float | None:
    """TruthfulQA MC2 of one question (arXiv 2109.07958): `sum over correct of exp(ll) / sum over all of exp(ll)`.

    Arguments and `None` as in [`mc1`], but several choices may be correct. Differences to the largest are exponentiated:
    likelihoods of long answers underflow otherwise.
    """
    if not _usable(log_likelihoods, correct):
        return None
    largest = max(log_likelihoods)
    weights = [exp(value - largest) for value in log_likelihoods]
    return sum(weight for weight, good in zip(weights, correct, strict=True) if good) / sum(weights)


def average_precision(confidences: Sequence[float], correct: Sequence[bool]) -> float | None:
    """R-Tuning's AP score (arXiv 2311.09677): `sum_n (R_n - R_{n-1}) P_n` over falling confidence.

    R-Tuning ranks answers by the mean of answer probability and `P(sure)`. Equal confidences form one step, as in
    scikit-learn. `None` if no answer is correct (recall is not defined; scikit-learn returns 0) or there are none.
    """
    total = sum(map(bool, correct))
    if not total:
        return None
    ranked = sorted(zip(confidences, correct, strict=True), key=lambda pair: -pair[0])
    area, hits, hits_before = 0.0, 0, 0
    for rank, (confidence, good) in enumerate(ranked, start=1):
        hits += bool(good)
        if rank == len(ranked) or ranked[rank][0] != confidence:
            area += (hits - hits_before) / total * hits / rank
            hits_before = hits
    return area


_POINTS = {"A": 1.0, "tie": 0.5, "B": 0.0}


def win_rate(verdicts: Sequence[tuple[str | None, str | None]]) -> dict:
    """Pairwise win rate of a candidate against a baseline, each pair judged in both orders.

    Args:
        verdicts (`Sequence[tuple[str | None, str | None]]`):
            Per pair, the better answer (`"A"`: the one shown first, `"B"`, `"tie"`, else `ValueError`) with the candidate
            shown first, and with the baseline shown first. `None` if the verdict could not be read.

    Returns:
        `dict`:
        - `win_rate`: mean points of the candidate, where a won order gives 1, a tie 1/2, and a pair the mean of its two
          orders. A pair of which one order is unknown is left out. `None` without pairs;
        - `points`, per pair; `unjudged`, number of pairs left out;
        - `consistent_win_rate`, `consistent_loss_rate`: won, lost in both orders; `tie_rate`: the other pairs (the rule
          of MT-bench, arXiv 2306.05685);
        - `agreement`: share of pairs with the same outcome in both orders;
        - `first_position_rate`: share of the decided verdicts that prefer the answer shown first (1/2 without position
          bias), `None` if all are ties.
    """
    unknown = {verdict for pair in verdicts for verdict in pair if verdict is not None and verdict not in _POINTS}
    if unknown:
        raise ValueError(f"a verdict is 'A', 'B', 'tie' or None, got {sorted(map(str, unknown))}")
    known = [pair for pair in verdicts if None not in pair]
    outcomes = [(_POINTS[first], 1.0 - _POINTS[second]) for first, second in known]
    decided = [verdict for pair in known for verdict in pair if verdict != "tie"]
    points = [None if None in pair else (_POINTS[pair[0]] + 1.0 - _POINTS[pair[1]]) / 2 for pair in verdicts]
    return {
        "win_rate": mean(points),
        "points": points,
        "unjudged": len(verdicts) - len(known),
        "consistent_win_rate": mean([float(pair == (1.0, 1.0)) for pair in outcomes]),
        "consistent_loss_rate": mean([float(pair == (0.0, 0.0)) for pair in outcomes]),
        "tie_rate": mean([float(pair not in ((1.0, 1.0), (0.0, 0.0))) for pair in outcomes]),
        "agreement": mean([float(pair[0] == pair[1]) for pair in outcomes]),
        "first_position_rate": mean([float(verdict == "A") for verdict in decided]),
    }


def bootstrap_interval(
    values: Sequence,
    statistic: Callable[[list], float | None] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    summed: bool = False,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of a statistic: what it would be on other samples of as many responses.

    Args:
        values (`Sequence`):
            One per response: a number, or whatever `statistic` takes.
        statistic (`Callable`, *optional*):
            Number of a list of values, or `None` if it is not defined there (such resamples are left out). By default,
            the mean.
        level (`float`, *optional*, defaults to `0.95`):
            Coverage, between 0 and 1, else `ValueError`.
        resamples (`int`, *optional*, defaults to `1000`):
            How often responses are drawn with replacement; 0 computes no interval.
        seed (`int`, *optional*, defaults to `0`):
            Of a generator of its own; the global one is not touched.
        summed (`bool`, *optional*, defaults to `False`):
            Whether each value is a list of as many counts, and `statistic` takes their sums over what is drawn: much faster.

    Returns:
        `tuple[float, float]`: the quantiles `(1 - level) / 2` and `(1 + level) / 2`, interpolated; `None` with fewer than
        two responses, without resamples, or if the statistic is defined on none of them.
    """
    if not 0 < level < 1 or resamples < 0:
        raise ValueError(f"need 0 < level < 1 and resamples >= 0, got {level!r} and {resamples!r}")
    n = len(values)
    if n < 2 or not resamples:
        return None
    generator = np.random.RandomState(seed % (1 << 32))
    numbers = np.array(values, dtype=np.float64) if statistic is None or summed else None
    found: list[float] = []
    rows = max(1, 2_000_000 // n)
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), n)
        # The draws of `torch.randint`, whose generator is the same one, without torch.
        drawn = (generator.randint(1 << 32, size=shape, dtype=np.uint32) % n).astype(np.int64)
        if statistic is None:
            found += numbers[drawn].mean(axis=1).tolist()
        else:
            if summed:
                times = np.array([np.bincount(row, minlength=n) for row in drawn], dtype=np.float64)
                results = map(statistic, (times @ numbers).tolist())
            else:
                results = (statistic([values[index] for index in row]) for row in drawn.tolist())
            found += [result for result in results if result is not None and isfinite(result)]
    if not found:
        return None
    found.sort()
    return _quantile(found, (1 - level) / 2), _quantile(found, (1 + level) / 2)


def _quantile(ordered: list[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
