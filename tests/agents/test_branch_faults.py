"""Continuations that fail, never come back or cannot be made."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from stepcredit.agents.branch import Branch, continuation_returns
from stepcredit.agents.errors import AgentError, RolloutError
from stepcredit.agents.rollout import EnvPool, Limits
from stepcredit.envs import Env
from stepcredit.envs.doors import Doors
from tests.agents.continuations import RENDERER, Says, go_on, positions, record
from tests.agents.worlds import Scripted

SHORT = Limits(env_timeout_s=0.5, max_error_share=0.9)


class Fragile(Env):
    """Two turns; in the second the chance may do what `fault` does."""

    fault: Callable[[], Any]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.turn = 0
        return "a", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        if self.turn == 2 and self.chance.random() < 0.25:
            return type(self).fault()
        return "b", 1.0, self.turn == 2, False, {"outcome": 1.0} if self.turn == 2 else {}


def raises() -> Any:
    raise RuntimeError("the world fell over")


def sleeps() -> Any:
    time.sleep(60)


@pytest.mark.parametrize("fault", [raises, sleeps, lambda: ("", "1", True, False, {})])
def test_a_continuation_that_fails_is_not_a_number_and_the_others_go_on(fault: Any) -> None:
    class Bad(Fragile):
        pass

    Bad.fault = fault
    t = next(t for t in record(Says(rest="a"), Bad, samples=8, limits=SHORT) if t.live)
    branches = [Branch(t, position) for position in positions(t)[:3:2]]
    returns, stats = go_on(Says(rest="a"), Bad, branches, 8, limits=SHORT)
    failed = np.isnan(returns)
    assert 0 < failed.sum() < 8
    assert failed.any(1).all()
    assert (stats["error"], stats["ok"]) == (failed.sum(), (~failed).sum())
    np.testing.assert_array_equal(returns[~failed], np.where(failed, 0, [[2.0], [1.0]])[~failed])


def test_too_many_failures_stop_the_run() -> None:
    class Bad(Fragile):
        fault = raises

    t = next(t for t in record(Says(rest="a"), Bad, samples=8, limits=SHORT) if t.live)
    with pytest.raises(RolloutError, match=r"of 40 episodes failed.*the world fell over"):
        go_on(
            Says(rest="a"),
            Bad,
            [Branch(t, positions(t)[0])],
            40,
            limits=Limits(max_error_share=0.05),
        )


class Forgetful(Env):
    """Three turns that show, pay or end by a count of its own that no seed brings back."""

    what = ""
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        type(self).count += 1
        self.turn = 0
        return self._own("start", "a"), {}

    def step(self, action: str) -> Any:
        self.turn += 1
        ended = self.turn == 3 or (self.what == "end" and self.count > 1)
        info = {"outcome": 1.0} if ended else {}
        return self._own("show", "b"), self._own("pay", 1.0), ended, False, info

    def _own(self, what: str, usual: Any) -> Any:
        odd = self.what == what and self.count > 1
        return {"a": "c", "b": "d", 1.0: 2.0}[usual] if odd else usual


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("start", "showed something else when the first 2 actions"),
        ("show", "showed something else"),
        ("end", "showed something else"),
        ("pay", "paid 4 where 2 was recorded"),
    ],
)
def test_an_environment_that_does_not_come_back_is_noticed(what: str, message: str) -> None:
    world = type("World", (Forgetful,), {"what": what})
    (t,) = record(Says(rest="a"), world)
    branch = Branch(t, positions(t)[-1])
    with pytest.raises(RolloutError, match=message):
        go_on(Says(rest="a"), world, [branch], 2)
    returns, stats = go_on(Says(rest="a"), world, [branch], 2, limits=Limits(max_error_share=1.0))
    assert np.isnan(returns).all()
    assert (stats["error"], stats["turns"], stats["policy_tokens"]) == (2, 0, 0)


def test_what_the_wall_clock_ends_is_no_value() -> None:
    make_env = partial(Doors, turns=3, facts=20)
    (t,) = record(Says(rest="a"), make_env)
    limits = Limits(max_wall_s=0.0)
    branches = [Branch(t, positions(t)[0]), Branch(t, positions(t)[-1])]
    returns, stats = go_on(Says(rest="a"), make_env, branches, limits=limits)
    assert np.isnan(returns).all()
    assert (stats["truncated"], stats["error"]) == (2, 0)


def test_an_environment_without_seeds_of_its_own_is_refused() -> None:
    def make_env() -> Scripted:
        return Scripted(lambda env, action: ("b", 1.0, True, False, {"outcome": 1.0}))

    (t,) = record(Says(rest="a"), make_env)
    pool = EnvPool(make_env)
    with pytest.raises(AgentError, match=r"Scripted has no task and chance.*subclass stepcredit"):
        continuation_returns(
            Says(rest="a"),
            RENDERER,
            pool,
            [Branch(t, positions(t)[0])],
            num_continuations=2,
            run_seed=0,
            limits=Limits(),
        )
    assert len(pool.idle) == 2


def test_requests_that_cannot_be_met_are_refused() -> None:
    make_env = partial(Doors, turns=3, facts=20)
    (t,) = record(Says(rest="abc"), make_env)
    at = positions(t)
    mixed = replace(t, mix_weights=np.zeros((len(t.token_ids), 2), np.float32))
    mixed.mix_weights[at[3]] = 0.5
    go_on(Says(rest="a"), make_env, [Branch(mixed, at[3])])
    failed = replace(t, status="error", error="judge is down")
    for branches, limits, number, message in [
        ([], Limits(), 1, "branches: must be at least one"),
        ([Branch(t, at[0])], Limits(), 0, "num_continuations=0: must be at least 1"),
        ([Branch(failed, at[0])], Limits(), 1, "the episode failed .judge is down."),
        ([Branch(t, 0)], Limits(), 1, "position 0 of sample 0 of group 'g': must be the index"),
        ([Branch(t, -1)], Limits(), 1, "position -1 .* must be the index of a policy token"),
        ([Branch(t, len(t.token_ids))], Limits(), 1, "must be the index of a policy token"),
        ([Branch(mixed, at[4])], Limits(), 1, "read as mixes of embeddings"),
        ([Branch(t, at[2])], Limits(max_turn_tokens=2), 1, "leaves no room there"),
        ([Branch(t, at[4])], Limits(max_turns=1), 1, "leaves no room there"),
        ([Branch(t, at[2])], Limits(max_episode_tokens=at[2]), 1, "leaves no room there"),
    ]:
        with pytest.raises(AgentError, match=message):
            go_on(Says(rest="a"), make_env, branches, number, limits=limits)
