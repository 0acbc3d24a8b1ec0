"""Advantages of tokens from rewards of statements, against the other completions of the group instead of a critic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from hf_factuality.functional.gae import generalized_advantages


PLACES = ("token", "statement", "share")


@dataclass(frozen=True)
class GroupRewards:
    r"""What the tokens of whole groups of completions earn.

    Which credits are unbiased. Let `R` be all that a completion earns, `r_k` what its token `k` earns, and `b_t` any number that
    is known before token `t` is drawn. Given what stands before it, `E[grad log pi(a_t)] = 0`, so that terms known by then
    fall out: the gradient of `E[R]` is `E[sum_t grad log pi(a_t) (sum_{k >= t} r_k - b_t)]`, and the same with `R - b_t`. Other
    completions of the group are drawn independently, and how many statements have ended before a token is known before it. So
    `"sum"` and `to_go` with the places `"token"` and `"statement"` are unbiased (before they are divided by a standard
    deviation). Biased are `"share"` (the length, of which a share is taken, is decided by later tokens), `"gae"` with lambda
    below 1, `"signed_gae"` (by its signs), `"own"` (it adds the gradient of each statement's reward by its own tokens alone, `scale` times) and `"process"`
    (each number is divided by the spread of numbers that the completion itself is among, and a mean is taken off every
    statement, so that another statement of average worth costs what it would have earned).

    Args:
        rewards (`torch.Tensor` of shape (B, T), float32):
            Reward of each token; rows add up to what the completion earns. B is a multiple of `group_size`, groups in order.
        own (`torch.Tensor` of shape (B, T), float32):
            The part of `rewards` that is paid for statements, each at the token where its statement ends.
        ends (`torch.Tensor` of shape (B, T), bool):
            True on tokens where a statement ends, also where it earns 0.
        mask (`torch.Tensor` of shape (B, T), bool):
            True on the tokens of completions, false on padding.
        known (`torch.Tensor` of shape (B,), bool):
            False where what the completion earns is not known: its advantage is 0, and it is in no baseline.
        group_size (`int`):
            Completions per prompt.
        others_paid (`bool`, *optional*, defaults to `False`):
            Whether last tokens earn something beside statements, also where it is 0.
        spread (`str`, *optional*, defaults to `"group"`):
            TRL's `scale_rewards`: advantages are divided by the root of their mean square over the tokens of the `"group"` or of
            the `"batch"`, or by nothing (`"none"`).
    """

    rewards: torch.Tensor
    own: torch.Tensor
    ends: torch.Tensor
    mask: torch.Tensor
    known: torch.Tensor
    group_size: int
    others_paid: bool = False
    spread: str = "group"

    @property
    def learned(self) -> torch.Tensor:
        """Tokens of known completions with which another of the group can be compared, (B, T)."""
        return self.mask & self.known.unsqueeze(1) & (_others_known(self) > 0)

    def normalised(self, values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """Values of shape (B, T), of which those at some learned tokens count, over the root of their mean square."""
        values = values.masked_fill(~(where & self.learned), 0.0)
        if self.spread == "none":
            return values
        mean, _ = _moments(
            values.square(), where & self.learned, self.group_size if self.spread == "group" else len(values)
        )
        return values / (mean.sqrt() + 1e-4)


def rewards_to_go(rewards: torch.Tensor) -> torch.Tensor:
    """Sum of the rewards of each token and of those after it, (B, T)."""
    return rewards.flip(1).cumsum(1).flip(1)


def statement_index(ends: torch.Tensor) -> torch.Tensor:
    """How many statements have ended before each token, (B, T), int64; `ends` as in [`GroupRewards`]."""
    return ends.cumsum(1) - ends.long()


def group_to_go(group: GroupRewards, place: str = "token") -> torch.Tensor:
    """Reward to go less the mean reward to go of the other completions at the same place; RLOO, token by token.

    Args:
        group ([`GroupRewards`]):
            Rewards.
        place (`str`, *optional*, defaults to `"token"`):
            The same place is as many tokens from the start (`"token"`), after as many statements (`"statement"`), or the same
            share of the completion (`"share"`: the share `t / L` of `L` tokens is token `t * L' // L` of `L'`). Completions that
            have ended before have 0 to go.

    Returns:
        `torch.Tensor` of shape (B, T), float32, not divided by a standard deviation; 0 where none of the others is known.

    Raises:
        `ValueError`: an unknown place.
    """
    to_go = rewards_to_go(group.rewards)
    if place == "token":
        others = _others(to_go, group)
    elif place == "statement":
        index = statement_index(group.ends)
        # What is to go where statement k begins, at the first token with k ends before it.
        numbers = torch.arange(int(index.max()) + 1, device=index.device).expand(len(index), -1).contiguous()
        first = torch.searchsorted(index.contiguous(), numbers)
        table = torch.cat([to_go, torch.zeros_like(to_go[:, :1])], 1).gather(1, first)
        others = _others(table, group).gather(1, index)
    elif place == "share":
        others = _at_the_same_share(to_go, group)
    else:
        raise ValueError(f"place={place!r} is unknown; choose one of {PLACES}")
    return (to_go - others) * group.learned


def _at_the_same_share(to_go: torch.Tensor, group: GroupRewards) -> torch.Tensor:
    """Mean of what the known others still earn at the same share of their own tokens, (B, T)."""
    groups = to_go.view(-1, group.group_size, to_go.size(1))
    lengths = group.mask.sum(1).clamp(min=1).view(-1, group.group_size, 1)
    known, steps = group.known.view(-1, group.group_size, 1), torch.arange(to_go.size(1), device=to_go.device)
    total = torch.zeros_like(groups)
    # Each other completion in turn, by its own length: a table of shares that all read would need a width, and what a row
    # gets would depend on how far the batch is padded.
    for shift in range(1, group.group_size):
        other, its, counts = (tensor.roll(shift, 1) for tensor in (groups, lengths, known))
        at = (steps * its // lengths).clamp(max=to_go.size(1) - 1)
        total += torch.where(counts, other.gather(2, at), 0.0)
    return total.view_as(to_go) / _others_known(group).clamp(min=1)


def process_advantages(group: GroupRewards) -> torch.Tensor:
    """Process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3): step rewards normalised over the group, summed from
    the step on. A step is a statement, and the last token if it is paid for something else. Shape (B, T)."""
    last = group.mask & (group.mask.cumsum(1) == group.mask.sum(1, keepdim=True))
    steps = (group.ends | (last & group.others_paid)) & group.learned
    mean, sd = _moments(group.rewards, steps, group.group_size)
    return rewards_to_go(((group.rewards - mean) / (sd + 1e-4)).masked_fill(~steps, 0.0)) * group.learned


GroupCredit = Callable[[torch.Tensor, GroupRewards, float], torch.Tensor]
"""`(advantages, group, scale) -> (B, T)`, where `advantages` are the parent's, of shape (B,)."""


