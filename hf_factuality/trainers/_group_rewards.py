"""Advantages of FactGRPO from what the tokens of a group earn, where its `credit` asks for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hf_factuality.functional.credit import CREDITS, judged_units
from hf_factuality.functional.group_credit import GroupRewards
from hf_factuality.trainers._token_rewards import PaysTokens
from hf_factuality.verifiers.service import JudgedRow


class CreditsRewards(PaysTokens):
    """Turns what a batch earned into [`GroupRewards`]: token reward functions pay where their spans end, and the mean
    factuality in equal parts where the sentences end; the rest of the parent's sum is paid at the last token."""

    _earned: torch.Tensor

    @property
    def _by_rewards(self) -> bool:
        return isinstance(self._credit, str) and CREDITS[self._credit].rewards is not None

    def _require_statements(self, functions: list[Callable], weight: float) -> None:
        if not functions and not weight:
            raise ValueError(
                f"credit={self._credit!r} needs statements that are paid: pass token_reward_funcs, or set "
                "factuality_reward_weight above 0"
            )
        if self.num_generations < 2 or self.args.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"credit={self._credit!r} compares sums within a group: num_generations must be at least 2 and "
                "multi_objective_aggregation 'sum_then_normalize'"
            )

    def _keep_earned(self, rewards_per_func: torch.Tensor, count: int, group_size: int) -> torch.Tensor:
        """Keeps the parent's sums of this process before unknown rewards are filled, NaN where one that others of the group
        have is unknown. Returns where that is, of all processes, (B,). Rewards of weight 0 are for the log."""
        weights = self.reward_weights.to(rewards_per_func.device)
        found = (~torch.isnan(rewards_per_func) & (weights != 0)).view(-1, group_size, len(weights))
        known = ((found | ~found.any(1, keepdim=True)).all(2) & found.any(2)).view(-1)
        here = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        self._earned = (rewards_per_func * weights).nansum(dim=1).masked_fill(~known, torch.nan)[here].float()
        return ~known

    def _pay_factuality(self, rows: Sequence[JudgedRow], completion_ids: list[list[int]]) -> None:
        """The mean factuality in equal parts, each where its sentence ends; after those of the token reward functions."""
        found = []
        for row in rows if self._by_rewards and self.args.factuality_reward_weight else ():
            units = [unit for unit in judged_units(row.verification) if unit.label is not None]
            points = [(unit.start, unit.end, self._values[unit.label] / len(units)) for unit in units]
            found.append(points if row.verification.judged else None)
        if found:
            self._pay(len(self.reward_funcs) - self._num_plain - 1, "factuality", found, completion_ids)

    def _credited(self, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Advantages of shape (B, T) by the credit of this name."""
        own, ends, _ = self._paid(mask)
        known = ~torch.isnan(self._earned)
        # Completions that are left out since they were cut have no mask, but are compared with.
        lengths = torch.tensor([[len(tokens.offsets)] for tokens in self._tokens], device=mask.device)
        whole = torch.arange(mask.size(1), device=mask.device) < lengths
        rest = torch.nan_to_num(self._earned).unsqueeze(1) - own.sum(1, keepdim=True)
        rewards = own.scatter_add(1, (lengths - 1).clamp(min=0), rest)
        # Groups may be spread over the processes.
        here = self.accelerator.process_index * len(mask)
        everywhere = [
            self.accelerator.gather(self.accelerator.pad_across_processes(x.float(), dim=1))
            for x in (advantages.unsqueeze(1), rewards, own, ends, whole, known.unsqueeze(1))
        ]
        before, rewards, own, ends, whole, known = everywhere
        size = self.num_generations if self.model.training else self.num_generations_eval
        others_paid = bool(self.reward_weights[: self._num_plain].any())
        group = GroupRewards(
            rewards, own, ends.bool(), whole.bool(), known.squeeze(1).bool(), size, others_paid, self.scale_rewards
        )
        shaped = CREDITS[self._credit].rewards(before.squeeze(1), group, self.args.credit_scale)
        return (shaped[here : here + len(mask), : mask.size(1)] * mask).to(advantages.dtype)
