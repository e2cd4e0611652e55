"""Advantages from a group of samples of one task, which is the baseline.

`group_index` [B] numbers the task of each row. Statistics are double precision; a group whose
values do not differ (`FLAT`), one left with a single row included, has advantage 0.
"""

from typing import Literal

import torch
from torch import Tensor

from stepcredit.algos.credit import (
    Credit,
    centre,
    masked,
    moments,
    one_owner,
    per_segment,
    segment_ids,
    standardise,
    starts_segment,
    to_tokens,
)
from stepcredit.algos.gae import returns_to_go


def group_outcome(
    rewards: Tensor,
    action_mask: Tensor,
    group_index: Tensor,
    *,
    scale_rewards: Literal["group", "batch", "none"] = "group",
) -> Credit:
    """Outcome-supervised GRPO (arXiv:2402.03300, section 4.1.2).

    All policy tokens of a row get its return less its group's mean, divided by the standard
    deviation (n - 1) of the group's returns, of the whole batch's, or by nothing, as in Dr. GRPO
    (arXiv:2503.20783) and DPPO. Splitting a step changes nothing.
    """
    returns, size = _row_returns(rewards, action_mask)  # [B]
    advantages = centre(returns, group_index, size)  # [B]
    if scale_rewards != "none":
        pool = group_index if scale_rewards == "group" else one_owner(returns)
        advantages = advantages / moments(returns, pool, size)[1]
    return _broadcast(advantages, rewards, action_mask)


def leave_one_out(rewards: Tensor, action_mask: Tensor, group_index: Tensor) -> Credit:
    """RLOO (arXiv:2402.14740, eq. 8): each row's return less the mean of the others in its group.

    Splitting a step changes nothing.
    """
    count = torch.bincount(group_index)[group_index].double()  # [B]
    returns, size = _row_returns(rewards, action_mask)  # [B]
    centred = centre(returns, group_index, size)  # [B]
    return _broadcast(centred * count / (count - 1).clamp(min=1), rewards, action_mask)


def reinforce_plus_plus(rewards: Tensor, action_mask: Tensor, *, gamma: float) -> Credit:
    """REINFORCE++ (arXiv:2501.03262): the discounted return-to-go of each policy token, no group.

    Its normalisation over the policy tokens of the whole batch is `whiten`.
    """
    return Credit(returns_to_go(rewards, action_mask, gamma=gamma))


def reinforce_plus_plus_baseline(
    rewards: Tensor, action_mask: Tensor, group_index: Tensor
) -> Credit:
    """REINFORCE++-baseline (arXiv:2501.03262): each row's return less its group's mean.

    Its normalisation over the policy tokens of the whole batch is `whiten`.
    """
    return group_outcome(rewards, action_mask, group_index, scale_rewards="none")


# --- one number per judged step ---------------------------------------------------------------
# Tokens after the last judged step have advantage 0 and are in no pool.


def group_process(
    rewards: Tensor, action_mask: Tensor, step_end: Tensor, group_index: Tensor
) -> Credit:
    """Process-supervised GRPO exactly as published (arXiv:2402.03300, section 4.1.3).

    The rewards of all steps of all samples of a group are pooled and standardised; a token's
    advantage is the sum over the steps that end at or after it. A step that pays 0 is in the pool.
    Every further step adds its normalised reward whatever it earned: the advantage depends on how
    many steps follow, and splitting a step changes those of the whole group.
    """
    segment, step_rewards, judged = _steps(rewards, action_mask, step_end)
    owner = group_index[:, None].expand_as(judged)[judged]  # [N]
    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]
    to_come = returns_to_go(normalised, judged, gamma=1.0)  # [B, K]
    return Credit(to_tokens(to_come, segment).to(rewards.dtype))


def process_returns(
    rewards: Tensor,
    action_mask: Tensor,
    step_end: Tensor,
    group_index: Tensor,
    *,
    gamma: float = 1.0,
) -> Credit:
    """Process GRPO on returns: each step's return-to-go, standardised over the group's steps.

    As in GTPO (arXiv:2511.14846); `gamma` counts steps. Terminal rewards credit long and short
    samples alike, which `group_process` does not. The baseline is one number for all steps, so a
    sample with more steps weighs more in it: that biases the choice to go on or to stop, and
    splitting a step changes it.
    """
    segment, step_rewards, judged = _steps(rewards, action_mask, step_end)
    to_come = returns_to_go(step_rewards, judged, gamma=gamma)  # [B, K]
    owner = group_index[:, None].expand_as(judged)[judged]  # [N]
    normalised = _scatter(standardise(to_come[judged], owner), judged)  # [B, K]
    return Credit(to_tokens(normalised, segment).to(rewards.dtype))


def process_positions(
    rewards: Tensor, action_mask: Tensor, step_end: Tensor, group_index: Tensor
) -> Credit:
    """Process GRPO by position: a step competes with the steps of the same number in its group.

    A token's advantage is the sum over the steps that end at or after it. Biased where the policy
    decides when to stop: steps of one number then mean different states, and whoever goes on is
    charged the mean reward of the further steps. Splitting a step shifts the numbers after it.
    """
    segment, step_rewards, judged = _steps(rewards, action_mask, step_end)
    number = torch.arange(judged.shape[1], device=judged.device).expand_as(judged)  # [B, K]
    owner = _owners(group_index, number, judged)  # [N]
    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]
    to_come = returns_to_go(normalised, judged, gamma=1.0)  # [B, K]
    return Credit(to_tokens(to_come, segment).to(rewards.dtype))


