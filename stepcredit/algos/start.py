"""How a run begins: networks, engines and counters, new or from the last checkpoint."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.model import value_model
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool
from stepcredit.agents.sft import SFT, warm_start
from stepcredit.algos import checkpoint
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.checkpoint import Learner
from stepcredit.algos.settings import RunConfig
from stepcredit.envs.registry import make


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What a run holds from its first step to its last."""

    config: RunConfig
    algorithm: Algorithm
    learner: Learner
    reference: nn.Module | None
    engine: TransformersEngine
    """Samples what is trained on."""
    plain_engine: TransformersEngine
    """The same policy as it is evaluated: nothing mixed, nothing recorded beside the samples."""
    renderer: ChatRenderer
    envs: EnvPool
    counters: dict[str, Any]
    """What goes on after a resume: steps, tokens, times, the KL coefficient."""


def start(config: RunConfig, algorithm: Algorithm, out_dir: Path) -> Run:
    """Warm-start the networks, or go on from the last checkpoint in `out_dir`."""
    torch.set_num_threads(1)
    env, seed = config.env, config.train.seed
    settings = config.model.sft
    warm = partial(
        warm_start,
        env.id,
        env.further | settings.env,
        size=config.model.size,
        seed=seed,
        sft=SFT(**settings.model_dump(exclude={"env"})),
        max_episode_tokens=config.rollout.max_episode_tokens,
        env_timeout_s=config.rollout.env_timeout_s,
    )
    policy, tokenizer = warm()
    reference = warm()[0].requires_grad_(False) if algorithm.kl else None
    renderer = ChatRenderer(tokenizer)
    learner = new_learner(config, algorithm, policy, reference)
    counters = {"step": 0, "sampled_tokens": 0, "wall_s": 0.0, "cpu_s": 0.0}
    counters["beta"] = algorithm.kl.beta if algorithm.kl else 0.0
    whole = checkpoint.latest(out_dir / "checkpoints")
    if whole is not None:
        counters = checkpoint.restore(whole, learner)
    plain = partial(
        TransformersEngine,
        policy,
        stop_id=renderer.stop_id,
        temperature=config.rollout.temperature,
    )
    return Run(
        config=config,
        algorithm=algorithm,
        learner=learner,
        reference=reference,
        engine=plain(topk=algorithm.topk, mixing=algorithm.mixing),
        plain_engine=plain(),
        renderer=renderer,
        envs=EnvPool(partial(make, env.id, reward=env.reward, **env.further)),
        counters=counters,
    )


def new_learner(
    config: RunConfig, algorithm: Algorithm, policy: PreTrainedModel, reference: nn.Module | None
) -> Learner:
    """Put the networks that training changes together, each with its optimizer."""

    def adam(module: nn.Module, learning_rate: float) -> AdamW:
        return AdamW(module.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)

    moves = algorithm.kl is not None and algorithm.kl.refresh_steps > 0
    learner = Learner(
        policy=policy,
        optimizer=adam(policy, config.algo.learning_rate),
        moving_reference=reference if moves else None,
    )
    if algorithm.critic is None:
        return learner
    critic = value_model(policy)
    optimizer = adam(critic, algorithm.critic.learning_rate)
    return replace(learner, critic=critic, critic_optimizer=optimizer)
