"""Spans and token offsets to per-token tensors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

import torch

from hf_factuality.spans import Label, LabeledSpan


# FSPO, Eq. 10: 1 entailed, 0 neutral, -1 contradicted.
TERNARY_VALUES: Mapping[Label, int] = MappingProxyType(
    {
        Label.SUPPORTED: 1,
        Label.HEDGED_SUPPORTED: 1,
        Label.UNVERIFIABLE: 0,
        Label.NO_FACT: 0,
        Label.HEDGED_CONTRADICTED: -1,
        Label.CONTRADICTED: -1,
    }
)
# FSPO's released code: HHEM above 0.5 is +1, everything else -1, sentences without any fact among them.
BINARY_VALUES: Mapping[Label, int] = MappingProxyType(
    {label: max(value, 0) * 2 - 1 for label, value in TERNARY_VALUES.items()}
)


def span_values(spans: Sequence[LabeledSpan], values: Mapping[Label, float]) -> list[float | None]:
    """Number of each span's label.

    Args:
        spans (`Sequence[LabeledSpan]`):
            Spans of one completion.
        values (`Mapping[Label, float]`):
            Number per label, for example [`TERNARY_VALUES`].

    Returns:
        `list[float | None]`: one per span; `None` where the judgement failed.
    """
    return [None if span.label is None else values[span.label] for span in spans]


def token_span_index(offsets: Sequence[tuple[int, int]], spans: Sequence[LabeledSpan]) -> list[int]:
    """Which span each token belongs to.

    A token belongs to the span that holds most of its characters, the earlier one on a tie. Tokens with an empty range
    (special tokens) and tokens that touch no span (white space between sentences, tags) belong to none.

    Args:
        offsets (`Sequence[tuple[int, int]]` of length T):
            Half-open character range per token; starts never decrease.
        spans (`Sequence[LabeledSpan]` of length S):
            Spans in the same text, in any order; they may overlap.

    Returns:
        `list[int]` of length T: index into `spans`, or -1.
    """
    # An empty range may lie inside the character before it, so ends can step back; their running maximum cannot.
    ends = list(accumulate((end for _, end in offsets), max))
    index, most = [-1] * len(offsets), [0] * len(offsets)
    for number, span in enumerate(spans):
        token = bisect_right(ends, span.start)
        while token < len(offsets) and offsets[token][0] < span.end:
            start, end = offsets[token]
            shared = min(end, span.end) - max(start, span.start)
            if shared > most[token]:
                index[token], most[token] = number, shared
            token += 1
    return index


def token_values(
    offsets: Sequence[Sequence[tuple[int, int]]],
    spans: Sequence[Sequence[LabeledSpan]],
    values: Mapping[Label, float],
    length: int,
    outside: float | Sequence[float] = 0.0,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Value of each token: its span's value, 0 where the judgement failed, `outside` where there is no span.

    Args:
        offsets (`Sequence[Sequence[tuple[int, int]]]`, B rows of up to T tokens):
            Character range per token of each completion.
        spans (`Sequence[Sequence[LabeledSpan]]`, B rows):
            Spans of each completion.
        values (`Mapping[Label, float]`):
            Number per label.
        length (`int`):
            T, the padded length; positions after a row's last token get 0.
        outside (`float` or `Sequence[float]` of length B, *optional*, defaults to `0.0`):
            Value of tokens outside every span. The released FSPO code has +1 there, which also turns the tokens of a
            *wrong answer* positive.
        device (`torch.device` or `str`, *optional*):
            Where to put the result.

    Returns:
        `torch.Tensor` of shape (B, T), float32.

    Raises:
        `ValueError`: a row has more tokens than `length`, or the rows do not pair up.
    """
    if len(offsets) != len(spans):
        raise ValueError(f"got offsets of {len(offsets)} completions and spans of {len(spans)}")
    if not isinstance(outside, Sequence):
        outside = [outside] * len(offsets)
    rows = []
    for row_offsets, row_spans, row_outside in zip(offsets, spans, outside, strict=True):
        if len(row_offsets) > length:
            raise ValueError(f"a completion has {len(row_offsets)} tokens, more than length={length}")
        # `-1` indexes the last entry: the value outside every span.
        row_values = [0.0 if value is None else value for value in span_values(row_spans, values)] + [row_outside]
        row = [row_values[number] for number in token_span_index(row_offsets, row_spans)]
        rows.append(row + [0.0] * (length - len(row)))
    return torch.tensor(rows, dtype=torch.float32, device=device).reshape(len(rows), length)
