import math
import re

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepcredit.envs import REWARDS, Env, EnvError, RewardSetup, StepReward, make, replay
from tests.envs.test_core import BUILT_INS


class Scripted(Env):
    """Returns the reward and info it was given, one pair per step."""

    def __init__(self, *steps):
        self.steps = steps
        self.at = 0

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        reward, info = self.steps[self.at]
        self.at += 1
        return "", reward, self.at == len(self.steps), False, info


def paid(env, actions):
    env.reset(seed=0)
    return [env.step(action) for action in actions]


def test_hand_computed_payment_of_each_setup():
    steps = [
        (0.5, {"step_rewards": [StepReward(0, 1, 0.25), StepReward(1, 2, 0.25)]}),
        (0.75, {"step_rewards": [StepReward(0, 2, 0.5)], "outcome": 0.8}),
    ]
    actions = ["ab", "abc"]
    spans = {
        "dense": [[(0, 1, 0.25), (1, 2, 0.25)], [(0, 2, 0.5)]],
        "dense@end": [[(0, 1, 0.0), (1, 2, 0.0)], [(0, 2, 0.0), (2, 3, 1.25)]],
        "outcome": [[(0, 1, 0.0), (1, 2, 0.0)], [(0, 2, 0.0), (2, 3, 0.0)]],
    }
    rewards = {"dense": [0.5, 0.75], "dense@end": [0.0, 1.25], "outcome": [0.0, 0.0]}
    for reward in REWARDS:
        results = paid(RewardSetup(Scripted(*steps), reward), actions)
        assert [result[1] for result in results] == rewards[reward]
        assert [
            [(span.start, span.end, span.value) for span in result[4]["step_rewards"]]
            for result in results
        ] == spans[reward]
        assert [result[4]["env_step_rewards"] for result in results] == [
            info["step_rewards"] for _, info in steps
        ]
        assert [result[4]["owed"]["dense@end"] for result in results] == [0.5, 0.0]


def test_without_a_left_over_the_total_lies_on_the_last_span_and_no_step_is_added():
    spans = [StepReward(0, 1, 0.1), StepReward(1, 2, 0.2)]
    steps = [(0.1 + 0.2 + 1e-16, {"step_rewards": spans, "outcome": 1.0})]
    for reward, amount in (("dense@end", 0.3), ("outcome", 1.0)):
        (result,) = paid(RewardSetup(Scripted(*steps), reward), ["abcd"])
        found = result[4]["step_rewards"]
        assert [(span.start, span.end) for span in found] == [(0, 1), (1, 2)]
        assert [span.value for span in found] == [0.0, pytest.approx(amount)]


def test_at_the_end_the_last_span_is_paid_when_nothing_follows_it():
    steps = [(0.5, {"step_rewards": [StepReward(1, 2, 0.3), StepReward(0, 1, 0.2)], "outcome": 1})]
    (result,) = paid(RewardSetup(Scripted(*steps), "dense@end"), ["ab"])
    assert result[4]["step_rewards"] == [StepReward(0, 1, 0.0), StepReward(1, 2, 0.5)]
    (result,) = paid(RewardSetup(Scripted(*steps), "outcome"), ["ab"])
    assert result[4]["step_rewards"] == [StepReward(0, 1, 0.0), StepReward(1, 2, 1.0)]
    assert result[1] == 1.0


def test_success_overrules_the_outcome():
    (result,) = paid(
        RewardSetup(Scripted((0.1, {"outcome": 0.9, "success": True})), "outcome"), "a"
    )
    assert result[1] == 1.0
    (result,) = paid(
        RewardSetup(Scripted((0.1, {"outcome": 1.0, "success": False})), "outcome"), "a"
    )
    assert result[1] == 0.0


def test_an_end_without_outcome_is_an_error_unless_the_env_could_not_score():
    env = RewardSetup(Scripted((1.0, {})), "outcome")
    env.reset()
    with pytest.raises(EnvError, match="Scripted ended an episode without info"):
        env.step("a")
    (result,) = paid(RewardSetup(Scripted((0.0, {"status": "error"})), "outcome"), "a")
    assert result[4]["status"] == "error"


@pytest.mark.parametrize(
    ("reward", "info", "message"),
    [
        (None, {"outcome": 1.0}, "reward=None: must be a finite number"),
        (1.0, {"outcome": None}, "outcome=None: must be a finite number"),
        (1.0, {"outcome": 1.0, "step_rewards": None}, "step_rewards=None: must be a list"),
        (
            1.0,
            {"outcome": 1.0, "step_rewards": [StepReward(0, 1, None)]},
            "the value of StepReward",
        ),
    ],
)
@pytest.mark.parametrize("name", REWARDS)
def test_answers_that_are_none_are_refused_by_name(name, reward, info, message):
    env = RewardSetup(Scripted((reward, info)), name)
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step("a")