def credit_tokens(credit: GroupCredit, advantages: torch.Tensor, group: GroupRewards, scale: float) -> torch.Tensor:
    """Advantages of shape (B, T) by a credit, as if tokens outside the mask were not there: in rollouts with tools these lie
    between those of the policy, and the same place is after as many tokens of the policy."""
    order = (~group.mask).long().argsort(dim=1, stable=True)
    if torch.equal(order, torch.arange(order.size(1), device=order.device).expand_as(order)):
        return credit(advantages, group, scale)
    packed = {name: getattr(group, name).gather(1, order) for name in ("rewards", "own", "ends", "mask")}
    found = credit(advantages, replace(group, **packed), scale)
    return torch.zeros_like(found).scatter(1, order, found)


def own_credit(advantages: torch.Tensor, group: GroupRewards, scale: float) -> torch.Tensor:
    """The group's advantage, plus `scale` times what the statement of each token earns itself, over the spread of that; nothing
    is added after the last statement."""
    worth = _of_statements(group.normalised(group.own, group.ends), group)
    return (advantages.unsqueeze(1) + scale * worth) * group.learned


def gae_credit(advantages: torch.Tensor, group: GroupRewards, scale: float) -> torch.Tensor:
    """GAE with lambda `scale` and without a critic: a state is worth the mean reward to go of the others at the same token, and
    nothing after the end. With lambda 1, [`group_to_go`]."""
    values = _others(rewards_to_go(group.rewards), group)
    found, _ = generalized_advantages(group.rewards, values, group.mask, lam=scale)
    return group.normalised(found, group.mask)


