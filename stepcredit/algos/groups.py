"""Which groups of a rollout are trained on."""

from collections.abc import Sequence

import numpy as np

from stepcredit.agents.trajectory import Group
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import live
from stepcredit.algos.credit import FLAT


def select(groups: Sequence[Group], algorithm: Algorithm) -> list[Group]:
    """Return the groups with enough live members and, where equal returns are left out, variety."""
    kept = kept_groups(groups, algorithm.min_members)
    return kept if algorithm.zero_variance == "keep" else [g for g in kept if not flat(g)]


def kept_groups(groups: Sequence[Group], min_members: int) -> list[Group]:
    """Return the groups with at least `min_members` live trajectories."""
    return [g for g in groups if len(live(g)) >= min_members]


def flat(group: Group) -> bool:
    """Say whether the returns of the live members are equal, up to rounding (see `FLAT`)."""
    returns = [t.ret for t in live(group)]
    largest = max((float(np.abs(t.rewards).sum()) for t in live(group)), default=0.0)
    return float(np.std(returns, ddof=1)) <= FLAT * largest if returns[1:] else True
