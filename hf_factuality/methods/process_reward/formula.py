"""Process rewards: the steps of a solution, what a step is worth, the loss of it, and steps as one score.

After ER-PRM (arXiv 2412.11006), which contains Math-Shepherd's labels (arXiv 2312.08935).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import expm1, isinf, isnan, log1p, prod
from statistics import fmean
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch


STEP_LABELS = ("entropy", "soft", "hard")
"""What a step is worth by its rollouts: the entropy-regularised mean, the mean, or whether any is right."""
AGGREGATES = ("min", "product", "last", "mean")
"""How the scores of steps become one; ER-PRM takes the minimum."""
UNIT = 10**9
"""A label p in [0, 1] is the whole number `round(p * UNIT)` for collators, which pad whole numbers with -100."""


def solution_steps(
    text: str, split: str | Callable[[str], Sequence[tuple[int, int]]] = "lines"
) -> list[tuple[int, int]]:
    r"""Steps of a solution as half-open character ranges, in order, without white space around them or blank ones.

    `split` is `"lines"`, another text that stands between steps (such as `"\n\n"`), or a function that returns ranges, such
    as [`~hf_factuality.reading.sentences.sentence_offsets`]. `ValueError` for `""`.
    """
    if callable(split):
        return [(start, end) for start, end in split(text) if text[start:end].strip()]
    if not split:
        raise ValueError("steps are split at a text that is not empty, or by 'lines' or 'sentences'")
    found, start, between = [], 0, "\n" if split == "lines" else split
    for part in text.split(between):
        if part.strip():
            first = start + len(part) - len(part.lstrip())
            found.append((first, first + len(part.strip())))
        start += len(part) + len(between)
    return found


def process_label(rewards: Sequence[float | None], how: str = "entropy", eta: float = 1.0) -> float | None:
    """What a step is worth, by the rewards of the rollouts that go on from it.

    Args:
        rewards (`Sequence[float | None]`):
            In [0, 1], 1 for a right final answer. `None` is unknown, and left out.
        how (`str`, *optional*, defaults to `"entropy"`):
            `"entropy"`: `(1 / eta) ln mean exp(eta r)` (ER-PRM). `"soft"`: the mean, `"hard"`: 1 if any is right, else 0
            (Math-Shepherd).
        eta (`float`, *optional*, defaults to `1.0`):
            Of `"entropy"`, any number: towards 0 the mean, towards infinity the highest reward, towards minus infinity the
            lowest.

    Returns:
        `float`: in [0, 1]; `None` of no known reward.

    Raises:
        `ValueError`: an unknown `how`, an `eta` that is NaN, or a reward outside [0, 1].
    """
    if how not in STEP_LABELS or isnan(eta):
        raise ValueError(f"how must be one of {STEP_LABELS} and eta a number, got {how!r} and {eta!r}")
    known = [float(reward) for reward in rewards if reward is not None]
    if not all(0 <= reward <= 1 for reward in known):
        raise ValueError(f"a reward is in [0, 1], or None where it is unknown, got {known}")
    if not known:
        return None
    if how == "hard":
        return float(max(known) >= 0.5)
    if how == "soft" or abs(eta) < 1e-100:
        return fmean(known)
    extreme = max(known) if eta > 0 else min(known)
    if isinf(eta):
        return extreme
    # Of differences to the largest exponent, which is 0 then: neither a large eta nor a small one loses digits.
    value = extreme + log1p(fmean([expm1(eta * (reward - extreme)) for reward in known])) / eta
    return min(max(value, min(known)), max(known))


def aggregate_steps(scores: Sequence[float | None], how: str = "min") -> float | None:
    """The score of a solution by those of its steps, by a name of [`AGGREGATES`].

    `None` of no step, or where one is unknown. `ValueError` for another name.
    """
    if how not in AGGREGATES:
        raise ValueError(f"unknown aggregate {how!r} of steps; choose one of {AGGREGATES}")
    if not scores or any(score is None or isnan(score) for score in scores):
        return None
    return {"min": min, "product": prod, "last": lambda found: found[-1], "mean": fmean}[how](scores)


def process_loss(log_odds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Soft cross-entropy of the two-way softmax at the ends of steps: the mean of `-r ln p - (1 - r) ln(1 - p)`.

    `log_odds`, of shape (B, T), are the logit of the good label minus that of the bad one; `labels` (B, T), int64, are `r` in
    [`UNIT`]s, or -100 where no step ends.
    """
    from torch.nn.functional import binary_cross_entropy_with_logits

    inside = labels >= 0
    return binary_cross_entropy_with_logits(log_odds[inside], labels[inside].to(log_odds.dtype) / UNIT)
