"""The critic's loss: hand-computed numbers and finite differences."""

import pytest
import torch
from torch import Tensor

from stepcredit.algos.losses import value_loss


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


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


def test_value_loss_gradient_by_finite_differences() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    old = x.detach() + 0.15 * torch.randn(2, 5)
    returns, mask = torch.randn(2, 5, dtype=torch.float64), torch.rand(2, 5) < 0.8
    for cliprange in (0.1, None):
        assert torch.autograd.gradcheck(
            lambda z, c=cliprange: value_loss(z, old, returns, mask, cliprange_value=c), (x,)
        )
