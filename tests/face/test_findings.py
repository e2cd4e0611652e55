from pathlib import Path
from typing import Any

import pytest

from stepcredit.claims import judge
from stepcredit.config import UserError
from stepcredit.findings import arm_differences, reward_questions, table
from stepcredit.plan import RunSpec
from stepcredit.results import Result
from stepcredit.study import Cell, Panel

REWARDS = ("outcome", "dense@end", "dense")
NOISE = (-0.02, 0.0, 0.02)


def panel(*claims: dict[str, Any]) -> Panel:
    return Panel.model_validate(
        {
            "title": "Doors",
            "arms": {"ppo": {}, "grpo": {}},
            "cells": {"env.turns": [4, 16], "env.reward": list(REWARDS)},
            "seeds": [0, 1, 2],
            "claims": list(claims),
        }
    )


def result(arm: str, cell: Cell, seed: int, auc: float | None, reason: str = "") -> Result:
    spec = RunSpec(panel="p", cell=cell, arm=arm, seed=seed, config={}, config_hash="")
    final = None if auc is None else auc + 0.1
    start = None if auc is None else 0.3
    return Result(
        spec=spec, folder=Path(), reason=reason, auc=auc, final=final, sft_start=start, cpu_s=2.0
    )


def measured() -> list[Result]:
    """dense@end is .2 above outcome and dense .1 above that at T = 16; at T = 4 nothing differs.

    Each cell has a wobble of its own, too small to be seen: no pair differs by one number.
    """
    level = {"outcome": 0.2, "dense@end": 0.4, "dense": 0.5}
    rows = []
    for turns in (4, 16):
        for reward in REWARDS:
            cell: Cell = (("turns", turns), ("reward", reward))
            wobble = 1e-6 * (REWARDS.index(reward) + 3 * (turns == 16))
            for seed, noise in enumerate(NOISE):
                mean = (0.8 if turns == 4 else level[reward]) + wobble * (seed - 1)
                rows.append(result("grpo", cell, seed, mean + noise))
                rows.append(result("ppo", cell, seed, mean + 2 * noise))
    return rows


def test_content_and_placement_are_reported_apart() -> None:
    content, placement, both = reward_questions(panel(), measured())
    assert "content alone" in content.title and "placement adds" in placement.title

    def at_16(question: Any) -> float:
        rows = [d for d in question.differences if (d.where, d.on) == ("grpo, turns = 16", "AUC")]
        return float(round(rows[0].interval.mean, 6))

    assert (at_16(content), at_16(placement), at_16(both)) == (0.2, 0.1, 0.3)
    assert len(content.differences) == 2 * 2 * 2


def test_arms_are_compared_within_each_cell_only() -> None:
    rows = arm_differences(panel(), measured())
    assert len(rows) == 6 * 2
    assert {row.where for row in rows} >= {"turns = 4, reward = outcome"}
    assert all(row.label == "ppo - grpo" for row in rows)
    assert all(row.sentence.startswith("no difference shown") for row in rows)


@pytest.mark.parametrize(
    ("claimed", "label"),
    [
        (["grpo - ppo"], "grpo - ppo"),
        (["ppo - grpo"], "ppo - grpo"),
        (["grpo - ppo", "ppo - grpo"], "ppo - grpo"),
    ],
)
def test_the_table_has_the_sign_of_the_claim(claimed: list[str], label: str) -> None:
    claims = [{"difference": difference} for difference in claimed]
    rows = arm_differences(panel(*claims), measured())
    assert {row.label for row in rows} == {label}


def test_a_missing_seed_shrinks_n_and_is_told_in_the_table() -> None:
    rows = measured()
    gone = rows[0].spec
    rows[0] = result(gone.arm, gone.cell, gone.seed, None, "ValueError: door stuck")
    first = next(r for r in table(panel(), rows) if r.arm == "grpo" and r.cell == gone.cell)
    assert first.num_seeds == 2 and first.reasons == (("ValueError: door stuck", 1),)
    told = next(
        d for d in arm_differences(panel(), rows) if d.where == "turns = 4, reward = outcome"
    )
    assert told.interval is not None and told.interval.n == 2 and "n=2" in told.sentence


def test_an_arm_without_any_seed_says_nothing() -> None:
    rows = [r for r in measured() if r.spec.arm == "grpo"]
    assert all("nothing can be said" in d.sentence for d in arm_differences(panel(), rows))


