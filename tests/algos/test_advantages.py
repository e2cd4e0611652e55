"""Hand-computed numbers, slow references and identities of every estimator."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stepcredit.algos.advantages import (
    group_outcome,
    group_process,
    standardise,
    step_gae,
    token_gae,
    whiten,
)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def marks(*values: str) -> Tensor:
    """'1' is True."""
    return torch.tensor([[c == "1" for c in v] for v in values])


def listed(x: Tensor) -> list[float]:
    return [float(v) for v in x]


# --- token GAE ------------------------------------------------------------------------------


def test_token_gae_by_hand() -> None:
    # delta = (.9*.4-.2, .9*.6-.4, 1-.6) = (.16, .14, .4); factor .9*.95 = .855
    credit = token_gae(rows([0, 0, 1]), rows([0.2, 0.4, 0.6]), marks("111"), gamma=0.9, lam=0.95)
    assert listed(credit.advantages[0]) == pytest.approx([0.57211, 0.482, 0.4], abs=1e-9)
    assert credit.returns is not None
    assert listed(credit.returns[0]) == pytest.approx([0.77211, 0.882, 1.0], abs=1e-9)


def test_token_gae_skips_observation_tokens() -> None:
    # The oracle's numbers for two action tokens, two observation tokens, two action tokens.
    credit = token_gae(
        rows([0, 0, 0, 0, 0, 1]),
        rows([0.2, 0.4, 9.0, 9.0, 0.5, 0.6]),
        marks("110011"),
        gamma=0.9,
        lam=0.95,
    )
    expected = [0.4820, 0.3766, 0, 0, 0.3820, 0.4000]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=5e-5)


def test_token_gae_with_rewards_in_two_turns() -> None:
    credit = token_gae(
        rows([0, 0.5, 0, 0, 0, 1]),
        rows([0.2, 0.4, 9.0, 9.0, 0.5, 0.6]),
        marks("110011"),
        gamma=0.9,
        lam=0.95,
    )
    expected = [0.9095, 0.8766, 0, 0, 0.3820, 0.4000]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=5e-5)


def test_terminal_credit_does_not_decay_over_tool_output() -> None:
    # 15 action tokens in 3 turns of 5 with 37 tool tokens between; zero critic.
    mask = marks("11111" + "0" * 20 + "11111" + "0" * 17 + "11111")
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[0, -1] = 1
    credit = token_gae(rewards, torch.zeros_like(rewards), mask, gamma=1.0, lam=0.95)
    assert float(credit.advantages[0, 0]) == pytest.approx(0.95**14, abs=1e-12)


# --- step GAE -------------------------------------------------------------------------------


def test_step_gae_by_hand_with_a_zero_step_and_uneven_turns() -> None:
    # Three steps of 2, 1 and 3 tokens, an observation between them; V is read at the first token.
    mask = marks("1101001110")
    rewards = rows([0, 0.5, 0, 0.0, 0, 0, 0, 0, 1.0, 0])
    values = rows([0.3, 9, 9, 0.6, 9, 9, 0.2, 9, 9, 9])
    ends = marks("0101000010")
    credit = step_gae(rewards, values, mask, ends, gamma=0.9, lam=0.5)
    # delta1 = .5+.9*.6-.3 = .74, delta2 = 0+.9*.2-.6 = -.42, delta3 = 1-.2 = .8; factor .45
    third, second = 0.8, -0.42 + 0.45 * 0.8
    first = 0.74 + 0.45 * second
    expected = [first, first, 0, second, 0, 0, third, third, third, 0]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=1e-12)
    assert credit.value_mask is not None and credit.returns is not None
    assert credit.value_mask[0].tolist() == [c == "1" for c in "1001001000"]
    targets = credit.returns[credit.value_mask]
    assert listed(targets) == pytest.approx([first + 0.3, second + 0.6, third + 0.2], abs=1e-12)


def test_unjudged_tokens_belong_to_the_step_they_lead_to() -> None:
    # Tokens: unjudged, step of two, unjudged tail. The tail is a step of its own that pays 0.
    credit = step_gae(
        rows([0, 0, 1, 0]),
        rows([0.4, 9, 9, 0.1]),
        marks("1111"),
        marks("0010"),
        gamma=1.0,
        lam=1.0,
    )
    # tail: 0 - .1; step: 1 + .1 - .4 + (-.1)
    assert listed(credit.advantages[0]) == pytest.approx([0.6, 0.6, 0.6, -0.1], abs=1e-12)


def test_step_gae_of_one_token_steps_is_token_gae() -> None:
    torch.manual_seed(0)
    mask = torch.rand(5, 17) < 0.7
    rewards = torch.randn(5, 17, dtype=torch.float64) * mask
    values = torch.randn(5, 17, dtype=torch.float64)
    by_step = step_gae(rewards, values, mask, mask, gamma=0.97, lam=0.9).advantages
    by_token = token_gae(rewards, values, mask, gamma=0.97, lam=0.9).advantages
    assert torch.allclose(by_step, by_token, atol=1e-12)


# --- GRPO -----------------------------------------------------------------------------------


def test_group_outcome_by_hand() -> None:
    # Returns 1, 0, 0, 1 and 2, 4: means .5 and 3, standard deviations (n-1) .57735 and 1.41421.
    rewards = rows([0, 1], [0, 0], [0, 0], [1, 0], [2, 0], [0, 4])
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    mask = marks("11", "11", "01", "10", "11", "01")
    got = group_outcome(rewards, mask, group).advantages
    a, b = 0.5 / math.sqrt(1 / 3), 1 / math.sqrt(2)
    expected = rows([a, a], [-a, -a], [0, -a], [a, 0], [-b, -b], [0, b])
    assert torch.allclose(got, expected, atol=1e-12)


def test_group_process_by_hand() -> None:
    # Sample 1: steps pay 1, 0 (the second is a step although it pays 0), an observation between,
    # an unjudged token before the first end, an unjudged tail. Sample 2: one step, pays 1.
    # Pool {1, 0, 1}: mean 2/3, standard deviation sqrt(1/3); normalised 1 -> .57735, 0 -> -1.1547.
    rewards = rows([0, 1, 0, 0, 0], [1, 0, 0, 0, 0])
    mask = marks("11011", "10000")
    ends = marks("01010", "10000")
    got = group_process(rewards, mask, ends, torch.tensor([0, 0])).advantages
    up, down = 1 / math.sqrt(3), -2 / math.sqrt(3)
    expected = rows([up + down, up + down, 0, down, 0], [up, 0, 0, 0, 0])
    assert torch.allclose(got, expected, atol=1e-12)


def test_process_credit_depends_on_the_number_of_steps() -> None:
    # The published form credits an extra step whatever it earns: with 0/1 terminal rewards a long
    # success gets less at its first step than a short one.
    rewards = torch.zeros(4, 10, dtype=torch.float64)
    lengths = [3, 10, 3, 10]
    ends = torch.zeros(4, 10, dtype=torch.bool)
    for row, length in enumerate(lengths):
        ends[row, :length] = True
        rewards[row, length - 1] = float(row < 2)
    got = group_process(rewards, ends, ends, torch.zeros(4, dtype=torch.int64)).advantages
    # Pool of 26 with two ones: mean 1/13, variance (2 (12/13)^2 + 24 (1/13)^2) / 25 = 24/325.
    std = math.sqrt(24 / 325)
    expected = [10 / 13 / std, 3 / 13 / std, -3 / 13 / std, -10 / 13 / std]
    assert listed(got[:, 0]) == pytest.approx(expected, abs=1e-12)


def test_equal_rewards_give_no_advantage() -> None:
    rewards = rows([0.1 + 0.2, 0], [0.3, 0], [0.3, 0])
    group = torch.zeros(3, dtype=torch.int64)
    mask = marks("11", "11", "11")
    ends = marks("10", "10", "10")
    assert (group_outcome(rewards, mask, group).advantages == 0).all()
    assert (group_process(rewards, mask, ends, group).advantages == 0).all()


@pytest.mark.parametrize("value", [0.7, 10.1, 3.3e6, -1e-4])
def test_rounding_in_single_precision_is_no_advantage(value: float) -> None:
    # Sums of equal numbers differ in their last digits; the paper's formula would divide by that.
    rewards = torch.full((16, 32), value)
    rewards[3] = rewards[3] * (1 + 6e-8)
    mask = torch.ones(16, 32, dtype=torch.bool)
    group = torch.arange(16) // 8
    assert (group_outcome(rewards, mask, group).advantages == 0).all()
    assert (group_process(rewards, mask, mask, group).advantages == 0).all()


def test_small_but_real_differences_are_kept() -> None:
    rewards = rows([1000.0], [1000.1])
    got = group_outcome(rewards, marks("1", "1"), torch.tensor([0, 0])).advantages
    assert listed(got[:, 0]) == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_process_with_one_step_is_outcome() -> None:
    torch.manual_seed(1)
    mask = torch.rand(6, 9) < 0.6
    mask[:, 0] = True
    last = mask & (mask.long().cumsum(1) == mask.sum(1, keepdim=True))
    rewards = torch.randn(6, 9, dtype=torch.float64) * last
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    outcome = group_outcome(rewards, mask, group).advantages
    process = group_process(rewards, mask, last, group).advantages
    assert torch.allclose(outcome, process, atol=1e-12)


# --- slow references on random batches -------------------------------------------------------


def reference_token_gae(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> list[float]:
    n = len(rewards)
    deltas = [
        rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)
    ]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


def reference_steps(mask: list[bool], ends: list[bool]) -> list[list[int]]:
    steps: list[list[int]] = [[]]
    for t, chosen in enumerate(mask):
        if chosen:
            steps[-1].append(t)
            if ends[t]:
                steps.append([])
    return [s for s in steps if s]


@st.composite
def episodes(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    seed = draw(st.integers(0, 10_000))
    count, width = draw(st.integers(1, 5)), draw(st.integers(1, 14))
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(count, width, generator=g) < 0.6
    ends = mask & (torch.rand(count, width, generator=g) < 0.4)
    paid = ends & (torch.rand(count, width, generator=g) < 0.7)
    rewards = torch.randn(count, width, generator=g, dtype=torch.float64) * paid
    values = torch.randn(count, width, generator=g, dtype=torch.float64)
    return rewards, values, mask, ends


@given(episodes())
def test_gae_against_slow_references(case: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    rewards, values, mask, ends = case
    by_token = token_gae(rewards, values, mask, gamma=0.93, lam=0.8).advantages
    by_step = step_gae(rewards, values, mask, ends, gamma=0.93, lam=0.8).advantages
    for row in range(len(mask)):
        chosen = [t for t, m in enumerate(mask[row].tolist()) if m]
        r, v = listed(rewards[row]), listed(values[row])
        expected = reference_token_gae([r[t] for t in chosen], [v[t] for t in chosen], 0.93, 0.8)
        assert listed(by_token[row, chosen]) == pytest.approx(expected, abs=1e-10)
        steps = reference_steps(mask[row].tolist(), ends[row].tolist())
        totals = [sum(r[t] for t in s) for s in steps]
        per_step = reference_token_gae(totals, [v[s[0]] for s in steps], 0.93, 0.8)
        for step, advantage in zip(steps, per_step, strict=True):
            assert listed(by_step[row, step]) == pytest.approx([advantage] * len(step), abs=1e-10)


@given(episodes())
def test_groups_against_slow_references(case: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    rewards, _, mask, ends = case
    group = torch.arange(len(mask)) % 2
    outcome = group_outcome(rewards, mask, group).advantages
    process = group_process(rewards, mask, ends, group).advantages
    for g in set(group.tolist()):
        members = [i for i in range(len(mask)) if group[i] == g]
        returns = [sum(listed(rewards[i])) for i in members]
        pool = [float(rewards[i, t]) for i in members for t in range(mask.shape[1]) if ends[i, t]]
        for i, ret in zip(members, returns, strict=True):
            score = z_score(ret, returns)
            for t in range(mask.shape[1]):
                if not mask[i, t]:
                    assert outcome[i, t] == 0 and process[i, t] == 0
                    continue
                assert float(outcome[i, t]) == pytest.approx(score, abs=1e-10)
                later = [k for k in range(t, mask.shape[1]) if ends[i, k]]
                total = sum(z_score(float(rewards[i, k]), pool) for k in later)
                assert float(process[i, t]) == pytest.approx(total, abs=1e-10)


def z_score(x: float, pool: list[float]) -> float:
    if len(pool) < 2:
        return 0.0
    mean = sum(pool) / len(pool)
    std = math.sqrt(sum((p - mean) ** 2 for p in pool) / (len(pool) - 1))
    return (x - mean) / std if std > 1e-6 * max(map(abs, pool)) else 0.0


# --- masked slots are inert -------------------------------------------------------------------


@given(episodes(), st.sampled_from([float("nan"), 1e9, -7.0]))
def test_masked_slots_change_nothing(
    case: tuple[Tensor, Tensor, Tensor, Tensor], poison: float
) -> None:
    rewards, values, mask, ends = case
    group = torch.zeros(len(mask), dtype=torch.int64)
    bad_rewards = torch.where(mask, rewards, poison)
    bad_values = torch.where(mask, values, poison)
    settings = {"gamma": 0.9, "lam": 0.7}
    pairs = [
        (
            token_gae(rewards, values, mask, **settings),
            token_gae(bad_rewards, bad_values, mask, **settings),
        ),
        (
            step_gae(rewards, values, mask, ends, **settings),
            step_gae(bad_rewards, bad_values, mask, ends, **settings),
        ),
        (group_outcome(rewards, mask, group), group_outcome(bad_rewards, mask, group)),
        (group_process(rewards, mask, ends, group), group_process(bad_rewards, mask, ends, group)),
    ]
    for clean, poisoned in pairs:
        assert torch.equal(clean.advantages, poisoned.advantages)
        if clean.value_mask is not None:
            assert clean.returns is not None and poisoned.returns is not None
            assert poisoned.value_mask is not None
            assert torch.equal(clean.value_mask, poisoned.value_mask)
            kept = clean.value_mask
            assert torch.equal(clean.returns[kept], poisoned.returns[kept])


@given(episodes(), st.integers(0, 1000))
def test_inserted_masked_tokens_change_nothing(
    case: tuple[Tensor, Tensor, Tensor, Tensor], seed: int
) -> None:
    rewards, values, mask, ends = case
    width = mask.shape[1]
    group = torch.zeros(len(mask), dtype=torch.int64)
    # Stretch the time axis: old position t goes to a later place, the gaps hold masked tokens.
    g = torch.Generator().manual_seed(seed)
    place = torch.randperm(2 * width, generator=g)[:width].sort().values

    def stretch(x: Tensor, fill: float) -> Tensor:
        out = torch.full((len(x), 2 * width), fill, dtype=x.dtype)
        out[:, place] = x
        return out

    wide = (stretch(rewards, 5.0), stretch(values, 9.0), stretch(mask, False), stretch(ends, False))
    settings = {"gamma": 0.9, "lam": 0.7}
    narrow_and_wide = [
        (token_gae(rewards, values, mask, **settings), token_gae(*wide[:3], **settings)),
        (step_gae(rewards, values, mask, ends, **settings), step_gae(*wide, **settings)),
        (group_outcome(rewards, mask, group), group_outcome(wide[0], wide[2], group)),
        (
            group_process(rewards, mask, ends, group),
            group_process(wide[0], wide[2], wide[3], group),
        ),
    ]
    for narrow, stretched in narrow_and_wide:
        assert torch.allclose(narrow.advantages, stretched.advantages[:, place], atol=1e-12)


# --- helpers ----------------------------------------------------------------------------------


def test_standardise_keeps_owners_apart() -> None:
    x = torch.tensor([1.0, 3.0, 10.0, 10.0, 5.0])
    owner = torch.tensor([0, 0, 1, 1, 2])
    got = standardise(x, owner)
    assert listed(got) == pytest.approx([-(0.5**0.5), 0.5**0.5, 0, 0, 0])


def test_whiten_reads_policy_tokens_alone() -> None:
    got = whiten(rows([1, float("nan"), 3]), marks("101"))
    assert listed(got[0]) == pytest.approx([-(0.5**0.5), 0, 0.5**0.5])
