"""Optimizer steps: what is trained must not depend on how rows are cut into passes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stepcredit.agents.logprobs import token_logprobs
from stepcredit.agents.model import ValueModel, build_tiny, value_model
from stepcredit.algos.advantages import Credit
from stepcredit.algos.batch import Batch
from stepcredit.algos.presets import Algorithm, GRPOSettings, PPOSettings, grpo, ppo
from stepcredit.algos.update import (
    explained_variance,
    kl_in_reward,
    policy_gradient,
    policy_loss,
    update_critic,
    update_policy,
    with_reference,
    with_values,
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
        step_end=action,
        rewards=torch.randn(rows, width, generator=g) * action,
        old_logprobs=-2 + 0.1 * torch.randn(rows, width, generator=g),
        group_index=torch.arange(rows) // 4,
    )


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


@pytest.mark.parametrize("algorithm", [grpo(GRPOSettings()), ppo(PPOSettings())])
def test_gradient_is_the_same_for_any_micro_batch_size(algorithm: Algorithm) -> None:
    batch = with_reference(make_batch(), build_tiny(VOCAB, "0.12M", seed=1), 1.0, 8)
    advantages = torch.randn(batch.rewards.shape, generator=torch.Generator().manual_seed(1))
    weights = algorithm.weight(batch.action_mask)
    found, logs = [], []
    for size in (1, 3, 8):
        model = policy()
        log = policy_gradient(model, batch, advantages, weights, algorithm, 1.0, size)
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
    nan = torch.full_like(batch.rewards, float("nan"))
    poisoned = replace(
        batch,
        old_logprobs=torch.where(batch.action_mask, batch.old_logprobs, nan),
        ref_logprobs=torch.where(batch.action_mask, batch.ref_logprobs, nan),
    )
    advantages = torch.where(batch.action_mask, torch.ones_like(nan), 0.0)
    weights = algorithm.weight(batch.action_mask)
    found = []
    for case, scores in ((batch, advantages), (poisoned, advantages + nan * ~batch.action_mask)):
        scores = torch.where(batch.action_mask, advantages, scores)
        logprobs = torch.full_like(nan, -2.0)
        if case is poisoned:
            logprobs = torch.where(batch.action_mask, logprobs, nan)
        logprobs.requires_grad_()
        loss, _ = policy_loss(logprobs, case, scores, weights, algorithm)
        loss.backward()
        assert logprobs.grad is not None
        found.append((float(loss.detach()), logprobs.grad))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_weighted_loss_by_hand() -> None:
    # Two rows of 2 and 1 policy tokens, ratio 1: grpo weighs them 1/4, 1/4 and 1/2.
    batch = make_batch(2, 6)
    mask = torch.tensor([[0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0]]).bool()
    batch = replace(batch, action_mask=mask)
    advantages = torch.tensor([[9.0, 2, 9, 4, 9, 9], [9, 9, 9, -3, 9, 9]])
    algorithm = grpo(GRPOSettings(beta=0.0))
    weights = algorithm.weight(mask)
    loss, _ = policy_loss(batch.old_logprobs, batch, advantages, weights, algorithm)
    assert float(loss) == pytest.approx(-(2 / 4 + 4 / 4 - 3 / 2))
    token_weights = ppo(PPOSettings()).weight(mask)
    loss, _ = policy_loss(batch.old_logprobs, batch, advantages, token_weights, algorithm)
    assert float(loss) == pytest.approx(-(2 + 4 - 3) / 3)


def test_kl_in_loss_by_hand() -> None:
    batch = make_batch(1, 6)
    mask = torch.tensor([[0, 0, 0, 1, 0, 0]]).bool()
    ref = batch.old_logprobs - 1.0
    batch = replace(batch, action_mask=mask, ref_logprobs=ref)
    algorithm = grpo(GRPOSettings(beta=0.5))
    zero = torch.zeros_like(ref)
    loss, parts = policy_loss(batch.old_logprobs, batch, zero, algorithm.weight(mask), algorithm)
    k3 = float(torch.exp(torch.tensor(-1.0))) + 1 - 1
    assert float(loss) == pytest.approx(0.5 * k3, abs=1e-6)
    assert float(parts["kl"]) == pytest.approx(k3, abs=1e-6)


def test_kl_in_reward_touches_policy_tokens_alone() -> None:
    batch = make_batch(1, 6)
    mask = torch.tensor([[0, 1, 0, 1, 0, 0]]).bool()
    batch = replace(
        batch,
        action_mask=mask,
        rewards=torch.tensor([[0.0, 0, 0, 1, 0, 0]]),
        old_logprobs=torch.tensor([[7.0, -1, 7, -2, 7, 7]]),
        ref_logprobs=torch.tensor([[0.0, -1.5, 0, -1, 0, 0]]),
    )
    paid = kl_in_reward(batch, 0.1).rewards
    assert paid[0].tolist() == pytest.approx([0, -0.05, 0, 1.1, 0, 0])


def test_a_good_token_becomes_likelier() -> None:
    model = policy()
    batch = make_batch(4, 8)
    before, _ = token_logprobs(model, batch.input_ids, batch.attention_mask, 1.0)
    batch = replace(batch, old_logprobs=before.detach())
    sign = torch.where(torch.arange(8) % 2 == 0, 1.0, -1.0).expand(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = update_policy(
        model,
        optimizer,
        batch,
        Credit(sign * batch.action_mask),
        grpo(GRPOSettings(beta=0.0)),
        temperature=1.0,
        micro_batch_size=3,
        max_grad_norm=1e9,
        shuffle=torch.Generator(),
    )
    after, _ = token_logprobs(model, batch.input_ids, batch.attention_mask, 1.0)
    gain = ((after - before) * sign)[batch.action_mask].mean().detach()
    assert float(gain) > 0
    assert found["sampling/sampling_logp_difference/max"] < 1e-6


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 2.0])
    assert explained_variance(torch.tensor([0.5, 1.5]), returns) == pytest.approx(0.75)
    assert explained_variance(torch.tensor([1.0, 3.0]), returns) == pytest.approx(1.0)
    assert explained_variance(returns, torch.tensor([1.0, 1.0])) == 0.0
