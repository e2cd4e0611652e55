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
    # Equal differences are certain.
    Mutation(
        "stepcredit/statistics.py",
        "max(differences) - min(differences) > ROUNDING:",
        "len(differences) > 1:",
        "tests/face/test_statistics.py::test_equal_differences_have_no_interval",
    ),
    # Seeds that do not differ break no claim.
    Mutation(
        "stepcredit/claims.py",
        "        return NO_SPREAD\n",
        '        return ""\n',
        "tests/face/test_findings.py::test_seeds_that_do_not_differ_meet_no_claim",
    ),
    # The table keeps the order of the file.
    Mutation(
        "stepcredit/findings.py",
        "(b, a) if f",
        "(a, b) if f",
        "tests/face/test_findings.py::test_the_table_has_the_sign_of_the_claim",
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
    # Keys and values are as wide as queries.
    Mutation(
        "stepcredit/memory_paper.py",
        "kv_heads * _head_size(config)",
        "heads * _head_size(config)",
        "tests/face/test_memory.py::test_parameters_by_hand",
    ),
    # A tied head is counted.
    Mutation(
        "stepcredit/memory_paper.py",
        "(0, 0) if config.tie_word_embeddings else (words, 1)",
        "(words, 1)",
        "tests/face/test_memory.py::test_parameters_are_those_of_real_models",
    ),
    # The MLP has no gate.
    Mutation(
        "stepcredit/memory_paper.py",
        "3 * hidden * inner",
        "2 * hidden * inner",
        "tests/face/test_memory.py::test_parameters_are_those_of_real_models",
    ),
    # The value head has no bias.
    Mutation(
        "stepcredit/memory_paper.py",
        "head, head_tensors = hidden + 1, 2",
        "head, head_tensors = hidden, 2",
        "tests/face/test_memory.py::test_parameters_by_hand",
    ),
    # Adam keeps one moment.
    Mutation(
        "stepcredit/memory_paper.py",
        "optimizer=2 * weights",
        "optimizer=weights",
        "tests/face/test_memory.py::test_adam_keeps_two_moments_a_weight_and_a_count_a_tensor",
    ),
    # Norms keep one of their two outputs.
    Mutation(
        "stepcredit/memory_paper.py",
        "+ 2 * size * hidden\n",
        "+ size * hidden\n",
        "tests/face/test_memory.py::test_paper_agrees_with_a_measured_step",
    ),
    # The denominators of the softmax are forgotten.
    Mutation(
        "stepcredit/memory_paper.py",
        "+ FLOAT * int(config.num_attention_heads)",
        "",
        "tests/face/test_memory.py::test_activations_by_hand",
    ),
    # Norm inputs are kept in the weights' type.
    Mutation(
        "stepcredit/memory_paper.py",
        "norm = FLOAT * (hidden + 1)",
        "norm = size * (hidden + 1)",
        "tests/face/test_memory.py::test_activations_of_grouped_heads_and_half_precision",
    ),
    # A critic pays for words.
    Mutation(
        "stepcredit/memory_paper.py",
        "0 if value_head else 2 * FLOAT",
        "2 * FLOAT",
        "tests/face/test_memory.py::test_activations_by_hand",
    ),
    # The exponentials for the entropy are forgotten.
    Mutation(
        "stepcredit/memory_paper.py",
        "0 if value_head else 2 * FLOAT",
        "0 if value_head else FLOAT",
        "tests/face/test_memory.py::test_paper_agrees_with_a_measured_step",
    ),
    # The last token is read too.
    Mutation(
        "stepcredit/memory_paper.py",
        "return rows * (tokens - 1) * position",
        "return rows * tokens * position",
        "tests/face/test_memory.py::test_activations_by_hand",
    ),
    # The column of padding is forgotten.
    Mutation(
        "stepcredit/memory_paper.py",
        "min(prompt, tokens - 1) + 1) //",
        "min(prompt, tokens - 1)) //",
        "tests/face/test_memory.py::test_cache_is_what_the_engine_allocates",
    ),
    # Columns grow by a block.
    Mutation(
        "stepcredit/memory_paper.py",
        "        columns *= 2\n",
        "        columns += COLUMN_BLOCK\n",
        "tests/face/test_memory.py::test_cache_is_what_the_engine_allocates",
    ),
    # Keys without values.
    Mutation(
        "stepcredit/memory_paper.py",
        "return 2 * _itemsize(config) * layers",
        "return _itemsize(config) * layers",
        "tests/face/test_memory.py::test_cache_is_what_the_engine_allocates",
    ),
    # Everything is there at once.
    Mutation(
        "stepcredit/memory.py",
        "max(passing)",
        "sum(passing)",
        "tests/face/test_memory.py::test_activations_and_caches_take_turns",
    ),
    # Mini-batches do not bound a micro-batch.
    Mutation(
        "stepcredit/memory.py",
        "-(-episodes // num_mini_batches))",
        "episodes)",
        "tests/face/test_memory.py::test_a_micro_batch_is_no_larger_than_a_mini_batch",
    ),
    # A storage is counted for each of its views.
    Mutation(
        "stepcredit/memory_measured.py",
        "return sum({each.data_ptr(): each.nbytes() for each in storages}.values())",
        "return sum(each.nbytes() for each in storages)",
        "tests/face/test_memory.py::test_a_storage_is_counted_once",
    ),
    # Parameters count as activations.
    Mutation(
        "stepcredit/memory_measured.py",
        "if storage.data_ptr() not in own:",
        "if True:",
        "tests/face/test_memory.py::test_paper_agrees_with_a_measured_step",
    ),
    # Continuations of one step alone.
    Mutation(
        "stepcredit/memory.py",
        "sizes.episodes * steps * algorithm",
        "sizes.episodes * algorithm",
        "tests/face/test_memory.py::test_continuations_of_every_step_are_said",
    ),
    # A file is written in place.
    Mutation(
        "stepcredit/folders.py",
        'part = path.with_name(f".{path.name}.part")',
        "part = path",
        "tests/face/test_compare.py::test_a_file_is_whole_or_what_it_was",
    ),
    # An arm that a claim of arms names twice is passed over.
    Mutation(
        "stepcredit/claims.py",
        'if "arm" in claim.at:',
        "if False:",
        "tests/face/test_findings.py::test_a_claim_about_nothing_is_refused_not_met",
    ),
]
