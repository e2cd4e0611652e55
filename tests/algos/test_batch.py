"""Packing: padding, live rows, groups, and rewards that lie where they may not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepcredit.agents.trajectory import Group, Trajectory
from stepcredit.algos.batch import pack
from stepcredit.algos.credit import Credit
from stepcredit.algos.groups import flat, kept_groups, select
from stepcredit.algos.presets import build
from stepcredit.algos.trainer import merged, with_credit


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
    assert [g.group_id for g in kept_groups(groups, 2)] == ["b"]
    assert pack(groups, pad_id=0).group_index.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="no live trajectory in 1 groups"):
        pack(groups[2:], pad_id=0)


def test_a_reward_that_is_no_number_excludes_its_sample_alone() -> None:
    unscored = trajectory("01", {1: float("nan")})
    group = Group("a", (trajectory("01", {1: 1.0}), unscored, trajectory("01", {1: 0.0})))
    assert pack([group], pad_id=0).rewards.tolist() == [[0, 1], [0, 0]]
    assert not flat(group)


def test_a_group_whose_rewards_cancel_is_flat() -> None:
    # .1 + .2 - .3 is 6e-17, not 0.
    paid = [[0.1, 0.2, -0.3], [0.0, 0.0, 0.0]]
    assert flat(Group("g", tuple(trajectory("0111", dict(enumerate(p, start=1))) for p in paid)))


def test_flat_groups_are_left_out_where_the_algorithm_says_so() -> None:
    lost = trajectory("01", {1: 5.0}, status="error")
    same = Group("a", (trajectory("01", {1: 0.7}), lost, trajectory("01", {1: 0.7 + 1e-9})))
    varied = Group("b", (trajectory("01", {1: 1.0}), trajectory("01", {1: 0.0})))
    assert [g.group_id for g in select([same, varied], build("grpo", {}))] == ["a", "b"]
    drop = build("grpo", {"zero_variance": "drop"})
    assert [g.group_id for g in select([same, varied], drop)] == ["b"]


def test_equal_states_of_one_group_share_a_number() -> None:
    first = trajectory("0110", {2: 1.0}, turn_cut=[False, False], state_keys=["s", "t"])
    first.turn_ids[:] = [0, 0, 1, 2]
    second = trajectory("011", {2: 0.0}, turn_cut=[False, False], state_keys=["t", "u"])
    second.turn_ids[:] = [0, 0, 1]
    other = trajectory("01", {1: 1.0}, turn_cut=[False], state_keys=["s"])
    silent = trajectory("01", {1: 1.0}, turn_cut=[False])
    batch = pack([Group("a", (first, second)), Group("b", (other, silent))], pad_id=0)
    assert batch.state_index.tolist() == [
        [-1, 0, 1, -1],
        [-1, 1, 2, -1],
        [-1, 3, -1, -1],
        [-1, -1, -1, -1],
    ]


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
    learned = kept_groups(groups, 2)
    batch = pack(learned, pad_id=0)
    credit = Credit(torch.tensor([[0.0, 1, 2], [0, 3, 0]]))
    out = merged(groups, with_credit(learned, batch, credit))
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
