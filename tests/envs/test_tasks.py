"""Chain, Doors and Luck: hand-computed judgements and the calibration they promise."""

import math

import numpy as np
import pytest

from stepcredit.envs import BadValueError, StepReward, UnknownNameError, make
from stepcredit.envs.chain import Chain
from stepcredit.envs.doors import Doors
from stepcredit.envs.luck import Luck
from tests.envs.test_core import BUILT_INS


def test_chain_judges_each_digit_by_the_one_written_before():
    env = Chain(steps=4)
    env.reset(seed=0)
    env._start, env._terms = 3, [4, 1, 7, 2]
    assert env.gold() == "7857"
    _, reward, terminated, truncated, info = env.step("7957")  # 9 is wrong, 9+7=6 is not 5
    assert (reward, terminated, truncated) == (0.5, True, False)
    assert [span.value for span in info["step_rewards"]] == [0.25, 0.0, 0.0, 0.25]
    assert info["step_rewards"][1] == StepReward(1, 2, 0.0)
    assert (info["outcome"], info["success"]) == (0.5, False)
    assert env.step("7968")[4]["outcome"] == 0.75  # one slip costs one step


@pytest.mark.parametrize(
    ("action", "spans", "outcome"),
    [("7857", 4, 1.0), ("78", 2, 0.5), ("", 0, 0.0), ("78579", 4, 1.0), ("7x57", 4, 0.5)],
)
def test_chain_counts_what_was_not_written_and_ignores_what_is_too_much(action, spans, outcome):
    env = Chain(steps=4)
    env.reset(seed=0)
    env._start, env._terms = 3, [4, 1, 7, 2]
    info = env.step(action)[4]
    assert (len(info["step_rewards"]), info["outcome"]) == (spans, outcome)


def test_chain_prompt_names_start_and_terms():
    env = Chain(steps=3)
    prompt, _ = env.reset(seed=0)
    assert prompt == f"{env._start}+" + "".join(map(str, env._terms)) == env.state_key()
    assert len(prompt) == 5


def test_doors_pay_each_open_door_and_move_on_after_a_wrong_digit():
    env = Doors(turns=4)
    first, _ = env.reset(seed=3)
    rewards, shown = [], [first]
    for turn in range(4):
        gold = env.gold()
        action = gold if turn != 1 else str((int(gold) + 1) % 10)
        obs, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
        shown.append(obs)
    assert rewards == [0.25, 0.0, 0.25, 0.25]
    assert terminated and shown[-1] == "" and all(len(code) == 2 for code in shown[:-1])
    assert (info["outcome"], info["success"]) == (0.75, False)
    assert info["step_rewards"] == [StepReward(0, 1, 0.25)]


def test_doors_take_one_digit_and_nothing_else():
    env = Doors(turns=3)
    env.reset(seed=3)
    for action in ("", env.gold() + " ", "0123456789"):
        _, reward, _, _, info = env.step(action)
        assert reward == 0.0
        assert [span.end for span in info.get("step_rewards", [])] == [len(action)] * bool(action)


def test_the_world_is_fixed_by_its_seed_and_not_by_the_task():
    assert Doors().facts == Doors(turns=9).facts != Doors(world_seed=1).facts
    assert Chain().facts.answers == Chain(world_seed=1).facts.answers
    assert Chain().facts.decoys != Chain(world_seed=1).facts.decoys


@pytest.mark.parametrize("env", [Chain(), Doors(), Luck(kappa=4.0)])
def test_the_expert_is_right_three_times_in_four_and_wrong_on_hard_facts(env):
    rng = np.random.default_rng(0)
    facts, draws = env.facts, 400
    right = np.zeros(len(facts.answers))
    for fact, answer in enumerate(facts.answers):
        said = [facts.expert(fact, rng) for _ in range(draws)]
        right[fact] = np.mean([each == answer for each in said])
        mode = max(set(said), key=said.count)
        assert mode == (facts.decoys[fact] if facts.hard[fact] else answer)
    assert sum(facts.hard) == 30
    # .97 + .03 / 10 on easy facts, .25 + .1 / 10 on hard ones.
    hard = np.array(facts.hard)
    assert right[~hard].mean() == pytest.approx(0.973, abs=0.005)
    assert right[hard].mean() == pytest.approx(0.26, abs=0.015)
    assert right.mean() == pytest.approx(0.7591, abs=0.008)


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_right_play_scores_one(id, kwargs):
    env = make(id, **kwargs).unwrapped
    for task in range(20):
        obs, _ = env.reset(options={"task": task, "chance_seed": task, "split": "eval"})
        terminated, turns = False, 0
        while not terminated:
            assert set(obs) <= set(env.alphabet) and set(env.gold()) <= set(env.alphabet)
            obs, _, terminated, _, info = env.step(env.gold())
            turns += 1
        assert (info["outcome"], info["success"]) == (1.0, True)
        assert (turns == 1) == env.one_turn


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_imitating_the_expert_succeeds_a_third_of_the_time_at_four_steps(id, kwargs):
    size = "steps" if "steps" in kwargs else "turns"
    env = make(id, **{**kwargs, size: 4}).unwrapped
    rng, wins, episodes = np.random.default_rng(1), 0, 1500
    for task in range(episodes):
        env.reset(options={"task": task})
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(env.demonstration(rng))
        wins += info["success"]
    assert wins / episodes == pytest.approx(0.34, abs=0.05)


