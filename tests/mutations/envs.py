"""Faults in the formulas of `stepcredit/envs`."""

from tests.mutations.mutation import Mutation

ENVS = [
    # A chain digit is judged by the right digit before it, not by the written one.
    Mutation(
        file="stepcredit/envs/chain.py",
        old="            before = written\n",
        new="            before = self.facts.answers[int(before) * 10 + term]\n",
        test="tests/envs/test_tasks.py::test_chain_judges_each_digit_by_the_one_written_before",
    ),
    # Digits not written leave the denominator.
    Mutation(
        file="stepcredit/envs/chain.py",
        old="        outcome = right_steps / self.steps\n",
        new="        outcome = right_steps / max(1, len(spans))\n",
        test="tests/envs/test_tasks.py::"
        "test_chain_counts_what_was_not_written_and_ignores_what_is_too_much",
    ),
    # The luck's variance is not divided by the number of doors.
    Mutation(
        file="stepcredit/envs/luck.py",
        old="self.facts.answer_variance() / self.turns",
        new="self.facts.answer_variance()",
        test="tests/envs/test_tasks.py::test_luck_has_mean_zero_and_the_promised_variance",
    ),
    # Luck is shared by the siblings of a group.
    Mutation(
        file="stepcredit/envs/luck.py",
        old="self._digit = int(self.chance.integers(10))",
        new="self._digit = int(self.task_rng.integers(10))",
        test="tests/envs/test_tasks.py::test_state_key_holds_the_luck_once_it_is_shown",
    ),
    # Siblings meet different tasks.
    Mutation(
        file="stepcredit/envs/core.py",
        old='derive_seed("task", self.split, self.task)',
        new='derive_seed("task", self.split, self.task, self.chance_seed)',
        test="tests/envs/test_core.py::test_siblings_share_the_task_and_never_the_chance",
    ),
    # Training meets the tasks of the evaluation.
    Mutation(
        file="stepcredit/envs/core.py",
        old='derive_seed("task", self.split, self.task)',
        new='derive_seed("task", self.task)',
        test="tests/envs/test_core.py::test_a_task_differs_between_splits_and_from_other_tasks",
    ),
    # The end pays the last reward and not the total.
    Mutation(
        file="stepcredit/envs/rewards.py",
        old='"dense@end": total if ended else 0.0,\n        }\n        info',
        new='"dense@end": own_reward if ended else 0.0,\n        }\n        info',
        test="tests/envs/test_rewards.py::test_hand_computed_payment_of_each_setup",
    ),
    # Rewards are carried over into the next episode.
    Mutation(
        file="stepcredit/envs/rewards.py",
        old='        """Starts an episode with nothing earned."""\n        self._earned = []\n',
        new='        """Starts an episode with nothing earned."""\n',
        test="tests/envs/test_rewards.py::test_a_new_episode_owes_nothing",
    ),
    # Zero-reward steps are dropped when the pay comes at the end.
    Mutation(
        file="stepcredit/envs/rewards.py",
        old="steps = [replace(span, value=0.0) for span in spans]",
        new="steps = [replace(span, value=0.0) for span in spans if span.value]",
        test="tests/envs/test_rewards.py::test_placement_keeps_the_steps_where_nothing_follows_them",
    ),
    # Paid at the end, the unjudged end of every turn is a step.
    Mutation(
        file="stepcredit/envs/rewards.py",
        old="if steps and steps[-1].end < length and left_over(own_reward, spans):",
        new="if steps and steps[-1].end < length:",
        test="tests/envs/test_rewards.py::"
        "test_without_a_left_over_the_total_lies_on_the_last_span_and_no_step_is_added",
    ),
    # Paid at the end, what the environment leaves over makes no step.
    Mutation(
        file="stepcredit/envs/rewards.py",
        old="if steps and steps[-1].end < length and left_over(own_reward, spans):",
        new="if steps and steps[-1].end < length and False:",
        test="tests/agents/test_set_ups.py::"
        "test_a_left_over_makes_the_end_of_a_turn_a_step_and_none_does_not",
    ),
    # Rounding noise is a left-over.
    Mutation(
        file="stepcredit/envs/contract.py",
        old="return rest if abs(rest) > ROUNDING * scale else 0.0",
        new="return rest",
        test="tests/agents/test_set_ups.py::"
        "test_rounding_is_no_left_over_however_large_the_rewards_are",
    ),
    # Rounding is measured in absolute terms.
    Mutation(
        file="stepcredit/envs/contract.py",
        old="return rest if abs(rest) > ROUNDING * scale else 0.0",
        new="return rest if abs(rest) > ROUNDING else 0.0",
        test="tests/agents/test_set_ups.py::"
        "test_rounding_is_no_left_over_however_large_the_rewards_are",
    ),
    # Wrappers of the entry point take the place of the reward switch.
    Mutation(
        file="stepcredit/envs/registry.py",
        old="return _Whole(env) if isinstance(env, gym.Wrapper) else env",
        new="return env",
        test="tests/envs/test_registry.py::test_a_factory_may_wrap_and_the_switch_goes_around_it",
    ),
    # Any value that is not empty counts as success.
    Mutation(
        file="stepcredit/envs/rewards.py",
        old='return checked_bool("success", info["success"])',
        new='return bool(info["success"])',
        test="tests/envs/test_rewards.py::test_an_answer_of_another_shape_is_refused_by_name",
    ),
    # A right program that went another way is not paid in full.
    Mutation(
        file="stepcredit/envs/program.py",
        old="pay[-1] += self.steps - right_steps",
        new="pay[-1] += 0",
        test="tests/envs/test_program.py::test_statements_are_judged_by_the_program_up_to_them",
    ),
    # A program's beginning is judged by the values after one transformation more.
    Mutation(
        "stepcredit/envs/program.py",
        "expected = [*expected[: len(texts) - 1], expected[-1]]",
        "expected = [*expected[1 : len(texts)], expected[-1]]",
        "tests/envs/test_program.py::test_statements_are_judged_by_the_program_up_to_them",
    ),
]
