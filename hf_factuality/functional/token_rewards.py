"""Rewards at characters to rewards at tokens. Nothing is dropped: a row adds up to the values that it was given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import fsum, isfinite

import torch


_LARGEST = torch.finfo(torch.float32).max


def place_spans(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int, float]]) -> torch.Tensor:
    """Reward of each token from spans that have a value: the whole value at the token where the span ends.

    That is the last token that holds a character before the end: the token after which everything up to there has been
    said. Of several tokens that share one character this is the last. Where no token holds such a character (an end of 0,
    or one before the first token's text) it is the first token that holds a character, and the very first of a row whose
    tokens hold none. Tokens with an empty range (special tokens) get nothing otherwise. For one value at every token of a
    span see [`~hf_factuality.functional.token_values`].

    Args:
        offsets (`Sequence[tuple[int, int]]` of length T):
            Half-open character range per token of a completion; starts never decrease.
        spans (`Sequence[tuple[int, int, float]]`):
            `(start, end, value)`: half-open character ranges, in any order; they may overlap. Values that meet at a token
            are added.

    Returns:
        `torch.Tensor` of shape (T,), float32, which adds up to the values of the spans.

    Raises:
        `ValueError`: spans without any token, a range is not one of ints within the text, a value is not a finite number or
            too large for float32.
    """
    text = max((end for _, end in offsets), default=0)
    holding = [token for token, (start, end) in enumerate(offsets) if start < end]
    starts = [offsets[token][0] for token in holding]
    if spans and not offsets:
        raise ValueError(f"{len(spans)} spans and no token to put them on")
    terms: list[list[float]] = [[] for _ in offsets]
    for start, end, value in spans:
        if not (_is_int(start) and _is_int(end) and 0 <= start <= end <= text):
            raise ValueError(f"span [{start!r}, {end!r}) is not a range of its {text} characters")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise ValueError(f"the value of span [{start}, {end}) is {value!r}; leave out what is unknown")
        before = bisect_left(starts, end) - 1
        terms[holding[max(before, 0)] if holding else 0].append(value)
    row = [fsum(values) for values in terms]
    for token, value in enumerate(row):
        if abs(value) > _LARGEST:
            raise ValueError(f"the reward of token {token} is {value!r}, too large for float32")
    return torch.tensor(row, dtype=torch.float32)


def last_kept(mask: torch.Tensor) -> torch.Tensor:
    """Place of the last true of each row of a mask of shape (B, T), bool; 0 where there is none. Shape (B,), int64."""
    places = torch.arange(mask.size(1), device=mask.device)
    return (places * mask).amax(dim=1) if mask.size(1) else mask.sum(dim=1)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
