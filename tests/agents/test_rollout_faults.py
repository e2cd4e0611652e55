import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepcredit.agents.errors import RolloutError
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool, Limits, rollout
from stepcredit.agents.tokenizer import CHAT_TEMPLATE, build_char_tokenizer
from stepcredit.agents.trajectory import save_trajectories
from stepcredit.envs import RewardSetup, StepReward
from tests.agents.worlds import (
    ALPHABET,
    DONE,
    Scripted,
    char_renderer,
    ending_after,
    engine,
    members,
    play,
    raises,
    tasks,
    tiny,
)


def spins(env: Any, action: str) -> Any:
    while True:
        pass


def sleeps(env: Any, action: str) -> Any:
    time.sleep(60)


def scores_nothing(env: Any, action: str) -> Any:
    return "a", 0.0, True, False, {"status": "error", "error": "judge is down"}


def raises_surrogate(env: Any, action: str) -> Any:
    raise LookupError("'\ud800'")


def ends_with(**info: Any) -> Any:
    return lambda env, action: ("a", 0.0, True, False, DONE | info)


def spanned(span: Any) -> Any:
    """A script that judges one span; the actions of the tests may be empty."""
    return ends_with(step_rewards=[span])


BROKEN = {
    "raises": (raises, "RuntimeError: the world fell over"),
    "spins": (spins, "no answer within"),
    "sleeps": (sleeps, "no answer within"),
    "four values": (lambda env, action: ("a", 0.0, True, {}), "must be five values"),
    "nan": (lambda env, action: ("a", float("nan"), True, False, DONE), "reward=nan"),
    "text reward": (lambda env, action: ("a", "1", True, False, DONE), "reward='1'"),
    "number": (lambda env, action: (7, 0.0, False, False, {}), "observation=7"),
    "no info": (lambda env, action: ("a", 0.0, True, False, None), "info=None"),
    "flag": (lambda env, action: ("a", 0.0, "yes", False, {}), "terminated='yes'"),
    "outcome": (lambda env, action: ("a", 0.0, True, False, {"outcome": 2}), "outcome=2"),
    "span": (
        lambda env, action: ("a", 0.0, True, False, {"step_rewards": [StepReward(0, 99, 1.0)]}),
        "inside the action",
    ),
    "span type": (
        lambda env, action: ("a", 0.0, True, False, {"step_rewards": [(0, 1, 1.0)]}),
        "must be a StepReward",
    ),
    "span value": (spanned(StepReward(0, 1, None)), "the value of StepReward(start=0, end=1"),
    "span place": (spanned(StepReward("0", 1, 0.5)), "start and end must be whole numbers"),
    "spans": (ends_with(step_rewards=None), "step_rewards=None: must be a list of StepReward"),
    "no outcome": (ends_with(outcome=None), "outcome=None: must be a finite number"),
    "success": (ends_with(success=[1, 2]), "success=[1, 2]: must be a bool"),
    "parts": (ends_with(components=[1]), "components=[1]: must be a dict"),
    "part": (ends_with(components={"a": "x"}), "components['a']='x': must be a finite number"),
    "part name": (ends_with(components={1: 0.5}), "a name of a part=1: must be a text"),
    "owed": (ends_with(owed={"dense": "x"}), "owed['dense']='x'"),
    "huge": (lambda env, action: ("a", 1e39, True, False, DONE), "from -1e+30 to 1e+30"),
    "surrogate": (
        lambda env, action: ("\ud800", 0.0, True, False, DONE),
        "observation='\\ud800': must be Unicode text without lone surrogates",
    ),
    "surrogate in an error": (raises_surrogate, "LookupError: '?'"),
    "no score": (scores_nothing, "judge is down"),
    "alphabet": (lambda env, action: ("Z", 0.0, False, False, {}), "cannot be encoded"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_one_bad_environment_spoils_only_its_own_episode(fault: str, tmp_path: Path) -> None:
    answer, message = BROKEN[fault]
    good = ending_after(3)
    envs: list[Scripted] = []

    def make_env() -> Scripted:
        bad = len(envs) == 1
        envs.append(
            Scripted(lambda env, a: answer(env, a) if bad and env.turn == 2 else good(env, a))
        )
        return envs[-1]

    # The bound must be long enough for the healthy ones on a busy machine.
    groups, stats = play(make_env, num_tasks=2, num_generations=2, env_timeout_s=1.0)
    bad, *rest = sorted(members(groups), key=lambda t: t.live)
    save_trajectories(tmp_path / "whatever-happened.parquet", members(groups))
    assert (bad.sample_id, bad.status, bad.stop_reason) == (1, "error", "error")
    assert message in bad.error
    assert (bad.terminated, bad.truncated, bad.outcome, bad.success) == (False, False, None, None)
    assert bad.ret == 1.0, "what was earned before the fault is kept"
    assert all(t.live and t.terminated and len(t.turn_cut) == 3 for t in rest)
    assert (stats["ok"], stats["error"], stats["episodes"]) == (3, 1, 4)


def test_an_environment_that_fails_to_reset_is_an_error_too() -> None:
    class BadReset(Scripted):
        def reset(self, **kwargs: Any) -> Any:
            return "a" if self.bad else super().reset(**kwargs)

    count = iter(range(9))

    def make_env() -> BadReset:
        env = BadReset(ending_after(1))
        env.bad = next(count) == 0
        return env

    groups, stats = play(make_env, num_tasks=2, num_generations=2)
    assert stats["error"] == 1
    assert "must be (observation, info)" in groups[0].trajectories[0].error
    assert groups[0].trajectories[0].num_action_tokens == 0


def test_a_first_observation_of_no_messages_is_an_error_too() -> None:
    class Silent(Scripted):
        def reset(self, **kwargs: Any) -> Any:
            return [], {}

    groups, _ = play(partial(Silent, raises), num_tasks=1, max_error_share=1.0)
    assert all("observation=[]: must hold a message" in t.error for t in members(groups))


def test_the_reward_switch_lets_the_reason_of_a_failure_through() -> None:
    for name in ("no info", "four values", "no score", "flag"):
        answer, message = BROKEN[name]
        groups, _ = play(
            lambda answer=answer: RewardSetup(Scripted(answer), "outcome"),
            num_tasks=1,
            max_error_share=1.0,
        )
        assert all(message in t.error for t in members(groups)), message


def test_messages_that_the_template_refuses_spoil_only_their_episode() -> None:
    tokenizer = build_char_tokenizer(ALPHABET)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
        "{% endif %}{% endfor %}" + CHAT_TEMPLATE
    )

    def answer(env: Any, action: str) -> Any:
        said = {"role": "tool" if env.seed % 2 else "user", "content": "a"}
        return [said], 0.0, env.turn == 3, False, {"outcome": 1.0} if env.turn == 3 else {}

    groups, stats = rollout(
        engine(tiny()),
        ChatRenderer(tokenizer),
        EnvPool(partial(Scripted, answer)),
        tasks(6),
        num_generations=1,
        run_seed=0,
        env_id="x",
        limits=Limits(max_turn_tokens=4, max_error_share=1.0),
    )
    played = members(groups)
    assert 0 < stats["error"] < 6
    assert all(t.live == (t.seed % 2 == 0) for t in played)
    assert all("refuses" in t.error and "no tools here" in t.error for t in played if not t.live)


def test_too_many_errors_stop_the_run_with_the_first_of_them() -> None:
    with pytest.raises(RolloutError, match=r"4 of 4 episodes failed.*the world fell over"):
        play(partial(Scripted, raises), num_tasks=1)


def test_broken_environments_are_closed_and_not_used_again() -> None:
    envs: list[Scripted] = []

    def make_env() -> Scripted:
        envs.append(Scripted(raises if not envs else ending_after(1)))
        return envs[-1]

    pool = EnvPool(make_env)
    rollout(
        engine(tiny()),
        char_renderer(),
        pool,
        tasks(2),
        num_generations=1,
        run_seed=0,
        env_id="x",
        limits=Limits(max_turn_tokens=2),
    )
    assert envs[0].closed
    assert not envs[1].closed
    assert pool.idle == [envs[1]]
    pool.close()
    assert envs[1].closed
