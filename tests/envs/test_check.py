import threading
import time

import gymnasium as gym
import pytest

from stepcredit.envs import EnvError, check_env, make, register
from tests.envs.broken import (
    AlphabetMethod,
    AlphabetTooSmall,
    AlphabetWithoutGold,
    CannotScore,
    CloseOnce,
    CloseRaises,
    DemonstrationNumber,
    DrawsFromSeed,
    Exits,
    FlagNumber,
    FourTuple,
    GlobalDraws,
    GlobalParts,
    Hangs,
    HugeReward,
    InfiniteSpan,
    InfoNan,
    InfoNone,
    InfoSet,
    KeyRaises,
    KeySurrogate,
    Leaks,
    LeaksWhenCut,
    MakeRaises,
    NanReward,
    NeverEnds,
    NoEvalData,
    NoOutcome,
    NothingToRead,
    Numbered,
    ObsNumber,
    ObsSurrogate,
    ObsWithoutEqual,
    ObsWithoutRepr,
    OneTurnOfTwo,
    OptionsDropped,
    OutcomePercent,
    OutcomeTooEarly,
    PartNamedAsSetup,
    PartsByNumber,
    Raises,
    RaisesInReset,
    ResetWithoutInfo,
    RewardText,
    SmallChance,
    SmallSeeds,
    Sound,
    SpanBeyond,
    SpanEmpty,
    SpanOfText,
    SpansDeque,
    SpansOfTuples,
    SpansOverlap,
    SpanWithoutValue,
    SuccessText,
    TaskFromChance,
    Uncopied,
    WrongGold,
)
from tests.envs.test_core import BUILT_INS


@pytest.mark.parametrize(
    ("env", "rule", "text"),
    [
        (Raises, "raises", "raised ValueError: could not convert string to float"),
        (RaisesInReset, "raises", "raised RuntimeError: no board (broken.py:"),
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
