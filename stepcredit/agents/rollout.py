"""Groups of episodes from a policy and an environment, all rows in lockstep, turn by turn."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from stepcredit.agents.engines.base import Engine, Session
from stepcredit.agents.episode import Episode, Reply, TaskSpec, reset_env, step_env
from stepcredit.agents.errors import AgentError, RolloutError
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.trajectory import Group, Trajectory
from stepcredit.envs import derive_seed
from stepcredit.envs.bounded import MAX_WORKERS, Outcome, call_all

CUT_OFF = "env_truncated"
CLOSE_SECONDS = 20.0
"""The longest wait for an environment to close once the rollouts are over."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where the rollout ends a turn, an episode or itself."""

    max_turn_tokens: int = 256
    """Policy tokens of one turn, its stop token included; a turn cut here is still stepped."""
    max_episode_tokens: int = 2048
    """Tokens of a whole episode, prompt and observations included."""
    max_turns: int | None = None
    """Turns of one episode; None for no limit."""
    max_wall_s: float | None = None
    """Seconds of the whole rollout, after which no turn begins; None for no limit."""
    env_timeout_s: float = 20.0
    """Seconds of one call into an environment."""
    max_error_share: float = 0.5
    """A rollout in which a larger share of the episodes fails raises RolloutError."""


EnvCalls = Callable[[Sequence[Callable[[], Reply]]], list[Outcome]]
"""Makes calls into environments, each bounded in time; see `call_all`."""


