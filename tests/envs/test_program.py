"""Program: hand-computed judgements by the real sandbox, skipped where none can be trusted."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcredit.envs import REWARDS, BadValueError, StepReward, check_env, make, replay
from stepcredit.envs import program as program_module
from stepcredit.envs.judge import shared_sandbox
from stepcredit.envs.program import Program, _applied, _statement_lines
from stepcredit.sandbox import SandboxUnavailable


@pytest.fixture
def jail():
    try:
        return shared_sandbox("auto")
    except SandboxUnavailable as reason:
        pytest.skip(str(reason))


def asked(*statements):
    """An env whose task is these statements."""
    env = Program(steps=len(statements))
    env.reset(seed=0)
    env._wanted = [env.facts.answers.index(statement) for statement in statements]
    return env


def judged(env, text):
    """The pay of each judged step, the outcome and the success."""
    _, reward, terminated, truncated, info = env.step(text)
    spans = info["step_rewards"]
    assert (terminated, truncated) == (True, False)
    assert reward == sum(span.value for span in spans) == info["components"]["statements"]
    return [span.value for span in spans], info["outcome"], info["success"]


def text(*lines, end="\n return x"):
    return "\n ".join(["def f(x):", *lines]) + end


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize(
    ("written", "pay", "outcome", "success"),
    [
        (text("x+=3", "x*=2", "x-=1", "x+=1"), [0.25, 0.25, 0.25, 0.25], 1.0, True),
        # One wrong statement is wrong in every longer beginning as well.
        (text("x+=3", "x*=4", "x-=1", "x+=1"), [0.25, 0.0, 0.0, 0.0], 0.25, False),
        # A syntax error spoils the beginnings that hold it and no other.
        (text("x+=3", "x*=2", "x-=", "x+=1"), [0.25, 0.25, 0.0, 0.0], 0.5, False),
        (text("x+=3", "x*=2", "y-=1", "x+=1"), [0.25, 0.25, 0.0, 0.0], 0.5, False),
        # The last statement answers for the return line and for what is too much.
        (text("x+=3", "x*=2", "x-=1", "x+=1", end=""), [0.25, 0.25, 0.25, 0.0], 0.75, False),
        (text("x+=3", "x*=2", "x-=1", "x+=1", "x+=1"), [0.25, 0.25, 0.25, 0.0], 0.75, False),
        # Another way to the same function succeeds, whatever its lines were worth.
        (text("x+=3", "x*=2"), [0.25, 0.25], 1.0, True),
        (text("x+=3", "x*=2", "x+=1", "x-=1"), [0.25, 0.25, 0.0, 0.25], 1.0, True),
        (text("x*=2", "x+=6", "x-=1", "x+=1"), [0.0, 0.25, 0.25, 0.25], 1.0, True),
        (text("x+=3"), [0.25], 0.25, False),
        (text(), [], 0.0, False),
        (text("x+=3", "", "x*=2", "x-=1", "x+=1"), [0.25, 0.25, 0.25, 0.25], 1.0, True),
        (text("x+=3", "exit()", "x-=1", "x+=1"), [0.25, 0.0, 0.0, 0.0], 0.25, False),
        ("x+=3\nx*=2", [], 0.0, False),
        ("def g(x):\n x+=3\n return x", [], 0.0, False),
        ("", [], 0.0, False),
    ],
)
def test_statements_are_judged_by_the_program_up_to_them(written, pay, outcome, success):
    env = asked("x+=3", "x*=2", "x-=1", "x+=1")
    assert judged(env, written) == (pay, outcome, success)


@pytest.mark.usefixtures("jail")
def test_an_empty_function_passes_where_nothing_remains_to_be_done():
    assert judged(asked("x+=1", "x-=1"), text()) == ([], 1.0, True)


def test_a_hanging_line_costs_itself_and_what_follows(jail, monkeypatch):
    grade = jail.grade
    monkeypatch.setattr(jail, "grade", lambda code, tests: grade(code, tests, timeout_s=1.0))
    env = asked("x+=3", "x*=2", "x-=1")
    pay, outcome, success = judged(env, text("x+=3", "while 1: pass", "x-=1"))
    assert (pay, success) == ([pytest.approx(1 / 3), 0.0, 0.0], False)
    assert outcome == pytest.approx(1 / 3)


def test_a_beginning_that_never_ends_does_not_decide_about_the_whole(jail, monkeypatch):
    grade = jail.grade
    monkeypatch.setattr(jail, "grade", lambda code, tests: grade(code, tests, timeout_s=1.0))
    env = asked("x+=3", "x*=2", "x-=1")
    written = "def f(x):\n while 1:\n  x+=0\n  return x*2+5"
    assert judged(env, written) == ([0.0, 0.0], 1.0, True)


def test_spans_cover_the_lines_and_the_last_one_the_rest():
    written = "def f(x):\n x+=3\n\n  x*=2\n return x"
    assert _statement_lines(written) == [(10, 15), (17, 23)]
    assert [written[a:b] for a, b in _statement_lines(written)] == [" x+=3", "  x*=2"]
    assert _statement_lines("def f(x):\n") == []


@pytest.mark.usefixtures("jail")
def test_the_last_span_reaches_the_end_so_that_every_setup_has_the_same_steps():
    written = text("x+=3", "x*=2")
    env = asked("x+=3", "x*=2")
    assert env.step(written)[4]["step_rewards"] == [
        StepReward(10, 15, 0.5),
        StepReward(16, len(written), 0.5),
    ]


def test_statements_are_computed_as_python_computes_them():
    env = Program()
    for statement in env.facts.answers:
        space = {"x": 7}
        exec(statement, space)
        assert _applied(statement, 7) == space["x"]


def test_codes_name_their_statement_and_opaque_ones_are_the_worlds():
    assert asked("x+=3", "x*=2", "x-=1")._prompt() == "a3m2s1"
    here, there = Program().facts.answers, Program(world_seed=1).facts.answers
    assert here[:26] == there[:26] and here[26:] != there[26:]
    assert set(here[26:]) <= set(here[:26])


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize("steps", [1, 4, 16])
def test_right_programs_score_one_in_every_setup(steps):
    for reward in REWARDS:
        env = make("stepcredit/Program-v0", steps=steps, reward=reward)
        prompt, _ = env.reset(options={"task": steps, "split": "eval"})
        gold = env.unwrapped.gold()
        assert set(prompt + gold) <= set(env.unwrapped.alphabet)
        _, paid, terminated, _, info = env.step(gold)
        assert (paid, terminated, info["outcome"], info["success"]) == (1.0, True, 1.0, True)
        assert len(info["step_rewards"]) == steps


@pytest.mark.usefixtures("jail")
def test_recorded_forms_are_what_each_setup_pays():
    rng = np.random.default_rng(0)
    where = {"task": 0, "split": "train", "chance_seed": 0}
    for task in range(12):
        where["task"] = task
        env = make("stepcredit/Program-v0", steps=3)
        env.reset(options=where)
        actions = [env.unwrapped.demonstration(rng)]
        results = {
            reward: replay(
                make("stepcredit/Program-v0", steps=3, reward=reward), **where, actions=actions
            )
            for reward in REWARDS
        }
        paid = {reward: result[1] for reward, result in results.items()}
        assert all(result[4]["reward_forms"] == paid for result in results.values())
        assert paid["dense"] == paid["dense@end"] == results["dense"][4]["env_reward"]
        assert paid["outcome"] == results["dense"][4]["success"]


@pytest.mark.usefixtures("jail")
def test_it_passes_the_check():
    assert check_env("stepcredit/Program-v0", steps=2) == []


@pytest.mark.usefixtures("jail")
def test_many_threads_are_judged_at_once_and_each_by_its_own_task():
    def play(task):
        env = Program(steps=2)
        env.reset(options={"task": task})
        gold = env.gold()
        env.reset(options={"task": task + task % 2})
        return env.step(gold)[4]["success"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(play, range(24))) == [task % 2 == 0 for task in range(24)]


def test_without_a_sandbox_the_episode_is_an_error_and_not_a_zero(monkeypatch):
    def none_here(backend):
        raise SandboxUnavailable("no user namespaces")

    monkeypatch.setattr(program_module, "shared_sandbox", none_here)
    env = asked("x+=3")
    _, _, terminated, truncated, info = env.step(text("x+=3"))
    assert (terminated, truncated) == (False, False)
    assert info == {"status": "error", "error": "no user namespaces"}
    assert [problem.rule for problem in check_env(lambda: Program())] == ["status"]


def test_a_failed_sandbox_gives_no_verdict(monkeypatch):
    class Failing:
        def grade(self, code, tests):
            class Verdict:
                status, message, tests = "infra_error", "the worker died", ()

            return Verdict

    monkeypatch.setattr(program_module, "shared_sandbox", lambda backend: Failing())
    info = asked("x+=3").step(text("x+=3"))[4]
    assert info == {"status": "error", "error": "the sandbox gave no verdict: the worker died"}


def test_one_sandbox_serves_the_process(jail):
    assert shared_sandbox("auto") is jail


@given(st.text("def f(x):\n retun+-*=3", max_size=40))
def test_lines_are_inside_the_text_and_never_empty(rest):
    written = "def f(x):\n" + rest
    spans = _statement_lines(written)
    assert all(10 <= start < end <= len(written) for start, end in spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert all(
        written[start:end].strip() and "\n" not in written[start:end] for start, end in spans
    )


def test_bad_parameters():
    with pytest.raises(BadValueError, match="steps=65: must be from 1 to 64; pass steps=4"):
        Program(steps=65)
