"""Logged numbers against groups made by hand."""

from typing import Any

import pytest
import torch

from stepcredit.agents.trajectory import Group
from stepcredit.algos.batch import pack
from stepcredit.algos.credit import Credit
from stepcredit.algos.metrics import credit_metrics, results, rollout_metrics, statuses
from stepcredit.algos.presets import build
from tests.algos.test_batch import trajectory


def test_results_leave_errors_out_and_count_cut_episodes_as_nothing() -> None:
    cut: dict[str, Any] = {"outcome": None, "success": False, "terminated": False}
    episodes = [
        trajectory("01", {1: 1.0}),
        trajectory("01", {1: 0.0}, truncated=True, stop_reason="token_limit", **cut),
        trajectory("01", {1: 9.0}, status="error", outcome=None, success=None),
    ]
    found = results(episodes)
    assert (found["success"], found["outcome"], found["reward"]) == (0.5, 0.5, 0.5)
    assert results(episodes[2:]) == {}
    assert statuses(episodes) == {
        "status/error": 1,
        "status/terminated": 1,
        "status/token_limit": 1,
    }


def test_groups_and_failures_are_counted() -> None:
    flat = Group("a", (trajectory("01", {1: 0.7}), trajectory("01", {1: 0.7})))
    varied = Group("b", (trajectory("01", {1: 1.0}), trajectory("011", {1: 0.0, 2: 0.0})))
    lost = trajectory("01", {1: 0.0}, status="error", stop_reason="error")
    broken = Group("c", (trajectory("01", {1: 5.0}), lost))
    found = rollout_metrics([flat, varied, broken], build("grpo", {}))
    assert found["groups/dropped"] == 1
    assert found["frac_reward_zero_std"] == 0.5
    assert found["reward_std"] == pytest.approx(0.5 * 0.5**0.5)
    assert found["rollout/status/error"] == 1 and found["rollout/status/terminated"] == 5
    assert found["reward/step/0/mean"] == pytest.approx((0.7 + 0.7 + 1 + 0 + 5) / 5)
    assert found["reward/step/1/mean"] == 0
    assert found["completions/mean_length"] == pytest.approx(6 / 5)


def test_a_share_of_no_groups_is_not_reported() -> None:
    alone = [Group("a", (trajectory("01", {1: 1.0}),))]
    assert "frac_reward_zero_std" not in rollout_metrics(alone, build("ppo", {}))
    assert "frac_reward_zero_std" not in rollout_metrics(alone, build("grpo", {}))


def test_turns_cut_by_the_token_limit_are_clipped_completions() -> None:
    whole = trajectory("01", {1: 1.0}, turn_cut=[False, False])
    cut = trajectory("01", {1: 1.0}, turn_cut=[False, True])
    found = rollout_metrics([Group("a", (whole, cut))], build("ppo", {}))
    assert found["completions/clipped_ratio"] == 0.5


def test_credit_is_read_at_policy_tokens() -> None:
    batch = pack([Group("g", (trajectory("0111", {3: 1.0}),))], pad_id=0)
    found = credit_metrics(batch, Credit(torch.tensor([[9.0, 2.0, 0.0, -1.0]])))
    assert found["credit/frac_tokens_nonzero"] == pytest.approx(2 / 3)
    assert found["credit/abs_mean"] == pytest.approx(1)
