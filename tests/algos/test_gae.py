"""Estimators with a critic: numbers by hand, slow references, identities."""

from dataclasses import replace

import pytest
import torch

from stepcredit.algos.gae import (
    bilevel_gae,
    evpo,
    length_adaptive_lam,
    returns_to_go,
    step_gae,
    token_gae,
    turn_gae,
)
from tests.algos import reference
from tests.algos.estimators import (
    SEEDS,
    assert_agrees,
    gated,
    listed,
    marks,
    numbers,
    over_both,
    over_steps,
    over_tokens,
    over_turns,
    rows,
)

# --- tokens: the toy of three or six tokens, gamma .9, lambda .95 -----------------------------


def test_token_gae_by_hand() -> None:
    # delta = (.9*.4-.2, .9*.6-.4, 1-.6) = (.16, .14, .4); factor .9*.95 = .855
    credit = token_gae(rows([0, 0, 1]), rows([0.2, 0.4, 0.6]), marks("111"), gamma=0.9, lam=0.95)
    assert listed(credit.advantages[0]) == pytest.approx([0.57211, 0.482, 0.4], abs=1e-9)
    assert credit.returns is not None
    assert listed(credit.returns[0]) == pytest.approx([0.77211, 0.882, 1.0], abs=1e-9)


def test_token_gae_skips_observation_tokens() -> None:
    # delta = (.16, .9*.5-.4, .9*.6-.5, .4) = (.16, .05, .04, .4)
    credit = token_gae(
        rows([0, 0, 0, 0, 0, 1]),
        rows([0.2, 0.4, 9.0, 9.0, 0.5, 0.6]),
        marks("110011"),
        gamma=0.9,
        lam=0.95,
    )
    expected = [0.4820, 0.3766, 0, 0, 0.3820, 0.4000]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=5e-5)


def test_token_gae_with_the_reward_before_a_trailing_observation() -> None:
    # delta = (.16, 1-.4): the observation after the last policy token is no state to decay over.
    credit = token_gae(rows([0, 1, 0]), rows([0.2, 0.4, 9.0]), marks("110"), gamma=0.9, lam=0.95)
    assert listed(credit.advantages[0]) == pytest.approx([0.6730, 0.6000, 0], abs=1e-9)


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


def test_truncated_rows_bootstrap_from_the_state_they_stopped_in() -> None:
    # Row 0 ended, row 1 was cut before its observation. delta of the last token: 1 - .4 = .6 and
    # 0 + .9*.5 - .4 = .05; of the first .9*.4 - .2 = .16; factor .45.
    credit = token_gae(
        rows([0, 1, 0], [0, 0, 0]),
        rows([0.2, 0.4, 9], [0.2, 0.4, 9]),
        marks("110", "110"),
        gamma=0.9,
        lam=0.5,
        final_values=torch.tensor([0, 0.5], dtype=torch.float64),
    )
    expected = rows([0.16 + 0.45 * 0.6, 0.6, 0], [0.16 + 0.45 * 0.05, 0.05, 0])
    assert torch.allclose(credit.advantages, expected, atol=1e-12)


def test_decoupled_returns_have_their_own_lambda() -> None:
    # Returns at lambda 1 and gamma 1 are the rewards to come, 1; the advantages keep lambda .5.
    credit = token_gae(
        rows([0, 0, 1]), rows([0.2, 0.4, 0.6]), marks("111"), gamma=1.0, lam=0.5, lam_value=1.0
    )
    # delta = (.2, .2, .4)
    assert listed(credit.advantages[0]) == pytest.approx([0.2 + 0.5 * 0.4, 0.4, 0.4], abs=1e-12)
    assert credit.returns is not None
    assert listed(credit.returns[0]) == pytest.approx([1, 1, 1], abs=1e-12)


def test_decoupled_returns_bootstrap_as_well() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        credit = token_gae(
            c.rewards, c.values, c.mask, gamma=0.9, lam=0.5, final_values=c.final, lam_value=1.0
        )
        assert credit.returns is not None
        to_go = returns_to_go(c.rewards, c.mask, gamma=0.9, final_values=c.final)
        assert torch.allclose(credit.returns, to_go, rtol=0, atol=1e-12)
        plain = over_tokens(c, 0.9, 0.5).advantages
        assert torch.equal(credit.advantages, plain)


def test_length_adaptive_lambda_by_hand() -> None:
    # 1 - 1/(.5*l) for l = 4, 3, 1 and 0: .5, 1/3, -1 and minus infinity, both held at 0.
    mask = marks("1111", "1011", "0100", "0000")
    assert listed(length_adaptive_lam(mask, alpha=0.5)) == pytest.approx([0.5, 1 / 3, 0, 0])
    long = torch.ones(1, 100, dtype=torch.bool)
    assert listed(length_adaptive_lam(long)) == pytest.approx([0.8])


