"""Environments that each break one rule of `check_env`, and the sound one they are made from."""

import collections
import itertools
import sys
import time

import gymnasium as gym
import numpy as np

from stepcredit.envs import Env, StepReward


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
