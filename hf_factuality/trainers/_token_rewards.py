"""What token reward functions return, as one number per token, and how the parent calls and logs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from trl.trainer.utils import get_callable_name, is_async_callable

from hf_factuality.functional.token_rewards import place_spans
from hf_factuality.spans import TokenOffsets
from hf_factuality.trainers._base import as_list


TokenRewards = Sequence["Sequence[tuple[int, int, float]] | Sequence[float] | torch.Tensor | None"]
TokenRewardFunc = Callable[..., TokenRewards]
PaidRow = tuple[torch.Tensor, torch.Tensor]


class PaysTokens:
    """Beneath the trainers that take `token_reward_funcs`: keeps what they pay each token; the parent gets the sums."""

    _token_rewards: dict[int, list[PaidRow | None]]
    _tokens: Sequence[TokenOffsets]
    _num_plain: int  # reward functions before them

    def _scalars(
        self, functions: TokenRewardFunc | list[TokenRewardFunc] | None
    ) -> list[Callable[..., list[float | None]]]:
        """Token reward functions as the parent calls them."""
        self._token_rewards, given = {}, as_list(functions)
        if not all(callable(function) and not is_async_callable(function) for function in given):
            raise ValueError(f"token_reward_funcs must be plain functions, not async, got {given!r:.200}")
        return [self._scalar(number, function) for number, function in enumerate(given)]

    def _scalar(self, number: int, function: TokenRewardFunc) -> Callable[..., list[float | None]]:
        def reward(prompts, completions, completion_ids, **columns):
            columns["completion_texts"] = [tokens.text for tokens in self._tokens]
            found = function(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
            return self._pay(number, reward.__name__, found, completion_ids)

        reward.__name__, reward.__wrapped__ = get_callable_name(function), function
        return reward

    def _pay(self, number: int, name: str, found: TokenRewards, completion_ids: list[list[int]]) -> list[float | None]:
        """Keep what a function pays; the sums."""
        self._token_rewards[number] = rows = token_reward_rows(name, found, self._tokens, completion_ids)
        return [None if paid is None else paid[0].sum().item() for paid in rows]

    def _bind_policy(self, functions: Sequence[Callable[..., Any]]) -> None:
        for function in functions:
            if callable(getattr(function.__wrapped__, "bind_policy", None)):
                function.__wrapped__.bind_policy(self.model, self._tokenizer)

    def _paid(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token rewards and the ends of their statements, of shape (B, T), and which completions have any that is known, (B,);
        weight 0 is for the log."""
        rewards, ends = torch.zeros(mask.shape, device=mask.device), torch.zeros_like(mask)
        known = torch.zeros(len(mask), dtype=bool, device=mask.device)
        weights = self.reward_weights[self._num_plain :].tolist()
        for number, rows in self._token_rewards.items():
            for index, paid in enumerate(rows):
                if paid is not None:
                    row, own = (tensor.to(mask.device) for tensor in paid)
                    rewards[index, : len(row)] += weights[number] * row
                    ends[index, : len(row)] |= own
                    known[index] |= weights[number] != 0
        return rewards, ends, known


def token_reward_rows(
    name: str, found: TokenRewards, tokens: Sequence[TokenOffsets], completion_ids: Sequence[Sequence[int]]
) -> list[PaidRow | None]:
    """Rewards of the function `name` per completion, `None` if unknown: float32 of shape (T,) with its own T, and the tokens at
    which a statement ends, bool: the ends of spans, whatever they earn, or where a number is not 0.

    A row is all infinite where one number is not finite: the trainer stops at it, on all processes at once. `ValueError`
    for another number of results or of tokens, or a span outside the text.
    """
    size = len(found) if hasattr(found, "__len__") else f"{found!r:.100}"
    if size != len(completion_ids):
        raise ValueError(
            f"the token reward function {name!r} returned {size} for {len(completion_ids)} completions; return a list with "
            "an entry for each, None where nothing is known"
        )
    rows = []
    for number, (given, offsets, ids) in enumerate(zip(found, tokens, completion_ids, strict=True)):
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
