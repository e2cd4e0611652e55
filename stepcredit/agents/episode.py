"""One episode while it grows: tokens, rewards and messages are appended, never rewritten."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from stepcredit.agents.engines.base import Completion
from stepcredit.agents.placement import UNJUDGED, place_rewards
from stepcredit.agents.trajectory import Array, Trajectory
from stepcredit.envs import Env, EnvError, Message, RewardSetup, StepReward
from stepcredit.envs.contract import (
    checked_answer,
    checked_first,
    checked_info,
    checked_messages,
    checked_number,
    checked_text,
    scored,
    shown,
)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One group to sample: which task, under which name."""

    group_id: str
    """Unique within a run: the seeds of its samples are derived from it."""
    task: int
    split: str = "train"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What an environment answered, checked."""

    messages: list[Message]
    state_key: str | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn that was answered: where its tokens and characters lie, and what it earned."""

    tokens: slice
    spans: list[tuple[int, int]]
    length: int
    first_step: int
    reply: Reply


@dataclass(kw_only=True)
class Episode:
    """A trajectory under construction, on one environment."""

    spec: TaskSpec
    sample_id: int
    env_id: str
    env: gym.Env[Any, Any]
    seed: int
    chance_seed: int
    sampling: dict[str, Any]

    token_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    step_ids: list[int] = field(default_factory=list)
    step_end: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    env_rewards: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_version: list[int] = field(default_factory=list)
    completions: list[tuple[int, Completion]] = field(default_factory=list)
    """Each sampled turn, and the place of its first token."""

    messages: list[Message] = field(default_factory=list)
    state_keys: list[str] = field(default_factory=list)
    turn_cut: list[bool] = field(default_factory=list)
    components: dict[str, float] = field(default_factory=dict)
    num_steps: int = 0
    last_turn: Turn | None = None

    next_ids: list[int] = field(default_factory=list)
    """What the policy reads before its next turn."""
    num_known: int = 0
    """Tokens that the policy's session has already."""
    begun_ids: list[int] = field(default_factory=list)
    """The last of `next_ids` where they are the beginning of that turn, said before."""
    state_key: str | None = None
    outcome: float | None = None
    success: bool | None = None
    stop_reason: str = ""
    error: str = ""

    @property
    def done(self) -> bool:
        """Whether the episode takes no more turns."""
        return bool(self.stop_reason)

    def read(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self._append(ids, sampled=False, logprobs=[0.0] * len(ids), version=-1)

    def say(self, completion: Completion, text: str) -> None:
        """Append one sampled turn."""
        if self.state_key is not None:
            self.state_keys.append(self.state_key)
        self.completions.append((len(self.token_ids), completion))
        self._append(
            completion.token_ids,
            sampled=True,
            logprobs=completion.logprobs,
            version=completion.policy_version,
        )
        self.turn_cut.append(completion.finish_reason == "length")
        self.messages.append(Message(role="assistant", content=text))

    def repeat(self, ids: Sequence[int], text: str, *, cut: bool) -> None:
        """Append a turn that was sampled in another episode: history, not sampled here."""
        if self.state_key is not None:
            self.state_keys.append(self.state_key)
        self.read(ids)
        self.turn_cut.append(cut)
        self.messages.append(Message(role="assistant", content=text))

    def judge(self, reply: Reply, spans: list[tuple[int, int]], length: int) -> None:
        """Take in what the environment answered to the turn just said."""
        info = reply.info
        end = len(self.token_ids)
        self.last_turn = Turn(
            tokens=slice(end - len(spans), end),
            spans=spans,
            length=length,
            first_step=self.num_steps,
            reply=reply,
        )
        self._place(self.last_turn, owed=0.0)
        self.messages.extend(reply.messages)
        self.state_key = reply.state_key
        for part in (info.get("components", {}), info.get("reward_forms", {})):
            for name, value in part.items():
                self.components[name] = self.components.get(name, 0.0) + float(value)
        if reply.terminated or reply.truncated:
            self.outcome = float(info["outcome"]) if "outcome" in info else None
            graded = self.outcome is not None and self.outcome >= 1.0
            self.success = bool(info.get("success", graded))
            self.stop_reason = "terminated" if reply.terminated else "env_truncated"

    def cut(self, reason: str) -> None:
        """End the episode at one of the rollout's own limits, and pay what was earned till here."""
        owed = self.last_turn.reply.info.get("owed", {}) if self.last_turn else {}
        if self.last_turn is not None and any(owed.values()):
            self._place(self.last_turn, owed=owed.get(reward_setup(self.env), 0.0))
        for name, value in owed.items():
            self.components[name] = self.components.get(name, 0.0) + value
        self.success = False
        self.stop_reason = reason

    def fail(self, error: str) -> None:
        """End the episode as one that could not be scored."""
        self.outcome = self.success = None
        # What it quotes may be no storable text.
        self.stop_reason, self.error = "error", error.encode(errors="replace").decode()

    def trajectory(self) -> Trajectory:
        """Return the finished episode."""
        return Trajectory(
            group_id=self.spec.group_id,
            sample_id=self.sample_id,
            env_id=self.env_id,
            task=self.spec.task,
            split=self.spec.split,
            seed=self.seed,
            chance_seed=self.chance_seed,
            token_ids=np.array(self.token_ids, np.int32),
            action_mask=np.array(self.action_mask, np.bool_),
            turn_ids=np.array(self.turn_ids, np.int32),
            step_ids=np.array(self.step_ids, np.int32),
            step_end=np.array(self.step_end, np.bool_),
            rewards=np.array(self.rewards, np.float64),
            env_rewards=np.array(self.env_rewards, np.float64),
            logprobs=np.array(self.logprobs, np.float32),
            policy_version=np.array(self.policy_version, np.int32),
            messages=[{"role": m["role"], "content": m["content"]} for m in self.messages],
            state_keys=self.state_keys,
            turn_cut=self.turn_cut,
            outcome=self.outcome,
            success=self.success,
            reward_components=self.components,
            terminated=self.stop_reason == "terminated",
            truncated=self.stop_reason not in ("terminated", "error"),
            stop_reason=self.stop_reason,
            status="error" if self.error else "ok",
            error=self.error,
            sampling=self.sampling,
            topk_ids=self._recorded("topk_ids", np.int32),
            topk_logprobs=self._recorded("topk_logprobs", np.float32),
            mix_ids=self._recorded("mix_ids", np.int32),
            mix_weights=self._recorded("mix_weights", np.float32),
        )

    def _recorded(self, name: str, dtype: type[np.generic]) -> Array | None:
        """Return what the engine recorded with each sampled token [L, K]; None where nothing."""
        turns = [(start, getattr(c, name)) for start, c in self.completions]
        if not turns or turns[0][1] is None:
            return None
        out = np.zeros((len(self.token_ids), len(turns[0][1][0])), dtype)  # [L, K]
        for start, rows in turns:
            out[start : start + len(rows)] = rows
        return out

    def _append(
        self, ids: Sequence[int], *, sampled: bool, logprobs: Sequence[float], version: int
    ) -> None:
        count = len(ids)
        self.token_ids += ids
        self.action_mask += [sampled] * count
        self.turn_ids += [len(self.turn_cut)] * count
        self.logprobs += logprobs
        self.policy_version += [version] * count
        self.step_ids += [UNJUDGED] * count
        self.step_end += [False] * count
        self.rewards += [0.0] * count
        self.env_rewards += [0.0] * count

    def _place(self, turn: Turn, *, owed: float) -> None:
        """Put a turn's rewards on its tokens; raises SpanError."""
        info = turn.reply.info
        reward = turn.reply.reward + owed
        judged: list[StepReward] = sorted(info.get("step_rewards", []), key=lambda s: s.start)
        if owed and judged:
            # On the last step that there is: what is owed makes no step of its own.
            judged[-1] = replace(judged[-1], value=judged[-1].value + owed)
        placed = place_rewards(turn.spans, turn.length, reward, judged)
        own_reward: float = info.get("env_reward", turn.reply.reward)
        own_judged: list[StepReward] = info.get("env_step_rewards", judged)
        same = own_reward == reward and own_judged == judged
        own = placed if same else place_rewards(turn.spans, turn.length, own_reward, own_judged)
        first = turn.first_step
        self.step_ids[turn.tokens] = [s if s == UNJUDGED else s + first for s in placed.steps]
        self.step_end[turn.tokens] = placed.step_end
        self.rewards[turn.tokens] = placed.rewards
        self.env_rewards[turn.tokens] = own.rewards
        self.num_steps = first + sum(placed.step_end)


def reward_setup(env: gym.Env[Any, Any]) -> str:
    """Return the reward set-up that an environment is wrapped in; "dense" for none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, RewardSetup):
            return env.reward
        env = env.env
    return "dense"


def reset_env(episode: Episode) -> Reply:
    """Start the episode's environment; raises EnvError for an answer that breaks the contract."""
    env, spec = episode.env, episode.spec
    options = {"task": spec.task, "split": spec.split, "chance_seed": episode.chance_seed}
    # An environment that is not ours knows no tasks and may refuse the options.
    answer = env.reset(
        seed=episode.seed, options=options if isinstance(env.unwrapped, Env) else None
    )
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise EnvError(f"reset() returned {shown(answer)}: must be (observation, info)")
    return Reply(messages=checked_first(answer[0]), state_key=_state_key(env))


def step_env(episode: Episode, action: str) -> Reply:
    """Step the episode's environment; raises EnvError for an answer that breaks the contract."""
    obs, reward, terminated, truncated, info = checked_answer(episode.env.step(action))
    if not scored(info):
        raise EnvError(f"the environment could not score: {info.get('error', 'no reason given')}")
    ended = terminated or truncated
    return Reply(
        messages=[] if ended and obs == "" else checked_messages(obs),
        state_key=None if ended else _state_key(episode.env),
        reward=checked_number("reward", reward),
        terminated=terminated,
        truncated=truncated,
        info=checked_info(info),
    )


def _state_key(env: gym.Env[Any, Any]) -> str | None:
    named = getattr(env.unwrapped, "state_key", None)
    return None if named is None else checked_text("state_key", str(named()))
