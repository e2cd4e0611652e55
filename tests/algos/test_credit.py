"""Segments and statistics that the estimators share."""

import pytest
import torch

from stepcredit.algos.credit import (
    centre,
    ends_segment,
    explained_variance,
    one_owner,
    per_segment,
    segment_ids,
    standardise,
    starts_segment,
    to_tokens,
    whiten,
)
from tests.algos import reference
from tests.algos.estimators import SEEDS, listed, marks, numbers, rows


def test_segments_skip_what_lies_between() -> None:
    # Steps of 2, 1 and an unjudged tail of 1; observations inside the first and before the tail.
    mask, ends = marks("10110010"), marks("00110000")
    segment = segment_ids(mask, ends)
    assert segment[0].tolist() == [0, -1, 0, 1, -1, -1, 2, -1]
    assert starts_segment(segment, mask)[0].tolist() == [c == "1" for c in "10010010"]
    assert ends_segment(segment, mask)[0].tolist() == [c == "1" for c in "00110010"]


def test_segments_of_turns_that_start_late_and_leave_one_out() -> None:
    mask = marks("011011")
    turn = torch.where(mask, numbers("111133"), -1)
    assert starts_segment(turn, mask)[0].tolist() == [c == "1" for c in "010010"]
    assert ends_segment(turn, mask)[0].tolist() == [c == "1" for c in "001001"]
    totals = per_segment(rows([9, 1, 2, 9, 3, 4]), turn)
    assert listed(totals[0]) == [0, 3, 0, 7]
    assert listed(to_tokens(rows([5, 3, 0, 7]), turn)[0]) == [0, 3, 3, 0, 7, 7]


def test_segment_ends_against_loops() -> None:
    for seed in SEEDS:
        c = reference.random_case(seed)
        turn = torch.where(c.mask, c.turns, -1)
        for i in range(len(c.mask)):
            turns = reference.turns_of(c, i).values()
            first = {places[0] for places in turns}
            last = {places[-1] for places in turns}
            assert set(starts_segment(turn, c.mask)[i].nonzero().flatten().tolist()) == first
            assert set(ends_segment(turn, c.mask)[i].nonzero().flatten().tolist()) == last


def test_standardise_keeps_owners_apart() -> None:
    x = torch.tensor([1.0, 3.0, 10.0, 10.0, 5.0])
    owner = torch.tensor([0, 0, 1, 1, 2])
    assert listed(standardise(x, owner)) == pytest.approx([-(0.5**0.5), 0.5**0.5, 0, 0, 0])
    assert listed(centre(x, owner)) == pytest.approx([-1, 1, 0, 0, 0])


def test_centre_has_no_rounding_where_values_do_not_differ() -> None:
    x = torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    assert (centre(x, one_owner(x)) == 0).all()


def test_statistics_are_double_precision() -> None:
    # 1e4 + {0, .01}: in single precision the squares lose the difference.
    x = torch.tensor([1e4, 1e4 + 0.0625] * 8)
    got = standardise(x, one_owner(x))
    # Population variance .03125^2, over 15 in place of 16.
    assert listed(got[:2]) == pytest.approx([-((15 / 16) ** 0.5), (15 / 16) ** 0.5], abs=1e-9)


def test_statistics_of_nothing() -> None:
    nothing = torch.zeros(0)
    assert not len(standardise(nothing, one_owner(nothing)))
    assert explained_variance(nothing, nothing) == 0


def test_whiten_reads_policy_tokens_alone() -> None:
    got = whiten(rows([1, float("nan"), 3]), marks("101"))
    assert listed(got[0]) == pytest.approx([-(0.5**0.5), 0, 0.5**0.5])


def test_what_numbers_left_behind_when_they_cancelled_is_flat() -> None:
    # .1 + .2 - .3 in single precision is -7e-9, not 0; numbers of .6 in all were added.
    x = torch.tensor([0.1 + 0.2 - 0.3, -7.5e-9, 0.0, 7.5e-9])
    size = torch.full((4,), 0.6)
    assert standardise(x, one_owner(x))[1] < -0.5
    assert not standardise(x, one_owner(x), size).any()
    assert not centre(x, one_owner(x), size).any()
    mask = torch.ones(1, 4).bool()
    assert whiten(x[None], mask).abs().max() > 0.5
    assert not whiten(x[None], mask, size=torch.tensor(0.6)).any()


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 2.0, 4.0])  # variance 8/3
    # Errors 0, 1, 2: variance 2/3. A constant shift is no variance.
    assert explained_variance(torch.tensor([0.0, 1.0, 2.0]), returns) == pytest.approx(0.75)
    assert explained_variance(torch.tensor([7.0, 8.0, 9.0]), returns) == pytest.approx(0.75)
    # Errors 0, 4, 8: variance 32/3.
    assert explained_variance(torch.tensor([0.0, -2.0, -4.0]), returns) == pytest.approx(-3)
    assert explained_variance(torch.zeros(3), returns) == 0
    assert explained_variance(torch.tensor([0.0, 1.0, 2.0]), torch.full((3,), 0.1)) == 0
