"""Trajectories to padded tensors: the only place that pads.

Legend: B rows, T positions of the longest row. Position t of every tensor speaks of token t.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepcredit.agents.trajectory import Group, Trajectory
from stepcredit.algos.errors import TrainingError


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The live trajectories of one step, right-padded."""

    input_ids: Tensor
    """[B, T] int64."""
    attention_mask: Tensor
    """[B, T] bool, False on padding."""
    action_mask: Tensor
    """[B, T] bool, True where the policy sampled the token."""
    loss_mask: Tensor
    """[B, T] bool, the policy tokens that are trained on: all, but for masked rows."""
    turn_ids: Tensor
    """[B, T] int64, turn of each token, numbered from 0."""
    step_end: Tensor
    """[B, T] bool, True on the last policy token of a judged step."""
    rewards: Tensor
    """[B, T], 0 outside `step_end`."""
    old_logprobs: Tensor
    """[B, T] behaviour policy's log-probabilities, meaningless where not an action."""
    group_index: Tensor
    """[B] int64, numbered from 0."""
    truncated: Tensor
    """[B] bool, True where a limit that the task does not state ended the episode."""
    outcomes: Tensor
    """[B] graded result, 0 where never graded."""
    state_index: Tensor
    """[B, T] int64, the environment's state in which the token's turn was taken, numbered over the
    batch; equal for equal states of a group, -1 where the environment does not name it."""
    values: Tensor | None = None
    """[B, T] value of the state before token t, where there is a baseline."""
    final_values: Tensor | None = None
    """[B] value of the state after the last token of a truncated row, 0 for all other rows."""
    ref_logprobs: Tensor | None = None
    """[B, T] reference policy's log-probabilities, where a KL term needs them."""
    topk_ids: Tensor | None = None
    """[B, T, K] int64, the behaviour policy's likeliest tokens in the place of token t."""
    topk_logprobs: Tensor | None = None
    """[B, T, K] their log-probabilities."""
    mix_ids: Tensor | None = None
    """[B, T, M] int64, the tokens whose embeddings were mixed into that of token t."""
    mix_weights: Tensor | None = None
    """[B, T, M] their weights; all 0 where the token kept its own embedding."""
    advantages: Tensor | None = None
    """[B, T] what is trained on."""
    weights: Tensor | None = None
    """[B, T] share of each token in the loss of one optimizer step."""
    nll_weights: Tensor | None = None
    """[B, T] share of each token in the likelihood of successful episodes."""

    def rows(self, index: Tensor) -> "Batch":
        """Return the named rows, with every tensor cut alike."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[index] for k, v in parts.items() if v is not None})

    def largest(self) -> Tensor:
        """Return the largest reward or value of a policy token, in size. []."""
        numbers = [self.rewards] if self.values is None else [self.rewards, self.values]
        return torch.stack([x[self.action_mask].abs().max() for x in numbers]).max()

    def __len__(self) -> int:
        """Return B."""
        return len(self.input_ids)


def pack(groups: Sequence[Group], *, pad_id: int) -> Batch:
    """Pack the live trajectories of the groups, row by row in their order.

    Raises TrainingError where there is none, or where a reward lies outside a step's end.
    """
    rows = [(i, t) for i, group in enumerate(groups) for t in live(group)]
    if not rows:
        raise TrainingError(f"no live trajectory in {len(groups)} groups: nothing to train on")
    for _, trajectory in rows:
        _check(trajectory)
    trajectories = [t for _, t in rows]
    lengths = torch.tensor([len(t.token_ids) for t in trajectories])  # [B]
    width = int(lengths.max())

    def padded(name: str, dtype: torch.dtype, fill: float = 0) -> Tensor:
        return _padded([getattr(t, name) for t in trajectories], width, dtype, fill)

    def padded_if_any(name: str, dtype: torch.dtype) -> Tensor | None:
        recorded = getattr(trajectories[0], name) is not None
        return padded(name, dtype) if recorded else None

    action_mask = padded("action_mask", torch.bool)
    return Batch(
        input_ids=padded("token_ids", torch.int64, pad_id),
        attention_mask=torch.arange(width) < lengths[:, None],
        action_mask=action_mask,
        loss_mask=action_mask,
        turn_ids=padded("turn_ids", torch.int64),
        step_end=padded("step_end", torch.bool),
        rewards=padded("rewards", torch.float32),
        old_logprobs=padded("logprobs", torch.float32),
        group_index=torch.tensor([i for i, _ in rows]),
        truncated=torch.tensor([t.truncated for t in trajectories]),
        outcomes=torch.tensor([t.outcome or 0.0 for t in trajectories], dtype=torch.float32),
        state_index=_padded(_numbered_states(rows), width, torch.int64, -1),
        topk_ids=padded_if_any("topk_ids", torch.int64),
        topk_logprobs=padded_if_any("topk_logprobs", torch.float32),
        mix_ids=padded_if_any("mix_ids", torch.int64),
        mix_weights=padded_if_any("mix_weights", torch.float32),
    )


def _padded(
    arrays: Sequence[np.ndarray[Any, Any]], width: int, dtype: torch.dtype, fill: float
) -> Tensor:
    shape = (len(arrays), width, *arrays[0].shape[1:])
    out = torch.full(shape, fill, dtype=dtype)  # [B, T, ...]
    for row, values in enumerate(arrays):
        out[row, : len(values)] = torch.as_tensor(values, dtype=dtype)
    return out


def _numbered_states(rows: Sequence[tuple[int, Trajectory]]) -> list[np.ndarray[Any, Any]]:
    """Number the states of each row's tokens: the same number for the same key of one group."""
    numbers: dict[tuple[int, str], int] = {}
    out = []
    for group, trajectory in rows:
        keys = trajectory.state_keys
        if not keys or len(keys) != len(trajectory.turn_cut):
            out.append(np.full(len(trajectory.token_ids), -1))
            continue
        by_turn = np.array([numbers.setdefault((group, key), len(numbers)) for key in keys])
        # What is read after the last turn belongs to a turn that was never taken.
        turns = np.minimum(trajectory.turn_ids, len(keys) - 1)
        out.append(np.where(trajectory.action_mask, by_turn[turns], -1))
    return out


def live(group: Group) -> list[Trajectory]:
    """Return the trajectories that count: no infrastructure error, every reward a number."""
    return [t for t in group.trajectories if t.live and np.isfinite(t.rewards).all()]


def _check(trajectory: Trajectory) -> None:
    stray = (trajectory.rewards != 0) & ~trajectory.step_end
    if stray.any():
        at = int(np.flatnonzero(stray)[0])
        raise TrainingError(
            f"sample {trajectory.sample_id} of group {trajectory.group_id}: reward "
            f"{trajectory.rewards[at]} at token {at}: must lie on the last policy token of a step"
        )
    if (trajectory.step_end & ~trajectory.action_mask).any():
        raise TrainingError(
            f"sample {trajectory.sample_id} of group {trajectory.group_id}: a step ends on a token "
            "that the policy did not sample"
        )
