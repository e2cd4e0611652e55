"""How far one update may move a token's probability: clipped surrogates.

Every function returns (surrogate, held), both [B, T]. The surrogate already contains the advantage;
`held` marks the tokens where the region binds. A function without a mask keeps each slot to itself:
zero the slots that are no action before the call (`credit.masked`), for the gradient of a NaN is
NaN whatever its weight.
"""

import torch
from torch import Tensor

from stepcredit.algos.credit import masked, per_segment, to_tokens

LOG_LIMIT = 20.0
"""A ratio's logarithm is kept within +-20, so that no ratio overflows."""


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return the ratio of the probabilities, within exp(+-20), constant beyond. [B, T]."""
    return torch.exp((logprobs - old_logprobs).clamp(-LOG_LIMIT, LOG_LIMIT))


def clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped surrogate (arXiv:1707.06347, eq. 7) and where the clip holds. [B, T].

    `dual_clip` (above 1) also bounds the ratio of a token with a negative advantage
    (arXiv:1912.09729). Held are exactly the tokens that the clip leaves without a gradient.
    """
    return _pessimistic(
        ratio(logprobs, old_logprobs),
        advantages,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        dual_clip=dual_clip,
    )


def turn_clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    turn_ids: Tensor,
    *,
    epsilon: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Turn-PPO's surrogate of each token and where its turn's clip holds. [B, T].

    The ratio is the turn's, the product over its tokens of `mask` (arXiv:2512.17008). Each token
    carries it with the gradient of its own log pi: over the tokens of a turn, whose advantages are
    alike, these add up to the gradient of ratio x advantage, counted once. Slots outside the mask
    are 0, whatever stood there.
    """
    gap = masked(logprobs - old_logprobs, mask)
    turn = torch.where(mask, turn_ids, -1)  # [B, T]
    product = to_tokens(per_segment(gap, turn), turn).clamp(-LOG_LIMIT, LOG_LIMIT)  # [B, T]
    turn_ratio = torch.exp(product.detach() + (gap - gap.detach()))  # [B, T]
    return _pessimistic(
        turn_ratio,
        masked(advantages, mask),
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        dual_clip=dual_clip,
    )


def sequence_clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon: float,
    epsilon_high: float,
) -> tuple[Tensor, Tensor]:
    """Return GSPO's surrogate of each token and where the row's clip holds. [B, T].

    The ratio is the row's: exp of the mean of log pi - log pi_old over the tokens of `mask`
    (arXiv:2507.18071, eq. 7). Each token carries it in the token form (eq. 13, 14), which takes
    advantages of each token; where they are the row's and weights are `sequence_mean`, value and
    gradient are those of the sequence form (eq. 5). Slots outside the mask are 0, whatever stood
    there.
    """
    gap = masked(logprobs - old_logprobs, mask)
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    mean = (gap.sum(1, keepdim=True) / lengths).clamp(-LOG_LIMIT, LOG_LIMIT)  # [B, 1]
    row_ratio = torch.exp(mean.detach() + (gap - gap.detach()))  # [B, T]
    return _pessimistic(
        row_ratio, masked(advantages, mask), epsilon=epsilon, epsilon_high=epsilon_high
    )


def cispo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon: float,
    epsilon_high: float,
) -> tuple[Tensor, Tensor]:
    """Return CISPO's surrogate and where the ratio is clipped. [B, T].

    It is stop-gradient(clipped ratio) x advantage x log pi (arXiv:2506.13585, eq. 4, 5): a held
    token weighs more or less than its ratio, and keeps a gradient. `epsilon` of 1 or more: no lower
    bound, as in the paper's runs.
    """
    weight = ratio(logprobs, old_logprobs).detach()
    bounded = weight.clamp(1 - epsilon, 1 + epsilon_high)
    return bounded * advantages * logprobs, bounded != weight


def _pessimistic(
    ratios: Tensor,
    advantages: Tensor,
    *,
    epsilon: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    free = ratios * advantages
    bounded = ratios.clamp(1 - epsilon, 1 + epsilon_high) * advantages
    surrogate, held = torch.minimum(free, bounded), bounded < free
    if dual_clip is None:
        return surrogate, held
    floor = dual_clip * advantages
    below = (advantages < 0) & (surrogate < floor)
    return torch.where(below, floor, surrogate), held | below
