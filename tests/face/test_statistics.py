from math import isclose, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcredit.statistics import (
    Interval,
    area_under_curve,
    bracket,
    digits_of,
    exact,
    excludes_zero,
    mean_interval,
    number,
    paired_difference,
    verdict,
    within,
)


def test_mean_interval_by_hand() -> None:
    # variance of 1..5 is 2.5; t for 4 degrees of freedom at 97.5 % is 2.776
    found = mean_interval([1, 2, 3, 4, 5])
    assert found is not None and found.half is not None
    assert found.mean == 3 and found.n == 5
    assert isclose(found.half, 2.776 * sqrt(2.5) / sqrt(5), rel_tol=1e-3)


def test_one_value_has_no_interval_and_none_has_nothing() -> None:
    assert mean_interval([0.4]) == Interval(0.4, None, 1)
    assert mean_interval([]) is None


def test_paired_difference_uses_shared_seeds_only() -> None:
    first = {0: 0.5, 1: 0.7, 2: 0.9, 9: 100.0}
    second = {0: 0.4, 1: 0.5, 2: 0.6, 7: -100.0}
    found = paired_difference(first, second)
    # differences .1, .2, .3: s = .1, t(2) = 4.303
    assert found is not None and found.half is not None
    assert found.n == 3 and isclose(found.mean, 0.2)
    assert isclose(found.half, 4.303 * 0.1 / sqrt(3), rel_tol=1e-3)


def test_pairing_removes_what_seeds_share() -> None:
    first = {seed: 0.1 + 0.1 * seed + 1e-6 * (seed % 2) for seed in range(5)}
    second = {seed: 0.1 * seed for seed in range(5)}
    found = paired_difference(first, second)
    assert found is not None and found.half is not None and found.half < 1e-5


def test_equal_differences_have_no_interval() -> None:
    found = paired_difference({0: 0.172, 1: 0.547}, {0: 0.125, 1: 0.5})
    assert found is not None and found.half is None and found.n == 2
    assert isclose(found.mean, 0.047)
    assert not excludes_zero(found) and not within(found, 5)
    told = "A - B = .05 in each of 2 seeds: the seeds do not differ: too few to judge"
    assert verdict("A", "B", found, 5) == told
    # a difference that is there is not written as none
    assert " = .0004 in each of 3 seeds" in verdict("A", "B", Interval(0.0004, None, 3))


def test_no_difference_in_any_seed_is_told_as_such() -> None:
    found = paired_difference({0: 0.3, 1: 0.1 + 0.2}, {0: 0.3, 1: 0.3})
    assert found == Interval(0.0, 0.0, 2)
    told = "identical in every seed (n=2): A and B give the same here"
    assert verdict("A", "B", found) == told
    assert verdict("A", "B", found, 0.1).startswith(f"{told}; within ±.10: equivalent")
    single = paired_difference({0: 0.3}, {0: 0.3})
    assert single is not None and "on one seed: too few" in verdict("A", "B", single)


def test_area_by_hand() -> None:
    # over 0..10: 0 -> 1 is 5; over 10..40: constant 1 is 30; (5 + 30) / 40
    assert isclose(area_under_curve([0, 10, 40], [0, 1, 1]), 35 / 40)
    # over 100..200 a ramp from 0 to 1 is one half, wherever it starts
    assert isclose(area_under_curve([100, 200], [0, 1]), 0.5)
    assert area_under_curve([7], [0.3]) == 0.3


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(-5, 5)), min_size=2, max_size=20),
    st.floats(-3, 3),
)
def test_area_matches_numpy_and_a_constant_is_its_own(
    steps: list[tuple[int, float]], constant: float
) -> None:
    tokens = np.cumsum([gap for gap, _ in steps]).tolist()
    values = [value for _, value in steps]
    reference = float(np.trapezoid(values, tokens)) / (tokens[-1] - tokens[0])
    assert isclose(area_under_curve(tokens, values), reference, abs_tol=1e-9)
    assert isclose(area_under_curve(tokens, [constant] * len(tokens)), constant, abs_tol=1e-9)


@pytest.mark.parametrize(("tokens", "values"), [([], []), ([1, 2], [1.0]), ([2, 2], [0.0, 1.0])])
def test_area_refuses_what_is_no_curve(tokens: list[float], values: list[float]) -> None:
    with pytest.raises(ValueError, match="tokens"):
        area_under_curve(tokens, values)


@pytest.mark.parametrize(
    ("value", "text"), [(0.12, ".12"), (-0.034, "-.03"), (1.2, "1.20"), (-0.001, ".00"), (0, ".00")]
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_bracket_takes_the_digits_it_needs() -> None:
    assert bracket(Interval(0.12, 0.07, 5)) == ".12 [.05, .19]"
    assert bracket(Interval(0.005, 0.004, 5)) == ".005 [.001, .009]"
    assert bracket(Interval(0.0012, 0.001, 5)) == ".0012 [.0002, .0022]"
    assert bracket(Interval(0.4, None, 1)) == ".40"


def test_no_end_is_rounded_onto_a_bound_that_it_does_not_touch() -> None:
    assert bracket(Interval(0.33, 0.094, 5), [0.3]) == ".33 [.24, .42]"
    assert bracket(Interval(0.33, 0.0342, 5), [0.3]) == ".330 [.296, .364]"
    assert bracket(Interval(-0.02, 0.0326, 5), [0.05, -0.05]) == "-.020 [-.053, .013]"
    # an end on the bound needs no more digits
    assert digits_of(Interval(0.35, 0.05, 5), [0.3]) == 2
    # the sentence turns the difference round, and its bounds with it
    assert "by .330 [.296, .364]" in verdict("A", "B", Interval(-0.33, 0.0342, 5), None, [-0.3])


@pytest.mark.parametrize(("margin", "text"), [(0.3, ".30"), (0.001, ".001"), (-0.05, "-.05")])
def test_a_margin_is_written_whole(margin: float, text: str) -> None:
    assert exact(margin) == text


def test_verdict_names_the_upper_one() -> None:
    above = Interval(0.12, 0.07, 5)
    below = Interval(-0.12, 0.07, 5)
    expected = "is above {} by .12 [.05, .19] (paired, n=5, 95 %)"
    assert verdict("A", "B", above) == "A " + expected.format("B")
    assert verdict("A", "B", below) == "B " + expected.format("A")


def test_verdict_on_a_tie_claims_nothing() -> None:
    tie = Interval(0.01, 0.04, 5)
    assert (
        verdict("A", "B", tie) == "no difference shown: A - B = .01 [-.03, .05] (paired, n=5, 95 %)"
    )


def test_equivalence_needs_the_whole_interval_inside_a_declared_margin() -> None:
    near = Interval(0.01, 0.02, 5)
    assert within(near, 0.03) and not within(near, 0.029)
    assert verdict("A", "B", near, 0.03).endswith(
        "within ±.03: equivalent by the margin declared before"
    )
    assert "equivalent" not in verdict("A", "B", near)
    wide = verdict("A", "B", Interval(0.01, 0.04, 5), 0.03)
    assert wide.startswith("neither a difference nor equivalence shown: A - B = .01 [-.03, .05]")
    assert "equivalent by" not in wide


def test_one_seed_never_shows_anything() -> None:
    single = Interval(0.9, None, 1)
    assert not excludes_zero(single) and not within(single, 5)
    assert "too few to say" in verdict("A", "B", single, 5)
    assert "nothing can be said" in verdict("A", "B", None)


def test_rounding_noise_is_no_difference() -> None:
    assert not excludes_zero(Interval(1e-17, 0.0, 5))
