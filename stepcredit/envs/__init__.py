"""Environments in text: contract, registry, reward switch, check and the built-in ones."""

from stepcredit.envs.check import check_env
from stepcredit.envs.check_values import Problem
from stepcredit.envs.core import Env, Message, Obs, StepReward, TextSpace, derive_seed, replay
from stepcredit.envs.errors import BadValueError, EnvError, UnknownNameError
from stepcredit.envs.registry import EnvRow, list_envs, make, register
from stepcredit.envs.rewards import REWARDS, RewardSetup

__all__ = [
    "REWARDS",
    "BadValueError",
    "Env",
    "EnvError",
    "EnvRow",
    "Message",
    "Obs",
    "Problem",
    "RewardSetup",
    "StepReward",
    "TextSpace",
    "UnknownNameError",
    "check_env",
    "derive_seed",
    "list_envs",
    "make",
    "register",
    "replay",
]

register("stepcredit/Chain-v0", "stepcredit.envs.chain:Chain")
register("stepcredit/Doors-v0", "stepcredit.envs.doors:Doors")
register("stepcredit/Luck-v0", "stepcredit.envs.luck:Luck")
register("stepcredit/Program-v0", "stepcredit.envs.program:Program")
