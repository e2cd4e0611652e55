import collections
import itertools
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import pytest

from stepcredit.envs import Env, EnvError, StepReward, check_env, make, register
from tests.envs.test_core import BUILT_INS


class Sound(Env):
    """Two turns; breaks no rule. Each class below breaks one."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.n = int(self.task_rng.integers(10**6))
        self.turn = 0
        return f"{self.n}?", {}

    def step(self, action):
        self.turn += 1
        return "more", 0.0, self.turn == 2, False, self.info(action)

    def info(self, action):
        return {"outcome": 0.0}


class Raises(Sound):
    def step(self, action):
        return "", float(action), True, False, {"outcome": 0.0}


class RaisesInReset(Sound):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no board")


class Hangs(Sound):
    def step(self, action):
        time.sleep(3)
        return super().step(action)


class FourTuple(Sound):
    def step(self, action):
        return super().step(action)[:4]


class ResetWithoutInfo(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


class RewardText(Sound):
    def step(self, action):
        return "", "1", True, False, {"outcome": 0.0}


class ObsNumber(Sound):
    def step(self, action):
        return 3, 1.0, True, False, {"outcome": 0.0}


class FlagNumber(Sound):
    def step(self, action):
        return "", 1.0, 1, False, {"outcome": 0.0}


class InfoNone(Sound):
    def step(self, action):
        return "", 1.0, True, False, None


class SpansOfTuples(Sound):
    def info(self, action):
        return {"step_rewards": [(0, 1, 0.5)], "outcome": 0.0}


class NanReward(Sound):
    def step(self, action):
        return "", float("nan"), True, False, {"outcome": 0.0}


class InfiniteSpan(Sound):
    def info(self, action):
        spans = [StepReward(0, len(action), float("inf"))] if action else []
        return {"step_rewards": spans, "outcome": 0.0}


class SpanBeyond(Sound):
    def info(self, action):
        return {"step_rewards": [StepReward(0, len(action) + 1, 0.0)], "outcome": 0.0}


class SpanEmpty(Sound):
    def info(self, action):
        return {"step_rewards": [StepReward(0, 0, 0.0)], "outcome": 0.0}


class SpansOverlap(Sound):
    def info(self, action):
        spans = [StepReward(0, 2, 0.0), StepReward(1, 3, 0.0)] if len(action) > 2 else []
        return {"step_rewards": spans, "outcome": 0.0}


class InfoSet(Sound):
    def info(self, action):
        return {"outcome": 0.0, "seen": {1, 2}}


class InfoNan(Sound):
    def info(self, action):
        return {"outcome": 0.0, "margin": float("nan")}


class CannotScore(Sound):
    def info(self, action):
        return {"status": "error", "error": "no judge here"}


class NoOutcome(Sound):
    def info(self, action):
        return {}


class OutcomePercent(Sound):
    def info(self, action):
        return {"outcome": 55.0}


class SuccessText(Sound):
    def info(self, action):
        return {"outcome": 1.0, "success": "yes"}


class NeverEnds(Sound):
    def step(self, action):
        return "more", 0.0, False, False, {}


class WrongGold(Sound):
    def gold(self):
        return "x"


_global_draws = itertools.count()


class GlobalDraws(Sound):
    def step(self, action):
        return f"{next(_global_draws)}", 0.0, True, False, {"outcome": 0.0}


class DrawsFromSeed(Sound):
    def step(self, action):
        obs = str(self.np_random.integers(10**6))
        return obs, 0.0, True, False, {"outcome": 0.0}


class Leaks(Sound):
    total = 0

    def step(self, action):
        self.total += 1
        return str(self.total), 0.0, True, False, {"outcome": 0.0}


class TaskFromChance(Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return str(self.chance.integers(10**6)), {}

    def step(self, action):
        return "", 0.0, True, False, {"outcome": 0.0}


class OptionsDropped(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class CloseRaises(Sound):
    def close(self):
        raise OSError("already gone")


class CloseOnce(Sound):
    closed = False

    def close(self):
        if self.closed:
            raise OSError("closed twice")
        self.closed = True


class Exits(Sound):
    def step(self, action):
        sys.exit(3)


class SpanWithoutValue(Sound):
    def info(self, action):
        spans = [StepReward(0, len(action), None)] if action else []
        return {"step_rewards": spans, "outcome": 0.0}


class SpanOfText(Sound):
    def info(self, action):
        spans = [StepReward("0", len(action), 0.5)] if action else []
        return {"step_rewards": spans, "outcome": 0.0}


class HugeReward(Sound):
    def step(self, action):
        return "", 1e39, True, False, {"outcome": 0.0}


class PartsByNumber(Sound):
    def info(self, action):
        return {"outcome": 0.0, "components": {1: 0.5}}


class ObsSurrogate(Sound):
    def step(self, action):
        return "\ud800", 0.0, True, False, {"outcome": 0.0}


class NoRepr:
    def __repr__(self):
        raise ValueError("no repr")


class ObsWithoutRepr(Sound):
    def step(self, action):
        return NoRepr(), 0.0, True, False, {"outcome": 0.0}


class NoEqual(str):
    __hash__ = str.__hash__

    def __eq__(self, other):
        raise ValueError("no eq")


class ObsWithoutEqual(Sound):
    def step(self, action):
        return NoEqual("x"), 0.0, True, False, {"outcome": 0.0}


class Numbered(Sound):
    action_space = gym.spaces.Discrete(3)


class Uncopied(Sound):
    def __deepcopy__(self, memo):
        raise TypeError("holds a lock")


class MakeRaises(Sound):
    def __init__(self):
        raise RuntimeError("no data")


class LeaksWhenCut(Sound):
    """Clears its counter at the end of an episode alone: one that is cut leaves it standing."""

    def __init__(self):
        self.told = 0

    def step(self, action):
        result = super().step(action)
        self.told = 0 if result[2] else self.told + 1
        return (f"more{self.told}", *result[1:])


class KeyRaises(Sound):
    def state_key(self):
        raise LookupError("no key")


class KeySurrogate(Sound):
    def state_key(self):
        return "\ud800"


class NoEvalData(Sound):
    def reset(self, *, seed=None, options=None):
        first = super().reset(seed=seed, options=options)
        if self.split == "eval":
            raise FileNotFoundError("eval.jsonl")
        return first


class SmallSeeds(Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.turn = 0
        return str(np.random.RandomState(self.task).randint(99)), {}


class SmallChance(SmallSeeds):
    def reset(self, *, seed=None, options=None):
        first = Sound.reset(self, seed=seed, options=options)
        np.random.RandomState(self.chance_seed)
        return first


class OneTurnOfTwo(Sound):
    one_turn = True


class OutcomeTooEarly(Sound):
    def info(self, action):
        return {"outcome": 0.0 if self.turn == 2 else 7.0}


class SpansDeque(Sound):
    def info(self, action):
        return {"step_rewards": collections.deque(), "outcome": 0.0}


class PartNamedAsSetup(Sound):
    def info(self, action):
        return {"components": {"dense": 1.0}, "outcome": 0.0}


class GlobalParts(Sound):
    def info(self, action):
        return {"components": {"noise": float(next(_global_draws))}, "outcome": 0.0}


class NothingToRead(Sound):
    def reset(self, *, seed=None, options=None):
        return [], super().reset(seed=seed, options=options)[1]


class AlphabetTooSmall(Sound):
    alphabet = "0123456789?mor"

    def demonstration(self, rng):
        return "0"


class AlphabetWithoutGold(Sound):
    alphabet = "0123456789?more"

    def gold(self):
        return "right"

    def info(self, action):
        return {"outcome": 1.0}


class AlphabetMethod(Sound):
    def alphabet(self):
        return "0123456789?more"


class DemonstrationNumber(Sound):
    def demonstration(self, rng):
        return 3


@pytest.mark.parametrize(
    ("env", "rule", "text"),
    [
        (Raises, "raises", "raised ValueError: could not convert string to float"),
        (RaisesInReset, "raises", "raised RuntimeError: no board (test_check.py:"),
        (Hangs, "hangs", "did not return within 0.3 s"),
        (FourTuple, "tuple", "must be a tuple of 5"),
        (ResetWithoutInfo, "tuple", "must be a tuple of 2"),
        (RewardText, "types", "reward is str '1': must be a number"),
        (ObsNumber, "types", "observation int 3: must be text"),
        (FlagNumber, "types", "terminated is int 1: must be a bool"),
        (InfoNone, "types", "info NoneType None: must be a dict"),
        (SpansOfTuples, "types", "must be a list of StepReward"),
        (NanReward, "finite", "reward is nan: must be finite"),
        (InfiniteSpan, "finite", "is inf: must be finite"),
        (SpanBeyond, "spans", "must have 0 <= start < end <="),
        (SpanEmpty, "spans", "StepReward(start=0, end=0, value=0.0)"),
        (SpansOverlap, "spans", "overlap: a character belongs to one step at most"),
        (InfoSet, "json", "info['seen'] of step is set {1, 2}"),
        (InfoNan, "json", "info['margin'] of step is float nan"),
        (CannotScore, "status", "status 'error' (no judge here)"),
        (NoOutcome, "outcome", "ended without info['outcome']"),
        (OutcomePercent, "outcome", "info['outcome'] is 55.0: must be a number in [0, 1]"),
        (SuccessText, "outcome", "info['success'] is 'yes': must be a bool"),
        (NeverEnds, "ends", "still going after 1000 steps"),
        (WrongGold, "gold", "ended with outcome 0.0: must be 1.0"),
        (GlobalDraws, "deterministic", "with a new environment, the same seed"),
        (DrawsFromSeed, "deterministic", "with another seed, options"),
        (Leaks, "leak", "with another episode before it, the same seed"),
        (TaskFromChance, "task", "equal for six tasks and differs between chance seeds"),
        (OptionsDropped, "task", "must be (5, 6)"),
        (CloseRaises, "close", "close() raised OSError: already gone"),
        (CloseOnce, "close", "a second close() raised OSError: closed twice"),
        (Exits, "raises", "raised SystemExit: 3"),
        (SpanWithoutValue, "finite", "is None: must be finite"),
        (SpanOfText, "spans", "StepReward(start='0'"),
        (HugeReward, "finite", "reward is 1e+39: must be finite, at most 1e+30"),
        (PartsByNumber, "types", "a name of a part=1: must be a text"),
        (ObsSurrogate, "types", "observation='\\ud800': must be Unicode text"),
        (ObsWithoutRepr, "types", "observation NoRepr <NoRepr whose repr raises ValueError>"),
        (ObsWithoutEqual, "types", "looking at what it returned raised ValueError: no eq"),
        (Numbered, "actions", "action_space is Discrete(3): actions must be text"),
        (MakeRaises, "make", "raised RuntimeError: no data"),
        (LeaksWhenCut, "leak", "with an episode before it that was cut short, the same seed"),
        (KeyRaises, "raises", "state_key() raised LookupError: no key"),
        (KeySurrogate, "types", "state_key='\\ud800': must be Unicode text"),
        (NoEvalData, "raises", "raised FileNotFoundError: eval.jsonl"),
        (SmallSeeds, "raises", "raised ValueError: Seed must be between 0 and 2**32 - 1"),
        (SmallChance, "raises", "raised ValueError: Seed must be between 0 and 2**32 - 1"),
        (OneTurnOfTwo, "ends", "one_turn is True and the episode went on after its first action"),
        (OutcomeTooEarly, "outcome", "info['outcome'] is 7.0: must be a number in [0, 1]"),
        (SpansDeque, "types", "must be a list of StepReward"),
        (PartNamedAsSetup, "types", "components names a part 'dense'"),
        (GlobalParts, "deterministic", "with a new environment, the same seed"),
        (NothingToRead, "types", "observation=[]: must hold a message"),
        (AlphabetTooSmall, "alphabet", "observation 'more' holds 'e'"),
        (AlphabetWithoutGold, "alphabet", "the action 'right' holds 'g', 'h', 'i', 't'"),
        (AlphabetMethod, "alphabet", "alphabet is method"),
        (DemonstrationNumber, "types", "demonstration(rng) gave int 3: must be text"),
    ],
)
def test_a_broken_env_trips_exactly_its_rule(env, rule, text):
    problems = check_env(env, call_timeout=0.3 if env is Hangs else 10.0)
    assert [problem.rule for problem in problems] == [rule]
    assert text in problems[0].message
    assert problems[0].fix and "Traceback" not in str(problems[0])


def test_a_sound_env_passes_as_class_instance_and_id():
    register("test/Sound-v0", Sound)
    try:
        assert check_env(Sound) == check_env(Sound()) == check_env("test/Sound-v0") == []
    finally:
        gym.registry.pop("test/Sound-v0")


@pytest.mark.parametrize(("id", "kwargs"), BUILT_INS)
def test_built_ins_pass(id, kwargs):
    assert check_env(id, **kwargs) == []
    assert check_env(make(id, reward="outcome", **kwargs)) == []


def test_luck_shown_in_the_first_prompt_is_no_ignored_task():
    assert check_env("stepcredit/Luck-v0", kappa=1.0, reveal=0) == []


def test_an_instance_is_left_alone():
    env = Sound()
    check_env(env)
    assert not hasattr(env, "turn")


def test_an_instance_that_cannot_be_copied_is_a_problem_with_a_way_out():
    (problem,) = check_env(Uncopied())
    assert problem.rule == "copy"
    assert "copying the environment raised TypeError: holds a lock" in problem.message
    assert problem.fix == "pass the class or the id instead of an instance"


def test_a_hung_environment_does_not_spin_on_after_the_check():
    class Spins(Sound):
        def step(self, action):
            while True:
                pass

    before = threading.active_count()
    assert [problem.rule for problem in check_env(Spins, call_timeout=0.2)] == ["hangs"]
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_time_limit_counts_as_an_end():
    register("test/NeverEnds-v0", NeverEnds, max_episode_steps=4)
    try:
        assert check_env("test/NeverEnds-v0") == []
    finally:
        gym.registry.pop("test/NeverEnds-v0")


def test_several_rules_are_all_named():
    class Two(Sound):
        def info(self, action):
            return {"outcome": 2.0, "seen": {1}}

    assert {problem.rule for problem in check_env(Two)} == {"json", "outcome"}


def test_not_an_env_and_refused_arguments():
    assert [problem.rule for problem in check_env(lambda: "text")] == ["make"]
    with pytest.raises(EnvError, match="did you mean 'stepcredit/Chain-v0'"):
        check_env("stepcredit/Chian-v0")
    with pytest.raises(EnvError, match="steps=0: must be at least 1"):
        check_env("stepcredit/Chain-v0", steps=0)
