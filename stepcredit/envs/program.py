"""Program: a function of T statements, each judged by running the program up to it."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from stepcredit.envs.core import Env, Obs, StepResult, StepReward, derive_seed
from stepcredit.envs.errors import real_number, whole_number
from stepcredit.envs.facts import DIGITS, make_facts
from stepcredit.envs.judge import WORKERS, shared_sandbox
from stepcredit.sandbox import SandboxUnavailable, TestResult

HEADER = "def f(x):"
RETURN = "return x"

_OPERATORS = {"a": "+", "s": "-", "m": "*"}
# Multiplying by 1 would change nothing and could not be told from a line left out.
_PLAIN = {
    f"{letter}{digit}": f"x{operator}={digit}"
    for letter, operator in _OPERATORS.items()
    for digit in range(2 if letter == "m" else 1, 10)
}
_OPAQUE = tuple(f"{letter}{digit}" for letter in "kw" for digit in DIGITS)
_CODES = (*_PLAIN, *_OPAQUE)

# One process for a program and all its beginnings: each is loaded by itself when it is called, so
# that a syntax error in one leaves the others standing.
_LOADER = """texts = {texts!r}

def f(number, x):
    space = {{}}
    exec(texts[number], space)
    return space["f"](x)
"""

# Wall-clock limit of a run. A text is run twice at most: once with its beginnings, once alone.
# Right programs of 64 statements take up to .12 s where two others work on every processor.
RUN_SECONDS = 0.5


class Program(Env):
    """Write a Python function that applies T named transformations in order.

    The prompt names them by two characters each: ``a3m2k7`` is ``x+=3``, then ``x*=2``, then what
    ``k7`` stands for in this world, which has to be learnt. The answer is ``def f(x):``, one
    statement a line and ``return x``, indented as the first statement is. The text is run as it
    stands: it must begin with the header, so that a code fence fails; line ends may be CRLF; empty
    lines and comments are no statements.

    Asserts on hidden inputs run in a sandbox, for a second at most: a statement is right when the
    program up to it computes what the first so many transformations do, the last one when the whole
    text as written does. A right statement pays 1/T on its line; a statement not written is one not
    right. Success means that the whole text passes every assert. Then the outcome is 1, and what
    its lines did not earn, since it went another way, is paid on the last of them; else the outcome
    is the share of right statements.
    """

    one_turn: ClassVar[bool] = True
    blocking: ClassVar[int] = WORKERS

    def __init__(
        self,
        steps: int = 4,
        hard_share: float = 0.3,
        world_seed: int = 0,
        sandbox: str = "auto",
    ):
        """Raises `BadValueError` for a value out of range; ``sandbox`` names the backend."""
        self.steps = whole_number("steps", steps, low=1, high=64, fix="pass steps=4")
        share = real_number("hard_share", hard_share, low=0, high=1, fix="pass hard_share=0.3")
        world = whole_number("world_seed", world_seed, low=0, fix="pass world_seed=0")
        self.sandbox = sandbox
        rng = np.random.default_rng(derive_seed("program", world))
        plain = tuple(_PLAIN.values())
        opaque = [plain[each] for each in rng.integers(len(plain), size=len(_OPAQUE))]
        self.facts = make_facts([*plain, *opaque], choices=plain, hard_share=share, rng=rng)
        self._wanted: list[int] = []
        self._inputs: list[int] = []

    @property
    def alphabet(self) -> str:
        """The characters of the codes and of the right programs."""
        return "".join(sorted(set("".join(_CODES) + HEADER + RETURN + "+-*=\n " + DIGITS)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Draws the transformations and the hidden inputs."""
        super().reset(seed=seed, options=options)
        self._wanted = [int(fact) for fact in self.task_rng.integers(len(_CODES), size=self.steps)]
        # Every transformation is linear: two inputs tell any two programs of them apart.
        self._inputs = [0, 1, *(int(x) for x in self.task_rng.integers(2, 100, size=2))]
        return self._prompt(), {}

    def step(self, action: str) -> StepResult:
        """Runs the program and its beginnings in one sandbox job and judges every statement."""
        spans: list[StepReward] = []
        right_steps, passes = 0, False
        if action.startswith(HEADER):
            lines, indent = _statement_lines(action)
            lines = lines[: self.steps]
            # The last statement answers for the rest of the text, the return line included.
            if len(lines) == self.steps:
                lines[-1] = (lines[-1][0], len(action))
            beginnings = [f"{action[:end]}\n{indent}{RETURN}" for _, end in lines[: self.steps - 1]]
            try:
                *right, passes = self._judge([*beginnings, action])
            except (SandboxUnavailable, _NoVerdictError) as reason:
                return "", 0.0, False, False, {"status": "error", "error": str(reason)}
            pay = [int(each) for each in (*right, passes)[: len(lines)]]
            right_steps = sum(pay)
            if passes and pay:
                pay[-1] += self.steps - right_steps
            spans = [
                StepReward(start, end, steps / self.steps)
                for (start, end), steps in zip(lines, pay, strict=True)
            ]
        outcome = 1.0 if passes else right_steps / self.steps
        share = right_steps / self.steps
        info = {
            "step_rewards": spans,
            "components": {"statements": share, "whole": outcome - share},
            "outcome": outcome,
            "success": passes,
        }
        return "", outcome, True, False, info

    def _judge(self, texts: list[str]) -> list[bool]:
        """Says of each beginning, and last of the whole text, whether it passes its asserts."""
        expected = self._expected()
        expected = [*expected[: len(texts) - 1], expected[-1]]
        *beginnings, whole = self._run(texts, expected)
        # A beginning that never ends, or ends the process, must not decide about the whole (unless
        # it is the whole): what was not run after it shows its fault.
        others = [each for each, text in zip(beginnings, texts, strict=False) if text != texts[-1]]
        if others and _not_run(whole[0], others[-1][-1]):
            (whole,) = self._run(texts[-1:], expected[-1:])
        return [all(test.passed for test in each) for each in (*beginnings, whole)]

    def _run(self, texts: list[str], expected: list[list[int]]) -> list[list[TestResult]]:
        """Runs the texts in one process and returns the results of each text's asserts."""
        tests = [
            f"assert f({number}, {x}) == {value}"
            for number, values in enumerate(expected)
            for x, value in zip(self._inputs, values, strict=True)
        ]
        code = _LOADER.format(texts=texts)
        verdict = shared_sandbox(self.sandbox).grade(code, tests, timeout_s=RUN_SECONDS)
        if verdict.status == "infra_error":
            raise _NoVerdictError(f"the sandbox gave no verdict: {verdict.message}")
        size = len(self._inputs)
        return [list(verdict.tests[at : at + size]) for at in range(0, len(tests), size)]

    def _expected(self) -> list[list[int]]:
        """The hidden inputs' values after each transformation, ``[T][inputs]``."""
        values, rows = self._inputs, []
        for fact in self._wanted:
            values = [_applied(self.facts.answers[fact], value) for value in values]
            rows.append(values)
        return rows

    def _prompt(self) -> str:
        return "".join(_CODES[fact] for fact in self._wanted)

    def gold(self) -> str:
        """The program of the right statements."""
        return _text([self.facts.answers[fact] for fact in self._wanted])

    def demonstration(self, rng: np.random.Generator) -> str:
        """A program of the noisy expert's statements."""
        return _text([self.facts.expert(fact, rng) for fact in self._wanted])

    def state_key(self) -> str:
        """The prompt."""
        return self._prompt()


class _NoVerdictError(RuntimeError):
    """The sandbox failed; nothing is known about the program."""


def _not_run(test: TestResult, before: TestResult) -> bool:
    """Says whether a test may have met nothing but the end of the process in a test before it."""
    return test == before and test.status not in ("passed", "failed")


def _text(statements: Sequence[str]) -> str:
    return "\n ".join([HEADER, *statements, RETURN])


def _applied(statement: str, x: int) -> int:
    """The value of ``x`` after a statement such as ``x+=3``, computed without running text."""
    operator, digit = statement[1], int(statement[3:])
    if operator == "*":
        return x * digit
    return x + digit if operator == "+" else x - digit


def _statement_lines(action: str) -> tuple[list[tuple[int, int]], str]:
    """The character ranges of the lines between the header and the first return; their indent."""
    header, *lines = action.split("\n")
    spans, start, indent = [], len(header) + 1, ""
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            indent = indent or line[: len(line) - len(line.lstrip())]
            if re.match(r"return\b", text):
                break
            spans.append((start, start + len(line)))
        start += len(line) + 1
    return spans, indent or " "
