"""Fresh continuations from inside a finished episode: Monte-Carlo values by replay.

The value of a state is the mean of what several continuations of the current policy still earn
from it (VinePPO, arXiv:2410.01679). The state is the recorded tokens and the environment after the
recorded actions, brought back by resetting it with the recorded seeds and taking the actions again.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from stepcredit.agents.engines.base import Engine
from stepcredit.agents.episode import Episode, TaskSpec
from stepcredit.agents.errors import AgentError
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import (
    EnvCalls,
    EnvPool,
    Limits,
    close_envs,
    env_calls,
    reset_all,
    rollout_stats,
    step_all,
    take_turns,
)
from stepcredit.agents.trajectory import Trajectory
from stepcredit.envs import Env, derive_seed
from stepcredit.envs.core import renew_chance


@dataclass(frozen=True)
class Branch:
    """The state of a finished episode before one of its policy tokens was sampled."""

    trajectory: Trajectory
    position: int
    """Index of the token."""

    @property
    def turn(self) -> int:
        """The token's turn, and so the number of turns that are complete."""
        return int(self.trajectory.turn_ids[self.position])

    @property
    def begun_ids(self) -> list[int]:
        """What the policy had said of that turn."""
        return _said(self.trajectory, self.turn, self.position)


def continuation_returns(
    engine: Engine,
    renderer: ChatRenderer,
    envs: EnvPool,
    branches: Sequence[Branch],
    *,
    num_continuations: int,
    run_seed: int,
    limits: Limits,
) -> tuple[npt.NDArray[np.float64], dict[str, float]]:
    """Continue each branch `num_continuations` times; return what each still earned, and the costs.

    The returns are [N, num_continuations]: the rewards of the whole continued episode less those
    that were recorded before the branch. They depend on the branch, the number of the continuation
    and `run_seed`, not on the other branches. NaN is a continuation that failed, whose replay did
    not show and pay what was recorded, or that the wall clock ended. The costs are those of
    `rollout`, with the turns and tokens that were sampled here.

    The tokens before the branch are read as they are. The environment keeps the luck that it had
    drawn and draws the rest from a chance of its own for each continuation.

    Raises AgentError for an environment that is no `stepcredit.envs.Env`, an episode that failed, a
    position that is no policy token and limits that leave no room; RolloutError as `rollout` does.
    """
    begun = time.monotonic()
    _check(branches, num_continuations, limits, min(limits.max_episode_tokens, engine.max_context))
    starts = [branch for branch in branches for _ in range(num_continuations)]
    names = [
        (run_seed, b.trajectory.group_id, b.trajectory.sample_id, b.position, number)
        for b in branches
        for number in range(num_continuations)
    ]
    taken = envs.take(len(starts))
    episodes = [_episode(branch, env) for branch, env in zip(starts, taken, strict=True)]
    try:
        _check_env(taken[0])
        calls = env_calls(taken[0], limits)
        _bring_back(calls, renderer, episodes, starts)
        for episode, name in zip(episodes, names, strict=True):
            if not episode.done:
                renew_chance(episode.env, derive_seed("branch chance", *name))
        samplers = [derive_seed("branch sample", *name) for name in names]
        take_turns(engine, renderer, episodes, samplers, limits, begun, calls)
    finally:
        close_envs(envs, episodes, limits)
    pairs = list(zip(episodes, starts, strict=True))
    stats = rollout_stats([episode.trajectory() for episode in episodes], time.monotonic() - begun)
    sampled_turns = [episode.turn_cut[branch.turn :] for episode, branch in pairs]
    stats["turns"] = sum(map(len, sampled_turns))
    stats["cut_turns"] = sum(map(sum, sampled_turns))
    returns = np.array([_still_earned(episode, branch) for episode, branch in pairs])
    return returns.reshape(len(branches), num_continuations), stats


