"""Losses: hand-computed numbers and finite differences."""

import math

import pytest
import torch
from torch import Tensor

from stepcredit.algos.losses import clipped, k1, k3, sequence_mean, token_mean, value_loss


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_clipped_surrogate_by_hand() -> None:
    ratios = [1.5, 1.5, 0.5, 0.5, 1.1]
    advantages = row(2, -2, 2, -2, 1)
    logprobs = row(*[math.log(r) for r in ratios])
    got, held = clipped(logprobs, row(0, 0, 0, 0, 0), advantages, epsilon=0.2, epsilon_high=0.28)
    assert got[0].tolist() == pytest.approx([2.56, -3.0, 1.0, -1.6, 1.1])
    assert held[0].tolist() == [True, False, False, True, False]


def test_clip_stops_the_gradient_only_where_it_holds() -> None:
    logprobs = row(math.log(1.5), math.log(1.5)).requires_grad_()
    got, _ = clipped(logprobs, row(0, 0), row(1, -1), epsilon=0.2, epsilon_high=0.2)
    got.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([0, -1.5])


def test_sequence_mean_weighs_rows_alike() -> None:
    mask = torch.tensor([[True, True, False, True], [False, True, False, False]])
    expected = torch.tensor([[1 / 6, 1 / 6, 0, 1 / 6], [0, 1 / 2, 0, 0]])
    assert torch.allclose(sequence_mean(mask), expected)


def test_token_mean_weighs_tokens_alike() -> None:
    mask = torch.tensor([[True, True, False, True], [False, True, False, False]])
    assert torch.allclose(token_mean(mask), mask / 4)


def test_k1_and_k3_by_hand() -> None:
    # pi = .5, pi_ref = .25: k1 = log 2, k3 = .5 + log 2 - 1.
    logprobs, ref = row(math.log(0.5)), row(math.log(0.25))
    assert float(k1(logprobs, ref)) == pytest.approx(math.log(2))
    assert float(k3(logprobs, ref)) == pytest.approx(0.5 + math.log(2) - 1)


def test_k1_and_k3_are_unbiased_for_the_reverse_kl() -> None:
    pi, ref = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    exact = float((pi * (pi / ref).log()).sum())
    for estimator in (k1, k3):
        assert float((pi * estimator(pi.log(), ref.log())).sum()) == pytest.approx(exact, abs=1e-6)


def test_value_loss_by_hand() -> None:
    # Old value 0, return 1: .5 is clipped to .2, whose error (.8) is the larger one.
    got = value_loss(row(0.5), row(0.0), row(1.0), torch.tensor([[True]]), cliprange_value=0.2)
    assert float(got) == pytest.approx(0.5 * 0.8**2)
    free = value_loss(row(0.5), row(0.0), row(1.0), torch.tensor([[True]]), cliprange_value=None)
    assert float(free) == pytest.approx(0.5 * 0.5**2)


def test_value_loss_ignores_other_tokens() -> None:
    nan = float("nan")
    mask = torch.tensor([[True, False]])
    values = row(0.5, nan).requires_grad_()
    got = value_loss(values, row(0.0, nan), row(1.0, 1e9), mask, cliprange_value=None)
    got.sum().backward()
    assert values.grad is not None
    assert got[0].tolist() == pytest.approx([0.125, 0]) and values.grad[0].tolist() == [-0.5, 0]


def test_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    old, advantages = x.detach() + 0.15 * torch.randn(2, 5), torch.randn(2, 5)
    mask = torch.rand(2, 5) < 0.8
    functions = [
        lambda z: clipped(z, old, advantages.double(), epsilon=0.2, epsilon_high=0.3)[0],
        lambda z: k3(z, old),
        lambda z: value_loss(z, old, advantages.double(), mask, cliprange_value=0.1),
    ]
    for function in functions:
        assert torch.autograd.gradcheck(function, (x,))
