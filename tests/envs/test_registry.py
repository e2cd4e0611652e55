import pickle
import sys
import textwrap
import warnings

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

from stepcredit.envs import (
    BadValueError,
    Env,
    EnvError,
    RewardSetup,
    UnknownNameError,
    check_env,
    list_envs,
    make,
    register,
)
from tests.envs.test_core import BUILT_INS


class Parity(Env):
    """Say whether a number is odd or even."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.n = int(self.task_rng.integers(100))
        return f"{self.n}: odd or even?", {}

    def step(self, action):
        right = float(action.strip() == ("odd" if self.n % 2 else "even"))
        return "", right, True, False, {"outcome": right}


class Wait(Env):
    """Goes on for ever and pays 1 for every word."""

    def step(self, action):
        return "?", 1.0, False, False, {}


@pytest.fixture(autouse=True)
def own_registry():
    """Leaves gymnasium's registry as it was."""
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


def play(env, action):
    env.reset(seed=0)
    rewards = []
    while True:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            return rewards, info


def test_an_own_env_in_fifteen_lines_works_in_both_makes():
    register("my/Parity-v0", Parity)
    for env in (
        gym.make("my/Parity-v0", reward="dense@end"),
        make("my/Parity-v0", reward="dense@end"),
    ):
        prompt, _ = env.reset(seed=1)
        right = "odd" if int(prompt.split(":")[0]) % 2 else "even"
        assert env.step(right)[1] == 1.0
        assert env.unwrapped.spec.id == "my/Parity-v0"


def test_a_local_class_and_a_factory_can_be_registered():
    class Local(Parity):
        pass

    register("my/Local-v0", Local)
    register("my/Factory-v0", lambda: Parity())
    assert isinstance(make("my/Local-v0").unwrapped, Local)
    assert isinstance(make("my/Factory-v0").unwrapped, Parity)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_factory_may_wrap_and_the_switch_goes_around_it(layers):
    def wrapped():
        env = Parity()
        for _ in range(layers):
            env = gym.wrappers.TransformReward(env, lambda reward: 2 * reward)
        return env

    register("my/Wrapped-v0", wrapped, max_episode_steps=3)
    env = make("my/Wrapped-v0", reward="dense@end")
    for each in (env, gym.make(env.spec)):
        assert isinstance(each, RewardSetup) and each.reward == "dense@end"
        each.reset(seed=0)
        assert each.step("odd" if each.unwrapped.n % 2 else "even")[1] == 2.0**layers
    assert check_env("my/Wrapped-v0") == []


def test_a_time_limit_truncates_and_the_total_is_paid_all_the_same():
    register("my/Wait-v0", Wait, max_episode_steps=3)
    assert play(make("my/Wait-v0", reward="dense"), "w")[0] == [1.0, 1.0, 1.0]
    assert play(make("my/Wait-v0", reward="dense@end"), "w")[0] == [0.0, 0.0, 3.0]
    assert play(gym.make("my/Wait-v0", reward="dense@end", max_episode_steps=2), "w")[0] == [0, 2]
    assert play(make("my/Wait-v0", reward="outcome"), "w")[0] == [0.0, 0.0, 0.0]


def test_default_arguments_can_be_registered_and_overridden():
    register("my/Doors-v0", "stepcredit.envs.doors:Doors", kwargs={"turns": 7})
    assert make("my/Doors-v0").unwrapped.turns == 7
    assert make("my/Doors-v0", turns=2).unwrapped.turns == 2
    row = next(row for row in list_envs() if row.id == "my/Doors-v0")
    assert row.parameters["turns"] == 7


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_specs_survive_json_and_pickle(id, kwargs):
    spec = gym.make(id, reward="outcome", **kwargs).spec
    for copied in (EnvSpec.from_json(spec.to_json()), pickle.loads(pickle.dumps(spec))):
        env = gym.make(copied)
        assert env.reward == "outcome"
        assert env.spec == spec
        assert env.reset(seed=3)[0] == gym.make(id, **kwargs).reset(seed=3)[0]


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_gymnasium_does_not_complain(id, kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(id, disable_env_checker=False, **kwargs)
        env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(env, 100))
        _, info = play(env, "1")
    assert info["episode"]["l"] >= 1


def test_another_librarys_env_takes_the_switch():
    class Guess(gym.Env):
        observation_space = action_space = gym.spaces.Text(5)

        def __init__(self, word="yes"):
            self.word = word

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.tries = 0
            return "?", {}

        def step(self, action):
            self.tries += 1
            right = action == self.word
            done = self.tries == 2
            return "?", 0.5 * right, done, False, {"outcome": float(right)} if done else {}

    gym.register("other/Guess-v0", Guess, disable_env_checker=True)
    assert play(make("other/Guess-v0"), "yes")[0] == [0.5, 0.5]
    assert play(make("other/Guess-v0", reward="dense@end"), "yes")[0] == [0.0, 1.0]
    assert play(make("other/Guess-v0", reward="outcome", word="no"), "no")[0] == [0.0, 1.0]
    with pytest.raises(UnknownNameError, match="unknown parameter 'wrod': did you mean 'word'"):
        make("other/Guess-v0", wrod="no")


