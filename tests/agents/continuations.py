"""Recorded episodes and continuations of them, for the tests of Monte-Carlo values."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from stepcredit.agents.branch import Branch, continuation_returns
from stepcredit.agents.engines.base import Completion
from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.episode import TaskSpec
from stepcredit.agents.model import build_tiny
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool, Limits, rollout
from stepcredit.agents.tokenizer import build_char_tokenizer
from stepcredit.agents.trajectory import Trajectory
from tests.agents.worlds import ALPHABET

Make = Callable[[], gym.Env[Any, Any]]
RENDERER = ChatRenderer(build_char_tokenizer(ALPHABET + "+"))
STOP = RENDERER.stop_id


def policy(renderer: ChatRenderer = RENDERER, seed: int = 0) -> TransformersEngine:
    model = build_tiny(len(renderer.tokenizer), "0.12M", seed).eval()
    return TransformersEngine(model, stop_id=renderer.stop_id)


class Says:
    """An engine that says the given texts, turn by turn, and writes down what it was asked."""

    max_context = 10**6

    def __init__(self, *texts: str, rest: str = "", renderer: ChatRenderer = RENDERER):
        self.texts, self.rest, self.renderer = texts, rest, renderer
        self.sampling: dict[str, Any] = {}
        self.asked: list[tuple[int, list[int], int, int]] = []
        self.turns: dict[int, int] = {}

    def start(self, num_rows: int) -> "Says":
        self.turns = dict.fromkeys(range(num_rows), 0)
        return self

    def update_weights(self, policy_version: int) -> None:
        raise NotImplementedError

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Completion]:
        said = []
        for row, new, most, seed in zip(rows, new_ids, max_tokens, seeds, strict=True):
            self.asked.append((row, list(new), most, seed))
            text = self.texts[self.turns[row]] if self.turns[row] < len(self.texts) else self.rest
            self.turns[row] += 1
            ids = self.renderer.reply(text)[:most]
            said.append(
                Completion(
                    token_ids=ids,
                    logprobs=[-1.0] * len(ids),
                    finish_reason="stop" if ids[-1] == self.renderer.stop_id else "length",
                    policy_version=0,
                )
            )
        return said


def record(
    engine: Any,
    make_env: Make,
    *,
    samples: int = 1,
    task: int = 0,
    renderer: ChatRenderer = RENDERER,
    limits: Limits | None = None,
) -> list[Trajectory]:
    groups, _ = rollout(
        engine,
        renderer,
        EnvPool(make_env),
        [TaskSpec(group_id="g", task=task)],
        num_generations=samples,
        run_seed=0,
        env_id="x",
        limits=limits or Limits(),
    )
    return list(groups[0].trajectories)


def go_on(
    engine: Any,
    make_env: Make,
    branches: Sequence[Branch],
    number: int = 1,
    *,
    run_seed: int = 0,
    renderer: ChatRenderer = RENDERER,
    limits: Limits | None = None,
) -> tuple[np.ndarray, dict[str, float]]:
    return continuation_returns(
        engine,
        renderer,
        EnvPool(make_env),
        branches,
        num_continuations=number,
        run_seed=run_seed,
        limits=limits or Limits(),
    )


def positions(t: Trajectory) -> list[int]:
    return np.flatnonzero(t.action_mask).tolist()
