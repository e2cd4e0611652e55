"""Estimators with a group as the baseline and one number per row, or per turn."""

import math
from dataclasses import replace

import pytest
import torch

from stepcredit.algos.credit import whiten
from stepcredit.algos.group import (
    gigpo,
    group_outcome,
    leave_one_out,
    mt_grpo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
)
from tests.algos import reference
from tests.algos.estimators import ALL, GROUP, SEEDS, assert_agrees, listed, marks, numbers, rows

HALF = math.sqrt(0.5)
PER_STEP = {"group_process", "process_returns", "process_positions"}
"""Compare steps one by one, so that nothing has cancelled yet."""

# --- one number per row -----------------------------------------------------------------------


def test_group_outcome_by_hand() -> None:
    # Returns 1, 0, 0, 1 and 2, 4: means .5 and 3, standard deviations (n-1) .57735 and 1.41421.
    rewards = rows([0, 1], [0, 0], [0, 0], [1, 0], [2, 0], [0, 4])
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    mask = marks("11", "11", "01", "10", "11", "01")
    got = group_outcome(rewards, mask, group).advantages
    a, b = 0.5 / math.sqrt(1 / 3), 1 / math.sqrt(2)
    expected = rows([a, a], [-a, -a], [0, -a], [a, 0], [-b, -b], [0, b])
    assert torch.allclose(got, expected, atol=1e-12)


def test_group_outcome_scales_by_hand() -> None:
    # Returns 0, 2 and 5, 7 and 1 alone: less their group's mean -1, 1, -1, 1 and 0. Of all five:
    # mean 3, squares 9 + 1 + 4 + 16 + 4 = 34, over 4.
    rewards = rows([0], [2], [5], [7], [1])
    group, mask = torch.tensor([0, 0, 1, 1, 2]), torch.ones(5, 1, dtype=torch.bool)
    plain = group_outcome(rewards, mask, group, scale_rewards="none").advantages
    assert listed(plain[:, 0]) == [-1, 1, -1, 1, 0]
    batch = group_outcome(rewards, mask, group, scale_rewards="batch").advantages
    assert listed(batch[:, 0]) == pytest.approx([x / math.sqrt(8.5) for x in [-1, 1, -1, 1, 0]])


def test_leave_one_out_by_hand() -> None:
    # 0, 2, 4: less the mean of the other two, 3, 2, 1. A lone row has no baseline and no say.
    got = leave_one_out(
        rows([0], [2], [4], [9]), marks("1", "1", "1", "1"), torch.tensor([1, 1, 1, 0])
    )
    assert listed(got.advantages[:, 0]) == pytest.approx([-3, 0, 3, 0], abs=1e-12)


def test_leave_one_out_is_grpo_without_std_times_g_over_g_minus_one() -> None:
    for size in (2, 3, 5):
        torch.manual_seed(size)
        rewards = torch.randn(2 * size, 4, dtype=torch.float64)
        mask, group = torch.ones(2 * size, 4, dtype=torch.bool), torch.arange(2 * size) % 2
        plain = group_outcome(rewards, mask, group, scale_rewards="none").advantages
        got = leave_one_out(rewards, mask, group).advantages
        assert torch.allclose(got, plain * size / (size - 1), atol=1e-12)


def test_reinforce_plus_plus_by_hand() -> None:
    # Discounted by .5 per policy token, the observation's slot skipped.
    got = reinforce_plus_plus(rows([1, 7, 2, 4]), marks("1011"), gamma=0.5).advantages
    assert listed(got[0]) == [1 + 0.5 * 2 + 0.25 * 4, 0, 2 + 0.5 * 4, 4]


def test_reinforce_plus_plus_baseline_is_whitened_over_tokens() -> None:
    # Returns 1, 0 and 4, 0 less their groups' means: .5, -.5, 2, -2 on 1, 1, 1 and 2 tokens.
    mask = marks("10", "01", "10", "11")
    credit = reinforce_plus_plus_baseline(
        rows([1, 0], [0, 0], [4, 0], [0, 0]), mask, torch.tensor([0, 0, 1, 1])
    )
    assert torch.equal(credit.advantages, rows([0.5, 0], [0, -0.5], [2, 0], [-2, -2]))
    # Five tokens: mean -.4, squares .81 + .01 + 5.76 + 2 * 2.56 = 11.7, over 4.
    std = math.sqrt(11.7 / 4)
    expected = [0.9 / std, -0.1 / std, 2.4 / std, -1.6 / std, -1.6 / std]
    assert listed(whiten(credit.advantages, mask)[mask]) == pytest.approx(expected, abs=1e-12)


