"""Divergence trust regions: hand-computed numbers, slow loops, and the identities between them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stepcredit.algos.divergence import (
    binary_kl,
    binary_tv,
    cppo,
    dppo,
    own_budget,
    topk_kl,
    topk_tv,
)

INF = float("inf")


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def logs(*probabilities: float) -> Tensor:
    return row(*[math.log(p) for p in probabilities])


def gradient(of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(of(x).sum(), x)
    return slope


def distributions(seed: int, vocabulary: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """mu and pi [3, 5, V], and tokens drawn from mu [3, 5]."""
    torch.manual_seed(seed)
    old = torch.log_softmax(2 * torch.randn(3, 5, vocabulary, dtype=torch.float64), -1)
    new = torch.log_softmax(old + torch.randn(3, 5, vocabulary, dtype=torch.float64), -1)
    tokens = torch.multinomial(old.exp().flatten(0, 1), 1).view(3, 5)
    return old, new, tokens


def topk_args(old: Tensor, new: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, ...]:
    """The arguments of topk_tv and topk_kl from whole distributions."""
    old_top, ids = old.topk(k, dim=-1)
    chosen = tokens[..., None]
    return (
        new.gather(-1, chosen)[..., 0],
        old.gather(-1, chosen)[..., 0],
        new.gather(-1, ids),
        old_top,
        ids,
        tokens,
    )


def slow_topk(old: Tensor, new: Tensor, tokens: Tensor, k: int, kind: str) -> Tensor:
    """Top-K(mu), the sampled token and "other", one token at a time."""
    out = torch.zeros(tokens.shape, dtype=torch.float64)
    for i, t in torch.cartesian_prod(*[torch.arange(n) for n in tokens.shape]).tolist():
        mu, pi = old[i, t].exp().tolist(), new[i, t].exp().tolist()
        named = set(sorted(range(len(mu)), key=lambda v: -mu[v])[:k]) | {int(tokens[i, t])}
        others = set(range(len(mu))) - named
        cells = [(mu[v], pi[v]) for v in named]
        if others:
            cells.append((sum(mu[v] for v in others), sum(pi[v] for v in others)))
        if kind == "tv":
            out[i, t] = 0.5 * sum(abs(m - p) for m, p in cells)
        else:
            out[i, t] = sum(m * math.log(m / p) for m, p in cells)
    return out


def random_rows(seed: int) -> dict[str, Tensor]:
    """Two or more turns a row, tool tokens before each, and NaN in every slot that is no action."""
    torch.manual_seed(seed)
    b, t = 4, 24
    turns = torch.randint(0, 4, (b, t)).sort(1).values
    mask = torch.rand(b, t) < 0.7
    mask[0] = True
    mask[3] = False
    mask[3, 5] = True
    old = torch.log(torch.rand(b, t, dtype=torch.float64) * 0.9 + 0.02)
    logprobs = (old + 0.4 * torch.randn(b, t, dtype=torch.float64)).clamp(max=-1e-3)
    rows = {
        "logprobs": logprobs,
        "old_logprobs": old,
        "advantages": torch.randn(b, t, dtype=torch.float64),
        "divergence": binary_tv(logprobs, old),
    }
    rows = {name: x.masked_fill(~mask, float("nan")) for name, x in rows.items()}
    return rows | {"mask": mask, "turn_ids": turns}


def slow_cppo(
    rows: dict[str, Tensor], delta: float, budget: float, w_min: float, scope: str
) -> tuple[Tensor, Tensor]:
    """Surrogate and held tokens, row by row, scope by scope, token by token."""
    mask, turns = rows["mask"], rows["turn_ids"]
    surrogate = torch.zeros(mask.shape, dtype=torch.float64)
    held = torch.zeros(mask.shape, dtype=torch.bool)
    for i in range(len(mask)):
        actions = [t for t in range(mask.shape[1]) if mask[i, t]]
        scopes = [actions]
        if scope == "turn":
            names = sorted({int(turns[i, t]) for t in actions})
            scopes = [[t for t in actions if int(turns[i, t]) == n] for n in names]
        for places in scopes:
            total_w, total_wd = 0.0, 0.0
            for n, t in enumerate(places):
                last = len(places) - 1
                w = 1 - (1 - w_min) * n / last if last else 1.0
                wd = w * float(rows["divergence"][i, t])
                allowed = min(delta, delta + (budget * total_w if n else 0.0) - total_wd)
                r = math.exp(float(rows["logprobs"][i, t] - rows["old_logprobs"][i, t]))
                a = float(rows["advantages"][i, t])
                held[i, t] = not (a * (r - 1) <= 0 or wd <= allowed)
                surrogate[i, t] = 0.0 if held[i, t] else r * a
                total_w += w
                total_wd += wd
    return surrogate, held


def run_cppo(rows: dict[str, Tensor], **settings: object) -> tuple[Tensor, Tensor]:
    return cppo(**rows, **settings)  # type: ignore[arg-type]  # settings of several types


def test_binary_divergences_by_hand() -> None:
    assert float(binary_tv(logs(0.5), logs(0.2))) == pytest.approx(0.3)
    expected = 0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.5)
    assert float(binary_kl(logs(0.5), logs(0.2))) == pytest.approx(expected)


def test_topk_divergences_by_hand() -> None:
    # mu .5 .3 .15 .05, pi .4 .3 .28 .02, top 2 = tokens 0, 1.
    # Token 2 sampled: cells 0, 1, 2, other = 3. Token 0 sampled: 0, 1, other = 2 and 3 (.2, .3).
    old, new = logs(0.5, 0.3, 0.15, 0.05), logs(0.4, 0.3, 0.28, 0.02)
    both = torch.stack([old, old], 1), torch.stack([new, new], 1)
    args = topk_args(*both, torch.tensor([[2, 0]]), 2)
    assert topk_tv(*args)[0].tolist() == pytest.approx(
        [0.5 * (0.1 + 0 + 0.13 + 0.03), 0.5 * (0.1 + 0 + 0.1)]
    )
    shared = 0.5 * math.log(0.5 / 0.4)
    apart = 0.15 * math.log(0.15 / 0.28) + 0.05 * math.log(0.05 / 0.02)
    assert topk_kl(*args)[0].tolist() == pytest.approx(
        [shared + apart, shared + 0.2 * math.log(0.2 / 0.3)]
    )


@pytest.mark.parametrize("kind", ["tv", "kl"])
@pytest.mark.parametrize("k", [1, 2, 4, 6, 7])
def test_topk_equals_the_slow_sum(kind: str, k: int) -> None:
    function = {"tv": topk_tv, "kl": topk_kl}[kind]
    for seed in range(3):
        old, new, tokens = distributions(seed)
        got = function(*topk_args(old, new, tokens, k))
        assert got.allclose(slow_topk(old, new, tokens, k, kind), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_topk_is_exact_where_other_is_at_most_one_token(kind: str) -> None:
    old, new, tokens = distributions(3)
    function = {"tv": topk_tv, "kl": topk_kl}[kind]
    mu, pi = old.exp(), new.exp()
    exact = 0.5 * (mu - pi).abs().sum(-1) if kind == "tv" else (mu * (old - new)).sum(-1)
    for k in (6, 7):
        assert function(*topk_args(old, new, tokens, k)).allclose(exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_binary_is_topk_where_the_support_is_the_sampled_token_alone(kind: str) -> None:
    by_topk = {"tv": topk_tv, "kl": topk_kl}[kind]
    binary = {"tv": binary_tv, "kl": binary_kl}[kind]
    # K = 1 and the sampled token is mu's likeliest.
    old, new, _ = distributions(4)
    args = topk_args(old, new, old.argmax(-1), 1)
    assert by_topk(*args).allclose(binary(args[0], args[1]), rtol=0, atol=1e-12)
    # A vocabulary of two, whatever K.
    old, new, tokens = distributions(5, vocabulary=2)
    for k in (1, 2):
        args = topk_args(old, new, tokens, k)
        assert by_topk(*args).allclose(binary(args[0], args[1]), rtol=0, atol=1e-12)
    # Elsewhere a finer support sees more.
    old, new, tokens = distributions(6)
    sizes = [by_topk(*topk_args(old, new, tokens, k)) for k in (1, 3, 7)]
    coarse = binary(*topk_args(old, new, tokens, 1)[:2])
    for finer in sizes:
        assert (coarse <= finer + 1e-12).all() and (coarse < finer).any()
        coarse = finer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_and_impossible_tokens_give_finite_divergences(dtype: torch.dtype) -> None:
    certain = torch.zeros(1, 2, dtype=dtype)
    near = torch.tensor([[0.0, -1e-3]], dtype=dtype)
    assert binary_kl(near, certain)[0].tolist() == pytest.approx([0, 1e-3], rel=1e-3, abs=1e-12)
    assert binary_kl(certain, near).isfinite().all() and float(binary_kl(certain, near)[0, 0]) == 0
    # mu gives the second of its two likeliest tokens no mass at all.
    old_top = torch.tensor([[[0.0, -INF]]], dtype=dtype)
    new_top = torch.tensor([[[-1e-3, -7.0]]], dtype=dtype)
    ids, token = torch.tensor([[[4, 2]]]), torch.tensor([[4]])
    args = new_top[..., 0], old_top[..., 0], new_top, old_top, ids, token
    assert float(topk_kl(*args)) == pytest.approx(1e-3, rel=1e-3)
    assert float(topk_tv(*args)) == pytest.approx(1 - math.exp(-1e-3), rel=1e-3)


def test_divergences_carry_no_gradient() -> None:
    old, new, tokens = distributions(7)
    new = new.requires_grad_()
    args = topk_args(old, new, tokens, 2)
    for got in (topk_tv(*args), topk_kl(*args), binary_tv(*args[:2]), binary_kl(*args[:2])):
        assert not got.requires_grad


def test_dppo_by_hand() -> None:
    # Held: a positive advantage with a grown ratio, a negative one with a shrunk ratio, D > delta.
    ratios = row(2, 2, 2, 0.5, 0.5, 0.5)
    advantages, far = row(1, 1, -1, -1, -1, 1), row(0.3, 0.1, 0.3, 0.3, 0.1, 0.3)

    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        return dppo(x, row(*[-2] * 6), advantages, far, delta=0.15, ratio_cap=None)

    at = ratios.log() - 2
    surrogate, held = region(at)
    assert held[0].tolist() == [True, False, False, True, False, False]
    assert surrogate[0].tolist() == pytest.approx([0, 2, -2, 0, -0.5, 0.5])
    slope = gradient(lambda x: region(x)[0], at)
    assert slope[0].tolist() == pytest.approx([0, 2, -2, 0, -0.5, 0.5])


def test_dppo_cap_bounds_the_weight_and_keeps_the_gradient() -> None:
    at, old = logs(0.8, 0.2), logs(0.1, 0.1)
    args = row(-1, -1), row(0, 0)
    surrogate, held = dppo(at, old, *args, delta=0.1, ratio_cap=5.0)
    assert surrogate[0].tolist() == pytest.approx([-5, -2]) and not held.any()
    slope = gradient(lambda x: dppo(x, old, *args, delta=0.1, ratio_cap=5.0)[0], at)
    assert slope[0].tolist() == pytest.approx([-5, -2])


def test_dppo_equals_the_slow_loop() -> None:
    for seed in range(3):
        rows = {name: x.nan_to_num(-1.0) for name, x in random_rows(seed).items()}
        del rows["mask"], rows["turn_ids"]
        surrogate, held = dppo(**rows, delta=0.1, ratio_cap=1.3)
        assert held.any() and not held.all()
        for i, t in torch.cartesian_prod(torch.arange(4), torch.arange(24)).tolist():
            r = math.exp(float(rows["logprobs"][i, t] - rows["old_logprobs"][i, t]))
            a, d = float(rows["advantages"][i, t]), float(rows["divergence"][i, t])
            masked = (a > 0 and r > 1 and d > 0.1) or (a < 0 and r < 1 and d > 0.1)
            assert bool(held[i, t]) == masked
            expected = 0.0 if masked else min(r, 1.3) * a
            assert float(surrogate[i, t]) == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("name", ["dppo", "cppo"])
def test_gradient_by_finite_differences(name: str) -> None:
    rows = random_rows(8)
    mask, old = rows["mask"], rows["old_logprobs"].nan_to_num(-1.0)
    advantages, far = rows["advantages"].nan_to_num(), rows["divergence"].nan_to_num()

    def surrogate(x: Tensor) -> Tensor:
        if name == "dppo":
            return dppo(x, old, advantages, far, delta=0.1, ratio_cap=None)[0]
        turns = rows["turn_ids"]
        return cppo(x, old, advantages, far, mask, turns, delta=0.1, budget=0.05)[0]

    at = rows["logprobs"].nan_to_num(-1.0)
    # What the mask holds stays held; what is free is the ratio times the advantage.
    kept = surrogate(at) != 0

    def objective(x: Tensor) -> Tensor:
        return kept * (x - old).exp() * advantages

    step = 1e-6
    differences = (objective(at + step) - objective(at - step)) / (2 * step)
    assert kept.any() and not kept[mask].all()
    assert surrogate(at).allclose(objective(at))
    assert gradient(surrogate, at).allclose(differences, atol=1e-6)


@pytest.mark.parametrize("scope", ["trajectory", "turn"])
@pytest.mark.parametrize("w_min", [1.0, 0.8, 0.3])
def test_cppo_equals_the_slow_loop(scope: str, w_min: float) -> None:
    for seed in range(4):
        rows = random_rows(seed)
        for delta, budget in [(0.1, 0.05), (0.2, 0.1), (0.05, 0.0), (0.1, INF)]:
            got = run_cppo(rows, delta=delta, budget=budget, w_min=w_min, scope=scope)
            surrogate, held = slow_cppo(rows, delta, budget, w_min, scope)
            assert torch.equal(got[1], held)
            assert got[0].allclose(surrogate, rtol=0, atol=1e-12)


def test_cppo_without_weights_and_budget_is_dppo() -> None:
    for seed in range(3):
        rows = random_rows(seed)
        surrogate, held = run_cppo(rows, delta=0.1, budget=INF, w_min=1.0)
        mask = rows.pop("mask")
        del rows["turn_ids"]
        plain, plain_held = dppo(**rows, delta=0.1, ratio_cap=None)
        assert torch.equal(held[mask], plain_held[mask]) and held.any()
        assert torch.equal(surrogate[mask], plain[mask])


def leaving(divergence: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Rows whose every token moves further away: ratio 2, advantage 1."""
    ones = torch.ones_like(divergence)
    everywhere = torch.ones_like(divergence, dtype=torch.bool)
    return {
        "logprobs": ones * math.log(0.4),
        "old_logprobs": ones * math.log(0.2),
        "advantages": ones,
        "divergence": divergence,
        "mask": everywhere if mask is None else mask,
        "turn_ids": torch.zeros_like(everywhere, dtype=torch.int64),
    }


