"""Faults in the formulas of `stepcredit/*.py`."""

from tests.mutations.mutation import Mutation

FACE = [
    # The population's standard deviation.
    Mutation(
        "stepcredit/statistics.py",
        "for value in values) / (n - 1)",
        "for value in values) / n",
        "tests/face/test_statistics.py::test_mean_interval_by_hand",
    ),
    # Differences have the other sign.
    Mutation(
        "stepcredit/statistics.py",
        "first[seed] - second[seed]",
        "second[seed] - first[seed]",
        "tests/face/test_statistics.py::test_paired_difference_uses_shared_seeds_only",
    ),
    # The area of steps, not of trapezia.
    Mutation(
        "stepcredit/statistics.py",
        "(x1 - x0) * (y0 + y1) / 2",
        "(x1 - x0) * y0",
        "tests/face/test_statistics.py::test_area_by_hand",
    ),
    # The middle of the interval decides about equivalence.
    Mutation(
        "stepcredit/statistics.py",
        "abs(interval.mean) + interval.half <= margin",
        "abs(interval.mean) <= margin",
        "tests/face/test_statistics.py::test_equivalence_needs_the_whole_interval_inside_a_declared_margin",
    ),
    # The lower arm is named the upper one.
    Mutation(
        "stepcredit/statistics.py",
        "if difference.mean > 0 else",
        "if difference.mean < 0 else",
        "tests/face/test_statistics.py::test_verdict_names_the_upper_one",
    ),
    # One label that holds is enough for all.
    Mutation(
        "stepcredit/claims.py",
        "met = _all([_any(choices)",
        "met = _any([_any(choices)",
        "tests/face/test_findings.py::test_claims_are_judged_by_the_numbers",
    ),
    # Every label of a list must hold.
    Mutation(
        "stepcredit/claims.py",
        "for axis, label in first[1] if axis not in chosen)",
        "for axis, label in first[1])",
        "tests/face/test_findings.py::test_a_list_is_a_choice_at_each_of_the_other_places",
    ),
    # A place that nothing is known of counts as one that holds.
    Mutation(
        "stepcredit/claims.py",
        "None if None in outcomes else True",
        "True",
        "tests/face/test_findings.py::test_what_is_known_decides_a_claim_that_is_partly_unknown",
    ),
    # The upper end decides about `at_least`.
    Mutation(
        "stepcredit/claims.py",
        "if interval.low < margin else",
        "if interval.high < margin else",
        "tests/face/test_findings.py::test_what_is_not_met_says_which_end_breaks_it",
    ),
    # Ends may be rounded onto the margin.
    Mutation(
        "stepcredit/statistics.py",
        "interval.high) for bound in bounds]",
        "interval.high) for bound in bounds[:0]]",
        "tests/face/test_statistics.py::test_no_end_is_rounded_onto_a_bound_that_it_does_not_touch",
    ),
    # Evaluations cost nothing.
    Mutation(
        "stepcredit/cost.py",
        "steps * step + evaluations * evaluation",
        "steps * step",
        "tests/face/test_compare.py::test_cost_of_a_full_run_from_a_few_steps",
    ),
    # Observation tokens set the colour scale.
    Mutation(
        "stepcredit/credit_page.py",
        "if mine and a is not None",
        "if a is not None",
        "tests/face/test_report.py::test_tokens_are_escaped_coloured_and_rewards_marked",
    ),
]