class Answers(gym.Env):
    """Answers every action with the same value, whatever that is."""

    def __init__(self, answer):
        self.answer = answer

    def reset(self, *, seed=None, options=None):
        return "", {}

    def step(self, action):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "step() returned None: must be five values"),
        (("", 1.0, True, False), "must be five values"),
        (("", 1.0, True, False, None), "info=None: must be a dict"),
        (("", 1.0, None, False, {"outcome": 1.0}), "terminated=None: must be a bool"),
        (("", 1.0, True, np.zeros(2), {"outcome": 1.0}), "truncated=array([0., 0.]): must be"),
        (("", 1.0, True, False, {"outcome": 1.0, "success": "no"}), "success='no': must be a bool"),
        (("", 1.0, True, False, {"outcome": 1.0, "success": None}), "success=None: must be a bool"),
        (("", 1.0, True, False, {"outcome": 1.0, "components": {"outcome": 0.0}}), "'outcome'"),
    ],
)
@pytest.mark.parametrize("name", REWARDS)
def test_an_answer_of_another_shape_is_refused_by_name(name, answer, message):
    env = RewardSetup(Answers(answer), name)
    env.reset()
    with pytest.raises(EnvError, match=re.escape(message)):
        env.step("a")


@pytest.mark.parametrize("reward", [None, math.nan])
def test_the_reason_of_an_env_that_could_not_score_gets_through(reward):
    step = (reward, {"status": "error", "error": "judge is down", "step_rewards": None})
    (result,) = paid(RewardSetup(Scripted(step), "dense"), "a")
    assert result[1] == 0.0
    assert (result[4]["status"], result[4]["error"]) == ("error", "judge is down")


@pytest.mark.parametrize("name", [["outcome"], 3, {}])
def test_a_reward_that_is_no_text_is_refused(name):
    with pytest.raises(EnvError, match="unknown reward"):
        make("stepcredit/Doors-v0", reward=name)


def test_synonyms_and_unknown_names():
    assert RewardSetup(Scripted(), "binary@end").reward == "outcome"
    assert RewardSetup(Scripted(), "partial@step").reward == "dense"
    assert RewardSetup(Scripted(), "partial@end").reward == "dense@end"
    assert RewardSetup(Scripted()).reward == "dense"
    with pytest.raises(EnvError, match="unknown reward 'dense@edn': did you mean 'dense@end'"):
        RewardSetup(Scripted(), "dense@edn")


def test_a_new_episode_owes_nothing():
    env = RewardSetup(Scripted((1.0, {}), (1.0, {"outcome": 1.0})), "dense@end")
    env.reset()
    env.step("a")
    assert [result[1] for result in paid(env, "ab")] == [0.0, 2.0]


def episode(id, kwargs, reward, where, actions):
    env = make(id, reward=reward, **kwargs)
    env.reset(options=where)
    results = []
    for action in actions:
        results.append(env.step(action))
        if results[-1][2]:
            return results
    return results


@settings(max_examples=60, deadline=None)
@given(
    built_in=st.sampled_from(BUILT_INS),
    task=st.integers(0, 10**6),
    chance_seed=st.integers(0, 10**6),
    guesses=st.lists(st.none() | st.text("0123456789x\u00e9", max_size=9), min_size=5, max_size=5),
)
def test_the_recorded_forms_are_what_each_setup_pays(built_in, task, chance_seed, guesses):
    """``None`` plays the right action."""
    id, kwargs = built_in
    where = {"task": task, "split": "train", "chance_seed": chance_seed}
    env = make(id, **kwargs)
    env.reset(options=where)
    actions, terminated = [], False
    for guess in guesses:
        if not terminated:
            actions.append(env.unwrapped.gold() if guess is None else guess)
            terminated = env.step(actions[-1])[2]
    assert terminated
    played = {reward: episode(id, kwargs, reward, where, actions) for reward in REWARDS}
    for reward in REWARDS:
        for recorded in played.values():
            forms = [result[4]["reward_forms"][reward] for result in recorded]
            assert forms == [result[1] for result in played[reward]]
        for (_, total, _, _, info), action in zip(played[reward], actions, strict=True):
            spans = info.get("step_rewards", [])
            assert all(0 <= span.start < span.end <= len(action) for span in spans)
            if spans:
                assert math.fsum(span.value for span in spans) == pytest.approx(total, abs=1e-12)
    totals = {r: math.fsum(result[1] for result in played[r]) for r in REWARDS}
    assert totals["dense"] == totals["dense@end"]
    success = played["dense"][-1][4]["success"]
    assert [result[1] for result in played["outcome"]] == [0.0] * (len(actions) - 1) + [success]
    assert all(result[1] == 0.0 for result in played["dense@end"][:-1])
    assert success == (played["dense"][-1][4]["outcome"] == 1.0)
    assert replay(make(id, **kwargs), **where, actions=actions) == played["dense"][-1]


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_placement_keeps_the_steps_where_nothing_follows_them(id, kwargs):
    where = {"task": 1, "split": "train", "chance_seed": 2}
    env = gym.make(id, **kwargs)
    env.reset(options=where)
    rng = np.random.default_rng(0)
    actions, terminated = [], False
    while not terminated:
        actions.append(env.unwrapped.demonstration(rng))
        terminated = env.step(actions[-1])[2]
    shapes = {
        reward: [
            [(span.start, span.end) for span in result[4]["step_rewards"]]
            for result in episode(id, kwargs, reward, where, actions)
        ]
        for reward in REWARDS
    }
    assert shapes["dense"] == shapes["dense@end"] == shapes["outcome"]
