"""Faults in Monte-Carlo values by replay."""

from tests.mutations.mutation import Mutation

FILE = "stepcredit/agents/branch.py"
TESTS = "tests/agents/test_branch.py::"
FAULTS = "tests/agents/test_branch_faults.py::"

BRANCH = [
    # What was earned before the branch is counted again.
    Mutation(
        FILE,
        "return math.fsum([*episode.rewards, *-recorded])",
        "return math.fsum(episode.rewards)",
        TESTS + "test_a_set_up_pays_at_the_end_what_was_earned_from_the_start[dense-expected0]",
    ),
    # Rewards are counted from the branch's token on, whatever was recorded of its step.
    Mutation(
        FILE,
        "return math.fsum([*episode.rewards, *-recorded])",
        "return math.fsum(episode.rewards[branch.position :])",
        TESTS + "test_what_was_recorded_of_a_step_that_goes_on_is_taken_off",
    ),
    # The reward of the token before the branch is still to come.
    Mutation(
        FILE,
        "branch.trajectory.rewards[: branch.position]",
        "branch.trajectory.rewards[: branch.position - 1]",
        TESTS + "test_what_was_recorded_of_a_step_that_goes_on_is_taken_off",
    ),
    # All that the rest of the episode earned is taken off.
    Mutation(
        FILE,
        "branch.trajectory.rewards[: branch.position]",
        "branch.trajectory.rewards",
        TESTS + "test_inside_a_turn_the_kept_steps_count_for_what_follows_and_are_not_paid_again",
    ),
    # Luck that was not shown yet is that of the recorded episode.
    Mutation(
        FILE,
        'renew_chance(episode.env, derive_seed("branch chance", *name))',
        "renew_chance(episode.env, episode.chance_seed)",
        TESTS + "test_luck_that_was_shown_stays_and_luck_that_was_not_is_drawn_afresh",
    ),
    # Luck that was shown is drawn again.
    Mutation(
        FILE,
        "chance_seed=t.chance_seed",
        "chance_seed=t.chance_seed + 1",
        TESTS + "test_luck_that_was_shown_stays_and_luck_that_was_not_is_drawn_afresh",
    ),
    # Only the environment's own name for its generator is renewed.
    Mutation(
        "stepcredit/envs/core.py",
        "inner.chance.bit_generator.state = fresh.bit_generator.state",
        "inner.chance = fresh",
        TESTS + "test_a_generator_that_was_handed_on_is_renewed_too",
    ),
    # All continuations of a branch are one.
    Mutation(
        FILE,
        "b.trajectory.sample_id, b.position, number)",
        "b.trajectory.sample_id, b.position)",
        TESTS + "test_the_policy_reads_exactly_the_recorded_tokens_and_keeps_to_the_turns_limit",
    ),
    # A continuation depends on how many branches precede its own.
    Mutation(
        FILE,
        'derive_seed("branch sample", *name) for name in names',
        'derive_seed("branch sample", row, *name) for row, name in enumerate(names)',
        TESTS + "test_a_branch_does_not_depend_on_its_company_and_equal_calls_give_equal_bits",
    ),
    # The policy forgets the turns before the branch.
    Mutation(
        "stepcredit/agents/rollout.py",
        "episode.token_ids[episode.num_known :]",
        "episode.next_ids",
        TESTS + "test_the_policy_reads_exactly_the_recorded_tokens_and_keeps_to_the_turns_limit",
    ),
    # A turn's limit forgets what was said of it before the branch.
    Mutation(
        "stepcredit/agents/rollout.py",
        "max_turn_tokens - len(e.begun_ids)",
        "max_turn_tokens",
        TESTS + "test_the_policy_reads_exactly_the_recorded_tokens_and_keeps_to_the_turns_limit",
    ),
    # The environment hears the end of a turn alone.
    Mutation(
        "stepcredit/agents/rollout.py",
        "renderer.action([*episode.begun_ids, *completion.token_ids])",
        "renderer.action(completion.token_ids)",
        TESTS + "test_inside_a_turn_the_kept_steps_count_for_what_follows_and_are_not_paid_again",
    ),
    # Repeated turns are counted as sampled ones.
    Mutation(
        FILE,
        "episode.turn_cut[branch.turn :]",
        "episode.turn_cut",
        TESTS + "test_only_what_is_sampled_afresh_is_counted",
    ),
    # A failure is worth nothing instead of unknown.
    Mutation(
        FILE,
        "return math.nan",
        "return 0.0",
        FAULTS + "test_what_the_wall_clock_ends_is_no_value",
    ),
    # What the replay paid is not looked at.
    Mutation(
        FILE,
        "elif not np.allclose(episode.rewards, paid):",
        "elif len(episode.rewards) != len(paid):",
        FAULTS
        + "test_an_environment_that_does_not_come_back_is_noticed[pay-paid 4 where 2 was recorded]",
    ),
]