def test_cppo_position_weights_by_hand() -> None:
    # Five tokens: w = 1, .95, .9, .85, .8; w D of .11 each passes .1 up to w = .9.
    rows = leaving(row(*[0.11] * 5))
    _, held = run_cppo(rows, delta=0.1, budget=INF, w_min=0.8)
    assert held[0].tolist() == [True, True, False, False, False]
    # One token alone weighs 1.
    assert run_cppo(leaving(row(0.11)), delta=0.1, budget=INF, w_min=0.8)[1].item()


def test_cppo_budget_runs_out_and_recovers() -> None:
    # w = 1, delta .15, budget .1. S counts held tokens too.
    # t: D    c_t = min(.15, .15 + .1 (t-1) - S)
    # 1  .6   .15                       held
    # 2  .02  .15 + .1 - .60 = -.35     held, though D is tiny
    # 3  .02  .15 + .2 - .62 = -.27     held
    # 4  .02  -.19   5  -.11   6  -.03  held
    # 7  .02  .15 + .6 - .70 = .05      kept
    # 8  .14  .15 + .7 - .72 = .13      held
    # 9  .14  .15 + .8 - .86 = .09      held
    rows = leaving(row(0.6, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.14, 0.14))
    _, held = run_cppo(rows, delta=0.15, budget=0.1, w_min=1.0)
    assert held[0].tolist() == [True] * 6 + [False, True, True]