# --- one number per turn ------------------------------------------------------------------------


def mt_grpo(
    rewards: Tensor,
    outcomes: Tensor,
    action_mask: Tensor,
    turn_ids: Tensor,
    group_index: Tensor,
    *,
    turn_coef: float = 1.0,
) -> Credit:
    """MT-GRPO (arXiv:2505.11821): the outcome's advantage, plus the turn's in all but the last one.

    `outcomes` [B] are standardised over the group; a turn's reward over the turns of the same
    number in the group that are not their row's last (whose reward the outcome already tells).
    Where in its turn a reward lies does not matter.
    """
    turn, turn_rewards, size, exists = _turns(rewards, action_mask, turn_ids)
    number = torch.arange(exists.shape[1], device=exists.device).expand_as(turn_rewards)  # [B, K]
    before_last = exists & (number < turn.max(1, keepdim=True).values)  # [B, K]
    owner = _owners(group_index, number, before_last)  # [N]
    normalised = standardise(turn_rewards[before_last], owner, size[before_last])  # [N]
    by_turn = _scatter(normalised, before_last)  # [B, K]
    outcome = standardise(outcomes, group_index)[:, None]  # [B, 1]
    advantages = masked(outcome + turn_coef * to_tokens(by_turn, turn), action_mask)  # [B, T]
    return Credit(advantages.to(rewards.dtype))


def gigpo(
    rewards: Tensor,
    action_mask: Tensor,
    turn_ids: Tensor,
    state_index: Tensor,
    group_index: Tensor,
    *,
    gamma: float = 0.95,
    step_coef: float = 1.0,
    scale: Literal["group", "none"] = "group",
) -> Credit:
    """GiGPO (arXiv:2505.10978, eq. 3 to 8): `group_outcome` plus what each turn did in its state.

    A turn's return, discounted by `gamma` per turn, competes with those of the group's turns taken
    in the same state (`state_index` [B, T]); a state met once or unknown (-1) adds 0. `scale`
    divides both parts by their standard deviations (n - 1). Where in its turn a reward lies does
    not matter.
    """
    turn, turn_rewards, size, exists = _turns(rewards, action_mask, turn_ids)
    first = starts_segment(turn, action_mask)  # [B, T]
    state = per_segment(masked(state_index, first), turn)  # [B, K]
    to_come = returns_to_go(turn_rewards, exists, gamma=gamma)  # [B, K]
    size = returns_to_go(size, exists, gamma=gamma)  # [B, K]
    known = exists & (state >= 0)  # [B, K]
    owner = _owners(group_index, state, known)  # [N]
    compare = standardise if scale == "group" else centre
    by_turn = _scatter(compare(to_come[known], owner, size[known]), known)  # [B, K]
    returns, row_size = _row_returns(rewards, action_mask)  # [B]
    episode = compare(returns, group_index, row_size)[:, None]  # [B, 1]
    advantages = masked(episode + step_coef * to_tokens(by_turn, turn), action_mask)  # [B, T]
    return Credit(advantages.to(rewards.dtype))


# --- parts --------------------------------------------------------------------------------------


def _row_returns(rewards: Tensor, action_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's reward in all, and the size of what was added up. [B], [B]."""
    paid = masked(rewards, action_mask).double()  # [B, T]
    return paid.sum(1), paid.abs().sum(1)


def _broadcast(advantages: Tensor, rewards: Tensor, action_mask: Tensor) -> Credit:
    spread = advantages.to(rewards.dtype)[:, None].expand_as(rewards)  # [B, T]
    return Credit(masked(spread, action_mask))


def _steps(rewards: Tensor, action_mask: Tensor, step_end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return segment [B, T], and each step's reward [B, K] and whether it was judged [B, K]."""
    segment = segment_ids(action_mask, step_end)
    judged = per_segment((step_end & action_mask).long(), segment) > 0
    return segment, per_segment(rewards.double(), segment), judged


def _turns(
    rewards: Tensor, action_mask: Tensor, turn_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the turn of each policy token [B, T], and each turn's reward, size, existence [B, K].

    The size is that of the rewards that were added up.
    """
    turn = torch.where(action_mask, turn_ids, -1)
    exists = per_segment(action_mask.long(), turn) > 0
    paid = rewards.double()
    return turn, per_segment(paid, turn), per_segment(paid.abs(), turn), exists


def _owners(group_index: Tensor, label: Tensor, where: Tensor) -> Tensor:
    """Number the pairs (group of the row, label) of the marked cells of [B, K]. [N]."""
    pairs = torch.stack([group_index[:, None].expand_as(label)[where], label[where]], dim=1)
    owner: Tensor = pairs.unique(dim=0, return_inverse=True)[1]
    return owner


def _scatter(x: Tensor, where: Tensor) -> Tensor:
    """Put `x` [N] into the marked cells, 0 elsewhere. [B, K]."""
    out = torch.zeros(where.shape, dtype=x.dtype, device=x.device)
    out[where] = x
    return out
