"""The algorithms: each a dataclass of settings and a function that composes the parts.

A preset says where credit comes from (`advantage`), how far an update may go (`trust_region`), how
tokens are averaged (`weight`), where the KL term stands, and whether a critic is kept. The user's
own is a function of the same kind, named as `module:function`, or passed as an object.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from stepcredit.algos.advantages import (
    Credit,
    group_outcome,
    group_process,
    step_gae,
    token_gae,
)
from stepcredit.algos.batch import Batch
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.losses import clipped, sequence_mean, token_mean

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Critic:
    """How the value network is trained, on the same episodes as the policy."""

    learning_rate: float
    epochs: int
    num_mini_batches: int
    cliprange_value: float | None


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm as a composition of functions."""

    advantage: Callable[[Batch], Credit]
    trust_region: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(logprobs, old_logprobs, advantages) -> (surrogate, where the region holds), all [B, T]."""
    weight: Callable[[Tensor], Tensor]
    """Action mask [B, T] of one optimizer step -> weights [B, T]."""
    beta: float = 0.0
    """KL coefficient against the starting policy; 0 keeps no reference."""
    kl_in: Literal["reward", "loss"] = "loss"
    """`reward`: k1, detached, before the advantages; `loss`: k3."""
    critic: Critic | None = None
    num_iterations: int = 1
    """Passes over each rollout."""
    num_mini_batches: int = 1
    """Optimizer steps of one pass."""
    whiten_advantages: bool = False
    """Centre and scale the advantages over the policy tokens of the whole batch."""
    min_members: int = 1
    """Live trajectories a group needs; 2 where the group is the baseline."""


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """PPO as in InstructGPT (arXiv:2203.02155), with a value network of its own."""

    gamma: Share = 1.0
    lam: Share = 0.95
    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]."""
    beta: NotNegative = 0.02
    """KL coefficient of the reward (k1 against the starting policy)."""
    whiten_advantages: bool = True
    num_ppo_epochs: Count = 1
    num_mini_batches: Count = 1
    value_learning_rate: Positive = 1e-3
    value_epochs: Count = 2
    value_mini_batches: Count = 4
    cliprange_value: Positive | None = 0.2
    """Value kept within this of the rollout's; null: no clip."""


@dataclass(frozen=True, kw_only=True)
class GRPOSettings:
    """GRPO as in DeepSeekMath (arXiv:2402.03300): the group is the baseline, KL in the loss."""

    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]; the paper does not report its value."""
    beta: NotNegative = 0.04
    """KL coefficient of the loss (k3 against the starting policy)."""
    num_iterations: Count = 1
    num_mini_batches: Count = 1


def ppo(s: PPOSettings) -> Algorithm:
    """PPO with one value baseline per policy token: token GAE, token-mean loss."""

    def advantage(batch: Batch) -> Credit:
        assert batch.values is not None
        return token_gae(batch.rewards, batch.values, batch.action_mask, gamma=s.gamma, lam=s.lam)

    return _ppo(s, advantage)


def ppo_step(s: PPOSettings) -> Algorithm:
    """PPO with one value baseline per step: GAE over steps, whose tokens share the advantage."""

    def advantage(batch: Batch) -> Credit:
        assert batch.values is not None
        return step_gae(
            batch.rewards,
            batch.values,
            batch.action_mask,
            batch.step_end,
            gamma=s.gamma,
            lam=s.lam,
        )

    return _ppo(s, advantage)


def grpo(s: GRPOSettings) -> Algorithm:
    """GRPO, outcome-supervised: one number for the whole answer."""
    return _grpo(s, lambda b: group_outcome(b.rewards, b.action_mask, b.group_index))


def grpo_process(s: GRPOSettings) -> Algorithm:
    """GRPO, process-supervised as published: each token gets the steps still to come."""
    return _grpo(s, lambda b: group_process(b.rewards, b.action_mask, b.step_end, b.group_index))


def _ppo(s: PPOSettings, advantage: Callable[[Batch], Credit]) -> Algorithm:
    return Algorithm(
        advantage=advantage,
        trust_region=partial(clipped, epsilon=s.epsilon, epsilon_high=s.epsilon),
        weight=token_mean,
        beta=s.beta,
        kl_in="reward",
        critic=Critic(
            learning_rate=s.value_learning_rate,
            epochs=s.value_epochs,
            num_mini_batches=s.value_mini_batches,
            cliprange_value=s.cliprange_value,
        ),
        num_iterations=s.num_ppo_epochs,
        whiten_advantages=s.whiten_advantages,
        num_mini_batches=s.num_mini_batches,
    )


def _grpo(s: GRPOSettings, advantage: Callable[[Batch], Credit]) -> Algorithm:
    return Algorithm(
        advantage=advantage,
        trust_region=partial(clipped, epsilon=s.epsilon, epsilon_high=s.epsilon),
        weight=sequence_mean,
        beta=s.beta,
        kl_in="loss",
        num_iterations=s.num_iterations,
        num_mini_batches=s.num_mini_batches,
        min_members=2,
    )


Preset = Callable[[Any], Algorithm]

ALGORITHMS: dict[str, tuple[Preset, type[Any]]] = {
    "ppo": (ppo, PPOSettings),
    "ppo_step": (ppo_step, PPOSettings),
    "grpo": (grpo, GRPOSettings),
    "grpo_process": (grpo_process, GRPOSettings),
}


def build(preset: str, settings: dict[str, Any]) -> Algorithm:
    """Compose the named preset, or a user's `module:function`, with the given settings.

    Raises TrainingError, naming the nearest valid name, for an unknown preset or setting.
    """
    if ":" in preset:
        return _of_the_user(preset, settings)
    if preset not in ALGORITHMS:
        raise TrainingError(f"algo.preset={preset}: unknown{_nearest(preset, list(ALGORITHMS))}")
    function, kind = ALGORITHMS[preset]
    known = [f.name for f in fields(kind)]
    for key in settings:
        if key not in known:
            raise TrainingError(f"algo.{key}: {preset} has no such setting{_nearest(key, known)}")
    try:
        return function(TypeAdapter(kind).validate_python(settings))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TrainingError(f"algo.{where}={first['input']}: {first['msg']}") from error


def _of_the_user(preset: str, settings: dict[str, Any]) -> Algorithm:
    module, _, name = preset.partition(":")
    try:
        algorithm = getattr(importlib.import_module(module), name)(**settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise TrainingError(f"algo.preset={preset}: cannot be called: {error}") from error
    if not isinstance(algorithm, Algorithm):
        raise TrainingError(
            f"algo.preset={preset}: returned {type(algorithm).__name__}, must return an Algorithm"
        )
    return algorithm


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; one of {', '.join(known)}"
