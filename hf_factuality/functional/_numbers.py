"""Checks of numbers that come from outside: a text, NaN or a number out of range is refused where it enters."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any


def is_number(value: Any) -> bool:
    """Whether this is a finite number, of Python or another library; neither `True` nor `"32"` is one."""
    return hasattr(value, "__float__") and not isinstance(value, bool) and isfinite(value)


def require_number(name: str, value: Any, above: float = -inf, least: float = -inf, most: float = inf) -> None:
    """`ValueError`, which names the value, unless it is a finite number above `above` and in [`least`, `most`]."""
    if is_number(value) and above < value and least <= value <= most:
        return
    limits = [f"{word} {limit:g}" for word, limit in (("above", above), ("at least", least), ("at most", most))]
    bounds = [text for text, limit in zip(limits, (above, least, most), strict=True) if isfinite(limit)]
    raise ValueError(f"{name}={value!r:.100} must be a finite number{', ' * bool(bounds)}{' and '.join(bounds)}")