def test_rows_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        for scale in ("group", "batch", "none"):
            got = group_outcome(c.rewards, c.mask, c.group, scale_rewards=scale)
            assert_agrees(got.advantages, reference.group_outcome(c, scale), seed)
        got = leave_one_out(c.rewards, c.mask, c.group)
        assert_agrees(got.advantages, reference.leave_one_out(c), seed)
        got = reinforce_plus_plus_baseline(c.rewards, c.mask, c.group)
        assert_agrees(got.advantages, reference.group_outcome(c, "none"), seed)
        got = reinforce_plus_plus(c.rewards, c.mask, gamma=0.9)
        assert_agrees(got.advantages, reference.reinforce_plus_plus(c, 0.9), seed)


@pytest.mark.parametrize("name", GROUP)
def test_equal_rewards_give_no_advantage(name: str) -> None:
    # .1 + .2 is not .3 in the last digit.
    c = reference.random_case(7)
    shape = (3, 2)
    flat = replace(
        c,
        rewards=rows([0.1 + 0.2, 0], [0.3, 0], [0.3, 0]),
        mask=torch.ones(shape, dtype=torch.bool),
        ends=marks("10", "10", "10"),
        turns=numbers("01", "01", "01"),
        states=numbers("01", "01", "01"),
        group=torch.zeros(3, dtype=torch.int64),
        outcomes=torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64),
    )
    assert (GROUP[name](flat, 0.9, 0.9).advantages == 0).all()


@pytest.mark.parametrize("name", GROUP)
@pytest.mark.parametrize("value", [0.7, 10.1, 3.3e6, -1e-4])
def test_rounding_in_single_precision_is_no_advantage(value: float, name: str) -> None:
    # Sums of equal numbers differ in their last digits; the paper's formula would divide by that.
    rewards = torch.zeros(16, 32)
    rewards[:, -1] = value
    rewards[3, -1] = rewards[3, -1] * (1 + 6e-8)
    last = torch.zeros(16, 32, dtype=torch.bool)
    last[:, -1] = True
    zeros = torch.zeros(16, 32, dtype=torch.int64)
    c = reference.Case(
        rewards=rewards,
        values=rewards,
        mask=torch.ones(16, 32, dtype=torch.bool),
        ends=last,
        turns=zeros,
        states=zeros,
        group=torch.arange(16) // 8,
        final=torch.zeros(16),
        outcomes=rewards[:, -1],
    )
    assert (GROUP[name](c, 0.9, 0.9).advantages == 0).all()


@pytest.mark.parametrize("name", sorted({*GROUP, "group_outcome, batch"} - PER_STEP))
def test_rewards_that_cancel_are_no_advantage(name: str) -> None:
    # .1 + .2 - .3 is -7e-9 in single precision, and nobody earned anything in all.
    rewards = rows([0.1, 0.2, -0.3, 0], [0] * 4, [0.3, -0.3, 0, 0], [0] * 4).float()
    zeros = torch.zeros(4, 4, dtype=torch.int64)
    mask = torch.ones(4, 4, dtype=torch.bool)
    c = reference.Case(
        rewards=rewards,
        values=rewards,
        mask=mask,
        ends=mask,
        turns=torch.tensor([0, 0, 0, 1]).expand(4, 4),
        states=zeros,
        group=zeros[:, 0],
        final=torch.zeros(4),
        outcomes=torch.zeros(4),
    )
    assert (ALL[name](c, 1.0, 1.0).advantages == 0).all()


def test_small_but_real_differences_are_kept() -> None:
    rewards = rows([1000.0], [1000.1])
    got = group_outcome(rewards, marks("1", "1"), torch.tensor([0, 0])).advantages
    assert listed(got[:, 0]) == pytest.approx([-HALF, HALF])


# --- one number per turn ----------------------------------------------------------------------


