"""Clipped surrogates: hand-computed numbers, finite differences, and what all regions share."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stepcredit.algos.divergence import binary_tv, cppo, dppo
from stepcredit.algos.trust import cispo, clipped, ratio, sequence_clipped, turn_clipped
from stepcredit.algos.weights import sequence_mean

Region = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def logs(*ratios: float) -> Tensor:
    return row(*[math.log(r) for r in ratios])


def gradient(of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(of(x).sum(), x)
    return slope


def slopes(of: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences, one number at a time."""
    out = torch.zeros_like(at)
    for index in torch.cartesian_prod(*[torch.arange(n) for n in at.shape]).tolist():
        for sign in (1, -1):
            near = at.clone()
            near[tuple(index)] += sign * step
            out[tuple(index)] += sign * float(of(near).sum()) / (2 * step)
    return out


def random_rows(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logprobs, old_logprobs, advantages and a mask with gaps. [3, 9]."""
    torch.manual_seed(seed)
    old = torch.log(torch.rand(3, 9, dtype=torch.float64) * 0.9 + 0.02)
    logprobs = (old + 0.5 * torch.randn(3, 9, dtype=torch.float64)).clamp(max=-1e-3)
    return logprobs, old, torch.randn(3, 9, dtype=torch.float64), torch.rand(3, 9) < 0.7


def every_region(mask: Tensor, width: int) -> dict[str, Region]:
    turns = torch.arange(width).expand_as(mask) // 3
    return {
        "clipped": lambda x, old, a: clipped(x, old, a, epsilon=0.2, epsilon_high=0.28),
        "dual clip": lambda x, old, a: clipped(
            x, old, a, epsilon=0.2, epsilon_high=0.28, dual_clip=1.5
        ),
        "sequence": lambda x, old, a: sequence_clipped(
            x, old, a, mask, epsilon=0.03, epsilon_high=0.04
        ),
        "turn": lambda x, old, a: turn_clipped(
            x, old, a, mask, turns, epsilon=0.2, epsilon_high=0.28, dual_clip=1.5
        ),
        "cispo": lambda x, old, a: cispo(x, old, a, epsilon=0.2, epsilon_high=0.28),
        "dppo": lambda x, old, a: dppo(x, old, a, binary_tv(x, old), delta=0.05, ratio_cap=1.2),
        "cppo": lambda x, old, a: cppo(
            x, old, a, binary_tv(x, old), mask, turns, delta=0.05, budget=0.01
        ),
    }


NAMES = list(every_region(torch.ones(1, 1, dtype=torch.bool), 1))


def test_clipped_surrogate_by_hand() -> None:
    advantages = row(2, -2, 2, -2, 1)
    logprobs = logs(1.5, 1.5, 0.5, 0.5, 1.1)
    got, held = clipped(logprobs, row(0, 0, 0, 0, 0), advantages, epsilon=0.2, epsilon_high=0.28)
    assert got[0].tolist() == pytest.approx([2.56, -3.0, 1.0, -1.6, 1.1])
    assert held[0].tolist() == [True, False, False, True, False]


def test_dual_clip_by_hand() -> None:
    # A = -1: ratio 4 is bounded by 3, ratio 2 is not, .5 is the ordinary lower clip. A = 1: ratio 4
    # is the ordinary upper clip, ratio .1 is free.
    got, held = clipped(
        logs(4, 2, 0.5, 4, 0.1),
        row(0, 0, 0, 0, 0),
        row(-1, -1, -1, 1, 1),
        epsilon=0.2,
        epsilon_high=0.28,
        dual_clip=3.0,
    )
    assert got[0].tolist() == pytest.approx([-3, -2, -0.8, 1.28, 0.1])
    assert held[0].tolist() == [True, False, True, True, False]


def test_clip_stops_the_gradient_only_where_it_holds() -> None:
    slope = gradient(
        lambda x: clipped(x, row(0, 0), row(1, -1), epsilon=0.2, epsilon_high=0.2)[0],
        logs(1.5, 1.5),
    )
    assert slope[0].tolist() == pytest.approx([0, -1.5])


def test_sequence_ratio_by_hand() -> None:
    # Log ratios .3, .1, -.1 of the policy tokens: mean .1, ratio e^.1 = 1.105 of every one.
    mask = torch.tensor([[True, False, True, True]])
    args = row(-0.7, 5.0, -0.9, -1.1), row(-1, 0, -1, -1), row(2, 9, 2, -2), mask
    got, held = sequence_clipped(*args, epsilon=0.2, epsilon_high=0.2)
    free = math.exp(0.1)
    assert got[0].tolist() == pytest.approx([2 * free, 0, 2 * free, -2 * free])
    assert not held.any()
    got, held = sequence_clipped(*args, epsilon=0.2, epsilon_high=0.05)
    assert got[0].tolist() == pytest.approx([2.1, 0, 2.1, -2 * free])
    assert held[0].tolist() == [True, False, True, False]


def test_sequence_gradient_is_that_of_the_published_sequence_form() -> None:
    logprobs, old, _, mask = random_rows(1)
    mask[:, 0] = True
    advantages = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64).expand(3, 9)
    weights = sequence_mean(mask).double()

    def tokens(x: Tensor) -> Tensor:
        got, _ = sequence_clipped(x, old, advantages, mask, epsilon=0.2, epsilon_high=0.3)
        return weights * got

    def sequence(x: Tensor) -> Tensor:
        objective = torch.zeros((), dtype=torch.float64)
        for i in range(3):
            s = torch.exp((x - old)[i][mask[i]].mean())
            a = advantages[i, 0]
            objective = objective + torch.minimum(s * a, s.clamp(0.8, 1.3) * a) / 3
        return objective

    assert float(tokens(logprobs).sum()) == pytest.approx(float(sequence(logprobs)), rel=1e-6)
    assert gradient(tokens, logprobs).allclose(gradient(sequence, logprobs), atol=1e-7)
    assert gradient(tokens, logprobs).allclose(slopes(tokens, logprobs), atol=1e-6)
    assert (gradient(tokens, logprobs).abs().sum(1) > 0).any()


def test_sequence_form_takes_advantages_of_each_token() -> None:
    # The row's ratio is 1, each token keeps its own advantage: GSPO-token, eq. 13.
    old, advantages = row(-1, -2, -3), row(1, -2, 3)
    mask = torch.ones(1, 3, dtype=torch.bool)
    slope = gradient(
        lambda x: sequence_clipped(x, old, advantages, mask, epsilon=0.1, epsilon_high=0.1)[0],
        old + row(0.5, 0, -0.5),
    )
    assert slope[0].tolist() == pytest.approx([1, -2, 3])


def test_sequence_ratio_ignores_masked_slots() -> None:
    nan = float("nan")
    mask = torch.tensor([[True, False, True]])
    x = row(-1.0, nan, -1.2).requires_grad_()
    got, _ = sequence_clipped(
        x, row(-1.1, nan, -1.2), row(1, nan, 1), mask, epsilon=0.2, epsilon_high=0.2
    )
    got.sum().backward()
    assert x.grad is not None
    s = math.exp(0.05)
    assert got[0].tolist() == pytest.approx([s, 0, s])
    assert x.grad[0].tolist() == pytest.approx([s, 0, s])


def test_turn_ratio_by_hand() -> None:
    # Turn 0: log ratios .3 and -.1, product e^.2, above 1.2. Turn 1: -.3 alone.
    mask = torch.tensor([[True, False, True, True]])
    turns = torch.tensor([[0, 0, 0, 1]])
    old = row(-1, 0, -1, -1)
    args = old + row(0.3, 5.0, -0.1, -0.3), old, row(2, 9, 2, -1), mask, turns
    got, held = turn_clipped(*args, epsilon=0.2, epsilon_high=0.2)
    assert got[0].tolist() == pytest.approx([2.4, 0, 2.4, -0.8])
    assert held[0].tolist() == [True, False, True, True]
    got, held = turn_clipped(*args, epsilon=0.5, epsilon_high=0.5)
    free = math.exp(0.2)
    assert got[0].tolist() == pytest.approx([2 * free, 0, 2 * free, -math.exp(-0.3)])
    assert not held.any()


def test_turn_gradient_is_that_of_one_ratio_a_turn() -> None:
    logprobs, old, _, mask = random_rows(4)
    turns = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3]).expand(3, 9)
    worth = torch.tensor([1.0, -2.0, 0.5, -0.3], dtype=torch.float64)

    def tokens(x: Tensor) -> Tensor:
        got, _ = turn_clipped(
            x, old, worth[turns], mask, turns, epsilon=0.4, epsilon_high=0.5, dual_clip=1.8
        )
        return got

    def by_turn(x: Tensor) -> Tensor:
        objective = torch.zeros((), dtype=torch.float64)
        for i in range(3):
            for k, a in enumerate(worth):
                inside = mask[i] & (turns[i] == k)
                r = torch.exp((x - old)[i][inside].sum())
                one = torch.minimum(r * a, r.clamp(0.6, 1.5) * a)
                one = torch.maximum(one, 1.8 * a) if a < 0 else one
                objective = objective + (one if inside.any() else 0.0)
        return objective

    found = gradient(tokens, logprobs)
    assert found.allclose(slopes(by_turn, logprobs), atol=1e-6)
    assert (found != 0).sum() > 6 and ((found == 0) & mask).any()


def test_turns_of_one_token_are_clipped_like_tokens() -> None:
    logprobs, old, advantages, mask = random_rows(5)
    size = {"epsilon": 0.2, "epsilon_high": 0.28, "dual_clip": 1.5}
    turns = torch.arange(9).expand(3, 9)
    by_turn = turn_clipped(logprobs, old, advantages, mask, turns, **size)
    by_token = clipped(logprobs, old, advantages, **size)
    for got, expected in zip(by_turn, by_token, strict=True):
        assert torch.equal(got[mask], expected[mask])


def test_cispo_by_hand() -> None:
    # Ratios 2, .5, 1.1; weights 1.5, .8, 1.1 between .8 and 1.5, no lower bound with epsilon 1.
    old, advantages = row(-1, -1, -1), row(2, 2, -1)
    logprobs = old + logs(2, 0.5, 1.1)
    got, held = cispo(logprobs, old, advantages, epsilon=0.2, epsilon_high=0.5)
    weights = torch.tensor([[1.5, 0.8, 1.1]], dtype=torch.float64)
    assert got.allclose(weights * advantages * logprobs)
    assert held[0].tolist() == [True, True, False]
    slope = gradient(
        lambda x: cispo(x, old, advantages, epsilon=0.2, epsilon_high=0.5)[0], logprobs
    )
    assert slope.allclose(weights * advantages)
    got, held = cispo(logprobs, old, advantages, epsilon=1.0, epsilon_high=0.5)
    assert float(got[0, 1]) == pytest.approx(0.5 * 2 * float(logprobs[0, 1]))
    assert not held[0, 1]


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_clipped_gradient_by_finite_differences(dual_clip: float | None) -> None:
    logprobs, old, advantages, _ = random_rows(2)

    def surrogate(x: Tensor) -> Tensor:
        return clipped(x, old, advantages, epsilon=0.2, epsilon_high=0.3, dual_clip=dual_clip)[0]

    assert gradient(surrogate, logprobs).allclose(slopes(surrogate, logprobs), atol=1e-6)


def test_cispo_gradient_by_finite_differences() -> None:
    # The weight carries no gradient: differences of the objective with the weight kept.
    logprobs, old, advantages, _ = random_rows(3)
    weight = (logprobs - old).exp().clamp(0.8, 1.3)
    slope = gradient(
        lambda x: cispo(x, old, advantages, epsilon=0.2, epsilon_high=0.3)[0], logprobs
    )
    assert slope.allclose(slopes(lambda x: weight * advantages * x, logprobs), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_region_is_the_policy_gradient(name: str) -> None:
    logprobs, _, advantages, _ = random_rows(4)
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    region = every_region(mask, 9)[name]
    surrogate, held = region(logprobs, logprobs.clone(), advantages)
    # CISPO's surrogate is A log pi, the others' the ratio 1 times A.
    assert surrogate.allclose(advantages * logprobs if name == "cispo" else advantages)
    assert not held.any()
    slope = gradient(lambda x: region(x, logprobs, advantages)[0], logprobs)
    assert slope.allclose(advantages)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cispo"])
def test_held_tokens_are_exactly_those_without_gradient(name: str) -> None:
    held_in_all, free_in_all = 0, 0
    for seed in range(5):
        logprobs, old, advantages, mask = random_rows(seed)
        region = every_region(mask, 9)[name]
        _, held = region(logprobs, old, advantages)
        slope = gradient(lambda x, r=region, o=old, a=advantages: r(x, o, a)[0], logprobs)
        counted = mask if name in ("sequence", "turn", "cppo") else torch.ones_like(mask)
        assert torch.equal(held[counted], slope[counted] == 0)
        assert not held[~counted].any() and not slope[~counted].any()
        held_in_all += int(held.sum())
        free_in_all += int((~held).sum())
    assert held_in_all and free_in_all


@pytest.mark.parametrize("name", NAMES)
def test_a_huge_ratio_stays_finite(name: str) -> None:
    mask = torch.ones(1, 4, dtype=torch.bool)
    old, advantages = row(-1000, -1000, -0.01, -0.01), row(1, -1, 1, -1)
    region = every_region(mask, 4)[name]
    at = row(-0.01, -0.01, -1000, -1000)
    assert region(at, old, advantages)[0].isfinite().all()
    assert gradient(lambda x: region(x, old, advantages)[0], at).isfinite().all()


def test_ratio_is_bounded_in_log_space() -> None:
    got = ratio(row(0, -1000, math.log(0.5)), row(-1000, 0, math.log(0.25)))
    assert got[0].tolist() == pytest.approx([math.exp(20), math.exp(-20), 2])


@pytest.mark.parametrize("name", ["clipped", "dual clip", "cispo", "dppo"])
def test_a_region_without_a_mask_keeps_slots_apart(name: str) -> None:
    logprobs, old, advantages, mask = random_rows(5)
    region = every_region(mask, 9)[name]
    clean, clean_held = region(logprobs, old, advantages)
    poisoned = logprobs.masked_fill(~mask, float("nan"))
    got, held = region(poisoned, old, advantages)
    assert torch.equal(got[mask], clean[mask]) and torch.equal(held[mask], clean_held[mask])
