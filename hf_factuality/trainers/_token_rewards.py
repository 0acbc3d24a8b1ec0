"""What token reward functions return, as one number per token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hf_factuality.functional.token_rewards import place_spans
from hf_factuality.spans import TokenOffsets


TokenRewards = Sequence["Sequence[tuple[int, int, float]] | Sequence[float] | torch.Tensor | None"]
TokenRewardFunc = Callable[..., TokenRewards]
PaidRow = tuple[torch.Tensor, torch.Tensor]


def token_reward_rows(
    name: str, paid: TokenRewards, tokens: Sequence[TokenOffsets], completion_ids: Sequence[Sequence[int]]
) -> list[PaidRow | None]:
    """Rewards of the function `name` per completion, `None` if unknown: float32 of shape (T,) with its own T, and the tokens at
    which a statement ends, bool: the ends of spans, whatever they earn, or where a number is not 0.

    A row is all infinite where one number is not finite: the trainer stops at it, on all processes at once. `ValueError`
    for another number of results or of tokens, or a span outside the text.
    """
    size = len(paid) if hasattr(paid, "__len__") else f"{paid!r:.100}"
    if size != len(completion_ids):
        raise ValueError(
            f"the token reward function {name!r} returned {size} for {len(completion_ids)} completions; return a list with "
            "an entry for each, None where nothing is known"
        )
    rows = []
    for number, (given, offsets, ids) in enumerate(zip(paid, tokens, completion_ids, strict=True)):
        if given is None:
            rows.append(None)
            continue
        try:
            rows.append(_row(given, offsets, len(ids)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the token reward function {name!r}, completion {number}: {error}") from error
    return rows


def _row(given: Any, tokens: TokenOffsets, length: int) -> PaidRow:
    ends = None
    if isinstance(given, torch.Tensor):
        row = given.detach().float().cpu()
    elif len(given) and not isinstance(given[0], Sequence):
        row = torch.tensor([float(value) for value in given])
    elif any(isinstance(value, float) and not math.isfinite(value) for *_, value in given):
        row = torch.full((length,), math.inf)
    else:
        row = place_spans(tokens.offsets, given)
        ends = place_spans(tokens.offsets, [(start, end, 1.0) for start, end, _ in given]) != 0
    if row.shape != (length,):
        raise ValueError(
            f"rewards of shape {tuple(row.shape)} for {length} tokens; return one number per token, or spans"
        )
    row = row if torch.isfinite(row).all() else torch.full_like(row, math.inf)
    return row, row != 0 if ends is None else ends
