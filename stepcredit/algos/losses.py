"""Advantages to a loss: trust region, token weights, KL and value loss, as pure functions.

`loss = -sum(weights * surrogate) + beta * sum(weights * kl)`, where the weights are made once for
all rows of an optimizer step, before any micro-batching.
"""

import torch
from torch import Tensor

from stepcredit.algos.advantages import masked


def clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon: float,
    epsilon_high: float,
) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped surrogate (arXiv:1707.06347, eq. 7) and where the clip holds. [B, T]."""
    ratio = torch.exp(logprobs - old_logprobs)
    bounded = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    free, held = ratio * advantages, bounded * advantages
    return torch.minimum(free, held), held < free


def sequence_mean(action_mask: Tensor) -> Tensor:
    """Weigh each row by 1/B and its policy tokens by 1/|o| (arXiv:2402.03300, eq. 3). [B, T]."""
    lengths = action_mask.sum(1, keepdim=True).clamp(min=1)
    return action_mask / (lengths * len(action_mask))


def token_mean(action_mask: Tensor) -> Tensor:
    """Weigh every policy token alike, by 1/(policy tokens of the optimizer step). [B, T]."""
    return action_mask / action_mask.sum().clamp(min=1)


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return log pi - log pi_ref of the sampled token: unbiased for the KL, may be negative."""
    return logprobs - ref_logprobs


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return pi_ref/pi - log(pi_ref/pi) - 1 (arXiv:2402.03300, eq. 4): never negative. [B, T]."""
    gap = ref_logprobs - logprobs
    return torch.exp(gap) - gap - 1


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    value_mask: Tensor,
    *,
    cliprange_value: float | None,
) -> Tensor:
    """Return half the squared error at each value token, clipped around the old value. [B, T]."""
    values, old_values, returns = (masked(x, value_mask) for x in (values, old_values, returns))
    error = (values - returns) ** 2
    if cliprange_value is not None:
        near = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
        error = torch.maximum(error, (near - returns) ** 2)
    return 0.5 * error
