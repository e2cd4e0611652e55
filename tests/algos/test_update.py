"""Optimizer steps: what is trained must not depend on how rows are cut into passes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stepcredit.agents.logprobs import Reading, token_logprobs
from stepcredit.agents.model import ValueModel, build_tiny, value_model
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import explained_variance
from stepcredit.algos.presets import GRPOSettings, PPOSettings, build, grpo, ppo
from stepcredit.algos.update import (
    kl_in_reward,
    policy_gradient,
    policy_loss,
    update_critic,
    update_policy,
    with_reference,
    with_truncation,
    with_values,
    with_weights,
)

VOCAB = 11


def make_batch(rows: int = 8, width: int = 12, seed: int = 0) -> Batch:
    """Rows of unequal length with observation tokens between policy tokens."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, width + 1, (rows,), generator=g)
    real = torch.arange(width) < lengths[:, None]
    action = real & (torch.rand(rows, width, generator=g) < 0.6)
    action[:, 0], action[:, 3] = False, True
    return Batch(
        input_ids=torch.randint(0, VOCAB, (rows, width), generator=g) * real,
        attention_mask=real,
        action_mask=action,
        loss_mask=action,
        turn_ids=(torch.arange(width) // 4).expand(rows, width),
        step_end=action,
        rewards=torch.randn(rows, width, generator=g) * action,
        old_logprobs=-2 + 0.1 * torch.randn(rows, width, generator=g),
        group_index=torch.arange(rows) // 4,
        truncated=torch.zeros(rows, dtype=torch.bool),
        outcomes=(torch.arange(rows) % 2).float(),
        state_index=torch.full((rows, width), -1),
    )


def masked_to(batch: Batch, *rows: list[int]) -> Batch:
    mask = torch.tensor(rows).bool()
    return replace(batch, action_mask=mask, loss_mask=mask)


def on_policy(batch: Batch) -> Reading:
    """The policy that sampled, as it reads its own tokens."""
    return Reading(batch.old_logprobs, torch.zeros_like(batch.old_logprobs))


def gradient(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, as a share of the largest gradient."""
    return float((a - b).abs().max() / a.abs().max())


def policy() -> nn.Module:
    return build_tiny(VOCAB, "0.12M", seed=0)


def critic() -> ValueModel:
    network = value_model(build_tiny(VOCAB, "0.12M", seed=0))
    nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(3))
    return network


@pytest.mark.parametrize("algorithm", [grpo(GRPOSettings()), ppo(PPOSettings()), build("vapo", {})])
def test_gradient_is_the_same_for_any_micro_batch_size(algorithm: Algorithm) -> None:
    batch = with_reference(make_batch(), build_tiny(VOCAB, "0.12M", seed=1), 1.0, 8)
    advantages = torch.randn(batch.rewards.shape, generator=torch.Generator().manual_seed(1))
    batch = with_weights(replace(batch, advantages=advantages), algorithm)
    found, logs = [], []
    for size in (1, 3, 8):
        model = policy()
        log = policy_gradient(model, batch, algorithm, 0.1, 1.0, size)
        found.append(gradient(model))
        logs.append(log)
    for other, log in zip(found[1:], logs[1:], strict=True):
        assert apart(found[0], other) < 1e-6
        assert log == pytest.approx(logs[0], abs=1e-5)


def test_critic_gradient_is_the_same_for_any_micro_batch_size() -> None:
    settings = ppo(PPOSettings(value_epochs=1, value_mini_batches=1)).critic
    assert settings is not None
    found = []
    for size in (1, 3, 8):
        network = critic()
        batch = with_values(make_batch(), network, size)
        credit = ppo(PPOSettings()).advantage(batch)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        update_critic(
            network,
            optimizer,
            batch,
            credit,
            settings,
            micro_batch_size=size,
            max_grad_norm=1e9,
            shuffle=torch.Generator(),
        )
        found.append(gradient(network))
    assert apart(found[0], found[1]) < 1e-6
    assert apart(found[0], found[2]) < 1e-6


def test_nan_in_masked_slots_reaches_neither_loss_nor_gradient() -> None:
    algorithm = grpo(GRPOSettings())
    batch = with_reference(make_batch(), build_tiny(VOCAB, "0.12M", seed=1), 1.0, 8)
    assert batch.ref_logprobs is not None
    advantages = torch.randn(batch.rewards.shape, generator=torch.Generator().manual_seed(1))
    batch = with_weights(replace(batch, advantages=advantages), algorithm)
    nan = torch.full_like(batch.rewards, float("nan"))

    def poisoned(x: torch.Tensor | None) -> torch.Tensor:
        assert x is not None
        return torch.where(batch.action_mask, x, nan)

    worse = replace(
        batch,
        old_logprobs=poisoned(batch.old_logprobs),
        ref_logprobs=poisoned(batch.ref_logprobs),
        advantages=poisoned(batch.advantages),
        weights=poisoned(batch.weights),
    )
    found = []
    for case in (batch, worse):
        logprobs = torch.full_like(nan, -2.0)
        if case is worse:
            logprobs = poisoned(logprobs)
        logprobs.requires_grad_()
        loss, _ = policy_loss(Reading(logprobs, nan), case, algorithm, 0.1)
        loss.backward()
        assert logprobs.grad is not None
        found.append((float(loss.detach()), logprobs.grad))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_weighted_loss_by_hand() -> None:
    # Two rows of 2 and 1 policy tokens, ratio 1: grpo weighs them 1/4, 1/4 and 1/2.
    batch = masked_to(make_batch(2, 6), [0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0])
    advantages = torch.tensor([[9.0, 2, 9, 4, 9, 9], [9, 9, 9, -3, 9, 9]])
    batch = replace(batch, advantages=advantages)
    algorithm = grpo(GRPOSettings(beta=0.0))
    loss, _ = policy_loss(on_policy(batch), with_weights(batch, algorithm), algorithm, 0.0)
    assert float(loss) == pytest.approx(-(2 / 4 + 4 / 4 - 3 / 2))
    by_token = replace(algorithm, weight=ppo(PPOSettings()).weight)
    loss, _ = policy_loss(on_policy(batch), with_weights(batch, by_token), by_token, 0.0)
    assert float(loss) == pytest.approx(-(2 + 4 - 3) / 3)


def test_kl_in_loss_by_hand() -> None:
    batch = masked_to(make_batch(1, 6), [0, 0, 0, 1, 0, 0])
    zero = torch.zeros_like(batch.rewards)
    batch = replace(batch, ref_logprobs=batch.old_logprobs - 1.0, advantages=zero)
    algorithm = grpo(GRPOSettings(beta=0.5))
    loss, by_token = policy_loss(on_policy(batch), with_weights(batch, algorithm), algorithm, 0.5)
    k3 = float(torch.exp(torch.tensor(-1.0))) + 1 - 1
    assert float(loss) == pytest.approx(0.5 * k3, abs=1e-6)
    assert by_token["kl"][0].tolist() == pytest.approx([0, 0, 0, k3, 0, 0], abs=1e-6)
    # A coefficient that has moved since: what counts is the present one.
    moved, _ = policy_loss(on_policy(batch), with_weights(batch, algorithm), algorithm, 0.1)
    assert float(moved) == pytest.approx(0.1 * k3, abs=1e-6)


@pytest.mark.parametrize("preset", ["grpo", "dppo", "dr_grpo"])
def test_logged_shares_are_means_over_policy_tokens_whatever_the_weights(preset: str) -> None:
    batch = masked_to(make_batch(2, 6), [0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0])
    model = policy()
    now = token_logprobs(model, batch.input_ids, batch.attention_mask, 1.0).logprobs.detach()
    # Token 1 of row 0 has become 3 times as likely, with a good advantage: two regions hold it.
    moved = torch.zeros(2, 6).index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(1.1))
    algorithm = replace(build(preset, {"beta": 0.1}))
    if preset == "dppo":
        algorithm = build(preset, {"beta": 0.1, "delta": 1e-9})
    batch = replace(
        batch,
        old_logprobs=now - moved,
        ref_logprobs=now,
        advantages=torch.ones(2, 6),
    )
    found = policy_gradient(model, with_weights(batch, algorithm), algorithm, 0.1, 1.0, 1)
    assert found["clip_ratio/region_mean"] == pytest.approx(1 / 3)
    assert found["kl"] == pytest.approx(0, abs=1e-6)


def test_likelihood_of_successes_by_hand() -> None:
    # Row 1 succeeded (two policy tokens), row 0 did not: coefficient .1 over two tokens.
    batch = masked_to(make_batch(2, 6), [0, 0, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0])
    batch = replace(batch, advantages=torch.zeros_like(batch.rewards))
    algorithm = replace(grpo(GRPOSettings(beta=0.0)), positive_nll=0.1)
    loss, _ = policy_loss(on_policy(batch), with_weights(batch, algorithm), algorithm, 0.0)
    expected = -0.1 * float(batch.old_logprobs[1, 1] + batch.old_logprobs[1, 3]) / 2
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_truncated_rows_masked_share_no_part_of_the_loss() -> None:
    batch = masked_to(make_batch(2, 6), [0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0])
    batch = replace(batch, truncated=torch.tensor([True, False]))
    left = with_truncation(batch, "mask", 1.0)
    assert left.loss_mask.tolist() == [[False] * 6, [False, False, False, True, False, False]]
    for preset in ("grpo", "dapo"):
        weights = with_weights(left, build(preset, {})).weights
        assert weights is not None
        assert weights.tolist() == [[0] * 6, [0, 0, 0, 1, 0, 0]]
    assert torch.equal(left.rewards, batch.rewards)


def test_a_truncated_row_pays_the_penalty_on_its_last_step() -> None:
    batch = replace(
        make_batch(2, 6),
        step_end=torch.tensor([[0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0]]).bool(),
        rewards=torch.zeros(2, 6),
        truncated=torch.tensor([True, False]),
    )
    paid = with_truncation(batch, "penalty", 0.5)
    assert paid.rewards.tolist() == [[0, 0, 0, -0.5, 0, 0], [0] * 6]
    assert paid.outcomes.tolist() == [-0.5, 1.0]
    assert with_truncation(batch, "none", 0.5) is batch


def test_the_state_after_the_last_token_is_read_where_a_row_was_cut_off() -> None:
    network, batch = critic(), make_batch()
    batch = replace(batch, truncated=torch.arange(8) % 2 == 0)
    read = with_values(batch, network, 3, bootstrap=True)
    assert read.values is not None and read.final_values is not None
    for row in range(8):
        ids = batch.input_ids[row, : int(batch.attention_mask[row].sum())]
        after = float(network(ids[None])[0, -1].detach()) if row % 2 == 0 else 0.0
        assert float(read.final_values[row]) == pytest.approx(after, abs=1e-5)
    plain = with_values(batch, network, 3)
    assert plain.values is not None and plain.final_values is not None
    assert torch.allclose(plain.values, read.values, atol=1e-5)
    assert not plain.final_values.any()


def test_kl_in_reward_touches_policy_tokens_alone() -> None:
    batch = make_batch(1, 6)
    batch = replace(
        masked_to(batch, [0, 1, 0, 1, 0, 0]),
        rewards=torch.tensor([[0.0, 0, 0, 1, 0, 0]]),
        old_logprobs=torch.tensor([[7.0, -1, 7, -2, 7, 7]]),
        ref_logprobs=torch.tensor([[0.0, -1.5, 0, -1, 0, 0]]),
    )
    paid = kl_in_reward(batch, 0.1).rewards
    assert paid[0].tolist() == pytest.approx([0, -0.05, 0, 1.1, 0, 0])


def test_two_readings_of_one_policy_cost_no_kl() -> None:
    batch = masked_to(make_batch(1, 6), [0, 1, 0, 1, 0, 0])
    apart = torch.tensor([[0.0, 2e-6, 0, -2e-6, 0, 0]])
    batch = replace(batch, ref_logprobs=batch.old_logprobs + apart)
    assert torch.equal(kl_in_reward(batch, 0.1).rewards, batch.rewards)
    moved = replace(batch, ref_logprobs=batch.old_logprobs + 100 * apart)
    assert not torch.equal(kl_in_reward(moved, 0.1).rewards, batch.rewards)


def test_a_good_token_becomes_likelier() -> None:
    model = policy()
    batch = make_batch(4, 8)
    before = token_logprobs(model, batch.input_ids, batch.attention_mask, 1.0).logprobs
    sign = torch.where(torch.arange(8) % 2 == 0, 1.0, -1.0).expand(4, 8)
    batch = replace(batch, old_logprobs=before.detach(), advantages=sign * batch.action_mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = update_policy(
        model,
        optimizer,
        batch,
        grpo(GRPOSettings(beta=0.0)),
        beta=0.0,
        temperature=1.0,
        micro_batch_size=3,
        max_grad_norm=1e9,
        shuffle=torch.Generator(),
    )
    after = token_logprobs(model, batch.input_ids, batch.attention_mask, 1.0).logprobs
    gain = ((after - before) * sign)[batch.action_mask].mean().detach()
    assert float(gain) > 0
    assert found["sampling/sampling_logp_difference/max"] < 1e-6


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 2.0])
    assert explained_variance(torch.tensor([0.5, 1.5]), returns) == pytest.approx(0.75)
    assert explained_variance(torch.tensor([1.0, 3.0]), returns) == pytest.approx(1.0)
    assert explained_variance(returns, torch.tensor([1.0, 1.0])) == 0.0