@pytest.mark.parametrize(
    ("claim", "met"),
    [
        ({"difference": "dense - outcome", "at": {"turns": 16, "arm": "grpo"}}, True),
        ({"difference": "dense - outcome", "at": {"turns": 4, "arm": "grpo"}}, False),
        ({"difference": "dense - outcome", "at": {"turns": [4, 16], "arm": "grpo"}}, True),
        ({"difference": "dense - outcome"}, False),
        ({"difference": "outcome - dense", "at": {"turns": 16}}, True),
        ({"difference": "outcome - dense", "at": {"turns": 16}, "expect": "above_zero"}, False),
        ({"difference": "ppo - grpo", "expect": "within", "margin": 0.06}, True),
        ({"difference": "ppo - grpo", "expect": "within", "margin": 0.04}, False),
        ({"difference": "every pair of arms", "expect": "within", "margin": 0.06}, True),
        ({"difference": "16 - 4", "at": {"reward": "outcome"}, "on": "final"}, True),
        (
            {
                "difference": "final - start",
                "at": {"turns": 4},
                "expect": "at_least",
                "margin": 0.3,
            },
            True,
        ),
        ({"difference": "final - start", "expect": "at_least", "margin": 0.3}, False),
    ],
)
def test_claims_are_judged_by_the_numbers(claim: dict[str, Any], met: bool) -> None:
    # ppo - grpo differs by (-.02, 0, .02): half-width 4.303 * .02 / sqrt(3) = .0497
    (verdict,) = judge(panel(claim), measured())
    assert verdict.met is met
    assert verdict.text.startswith(claim["difference"])


@pytest.mark.parametrize(
    ("claim", "shortfall"),
    [
        # the rise of ppo at outcome is .2 + .1 - .3 = 0, each end 4.303 * .04 / sqrt(3) away
        (
            {"difference": "final - start", "expect": "at_least", "margin": 0.05},
            "the lower end -.10 is below .05",
        ),
        # the end .0497 of ppo - grpo must not be written .05 against .05
        (
            {"difference": "ppo - grpo", "expect": "within", "margin": 0.0496},
            "the upper end .0497 is beyond .0496",
        ),
        ({"difference": "ppo - grpo"}, "the interval [-.05, .05] holds 0"),
        ({"difference": "ppo - grpo", "expect": "above_zero"}, "the interval [-.05, .05] holds 0"),
        (
            {"difference": "outcome - dense", "expect": "above_zero", "at": {"arm": "grpo"}},
            "the upper end -.300 is below 0",
        ),
    ],
)
def test_what_is_not_met_says_which_end_breaks_it(claim: dict[str, Any], shortfall: str) -> None:
    place = {"turns": 16, "reward": "outcome", **claim.get("at", {})}
    (verdict,) = judge(panel({**claim, "at": place}), measured())
    assert verdict.met is False and verdict.word == "not met"
    assert verdict.differences[0].shortfall == shortfall
    assert shortfall in verdict.reason and verdict.differences[0].label in verdict.reason


def test_a_margin_that_is_not_of_equivalence_shows_none() -> None:
    claim = {"difference": "final - start", "expect": "at_least", "margin": 0.7}
    (verdict,) = judge(panel(claim), measured())
    assert not any("equivalent" in row.sentence for row in verdict.differences)


@pytest.mark.parametrize(
    ("at", "seeds", "met"),
    [
        ({"turns": 16, "arm": "grpo"}, (0,), None),
        # what is known decides where it can: one broken place, or one place that holds
        ({"turns": [4, 16], "arm": "grpo"}, (0,), None),
        ({"turns": 16}, (), None),
    ],
)
def test_one_seed_cannot_tell(at: dict[str, Any], seeds: tuple[int, ...], met: bool | None) -> None:
    rows = [r for r in measured() if r.spec.seed in seeds]
    (verdict,) = judge(panel({"difference": "dense - outcome", "at": at}), rows)
    assert verdict.met is met and verdict.word == "cannot tell"
    assert verdict.reason == "needs at least 2 finished seeds"


def test_what_is_known_decides_a_claim_that_is_partly_unknown() -> None:
    # of T = 4 one seed is left, at T = 16 dense is above outcome
    rows = [r for r in measured() if r.spec.seed == 0 or dict(r.spec.cell)["turns"] == 16]

    def met(difference: str, turns: list[int] | None) -> bool | None:
        at = {"arm": "grpo", **({"turns": turns} if turns else {})}
        claim = {"difference": difference, "at": at, "expect": "above_zero"}
        return judge(panel(claim), rows)[0].met

    assert met("dense - outcome", [4, 16]) is True
    assert met("dense - outcome", None) is None
    assert met("outcome - dense", None) is False
    assert met("outcome - dense", [4, 16]) is None


