"""One rollout to optimizer steps: weights before micro-batches, so that size changes nothing."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stepcredit.agents.logprobs import token_logprobs, token_values
from stepcredit.agents.model import ValueModel
from stepcredit.algos.advantages import Credit, masked
from stepcredit.algos.batch import Batch
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.losses import k1, k3, value_loss
from stepcredit.algos.presets import Algorithm, Critic


def with_values(batch: Batch, critic: ValueModel, micro_batch_size: int) -> Batch:
    """Read the critic once for all rows, without gradient."""
    with torch.no_grad():
        parts = [
            token_values(critic, part.input_ids, part.attention_mask)
            for part in _micro(batch, micro_batch_size)
        ]
    return replace(batch, values=torch.cat(parts))


def with_reference(
    batch: Batch, reference: nn.Module, temperature: float, micro_batch_size: int
) -> Batch:
    """Read the reference policy's log-probabilities once for all rows, without gradient."""
    with torch.no_grad():
        parts = [
            token_logprobs(reference, part.input_ids, part.attention_mask, temperature)[0]
            for part in _micro(batch, micro_batch_size)
        ]
    return replace(batch, ref_logprobs=torch.cat(parts))


def kl_in_reward(batch: Batch, beta: float) -> Batch:
    """Subtract beta x k1 from each policy token's reward (arXiv:2203.02155, eq. 2)."""
    assert batch.ref_logprobs is not None
    penalty = beta * masked(k1(batch.old_logprobs, batch.ref_logprobs), batch.action_mask)
    return replace(batch, rewards=batch.rewards - penalty)


def update_policy(
    policy: nn.Module,
    optimizer: Optimizer,
    batch: Batch,
    credit: Credit,
    algorithm: Algorithm,
    *,
    temperature: float,
    micro_batch_size: int,
    max_grad_norm: float,
    shuffle: torch.Generator,
) -> dict[str, float]:
    """Take `num_iterations` x `num_mini_batches` optimizer steps; return their mean metrics."""
    history = []
    for rows in _mini(len(batch), algorithm.num_iterations, algorithm.num_mini_batches, shuffle):
        part, advantages = batch.rows(rows), credit.advantages[rows]
        weights = algorithm.weight(part.action_mask)  # [b, T]
        optimizer.zero_grad()
        totals = policy_gradient(
            policy, part, advantages, weights, algorithm, temperature, micro_batch_size
        )
        norm = nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        _check_finite(norm, "policy")
        optimizer.step()
        history.append(totals | {"grad_norm": float(norm)})
    means = {key: sum(h[key] for h in history) / len(history) for key in history[0]}
    # Later optimizer steps have moved the policy: only the first compares like with like.
    return means | {key: history[0][key] for key in history[0] if key.startswith("sampling/")}


def policy_gradient(
    policy: nn.Module,
    batch: Batch,
    advantages: Tensor,
    weights: Tensor,
    algorithm: Algorithm,
    temperature: float,
    micro_batch_size: int,
) -> dict[str, float]:
    """Add the gradient of one optimizer step to the policy's; return its metrics."""
    totals: dict[str, float] = {}
    worst = 0.0
    for start in range(0, len(batch), micro_batch_size):
        rows = torch.arange(start, min(start + micro_batch_size, len(batch)))
        part = batch.rows(rows)
        logprobs, entropy = token_logprobs(
            policy, part.input_ids, part.attention_mask, temperature
        )  # [b, T]
        loss, parts = policy_loss(logprobs, part, advantages[rows], weights[rows], algorithm)
        loss.backward()
        share = part.action_mask / batch.action_mask.sum()
        gap = masked(logprobs.detach() - part.old_logprobs, part.action_mask).abs()
        parts["entropy"] = (masked(entropy.detach(), part.action_mask) * share).sum()
        parts["loss/policy"] = loss.detach()
        parts["sampling/sampling_logp_difference/mean"] = (gap * share).sum()
        for key, value in parts.items():
            totals[key] = totals.get(key, 0.0) + float(value)
        worst = max(worst, float(gap.max()))
    return totals | {"sampling/sampling_logp_difference/max": worst}


def policy_loss(
    logprobs: Tensor, batch: Batch, advantages: Tensor, weights: Tensor, algorithm: Algorithm
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted loss of these rows and its parts; slots that are no action are inert."""
    mask = batch.action_mask
    logprobs, old_logprobs = masked(logprobs, mask), masked(batch.old_logprobs, mask)
    weights, advantages = masked(weights, mask), masked(advantages, mask)
    surrogate, held = algorithm.trust_region(logprobs, old_logprobs, advantages)  # [b, T]
    loss = -(weights * surrogate).sum()
    parts = {"clip_ratio/region_mean": (weights * held).sum()}
    if batch.ref_logprobs is not None:
        kl = k3(logprobs, masked(batch.ref_logprobs, mask))  # [b, T]
        parts["kl"] = (weights * kl.detach()).sum()
        if algorithm.kl_in == "loss":
            loss = loss + algorithm.beta * (weights * kl).sum()
    return loss, parts


def update_critic(
    critic: ValueModel,
    optimizer: Optimizer,
    batch: Batch,
    credit: Credit,
    settings: Critic,
    *,
    micro_batch_size: int,
    max_grad_norm: float,
    shuffle: torch.Generator,
) -> dict[str, float]:
    """Regress the critic on the returns at its value tokens; return its mean metrics."""
    assert batch.values is not None and credit.returns is not None
    assert credit.value_mask is not None
    losses = []
    for rows in _mini(len(batch), settings.epochs, settings.num_mini_batches, shuffle):
        count = credit.value_mask[rows].sum().clamp(min=1)
        optimizer.zero_grad()
        total = 0.0
        for micro in rows.split(micro_batch_size):
            values = token_values(critic, batch.input_ids[micro], batch.attention_mask[micro])
            errors = value_loss(
                values,
                batch.values[micro],
                credit.returns[micro],
                credit.value_mask[micro],
                cliprange_value=settings.cliprange_value,
            )  # [b, T]
            loss = errors.sum() / count
            loss.backward()
            total += float(loss.detach())
        _check_finite(nn.utils.clip_grad_norm_(critic.parameters(), max_grad_norm), "critic")
        optimizer.step()
        losses.append(total)
    return {
        "loss/value": sum(losses) / len(losses),
        "critic/explained_variance": explained_variance(
            batch.values[credit.value_mask], credit.returns[credit.value_mask]
        ),
    }


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return 1 - Var(returns - values) / Var(returns); 0 where the returns do not vary. [N]."""
    total = returns.var(correction=0)
    if total <= 1e-12:
        return 0.0
    return float(1 - (returns - values).var(correction=0) / total)


def _check_finite(norm: Tensor, whose: str) -> None:
    if not torch.isfinite(norm):
        raise TrainingError(
            f"the gradient of the {whose} is {float(norm)}: must be finite; lower the learning "
            "rate, or look for huge rewards in the last saved trajectories"
        )


def _micro(batch: Batch, size: int) -> Iterator[Batch]:
    for rows in torch.arange(len(batch)).split(size):
        yield batch.rows(rows)


def _mini(count: int, epochs: int, parts: int, shuffle: torch.Generator) -> Iterator[Tensor]:
    if epochs == parts == 1:
        yield torch.arange(count)
        return
    for _ in range(epochs):
        order = torch.randperm(count, generator=shuffle)
        yield from (rows for rows in order.tensor_split(parts) if len(rows))
