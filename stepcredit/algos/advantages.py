"""Rewards to one advantage per token: pure functions on [B, T] tensors.

Every function reads policy tokens (`action_mask`) alone: observation tokens are skipped, never
walked over, and whatever stands in their slots (NaN included) changes nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FLAT = 1e-6
"""A group that varies by no more than this share of its largest reward has nothing to tell apart:
its advantages are 0. Single precision rounds at 1e-7."""


@dataclass(frozen=True, eq=False)
class Credit:
    """What an estimator says of each token, and what its critic should learn from it."""

    advantages: Tensor
    """[B, T], 0 where not an action."""
    returns: Tensor | None = None
    """[B, T] value targets, meaningful where `value_mask`."""
    value_mask: Tensor | None = None
    """[B, T] bool, the tokens whose state the baseline is read at."""


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return `x` with zeros outside the mask, whatever stood there."""
    return torch.where(mask, x, torch.zeros_like(x))


def token_gae(
    rewards: Tensor, values: Tensor, action_mask: Tensor, *, gamma: float, lam: float
) -> Credit:
    """Generalised advantage estimation over policy tokens (arXiv:1506.02438, eq. 16).

    `values[b, t]` is the value of the state before token t; the state after the last policy token
    is terminal, value 0.
    """
    advantages = torch.zeros_like(rewards)  # [B, T]
    next_value = torch.zeros_like(rewards[:, 0])  # [B]
    running = torch.zeros_like(next_value)  # [B]
    for t in reversed(range(rewards.shape[1])):
        here = action_mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(here, delta + gamma * lam * running, running)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = masked(running, here)
    return Credit(advantages, advantages + values, action_mask)


def step_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    step_end: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Credit:
    """Generalised advantage estimation over steps: one baseline and one advantage per step.

    A step runs from the policy token after the previous step's end to its own end, so that unjudged
    tokens belong to the step they lead to; those after the last end are a step of their own. The
    value is read at the step's first policy token, and all its policy tokens share the advantage.
    """
    segment = segment_ids(action_mask, step_end)  # [B, T]
    first = action_mask & starts_segment(segment, action_mask)  # [B, T]
    step_rewards = per_segment(rewards, segment)  # [B, K]
    step_values = per_segment(masked(values, first), segment)  # [B, K]
    exists = per_segment(first.to(rewards.dtype), segment) > 0  # [B, K]
    by_step = token_gae(step_rewards, step_values, exists, gamma=gamma, lam=lam).advantages
    spread = by_step.gather(1, segment.clamp(min=0))  # [B, T]
    advantages = masked(spread, action_mask)
    return Credit(advantages, masked(advantages + values, first), first)


def segment_ids(action_mask: Tensor, step_end: Tensor) -> Tensor:
    """Number each policy token by the step it leads to; -1 on all other tokens. [B, T]."""
    ends = (step_end & action_mask).long()
    before = ends.cumsum(1) - ends
    return torch.where(action_mask, before, -1)


def starts_segment(segment: Tensor, action_mask: Tensor) -> Tensor:
    """Mark the first policy token of each segment, skipping what lies between. [B, T] bool."""
    # The largest segment seen so far among policy tokens; -1 elsewhere never raises it.
    seen = segment.cummax(1).values
    earlier = torch.cat([torch.full_like(seen[:, :1], -1), seen[:, :-1]], dim=1)
    return action_mask & (segment > earlier)


def per_segment(x: Tensor, segment: Tensor) -> Tensor:
    """Sum `x` over the tokens of each segment. [B, T] -> [B, K]."""
    count = int(segment.max().item()) + 1 if segment.numel() else 0
    out = x.new_zeros(len(x), max(count, 1))  # [B, K]
    return out.scatter_add(1, segment.clamp(min=0), masked(x, segment >= 0))


def group_outcome(rewards: Tensor, action_mask: Tensor, group_index: Tensor) -> Credit:
    """Outcome-supervised GRPO (arXiv:2402.03300, section 4.1.2).

    The return of each sample, centred and divided by its group's standard deviation (n - 1), is the
    advantage of all its policy tokens.
    """
    returns = masked(rewards, action_mask).double().sum(1)  # [B]
    advantages = standardise(returns, group_index).to(rewards.dtype)  # [B]
    return Credit(masked(advantages[:, None].expand_as(rewards), action_mask))


def group_process(
    rewards: Tensor, action_mask: Tensor, step_end: Tensor, group_index: Tensor
) -> Credit:
    """Process-supervised GRPO exactly as published (arXiv:2402.03300, section 4.1.3).

    The rewards of all steps of all samples of a group are pooled and standardised; a token's
    advantage is the sum over the steps that end at or after it. A step that pays 0 is in the pool.
    """
    ends = step_end & action_mask
    pooled = rewards[ends]  # [N]
    owner = group_index[:, None].expand_as(ends)[ends]  # [N]
    normalised = torch.zeros_like(rewards)  # [B, T]
    normalised[ends] = standardise(pooled, owner).to(rewards.dtype)
    to_come = normalised.flip(1).cumsum(1).flip(1)  # [B, T]
    return Credit(masked(to_come, action_mask))


def standardise(x: Tensor, owner: Tensor) -> Tensor:
    """Centre `x` [N] within each owner and divide by the owner's standard deviation (n - 1).

    Computed in double precision; 0 for an owner whose values do not differ (see `FLAT`).
    """
    if not x.numel():
        return x
    x = x.double()
    groups = int(owner.max().item()) + 1
    count = torch.bincount(owner, minlength=groups).to(x.dtype)  # [groups]
    mean = x.new_zeros(groups).index_add(0, owner, x) / count.clamp(min=1)
    centred = x - mean[owner]
    variance = x.new_zeros(groups).index_add(0, owner, centred**2) / (count - 1).clamp(min=1)
    largest = x.new_zeros(groups).scatter_reduce(0, owner, x.abs(), "amax")  # [groups]
    flat = variance.sqrt() <= FLAT * largest
    std = torch.where(flat, torch.inf, variance.sqrt())
    return centred / std[owner]


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """Centre and scale `x` over the masked tokens of the whole batch; 0 elsewhere. [B, T]."""
    kept = x[mask]
    out = torch.zeros_like(x)  # [B, T]
    out[mask] = standardise(kept, torch.zeros_like(kept, dtype=torch.int64)).to(x.dtype)
    return out
