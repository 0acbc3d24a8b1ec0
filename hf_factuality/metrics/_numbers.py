"""Predictions that are numbers, and references that are true or false; no text, no verifier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.metrics._common import Options


@dataclass(frozen=True, kw_only=True)
class NumberOptions(Options):
    """[`Options`] and the source of the numbers, as `judge`."""

    judge: str | None = None


def read_number(value: Any, place: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"{place} must be a number or None, got {value!r:.100}")
    return None if math.isnan(value) else float(value)


def read_flag(value: Any, place: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    raise DataError(f"{place} must be True or False (1 or 0), or None, got {value!r:.100}")