def test_mt_grpo_by_hand() -> None:
    # Two samples of two turns and one of one turn; turns pay .4 and .2 before the last one.
    # Outcomes 1, 0, .5: deviations +-.5, 0 over std .5. First turns {.4, .2}: +-sqrt(.5). The last
    # turns' rewards (5, 6, 7) are in no pool.
    got = mt_grpo(
        rows([0.4, 9, 5], [0.2, 9, 6], [0, 7, 9]),
        torch.tensor([1, 0, 0.5], dtype=torch.float64),
        marks("101", "101", "110"),
        numbers("011", "011", "001"),
        torch.tensor([0, 0, 0]),
        turn_coef=2.0,
    ).advantages
    expected = rows([1 + 2 * HALF, 0, 1], [-1 - 2 * HALF, 0, -1], [0, 0, 0])
    assert torch.allclose(got, expected, atol=1e-12)


def test_mt_grpo_of_one_turn_is_grpo() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        c = replace(c, turns=torch.zeros_like(c.turns), outcomes=(c.rewards * c.mask).sum(1))
        got = mt_grpo(c.rewards, c.outcomes, c.mask, c.turns, c.group).advantages
        expected = group_outcome(c.rewards, c.mask, c.group).advantages
        assert torch.allclose(got, expected, atol=1e-12)


def test_mt_grpo_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        got = mt_grpo(c.rewards, c.outcomes, c.mask, c.turns, c.group, turn_coef=0.7)
        assert_agrees(got.advantages, reference.mt_grpo(c, 0.7), seed)


def test_gigpo_by_hand() -> None:
    # State 4 is met by both samples' first turns and again by sample 2's last; 5 once; -1 unknown.
    # Turn returns at gamma .5: sample 1: 1 + .5*2 = 2, 2. Sample 2: 0, 0, 0.
    # State 4: {2, 0, 0}: mean 2/3. Episode: returns 3 and 0, mean 1.5.
    rewards = rows([1, 0, 2], [0, 0, 0])
    mask, turns = marks("101", "111"), numbers("011", "012")
    states = torch.tensor([[4, 5, 5], [4, -1, 4]])
    group = torch.tensor([0, 0])
    got = gigpo(rewards, mask, turns, states, group, gamma=0.5, step_coef=3.0, scale="none")
    expected = rows([1.5 + 4, 0, 1.5], [-1.5 - 2, -1.5, -1.5 - 2])
    assert torch.allclose(got.advantages, expected, atol=1e-12)
    # Standard deviations (n - 1): 3 * sqrt(.5) of the returns, sqrt(4/3) of state 4.
    got = gigpo(rewards, mask, turns, states, group, gamma=0.5, step_coef=3.0)
    up, down = 4 / math.sqrt(4 / 3), -2 / math.sqrt(4 / 3)
    expected = rows([HALF + up, 0, HALF], [-HALF + down, -HALF, -HALF + down])
    assert torch.allclose(got.advantages, expected, atol=1e-12)


def test_equal_states_of_two_groups_do_not_meet() -> None:
    # Each group met state 0 once: nothing to compare, although both numbers are 0.
    rewards, turns = rows([1], [0], [5], [3]), numbers("0", "0", "0", "0")
    states = torch.tensor([[0], [1], [0], [1]])
    group = torch.tensor([0, 0, 1, 1])
    mask = torch.ones(4, 1, dtype=torch.bool)
    got = gigpo(rewards, mask, turns, states, group).advantages
    assert torch.equal(got, group_outcome(rewards, mask, group).advantages)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_gigpo_with_unique_states_is_grpo(scale: str) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        # Equal within a turn, different between turns and rows.
        unique = 100 * torch.arange(len(c.mask))[:, None] + c.turns
        for states in (unique, torch.full_like(unique, -1)):
            got = gigpo(c.rewards, c.mask, c.turns, states, c.group, scale=scale).advantages
            plain = group_outcome(c.rewards, c.mask, c.group, scale_rewards=scale).advantages
            assert torch.equal(got, plain)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_gigpo_against_loops(scale: str) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        got = gigpo(
            c.rewards, c.mask, c.turns, c.states, c.group, gamma=0.9, step_coef=0.7, scale=scale
        )
        assert_agrees(got.advantages, reference.gigpo(c, 0.9, 0.7, scale), seed)
