"""Advantages from a value baseline: generalised advantage estimation over tokens, steps and turns.

`values[b, t]` is the value of the state before token t. `final_values` [B] is the value of the
state after a row's last policy token: 0 where the episode ended there (the default), the critic's
reading where it was cut short.
"""

from dataclasses import replace

import torch
from torch import Tensor

from stepcredit.algos.credit import (
    Credit,
    centre,
    ends_segment,
    explained_variance,
    masked,
    one_owner,
    per_segment,
    segment_ids,
    starts_segment,
    to_tokens,
)


def token_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None = None,
    lam_value: float | None = None,
) -> Credit:
    """Generalised advantage estimation over policy tokens (arXiv:1506.02438, eq. 16).

    `lam` is one number or one per row [B]. `lam_value`, where given, is the lambda of the returns
    that the critic learns: decoupled GAE (arXiv:2503.01491, section 4.2).
    """
    decay = gamma * torch.as_tensor(lam, dtype=rewards.dtype, device=rewards.device)  # [] or [B]
    advantages = torch.zeros_like(rewards)  # [B, T]
    next_value = torch.zeros_like(rewards[:, 0]) if final_values is None else final_values  # [B]
    running = torch.zeros_like(rewards[:, 0])  # [B]
    for t in reversed(range(rewards.shape[1])):
        here = action_mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(here, delta + decay * running, running)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = masked(running, here)
    credit = Credit(advantages, masked(advantages + values, action_mask), action_mask)
    if lam_value is None:
        return credit
    learned = token_gae(
        rewards, values, action_mask, gamma=gamma, lam=lam_value, final_values=final_values
    )
    return replace(credit, returns=learned.returns)


def returns_to_go(
    rewards: Tensor, mask: Tensor, *, gamma: float, final_values: Tensor | None = None
) -> Tensor:
    """Sum the discounted rewards from each masked place on; 0 elsewhere. [B, T]."""
    nothing = torch.zeros_like(rewards)
    return token_gae(
        rewards, nothing, mask, gamma=gamma, lam=1.0, final_values=final_values
    ).advantages


def length_adaptive_lam(action_mask: Tensor, alpha: float = 0.05) -> Tensor:
    """Return 1 - 1 / (alpha x policy tokens) of each row, held in [0, 1] (arXiv:2504.05118). [B].

    The sum of the weights lambda^t over a row is then `alpha` x its length.
    """
    return (1 - 1 / (alpha * action_mask.sum(1).double())).clamp(0, 1)


def step_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    step_end: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None = None,
) -> Credit:
    """Generalised advantage estimation over steps: one baseline and one advantage per step.

    A step runs from the policy token after the previous step's end to its own end, so that unjudged
    tokens belong to the step they lead to; those after the last end are a step of their own. The
    value is read at the step's first policy token, and all its policy tokens share the advantage.
    `gamma` and `lam` count steps. Splitting a step gives its second half a baseline of its own.
    """
    segment = segment_ids(action_mask, step_end)  # [B, T]
    return _segment_gae(
        rewards, values, action_mask, segment, gamma=gamma, lam=lam, final_values=final_values
    )


def turn_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    turn_ids: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None = None,
) -> Credit:
    """Generalised advantage estimation with a turn as the action (Turn-PPO, arXiv:2512.17008).

    As `step_gae`, over the turns of `turn_ids` (which never falls along a row): a turn earns the
    sum of its rewards, so that where in the turn they lie does not matter.
    """
    segment = torch.where(action_mask, turn_ids, -1)  # [B, T]
    return _segment_gae(
        rewards, values, action_mask, segment, gamma=gamma, lam=lam, final_values=final_values
    )


def _segment_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    segment: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None,
) -> Credit:
    first = starts_segment(segment, action_mask)  # [B, T]
    by_segment = token_gae(
        per_segment(rewards, segment),
        per_segment(masked(values, first), segment),
        per_segment(first.long(), segment) > 0,
        gamma=gamma,
        lam=lam,
        final_values=final_values,
    )  # [B, K]
    assert by_segment.returns is not None
    returns = masked(to_tokens(by_segment.returns, segment), first)  # [B, T]
    return Credit(to_tokens(by_segment.advantages, segment), returns, first)


def bilevel_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    turn_ids: Tensor,
    *,
    gamma: float,
    lam: float,
    gamma_turn: float,
    lam_turn: float,
    final_values: Tensor | None = None,
) -> Credit:
    """Bi-level GAE (VAGEN, arXiv:2510.16907): over turns, then over tokens within each turn.

    The turn pass goes from one turn's last policy token to the next one's, reading the value there;
    its advantage replaces that token's own, and the token pass restarts from it in every turn. What
    a turn pays before its last token (a step inside it, KL in the reward) counts, one turn earlier,
    as part of what the turn was worth. Equals `token_gae` where all four numbers are 1.
    """
    turn = torch.where(action_mask, turn_ids, -1)  # [B, T]
    last = ends_segment(turn, action_mask)  # [B, T]
    inside = per_segment(masked(rewards, ~last), turn)  # [B, K]
    by_turn = token_gae(
        per_segment(rewards, turn),
        inside + per_segment(masked(values, last), turn),
        per_segment(last.long(), turn) > 0,
        gamma=gamma_turn,
        lam=lam_turn,
        final_values=final_values,
    ).advantages  # [B, K]
    injected = to_tokens(by_turn, turn)  # [B, T]
    advantages = torch.zeros_like(rewards)  # [B, T]
    next_value = torch.zeros_like(rewards[:, 0])  # [B]
    running = torch.zeros_like(next_value)  # [B]
    for t in reversed(range(rewards.shape[1])):
        here = action_mask[:, t]
        within = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * running
        running = torch.where(here, torch.where(last[:, t], injected[:, t], within), running)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = masked(running, here)
    return Credit(advantages, masked(advantages + values, action_mask), action_mask)


def evpo(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None = None,
) -> Credit:
    """Use the critic only while it explains the returns (EVPO, arXiv:2604.19485).

    Where the explained variance of the batch's values against its discounted returns-to-go, over
    all policy tokens, is positive: `token_gae`. Otherwise the return-to-go less its mean over the
    batch's policy tokens. The critic learns the same returns either way.
    """
    credit = token_gae(
        rewards, values, action_mask, gamma=gamma, lam=lam, final_values=final_values
    )
    to_go = returns_to_go(rewards, action_mask, gamma=gamma, final_values=final_values)  # [B, T]
    kept = to_go[action_mask]  # [N]
    explained = explained_variance(values[action_mask], kept)
    gate = {"critic/gate": float(explained > 0), "critic/explained_variance_to_go": explained}
    if explained > 0:
        return replace(credit, found=gate)
    advantages = torch.zeros_like(rewards)  # [B, T]
    advantages[action_mask] = centre(kept, one_owner(kept)).to(rewards.dtype)
    return replace(credit, advantages=advantages, found=gate)