def _check(branches: Sequence[Branch], num_continuations: int, limits: Limits, cap: int) -> None:
    """Raise AgentError for a request that cannot be met."""
    if not branches:
        raise AgentError("branches: must be at least one, as in one of each live episode")
    if num_continuations < 1:
        raise AgentError(f"num_continuations={num_continuations}: must be at least 1; pass 9")
    for branch in branches:
        t, position = branch.trajectory, branch.position
        where = f"position {position} of sample {t.sample_id} of group {t.group_id!r}"
        if not t.live:
            raise AgentError(f"{where}: the episode failed ({t.error}); leave it out")
        if not 0 <= position < len(t.token_ids) or not t.action_mask[position]:
            raise AgentError(f"{where}: must be the index of a policy token, as action_mask says")
        if t.mix_weights is not None and t.mix_weights[:position].any():
            raise AgentError(
                f"{where}: tokens before it were read as mixes of embeddings, which a continuation "
                "would read as themselves; leave mixing out"
            )
        in_turn = len(branch.begun_ids) < limits.max_turn_tokens
        in_turns = limits.max_turns is None or branch.turn < limits.max_turns
        if not (position < cap and in_turn and in_turns):
            raise AgentError(f"{where}: {limits} leaves no room there; pass the rollout's limits")


def _check_env(env: gym.Env[Any, Any]) -> None:
    inner = env.unwrapped
    if not isinstance(inner, Env):
        raise AgentError(
            f"{type(inner).__name__} has no task and chance of its own to be brought back with: "
            "subclass stepcredit.envs.Env, or use an algorithm without Monte-Carlo values"
        )


def _episode(branch: Branch, env: gym.Env[Any, Any]) -> Episode:
    t = branch.trajectory
    return Episode(
        spec=TaskSpec(group_id=t.group_id, task=t.task, split=t.split),
        sample_id=t.sample_id,
        env_id=t.env_id,
        env=env,
        seed=t.seed,
        chance_seed=t.chance_seed,
        sampling=t.sampling,
    )


def _bring_back(
    calls: EnvCalls,
    renderer: ChatRenderer,
    episodes: Sequence[Episode],
    branches: Sequence[Branch],
) -> None:
    """Take the recorded turns again, all rows in lockstep, each up to its branch."""
    pairs = list(zip(episodes, branches, strict=True))
    reset_all(calls, renderer, episodes)
    for turn in range(max(branch.turn for branch in branches)):
        going = [(e, branch) for e, branch in pairs if turn < branch.turn and not e.done]
        actions = [_say_again(renderer, e, branch.trajectory, turn) for e, branch in going]
        step_all(calls, renderer, [episode for episode, _ in going], actions)
    for episode, branch in pairs:
        if not episode.error:
            _join(episode, branch)


def _say_again(
    renderer: ChatRenderer, episode: Episode, recorded: Trajectory, turn: int
) -> tuple[str, list[tuple[int, int]]]:
    """Append a recorded turn; return its text and its tokens' ranges."""
    ids = _said(recorded, turn, len(recorded.token_ids))
    text, spans = renderer.action(ids)
    episode.read(episode.next_ids)
    episode.repeat(ids, text, cut=recorded.turn_cut[turn])
    return text, spans


def _said(t: Trajectory, turn: int, end: int) -> list[int]:
    """Return the policy tokens of a turn that lie before `end`."""
    ids: list[int] = t.token_ids[:end][t.action_mask[:end] & (t.turn_ids[:end] == turn)].tolist()
    return ids


def _join(episode: Episode, branch: Branch) -> None:
    """Let the policy go on where the branch is; fail where the replay is not what was recorded."""
    t = branch.trajectory
    episode.begun_ids = branch.begun_ids
    episode.next_ids = [*episode.next_ids, *episode.begun_ids]
    seen = [*episode.token_ids, *episode.next_ids]
    paid = t.rewards[: len(episode.rewards)]
    if episode.done or seen != t.token_ids[: branch.position].tolist():
        fault = "showed something else"
    elif not np.allclose(episode.rewards, paid):
        fault = f"paid {sum(episode.rewards):g} where {paid.sum():g} was recorded"
    else:
        return
    episode.fail(
        f"the environment {fault} when the first {branch.turn} actions were taken again: what it "
        "shows and pays must follow from its task_rng, its chance and the actions"
    )


def _still_earned(episode: Episode, branch: Branch) -> float:
    """Return the continued episode's rewards less those recorded before the branch.

    A judged step may begin before the branch and end behind it: what was recorded of it is taken
    off, so that recorded rewards and value always add up to the expected total.
    """
    if episode.error or episode.stop_reason == "wall_clock":
        return math.nan
    recorded = branch.trajectory.rewards[: branch.position]
    return math.fsum([*episode.rewards, *-recorded])
