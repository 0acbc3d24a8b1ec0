"""A threshold on scores with a guarantee: at most so large a share of what is kept is wrong. Plain numbers in, plain numbers out.

Learn-then-Test (Angelopoulos et al., arXiv 2110.01052) with exact binomial p-values, as selective classification has them
(Geifman & El-Yaniv, arXiv 1705.08500). Conformal factuality (Mohri & Hashimoto, arXiv 2402.10978) promises something else, that
no claim of a completion is wrong, and conformal risk control (arXiv 2208.02814) needs a loss that falls as less is kept; the
share of wrong claims among the kept does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil, exp, lgamma, log, log1p
from typing import NamedTuple


CONFIDENCE = 0.9
"""Share of the draws of labelled claims in which the guarantee holds at least."""
FIRST = 0.2
"""Share of the labelled claims that the first threshold which is tried keeps at least."""
KEEP_ALL = -1.0
"""A threshold below all scores."""


class ControlledThreshold(NamedTuple):
    """What is kept has a score above `threshold`; `kept` labelled claims have, of which `wrong` are not supported."""

    threshold: float
    kept: int
    wrong: int


def binomial_tail(count: int, n: int, p: float) -> float:
    """Probability that of `n` independent trials with probability `p`, 0 < p < 1, at most `count` succeed."""
    if count >= n:
        return 1.0
    terms = (
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log1p(-p) for i in range(count + 1)
    )
    return min(sum(map(exp, terms)), 1.0)


def labels_needed(level: float, confidence: float = CONFIDENCE) -> int:
    """Fewest independent labelled claims with which a guarantee can be given at all, if none that is kept is wrong."""
    return ceil(log(1 - confidence) / log(level) - 1e-9)


def controlled_threshold(
    scores: Sequence[float | None], supported: Sequence[bool], level: float, confidence: float = CONFIDENCE
) -> ControlledThreshold | None:
    """The lowest threshold above which at least `level` of all claims are supported, with this confidence.

    With probability `confidence` over the draw of the labelled claims, a new claim with a score above the threshold is wrong
    with probability at most `1 - level`. This assumes that labelled and new claims are independent draws of one distribution,
    and that lowering the threshold does not lower the share of wrong claims above it.

    Thresholds are tried from the highest, which keeps a fifth of the labelled claims, downwards, until the first that does not
    pass. Until then all that passed are safe, unless the test of the first unsafe one has failed us: those above it are, given
    how many they are, independent draws, so that the wrong ones among them are binomial, and one test at `1 - confidence`
    is enough (fixed-sequence testing).

    Args:
        scores (`Sequence[float | None]`):
            In [0, 1], of labelled claims; `None` for one that is never kept.
        supported (`Sequence[bool]`, as long):
            Whether the claim is right.
        level (`float`), confidence (`float`, *optional*):
            Between 0 and 1, else `ValueError`.

    Returns:
        [`ControlledThreshold`], or `None` if no threshold passes: nothing may be kept.
    """
    if not (0 < level < 1 and 0 < confidence < 1):
        raise ValueError(f"level and confidence are between 0 and 1, got {level!r} and {confidence!r}")
    known = [(s, bool(y)) for s, y in zip(scores, supported, strict=True) if s is not None]
    known.sort(reverse=True)
    least = max(labels_needed(level, confidence), ceil(FIRST * len(scores)))
    found, kept, wrong = None, 0, 0
    tied = [(score, [right for _, right in own]) for score, own in groupby(known, key=lambda pair: pair[0])]
    for (_, own), limit in zip(tied, [*(score for score, _ in tied[1:]), KEEP_ALL], strict=True):
        kept, wrong = kept + len(own), wrong + own.count(False)
        if kept < least:
            continue
        if binomial_tail(wrong, kept, 1 - level) > 1 - confidence:
            break
        found = ControlledThreshold(limit, kept, wrong)
    return found
