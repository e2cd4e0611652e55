"""Faults in the formulas of `stepcredit/algos`."""

from tests.mutations.mutation import Mutation

ALGOS = [
    # Token GAE walks over the observation tokens.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="next_value = torch.where(here, values[:, t], next_value)",
        new="next_value = values[:, t]",
        test="tests/algos/test_advantages.py::test_token_gae_skips_observation_tokens",
    ),
    # Credit decays over tool output.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="running = torch.where(here, delta + gamma * lam * running, running)",
        new="running = delta + gamma * lam * running",
        test="tests/algos/test_advantages.py::test_terminal_credit_does_not_decay_over_tool_output",
    ),
    # The baseline is added.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="delta = rewards[:, t] + gamma * next_value - values[:, t]",
        new="delta = rewards[:, t] + gamma * next_value + values[:, t]",
        test="tests/algos/test_advantages.py::test_token_gae_by_hand",
    ),
    # The next state is not discounted.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="delta = rewards[:, t] + gamma * next_value - values[:, t]",
        new="delta = rewards[:, t] + next_value - values[:, t]",
        test="tests/algos/test_advantages.py::test_token_gae_by_hand",
    ),
    # The value target forgets the value.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="return Credit(advantages, advantages + values, action_mask)",
        new="return Credit(advantages, advantages, action_mask)",
        test="tests/algos/test_advantages.py::test_token_gae_by_hand",
    ),
    # Observation tokens get an advantage.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="advantages[:, t] = masked(running, here)",
        new="advantages[:, t] = running",
        test="tests/algos/test_advantages.py::test_token_gae_skips_observation_tokens",
    ),
    # A masked slot's NaN reaches the sum over a step.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="return out.scatter_add(1, segment.clamp(min=0), masked(x, segment >= 0))",
        new="return out.scatter_add(1, segment.clamp(min=0), x)",
        test="tests/algos/test_advantages.py::test_masked_slots_change_nothing",
    ),
    # A step begins one token early.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="before = ends.cumsum(1) - ends",
        new="before = ends.cumsum(1)",
        test="tests/algos/test_advantages.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # The value is read at every token of the step.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="step_values = per_segment(masked(values, first), segment)",
        new="step_values = per_segment(values, segment)",
        test="tests/algos/test_advantages.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # The critic learns from all tokens of the step.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="return Credit(advantages, masked(advantages + values, first), first)",
        new="return Credit(advantages, masked(advantages + values, first), action_mask)",
        test="tests/algos/test_advantages.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # A step that pays nothing is dropped from the chain.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="exists = per_segment(first.to(rewards.dtype), segment) > 0",
        new="exists = step_rewards != 0",
        test="tests/algos/test_advantages.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # Observation tokens get the group's advantage.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="return Credit(masked(advantages[:, None].expand_as(rewards), action_mask))",
        new="return Credit(advantages[:, None].expand_as(rewards))",
        test="tests/algos/test_advantages.py::test_group_outcome_by_hand",
    ),
    # The group's mean is not subtracted.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="centred = x - mean[owner]",
        new="centred = x",
        test="tests/algos/test_advantages.py::test_group_outcome_by_hand",
    ),
    # The population's standard deviation.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="/ (count - 1).clamp(min=1)",
        new="/ count.clamp(min=1)",
        test="tests/algos/test_advantages.py::test_group_outcome_by_hand",
    ),
    # One mean for all groups.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="mean = x.new_zeros(groups).index_add(0, owner, x) / count.clamp(min=1)",
        new="mean = x.mean().expand(groups)",
        test="tests/algos/test_advantages.py::test_standardise_keeps_owners_apart",
    ),
    # Rounding noise of a flat group becomes advantage.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="flat = variance.sqrt() <= FLAT * largest",
        new="flat = variance.sqrt() <= 0",
        test="tests/algos/test_advantages.py::test_equal_rewards_give_no_advantage",
    ),
    # A step that pays nothing leaves the pool.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="ends = step_end & action_mask\n    pooled",
        new="ends = step_end & action_mask & (rewards != 0)\n    pooled",
        test="tests/algos/test_advantages.py::test_group_process_by_hand",
    ),
    # Steps already past are credited.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="to_come = normalised.flip(1).cumsum(1).flip(1)",
        new="to_come = normalised.cumsum(1)",
        test="tests/algos/test_advantages.py::test_group_process_by_hand",
    ),
    # Each step keeps its own reward alone.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="to_come = normalised.flip(1).cumsum(1).flip(1)",
        new="to_come = normalised",
        test="tests/algos/test_advantages.py::test_group_process_by_hand",
    ),
    # Observation tokens get the steps to come.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="return Credit(masked(to_come, action_mask))",
        new="return Credit(to_come)",
        test="tests/algos/test_advantages.py::test_group_process_by_hand",
    ),
    # Whitening reads every slot.
    Mutation(
        file="stepcredit/algos/advantages.py",
        old="kept = x[mask]",
        new="kept = x.flatten()",
        test="tests/algos/test_advantages.py::test_whiten_reads_policy_tokens_alone",
    ),
    # The larger of the two surrogates.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="return torch.minimum(free, held), held < free",
        new="return torch.maximum(free, held), held < free",
        test="tests/algos/test_losses.py::test_clipped_surrogate_by_hand",
    ),
    # The upper bound takes the lower epsilon.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="bounded = ratio.clamp(1 - epsilon, 1 + epsilon_high)",
        new="bounded = ratio.clamp(1 - epsilon, 1 + epsilon)",
        test="tests/algos/test_losses.py::test_clipped_surrogate_by_hand",
    ),
    # The ratio is upside down.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="ratio = torch.exp(logprobs - old_logprobs)",
        new="ratio = torch.exp(old_logprobs - logprobs)",
        test="tests/algos/test_losses.py::test_clipped_surrogate_by_hand",
    ),
    # All tokens weigh alike.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="return action_mask / (lengths * len(action_mask))",
        new="return action_mask / action_mask.sum()",
        test="tests/algos/test_losses.py::test_sequence_mean_weighs_rows_alike",
    ),
    # Rows of the mask's full width.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="lengths = action_mask.sum(1, keepdim=True).clamp(min=1)",
        new="lengths = action_mask.shape[1]",
        test="tests/algos/test_losses.py::test_sequence_mean_weighs_rows_alike",
    ),
    # Token mean divides by all slots.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="return action_mask / action_mask.sum().clamp(min=1)",
        new="return action_mask / action_mask.numel()",
        test="tests/algos/test_losses.py::test_token_mean_weighs_tokens_alike",
    ),
    # k1 has the other sign.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="return logprobs - ref_logprobs",
        new="return ref_logprobs - logprobs",
        test="tests/algos/test_losses.py::test_k1_and_k3_by_hand",
    ),
    # k3 of the forward direction.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="gap = ref_logprobs - logprobs",
        new="gap = logprobs - ref_logprobs",
        test="tests/algos/test_losses.py::test_k1_and_k3_by_hand",
    ),
    # The smaller value error.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="error = torch.maximum(error, (near - returns) ** 2)",
        new="error = torch.minimum(error, (near - returns) ** 2)",
        test="tests/algos/test_losses.py::test_value_loss_by_hand",
    ),
    # Value tokens that are none.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="values, old_values, returns = (masked(x, value_mask) for x in (values, old_values, returns))",
        new="assert value_mask is not None",
        test="tests/algos/test_losses.py::test_value_loss_ignores_other_tokens",
    ),
    # The loss climbs down.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss = -(weights * surrogate).sum()",
        new="loss = (weights * surrogate).sum()",
        test="tests/algos/test_update.py::test_a_good_token_becomes_likelier",
    ),
    # Weights of each micro-batch by itself.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss, parts = policy_loss(logprobs, part, advantages[rows], weights[rows], algorithm)",
        new="loss, parts = policy_loss(\n            logprobs, part, advantages[rows], algorithm.weight(part.action_mask), algorithm\n        )",
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
        old="penalty = beta * masked(k1(batch.old_logprobs, batch.ref_logprobs), batch.action_mask)",
        new="penalty = beta * k1(batch.old_logprobs, batch.ref_logprobs)",
        test="tests/algos/test_update.py::test_kl_in_reward_touches_policy_tokens_alone",
    ),
    # A masked log-probability's NaN reaches the loss.
    Mutation(
        file="stepcredit/algos/update.py",
        old="logprobs, old_logprobs = masked(logprobs, mask), masked(batch.old_logprobs, mask)",
        new="logprobs, old_logprobs = logprobs, batch.old_logprobs",
        test="tests/algos/test_update.py::test_nan_in_masked_slots_reaches_neither_loss_nor_gradient",
    ),
    # KL in the loss is rewarded.
    Mutation(
        file="stepcredit/algos/update.py",
        old="loss = loss + algorithm.beta * (weights * kl).sum()",
        new="loss = loss - algorithm.beta * (weights * kl).sum()",
        test="tests/algos/test_update.py::test_kl_in_loss_by_hand",
    ),
    # Explained variance of the values.
    Mutation(
        "stepcredit/algos/update.py",
        "return float(1 - (returns - values).var(correction=0) / total)",
        "return float(1 - values.var(correction=0) / total)",
        "tests/algos/test_update.py::test_explained_variance_by_hand",
    ),
]