def test_cppo_budget_never_raises_the_token_threshold() -> None:
    # Five quiet tokens leave .15 + .5 of budget; the sixth is still held above .15.
    rows = leaving(row(0, 0, 0, 0, 0, 0.16))
    _, held = run_cppo(rows, delta=0.15, budget=0.1, w_min=1.0)
    assert held[0].tolist() == [False] * 5 + [True]


def test_cppo_holds_no_token_that_returns() -> None:
    # The budget is spent; ratio 2 with a negative advantage moves back.
    rows = leaving(row(0.6, 0.02)) | {"advantages": row(1, -1)}
    surrogate, held = run_cppo(rows, delta=0.15, budget=0.0, w_min=1.0)
    assert held[0].tolist() == [True, False]
    assert surrogate[0].tolist() == pytest.approx([0, -2])


def test_cppo_turn_scope_restarts_weights_and_budget() -> None:
    # Turns of 2 and 3 tokens, w_min .5: w = 1 .5 | 1 .75 .5. delta .1, budget 0.
    # Turn 1: .2 > .1 held; then c = .1 - .2 < 0, held. Turn 2: .09 kept; .01 x .75 <= .01 kept;
    # .06 x .5 = .03 > .1 - .09 - .0075 held.
    rows = leaving(row(0.2, 0.02, 0.09, 0.01, 0.06))
    rows["turn_ids"] = torch.tensor([[0, 0, 1, 1, 1]])
    settings = {"delta": 0.1, "budget": 0.0, "w_min": 0.5}
    assert run_cppo(rows, **settings, scope="turn")[1][0].tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert run_cppo(rows, **settings, scope="trajectory")[1].all()


