"""Importance ratios of whole completions whose gradient stays with the tokens (GSPO-token)."""

from __future__ import annotations

import torch


def gspo_token_reference(logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log-probabilities to divide by, so that each token's ratio has its completion's value and the token's own gradient.

    `exp(logps - reference)` is `sg[s_i] * p(token) / sg[p(token)]`, GSPO-token's ratio (arXiv 2507.18071, Eq. 14), where
    `s_i` is the geometric mean of the token ratios of completion i (Eq. 7) and `sg` stops gradients. With one advantage per
    completion its loss and gradient are GSPO's; with one per token, GSPO's ratio would give every token the mean.

    Args:
        logps, old_logps (`torch.Tensor` of shape (B, T), floating point):
            Log-probabilities of the tokens under the policy that learns, and the one that sampled.
        mask (`torch.Tensor` of shape (B, T), any dtype):
            1 where there is a token of the completion.

    Returns:
        `torch.Tensor` of shape (B, T), at least float32, without gradient.
    """
    now = logps.detach()
    now = now.to(torch.promote_types(now.dtype, torch.float32))
    ratio = ((now - old_logps) * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return now - ratio
