"""Best-of-N: how good the best of N samples is, estimated from all samples that were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb
from typing import Any

from hf_factuality.functional.scoring import mean


def parse_best_of(text: str) -> tuple[int, ...]:
    """The numbers of `--best_of` (`"1,16,256"`), ascending, each once."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise ValueError(f"--best_of takes positive integers with commas (1,16,256), got {text!r}")
    return tuple(sizes)


def best_of_n(scores: Sequence[float | None], n: int) -> float | None:
    """Expected best score among `n` samples that are drawn without replacement from those that there are.

    Unbiased, as pass@k's estimator (arXiv 2107.03374, Eq. 1). With the k scores in ascending order, and u samples without
    one (`None`), which a draw may hold beside others:

        E[best] = sum over i of C(u + i - 1, n - 1) s_i  /  (C(u + k, n) - C(u, n))

    `None` if no sample has a score.
    """
    if not 1 <= n <= len(scores):
        raise ValueError(f"the best of {n} needs from 1 to {len(scores)} samples")
    known = sorted(score for score in scores if score is not None)
    if not known:
        return None
    weights = _weights(len(scores), len(known), n)
    return sum(weight * score for weight, score in zip(weights, known, strict=True) if weight)


@lru_cache(maxsize=1024)
def _weights(samples: int, scored: int, n: int) -> tuple[float, ...]:
    unscored = samples - scored
    draws = comb(samples, n) - comb(unscored, n)
    # Of whole numbers, so that quotients of more than 300 digits are exact.
    return tuple(comb(unscored + place, n - 1) / draws for place in range(scored))


def best_of_curve(scores: Sequence[Sequence[float | None]], sizes: Sequence[int]) -> dict[str, dict[str, Any]]:
    """[`best_of_n`] per N of `sizes`: mean over items as `value`, and `n`, the items that have a score."""
    curve = {}
    for size in sizes:
        best = [best_of_n(found, size) for found in scores]
        curve[str(size)] = {"value": mean(best), "n": sum(value is not None for value in best)}
    return curve
