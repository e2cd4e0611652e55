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
    step_end: Tensor
    """[B, T] bool, True on the last policy token of a judged step."""
    rewards: Tensor
    """[B, T], 0 outside `step_end`."""
    old_logprobs: Tensor
    """[B, T] behaviour policy's log-probabilities, meaningless where not an action."""
    group_index: Tensor
    """[B] int64, numbered from 0."""
    values: Tensor | None = None
    """[B, T] value of the state before token t, where a critic is kept."""
    ref_logprobs: Tensor | None = None
    """[B, T] reference policy's log-probabilities, where a KL term needs them."""

    def rows(self, index: Tensor) -> "Batch":
        """Return the named rows, with every tensor cut alike."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[index] for k, v in parts.items() if v is not None})

    def __len__(self) -> int:
        """Return B."""
        return len(self.input_ids)


def pack(groups: Sequence[Group], *, pad_id: int, min_members: int = 1) -> Batch:
    """Pack the live trajectories of every group that kept at least `min_members` of them.

    Raises TrainingError where no such group is left, or where a reward lies outside a step's end.
    """
    rows = [(i, t) for i, g in enumerate(kept_groups(groups, min_members)) for t in live(g)]
    if not rows:
        raise TrainingError(
            f"no group of {len(groups)} kept {min_members} live trajectories: nothing to train on"
        )
    for _, trajectory in rows:
        _check(trajectory)
    trajectories = [t for _, t in rows]
    width = max(len(t.token_ids) for t in trajectories)

    def padded(name: str, dtype: torch.dtype, fill: float = 0) -> Tensor:
        out = torch.full((len(trajectories), width), fill, dtype=dtype)  # [B, T]
        for row, trajectory in enumerate(trajectories):
            values: np.ndarray[Any, Any] = getattr(trajectory, name)
            out[row, : len(values)] = torch.as_tensor(values, dtype=dtype)
        return out

    lengths = torch.tensor([len(t.token_ids) for t in trajectories])  # [B]
    return Batch(
        input_ids=padded("token_ids", torch.int64, pad_id),
        attention_mask=torch.arange(width) < lengths[:, None],
        action_mask=padded("action_mask", torch.bool),
        step_end=padded("step_end", torch.bool),
        rewards=padded("rewards", torch.float32),
        old_logprobs=padded("logprobs", torch.float32),
        group_index=torch.tensor([i for i, _ in rows]),
    )


def live(group: Group) -> list[Trajectory]:
    """Return the trajectories of a group that ended without an infrastructure error."""
    return [t for t in group.trajectories if t.live]


def kept_groups(groups: Sequence[Group], min_members: int) -> list[Group]:
    """Return the groups with at least `min_members` live trajectories."""
    return [g for g in groups if len(live(g)) >= min_members]


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
