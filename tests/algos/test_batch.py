"""Packing: padding, live rows, groups, and rewards that lie where they may not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepcredit.agents.trajectory import Group, Trajectory
from stepcredit.algos.advantages import Credit
from stepcredit.algos.batch import pack
from stepcredit.algos.trainer import with_credit


def trajectory(
    mask: str, rewards: dict[int, float], *, group: str = "g", **more: object
) -> Trajectory:
    """A trajectory whose steps end where rewards are named; '1' marks a policy token."""
    length = len(mask)
    paid = np.zeros(length)
    ends = np.zeros(length, dtype=bool)
    for at, value in rewards.items():
        paid[at], ends[at] = value, True
    fields: dict[str, object] = {
        "group_id": group,
        "sample_id": 0,
        "env_id": "test/Env-v0",
        "task": 0,
        "split": "train",
        "seed": 0,
        "chance_seed": 0,
        "token_ids": np.arange(1, length + 1, dtype=np.int32),
        "action_mask": np.array([c == "1" for c in mask]),
        "turn_ids": np.zeros(length, dtype=np.int32),
        "step_ids": np.zeros(length, dtype=np.int32),
        "step_end": ends,
        "rewards": paid,
        "env_rewards": paid,
        "logprobs": np.full(length, -1.0, dtype=np.float32),
        "policy_version": np.zeros(length, dtype=np.int32),
        "messages": [],
        "state_keys": [],
        "turn_cut": [],
        "outcome": 1.0,
        "success": True,
        "reward_components": {},
        "terminated": True,
        "truncated": False,
        "stop_reason": "terminated",
        "status": "ok",
        "error": "",
        "sampling": {},
    }
    return Trajectory(**(fields | more))  # type: ignore[arg-type]  # a literal table of fields


def test_rows_are_padded_on_the_right() -> None:
    batch = pack([Group("g", (trajectory("0110", {2: 1.0}), trajectory("01", {1: 0.0})))], pad_id=9)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4], [1, 2, 9, 9]]
    assert batch.attention_mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.action_mask.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert batch.rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert batch.step_end.tolist() == [[False, False, True, False], [False, True, False, False]]


def test_errors_leave_and_small_groups_are_dropped() -> None:
    good, bad = trajectory("01", {1: 1.0}), trajectory("01", {1: 0.0}, status="error")
    groups = [Group("a", (good, bad)), Group("b", (good, good, bad)), Group("c", (bad, bad))]
    assert pack(groups, pad_id=0, min_members=2).group_index.tolist() == [0, 0]
    assert pack(groups, pad_id=0).group_index.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="no group of 1 kept 2 live trajectories"):
        pack(groups[:1], pad_id=0, min_members=2)


def test_a_reward_outside_a_step_end_is_refused() -> None:
    stray = trajectory("0110", {2: 1.0})
    stray.rewards[1] = 0.5
    with pytest.raises(ValueError, match=r"reward 0\.5 at token 1"):
        pack([Group("g", (stray,))], pad_id=0)
    on_observation = trajectory("0110", {3: 1.0})
    with pytest.raises(ValueError, match="did not sample"):
        pack([Group("g", (on_observation,))], pad_id=0)


def test_rows_cuts_every_tensor() -> None:
    batch = pack([Group("g", (trajectory("011", {2: 1.0}), trajectory("011", {1: 2.0})))], pad_id=0)
    batch = replace(batch, values=torch.arange(6.0).view(2, 3))
    part = batch.rows(torch.tensor([1]))
    assert part.values is not None
    assert part.values.tolist() == [[3, 4, 5]] and part.rewards.tolist() == [[0, 2, 0]]
    assert part.ref_logprobs is None and len(part) == 1


def test_credit_returns_to_its_own_trajectory() -> None:
    good, bad = trajectory("011", {2: 1.0}), trajectory("01", {1: 0.0}, status="error")
    short = trajectory("01", {1: 1.0})
    groups = [Group("a", (bad, good)), Group("b", (good, bad, short))]
    batch = pack(groups, pad_id=0, min_members=2)
    credit = Credit(torch.tensor([[0.0, 1, 2], [0, 3, 0]]))
    out = with_credit(groups, batch, credit, min_members=2)
    assert [t.advantages is None for g in out for t in g.trajectories] == [
        True,
        True,
        False,
        True,
        False,
    ]
    first, last = out[1].trajectories[0].advantages, out[1].trajectories[2].advantages
    assert first is not None and last is not None
    assert first.tolist() == [0, 1, 2] and last.tolist() == [0, 3]
