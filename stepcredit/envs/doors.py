"""Doors: T independent turns, one fact each."""

import string
from typing import Any

import numpy as np

from stepcredit.envs.core import Env, Obs, StepResult, StepReward, derive_seed
from stepcredit.envs.errors import real_number, whole_number
from stepcredit.envs.facts import DIGITS, make_facts


class Doors(Env):
    """Open T doors in turn: each shows a two-letter code and opens to one digit.

    The digit of a code is fixed by ``world_seed`` and has to be learnt. Doors are independent: a
    wrong digit moves on to the next. Each open door pays 1/T; outcome is the share of open doors
    and success means all of them.
    """

    def __init__(
        self, turns: int = 4, facts: int = 100, hard_share: float = 0.3, world_seed: int = 0
    ):
        """Raises `BadValueError` for a value out of range."""
        self.turns = whole_number("turns", turns, low=1, fix="pass turns=4")
        count = whole_number("facts", facts, low=1, high=26 * 26, fix="pass facts=100")
        share = real_number("hard_share", hard_share, low=0, high=1, fix="pass hard_share=0.3")
        world = whole_number("world_seed", world_seed, low=0, fix="pass world_seed=0")
        rng = np.random.default_rng(derive_seed("doors", world))
        answers = [DIGITS[digit] for digit in rng.integers(10, size=count)]
        self.facts = make_facts(answers, choices=DIGITS, hard_share=share, rng=rng)
        side = next(n for n in range(1, 27) if n * n >= count)
        self._letters = string.ascii_lowercase[:side]
        self._doors: list[int] = []
        self._turn = 0
        self._opened = 0

    @property
    def alphabet(self) -> str:
        """The letters of the codes and the ten digits."""
        return self._letters + DIGITS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Draws the task's doors and shows the first."""
        super().reset(seed=seed, options=options)
        count = len(self.facts.answers)
        self._doors = [int(door) for door in self.task_rng.integers(count, size=self.turns)]
        self._turn = 0
        self._opened = 0
        return self._shown(), {}

    def step(self, action: str) -> StepResult:
        """Tries one digit on the current door and moves on."""
        opened = action == self.gold()
        self._turn += 1
        self._opened += opened
        ended = self._turn == self.turns
        components = self._pay(opened, ended)
        reward = sum(components.values())
        info: dict[str, Any] = {"components": components}
        if action:
            info["step_rewards"] = [StepReward(0, len(action), reward)]
        if ended:
            info |= {"outcome": self._opened / self.turns, "success": self._opened == self.turns}
        return "" if ended else self._shown(), reward, ended, False, info

    def _shown(self) -> str:
        """The text of the current turn."""
        row, column = divmod(self._doors[self._turn], len(self._letters))
        return self._letters[row] + self._letters[column]

    def _pay(self, opened: bool, ended: bool) -> dict[str, float]:
        """The named parts of the reward of the step just taken."""
        return {"doors": opened / self.turns}

    def gold(self) -> str:
        """The digit that opens the current door."""
        return self.facts.answers[self._doors[self._turn]]

    def demonstration(self, rng: np.random.Generator) -> str:
        """The noisy expert's digit for the current door."""
        return self.facts.expert(self._doors[self._turn], rng)

    def state_key(self) -> str:
        """The turn and what is shown."""
        return f"{self._turn}:{self._shown()}" if self._turn < self.turns else "end"
