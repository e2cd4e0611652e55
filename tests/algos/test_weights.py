"""Weights: hand-computed numbers, and what a row without a loss token changes."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from stepcredit.algos.weights import constant, sequence_mean, sequence_sum, token_mean

MASK = torch.tensor([[True, True, False, True], [False, True, False, False], [False] * 4])

each_weight = pytest.mark.parametrize(
    "weigh", [sequence_mean, token_mean, partial(constant, max_tokens=10)]
)


def test_sequence_mean_weighs_rows_alike() -> None:
    # Two rows have a loss token: the third counts neither above nor below.
    expected = torch.tensor([[1 / 6, 1 / 6, 0, 1 / 6], [0, 1 / 2, 0, 0], [0, 0, 0, 0]])
    assert torch.allclose(sequence_mean(MASK), expected)


def test_token_mean_weighs_tokens_alike() -> None:
    assert torch.allclose(token_mean(MASK), MASK / 4)


def test_constant_forgets_the_lengths() -> None:
    assert torch.allclose(constant(MASK, max_tokens=10), MASK / 20)


def test_rows_are_averaged_and_their_tokens_summed() -> None:
    assert torch.allclose(sequence_sum(MASK), MASK / 2)


@each_weight
def test_a_row_without_loss_tokens_changes_nothing(weigh: Callable[[Tensor], Tensor]) -> None:
    assert torch.equal(weigh(MASK)[:2], weigh(MASK[:2]))
    assert not weigh(MASK)[~MASK].any()


@each_weight
def test_no_loss_token_at_all_gives_zeros(weigh: Callable[[Tensor], Tensor]) -> None:
    assert torch.equal(weigh(torch.zeros(2, 3, dtype=torch.bool)), torch.zeros(2, 3))


def test_means_of_a_constant_are_that_constant() -> None:
    assert float(sequence_mean(MASK).sum()) == pytest.approx(1)
    assert float(token_mean(MASK).sum()) == pytest.approx(1)