def test_lambda_may_differ_from_row_to_row() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        lam = length_adaptive_lam(c.mask, alpha=0.4)
        got = token_gae(
            c.rewards, c.values, c.mask, gamma=0.95, lam=lam, final_values=c.final
        ).advantages
        assert_agrees(got, reference.token_gae(c, 0.95, listed(lam)), seed)


def test_token_gae_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        credit = over_tokens(c, 0.93, 0.8)
        assert_agrees(credit.advantages, reference.token_gae(c, 0.93, 0.8), seed)
        assert credit.returns is not None and credit.value_mask is not None
        assert torch.equal(credit.value_mask, c.mask)
        learned = credit.advantages + torch.where(c.mask, c.values, 0)
        assert torch.allclose(credit.returns, learned, atol=1e-12)


def test_token_gae_is_gae_on_the_policy_tokens_alone() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        skipped = over_tokens(c, 0.93, 0.8).advantages
        for i in c.mask.any(1).nonzero().flatten().tolist():
            kept, row = c.mask[i], slice(i, i + 1)
            alone = token_gae(
                c.rewards[row, kept],
                c.values[row, kept],
                c.mask[row, kept],
                gamma=0.93,
                lam=0.8,
                final_values=c.final[row],
            ).advantages
            assert torch.allclose(skipped[row, kept], alone, rtol=0, atol=1e-12)


def test_returns_to_go_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        got = returns_to_go(c.rewards, c.mask, gamma=0.9, final_values=c.final)
        for i in range(len(c.mask)):
            expected = reference.to_go(c, i, 0.9)
            assert listed(got[i, c.mask[i]]) == pytest.approx(expected, abs=1e-10)


# --- steps and turns --------------------------------------------------------------------------


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


def test_turn_gae_by_hand() -> None:
    # Turns of 2 and 2 tokens that pay .5 (on the first token) and 1; cut, worth .4 there.
    credit = turn_gae(
        rows([0.5, 0, 7, 0, 1]),
        rows([0.3, 9, 9, 0.6, 9]),
        marks("11011"),
        numbers("00111"),
        gamma=0.9,
        lam=0.5,
        final_values=torch.tensor([0.4], dtype=torch.float64),
    )
    # delta2 = 1 + .9*.4 - .6 = .76, delta1 = .5 + .9*.6 - .3 = .74; factor .45
    first = 0.74 + 0.45 * 0.76
    assert listed(credit.advantages[0]) == pytest.approx([first, first, 0, 0.76, 0.76], abs=1e-12)
    assert credit.value_mask is not None and credit.returns is not None
    assert credit.value_mask[0].tolist() == [c == "1" for c in "10010"]
    assert listed(credit.returns[0]) == pytest.approx([first + 0.3, 0, 0, 1.36, 0], abs=1e-12)


def test_step_and_turn_gae_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        by_step, by_turn = over_steps(c, 0.93, 0.8), over_turns(c, 0.93, 0.8)
        assert_agrees(by_step.advantages, reference.step_gae(c, 0.93, 0.8), seed)
        assert_agrees(by_turn.advantages, reference.turn_gae(c, 0.93, 0.8), seed)
        for credit in (by_step, by_turn):
            assert credit.returns is not None and credit.value_mask is not None
            learned = torch.where(credit.value_mask, credit.advantages + c.values, 0)
            assert torch.allclose(credit.returns, learned, atol=1e-12)


def test_step_gae_of_one_token_steps_is_token_gae() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        by_step = over_steps(replace(c, ends=c.mask), 0.97, 0.9).advantages
        assert torch.allclose(by_step, over_tokens(c, 0.97, 0.9).advantages, atol=1e-12)


def test_turn_gae_of_one_step_turns_is_step_gae() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        before = torch.cat([torch.zeros_like(c.ends[:, :1]), c.ends[:, :-1]], dim=1)
        by_turn = over_turns(replace(c, turns=before.long().cumsum(1)), 0.97, 0.9).advantages
        assert torch.allclose(by_turn, over_steps(c, 0.97, 0.9).advantages, atol=1e-12)


# --- bi-level ---------------------------------------------------------------------------------


def test_bilevel_gae_by_hand() -> None:
    # Turns of 2 tokens each, an observation between; V at their last tokens .5 and .4.
    credit = bilevel_gae(
        rows([0, 0.5, 7, 0, 1]),
        rows([0.2, 0.5, 9, 0.3, 0.4]),
        marks("11011"),
        numbers("00111"),
        gamma=0.9,
        lam=0.8,
        gamma_turn=0.95,
        lam_turn=0.5,
    )
    # Turns: 1 - .4 = .6; .5 + .95*.4 - .5 + .95*.5*.6 = .665. Inside: .9*.4 - .3 + .72*.6 and
    # .9*.5 - .2 + .72*.665.
    second, first = 0.6, 0.38 + 0.475 * 0.6
    expected = [0.25 + 0.72 * first, first, 0, 0.06 + 0.72 * second, second]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=1e-12)
    assert credit.returns is not None
    learned = [expected[0] + 0.2, first + 0.5, 0, expected[3] + 0.3, 1.0]
    assert listed(credit.returns[0]) == pytest.approx(learned, abs=1e-12)