class EnvPool:
    """Environments of one kind, made when needed and used again by later rollouts."""

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]]):
        self.make_env = make_env
        self.idle: list[gym.Env[Any, Any]] = []

    def take(self, count: int) -> list[gym.Env[Any, Any]]:
        """Return `count` environments that nobody else uses."""
        while len(self.idle) < count:
            self.idle.append(self.make_env())
        taken, self.idle = self.idle[:count], self.idle[count:]
        return taken

    def give_back(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        """Take environments back, in an order that does not matter: `reset` makes them equal."""
        self.idle.extend(envs)

    def close(self) -> None:
        """Close the environments that are not in use; warn of those that raise or hang."""
        closed = call_all([env.close for env in self.idle], timeout_s=CLOSE_SECONDS)
        self.idle.clear()
        failed = [outcome.error for outcome in closed if outcome.error]
        if failed:
            warnings.warn(
                f"{len(failed)} of {len(closed)} environments could not be closed: close() must "
                f"work on a used environment; the first failure was: {failed[0]}",
                stacklevel=2,
            )


def rollout(
    engine: Engine,
    renderer: ChatRenderer,
    envs: EnvPool,
    tasks: Sequence[TaskSpec],
    *,
    num_generations: int,
    run_seed: int,
    env_id: str,
    limits: Limits,
) -> tuple[list[Group], dict[str, float]]:
    """Sample `num_generations` episodes of each task; return the groups and what they cost.

    Members of a group share the task and have a chance seed each, derived from (run seed, group id,
    sample). An episode whose environment raises, hangs or answers wrongly ends with status "error"
    and the others go on; RolloutError when more than `limits.max_error_share` of them fail.
    """
    begun = time.monotonic()
    episodes = _open(engine, envs, tasks, num_generations, run_seed, env_id, limits)
    try:
        calls = env_calls(episodes[0].env, limits)
        reset_all(calls, renderer, episodes)
        samplers = [derive_seed("sample", run_seed, e.spec.group_id, e.sample_id) for e in episodes]
        take_turns(engine, renderer, episodes, samplers, limits, begun, calls)
    finally:
        close_envs(envs, episodes, limits)
    groups = [
        Group(spec.group_id, tuple(e.trajectory() for e in episodes if e.spec is spec))
        for spec in tasks
    ]
    trajectories = [t for group in groups for t in group.trajectories]
    return groups, rollout_stats(trajectories, time.monotonic() - begun)


def env_calls(env: gym.Env[Any, Any], limits: Limits) -> EnvCalls:
    """Return what makes calls into environments of this kind."""
    workers, most = _threads(env)
    return partial(call_all, timeout_s=limits.env_timeout_s, workers=workers, most=most)


def reset_all(calls: EnvCalls, renderer: ChatRenderer, episodes: Sequence[Episode]) -> None:
    """Start every environment; what it shows is what its policy reads next."""
    outcomes = calls([partial(reset_env, episode) for episode in episodes])
    for episode, outcome in zip(episodes, outcomes, strict=True):
        if outcome.error:
            episode.fail(outcome.error)
        else:
            _first_turn(episode, outcome.value, renderer)


def step_all(
    calls: EnvCalls,
    renderer: ChatRenderer,
    episodes: Sequence[Episode],
    actions: Sequence[tuple[str, list[tuple[int, int]]]],
) -> None:
    """Step every environment with the text just said, given with the ranges of its tokens."""
    outcomes = calls(
        [partial(step_env, e, text) for e, (text, _) in zip(episodes, actions, strict=True)]
    )
    for episode, outcome, (text, spans) in zip(episodes, outcomes, actions, strict=True):
        if outcome.error:
            episode.fail(outcome.error)
            continue
        try:
            episode.judge(outcome.value, spans, len(text))
            episode.next_ids = []
            if not episode.done or (episode.stop_reason == CUT_OFF and outcome.value.messages):
                # A turn that was cut gets the end that it did not say.
                end = [renderer.stop_id] if episode.turn_cut[-1] else []
                episode.next_ids = end + renderer.delta(outcome.value.messages)
        except AgentError as problem:
            episode.fail(str(problem))


def take_turns(
    engine: Engine,
    renderer: ChatRenderer,
    episodes: Sequence[Episode],
    samplers: Sequence[int],
    limits: Limits,
    begun: float,
    calls: EnvCalls,
) -> None:
    """Take turns until all episodes have ended; `samplers` are the seeds of their tokens."""
    session = engine.start(len(episodes))
    cap = min(limits.max_episode_tokens, engine.max_context)
    cap_reason = "context" if engine.max_context < limits.max_episode_tokens else "token_limit"
    while True:
        for episode in episodes:
            if not episode.done:
                _apply_limits(episode, limits, cap, cap_reason, begun)
        _check_errors(episodes, limits)
        rows = [row for row, episode in enumerate(episodes) if not episode.done]
        if not rows:
            return
        _turn(session, renderer, episodes, rows, samplers, limits.max_turn_tokens, cap, calls)


def _threads(env: gym.Env[Any, Any]) -> tuple[int, int]:
    """Return how many calls to make at once, and how many at most once some of them hang."""
    blocking = getattr(env.unwrapped, "blocking", False)
    if isinstance(blocking, int) and not isinstance(blocking, bool):
        return blocking, blocking
    return (MAX_WORKERS if blocking else 1), MAX_WORKERS


def _open(
    engine: Engine,
    envs: EnvPool,
    tasks: Sequence[TaskSpec],
    num_generations: int,
    run_seed: int,
    env_id: str,
    limits: Limits,
) -> list[Episode]:
    """Return the episodes, sample by sample of task by task, none of them reset yet."""
    names = [spec.group_id for spec in tasks]
    if not names or len(set(names)) < len(names):
        raise AgentError(f"tasks: must be at least one, with a group_id each; got {names}")
    if num_generations < 1:
        raise AgentError(f"num_generations={num_generations}: must be at least 1; pass 8")
    sampling = {
        **engine.sampling,
        "max_turn_tokens": limits.max_turn_tokens,
        "max_episode_tokens": limits.max_episode_tokens,
    }
    members = [(spec, sample) for spec in tasks for sample in range(num_generations)]
    return [
        Episode(
            spec=spec,
            sample_id=sample,
            env_id=env_id,
            env=env,
            seed=derive_seed("reset", spec.split, spec.task),
            chance_seed=derive_seed("chance", run_seed, spec.group_id, sample),
            sampling=sampling,
        )
        for (spec, sample), env in zip(members, envs.take(len(members)), strict=True)
    ]


def _first_turn(episode: Episode, reply: Reply, renderer: ChatRenderer) -> None:
    episode.messages.extend(reply.messages)
    episode.state_key = reply.state_key
    try:
        episode.next_ids = renderer.prompt(reply.messages)
    except AgentError as problem:
        episode.fail(str(problem))


def _apply_limits(
    episode: Episode, limits: Limits, cap: int, cap_reason: str, begun: float
) -> None:
    """End the episode before its next turn where a limit says so."""
    turns = len(episode.turn_cut)
    length = len(episode.token_ids) + len(episode.next_ids)
    if length >= cap and not turns:
        episode.fail(f"the prompt of {length} tokens leaves no room to answer within {cap}")
        return
    if length >= cap:
        reason = cap_reason
    elif limits.max_turns is not None and turns >= limits.max_turns:
        reason = "turn_limit"
    elif limits.max_wall_s is not None and time.monotonic() - begun > limits.max_wall_s and turns:
        reason = "wall_clock"
    else:
        return
    episode.cut(reason)
    if length <= cap:
        # The state that was cut off: a critic can be asked what it was worth.
        episode.read(episode.next_ids)


def _turn(
    session: Session,
    renderer: ChatRenderer,
    episodes: Sequence[Episode],
    rows: Sequence[int],
    samplers: Sequence[int],
    max_turn_tokens: int,
    cap: int,
    calls: EnvCalls,
) -> None:
    """Every live row reads, says one turn and is answered."""
    live = [episodes[row] for row in rows]
    for episode in live:
        episode.read(episode.next_ids)
    new_ids = [episode.token_ids[episode.num_known :] for episode in live]
    completions = session.generate(
        rows,
        new_ids,
        [min(max_turn_tokens - len(e.begun_ids), cap - len(e.token_ids)) for e in live],
        # Counting on from a 63-bit hash never meets another sample's count.
        [samplers[row] + len(episodes[row].turn_cut) for row in rows],
    )
    actions = [
        renderer.action([*episode.begun_ids, *completion.token_ids])
        for episode, completion in zip(live, completions, strict=True)
    ]
    for episode, completion, (text, _) in zip(live, completions, actions, strict=True):
        episode.say(completion, text)
        episode.num_known, episode.begun_ids = len(episode.token_ids), []
    step_all(calls, renderer, live, actions)
    for episode in live:
        fits = len(episode.token_ids) + len(episode.next_ids) <= cap
        if episode.stop_reason == CUT_OFF and fits:
            episode.read(episode.next_ids)


def _check_errors(episodes: Sequence[Episode], limits: Limits) -> None:
    failed = [episode for episode in episodes if episode.error]
    if len(failed) > limits.max_error_share * len(episodes):
        raise RolloutError(
            f"{len(failed)} of {len(episodes)} episodes failed: at most a share of "
            f"{limits.max_error_share:g} may; the first failure was: {failed[0].error}"
        )


def close_envs(envs: EnvPool, episodes: Sequence[Episode], limits: Limits) -> None:
    """Keep the environments that worked; the state of the others is unknown."""
    envs.give_back([episode.env for episode in episodes if not episode.error])
    broken = [episode.env.close for episode in episodes if episode.error]
    call_all(broken, timeout_s=limits.env_timeout_s, workers=MAX_WORKERS)


def rollout_stats(trajectories: Sequence[Trajectory], seconds: float) -> dict[str, float]:
    """Return how many episodes, turns and sampled tokens there were, and how they ended."""
    return {
        "episodes": len(trajectories),
        "ok": sum(t.live for t in trajectories),
        "error": sum(not t.live for t in trajectories),
        "truncated": sum(t.truncated for t in trajectories),
        "cut_turns": sum(sum(t.turn_cut) for t in trajectories),
        "turns": sum(len(t.turn_cut) for t in trajectories),
        "policy_tokens": sum(t.num_action_tokens for t in trajectories),
        "seconds": seconds,
    }