def test_a_module_is_imported_first(tmp_path, monkeypatch):
    (tmp_path / "my_module_of_envs.py").write_text(
        textwrap.dedent(
            """
            from stepcredit.envs import Env, register
            class Yes(Env):
                def step(self, action):
                    return "", 1.0, True, False, {"outcome": 1.0}
            register("my/Yes-v0", Yes)
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert play(make("my_module_of_envs:my/Yes-v0"), "")[0] == [1.0]
    with pytest.raises(UnknownNameError, match="did you mean 'my_module_of_envs:my/Yes-v0'"):
        make("my_module_of_envs:my/Yess-v0")
    del sys.modules["my_module_of_envs"]


@pytest.mark.parametrize(
    ("id", "kwargs", "error", "text"),
    [
        ("stepcredit/Dors-v0", {}, UnknownNameError, "did you mean 'stepcredit/Doors-v0'"),
        ("Doors-v0", {}, UnknownNameError, "did you mean 'stepcredit/Doors-v0'"),
        (
            "CartPol-v1",
            {},
            UnknownNameError,
            "one of your own is named with its module",
        ),
        (
            "my/Parity-v9",
            {},
            UnknownNameError,
            "my_envs:my/Parity-v9, where my_envs.py lies in",
        ),
        ("parity", {}, UnknownNameError, "with its module, parity:my/Env-v0, where parity.py lies"),
        ("no_such_module:a/B-v0", {}, EnvError, "'no_such_module' cannot be imported"),
        (".relative:a/B-v0", {}, EnvError, "'.relative' cannot be imported"),
        ("stepcredit/Doors-v0", {"max_episode_steps": 0}, BadValueError, "max_episode_steps=0: mu"),
        ("stepcredit/Doors-v0", {"max_episode_steps": "9"}, BadValueError, "must be a whole numbe"),
        ("CartPole-v1", {"max_episode_steps": 0.5}, BadValueError, "max_episode_steps=0.5: must"),
        ("stepcredit/Doors-v0", {"turn": 3}, UnknownNameError, "did you mean 'turns'"),
        ("stepcredit/Doors-v0", {"reward": "densse"}, UnknownNameError, "did you mean 'dense'"),
        ("stepcredit/Doors-v0", {"turns": 0}, BadValueError, "turns=0: must be at least 1; pass"),
    ],
)
def test_mistakes_name_the_nearest_valid_name(id, kwargs, error, text):
    with pytest.raises(error, match=text):
        make(id, **kwargs)


def test_what_gymnasium_registered_is_suggested_where_it_is_in_text():
    gym.register("my/Direct-v0", Parity)
    gym.register("my/Named-v0", f"{__name__}:Parity")
    for near in ("my/Direct-v0", "my/Named-v0"):
        with pytest.raises(UnknownNameError, match=f"did you mean '{near}'"):
            make(near.replace("ct", "kt").replace("med", "mmed"))


def test_gymnasiums_make_gives_the_same_errors():
    with pytest.raises(UnknownNameError, match="did you mean 'turns'"):
        gym.make("stepcredit/Doors-v0", turn=3)
    with pytest.raises(UnknownNameError, match="did you mean 'outcome'"):
        gym.make("stepcredit/Doors-v0", reward="outcom")


def test_bad_registrations_are_refused():
    with pytest.raises(EnvError, match="must read"):
        register("my parity!", Parity)
    with pytest.raises(EnvError, match="max_episode_steps=0: must be at least 1"):
        register("my/Short-v0", Parity, max_episode_steps=0)
    register("my/Needs-v0", "tests.envs.test_registry:needs")
    with pytest.raises(EnvError, match="size is missing: it has no default"):
        make("my/Needs-v0")
    with pytest.raises(EnvError, match="returned a str: must be a gymnasium"):
        make("my/Needs-v0", size=1)


def needs(size):
    return "not an env"


def test_listing_says_what_each_takes_and_which_cannot_be_loaded():
    register("my/Broken-v0", "no_such_module:Env")
    rows = {row.id: row for row in list_envs()}
    assert rows["stepcredit/Doors-v0"].parameters["turns"] == 4
    assert rows["stepcredit/Doors-v0"].summary.startswith("Open T doors")
    assert "cannot be loaded" in rows["my/Broken-v0"].summary
    assert "CartPole-v1" not in rows


@pytest.mark.parametrize("source", ["def (", "x = y", "raise SystemExit(3)"])
def test_a_module_that_fails_says_how_and_is_listed(source, tmp_path, monkeypatch):
    (tmp_path / "module_that_fails.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvError, match="'module_that_fails' cannot be imported"):
        make("module_that_fails:my/Fails-v0")
    register("my/Fails-v0", "module_that_fails:Env")
    with pytest.raises(EnvError, match="cannot be loaded"):
        make("my/Fails-v0")
    assert "cannot be loaded" in {row.id: row.summary for row in list_envs()}["my/Fails-v0"]


@pytest.mark.parametrize("id", [3, None, ["stepcredit/Doors-v0"]])
def test_an_id_that_is_no_text_is_refused(id):
    with pytest.raises(EnvError, match=r"id=.*: must be a text such as"):
        make(id)


def test_a_class_made_by_hand_is_registered_as_itself():
    made = type("MadeByHand", (Env,), {"reset": Env.reset, "step": lambda self, action: None})
    made.__module__ = __name__
    register("test/MadeByHand-v0", made)
    assert isinstance(make("test/MadeByHand-v0").unwrapped, made)


def test_an_entry_point_that_names_nothing_says_so():
    register("test/Nowhere-v0", f"{__name__}:NoSuchClass")
    with pytest.raises(EnvError, match="NoSuchClass' cannot be loaded"):
        make("test/Nowhere-v0")
