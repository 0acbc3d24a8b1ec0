"""Rewards that are paid to the tokens of their own characters only, with an advantage of their own (DCPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl.trainer.utils import nanstd

from hf_factuality.functional.credit import token_span_index
from hf_factuality.spans import LabeledSpan, TokenOffsets


class SpanRewards:
    """The reward functions of a trainer that have a method `spans(text, opened) -> [(start, end)]`.

    Each leaves the sum of the parent, by a weight of 0, but not its log. Its advantage over the group, times its weight,
    replaces that of all others at its spans. Advantages are normalised as the parent's are (`scale_rewards`).
    """

    def __init__(self, trainer: Any):
        self.trainer, self.found = trainer, {}
        for column, function in enumerate(trainer.reward_funcs):
            if callable(getattr(function, "spans", None)):
                self.found[column] = (function.spans, float(trainer.reward_weights[column]))
                trainer.reward_weights[column] = 0.0
        if self.found and trainer.num_generations < 2:
            raise ValueError("num_generations=1: a reward that is paid at its own spans is compared within a group")

    def advantages(self, rewards: torch.Tensor, group_size: int) -> dict[int, torch.Tensor]:
        """Per column, advantages of all completions of all processes; 0 where the reward is unknown."""
        return {column: self._normalised(rewards[:, column], group_size) for column in self.found}

    def _normalised(self, rewards: torch.Tensor, group_size: int) -> torch.Tensor:
        groups, scale = rewards.view(-1, group_size), self.trainer.scale_rewards
        centred = groups - groups.nanmean(dim=1, keepdim=True)
        if scale != "none":
            spread = nanstd(rewards) if scale == "batch" else nanstd(groups, dim=1).unsqueeze(1)
            centred = centred / (spread + 1e-4)
        return torch.nan_to_num(centred, nan=0.0).view(-1)

    def paid(
        self, advantages: torch.Tensor, own: dict[int, torch.Tensor], tokens: Sequence[TokenOffsets],
        opened: Sequence[bool], mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Advantages of shape (B, T) with those of `own`, of this process, at the spans of each."""
        if not self.found:
            return advantages
        shaped = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask.shape)
        for column, (spans, weight) in self.found.items():
            inside = torch.zeros_like(mask)
            for row, (its, opens) in enumerate(zip(tokens, opened, strict=True)):
                inside[row, : len(its.offsets)] = torch.tensor(_inside(its.offsets, spans(its.text, opens)))
            shaped = torch.where(inside, weight * own[column].to(shaped.dtype).unsqueeze(1), shaped)
        return shaped


def _inside(offsets: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> list[bool]:
    """Which tokens are in these characters. One without any, such as the end of the sequence, goes with the one before."""
    found, before = [], any(start == 0 for start, _ in places)
    for (start, end), number in zip(
        offsets, token_span_index(offsets, [LabeledSpan(*it) for it in places]), strict=True
    ):
        before = number >= 0 if end > start else before
        found.append(before)
    return found
