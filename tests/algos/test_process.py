"""GRPO with step rewards: as published, on returns, by position; and its length artefact."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stepcredit.algos.credit import Credit
from stepcredit.algos.group import (
    group_outcome,
    group_process,
    process_positions,
    process_returns,
)
from tests.algos import reference
from tests.algos.estimators import SEEDS, assert_agrees, listed, marks, rows

UP, DOWN = 1 / math.sqrt(3), -2 / math.sqrt(3)


def test_group_process_by_hand() -> None:
    # Sample 1: steps pay 1, 0 (the second is a step although it pays 0), an observation between,
    # an unjudged token before the first end, an unjudged tail. Sample 2: one step, pays 1.
    # Pool {1, 0, 1}: mean 2/3, standard deviation sqrt(1/3); normalised 1 -> .57735, 0 -> -1.1547.
    rewards = rows([0, 1, 0, 0, 0], [1, 0, 0, 0, 0])
    mask = marks("11011", "10000")
    ends = marks("01010", "10000")
    got = group_process(rewards, mask, ends, torch.tensor([0, 0])).advantages
    expected = rows([UP + DOWN, UP + DOWN, 0, DOWN, 0], [UP, 0, 0, 0, 0])
    assert torch.allclose(got, expected, atol=1e-12)


def test_process_returns_by_hand() -> None:
    # As above with rewards 1, 4 and 3. Returns at gamma .5: 1 + 2 = 3, 4 and 3: pool {3, 4, 3}.
    rewards = rows([0, 1, 0, 4, 0], [3, 0, 0, 0, 0])
    mask, ends = marks("11011", "10000"), marks("01010", "10000")
    got = process_returns(rewards, mask, ends, torch.tensor([0, 0]), gamma=0.5).advantages
    expected = rows([-UP, -UP, 0, -DOWN, 0], [-UP, 0, 0, 0, 0])
    assert torch.allclose(got, expected, atol=1e-12)


def test_process_positions_by_hand() -> None:
    # First steps pay 1, 0, 1; second steps 2, 0 in the first two samples: +-sqrt(.5).
    rewards = rows([1, 0, 2], [0, 0, 0], [1, 0, 0])
    mask, ends = marks("101", "111", "100"), marks("101", "101", "100")
    got = process_positions(rewards, mask, ends, torch.tensor([0, 0, 0])).advantages
    half = math.sqrt(0.5)
    expected = rows([UP + half, 0, half], [DOWN - half, -half, -half], [UP, 0, 0])
    assert torch.allclose(got, expected, atol=1e-12)


def test_process_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        parts = (c.rewards, c.mask, c.ends, c.group)
        assert_agrees(group_process(*parts).advantages, reference.group_process(c), seed)
        got = process_returns(*parts, gamma=0.9).advantages
        assert_agrees(got, reference.process_returns(c, 0.9), seed)
        assert_agrees(process_positions(*parts).advantages, reference.process_positions(c), seed)


@pytest.mark.parametrize("estimator", [group_process, process_returns, process_positions])
def test_process_with_one_step_is_outcome(estimator: Callable[..., Credit]) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        last = c.mask & (c.mask.long().cumsum(1) == c.mask.sum(1, keepdim=True))
        kept = c.mask.any(1)
        c = replace(c, ends=last).rows(kept)
        outcome = group_outcome(c.rewards, c.mask, c.group).advantages
        process = estimator(c.rewards, c.mask, c.ends, c.group).advantages
        assert torch.allclose(outcome, process, atol=1e-12)


# --- the length artefact ----------------------------------------------------------------------


def terminal(lengths: list[int], outcomes: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of one group whose steps, one token each, pay at the last one alone."""
    ends = torch.zeros(len(lengths), max(lengths), dtype=torch.bool)
    rewards = torch.zeros(ends.shape, dtype=torch.float64)
    for row, (length, outcome) in enumerate(zip(lengths, outcomes, strict=True)):
        ends[row, :length] = True
        rewards[row, length - 1] = outcome
    return rewards, ends, torch.zeros(len(lengths), dtype=torch.int64)


ZERO_OR_ONE = terminal([3, 10, 3, 10], [1, 1, 0, 0])
# Three failures, so that the pooled mean is -1/36.
MINUS_OR_PLUS_ONE = terminal([10, 3, 10, 3, 10], [1, 1, -1, -1, -1])


@pytest.mark.parametrize(
    ("samples", "pool", "expected"),
    [
        # Success in 3 and 10 steps, failure in 3 and 10.
        pytest.param(ZERO_OR_ONE, 26, [2.89, 0.87, -0.87, -2.89], id="rewards 0 and 1"),
        # Long and short success, long and short failure: longer looks better.
        pytest.param(
            MINUS_OR_PLUS_ONE, 36, [3.44, 2.91, -1.94, -2.47, -1.94], id="rewards -1 and 1"
        ),
    ],
)
def test_published_process_credit_depends_on_the_number_of_steps(
    samples: tuple[Tensor, Tensor, Tensor], pool: int, expected: list[float]
) -> None:
    # The expected numbers divide by n: ours, by n - 1, are smaller by sqrt((n - 1) / n).
    rewards, ends, group = samples
    got = group_process(rewards, ends, ends, group).advantages[:, 0]
    assert listed(got * math.sqrt(pool / (pool - 1))) == pytest.approx(expected, abs=0.005)


def test_published_process_credit_to_the_last_digit() -> None:
    # Pool of 26 with two ones: mean 1/13, variance (2 (12/13)^2 + 24 (1/13)^2) / 25 = 24/325.
    rewards, ends, group = ZERO_OR_ONE
    got = group_process(rewards, ends, ends, group).advantages
    std = math.sqrt(24 / 325)
    expected = [10 / 13 / std, 3 / 13 / std, -3 / 13 / std, -10 / 13 / std]
    assert listed(got[:, 0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("samples", [ZERO_OR_ONE, MINUS_OR_PLUS_ONE])
def test_returns_have_no_length_artefact(samples: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, ends, group = samples
    got = process_returns(rewards, ends, ends, group).advantages
    for outcome in rewards.sum(1).unique():
        same = got[rewards.sum(1) == outcome]
        own = ends[rewards.sum(1) == outcome]
        assert (same[own] - same[0, 0]).abs().max() < 1e-12
        assert torch.sign(same[0, 0]) == torch.sign(outcome - rewards.sum(1).mean())


def test_positions_compare_steps_of_one_number_alone() -> None:
    # The k-th step pays k in every sample: none did better than another, long or short.
    _, ends, group = terminal([3, 10, 3, 10], [1, 1, 1, 1])
    paid = ends * torch.arange(10, dtype=torch.float64)
    assert (process_positions(paid, ends, ends, group).advantages == 0).all()
    assert group_process(paid, ends, ends, group).advantages.abs().max() > 1