def lucky_returns(env, episodes=4000):
    """The luck part of each return, one door sequence and always the same action."""
    lucks, shown = [], []
    for chance_seed in range(episodes):
        obs, _ = env.reset(options={"task": 1, "chance_seed": chance_seed})
        seen, terminated, components = [obs], False, {}
        while not terminated:
            obs, _, terminated, _, info = env.step("0")
            seen.append(obs)
            components = info["components"]
        lucks.append(components["luck"])
        shown.append(seen)
    return np.array(lucks), shown


@pytest.mark.parametrize("kappa", [1.0, 16.0])
def test_luck_has_mean_zero_and_the_promised_variance(kappa):
    lucks, _ = lucky_returns(Luck(turns=2, kappa=kappa))
    # The expert is right on .973 of the easy 70 facts and on .26 of the hard 30.
    variance = kappa * (0.7 * 0.973 * 0.027 + 0.3 * 0.26 * 0.74) / 2
    assert lucks.mean() == pytest.approx(0.0, abs=4 * math.sqrt(variance / len(lucks)))
    assert lucks.var() == pytest.approx(variance, rel=0.06)
    # Ten equally likely, evenly spaced values: the largest is 4.5 steps of sqrt(variance / 8.25).
    assert lucks.max() == pytest.approx(4.5 * math.sqrt(variance / 8.25))
    assert len(np.unique(lucks.round(9))) == 10


def test_luck_is_none_at_kappa_zero_and_never_in_the_outcome():
    lucks, _ = lucky_returns(Luck(turns=2), episodes=50)
    assert not lucks.any()
    env = Luck(turns=2, kappa=16.0)
    env.reset(options={"task": 0, "chance_seed": 0})
    env.step(env.gold())
    _, reward, _, _, info = env.step("x")
    assert info["outcome"] == 0.5
    assert info["components"]["doors"] == 0.0
    assert reward == info["components"]["luck"] != 0.0


@pytest.mark.parametrize("reveal", [0, 1, 2])
def test_luck_is_shown_from_its_turn_on(reveal):
    _, shown = lucky_returns(Luck(turns=3, kappa=1.0, reveal=reveal), episodes=40)
    for seen in shown:
        assert [len(obs) for obs in seen] == [2 + (turn >= reveal) for turn in range(3)] + [0]
        assert len({obs[2] for obs in seen[reveal:3]}) == 1
    assert len({seen[2][2] for seen in shown}) > 5


def test_stakes_multiply_the_share_and_are_paid_at_the_last_door():
    env = Luck(turns=2, mode="stakes")
    seen = {}
    for chance_seed in range(100):
        env.reset(options={"task": 0, "chance_seed": chance_seed})
        obs, first, _, _, _ = env.step(env.gold())
        _, last, _, _, info = env.step("x")
        assert first == 0.0 and info["outcome"] == 0.5
        assert info["components"] == {"stakes": last}
        seen[obs[2]] = last
    assert seen == {str(stake % 10): stake / 2 for stake in range(1, 11)}


def test_state_key_holds_the_luck_once_it_is_shown():
    env = Luck(turns=3, kappa=1.0)
    before, after = set(), set()
    for chance_seed in range(60):
        env.reset(options={"task": 0, "chance_seed": chance_seed})
        before.add(env.state_key())
        env.step("0")
        after.add(env.state_key())
    assert (len(before), len(after)) == (1, 10)


@pytest.mark.parametrize(
    ("make_env", "text"),
    [
        (lambda: Chain(steps=0), "steps=0: must be at least 1; pass steps=4"),
        (lambda: Chain(steps=2.5), "steps=2.5: must be a whole number at least 1"),
        (lambda: Chain(hard_share=1.5), "hard_share=1.5: must be from 0 to 1; pass hard_share=0.3"),
        (lambda: Doors(facts=677), "facts=677: must be from 1 to 676; pass facts=100"),
        (lambda: Doors(world_seed=-1), "world_seed=-1: must be at least 0"),
        (lambda: Luck(kappa=-1), "kappa=-1: must be at least 0; pass kappa=4"),
        (lambda: Luck(kappa=float("nan")), "kappa=nan: must be at least 0"),
        (lambda: Luck(turns=8, reveal=8), "reveal=8: must be from 0 to 7"),
        (lambda: Luck(mode="stakes", kappa=4), "kappa=4: must be 0 in mode 'stakes'"),
    ],
)
def test_bad_parameters_say_value_rule_and_fix(make_env, text):
    with pytest.raises(BadValueError, match=text):
        make_env()


def test_an_unknown_mode_names_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown mode 'stake': did you mean 'stakes'"):
        Luck(mode="stake")
