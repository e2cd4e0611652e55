"""Every estimator under one signature, for what all of them must satisfy."""

from collections.abc import Callable

import torch
from torch import Tensor

from stepcredit.algos.credit import Credit
from stepcredit.algos.gae import bilevel_gae, evpo, step_gae, token_gae, turn_gae
from stepcredit.algos.group import (
    gigpo,
    group_outcome,
    group_process,
    leave_one_out,
    mt_grpo,
    process_positions,
    process_returns,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
)
from tests.algos.reference import Case

Estimator = Callable[[Case, float, float], Credit]


def decoupled(c: Case, gamma: float, lam: float) -> Credit:
    return token_gae(
        c.rewards, c.values, c.mask, gamma=gamma, lam=lam, final_values=c.final, lam_value=1.0
    )


def over_tokens(c: Case, gamma: float, lam: float) -> Credit:
    return token_gae(c.rewards, c.values, c.mask, gamma=gamma, lam=lam, final_values=c.final)


def over_steps(c: Case, gamma: float, lam: float) -> Credit:
    return step_gae(c.rewards, c.values, c.mask, c.ends, gamma=gamma, lam=lam, final_values=c.final)


def over_turns(c: Case, gamma: float, lam: float) -> Credit:
    return turn_gae(
        c.rewards, c.values, c.mask, c.turns, gamma=gamma, lam=lam, final_values=c.final
    )


def over_both(c: Case, gamma: float, lam: float) -> Credit:
    return bilevel_gae(
        c.rewards,
        c.values,
        c.mask,
        c.turns,
        gamma=gamma,
        lam=lam,
        gamma_turn=gamma,
        lam_turn=lam,
        final_values=c.final,
    )


def gated(c: Case, gamma: float, lam: float) -> Credit:
    return evpo(c.rewards, c.values, c.mask, gamma=gamma, lam=lam, final_values=c.final)


CRITIC: dict[str, Estimator] = {
    "token_gae": over_tokens,
    "token_gae, decoupled": decoupled,
    "step_gae": over_steps,
    "turn_gae": over_turns,
    "bilevel_gae": over_both,
    "evpo": gated,
}

GROUP: dict[str, Estimator] = {
    "group_outcome": lambda c, _, __: group_outcome(c.rewards, c.mask, c.group),
    "group_outcome, none": lambda c, _, __: group_outcome(
        c.rewards, c.mask, c.group, scale_rewards="none"
    ),
    "leave_one_out": lambda c, _, __: leave_one_out(c.rewards, c.mask, c.group),
    "reinforce_plus_plus_baseline": lambda c, _, __: reinforce_plus_plus_baseline(
        c.rewards, c.mask, c.group
    ),
    "group_process": lambda c, _, __: group_process(c.rewards, c.mask, c.ends, c.group),
    "process_returns": lambda c, gamma, _: process_returns(
        c.rewards, c.mask, c.ends, c.group, gamma=gamma
    ),
    "process_positions": lambda c, _, __: process_positions(c.rewards, c.mask, c.ends, c.group),
    "mt_grpo": lambda c, _, __: mt_grpo(c.rewards, c.outcomes, c.mask, c.turns, c.group),
    "gigpo": lambda c, gamma, _: gigpo(c.rewards, c.mask, c.turns, c.states, c.group, gamma=gamma),
    "gigpo, none": lambda c, gamma, _: gigpo(
        c.rewards, c.mask, c.turns, c.states, c.group, gamma=gamma, scale="none"
    ),
}

ALL: dict[str, Estimator] = {
    **CRITIC,
    **GROUP,
    "group_outcome, batch": lambda c, _, __: group_outcome(
        c.rewards, c.mask, c.group, scale_rewards="batch"
    ),
    "reinforce_plus_plus": lambda c, gamma, _: reinforce_plus_plus(c.rewards, c.mask, gamma=gamma),
}


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def marks(*values: str) -> Tensor:
    """'1' is True."""
    return torch.tensor([[c == "1" for c in v] for v in values])


def numbers(*values: str) -> Tensor:
    """A digit a place."""
    return torch.tensor([[int(c) for c in v] for v in values])


def listed(x: Tensor) -> list[float]:
    return [float(v) for v in x]


SEEDS = range(24)


def assert_agrees(got: Tensor, expected: list[list[float]], seed: int) -> None:
    gap = (got - torch.tensor(expected, dtype=torch.float64)).abs().max()
    assert gap < 1e-10, f"seed {seed}: differs from the reference by {float(gap)}"