def test_own_budget_is_the_clamped_percentile_of_policy_tokens() -> None:
    # Of 0, .01, ..., .1 the 90th percentile is .09; a third of it is .03. No token is in slot 11.
    moved = torch.arange(12, dtype=torch.float64).div(100).repeat(4, 1)
    moved *= torch.tensor([[1.0], [1 / 3], [0.0], [1.0]], dtype=torch.float64)
    moved[:, 11] = torch.nan
    mask = torch.ones(4, 12, dtype=torch.bool)
    mask[:, 11], mask[3] = False, False
    assert own_budget(moved, mask)[:, 0].tolist() == pytest.approx([0.04, 0.03, 0.02, 0.02])


def test_cppo_takes_a_budget_for_each_row() -> None:
    rows = random_rows(3)
    budgets = torch.tensor([[0.0], [0.1], [0.02], [0.0]], dtype=torch.float64)
    settings = {"delta": 0.1, "w_min": 0.3}
    _, held = run_cppo(rows, budget=budgets, **settings)
    for i, budget in enumerate(budgets[:, 0].tolist()):
        assert torch.equal(held[i], run_cppo(rows, budget=budget, **settings)[1][i])
    assert held.any()


@pytest.mark.parametrize("scope", ["trajectory", "turn"])
@pytest.mark.parametrize("seed", range(3))
def test_cppo_skips_tool_tokens(seed: int, scope: str) -> None:
    rows = random_rows(seed)
    mask = rows["mask"]
    settings = {"delta": 0.1, "budget": 0.1, "w_min": 0.3, "scope": scope}
    surrogate, held = run_cppo(rows, **settings)
    for i in range(len(mask)):
        alone = {name: x[i : i + 1, mask[i]] for name, x in rows.items()}
        only, only_held = run_cppo(alone, **settings)
        assert torch.equal(only_held[0], held[i, mask[i]])
        assert only[0].allclose(surrogate[i, mask[i]], rtol=0, atol=1e-12)
    assert held.any() and not surrogate[~mask].any() and not held[~mask].any()


def test_cppo_masked_slots_are_inert() -> None:
    rows = random_rows(10)
    x = rows["logprobs"].requires_grad_()
    surrogate, _ = run_cppo(rows, delta=0.1, budget=0.05)
    surrogate.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert surrogate.isfinite().all() and not x.grad[~rows["mask"]].any()
    # A row without a policy token is empty, not an error.
    rows = random_rows(11) | {"mask": torch.zeros(4, 24, dtype=torch.bool)}
    assert not run_cppo(rows, delta=0.1, budget=0.05)[0].any()
