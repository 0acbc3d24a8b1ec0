"""How well verdicts agree with labels, beyond what chance gives. Plain values in, plain numbers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from hf_factuality.functional.scoring import mean


def cohens_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Cohen's kappa (1960): `(p_o - p_e) / (1 - p_e)`, with `p_o` the share of equal labels and `p_e` the share by chance.

    1 is perfect agreement, 0 is chance. `None` without labels, or if both raters give one and the same label to all, since
    chance alone then agrees too.
    """
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        return None
    mine, theirs = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    by_chance = sum(mine[label] * theirs[label] for label in mine) / len(pairs) ** 2
    observed = sum(a == b for a, b in pairs) / len(pairs)
    return None if by_chance == 1.0 else (observed - by_chance) / (1.0 - by_chance)


def mean_recall(called: Sequence[bool], labels: Sequence[bool]) -> float | None:
    """Balanced accuracy: mean of the share of true claims that are called true and of false ones that are called false.

    `None` unless there are claims of both kinds. LLM-AggreFact's metric (arXiv 2404.10774).
    """
    right: dict[bool, list[float]] = {True: [], False: []}
    for said, label in zip(called, labels, strict=True):
        right[bool(label)].append(float(bool(said) is bool(label)))
    return mean([mean(own) for own in right.values()]) if all(right.values()) else None


def false_positive_rate(called: Sequence[bool], labels: Sequence[bool]) -> float | None:
    """Share of the false claims that are called true; `None` without a false claim."""
    return mean([float(bool(said)) for said, label in zip(called, labels, strict=True) if not label])