def test_bilevel_gae_counts_what_a_turn_pays_inside() -> None:
    # As above, with .1 on the second turn's first token: worth .4 + .1 seen from the first turn.
    credit = bilevel_gae(
        rows([0, 0.5, 7, 0.1, 1]),
        rows([0.2, 0.5, 9, 0.3, 0.4]),
        marks("11011"),
        numbers("00111"),
        gamma=0.9,
        lam=0.8,
        gamma_turn=0.95,
        lam_turn=0.5,
    )
    second, first = 0.6, 0.95 * 0.5 + 0.475 * 0.6
    expected = [0.25 + 0.72 * first, first, 0, 0.1 + 0.06 + 0.72 * second, second]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("paid", [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
def test_bilevel_gae_keeps_turns_that_pay_nothing(paid: list[float]) -> None:
    # Mask 1 1 0 1 1, every value .5, token level undiscounted, .95 per turn.
    credit = bilevel_gae(
        rows([0, paid[0], 0, 0, paid[1]]),
        rows([0.5] * 5),
        marks("11011"),
        numbers("00111"),
        gamma=1.0,
        lam=1.0,
        gamma_turn=0.95,
        lam_turn=1.0,
    )
    second = paid[1] - 0.5
    first = paid[0] + 0.95 * 0.5 - 0.5 + 0.95 * second
    expected = [first, first, 0, second, second]
    assert listed(credit.advantages[0]) == pytest.approx(expected, abs=1e-12)


def test_bilevel_gae_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        credit = bilevel_gae(
            c.rewards,
            c.values,
            c.mask,
            c.turns,
            gamma=0.97,
            lam=0.9,
            gamma_turn=0.93,
            lam_turn=0.8,
            final_values=c.final,
        )
        assert_agrees(credit.advantages, reference.bilevel_gae(c, 0.97, 0.9, 0.93, 0.8), seed)


def test_bilevel_gae_without_discount_is_token_gae() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        bilevel, token = over_both(c, 1.0, 1.0), over_tokens(c, 1.0, 1.0)
        assert bilevel.returns is not None and token.returns is not None
        assert torch.allclose(bilevel.advantages, token.advantages, rtol=0, atol=1e-12)
        assert torch.allclose(bilevel.returns, token.returns, rtol=0, atol=1e-12)


# --- the explained-variance gate --------------------------------------------------------------


def test_evpo_by_hand() -> None:
    # Returns-to-go 1, 1 and 0, 0. Values near them explain: GAE at lambda 0 is r + V' - V.
    rewards, mask = rows([0, 1], [0, 0]), marks("11", "11")
    near = rows([0.8, 0.9], [0.3, 0.1])
    kept = evpo(rewards, near, mask, gamma=1.0, lam=0.0)
    assert torch.allclose(kept.advantages, rows([0.1, 0.1], [-0.2, -0.1]), atol=1e-12)
    # Values that point the other way do not: the mean .5 of the four tokens is the baseline.
    wrong = rows([0.1, 0.1], [0.9, 0.9])
    dropped = evpo(rewards, wrong, mask, gamma=1.0, lam=0.0)
    assert torch.allclose(dropped.advantages, rows([0.5, 0.5], [-0.5, -0.5]), atol=1e-12)
    # The critic goes on learning its own returns: lambda 0 gives r + V'.
    assert dropped.returns is not None
    assert torch.allclose(dropped.returns, rows([0.1, 1.0], [0.9, 0.0]), atol=1e-12)
    # What the gate saw: errors .2, .1, -.3, -.1 vary by .036875, the returns by .25.
    explained = "critic/explained_variance_to_go"
    assert kept.found == {"critic/gate": 1.0, explained: pytest.approx(1 - 0.036875 / 0.25)}
    assert dropped.found["critic/gate"] == 0.0 and dropped.found[explained] < 0


def test_evpo_without_explained_variance_uses_the_mean() -> None:
    # A constant critic explains nothing: its variance share is 0, which is not positive.
    rewards, mask = rows([0, 1], [0, 0]), marks("11", "11")
    got = evpo(rewards, torch.full_like(rewards, 0.7), mask, gamma=1.0, lam=0.0).advantages
    assert torch.allclose(got, rows([0.5, 0.5], [-0.5, -0.5]), atol=1e-12)


def test_evpo_against_loops() -> None:
    used = []
    for seed in SEEDS:
        c = reference.random_case(seed)
        if seed % 2:
            # A critic that has seen the returns, with noise.
            to_go = returns_to_go(c.rewards, c.mask, gamma=0.93, final_values=c.final)
            c = replace(c, values=to_go + 0.5 * c.values)
        expected, use = reference.evpo(c, 0.93, 0.8)
        assert_agrees(gated(c, 0.93, 0.8).advantages, expected, seed)
        used.append(use)
    assert 5 < sum(used) < len(used) - 5
