"""Settings that are right by themselves but not together: refused, or said, before a run starts."""

from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np

from stepcredit.algos.algorithm import Algorithm, MonteCarlo
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.settings import RunConfig
from stepcredit.envs import Env
from stepcredit.envs.bounded import call_all
from stepcredit.envs.registry import make

TASKS_PLAYED = 32
"""Tasks in which an environment may show that it judges steps."""


def check_fit(config: RunConfig, algorithm: Algorithm) -> None:
    """Raise TrainingError where the preset lacks something that the settings can give it."""
    algo, preset = config.algo, config.algo.preset
    if algo.num_generations < algorithm.min_members:
        raise TrainingError(
            f"algo.num_generations={algo.num_generations}: {preset} compares the samples of a task "
            f"and needs at least {algorithm.min_members}; pass algo.num_generations=8"
        )
    if algo.truncation == "bootstrap" and algorithm.critic is None:
        raise TrainingError(
            f"algo.truncation=bootstrap: {preset} has no critic that could value the state where "
            "an episode was cut off; pass algo.truncation=mask, or a preset with a critic such as "
            "algo.preset=ppo_step"
        )
    if algorithm.critic and 0 < config.train.steps <= algorithm.critic.pretrain_steps:
        raise TrainingError(
            f"algo.value_pretrain_steps={algorithm.critic.pretrain_steps}: the policy would not "
            f"learn in train.steps={config.train.steps}; pass algo.value_pretrain_steps=0"
        )


def check_env_fit(config: RunConfig, algorithm: Algorithm) -> None:
    """Raise TrainingError where the environment lacks something that the preset needs."""
    env_id, preset = config.env.id, config.algo.preset
    with closing(make(env_id, reward=config.env.reward, **config.env.further)) as env:
        own: Any = env.unwrapped
        missing = {"train", "eval"} - set(getattr(own, "splits", ("train", "eval")))
        if missing:
            raise TrainingError(
                f"{env_id} has the splits {', '.join(own.splits)}: training plays train and eval; "
                f"name {' and '.join(sorted(missing))} in splits"
            )
        if algorithm.needs_states and not callable(getattr(own, "state_key", None)):
            raise TrainingError(
                f"algo.preset={preset}: compares turns taken in equal states, and {env_id} does "
                "not name its states; give the environment a method state_key() -> str, or pass "
                "algo.preset=grpo"
            )
        if isinstance(algorithm.baseline, MonteCarlo) and not isinstance(own, Env):
            raise TrainingError(
                f"algo.preset={preset}: samples continuations of an episode's states, and {env_id} "
                "cannot be brought back to one; subclass stepcredit.envs.Env, or pass "
                "algo.preset=ppo_step"
            )
        by_steps = algorithm.reads == "steps" and algorithm.min_members > 1
        if by_steps and getattr(own, "one_turn", False) and not _judges_steps(config, env):
            raise TrainingError(
                f"algo.preset={preset}: compares judged steps, and {env_id} answers once and "
                'judges no step inside its answer; return info["step_rewards"], or pass '
                "algo.preset=grpo"
            )


def check_credit(credit: Credit, batch: Batch, algorithm: Algorithm) -> None:
    """Raise TrainingError where an estimator of the user's own leaves out what is needed."""
    found, expected = list(credit.advantages.shape), list(batch.rewards.shape)
    if found != expected:
        raise TrainingError(f"advantages {found}: must be {expected}, one number for each token")
    if algorithm.critic and (credit.returns is None or credit.value_mask is None):
        raise TrainingError(
            "the algorithm has a critic, so its advantage must say what the critic should learn: "
            "return Credit(advantages, returns, value_mask), or compose it without a baseline"
        )


def notes(config: RunConfig, algorithm: Algorithm) -> list[str]:
    """Return what a user should know of these settings before the run starts."""
    if algorithm.reads == "total" and config.env.reward == "dense":
        return [
            f"env.reward=dense: {config.algo.preset} sees an episode's total alone, so where it is "
            "paid makes no difference; grpo_process and ppo_step see each step"
        ]
    return []


def _judges_steps(config: RunConfig, env: gym.Env[object, str]) -> bool:
    """Play some tasks and look whether the environment ever splits its reward."""

    def judges(number: int) -> bool:
        env.reset(seed=number)
        own = env.unwrapped
        if hasattr(own, "demonstration"):
            action = own.demonstration(np.random.default_rng(number))
        else:
            action = own.gold() if hasattr(own, "gold") else ""
        return "step_rewards" in env.step(action)[4]

    def play() -> bool:
        return any(judges(number) for number in range(TASKS_PLAYED))

    (outcome,) = call_all([play], timeout_s=config.rollout.env_timeout_s)
    # An environment that fails here is counted and named by the rollout.
    return True if outcome.error else bool(outcome.value)
