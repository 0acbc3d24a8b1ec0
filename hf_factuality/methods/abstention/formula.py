"""What declining earns, and how sure of an answer a model must be for answering to pay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple


class OutcomeRewards(NamedTuple):
    """What an answer earns that is correct, that declines, and that is wrong."""

    correct: float
    abstained: float
    wrong: float

    def of(self, outcome: str | None) -> float | None:
        """What `"correct"`, `"refused"` or `"wrong"` earns, `None` if it is unknown; `ValueError` for another outcome."""
        known = {"correct": self.correct, "refused": self.abstained, "wrong": self.wrong, None: None}
        if outcome not in known:
            raise ValueError(f"outcome must be 'correct', 'refused', 'wrong' or None, got {outcome!r}")
        return known[outcome]


PRESETS: Mapping[str, OutcomeRewards] = MappingProxyType(
    {
        "truthrl": OutcomeRewards(1.0, 0.0, -1.0),
        "knowrl": OutcomeRewards(2.0, 1.0, -1.0),
        "binary": OutcomeRewards(1.0, -1.0, -1.0),
    }
)
"""Name -> rewards of TruthRL (arXiv 2509.25760), of KnowRL's outcome (arXiv 2506.19807), and of being right alone."""


def preset_rewards(name: str) -> OutcomeRewards:
    """Rewards by a name of [`PRESETS`], or of `"target-0.75"`: [`threshold_rewards`] of .75. `ValueError` for another."""
    kind, _, number = name.partition("-")
    if kind == "target" and re.fullmatch(r"[01]|[01]?\.\d{1,6}", number, re.ASCII):
        return threshold_rewards(float(number))
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {list(PRESETS)}, or 'target-0.75' with a threshold")
    return PRESETS[name]


def threshold_rewards(threshold: float) -> OutcomeRewards:
    """Rewards by which declining pays below a probability `t` of being right: 1 - t, 0 and -t.

    These are 1, 0 and -t / (1 - t) (arXiv 2509.04664) times 1 - t, so that they stay finite: with 0 nothing is lost by a wrong
    answer, with 1 nothing is won by a right one. `ValueError` outside of [0, 1].
    """
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool) or not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold!r} must be a probability, from 0 (never decline) to 1 (always)")
    return OutcomeRewards(1.0 - threshold, 0.0, -float(threshold))


def abstention_threshold(correct: float, abstained: float, wrong: float) -> float:
    """The probability of being right below which declining pays: (a - w) / (c - w).

    `ValueError` unless the numbers are finite, c is above w, and a from w to c.
    """
    given = (correct, abstained, wrong)
    if not (all(isinstance(x, (int, float)) and isfinite(x) for x in given) and wrong < correct) or not (
        wrong <= abstained <= correct
    ):
        raise ValueError(
            f"correct={correct!r}, abstained={abstained!r}, wrong={wrong!r}: give finite numbers, correct above wrong, and "
            "abstained from wrong to correct"
        )
    return (abstained - wrong) / (correct - wrong)
