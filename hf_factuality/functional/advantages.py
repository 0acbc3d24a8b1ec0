"""Rewards of a group where some are unknown, and advantages of completions turned into advantages of their tokens."""

from __future__ import annotations

import torch


def flip_advantages(advantages: torch.Tensor, factuality: torch.Tensor) -> torch.Tensor:
    """Adjust the sign of each token's advantage to the factuality of its sentence (FSPO, arXiv 2505.24630, Eq. 11).

    A token of a factual sentence never gets a negative advantage and a token of a non-factual one never a positive
    advantage; the magnitude stays:

    | advantage | factuality +1 | 0 | -1 |
    |---|---|---|---|
    | A > 0 | A | A | -A |
    | A < 0 | -A | A | A |

    Args:
        advantages (`torch.Tensor` of shape (B,) or (B, T), floating point):
            Advantage of each completion, or of each of its tokens.
        factuality (`torch.Tensor` of shape (B, T), any dtype):
            -1, 0 or +1 per token; 0 leaves the token alone.

    Returns:
        `torch.Tensor` of shape (B, T), dtype of `advantages`.

    Raises:
        `ValueError`: the shapes do not fit, or `factuality` holds another value.
    """
    advantages, factuality = _aligned(advantages, factuality)
    if not bool(((factuality == 0) | (factuality.abs() == 1)).all()):
        raise ValueError("factuality must be -1, 0 or +1 per token; use `add_factuality` for graded values")
    return torch.where(advantages * factuality < 0, -advantages, advantages)


def add_factuality(advantages: torch.Tensor, factuality: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Add `scale * factuality` to each token's advantage: a dense bonus beside the group baseline, not FSPO's flip.

    Args:
        advantages (`torch.Tensor` of shape (B,) or (B, T), floating point):
            Advantage of each completion, or of each of its tokens.
        factuality (`torch.Tensor` of shape (B, T), any dtype):
            Value per token, in any range; 0 leaves the token alone.
        scale (`float`, *optional*, defaults to `1.0`):
            Size of the bonus in units of the advantage (group-normalised advantages have standard deviation 1).

    Returns:
        `torch.Tensor` of shape (B, T), dtype of `advantages`.

    Raises:
        `ValueError`: the shapes do not fit.
    """
    advantages, factuality = _aligned(advantages, factuality)
    return advantages + scale * factuality


def scale_by_agreement(advantages: torch.Tensor, factuality: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Strengthen tokens whose factuality agrees with the advantage and weaken those where it does not.

    `A * (1 + scale * sign(A) * factuality)`: with `scale=1` a factual token of a punished completion gets 0 instead of
    FSPO's reversed sign, and one of a rewarded completion counts twice.

    Args:
        advantages (`torch.Tensor` of shape (B,) or (B, T), floating point):
            Advantage of each completion, or of each of its tokens.
        factuality (`torch.Tensor` of shape (B, T), any dtype):
            Value per token in [-1, 1]; 0 leaves the token alone.
        scale (`float`, *optional*, defaults to `1.0`):
            Strength; up to 1 no sign changes.

    Returns:
        `torch.Tensor` of shape (B, T), dtype of `advantages`.

    Raises:
        `ValueError`: the shapes do not fit.
    """
    advantages, factuality = _aligned(advantages, factuality)
    return advantages * (1 + scale * torch.sign(advantages) * factuality)


def fill_unjudged(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Give unjudged completions the mean of their group's judged ones, so that the term leaves their advantage alone.

    A group with fewer than two judged completions (and some that are not) has nothing to compare and stays NaN as a
    whole: the term is dropped there. Summing with `nansum` instead would count an unjudged completion as 0 and so reward
    it against contradicted ones and punish it against supported ones.

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


def _aligned(advantages: torch.Tensor, factuality: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if factuality.dim() != 2:
        raise ValueError(f"factuality must have shape (B, T), got {tuple(factuality.shape)}")
    shape = tuple(factuality.shape)
    if not advantages.is_floating_point():
        raise ValueError(f"advantages must be floating point, got {advantages.dtype}")
    if advantages.dim() == 1 and advantages.shape[0] == factuality.shape[0]:
        advantages = advantages.unsqueeze(1).expand(factuality.shape)
    elif advantages.shape != factuality.shape:
        raise ValueError(f"advantages must have shape {shape[:1]} or {shape}, got {tuple(advantages.shape)}")
    return advantages, factuality.to(advantages.dtype)
