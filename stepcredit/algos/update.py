"""One rollout to optimizer steps: weights before micro-batches, so that size changes nothing."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stepcredit.agents.logprobs import Reading, token_logprobs, token_values
from stepcredit.agents.model import ValueModel
from stepcredit.algos.algorithm import Algorithm, Critic
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit, explained_variance, masked
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.kl import ROUNDING, k1, k3
from stepcredit.algos.losses import value_loss
from stepcredit.algos.weights import token_mean


def with_values(
    batch: Batch, critic: ValueModel, micro_batch_size: int, *, bootstrap: bool = False
) -> Batch:
    """Read the critic once for all rows, without gradient.

    With `bootstrap` the state after the last token of a truncated row has the critic's value;
    otherwise, and for every other row, it counts as 0.
    """
    # One column more: the state after the last token is read in the slot that follows it.
    more = int(bootstrap)
    lengths = batch.attention_mask.sum(1, keepdim=True)  # [B, 1]
    input_ids = nn.functional.pad(batch.input_ids, (0, more))  # [B, T+more]
    mask = torch.arange(input_ids.shape[1]) < lengths + more  # [B, T+more]
    with torch.no_grad():
        parts = [
            token_values(critic, input_ids[rows], mask[rows])
            for rows in torch.arange(len(batch)).split(micro_batch_size)
        ]
    read = torch.cat(parts)  # [B, T+more]
    after = read.gather(1, lengths)[:, 0] if bootstrap else read.new_zeros(len(batch))  # [B]
    values = masked(read[:, : batch.input_ids.shape[1]], batch.attention_mask)  # [B, T]
    return replace(batch, values=values, final_values=masked(after, batch.truncated))


def with_reference(
    batch: Batch, reference: nn.Module, temperature: float, micro_batch_size: int
) -> Batch:
    """Read the reference policy's log-probabilities once for all rows, without gradient."""
    with torch.no_grad():
        parts = [
            _read(reference, part, temperature).logprobs for part in _micro(batch, micro_batch_size)
        ]
    return replace(batch, ref_logprobs=torch.cat(parts))


def kl_in_reward(batch: Batch, beta: float) -> Batch:
    """Subtract beta x k1 from each policy token's reward (arXiv:2203.02155, eq. 2).

    Differences within `ROUNDING` cost nothing: whitened, they would be advantages where a policy
    that still is its own reference has earned nothing yet.
    """
    assert batch.ref_logprobs is not None
    gap = masked(k1(batch.old_logprobs, batch.ref_logprobs), batch.action_mask)  # [B, T]
    penalty = beta * masked(gap, gap.abs() > ROUNDING)
    return replace(batch, rewards=batch.rewards - penalty)


def with_truncation(batch: Batch, kind: str, penalty: float) -> Batch:
    """Leave the truncated rows out of the loss, or let their last step and outcome cost `penalty`.

    `mask`: the rows stay in their groups' statistics and in the critic's targets. Any other kind
    but `penalty` changes nothing here.
    """
    if kind == "mask":
        return replace(batch, loss_mask=batch.loss_mask & ~batch.truncated[:, None])
    if kind == "penalty":
        ends = batch.step_end
        last = ends & (ends.flip(1).cumsum(1).flip(1) == 1)  # [B, T]
        cost = penalty * (last & batch.truncated[:, None])
        outcomes = batch.outcomes - penalty * batch.truncated
        return replace(batch, rewards=batch.rewards - cost, outcomes=outcomes)
    return batch


def with_weights(batch: Batch, algorithm: Algorithm) -> Batch:
    """Weigh the tokens of one optimizer step, before it is cut into micro-batches."""
    good = batch.loss_mask & (batch.outcomes >= 1)[:, None]  # [B, T]
    return replace(
        batch,
        weights=algorithm.weight(batch.loss_mask),
        nll_weights=algorithm.positive_nll * token_mean(good) if algorithm.positive_nll else None,
    )


