"""What every estimator must satisfy: masked slots, the order of rows, split steps, bias."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from stepcredit.algos.credit import Credit
from tests.algos import reference
from tests.algos.estimators import ALL, GROUP, Estimator
from tests.algos.reference import Case

GAMMA, LAM = 0.9, 0.7
SEEDS = range(10)
every = pytest.mark.parametrize("estimator", ALL.values(), ids=ALL)


def same(one: Credit, other: Credit, atol: float = 1e-12) -> None:
    assert torch.allclose(one.advantages, other.advantages, rtol=0, atol=atol)
    assert (one.value_mask is None) == (other.value_mask is None)
    if one.value_mask is not None:
        assert one.returns is not None
        assert other.returns is not None and other.value_mask is not None
        assert torch.equal(one.value_mask, other.value_mask)
        assert torch.allclose(one.returns, other.returns, rtol=0, atol=atol)


# --- masked slots and rows --------------------------------------------------------------------


@every
@pytest.mark.parametrize("poison", [float("nan"), 1e9])
def test_masked_slots_change_nothing(estimator: Estimator, poison: float) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        poisoned = replace(
            c,
            rewards=torch.where(c.mask, c.rewards, poison),
            values=torch.where(c.mask, c.values, poison),
            ends=c.ends | ~c.mask,
            states=torch.where(c.mask, c.states, 1),
            turns=torch.where(c.mask, c.turns, 77),
        )
        same(estimator(c, GAMMA, LAM), estimator(poisoned, GAMMA, LAM), atol=0)


@every
def test_inserted_masked_tokens_change_nothing(estimator: Estimator) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        width = c.mask.shape[1]
        # Stretch the time axis: old position t goes to a later place, the gaps hold masked tokens.
        g = torch.Generator().manual_seed(seed)
        place = torch.randperm(2 * width, generator=g)[:width].sort().values
        junk = {
            "rewards": 5.0,
            "values": 9.0,
            "mask": False,
            "ends": False,
            "turns": 3,
            "states": 1,
        }
        wide = {}
        for name, fill in junk.items():
            narrow = getattr(c, name)
            wide[name] = torch.full((len(narrow), 2 * width), fill, dtype=narrow.dtype)
            wide[name][:, place] = narrow
        stretched = estimator(replace(c, **wide), GAMMA, LAM).advantages
        narrow = estimator(c, GAMMA, LAM).advantages
        assert torch.allclose(narrow, stretched[:, place], rtol=0, atol=1e-12)
        assert stretched[~wide["mask"]].abs().sum() == 0


@every
def test_rows_in_another_order_get_the_same(estimator: Estimator) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        order = torch.randperm(len(c.mask), generator=torch.Generator().manual_seed(seed))
        credit = estimator(c, GAMMA, LAM)
        tensors = (credit.advantages, credit.returns, credit.value_mask)
        moved = Credit(*(None if x is None else x[order] for x in tensors))
        same(moved, estimator(c.rows(order), GAMMA, LAM))


@pytest.mark.parametrize("estimator", GROUP.values(), ids=GROUP)
def test_groups_do_not_read_each_other(estimator: Estimator) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        together = estimator(c, GAMMA, LAM).advantages
        for g in c.group.unique():
            alone = estimator(c.rows(c.group == g), GAMMA, LAM).advantages
            assert torch.allclose(together[c.group == g], alone, rtol=0, atol=1e-12)


@every
def test_a_batch_without_policy_tokens_has_no_advantage(estimator: Estimator) -> None:
    c = reference.random_case(12)
    nothing = replace(c, mask=torch.zeros_like(c.mask), ends=torch.zeros_like(c.ends))
    assert (estimator(nothing, GAMMA, LAM).advantages == 0).all()


@every
def test_single_precision_stays_single(estimator: Estimator) -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        credit = estimator(c.float(), GAMMA, LAM)
        assert credit.advantages.dtype == torch.float32
        assert credit.returns is None or credit.returns.dtype == torch.float32
        expected = estimator(c, GAMMA, LAM).advantages
        assert torch.allclose(credit.advantages.double(), expected, atol=1e-4)


# --- a step split in two, with the same total ---------------------------------------------------
# Undiscounted. "none": nothing changes. "second half": only the split step's second half, which no
# longer earns what the first was paid, and has a baseline of its own where steps have one.
# "everything": the whole group's baseline.

SPLIT = {
    "token_gae": "second half",
    "token_gae, decoupled": "second half",
    "step_gae": "second half",
    "turn_gae": "none",
    "bilevel_gae": "second half",
    "evpo": "everything",
    "group_outcome": "none",
    "group_outcome, none": "none",
    "group_outcome, batch": "none",
    "leave_one_out": "none",
    "reinforce_plus_plus": "second half",
    "reinforce_plus_plus_baseline": "none",
    "group_process": "everything",
    "process_returns": "everything",
    "process_positions": "everything",
    "mt_grpo": "none",
    "gigpo": "none",
    "gigpo, none": "none",
}


def splittable() -> tuple[Case, Case]:
    """Three samples of a group, and the same with the second step of the first split in two."""
    g = torch.Generator().manual_seed(5)
    mask = torch.tensor([[True, True, False, True, True, True, True, False, True]] * 3)
    ends = torch.zeros_like(mask)
    ends[:, [1, 6, 8]] = True
    rewards = torch.randn(3, 9, generator=g, dtype=torch.float64) * ends
    c = Case(
        rewards=rewards,
        values=torch.randn(3, 9, generator=g, dtype=torch.float64),
        mask=mask,
        ends=ends,
        turns=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 2, 2]] * 3),
        states=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 2, 2]] * 3),
        group=torch.zeros(3, dtype=torch.int64),
        final=torch.zeros(3, dtype=torch.float64),
        outcomes=torch.tensor([1, 0, 1], dtype=torch.float64),
    )
    rewards, ends = rewards.clone(), ends.clone()
    rewards[0, 4] += 0.4
    rewards[0, 6] -= 0.4
    ends[0, 4] = True
    return c, replace(c, rewards=rewards, ends=ends)


@pytest.mark.parametrize("name", ALL)
def test_a_split_step_changes_only_what_is_said(name: str) -> None:
    whole, split = splittable()
    change = ALL[name](split, 1.0, 1.0).advantages - ALL[name](whole, 1.0, 1.0).advantages
    changed = change.abs() > 1e-9
    second_half = torch.zeros_like(changed)
    second_half[0, [5, 6]] = True
    if SPLIT[name] == "none":
        assert not changed.any()
    elif SPLIT[name] == "second half":
        assert torch.equal(changed, second_half)
    else:
        assert changed[1:].any(), "other samples of the group change as well"


def test_a_mark_alone_changes_the_published_pool() -> None:
    # The same rewards with one more step end, where 0 is paid: only step marks are read here.
    whole, split = splittable()
    marked = replace(whole, ends=split.ends)
    unmoved = {"token_gae", "token_gae, decoupled", "bilevel_gae", "reinforce_plus_plus", "evpo"}
    for name, estimator in ALL.items():
        gap = estimator(marked, 1.0, 1.0).advantages - estimator(whole, 1.0, 1.0).advantages
        stays = name in unmoved or SPLIT[name] == "none"
        assert (gap.abs().max() < 1e-12) == stays, name


# --- stop or go on, for the same expected reward ------------------------------------------------
# A policy stops with one token, or goes on to a second step that it cannot choose, for the same
# expected total: the expected policy gradient is 0. All groups are enumerated.

Kind = tuple[bool, float, float, float]
"""Goes on, first reward, total, probability."""

GO_ON = 0.35
CERTAIN: list[Kind] = [(False, 1.0, 1.0, 1 - GO_ON), (True, 0.5, 1.0, GO_ON)]
# The total is 1 with probability .3 and else 0; the toss of a coin says whether .2 comes first.
CHANCE: list[Kind] = [
    (False, 1.0, 1.0, (1 - GO_ON) * 0.3),
    (False, 0.0, 0.0, (1 - GO_ON) * 0.7),
    *((True, first, 1.0, GO_ON * 0.15) for first in (0.0, 0.2)),
    *((True, first, 0.0, GO_ON * 0.35) for first in (0.0, 0.2)),
]

UNBIASED = [
    "token_gae",
    "token_gae, decoupled",
    "step_gae",
    "turn_gae",
    "bilevel_gae",
    "group_outcome",
    "group_outcome, none",
    "group_outcome, batch",
    "leave_one_out",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "mt_grpo",
    "gigpo",
    "gigpo, none",
]
BIASED = ["group_process", "process_returns", "process_positions", "evpo"]


def expected_gradient(
    estimator: Estimator, kinds: list[Kind], size: int, gamma: float = 1.0, lam: float = 1.0
) -> float:
    """Of the logit of going on, a sample's share, with a critic that says 0."""
    groups = list(product(kinds, repeat=size))
    batch = [kind for group in groups for kind in group]
    go_on = torch.tensor([kind[0] for kind in batch])
    first = torch.tensor([kind[1] for kind in batch], dtype=torch.float64)
    total = torch.tensor([kind[2] for kind in batch], dtype=torch.float64)
    yes, no = torch.ones_like(go_on), torch.zeros_like(go_on)
    mask = torch.stack([yes, no, go_on], dim=1)  # an observation between
    zero = torch.zeros_like(total)
    c = Case(
        rewards=torch.stack([first, zero, torch.where(go_on, total - first, 0)], dim=1),
        values=torch.zeros(mask.shape, dtype=torch.float64),
        mask=mask,
        ends=mask,
        turns=torch.tensor([[0, 1, 1]]).expand(mask.shape),
        states=torch.tensor([[0, 1, 1]]).expand(mask.shape),
        group=torch.arange(len(groups)).repeat_interleave(size),
        final=zero,
        outcomes=total,
    )
    score = go_on.double() - GO_ON  # of the logit: 1 - p or -p
    weight = torch.tensor([kind[3] for kind in batch], dtype=torch.float64)
    chance = weight.view(-1, size).prod(1)  # [groups]
    if estimator in (ALL["evpo"], ALL["group_outcome, batch"]):
        # These pool the whole batch, which is one group here.
        parts = torch.arange(len(batch)).view(-1, size)
        first_step = torch.cat([estimator(c.rows(p), gamma, lam).advantages[:, 0] for p in parts])
    else:
        first_step = estimator(c, gamma, lam).advantages[:, 0]
    return float((chance * (first_step * score).view(-1, size).mean(1)).sum())


