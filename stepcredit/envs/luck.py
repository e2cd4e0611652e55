"""Luck: doors whose return also holds chance that the policy can see but not change."""

import math
from typing import Any

from stepcredit.envs.core import Obs
from stepcredit.envs.doors import Doors
from stepcredit.envs.errors import BadValueError, real_number, unknown_name, whole_number
from stepcredit.envs.facts import DIGITS

MODES = ("luck", "stakes")

_DIGIT_MEAN = 4.5
_DIGIT_VARIANCE = 8.25


class Luck(Doors):
    """Doors plus a digit drawn per episode, shown from turn ``reveal`` on and paid at the end.

    In mode ``luck`` every open door pays 1/T, and the digit adds a luck of mean 0 to the last step.
    Its variance is ``kappa`` times that of the doors' own part among samples of one task, for a
    policy that imitates the noisy expert. In mode ``stakes`` the digit is a stake from 1 to 10 (10
    is shown as 0) and the only reward is stake times share of open doors, at the last door. The
    digit comes from the chance seed: siblings of a group have different luck. Outcome is the share
    of open doors, luck apart.
    """

    def __init__(
        self,
        turns: int = 8,
        kappa: float = 0.0,
        reveal: int = 1,
        mode: str = "luck",
        facts: int = 100,
        hard_share: float = 0.3,
        world_seed: int = 0,
    ):
        """Raises `BadValueError` for a value out of range, `UnknownNameError` for another mode."""
        super().__init__(turns=turns, facts=facts, hard_share=hard_share, world_seed=world_seed)
        if mode not in MODES:
            raise unknown_name("mode", str(mode), MODES)
        self.mode = mode
        self.kappa = real_number("kappa", kappa, low=0, fix="pass kappa=4")
        if mode == "stakes" and self.kappa:
            raise BadValueError(
                f"kappa={self.kappa:g}: must be 0 in mode 'stakes', which has no luck to scale; "
                "leave kappa out or pass mode='luck'"
            )
        self.reveal = whole_number(
            "reveal",
            reveal,
            low=0,
            high=self.turns - 1,
            fix="pass reveal=0 (the first prompt) or more turns",
        )
        variance = self.kappa * self.facts.answer_variance() / self.turns
        self._scale = math.sqrt(variance / _DIGIT_VARIANCE)
        self._digit: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Draws the task's doors; the luck is drawn when it is first shown."""
        self._digit = None
        return super().reset(seed=seed, options=options)

    def _shown(self) -> str:
        # Drawn this late so that a fresh chance before the reveal gives a fresh luck.
        if self._digit is None and self._turn >= self.reveal:
            self._digit = int(self.chance.integers(10))
        return super()._shown() + ("" if self._digit is None else DIGITS[self._digit])

    def _pay(self, opened: bool, ended: bool) -> dict[str, float]:
        if self.mode == "stakes":
            stake = self._digit or 10
            return {"stakes": stake * self._opened / self.turns if ended else 0.0}
        luck = 0.0
        if ended and self.kappa and self._digit is not None:
            luck = self._scale * (self._digit - _DIGIT_MEAN)
        return {**super()._pay(opened, ended), "luck": luck}
