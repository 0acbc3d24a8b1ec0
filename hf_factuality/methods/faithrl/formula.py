"""What the steps of a completion are worth, and how much of it is a faithful prefix: FaithRL (arXiv 2602.05897), as released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hf_factuality.functional.credit import Credit
from hf_factuality.functional.group_credit import GroupRewards, statement_index
from hf_factuality.spans import Label, LabeledSpan


def faithful_prefix(units: Sequence[LabeledSpan], values: Mapping[Label, float]) -> int | None:
    """Number of characters before the first unfaithful step; `None` where none is unfaithful.

    Args:
        units (`Sequence[LabeledSpan]`):
            The steps of a completion, in any order.
        values (`Mapping[Label, float]`):
            Number per label; a step is unfaithful if that of its label is negative. Unknown steps are not.
    """
    return min((unit.start for unit in units if unit.label is not None and values[unit.label] < 0), default=None)


def faithrl_step_rewards(group: GroupRewards) -> torch.Tensor:
    """Reward of every token, (B, T): that of its step, over all of the step's tokens.

    In a wrong answer every step earns -1. In a right one a faithful step earns 1 and an unfaithful one -1; one that is neither, since
    it states no fact or its evidence says nothing about it, earns 0 (ours: the released verifier knows two labels). What follows the
    last step is the answer, which earns `2 * outcome - 1`; the released code scales outcomes to the range of their batch first. Its
    penalties for repetition are left out.

    Args:
        group ([`GroupRewards`]):
            `own` has what each step earns where it ends, of which the sign counts; what else is earned, in [0, 1], is the outcome, and
            0.5 or more is a right answer.
    """
    outcome = (group.rewards - group.own).sum(1, keepdim=True)
    index, right = statement_index(group.ends), outcome >= 0.5
    steps = int(index.max()) + 1 if index.numel() else 1
    signs = torch.zeros(len(index), steps + 1, device=index.device).scatter_add(1, index, group.own * group.ends)
    by_step = torch.where(right, signs.sign().gather(1, index), -torch.ones_like(group.own))
    answer = index == group.ends.sum(1, keepdim=True)
    return torch.where(answer, 2 * outcome.clamp(0, 1) - 1, by_step) * group.mask


def faithrl_credit(advantages: torch.Tensor, group: GroupRewards, scale: float) -> torch.Tensor:
    """FaithRL's advantages: the reward of each token less the mean over all tokens of the group, over their standard deviation.

    For [`~hf_factuality.functional.Credit`]; `advantages` (B,) and `scale` are not read. A group of one completion, and tokens of
    unknown ones, get 0.
    """
    rewards, learned = faithrl_step_rewards(group), group.learned
    size = group.group_size
    counted = learned.view(-1, size * learned.size(1))
    pooled = rewards.view(-1, size * learned.size(1)).masked_fill(~counted, 0.0)
    count = counted.sum(1, keepdim=True).clamp(min=1)
    mean = pooled.sum(1, keepdim=True) / count
    centred = (pooled - mean) * counted
    spread = (centred.square().sum(1, keepdim=True) / count).sqrt()
    return (centred / (spread + 1e-6)).view_as(rewards)


FAITHRL = Credit(None, rewards=faithrl_credit)
"""`credit="hf_factuality.methods.faithrl.formula:FAITHRL"`, with the reward `factuality` for the steps and another for the answer."""
