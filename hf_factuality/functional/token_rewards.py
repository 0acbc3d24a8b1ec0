"""Rewards at characters to rewards at tokens. Nothing is dropped: every row adds up to the values that it was given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import fsum, isfinite

import torch


_LARGEST = torch.finfo(torch.float32).max


def place_points(
    offsets: Sequence[Sequence[tuple[int, int]]],
    points: Sequence[Sequence[tuple[int, float]]],
    length: int,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Reward of each token from values that are due where a stretch of text ends.

    A value is added to the last token that holds a character before its `character_end`: the token after which
    everything up to there has been said. Of several tokens that share one character this is the last. Where no token
    holds such a character (an end of 0, or one before the first token's text) it is the first token that holds a
    character, and the very first of a row whose tokens hold none. Tokens with an empty range (special tokens) get
    nothing otherwise.

    Args:
        offsets (`Sequence[Sequence[tuple[int, int]]]`, B rows of up to T tokens):
            Half-open character range per token of each completion; starts never decrease.
        points (`Sequence[Sequence[tuple[int, float]]]`, B rows):
            `(character_end, value)`, in any order: one past the last character that the value is for, and the value.
            Values that meet at a token are added.
        length (`int`):
            T, the padded length; positions after a row's last token get 0.
        device (`torch.device` or `str`, *optional*):
            Where to put the result.

    Returns:
        `torch.Tensor` of shape (B, T), float32; each row adds up to the values of its points.

    Raises:
        `ValueError`: the rows do not pair up, a row has more tokens than `length` or has points and no tokens, an end
        is no int, is negative or lies beyond the text, a value is not a finite number or too large for float32.
    """
    if len(offsets) != len(points):
        raise ValueError(f"got offsets of {len(offsets)} completions and points of {len(points)}: one row each")
    rows = []
    for number, (row_offsets, row_points) in enumerate(zip(offsets, points, strict=True)):
        if len(row_offsets) > length:
            raise ValueError(f"completion {number} has {len(row_offsets)} tokens, more than length={length}")
        rows.append(_row(number, row_offsets, row_points) + [0.0] * (length - len(row_offsets)))
    return torch.tensor(rows, dtype=torch.float32, device=device).reshape(len(rows), length)


def place_spans(
    offsets: Sequence[Sequence[tuple[int, int]]],
    spans: Sequence[Sequence[tuple[int, int, float]]],
    length: int,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Reward of each token from spans that have a value: the whole value at the token where the span ends.

    For one value at every token of a span see [`~hf_factuality.functional.token_values`].

    Args:
        offsets (`Sequence[Sequence[tuple[int, int]]]`, B rows of up to T tokens):
            Half-open character range per token of each completion; starts never decrease.
        spans (`Sequence[Sequence[tuple[int, int, float]]]`, B rows):
            `(start, end, value)`: half-open character ranges, in any order; they may overlap.
        length (`int`):
            T, the padded length.
        device (`torch.device` or `str`, *optional*):
            Where to put the result.

    Returns:
        `torch.Tensor` of shape (B, T), float32: as [`place_points`] places the ends.

    Raises:
        `ValueError`: a range is negative or reversed, or see [`place_points`].
    """
    if len(offsets) != len(spans):
        raise ValueError(f"got offsets of {len(offsets)} completions and spans of {len(spans)}: one row each")
    for number, row in enumerate(spans):
        for start, end, _ in row:
            if not (_is_int(start) and _is_int(end) and 0 <= start <= end):
                raise ValueError(
                    f"completion {number}: span [{start!r}, {end!r}) is not a range: need ints with 0 <= start <= end"
                )
    return place_points(offsets, [[(end, value) for _, end, value in row] for row in spans], length, device)


def _row(number: int, offsets: Sequence[tuple[int, int]], points: Sequence[tuple[int, float]]) -> list[float]:
    text = max((end for _, end in offsets), default=0)
    holding = [token for token, (start, end) in enumerate(offsets) if start < end]
    starts = [offsets[token][0] for token in holding]
    if points and not offsets:
        raise ValueError(f"completion {number} has {len(points)} points and no token to put them on")
    terms: list[list[float]] = [[] for _ in offsets]
    for end, value in points:
        if not _is_int(end) or not 0 <= end <= text:
            raise ValueError(
                f"completion {number}: a point ends at character {end!r}, which is not in its text of {text} "
                "characters; ends count characters of the decoded completion, as its offsets do"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise ValueError(
                f"completion {number}: the value at character {end} is {value!r}, not a finite number; leave out what "
                "is unknown"
            )
        before = bisect_left(starts, end) - 1
        terms[holding[max(before, 0)] if holding else 0].append(value)
    row = [fsum(values) for values in terms]
    for token, value in enumerate(row):
        if abs(value) > _LARGEST:
            raise ValueError(f"completion {number}: the reward of token {token} is {value!r}, too large for float32")
    return row


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
