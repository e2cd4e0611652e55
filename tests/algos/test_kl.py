"""KL terms: values by hand, and which gradient each really is, exact on small policies.

`expected` sums over every action, so nothing is sampled; sampling probabilities carry no gradient,
as they carry none in training.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stepcredit.algos.kl import adapted, k1, k2, k3, k3_plus, off_policy

Estimator = Callable[[Tensor, Tensor], Tensor]

SEEDED = torch.Generator().manual_seed(0)
THETA, REF, MU = (torch.randn(5, dtype=torch.float64, generator=SEEDED) for _ in range(3))
REF, MU = REF.log_softmax(0), MU.log_softmax(0)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def gradient(of: Callable[[Tensor], Tensor], at: Tensor = THETA) -> Tensor:
    x = at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(of(x), x)
    return slope


def expected(term: Callable[[Tensor], Tensor], drawn_from: Tensor | None = None) -> Tensor:
    """Gradient of the expectation of a token's term of the loss, over tokens of pi or of mu."""

    def mean(theta: Tensor) -> Tensor:
        logprobs = theta.log_softmax(0)
        sampling = (logprobs if drawn_from is None else drawn_from).detach().exp()
        return (sampling * term(logprobs)).sum()

    return gradient(mean)


def reverse(theta: Tensor) -> Tensor:
    logprobs = theta.log_softmax(0)
    return (logprobs.exp() * (logprobs - REF)).sum()


def forward(theta: Tensor) -> Tensor:
    return (REF.exp() * (REF - theta.log_softmax(0))).sum()


REVERSE, FORWARD = gradient(reverse), gradient(forward)


def same(a: Tensor, b: Tensor) -> bool:
    return a.allclose(b, rtol=0, atol=1e-12)


def test_the_exact_gradients_differ() -> None:
    step = torch.eye(5, dtype=torch.float64) * 1e-6
    for kl, slope in ((reverse, REVERSE), (forward, FORWARD)):
        differences = [float(kl(THETA + s) - kl(THETA - s)) / 2e-6 for s in step]
        assert slope.tolist() == pytest.approx(differences, abs=1e-8)
    assert (REVERSE - FORWARD).abs().max() > 0.1 and REVERSE.abs().max() > 0.1


def test_values_by_hand() -> None:
    # pi = .5, pi_ref = .25: gap log 2.
    args = row(math.log(0.5)), row(math.log(0.25))
    assert float(k1(*args)) == pytest.approx(math.log(2))
    assert float(k2(*args)) == pytest.approx(0.5 * math.log(2) ** 2)
    assert float(k3(*args)) == pytest.approx(0.5 + math.log(2) - 1)
    assert float(k3_plus(*args)) == pytest.approx(0.5 + math.log(2) - 1)


def test_values_of_all_but_k2_are_unbiased_for_the_reverse_kl() -> None:
    logprobs = THETA.log_softmax(0)
    exact = float(reverse(THETA))

    def mean(estimator: Estimator) -> float:
        return float((logprobs.exp() * estimator(logprobs, REF)).sum())

    for estimator in (k1, k3, k3_plus):
        assert mean(estimator) == pytest.approx(exact, abs=1e-12)
    assert abs(mean(k2) - exact) > 0.01


def test_k1_in_the_loss_has_no_expected_gradient() -> None:
    assert same(expected(lambda x: k1(x, REF)), torch.zeros(5, dtype=torch.float64))


def test_k1_in_the_reward_gives_the_reverse_kl_gradient() -> None:
    assert same(expected(lambda x: k1(x, REF).detach() * x), REVERSE)


def test_k2_in_the_loss_gives_the_reverse_kl_gradient() -> None:
    assert same(expected(lambda x: k2(x, REF)), REVERSE)


def test_k3_in_the_loss_gives_the_forward_kl_gradient() -> None:
    assert same(expected(lambda x: k3(x, REF)), FORWARD)


def test_k3_in_the_reward_gives_neither_gradient() -> None:
    got = expected(lambda x: k3(x, REF).detach() * x)
    assert (got - REVERSE).abs().max() > 0.01 and (got - FORWARD).abs().max() > 0.01


def test_k3_plus_in_the_loss_gives_the_reverse_kl_gradient() -> None:
    assert same(expected(lambda x: k3_plus(x, REF)), REVERSE)


@pytest.mark.parametrize("estimator", [k1, k3])
@pytest.mark.parametrize("drawn_from", [None, MU], ids=["pi", "mu"])
def test_unbiased_values_need_the_gradient_of_the_ratio(
    estimator: Estimator, drawn_from: Tensor | None
) -> None:
    def term(x: Tensor, through: bool) -> Tensor:
        old = x.detach() if drawn_from is None else drawn_from
        return off_policy(estimator(x, REF), x if through else x.detach(), old)

    assert same(expected(lambda x: term(x, True), drawn_from), REVERSE)
    without = expected(lambda x: term(x, False), drawn_from)
    assert same(without, torch.zeros_like(REVERSE) if estimator is k1 else FORWARD)


