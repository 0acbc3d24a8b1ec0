"""Spans and token offsets to per-token tensors, and these into advantages."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import torch

from hf_factuality._lazy import is_object_name, load_name, object_name
from hf_factuality.functional.advantages import add_factuality, flip_advantages, scale_by_agreement
from hf_factuality.functional.group_credit import (
    GroupCredit,
    gae_credit,
    own_credit,
    process_advantages,
    signed_gae_credit,
    to_go_credit,
)
from hf_factuality.functional.labels import span_values
from hf_factuality.spans import Label, LabeledSpan


CreditFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(advantages, labels, mask) -> (B, T)`, see [`shape_advantages`]."""


@dataclass(frozen=True)
class Credit:
    """A named way to change advantages by labels, or by what the tokens earn.

    Args:
        function (`Callable`, *optional*):
            `(advantages, labels, scale) -> (B, T)`; `None` leaves the advantages as they are, of shape (B,).
        max_scale (`float`, *optional*, defaults to `inf`):
            Largest `scale` that keeps what the name promises.
        rewards (`Callable`, *optional*):
            Instead of `function`: `(advantages, group, scale) -> (B, T)`, with a
            [`~hf_factuality.functional.group_credit.GroupRewards`].
    """

    function: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] | None
    max_scale: float = math.inf
    rewards: GroupCredit | None = None

    @property
    def by_token(self) -> bool:
        """Whether every token gets an advantage of its own."""
        return self.function is not None or self.rewards is not None


CREDITS: Mapping[str, Credit] = MappingProxyType(
    {
        "flip": Credit(lambda advantages, labels, scale: flip_advantages(advantages, labels)),
        "additive": Credit(add_factuality),
        # Beyond 1 signs would turn, which is what "flip" is for.
        "scaled": Credit(scale_by_agreement, max_scale=1.0),
        "none": Credit(None),
        "own": Credit(None, rewards=own_credit),
        "gae": Credit(None, max_scale=1.0, rewards=gae_credit),
        "signed_gae": Credit(None, max_scale=1.0, rewards=signed_gae_credit),
        "to_go": Credit(None, max_scale=1.0, rewards=to_go_credit("token")),
        "to_go_statement": Credit(None, max_scale=1.0, rewards=to_go_credit("statement")),
        "to_go_share": Credit(None, max_scale=1.0, rewards=to_go_credit("share")),
        "process": Credit(None, rewards=lambda advantages, group, scale: process_advantages(group)),
    }
)
"""What `credit` may name; the configuration, the trainer and the card read this table."""


def find_credit(credit: str | CreditFunction | Credit) -> CreditFunction | Credit:
    """What a credit stands for: a name of [`CREDITS`], a function, a [`Credit`], or the `"package.module:name"` of one.

    `ValueError`: there is none of this name, or it is something else.
    """
    if isinstance(credit, str):
        if credit in CREDITS:
            return CREDITS[credit]
        if is_object_name(credit):
            wanted = "a function `(advantages, labels, mask)` or a `Credit`"
            return load_name(credit, "the credit", _is_credit, wanted)
    elif _is_credit(credit):
        return credit
    raise ValueError(
        f"credit={credit!r} is unknown; choose one of {list(CREDITS)}, or 'package.module:name' of a function of your own"
    )


def _is_credit(found: Any) -> bool:
    return isinstance(found, Credit) or callable(found) and not isinstance(found, type)