def test_final_minus_start_is_the_rise() -> None:
    claim = {"difference": "final - start", "at": {"turns": 4, "reward": "dense", "arm": "grpo"}}
    (verdict,) = judge(panel(claim), measured())
    (difference,) = verdict.differences
    assert difference.interval is not None
    assert abs(difference.interval.mean - (0.9 - 0.3)) < 1e-9
    assert difference.sentence.startswith("final is above start by .60")


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"difference": "pppo - grpo"}, "'pppo': unknown (did you mean ppo?)"),
        ({"difference": "ppo - dense"}, "both must be arms, or labels of one axis"),
        ({"difference": "every pair of arms", "at": {"arm": "ppo"}}, "a pair needs two arms"),
        ({"difference": "ppo"}, "write it as `first - second`"),
        ({"difference": "ppo - grpo", "at": {"tunrs": 4}}, "did you mean turns?"),
        ({"difference": "ppo - grpo", "at": {"turns": 5}}, "turns: 5: unknown"),
    ],
)
def test_a_claim_about_nothing_is_refused(claim: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match="claims") as caught:
        judge(panel(claim), [])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (
            {"difference": "dense - outcome", "at": {"reward": "outcome"}},
            "dense - outcome: at leaves no cell",
        ),
        (
            {"difference": "ppo - grpo", "at": {"arm": "ppo"}},
            "names its arms; take arm out",
        ),
        ({"difference": "dense - dense"}, "dense - dense: is 0 by itself"),
        (
            {"difference": "ppo - ppo", "expect": "within", "margin": 0.1},
            "ppo - ppo: is 0 by itself",
        ),
        ({"difference": "ppo - grpo", "at": {"reward": []}}, "ppo - grpo: at leaves no cell"),
        ({"difference": "final - start", "at": {"arm": []}}, "final - start: at leaves no cell"),
    ],
)
def test_a_claim_about_nothing_is_refused_not_met(claim: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        judge(panel(claim), measured())


def test_a_list_is_a_choice_at_each_of_the_other_places() -> None:
    # dense - outcome is .3 at T = 16 and 0 at T = 4, for both arms
    claim = {"difference": "dense - outcome", "at": {"arm": ["ppo", "grpo"]}}
    (everywhere,) = judge(panel(claim), measured())
    assert everywhere.met is False and "turns = 4" in everywhere.reason
    (there,) = judge(panel(claim | {"at": {"arm": ["ppo", "grpo"], "turns": 16}}), measured())
    (either,) = judge(panel(claim | {"at": {"arm": ["ppo"], "turns": [4, 16]}}), measured())
    assert there.met is True and either.met is True


def paid_alike(shift: float) -> list[Result]:
    """ppo is above grpo by `shift` in each of two seeds, in the only cell."""
    cell: Cell = (("turns", 4), ("reward", "dense"))
    pairs = [(0, 0.125), (1, 0.5)]
    grpo = [result("grpo", cell, seed, auc) for seed, auc in pairs]
    return grpo + [result("ppo", cell, seed, auc + shift) for seed, auc in pairs]


@pytest.mark.parametrize(
    ("expectation", "shift", "met", "reason"),
    [
        ({}, 0.25, False, "the seeds do not differ: too few to judge"),
        ({"expect": "above_zero"}, 0.25, False, "the seeds do not differ: too few to judge"),
        ({"expect": "within", "margin": 0.5}, 0.25, False, "the seeds do not differ: too few to"),
        ({"expect": "at_least", "margin": 0.1}, 0.25, False, "the seeds do not differ: too few to"),
        ({}, 0.0, False, "the difference is 0 in every seed"),
        ({"expect": "above_zero"}, 0.0, False, "the difference is 0 in every seed"),
        ({"expect": "within", "margin": 0.1}, 0.0, True, ""),
    ],
)
def test_seeds_that_do_not_differ_meet_no_claim(
    expectation: dict[str, Any], shift: float, met: bool, reason: str
) -> None:
    place = {"turns": 4, "reward": "dense"}
    claim = {"difference": "ppo - grpo", "at": place, **expectation}
    (verdict,) = judge(panel(claim), paid_alike(shift))
    assert verdict.met is met and reason in verdict.reason
