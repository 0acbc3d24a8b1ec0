"""Reward arithmetic on plain numbers and tensors."""

from __future__ import annotations

import torch


def fill_unjudged(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Give unjudged completions the mean of their group's judged ones, so that the term leaves their advantage alone.

    A group with fewer than two judged completions (and some that are not) has nothing to compare and stays NaN as a
    whole: the term is dropped there. Summing with `nansum` instead would count an unjudged completion as 0 and so reward it against contradicted
    ones and punish it against supported ones.

    Args:
        rewards (`torch.Tensor` of shape (N,), floating point):
            Rewards in group order; NaN where the completion was not judged.
        group_size (`int`):
            Completions per prompt; divides N.

    Returns:
        `torch.Tensor` of shape (N,): a new tensor.

    Raises:
        `ValueError`: N is not a multiple of `group_size`.
    """
    if rewards.dim() != 1 or rewards.numel() % group_size:
        raise ValueError(f"rewards of shape {tuple(rewards.shape)} do not divide into groups of {group_size}")
    groups = rewards.view(-1, group_size)
    judged = ~torch.isnan(groups)
    filled = torch.where(judged, groups, torch.nanmean(groups, dim=1, keepdim=True))
    comparable = (judged.sum(dim=1, keepdim=True) >= 2) | judged.all(dim=1, keepdim=True)
    return torch.where(comparable, filled, torch.full_like(groups, torch.nan)).view(-1)