def signed_gae_credit(advantages: torch.Tensor, group: GroupRewards, scale: float) -> torch.Tensor:
    """GAE with lambda `scale` on the values of [`regressed_values`]; the tokens of a statement that earns something itself have
    the sign of that, as FSPO's (arXiv 2505.24630, Eq. 11) have the sign of its label."""
    found, _ = generalized_advantages(group.rewards, regressed_values(group), group.mask, lam=scale)
    found, sign = group.normalised(found, group.mask), _of_statements(group.own, group).sign()
    return torch.where(sign == 0, found, sign * found.abs())


def regressed_values(group: GroupRewards) -> torch.Tensor:
    """What the others of the group still earn at the same token, and what those usually earn beside who have earned as much more
    as this completion: a linear critic in closed form.

    `V_t = G_t + b_t (c_t - C_t)`, with the means `G_t` of what the others still earn and `C_t` of what they have earned before,
    and `c_t` of this completion. The slope `b_t` is that of least squares of the one difference from the others on the other: the
    sum of products over the other groups of the batch, so that it is known before token `t` of this one is drawn, over the
    sum of squares of all, so that few groups say little; 0 if there are no others.

    Returns:
        `torch.Tensor` of shape (B, T), float32, also after the end of a completion.
    """
    left, before = rewards_to_go(group.rewards), group.rewards.cumsum(1) - group.rewards
    others = _others(left, group)
    more = before - _others(before, group)
    counted = group.known.unsqueeze(1) & (_others_known(group) > 0)
    both, squares = (
        (product * counted).view(-1, group.group_size, left.size(1)).sum(1)
        for product in (more * (left - others), more.square())
    )
    slope = (both.sum(0) - both) / (squares.sum(0) + 1e-4)
    return others + slope.repeat_interleave(group.group_size, 0) * more


def to_go_credit(place: str) -> GroupCredit:
    """A share `scale` of [`group_to_go`] at this place, and the rest of the completion's sum less the mean of the others'."""

    def credit(advantages: torch.Tensor, group: GroupRewards, scale: float) -> torch.Tensor:
        sums = group.rewards.sum(1, keepdim=True)
        mixed = scale * group_to_go(group, place) + (1 - scale) * (sums - _others(sums, group))
        return group.normalised(mixed, group.mask)

    return credit


def _of_statements(values: torch.Tensor, group: GroupRewards) -> torch.Tensor:
    """The sum of the values of each token's statement, at all of its tokens; 0 after the last."""
    index = statement_index(group.ends)
    sums = torch.zeros(len(index), index.size(1) + 1, device=index.device)
    return sums.scatter_add_(1, index, values * group.ends).gather(1, index)


def _others_known(group: GroupRewards) -> torch.Tensor:
    known = group.known.view(-1, group.group_size).long()
    return (known.sum(1, keepdim=True) - known).view(-1, 1)


def _others(table: torch.Tensor, group: GroupRewards) -> torch.Tensor:
    """Mean of the known others of the group, (B, K)."""
    groups = (table * group.known.unsqueeze(1)).view(-1, group.group_size, table.size(1))
    return (groups.sum(1, keepdim=True) - groups).view_as(table) / _others_known(group).clamp(min=1)


def _moments(values: torch.Tensor, where: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of `values` of shape (B, T) at some tokens of `rows` completions each, of shape (B, 1)."""
    grouped, where = values.reshape(-1, rows * values.size(1)), where.reshape(-1, rows * values.size(1))
    count = where.sum(1, keepdim=True)
    mean = (grouped * where).sum(1, keepdim=True) / count.clamp(min=1)
    spread = ((grouped - mean).square() * where).sum(1, keepdim=True) / (count - 1).clamp(min=1)
    return tuple(moment.repeat_interleave(rows, 0) for moment in (mean, spread.sqrt()))