@pytest.mark.parametrize("kinds", [CERTAIN, CHANCE], ids=["certain", "chance"])
@pytest.mark.parametrize("name", UNBIASED)
def test_stop_or_go_on_has_no_gradient(name: str, kinds: list[Kind]) -> None:
    for size in (2, 3):
        assert expected_gradient(ALL[name], kinds, size) == pytest.approx(0, abs=1e-12)


P, THIRD = GO_ON, 3**-0.5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Two samples of CERTAIN, which differ with probability 2 p (1 - p); both stop: all flat.
        # Rewards {1, .5, .5}: 1.1547 against -.57735 twice; both go on: flat.
        pytest.param("group_process", -P * (1 - P) * 2 * THIRD, id="group_process"),
        # First steps {1, .5}: +-.7071, the second step alone: 0; both go on: flat.
        pytest.param("process_positions", -P * (1 - P) * 0.5**0.5, id="process_positions"),
        # Returns {1, 1, .5}: both first steps .57735; both go on, {1, .5, 1, .5}: .8660.
        pytest.param(
            "process_returns",
            P * (1 - P) * THIRD * (1 - 2 * P) + P * P * (1 - P) * 0.75**0.5,
            id="process_returns",
        ),
        # The same, less the tokens' mean: 1/6, and 1/4 where both go on.
        pytest.param(
            "evpo", P * (1 - P) * (1 - 2 * P) / 6 + P * P * (1 - P) / 4, id="evpo, gate shut"
        ),
    ],
)
def test_stop_or_go_on_moves_the_biased_ones(name: str, expected: float) -> None:
    assert expected_gradient(ALL[name], CERTAIN, 2) == pytest.approx(expected, abs=1e-12)
    for size in (2, 3):
        assert abs(expected_gradient(ALL[name], CHANCE, size)) > 1e-3


@pytest.mark.parametrize("name", ["token_gae", "step_gae", "turn_gae", "bilevel_gae"])
def test_lambda_with_an_untrained_critic_charges_for_going_on(name: str) -> None:
    # A critic that says 0 leaves what comes after the first step to lambda, which shrinks it.
    assert expected_gradient(ALL[name], CHANCE, 2, lam=0.5) < -1e-3


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "gigpo", "gigpo, none"])
def test_a_discount_is_not_neutral_to_going_on(name: str) -> None:
    assert abs(expected_gradient(ALL[name], CHANCE, 2, gamma=0.9)) > 1e-3


def test_every_estimator_is_said_to_be_biased_or_not() -> None:
    assert {*UNBIASED, *BIASED} == set(ALL) == set(SPLIT)
