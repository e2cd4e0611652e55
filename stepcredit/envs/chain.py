"""Chain: a running sum, written in one turn of T judged steps."""

from typing import Any, ClassVar

import numpy as np

from stepcredit.envs.core import Env, Obs, StepResult, StepReward, derive_seed
from stepcredit.envs.errors import real_number, whole_number
from stepcredit.envs.facts import DIGITS, make_facts


class Chain(Env):
    """Write the running sum of T digits, modulo 10: for ``3+417`` the answer is ``785``.

    Each written digit is a step. It is right when it follows from the digit written before it and
    its term, so that one slip costs one step. A right step pays 1/T; a digit not written is a step
    not right; text after the T-th character is ignored. Outcome is the share of right steps and
    success means all of them.
    """

    one_turn: ClassVar[bool] = True

    def __init__(self, steps: int = 4, hard_share: float = 0.3, world_seed: int = 0):
        """Raises `BadValueError` for a value out of range."""
        self.steps = whole_number("steps", steps, low=1, fix="pass steps=4")
        share = real_number("hard_share", hard_share, low=0, high=1, fix="pass hard_share=0.3")
        world = whole_number("world_seed", world_seed, low=0, fix="pass world_seed=0")
        sums = [str((before + term) % 10) for before in range(10) for term in range(10)]
        rng = np.random.default_rng(derive_seed("chain", world))
        self.facts = make_facts(sums, choices=DIGITS, hard_share=share, rng=rng)
        self._start = 0
        self._terms: list[int] = []

    @property
    def alphabet(self) -> str:
        """The ten digits and the plus sign."""
        return DIGITS + "+"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Draws the start digit and the terms."""
        super().reset(seed=seed, options=options)
        self._start, *self._terms = (
            int(d) for d in self.task_rng.integers(10, size=self.steps + 1)
        )
        return self._prompt(), {}

    def step(self, action: str) -> StepResult:
        """Judges each of the first T characters."""
        spans = []
        before = DIGITS[self._start]
        for position, (term, written) in enumerate(zip(self._terms, action, strict=False)):
            right = before in DIGITS and written == self.facts.answers[int(before) * 10 + term]
            spans.append(StepReward(position, position + 1, right / self.steps))
            before = written
        right_steps = sum(span.value > 0 for span in spans)
        outcome = right_steps / self.steps
        info = {
            "step_rewards": spans,
            "components": {"steps": outcome},
            "outcome": outcome,
            "success": right_steps == self.steps,
        }
        return "", outcome, True, False, info

    def _prompt(self) -> str:
        return f"{self._start}+" + "".join(str(term) for term in self._terms)

    def gold(self) -> str:
        """The running sums."""
        sums = np.cumsum([self._start, *self._terms])[1:] % 10  # [T]
        return "".join(str(digit) for digit in sums)

    def demonstration(self, rng: np.random.Generator) -> str:
        """The noisy expert's digits, each from the one it wrote before."""
        written = [DIGITS[self._start]]
        for term in self._terms:
            written.append(self.facts.expert(int(written[-1]) * 10 + term, rng))
        return "".join(written[1:])

    def state_key(self) -> str:
        """The prompt."""
        return self._prompt()
