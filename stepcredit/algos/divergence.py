"""Trust regions by divergence: how far a whole distribution moved, not one token's ratio.

The anchor is the rollout policy mu (`old_logprobs`), never a recomputed start-of-update policy.
Divergences carry no gradient.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from stepcredit.algos.credit import masked, per_segment, starts_segment
from stepcredit.algos.trust import ratio


@torch.no_grad()
def binary_tv(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return |mu(a) - pi(a)|: total variation of "this token or not" (arXiv:2602.04879). [B, T]."""
    return (old_logprobs.exp() - logprobs.exp()).abs()


@torch.no_grad()
def binary_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return KL(Bern(mu(a)) || Bern(pi(a))) (arXiv:2602.04879). [B, T]."""
    rest = -torch.expm1(logprobs)  # [B, T] pi of every other token
    old_rest = -torch.expm1(old_logprobs)
    return _kl_terms(old_logprobs.exp(), old_logprobs, logprobs) + _kl_rest(old_rest, rest)


@torch.no_grad()
def topk_tv(
    logprobs: Tensor,
    old_logprobs: Tensor,
    topk_logprobs: Tensor,
    old_topk_logprobs: Tensor,
    topk_ids: Tensor,
    token_ids: Tensor,
) -> Tensor:
    """Return the total variation over Top-K(mu), the sampled token and "other". [B, T].

    [B, T]: `logprobs`, `old_logprobs`, `token_ids`. [B, T, K]: pi's and mu's log-probabilities of
    mu's K likeliest tokens `topk_ids`. The sampled token counts once (arXiv:2602.04879).
    """
    new = _support(logprobs, topk_logprobs, topk_ids, token_ids).exp()  # [B, T, K+1]
    old = _support(old_logprobs, old_topk_logprobs, topk_ids, token_ids).exp()
    moved = (old - new).abs().sum(-1)
    return 0.5 * (moved + (_rest(old) - _rest(new)).abs())


@torch.no_grad()
def topk_kl(
    logprobs: Tensor,
    old_logprobs: Tensor,
    topk_logprobs: Tensor,
    old_topk_logprobs: Tensor,
    topk_ids: Tensor,
    token_ids: Tensor,
) -> Tensor:
    """Return KL(mu || pi) over the support of `topk_tv`; arguments as there. [B, T]."""
    new = _support(logprobs, topk_logprobs, topk_ids, token_ids)  # [B, T, K+1]
    old = _support(old_logprobs, old_topk_logprobs, topk_ids, token_ids)
    named = _kl_terms(old.exp(), old, new).sum(-1)
    return named + _kl_rest(_rest(old.exp()), _rest(new.exp()))


def dppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    divergence: Tensor,
    *,
    delta: float,
    ratio_cap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return DPPO's surrogate and the tokens it masks (arXiv:2602.04879). [B, T].

    A token is held, and is then 0, where its update leads further away from mu and its divergence
    exceeds `delta`. The others are ratio x advantage; `ratio_cap` bounds the ratio that the
    gradient of log pi is weighed by, and a capped token keeps its gradient.
    """
    held = _leaving(logprobs, old_logprobs, advantages) & (divergence > delta)
    return _gated(logprobs, old_logprobs, advantages, held, ratio_cap), held


def cppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    divergence: Tensor,
    mask: Tensor,
    turn_ids: Tensor,
    *,
    delta: float,
    budget: float | Tensor,
    w_min: float = 0.8,
    scope: Literal["trajectory", "turn"] = "trajectory",
) -> tuple[Tensor, Tensor]:
    """Return CPPO's surrogate and the tokens it masks (arXiv:2606.10968). [B, T].

    Position weights w fall from 1 to `w_min`. A token is held, and is then 0, where its update
    leads further away from mu and w D exceeds min(delta, delta + budget x W - S), with W and S the
    sums of w and w D over the tokens before it. Positions and sums run over the policy tokens
    (`mask`) of the row, or of each turn alone; masked tokens count in S. `budget` is one number or
    one for each row [B, 1]; an infinite one is none. Slots outside the mask are 0, whatever stood
    there.
    """
    logprobs, old_logprobs, advantages, divergence = (
        masked(x, mask) for x in (logprobs, old_logprobs, advantages, divergence)
    )
    segment = torch.where(mask, turn_ids if scope == "turn" else 0, -1)  # [B, T]
    ones = mask.to(divergence.dtype)
    position = _before(ones, segment, mask)  # [B, T] t - 1
    lengths = per_segment(ones, segment).gather(1, segment.clamp(min=0))  # [B, T] T
    weights = ones * (1 - (1 - w_min) * position / (lengths - 1).clamp(min=1))
    drift = weights * divergence
    prior, spent = _before(weights, segment, mask), _before(drift, segment, mask)
    # No prior token, no budget: infinity times 0 is not a number.
    grown = torch.where(prior > 0, budget * prior, 0)
    allowed = (delta + grown - spent).clamp(max=delta)
    held = _leaving(logprobs, old_logprobs, advantages) & (drift > allowed)
    return _gated(logprobs, old_logprobs, advantages, held, None), held


@torch.no_grad()
def own_budget(divergence: Tensor, mask: Tensor) -> Tensor:
    """Return CPPO's budget from each row's own divergences, for total variation. [B, 1].

    The 90th percentile over the policy tokens (`mask`), kept within [.02, .04]: arXiv:2606.10968,
    for base models.
    """
    counted = divergence.masked_fill(~mask, torch.nan)
    highest = torch.nanquantile(counted, 0.9, dim=1, keepdim=True)  # [B, 1]
    return highest.nan_to_num(0.0).clamp(0.02, 0.04)


def _leaving(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Mark the tokens that an update would push further away from mu. [B, T] bool."""
    return advantages * (logprobs - old_logprobs).detach() > 0


def _gated(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    held: Tensor,
    ratio_cap: float | None,
) -> Tensor:
    weight = ratio(logprobs, old_logprobs).detach()
    if ratio_cap is not None:
        weight = weight.clamp(max=ratio_cap)
    # Value: weight x advantage. Gradient: the same times that of log pi, capped or not.
    return (weight * advantages * (1 + (logprobs - logprobs.detach()))).masked_fill(held, 0.0)


def _before(x: Tensor, segment: Tensor, mask: Tensor) -> Tensor:
    """Sum `x`, 0 outside the mask, over the earlier tokens of each token's segment. [B, T]."""
    running = nn.functional.pad(x.cumsum(1)[:, :-1], (1, 0))  # [B, T]
    place = torch.arange(x.shape[1], device=x.device)  # [T]
    first = torch.where(starts_segment(segment, mask), place, 0).cummax(1).values  # [B, T]
    return running - running.gather(1, first)


def _support(chosen: Tensor, topk_logprobs: Tensor, topk_ids: Tensor, token_ids: Tensor) -> Tensor:
    """Append the sampled token to the top K, with no mass where it is one of them. [B, T, K+1]."""
    inside = (topk_ids == token_ids[..., None]).any(-1)  # [B, T]
    extra = chosen.masked_fill(inside, -torch.inf)
    return torch.cat([topk_logprobs, extra[..., None]], dim=-1)


def _rest(named: Tensor) -> Tensor:
    return (1 - named.sum(-1)).clamp(min=0)


def _kl_terms(old: Tensor, old_log: Tensor, new_log: Tensor) -> Tensor:
    return torch.where(old > 0, old * (old_log - new_log), 0)


def _kl_rest(old: Tensor, new: Tensor) -> Tensor:
    """Return old x log(old/new): a remainder below the resolution of 1 - p counts as that."""
    least = torch.finfo(old.dtype).eps
    return old * (old.clamp(min=least) / new.clamp(min=least)).log()
