import json
import pickle
import subprocess
import sys

import gymnasium as gym
import pytest
from gymnasium.spaces.utils import flatdim

from stepcredit.envs import (
    BadValueError,
    Env,
    EnvError,
    TextSpace,
    UnknownNameError,
    derive_seed,
    make,
    replay,
)

# Every built-in, with a chance that shows where there is one.
BUILT_INS = [
    ("stepcredit/Chain-v0", {"steps": 5}),
    ("stepcredit/Doors-v0", {"turns": 5}),
    ("stepcredit/Luck-v0", {"turns": 5, "kappa": 4.0, "reveal": 2}),
    ("stepcredit/Luck-v0", {"turns": 5, "mode": "stakes"}),
]


class Coin(Env):
    """Shows a task number, then a coin."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return str(self.task_rng.integers(10**9)), {}

    def step(self, action):
        return str(self.chance.integers(10**9)), 0.0, True, False, {"outcome": 0.0}


def start(env, **options):
    return env.reset(seed=0, options=options)[0]


def test_derive_seed_is_the_same_in_every_process():
    code = "from stepcredit.envs import derive_seed; print(derive_seed('a', 1, 'b'))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert answers == {f"{derive_seed('a', 1, 'b')}\n"}


def test_derive_seed_tells_parts_types_and_order_apart():
    seeds = [
        derive_seed(1, 2),
        derive_seed(2, 1),
        derive_seed(12),
        derive_seed("1", 2),
        derive_seed("1", "2"),
        derive_seed(1, 2, 0),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_siblings_share_the_task_and_never_the_chance():
    env = Coin()
    prompts, coins = [], []
    for chance_seed in range(8):
        prompts.append(start(env, task=3, chance_seed=chance_seed))
        coins.append(env.step("")[0])
    assert len(set(prompts)) == 1
    assert len(set(coins)) == 8


def test_a_task_differs_between_splits_and_from_other_tasks():
    env = Coin()
    prompts = {start(env, task=task, split=split) for task in range(50) for split in Env.splits}
    assert len(prompts) == 100


def test_one_seed_decides_both_and_an_option_leaves_the_other_as_drawn():
    env = Coin()
    env.reset(seed=5)
    task, chance_seed = env.task, env.chance_seed
    env.reset(seed=5, options={"task": 77})
    assert (env.task, env.chance_seed) == (77, chance_seed)
    env.reset(seed=5, options={"chance_seed": 78})
    assert (env.task, env.chance_seed) == (task, 78)


def test_reset_without_a_seed_goes_on_to_another_task():
    env = Coin()
    env.reset(seed=5)
    tasks = [env.task]
    for _ in range(3):
        env.reset()
        tasks.append(env.task)
    assert len(set(tasks)) == 4


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"taks": 1}, UnknownNameError, "did you mean 'task'"),
        ({"split": "evl"}, UnknownNameError, "did you mean 'eval'"),
        ({"task": -1}, BadValueError, "task=-1: must be at least 0; leave it out"),
        ({"task": "1"}, BadValueError, "task='1': must be a whole number at least 0"),
        ({"chance_seed": True}, BadValueError, "chance_seed=True"),
        (["task"], BadValueError, "options=.'task'.: must be a dict"),
        ("task", BadValueError, "options='task': must be a dict"),
    ],
)
def test_bad_options_are_refused_with_the_fix(options, error, text):
    with pytest.raises(error, match=text):
        Coin().reset(options=options)


def test_text_space_holds_prose_and_messages():
    space = TextSpace(messages=True)
    message = {"role": "user", "content": "naïve 😀\n"}
    assert "naïve 😀\n" in space and "" in space and [message] in space
    assert [{"role": "user"}] not in space and 3 not in space
    assert [message] not in TextSpace()
    assert "abc" not in TextSpace(max_length=2)


def test_text_space_samples_its_own_elements_repeatably():
    space, twin = TextSpace(max_length=7, seed=1), TextSpace(max_length=7, seed=1)
    samples = [space.sample() for _ in range(200)]
    assert samples == [twin.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert any(not sample.isascii() for sample in samples)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples


def test_text_space_compares_by_what_it_holds_and_pickles():
    assert TextSpace() == TextSpace() != TextSpace(messages=True)
    assert pickle.loads(pickle.dumps(TextSpace(max_length=5))) == TextSpace(max_length=5)
    with pytest.raises(BadValueError, match="max_length=0: must be at least 1"):
        TextSpace(max_length=0)
    with pytest.raises(EnvError, match="mask"):
        TextSpace().sample(mask=1)
    with pytest.raises(ValueError, match="cannot be flattened"):
        flatdim(TextSpace())


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_replay_reaches_the_same_state(id, kwargs):
    env = make(id, **kwargs)
    where = {"task": 4, "split": "eval", "chance_seed": 9}
    obs, info = env.reset(options=where)
    result, actions = (obs, 0.0, False, False, info), []
    while True:
        again = make(id, **kwargs)
        assert replay(again, **where, actions=actions) == result
        assert again.unwrapped.state_key() == env.unwrapped.state_key()
        if result[2]:
            break
        actions.append(env.unwrapped.gold() if len(actions) % 2 else "x")
        result = env.step(actions[-1])
    with pytest.raises(EnvError, match="the episode ended after"):
        replay(make(id, **kwargs), **where, actions=[*actions, "0"])


def test_a_fresh_chance_changes_only_what_was_not_shown_yet():
    def lucks(num_actions):
        seen = set()
        for fresh in range(30):
            env = make("stepcredit/Luck-v0", turns=4, kappa=1.0, reveal=2)
            where = {"task": 1, "split": "train", "chance_seed": 0}
            replay(env, **where, actions=["0"] * num_actions, fresh_chance_seed=fresh)
            for _ in range(4 - num_actions):
                _, _, terminated, _, info = env.step("0")
            assert terminated
            seen.add(info["components"]["luck"])
        return seen

    assert len(lucks(2)) == 1  # two actions: the luck is on the table
    assert len(lucks(1)) > 5


def test_replay_refuses_a_fresh_chance_where_there_is_none():
    class Plain(gym.Env):
        def reset(self, *, seed=None, options=None):
            return "", {}

    with pytest.raises(BadValueError, match="Plain has no chance of its own"):
        replay(Plain(), task=0, split="train", chance_seed=0, actions=[], fresh_chance_seed=1)
