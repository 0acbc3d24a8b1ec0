"""Masked advantages, returns and losses of actor-critic training. Masked positions are as if they were not there.

Tensors are floating point and of shape (B, T) where nothing else is said, also what is returned: in the widest dtype of
those given, at least float32, and 0 at masked positions. A `mask`, bool or 0/1, is 1 for tokens that count, on either side
of any padding. `ValueError`: the shapes differ, numbers are not floating point, a mask holds something else, or a setting
is out of its range.
"""

from __future__ import annotations

import torch


KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(logps: torch.Tensor, ref_logps: torch.Tensor, estimator: str = "k3") -> torch.Tensor:
    """Per-token estimate of KL(policy || reference) in nats, from tokens that the policy sampled (Schulman 2020).

    With d = log p - log p_ref, the difference of `logps` and `ref_logps` (nats, any shape): k1 = d (unbiased, may be
    negative), k2 = d^2 / 2 (biased, never negative), k3 = exp(-d) - 1 + d (unbiased, never negative).
    """
    logps, ref_logps = _wide(logps=logps, ref_logps=ref_logps)
    difference = logps - ref_logps
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f"estimator={estimator!r} is unknown; choose one of {list(KL_ESTIMATORS)}")


def generalized_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages by GAE (Schulman et al. 2016, arXiv 1506.02438, Eq. 16) and their returns, over a row's kept tokens.

    A row ends after its last kept token, with value 0 there. Between kept tokens nothing is discounted for masked
    ones. Half precision is summed in float32: a sum of ones in bfloat16 would stop at 256.

    Args:
        rewards, values (`torch.Tensor` of shape (B, T)):
            Reward for each token, and the critic's value of the state in which it was chosen.
        mask (`torch.Tensor` of shape (B, T)):
            1 for tokens of the completion. What masked positions hold is ignored.
        gamma, lam (`float`, *optional*, default to `1.0` and `0.95`):
            Discount per token, and lambda: 0 looks one token ahead, 1 to the end. Both in [0, 1].

    Returns:
        Two `torch.Tensor` of shape (B, T): advantages, and returns (advantages + values), which the critic is to learn.
    """
    _same_shape(rewards=rewards, values=values, mask=mask)
    if values.dim() != 2:
        raise ValueError(f"rewards, values and mask must have shape (B, T), got {tuple(values.shape)}")
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")
    rewards, values = _wide(rewards=rewards, values=values)
    kept = _kept(mask)
    # Not by multiplication: NaN in the padding would stay.
    rewards, values = rewards.masked_fill(~kept, 0.0), values.masked_fill(~kept, 0.0)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0]) if values.size(1) else None
    for t in reversed(range(values.size(1))):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_advantage = torch.where(kept[:, t], advantage, next_advantage)
        next_value = torch.where(kept[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(kept[:, t], advantage, torch.zeros_like(advantage))
    return advantages, advantages + values


def masked_moments(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Count, sum and sum of squares of the kept values, of shape (3,), float64: added over processes, those of all."""
    _same_shape(values=values, mask=mask)
    kept = _kept(mask)
    values = values.double().masked_fill(~kept, 0.0)
    return torch.stack([kept.sum().double(), values.sum(), values.square().sum()])


def whiten(values: torch.Tensor, mask: torch.Tensor, moments: torch.Tensor | None = None) -> torch.Tensor:
    """Shift the kept values to mean 0 and scale them to variance 1; the dtype stays.

    The variance v is that of the values themselves (divided by n), so that it is v / (v + 1e-8) afterwards. A single
    value, or values that are all equal, become 0. The variance loses digits with the square of mean / standard
    deviation: one in 10^8 at a ratio of 10^4.

    Args:
        values, mask (`torch.Tensor` of shape (B, T)):
            Advantages or rewards, and which of them count.
        moments (`torch.Tensor` of shape (3,), *optional*):
            As [`masked_moments`] gives them, added over all processes; `None` takes those of `values`.
    """
    _same_shape(values=values, mask=mask)
    if not values.is_floating_point():
        raise ValueError(f"values must be floating point, got {values.dtype}")
    kept = _kept(mask)
    count, total, squares = (masked_moments(values, mask) if moments is None else moments).double()
    count = count.clamp(min=1)
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    # Masked before the product: an infinity there would make the gradient of every other value NaN.
    centered = (values.double() - mean).masked_fill(~kept, 0.0)
    whitened = centered * torch.rsqrt(torch.where(variance > 0, variance + 1e-8, 1.0))
    return whitened.masked_fill(~kept, 0.0).to(values.dtype)


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    clip: float | None = 0.2,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared error of the critic per token, halved; a step of more than `clip` from the old value gains nothing.

    `max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2`, as PPO's reference implementation has it. Only
    `values` gets a gradient.

    Args:
        values, old_values, returns (`torch.Tensor` of shape (B, T)):
            What the critic says now, what it said when the completions were sampled, and what it is to say.
        clip (`float`, *optional*, defaults to `0.2`):
            Largest useful step, in units of the return; `None` for no limit.
        mask (`torch.Tensor` of shape (B, T), *optional*):
            `None`: all count. Zeroing the loss afterwards is not the same where masked values are NaN or infinite: their
            gradient would be NaN.

    Returns:
        Two `torch.Tensor` of shape (B, T): the loss, and whether the clipped term was the larger one (bool).
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive, or None for no limit, got {clip}")
    values, old_values, returns = _wide(values=values, old_values=old_values.detach(), returns=returns.detach())
    if mask is not None:
        _same_shape(values=values, mask=mask)
        kept = _kept(mask)
        values, old_values, returns = (x.masked_fill(~kept, 0.0) for x in (values, old_values, returns))
    loss = (values - returns).square()
    if clip is None:
        return loss / 2, torch.zeros_like(loss, dtype=torch.bool)
    # Not old + clamp(step): that rounds, and a value inside the limit would seem clipped.
    near = values.clamp(old_values - clip, old_values + clip)
    clipped = (near - returns).square()
    return torch.maximum(loss, clipped) / 2, clipped > loss


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """1 - Var(R - V) / Var(R) over the kept tokens: 1 for a perfect critic, 0 for a constant one, below 0 for worse.

    A float64 scalar; NaN where the returns do not vary by more than rounding: equal rewards at lambda 1 give returns that
    differ in their last bits.
    """
    _same_shape(values=values, returns=returns, mask=mask)
    kept = _kept(mask)
    rounding = 16 * torch.finfo(torch.promote_types(returns.dtype, torch.float32)).eps
    values, returns = values[kept].double(), returns[kept].double()
    if not returns.numel():
        return torch.tensor(torch.nan, dtype=torch.float64, device=values.device)
    variance = returns.var(correction=0)
    varies = variance.sqrt() > rounding * returns.abs().max()
    return torch.where(varies, 1 - (returns - values).var(correction=0) / variance, torch.nan)


def _same_shape(**tensors: torch.Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"the shapes must be equal, got {', '.join(f'{n} {s}' for n, s in shapes.items())}")


def _wide(**tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors, of one shape, in their widest dtype and at least float32."""
    _same_shape(**tensors)
    dtype = torch.float32
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors.values()]


def _kept(mask: torch.Tensor) -> torch.Tensor:
    # An additive mask (0 and -inf), or weights, would otherwise be read as something else without a word.
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("mask must be bool, or hold 0 and 1 only (1: the token counts); turn other masks into that")
    return mask.bool()