def update_policy(
    policy: nn.Module,
    optimizer: Optimizer,
    batch: Batch,
    algorithm: Algorithm,
    *,
    beta: float,
    temperature: float,
    micro_batch_size: int,
    max_grad_norm: float,
    shuffle: torch.Generator,
) -> dict[str, float]:
    """Take `num_iterations` x `num_mini_batches` optimizer steps; return their mean metrics.

    `beta` is the present coefficient of a KL term in the loss.
    """
    history = []
    for rows in _mini(len(batch), algorithm.num_iterations, algorithm.num_mini_batches, shuffle):
        part = with_weights(batch.rows(rows), algorithm)
        optimizer.zero_grad()
        totals = policy_gradient(policy, part, algorithm, beta, temperature, micro_batch_size)
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
    algorithm: Algorithm,
    beta: float,
    temperature: float,
    micro_batch_size: int,
) -> dict[str, float]:
    """Add the gradient of one optimizer step to the policy's; return its metrics."""
    totals: dict[str, float] = {}
    worst = 0.0
    for part in _micro(batch, micro_batch_size):
        reading = _read(policy, part, temperature)
        loss, by_token = policy_loss(reading, part, algorithm, beta)
        loss.backward()
        gap = masked(reading.logprobs.detach() - part.old_logprobs, part.action_mask).abs()
        by_token["entropy"] = masked(reading.entropy.detach(), part.action_mask)
        by_token["sampling/sampling_logp_difference/mean"] = gap
        share = part.action_mask / batch.action_mask.sum()  # [b, T]
        means = {key: (share * each).sum() for key, each in by_token.items()}
        for key, value in (means | {"loss/policy": loss.detach()}).items():
            totals[key] = totals.get(key, 0.0) + float(value)
        worst = max(worst, float(gap.max()))
    return totals | {"sampling/sampling_logp_difference/max": worst}


def policy_loss(
    reading: Reading, batch: Batch, algorithm: Algorithm, beta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted loss of these rows, and what to log of each token [b, T].

    Slots that are no action are inert.
    """
    reading, batch = _inert(reading, batch)
    assert batch.weights is not None
    surrogate, held = algorithm.trust_region(reading, batch)  # [b, T]
    loss = -(batch.weights * surrogate).sum()
    by_token = {"clip_ratio/region_mean": held.to(loss.dtype)}
    if batch.ref_logprobs is not None and algorithm.kl is not None:
        by_token["kl"] = k3(reading.logprobs.detach(), batch.ref_logprobs)
        if algorithm.kl.place == "loss":
            kl = algorithm.kl.term(reading.logprobs, batch.ref_logprobs, batch.old_logprobs)
            loss = loss + beta * (batch.weights * kl).sum()
    if batch.nll_weights is not None:
        loss = loss - (batch.nll_weights * reading.logprobs).sum()
    return loss, by_token


def _read(model: nn.Module, batch: Batch, temperature: float) -> Reading:
    return token_logprobs(
        model,
        batch.input_ids,
        batch.attention_mask,
        temperature,
        topk_ids=batch.topk_ids,
        mix_ids=batch.mix_ids,
        mix_weights=batch.mix_weights,
    )


def _inert(reading: Reading, batch: Batch) -> tuple[Reading, Batch]:
    """Put zeros into every slot that is no action, whatever stood there."""
    mask = batch.action_mask

    def clean(x: Tensor | None) -> Tensor | None:
        return x if x is None else masked(x, mask if x.dim() == 2 else mask[..., None])

    logprobs, entropy = masked(reading.logprobs, mask), masked(reading.entropy, mask)
    return Reading(logprobs, entropy, clean(reading.topk_logprobs)), replace(
        batch,
        old_logprobs=masked(batch.old_logprobs, mask),
        ref_logprobs=clean(batch.ref_logprobs),
        topk_logprobs=clean(batch.topk_logprobs),
        advantages=clean(batch.advantages),
        weights=clean(batch.weights),
        nll_weights=clean(batch.nll_weights),
    )


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
