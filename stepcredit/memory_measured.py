"""Bytes measured: the run's own networks, one rollout-shaped generation, one optimizer step each.

Legend: b rows, T tokens, V words, K tokens asked about, k tokens in a mix.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from stepcredit.agents.engines.transformers import COLUMN_BLOCK, TransformersEngine
from stepcredit.agents.model import build_tiny
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.settings import RunConfig
from stepcredit.algos.start import new_learner
from stepcredit.algos.update import update_critic, update_policy
from stepcredit.memory_paper import Bytes


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of one run that its memory depends on."""

    vocabulary: int
    prompt: int
    """Tokens before an episode's first turn."""
    tokens: int
    """Tokens of an episode."""
    episodes: int
    """Episodes of one rollout."""
    policy_rows: int
    """Rows of one forward and backward pass of the policy."""
    critic_rows: int


def measure(config: RunConfig, algorithm: Algorithm, sizes: Sizes) -> dict[str, Bytes]:
    """Build what the run keeps, take one step with it, and return the bytes of each model."""
    torch.set_num_threads(1)
    policy = build_tiny(sizes.vocabulary, config.model.size, config.train.seed)
    reference = None
    if algorithm.kl:
        reference = build_tiny(sizes.vocabulary, config.model.size, config.train.seed)
        reference.requires_grad_(False)
    learner = new_learner(config, algorithm, policy, reference)
    engine = TransformersEngine(policy, stop_id=0, topk=algorithm.topk, mixing=algorithm.mixing)
    most, shuffle = config.algo.max_grad_norm, torch.Generator().manual_seed(0)

    def policy_step() -> None:
        update_policy(
            policy,
            learner.optimizer,
            _batch(algorithm, engine, sizes, sizes.policy_rows),
            replace(algorithm, num_iterations=1, num_mini_batches=1),
            beta=algorithm.kl.beta if algorithm.kl else 0.0,
            temperature=config.rollout.temperature,
            micro_batch_size=sizes.policy_rows,
            max_grad_norm=most,
            shuffle=shuffle,
        )

    def critic_step() -> None:
        assert algorithm.critic and learner.critic and learner.critic_optimizer
        batch = _batch(algorithm, engine, sizes, sizes.critic_rows)
        update_critic(
            learner.critic,
            learner.critic_optimizer,
            batch,
            Credit(batch.rewards, batch.rewards, batch.action_mask),
            replace(algorithm.critic, epochs=1, num_mini_batches=1),
            micro_batch_size=sizes.critic_rows,
            max_grad_norm=most,
            shuffle=shuffle,
        )

    cache = cache_bytes(engine, sizes)
    found = {"policy": replace(_trained(policy, learner.optimizer, policy_step), cache=cache)}
    if learner.critic is not None and learner.critic_optimizer is not None:
        found["critic"] = _trained(learner.critic, learner.critic_optimizer, critic_step)
    if reference is not None:
        found["reference"] = Bytes(weights=held(reference.parameters()))
    return found


def _trained(model: nn.Module, optimizer: Optimizer, step: Callable[[], None]) -> Bytes:
    activations = saved_bytes(model, step)
    states = [value for state in optimizer.state.values() for value in state.values()]
    return Bytes(
        weights=held(model.parameters()),
        gradients=held(p.grad for p in model.parameters() if p.grad is not None),
        optimizer=held(states),
        activations=activations,
    )


def held(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, each counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def saved_bytes(model: nn.Module, run: Callable[[], None]) -> int:
    """Return the bytes that `run` saves for one backward pass: storages that are no parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        # Without its history: an output that is saved as it is would hold on to itself.
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(saved.values())


def cache_bytes(engine: TransformersEngine, sizes: Sizes) -> int:
    """Return the bytes of keys and values once all episodes of a rollout are as long as said.

    All read the prompt; then they grow by less than a block of columns at a time, as in a rollout.
    """
    rows = range(sizes.episodes)
    session = engine.start(len(rows))
    length, most = 0, sizes.prompt
    while length < sizes.tokens:
        read = min(most, sizes.tokens - length - 1)
        session.generate(rows, [[0] * read] * len(rows), [1] * len(rows), [0] * len(rows))
        length += read + 1
        most = COLUMN_BLOCK - 2
    layers = session.cache.row_layers
    return held(t for layer in layers for t in (layer.keys, layer.values) if t is not None)


def _batch(algorithm: Algorithm, engine: TransformersEngine, sizes: Sizes, rows: int) -> Batch:
    """Return a micro-batch of full rows, every token behind the prompt sampled."""
    shape = (rows, sizes.tokens)
    zeros = torch.zeros(shape)  # [b, T]
    whole = torch.zeros(shape, dtype=torch.int64)  # [b, T]
    sampled = torch.arange(sizes.tokens).expand(shape) >= min(sizes.prompt, sizes.tokens - 1)
    guess = torch.full(shape, -math.log(sizes.vocabulary))  # [b, T]
    batch = Batch(
        input_ids=torch.randint(sizes.vocabulary, shape, generator=torch.Generator()),
        attention_mask=torch.ones(shape, dtype=torch.bool),
        action_mask=sampled,
        loss_mask=sampled,
        turn_ids=whole,
        step_end=torch.arange(sizes.tokens).expand(shape) == sizes.tokens - 1,
        rewards=zeros,
        old_logprobs=guess,
        group_index=torch.zeros(rows, dtype=torch.int64),
        truncated=torch.zeros(rows, dtype=torch.bool),
        outcomes=torch.ones(rows),
        state_index=whole,
        values=zeros,
        final_values=torch.zeros(rows),
        ref_logprobs=guess if algorithm.kl else None,
        advantages=torch.ones(shape),
    )
    if engine.topk:
        likeliest = torch.arange(engine.topk).expand(*shape, -1)  # [b, T, K]
        asked = torch.full(likeliest.shape, -math.log(sizes.vocabulary))  # [b, T, K]
        batch = replace(batch, topk_ids=likeliest, topk_logprobs=asked)
    if engine.mixing is not None:
        neighbours = torch.arange(engine.mixing.k).expand(*shape, -1)  # [b, T, k]
        heads = torch.arange(sizes.tokens) % round(1 / engine.mixing.rate) == 0  # [T]
        shares = (heads & sampled)[..., None] / engine.mixing.k * torch.ones(engine.mixing.k)
        batch = replace(batch, mix_ids=neighbours, mix_weights=shares)
    return batch
