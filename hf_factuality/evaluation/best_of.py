"""Best-of-N: how good the best of N samples is, estimated from all samples that were drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from math import comb
from operator import itemgetter
from typing import Any

from hf_factuality.functional.scoring import mean


def parse_best_of(text: str) -> tuple[int, ...]:
    """The numbers of `best_of` (`"1,16,256"`), ascending, each once."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise ValueError(f"`best_of` takes positive integers with commas (1,16,256), got {text!r}")
    return tuple(sizes)


def best_of_n(scores: Sequence[float | None], n: int, by: Sequence[float | None] | None = None) -> float | None:
    """Expected score of the best of `n` samples that are drawn without replacement from those that there are.

    The best is the one with the highest number in `by`, of equal ones any; by default that is the score. Unbiased, as pass@k's
    estimator (arXiv 2107.03374, Eq. 1). With the k scores ascending in `by`, and u samples without one (`None`), which a draw
    may hold beside others:

        E[best] = sum over i of C(u + i - 1, n - 1) s_i  /  (C(u + k, n) - C(u, n))

    `None` if no sample has a score.
    """
    if not 1 <= n <= len(scores):
        raise ValueError(f"the best of {n} needs from 1 to {len(scores)} samples")
    pairs = zip(scores if by is None else by, scores, strict=True)
    known: list[float] = []
    for _, equal in groupby(sorted(pair for pair in pairs if None not in pair), key=itemgetter(0)):
        own = [score for _, score in equal]
        known += [mean(own)] * len(own)
    if not known:
        return None
    weights = _weights(len(scores), len(known), n)
    return sum(weight * score for weight, score in zip(weights, known, strict=True) if weight)


def majority_of_n(scores: Sequence[float | None], n: int, answers: Sequence, draws: int = 256) -> float | None:
    """Expected score of the answer that most of `n` samples give, of equally frequent ones any; nobody's answer scores 0.

    `None` in `answers` has no vote. Of N between 1 and all samples, so many seeded draws are counted, in place of all.
    """
    if None in scores:
        return None
    score = {answer: mean([s for s, own in zip(scores, answers, strict=True) if own == answer]) for answer in answers}
    rng, places, found = random.Random(0), range(len(scores)), []
    every = [places] if n == len(scores) else [[i] for i in places] if n == 1 else None
    for draw in every or (rng.sample(places, n) for _ in range(draws)):
        votes = Counter(answers[place] for place in draw if answers[place] is not None)
        most = max(votes.values(), default=0)
        found.append(mean([score[answer] for answer, count in votes.items() if count == most]) or 0.0)
    return mean(found)


@lru_cache(maxsize=1024)
def _weights(samples: int, scored: int, n: int) -> tuple[float, ...]:
    unscored = samples - scored
    draws = comb(samples, n) - comb(unscored, n)
    # Of whole numbers, so that quotients of more than 300 digits are exact.
    return tuple(comb(unscored + place, n - 1) / draws for place in range(scored))


def best_of_curve(
    scores: Sequence[Sequence[float | None]], sizes: Sequence[int], by: Any = None, chosen: Callable = best_of_n
) -> dict[str, dict[str, Any]]:
    """[`best_of_n`] or [`majority_of_n`] per N of `sizes`: mean over items as `value`, and `n`, the items that have a score."""
    curve = {}
    for size in sizes:
        best = [chosen(found, size, own) for found, own in zip(scores, by or scores, strict=True)]
        curve[str(size)] = {"value": mean(best), "n": sum(value is not None for value in best)}
    return curve
