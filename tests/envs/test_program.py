"""Program: hand-computed judgements by the real sandbox, skipped where none can be trusted."""

import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcredit.envs import REWARDS, BadValueError, StepReward, check_env, judge, make, replay
from stepcredit.envs import program as program_module
from stepcredit.envs.bounded import call_all
from stepcredit.envs.judge import WORKERS, shared_sandbox
from stepcredit.envs.program import Program, _applied, _statement_lines
from stepcredit.sandbox import SandboxUnavailable

ALL = [0.25] * 4


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
    assert reward == info["outcome"] == pytest.approx(sum(info["components"].values()))
    if spans:
        assert reward == pytest.approx(math.fsum(span.value for span in spans))
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
        # Another way to the same function succeeds: the last line is paid what is left.
        (text("x+=3", "x*=2"), [0.25, 0.75], 1.0, True),
        (text("x+=3", "x*=2", "x+=1", "x-=1"), [0.25, 0.25, 0.0, 0.5], 1.0, True),
        (text("x*=2", "x+=6", "x-=1", "x+=1"), [0.0, 0.25, 0.25, 0.5], 1.0, True),
        (text("x+=3;x*=2;x-=1;x+=1"), [1.0], 1.0, True),
        ("def f(x): return x*2+6", [], 1.0, True),
        # Right programs in other dress.
        ("def f(x):\n    x+=3\n    x*=2\n    x-=1\n    x+=1\n    return x\n", ALL, 1.0, True),
        ("def f(x):\n\tx+=3\n\tx*=2\n\tx-=1\n\tx+=1\n\treturn x", ALL, 1.0, True),
        ("def f(x):\r\n x+=3\r\n x*=2\r\n x-=1\r\n x+=1\r\n return x\r\n", ALL, 1.0, True),
        (text("# add", "x+=3", "x*=2", "x-=1 # less", "x+=1"), ALL, 1.0, True),
        (text("x+=3", "returns=x*2", "x=returns-1", "x+=1"), [0.25, 0.0, 0.25, 0.5], 1.0, True),
        ("```\n" + text("x+=3", "x*=2", "x-=1", "x+=1"), [], 0.0, False),
        # A beginning that ends the process hides what comes after it, but not the whole.
        (
            "def f(x):\n x+=3\n try:\n  import os;os._exit(0)\n finally: return x*2",
            [0.25, 0.0, 0.0, 0.0],
            0.25,
            False,
        ),
        (
            "def f(x):\n x+=3\n if 'g' not in globals(): __import__('os')._exit(0)\n"
            " x*=2\n return x\ng=1",
            [0.25, 0.0, 0.75],
            1.0,
            True,
        ),
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


@pytest.mark.usefixtures("jail")
def test_a_hanging_line_costs_itself_and_what_follows():
    env = asked("x+=3", "x*=2", "x-=1")
    pay, outcome, success = judged(env, text("x+=3", "while 1: pass", "x-=1"))
    assert (pay, success) == ([pytest.approx(1 / 3), 0.0, 0.0], False)
    assert outcome == pytest.approx(1 / 3)


@pytest.mark.usefixtures("jail")
def test_a_beginning_that_never_ends_does_not_decide_about_the_whole():
    env = asked("x+=3", "x*=2", "x-=1")
    written = "def f(x):\n while 1:\n  x+=0\n  return x*2+5"
    assert judged(env, written) == ([0.0, 1.0], 1.0, True)
    # Here the last beginning is the whole text, and the one before it never ends.
    env = asked("x+=3", "x*=2", "x-=1", "x+=1", "x+=2")
    written = "def f(x):\n x=x*2+8\n while 1:\n  x+=0\n  if x:break\n return x"
    assert judged(env, written) == ([0.0, 0.0, 0.0, 1.0], 1.0, True)


@pytest.mark.parametrize(
    ("written", "runs"),
    [
        (text("while 1:0"), 1),  # its one beginning is the whole text
        (text("x+=3", "x*=2", "x-=1", "while 1:0"), 1),  # only the whole never ends
        (text("x+=3", "while 1:0", "x-=1", "x+=1"), 2),
        (text("while 1:\n  x+=6", "  if x:break"), 2),  # the whole may end where a beginning hangs
        (text("x+=3", "x*=4", "x-=1", "x+=1"), 1),
        (text("x+=3", "x*=2", "x-=1", "x+=1"), 1),
    ],
)
def test_a_text_is_run_again_only_where_a_beginning_hides_it(jail, monkeypatch, written, runs):
    grade, limits = jail.grade, []

    def spy(code, tests, *, timeout_s):
        limits.append(timeout_s)
        return grade(code, tests, timeout_s=timeout_s)

    monkeypatch.setattr(jail, "grade", spy)
    judged(asked("x+=3", "x*=2", "x-=1", "x+=1"), written)
    assert limits == [0.5] * runs


@pytest.mark.usefixtures("jail")
def test_endless_programs_spoil_no_other_and_wait_for_no_other():
    envs = [asked("x+=3", "x*=2") for _ in range(8)]
    texts = [text("while 1:0", "x+=1")] * 7 + [text("x+=3", "x*=2")]
    begun = time.monotonic()
    done = call_all(
        [partial(env.step, each) for env, each in zip(envs, texts, strict=True)],
        timeout_s=1.8,  # less than the eight take together
        workers=Program.blocking,
    )
    assert time.monotonic() - begun < 7 * 1.0 / WORKERS + 1.5
    assert [each.error for each in done] == [""] * 8
    assert [each.value[4]["success"] for each in done] == [False] * 7 + [True]


def test_a_fork_while_the_sandbox_opens_leaves_its_lock_free():
    held, child = threading.Event(), -1

    def hold():
        with judge._lock:
            held.set()
            time.sleep(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if judge._lock.acquire(timeout=2) else 1)
    holder.join()
    assert os.waitpid(child, 0)[1] == 0


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
        def grade(self, code, tests, *, timeout_s):
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
    spans, _ = _statement_lines(written)
    assert all(10 <= start < end <= len(written) for start, end in spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert all(
        written[start:end].strip() and "\n" not in written[start:end] for start, end in spans
    )


def test_bad_parameters():
    with pytest.raises(BadValueError, match="steps=65: must be from 1 to 64; pass steps=4"):
        Program(steps=65)
