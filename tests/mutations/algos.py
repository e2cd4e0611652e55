"""Faults in the update, the batch and the trainer."""

from tests.mutations.mutation import Mutation

ALGOS = [
    # The loss climbs down.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss = -(batch.weights * surrogate).sum()",
        new="loss = (batch.weights * surrogate).sum()",
        test="tests/algos/test_update.py::test_a_good_token_becomes_likelier",
    ),
    # Weights of each micro-batch by itself.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss, by_token = policy_loss(reading, part, algorithm, beta)",
        new="loss, by_token = policy_loss(reading, with_weights(part, algorithm), algorithm, beta)",
        test="tests/algos/test_update.py::test_gradient_is_the_same_for_any_micro_batch_size",
    ),
    # The critic's denominator is the micro-batch's own.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss = errors.sum() / count",
        new="loss = errors.sum() / credit.value_mask[micro].sum()",
        test="tests/algos/test_update.py::test_critic_gradient_is_the_same_for_any_micro_batch_size",
    ),
    # KL rewards the drift.
    Mutation(
        file="stepcredit/algos/update.py",
        old="return replace(batch, rewards=batch.rewards - penalty)",
        new="return replace(batch, rewards=batch.rewards + penalty)",
        test="tests/algos/test_update.py::test_kl_in_reward_touches_policy_tokens_alone",
    ),
    # KL of observation tokens enters the reward.
    Mutation(
        file="stepcredit/algos/update.py",
        old="gap = masked(k1(batch.old_logprobs, batch.ref_logprobs), batch.action_mask)  # [B, T]",
        new="gap = k1(batch.old_logprobs, batch.ref_logprobs)  # [B, T]",
        test="tests/algos/test_update.py::test_kl_in_reward_touches_policy_tokens_alone",
    ),
    # A masked log-probability's NaN reaches the loss.
    Mutation(
        file="stepcredit/algos/update.py",
        old="logprobs, entropy = masked(reading.logprobs, mask), masked(reading.entropy, mask)",
        new="logprobs, entropy = reading.logprobs, reading.entropy",
        test="tests/algos/test_update.py::test_nan_in_masked_slots_reaches_neither_loss_nor_gradient",
    ),
    # KL in the loss is rewarded.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss = loss + beta * (batch.weights * kl).sum()",
        new="loss = loss - beta * (batch.weights * kl).sum()",
        test="tests/algos/test_update.py::test_kl_in_loss_by_hand",
    ),
    # Explained variance of the values.
    Mutation(
        "stepcredit/algos/credit.py",
        "return float(1 - (returns - values).var(correction=0) / total)",
        "return float(1 - values.var(correction=0) / total)",
        "tests/algos/test_update.py::test_explained_variance_by_hand",
    ),
    # Truncated rows leave the numerator but stay in the denominator.
    Mutation(
        file="stepcredit/algos/update.py",
        old="weights=algorithm.weight(batch.loss_mask)",
        new="weights=algorithm.weight(batch.action_mask) * batch.loss_mask",
        test="tests/algos/test_update.py::test_truncated_rows_masked_share_no_part_of_the_loss",
    ),
    # The likelihood of failures is raised too.
    Mutation(
        file="stepcredit/algos/update.py",
        old="good = batch.loss_mask & (batch.outcomes >= 1)[:, None]",
        new="good = batch.loss_mask",
        test="tests/algos/test_update.py::test_likelihood_of_successes_by_hand",
    ),
    # Every row is bootstrapped, those that ended too.
    Mutation(
        file="stepcredit/algos/update.py",
        old="final_values=masked(after, batch.truncated)",
        new="final_values=after",
        test="tests/algos/test_update.py::test_the_state_after_the_last_token_is_read_where_a_row_was_cut_off",
    ),
    # The bootstrap reads the state before the last token.
    Mutation(
        file="stepcredit/algos/update.py",
        old="after = read.gather(1, lengths)",
        new="after = read.gather(1, lengths - 1)",
        test="tests/algos/test_update.py::test_the_state_after_the_last_token_is_read_where_a_row_was_cut_off",
    ),
    # The penalty lands on every step.
    Mutation(
        file="stepcredit/algos/update.py",
        old="last = ends & (ends.flip(1).cumsum(1).flip(1) == 1)",
        new="last = ends",
        test="tests/algos/test_update.py::test_a_truncated_row_pays_the_penalty_on_its_last_step",
    ),
    # An unscored sample counts as one that failed.
    Mutation(
        file="stepcredit/algos/batch.py",
        old="return [t for t in group.trajectories if t.live and np.isfinite(t.rewards).all()]",
        new="return [t for t in group.trajectories if t.live]",
        test="tests/algos/test_batch.py::test_a_reward_that_is_no_number_excludes_its_sample_alone",
    ),
    # States of other groups are mistaken for one's own.
    Mutation(
        file="stepcredit/algos/batch.py",
        old="numbers.setdefault((group, key), len(numbers))",
        new="numbers.setdefault((0, key), len(numbers))",
        test="tests/algos/test_batch.py::test_equal_states_of_one_group_share_a_number",
    ),
    # The penalty begins a cache too late.
    Mutation(
        file="stepcredit/algos/presets/dapo.py",
        old="over = action_mask.sum(1) - (max_tokens - cache)",
        new="over = action_mask.sum(1) - max_tokens",
        test="tests/algos/test_presets.py::test_overlong_answers_pay_by_their_length",
    ),
    # Observation tokens count as the answer's length.
    Mutation(
        file="stepcredit/algos/presets/dapo.py",
        old="late = overlong(batch.action_mask,",
        new="late = overlong(torch.ones_like(batch.action_mask),",
        test="tests/algos/test_presets.py::test_an_overlong_answer_loses_against_its_group",
    ),
    # Overlong answers are rewarded.
    Mutation(
        file="stepcredit/algos/presets/dapo.py",
        old="rewards = rewards + late[:, None]",
        new="rewards = rewards - late[:, None]",
        test="tests/algos/test_presets.py::test_an_overlong_answer_loses_against_its_group",
    ),
    # RLOO averages over an answer's tokens.
    Mutation(
        file="stepcredit/algos/presets/rloo.py",
        old="kl=kl), weight=sequence_sum)",
        new="kl=kl))",
        test="tests/algos/test_presets.py::test_answers_are_summed_or_averaged_as_published",
    ),
    # The values of a step are those before its last token.
    Mutation(
        file="stepcredit/algos/baseline.py",
        old="return [(int(row), int(position)) for row, position in first.nonzero()]",
        new="return [(int(row), int(position) + 1) for row, position in first.nonzero()]",
        test="tests/algos/test_baseline.py::test_branches_at_the_first_policy_token_of_every_step",
    ),
    # A continuation that failed counts as one that earned nothing.
    Mutation(
        file="stepcredit/algos/baseline.py",
        old="scored = row_returns[np.isfinite(row_returns)]",
        new="scored = np.nan_to_num(row_returns)",
        test="tests/algos/test_baseline.py::test_values_are_the_mean_of_what_could_be_scored",
    ),
    # Tokens of continuations are free.
    Mutation(
        file="stepcredit/algos/trainer.py",
        old='sampled_tokens += sampled + int(row.get("montecarlo/policy_tokens", 0))',
        new="sampled_tokens += sampled",
        test="tests/algos/test_trainer_settings.py::test_tokens_of_continuations_count_as_sampled",
    ),
    # Tokens of groups that were left out are free.
    Mutation(
        file="stepcredit/algos/trainer.py",
        old='tokens += int(stats["policy_tokens"])',
        new='tokens = int(stats["policy_tokens"])',
        test="tests/algos/test_trainer_settings.py::test_flat_groups_are_sampled_anew_and_their_tokens_count",
    ),
    # The rounding of two readings is paid for.
    Mutation(
        file="stepcredit/algos/update.py",
        old="penalty = beta * masked(gap, gap.abs() > ROUNDING)",
        new="penalty = beta * gap",
        test="tests/algos/test_update.py::test_two_readings_of_one_policy_cost_no_kl",
    ),
    # Whitening does not know how large the numbers were.
    Mutation(
        file="stepcredit/algos/trainer.py",
        old="used = whiten(credit.advantages, batch.loss_mask, size=paid.largest())",
        new="used = whiten(credit.advantages, batch.loss_mask)",
        test="tests/algos/test_trainer_settings.py::test_rounding_is_not_whitened_into_advantages",
    ),
    # The policy's warm-up passes while the critic learns alone.
    Mutation(
        file="stepcredit/algos/trainer.py",
        old="max(0, step - alone) / over",
        new="step / over",
        test="tests/algos/test_trainer_settings.py::test_each_network_warms_up_in_its_own_first_steps",
    ),
    # Rewards that cancel make a group look varied.
    Mutation(
        file="stepcredit/algos/groups.py",
        old="float(np.abs(t.rewards).sum())",
        new="abs(t.ret)",
        test="tests/algos/test_batch.py::test_a_group_whose_rewards_cancel_is_flat",
    ),
    # The reference is refreshed one step late.
    Mutation(
        file="stepcredit/algos/trainer.py",
        old="if run.reference is not None and every and step % every == 0:",
        new="if run.reference is not None and every and step % every == 1:",
        test="tests/algos/test_trainer_settings.py::test_the_reference_follows_the_policy_and_survives_a_resume",
    ),
    # The refreshed reference is lost at a resume.
    Mutation(
        file="stepcredit/algos/checkpoint.py",
        old='load_model(learner.moving_reference, str(path / "reference.safetensors"))',
        new="pass",
        test="tests/algos/test_trainer_settings.py::test_the_reference_follows_the_policy_and_survives_a_resume",
    ),
    # The policy learns from a critic that knows nothing yet.
    Mutation(
        file="stepcredit/algos/trainer.py",
        old="    if step > alone:",
        new="    if step > 0:",
        test="tests/algos/test_trainer_settings.py::test_the_critic_learns_alone_first",
    ),
    # A failed sample's reward makes a flat group look varied.
    Mutation(
        file="stepcredit/algos/groups.py",
        old="returns = [t.ret for t in live(group)]",
        new="returns = [t.ret for t in group.trajectories]",
        test="tests/algos/test_batch.py::test_flat_groups_are_left_out_where_the_algorithm_says_so",
    ),
    # A default that the pages do not know of.
    Mutation(
        file="stepcredit/algos/presets/ppo.py",
        old="lam: Share = 0.95",
        new="lam: Share = 0.9",
        test="tests/algos/test_docs.py::test_a_page_lists_the_settings_of_its_preset",
    ),
    # KL moves from the reward into the loss, and the index does not know of it.
    Mutation(
        file="stepcredit/algos/presets/rloo.py",
        old='kl = KL(beta=s.beta, place="reward") if s.beta else None',
        new='kl = KL(beta=s.beta, place="loss") if s.beta else None',
        test="tests/algos/test_docs.py::test_the_index_says_what_a_preset_is_and_needs",
    ),
]