def shape_advantages(
    credit: str | CreditFunction | Credit,
    advantages: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    scale: float = 1.0,
) -> torch.Tensor:
    """Advantages of the tokens, by one of [`CREDITS`] or by a function.

    Args:
        credit (`str`, `Callable` or [`Credit`]):
            A name, or a function `(advantages, labels, mask) -> (B, T)` with the three arguments below; see [`find_credit`].
        advantages (`torch.Tensor` of shape (B,), floating point):
            Advantage of each completion within its group.
        labels (`torch.Tensor` of shape (B, T), float32):
            Value of each token's label, as [`token_values`] gives it: with [`TERNARY_VALUES`] 1 supported, -1 contradicted, 0
            unverifiable or without a fact. 0 also where nothing is known: outside every span, not judged, padding.
        mask (`torch.Tensor` of shape (B, T), bool):
            True on the tokens of the completion, false on padding.
        scale (`float`, *optional*, defaults to `1.0`):
            Strength of a name that has one; a function does not get it.

    Returns:
        `torch.Tensor` of shape (B, T), dtype of `advantages`; with `"none"` the advantages, of shape (B,). What a function
        gives to padding is replaced by 0.

    Raises:
        `ValueError`: the function returned something else, or the name reads rewards and no labels.
    """
    found = find_credit(credit)
    if isinstance(found, Credit):
        if found.rewards is not None:
            raise ValueError(f"credit={credit!r} reads what tokens earn; call its `rewards`")
        return advantages if found.function is None else found.function(advantages, labels, scale)
    shaped = found(advantages.clone(), labels, mask)  # which the function may write into
    if not isinstance(shaped, torch.Tensor) or shaped.shape != mask.shape or not shaped.is_floating_point():
        got = f"{tuple(shaped.shape)}, {shaped.dtype}" if isinstance(shaped, torch.Tensor) else f"{shaped!r:.100}"
        raise ValueError(
            f"credit={credit_name(credit)} returned {got}; return floats of shape (B, T), {tuple(mask.shape)}"
        )
    return shaped.to(advantages.dtype).masked_fill(~mask, 0.0)


def credit_name(credit: str | CreditFunction | Credit) -> str:
    """A name as it is, a function as `module:qualified_name`: what configurations and cards show."""
    return credit if isinstance(credit, str) else object_name(credit)


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


def separate_spans(
    spans: Sequence[LabeledSpan], values: Sequence[float | None]
) -> tuple[Sequence[LabeledSpan], Sequence[float | None]]:
    """Overlapping spans, such as those of claims, as pieces that do not overlap.

    Each piece has the lowest value of the spans over it: words that state a falsehood are not true because they state
    something else as well, so that covering them with true claims earns nothing.

    Args:
        spans (`Sequence[LabeledSpan]` of length S):
            Spans of one completion, in any order.
        values (`Sequence[float | None]` of length S):
            Value of each; `None`, a judgement that failed, counts only where no other span is.

    Returns:
        `tuple`: pieces in order, and their values; the arguments if nothing overlaps.
    """
    places = sorted((span.start, span.end) for span in spans)
    if all(one[1] <= other[0] for one, other in pairwise(places)):
        return spans, values
    cuts = sorted({place for both in places for place in both})
    empty = object()
    painted: list[Any] = [empty] * (len(cuts) - 1)
    # What is painted last stays: failures first, then from the highest value to the lowest.
    for span, value in sorted(zip(spans, values, strict=True), key=lambda it: (it[1] is not None, -(it[1] or 0))):
        first, last = bisect_left(cuts, span.start), bisect_left(cuts, span.end)
        painted[first:last] = [value] * (last - first)
    kept = [
        (LabeledSpan(*both), value) for both, value in zip(pairwise(cuts), painted, strict=True) if value is not empty
    ]
    return [piece for piece, _ in kept], [value for _, value in kept]


def token_values(
    offsets: Sequence[Sequence[tuple[int, int]]],
    spans: Sequence[Sequence[LabeledSpan]],
    values: Mapping[Label, float],
    length: int,
    outside: float | Sequence[float] = 0.0,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Value of each token: its span's value, 0 where the judgement failed, `outside` where there is no span.

    Where spans overlap, the lowest of their values counts, see [`separate_spans`].

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
        pieces, found = separate_spans(row_spans, span_values(row_spans, values))
        row_values = [0.0 if value is None else value for value in found] + [row_outside]
        row = [row_values[number] for number in token_span_index(row_offsets, pieces)]
        rows.append(row + [0.0] * (length - len(row)))
    return torch.tensor(rows, dtype=torch.float32, device=device).reshape(len(rows), length)


def tokens_inside(offsets: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> list[bool]:
    """Which tokens, of these character offsets, are in these characters. One without any, such as the end of the sequence, goes
    with the one before."""
    inside, before = [], any(start == 0 for start, _ in places)
    numbers = token_span_index(offsets, [LabeledSpan(*place) for place in places])
    for (start, end), number in zip(offsets, numbers, strict=True):
        before = number >= 0 if end > start else before
        inside.append(before)
    return inside
