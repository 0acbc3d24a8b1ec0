"""What became of an answer: right, wrong or declined."""

from __future__ import annotations

from typing import Any

from hf_factuality.metrics._numbers import read_flag


OUTCOMES = ("correct", "wrong", "refused", "answered")
"""What became of an answer; `"answered"`: it does not decline, and whether it is right is not known."""


def read_outcome(item: Any, place: str) -> str | None:
    if isinstance(item, str) and item in OUTCOMES:
        return item
    right = read_flag(item, f"{place}: what is none of {', '.join(OUTCOMES)}")
    return None if right is None else OUTCOMES[not right]