@pytest.mark.parametrize("estimator", [k2, k3_plus])
def test_right_gradients_need_the_ratio_without_gradient(estimator: Estimator) -> None:
    def term(x: Tensor, through: bool) -> Tensor:
        return off_policy(estimator(x, REF), x if through else x.detach(), MU)

    assert same(expected(lambda x: term(x, False), MU), REVERSE)
    assert (expected(lambda x: term(x, True), MU) - REVERSE).abs().max() > 0.01


def test_off_policy_values_are_unbiased_under_mu() -> None:
    logprobs = THETA.log_softmax(0)
    for estimator in (k1, k3, k3_plus):
        corrected = off_policy(estimator(logprobs, REF), logprobs, MU)
        assert float((MU.exp() * corrected).sum()) == pytest.approx(
            float(reverse(THETA)), abs=1e-12
        )


@pytest.mark.parametrize("estimator", [k1, k2, k3, k3_plus])
def test_without_correction_the_gradient_under_mu_is_another(estimator: Estimator) -> None:
    got = expected(lambda x: estimator(x, REF), MU)
    assert (got - REVERSE).abs().max() > 0.01 and (got - FORWARD).abs().max() > 0.01


# A first token of 3 (row 0) and a second of 3 that depends on it (row 1 + a after token a).
TABLE, REF_TABLE = (torch.randn(4, 3, dtype=torch.float64, generator=SEEDED) for _ in range(2))
REF_TABLE = REF_TABLE.log_softmax(1)


def sequences(table: Tensor) -> Tensor:
    """Log-probability of both tokens of every sequence. [9, 2]."""
    return torch.stack([table[0].repeat_interleave(3), table[1:].flatten()], dim=1)


def whole(theta: Tensor) -> Tensor:
    """KL of the sequences' distributions."""
    x = sequences(theta.log_softmax(1))
    return (x.sum(1).exp() * (x - sequences(REF_TABLE)).sum(1)).sum()


def each_token(theta: Tensor) -> Tensor:
    """KL of each token's distribution, the odds of its prefix kept as they are."""
    table = theta.log_softmax(1)
    kl = (table.exp() * (table - REF_TABLE)).sum(1)  # [4]
    return kl[0] + (table[0].detach().exp() * kl[1:]).sum()


def expected_of_sequences(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Gradient of the expected sum of the terms of both tokens."""

    def mean(theta: Tensor) -> Tensor:
        x = sequences(theta.log_softmax(1))
        return (x.detach().sum(1).exp() * loss(x, sequences(REF_TABLE)).sum(1)).sum()

    return gradient(mean, TABLE)


def test_only_k1_in_the_reward_sees_what_a_token_does_to_later_ones() -> None:
    of_sequences, of_tokens = gradient(whole, TABLE), gradient(each_token, TABLE)
    assert (of_sequences - of_tokens).abs().max() > 0.01

    def in_reward(x: Tensor, ref: Tensor) -> Tensor:
        penalty = k1(x, ref).detach()
        return penalty.flip(1).cumsum(1).flip(1) * x

    assert same(expected_of_sequences(in_reward), of_sequences)
    assert same(expected_of_sequences(k2), of_tokens)
    assert same(expected_of_sequences(k3_plus), of_tokens)
    assert same(expected_of_sequences(lambda x, r: off_policy(k3(x, r), x, x.detach())), of_tokens)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_gradients_by_finite_differences(estimator: Estimator) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    ref, old = x.detach() + 0.3 * torch.randn(2, 5), x.detach() + 0.3 * torch.randn(2, 5)
    assert torch.autograd.gradcheck(lambda z: estimator(z, ref), (x,))
    assert torch.autograd.gradcheck(lambda z: off_policy(estimator(z, ref), z, old), (x,))


def test_k3_plus_has_the_slope_of_k2_at_every_token() -> None:
    torch.manual_seed(0)
    x, ref = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    assert same(gradient(lambda z: k3_plus(z, ref).sum(), x), x - ref)


def test_k3_of_an_impossible_token_is_finite() -> None:
    x = row(-1000.0).requires_grad_()
    got = k3(x, row(-1.0))
    got.sum().backward()
    assert got.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_adapted_coefficient_by_hand() -> None:
    assert adapted(0.1, 6.0, target=6.0) == pytest.approx(0.1)
    assert adapted(0.1, 6.6, target=6.0) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    # Errors of +1 and -1 count as +.2 and -.2.
    assert adapted(0.1, 12.0, target=6.0) == pytest.approx(0.1 * 1.02)
    assert adapted(0.1, 0.0, target=6.0) == pytest.approx(0.1 * 0.98)
    assert adapted(0.1, 12.0, target=6.0, horizon=0.5) == pytest.approx(0.1 * 1.1)
