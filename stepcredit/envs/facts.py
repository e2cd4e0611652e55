"""What the synthetic tasks share: a table of facts to know, and an expert who knows it badly.

A fact is a question with one right digit. Most are easy; on the hard ones the expert is wrong most
of the time and always in the same way, so that a policy trained on the demonstrations has a wrong
mode there and greedy decoding does not help it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DIGITS = "0123456789"

# With 30 % hard facts the expert is right on .7 * .973 + .3 * .26 = .759 of them: all of 4 steps
# are right in a third of the episodes, all of 16 in one of eighty.
EASY_RIGHT = 0.97
HARD_RIGHT = 0.25
HARD_DECOY = 0.65


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The right answer of every fact, and the wrong one that the expert gives on the hard ones."""

    answers: tuple[str, ...]
    decoys: tuple[str, ...]
    hard: tuple[bool, ...]
    choices: tuple[str, ...]

    def expert(self, fact: int, rng: np.random.Generator) -> str:
        """Returns the noisy expert's answer to a fact."""
        draw = rng.random()
        right = HARD_RIGHT if self.hard[fact] else EASY_RIGHT
        if draw < right:
            return self.answers[fact]
        if self.hard[fact] and draw < right + HARD_DECOY:
            return self.decoys[fact]
        return self.choices[int(rng.integers(len(self.choices)))]

    def answer_variance(self) -> float:
        """Returns the mean over the facts of q(1-q), where q is how often the expert is right.

        The variance of one answer to a given fact: what the samples of a group differ by.
        """
        slips = 1 / len(self.choices)
        easy = EASY_RIGHT + (1 - EASY_RIGHT) * slips
        hard = HARD_RIGHT + (1 - HARD_RIGHT - HARD_DECOY) * slips
        share = sum(self.hard) / len(self.hard)
        return (1 - share) * easy * (1 - easy) + share * hard * (1 - hard)


def make_facts(
    answers: Sequence[str], *, choices: Sequence[str], hard_share: float, rng: np.random.Generator
) -> Facts:
    """Returns a table in which exactly the share ``hard_share`` (rounded) of the facts is hard."""
    count = len(answers)
    hard = np.zeros(count, dtype=bool)
    hard[rng.permutation(count)[: round(hard_share * count)]] = True
    decoys = []
    for answer in answers:
        wrong = [choice for choice in choices if choice != answer]
        decoys.append(wrong[int(rng.integers(len(wrong)))])
    return Facts(
        answers=tuple(answers),
        decoys=tuple(decoys),
        hard=tuple(bool(each) for each in hard),
        choices=tuple(choices),
    )
