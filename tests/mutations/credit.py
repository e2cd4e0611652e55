"""Faults in the advantage estimators."""

from tests.mutations.mutation import Mutation

CREDIT = [
    # --- token GAE
    # It walks over the observation tokens.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="running, running)\n        next_value = torch.where(here, values[:, t], next_value)\n        advantages",
        new="running, running)\n        next_value = values[:, t]\n        advantages",
        test="tests/algos/test_gae.py::test_token_gae_skips_observation_tokens",
    ),
    # Credit decays over tool output.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="running = torch.where(here, delta + decay * running, running)",
        new="running = delta + decay * running",
        test="tests/algos/test_gae.py::test_terminal_credit_does_not_decay_over_tool_output",
    ),
    # The baseline is added.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="delta = rewards[:, t] + gamma * next_value - values[:, t]",
        new="delta = rewards[:, t] + gamma * next_value + values[:, t]",
        test="tests/algos/test_gae.py::test_token_gae_by_hand",
    ),
    # The next state is not discounted.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="delta = rewards[:, t] + gamma * next_value - values[:, t]",
        new="delta = rewards[:, t] + next_value - values[:, t]",
        test="tests/algos/test_gae.py::test_token_gae_by_hand",
    ),
    # The reward of the token before is read.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="delta = rewards[:, t] + gamma",
        new="delta = rewards[:, t - 1] + gamma",
        test="tests/algos/test_gae.py::test_token_gae_by_hand",
    ),
    # What comes later is not discounted.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="decay = gamma * torch.as_tensor",
        new="decay = torch.as_tensor",
        test="tests/algos/test_gae.py::test_token_gae_by_hand",
    ),
    # The value target forgets the value.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="credit = Credit(advantages, masked(advantages + values, action_mask), action_mask)",
        new="credit = Credit(advantages, advantages, action_mask)",
        test="tests/algos/test_gae.py::test_token_gae_by_hand",
    ),
    # Observation tokens get an advantage.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="advantages[:, t] = masked(running, here)\n    credit",
        new="advantages[:, t] = running\n    credit",
        test="tests/algos/test_gae.py::test_token_gae_skips_observation_tokens",
    ),
    # A truncated row is taken to have ended.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="torch.zeros_like(rewards[:, 0]) if final_values is None else final_values",
        new="torch.zeros_like(rewards[:, 0])",
        test="tests/algos/test_gae.py::test_truncated_rows_bootstrap_from_the_state_they_stopped_in",
    ),
    # The critic learns at the policy's lambda.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="lam=lam_value, final_values",
        new="lam=lam, final_values",
        test="tests/algos/test_gae.py::test_decoupled_returns_have_their_own_lambda",
    ),
    # Decoupled returns take a truncated row to have ended.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="gamma=gamma, lam=lam_value, final_values=final_values",
        new="gamma=gamma, lam=lam_value",
        test="tests/algos/test_gae.py::test_decoupled_returns_bootstrap_as_well",
    ),
    # All rows get the first row's lambda.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="torch.as_tensor(lam, dtype=rewards.dtype, device=rewards.device)",
        new="torch.as_tensor(lam, dtype=rewards.dtype, device=rewards.device).flatten()[0]",
        test="tests/algos/test_gae.py::test_lambda_may_differ_from_row_to_row",
    ),
    # The adaptive lambda counts observation tokens and padding.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="action_mask.sum(1).double()",
        new="torch.ones_like(action_mask).sum(1).double()",
        test="tests/algos/test_gae.py::test_length_adaptive_lambda_by_hand",
    ),
    # The adaptive lambda of a short row is negative.
    Mutation(
        file="stepcredit/algos/gae.py",
        old=".clamp(0, 1)",
        new=".clamp(max=1)",
        test="tests/algos/test_gae.py::test_length_adaptive_lambda_by_hand",
    ),
    # Returns-to-go forget the value where a row was cut.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="lam=1.0, final_values=final_values",
        new="lam=1.0",
        test="tests/algos/test_gae.py::test_returns_to_go_against_loops",
    ),
    # Returns-to-go decay.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="lam=1.0, final_values",
        new="lam=0.9, final_values",
        test="tests/algos/test_gae.py::test_returns_to_go_against_loops",
    ),
    # --- steps and turns
    # A step begins one token early.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="before = ends.cumsum(1) - ends",
        new="before = ends.cumsum(1)",
        test="tests/algos/test_gae.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # Observation tokens join the next step.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="return torch.where(action_mask, before, -1)",
        new="return before",
        test="tests/algos/test_credit.py::test_segments_skip_what_lies_between",
    ),
    # Each token of a segment is its first.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="action_mask & (segment > earlier)",
        new="action_mask & (segment >= earlier)",
        test="tests/algos/test_credit.py::test_segments_skip_what_lies_between",
    ),
    # The last token of a segment is looked for under a mask the wrong way round.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="action_mask.flip(1)).flip(1)",
        new="action_mask).flip(1)",
        test="tests/algos/test_credit.py::test_segments_skip_what_lies_between",
    ),
    # A masked slot's NaN reaches the sum over a step.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="segment.clamp(min=0), masked(x, segment >= 0))",
        new="segment.clamp(min=0), x)",
        test="tests/algos/test_credit.py::test_segments_of_turns_that_start_late_and_leave_one_out",
    ),
    # Observation tokens get the first segment's value.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="return masked(x.gather(1, segment.clamp(min=0)), segment >= 0)",
        new="return x.gather(1, segment.clamp(min=0))",
        test="tests/algos/test_credit.py::test_segments_of_turns_that_start_late_and_leave_one_out",
    ),
    # The value is read at the step's last token.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="per_segment(masked(values, first), segment)",
        new="per_segment(masked(values, ends_segment(segment, action_mask)), segment)",
        test="tests/algos/test_gae.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # A step that pays nothing is dropped.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="per_segment(first.long(), segment) > 0",
        new="per_segment(rewards, segment) != 0",
        test="tests/algos/test_gae.py::test_step_gae_by_hand_with_a_zero_step_and_uneven_turns",
    ),
    # The critic learns at every token of a step.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="returns = masked(to_tokens(by_segment.returns, segment), first)",
        new="returns = to_tokens(by_segment.returns, segment)",
        test="tests/algos/test_gae.py::test_turn_gae_by_hand",
    ),
    # A turn begins one token late.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="segment = torch.where(action_mask, turn_ids, -1)",
        new="segment = torch.where(action_mask, turn_ids.roll(1, 1).cummax(1).values, -1)",
        test="tests/algos/test_gae.py::test_turn_gae_by_hand",
    ),
    # A truncated row's last turn is taken to have ended.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="lam=lam,\n        final_values=final_values,\n    )  # [B, K]",
        new="lam=lam,\n    )  # [B, K]",
        test="tests/algos/test_gae.py::test_turn_gae_by_hand",
    ),
    # --- bi-level GAE
    # A turn that pays nothing is dropped.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="per_segment(last.long(), turn) > 0",
        new="per_segment(rewards, turn) != 0",
        test="tests/algos/test_gae.py::test_bilevel_gae_keeps_turns_that_pay_nothing",
    ),
    # The turn's value is read at its first token.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="last = ends_segment(turn, action_mask)",
        new="last = starts_segment(turn, action_mask)",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # What a turn pays inside does not reach earlier turns.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="inside + per_segment(masked(values, last), turn)",
        new="per_segment(masked(values, last), turn)",
        test="tests/algos/test_gae.py::test_bilevel_gae_counts_what_a_turn_pays_inside",
    ),
    # The turn's advantage is added to its last token's own.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="torch.where(last[:, t], injected[:, t], within)",
        new="torch.where(last[:, t], injected[:, t] + within, within)",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # Tokens do not restart at a turn's end.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="torch.where(here, torch.where(last[:, t], injected[:, t], within), running)",
        new="torch.where(here, within, running)",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # The two discounts are swapped.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="gamma=gamma_turn,",
        new="gamma=gamma,",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # The two lambdas are swapped.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="lam=lam_turn,",
        new="lam=lam,",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # The token level walks over the observation tokens of a turn.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="within), running)\n        next_value = torch.where(here, values[:, t], next_value)",
        new="within), running)\n        next_value = values[:, t]",
        test="tests/algos/test_gae.py::test_bilevel_gae_against_loops",
    ),
    # The baseline is added within a turn.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="within = rewards[:, t] + gamma * next_value - values[:, t]",
        new="within = rewards[:, t] + gamma * next_value + values[:, t]",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # A truncated row's last turn is taken to have ended.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="lam=lam_turn,\n        final_values=final_values,",
        new="lam=lam_turn,",
        test="tests/algos/test_gae.py::test_bilevel_gae_without_discount_is_token_gae",
    ),
    # The value target forgets the value.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="advantages[:, t] = masked(running, here)\n    return Credit(advantages, masked(advantages + values, action_mask), action_mask)",
        new="advantages[:, t] = masked(running, here)\n    return Credit(advantages, advantages, action_mask)",
        test="tests/algos/test_gae.py::test_bilevel_gae_by_hand",
    ),
    # --- the explained-variance gate
    # The gate is the wrong way round.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="if explained > 0:",
        new="if explained < 0:",
        test="tests/algos/test_gae.py::test_evpo_by_hand",
    ),
    # A critic that explains nothing is used.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="if explained > 0:",
        new="if explained >= 0:",
        test="tests/algos/test_gae.py::test_evpo_without_explained_variance_uses_the_mean",
    ),
    # Values and returns change places.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="explained_variance(values[action_mask], kept)",
        new="explained_variance(kept, values[action_mask])",
        test="tests/algos/test_gae.py::test_evpo_against_loops",
    ),
    # The mean is not taken off.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="centre(kept, one_owner(kept)).to(rewards.dtype)",
        new="kept",
        test="tests/algos/test_gae.py::test_evpo_by_hand",
    ),
    # The critic learns from the mean's advantages.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="return replace(credit, advantages=advantages, found=gate)",
        new="return replace(credit, advantages=advantages, returns=advantages + values)",
        test="tests/algos/test_gae.py::test_evpo_by_hand",
    ),
    # Truncated rows are taken to have ended.
    Mutation(
        file="stepcredit/algos/gae.py",
        old="to_go = returns_to_go(rewards, action_mask, gamma=gamma, final_values=final_values)",
        new="to_go = returns_to_go(rewards, action_mask, gamma=gamma)",
        test="tests/algos/test_gae.py::test_evpo_against_loops",
    ),
    # Errors are not centred.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="(returns - values).var(correction=0)",
        new="((returns - values) ** 2).mean()",
        test="tests/algos/test_credit.py::test_explained_variance_by_hand",
    ),
    # Returns that do not vary are divided by.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="one_owner(returns))[1].isinf().any()",
        new="one_owner(returns))[1].isnan().any()",
        test="tests/algos/test_credit.py::test_explained_variance_by_hand",
    ),
    # --- statistics of a group
    # The mean is the batch's.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="mean = x.new_zeros(groups).index_add(0, owner, x) / count.clamp(min=1)",
        new="mean = x.mean().expand(groups)",
        test="tests/algos/test_credit.py::test_standardise_keeps_owners_apart",
    ),
    # The deviation is the population's.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="(squares / (count - 1).clamp(min=1)).sqrt()",
        new="(squares / count.clamp(min=1)).sqrt()",
        test="tests/algos/test_group.py::test_group_outcome_by_hand",
    ),
    # The deviation's denominator counts the batch.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="(squares / (count - 1).clamp(min=1)).sqrt()",
        new="(squares / (len(x) - 1)).sqrt()",
        test="tests/algos/test_group.py::test_group_outcome_by_hand",
    ),
    # Rounding noise of a flat group becomes advantage.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="torch.where(std <= FLAT * largest, torch.inf, std)",
        new="torch.where(std <= 0, torch.inf, std)",
        test="tests/algos/test_group.py::test_rounding_in_single_precision_is_no_advantage",
    ),
    # A flat group keeps its rounding noise where nothing is divided.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="return masked(x.double() - mean, std.isfinite())",
        new="return x.double() - mean",
        test="tests/algos/test_credit.py::test_centre_has_no_rounding_where_values_do_not_differ",
    ),
    # Statistics are single precision.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="    x = x.double()\n    groups",
        new="    groups",
        test="tests/algos/test_credit.py::test_statistics_are_double_precision",
    ),
    # Nothing is divided by.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="return centre(x, owner, size) / moments(x, owner, size)[1]",
        new="return centre(x, owner)",
        test="tests/algos/test_credit.py::test_standardise_keeps_owners_apart",
    ),
    # Whitening reads every slot.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="out[mask] = standardise(kept, one_owner(kept), sizes).to(x.dtype)",
        new="out[mask] = standardise(x.flatten(), one_owner(x.flatten())).view_as(x)[mask].to(x.dtype)",
        test="tests/algos/test_credit.py::test_whiten_reads_policy_tokens_alone",
    ),
    # Whitening makes advantages of what rounding left of larger numbers.
    Mutation(
        file="stepcredit/algos/credit.py",
        old="out[mask] = standardise(kept, one_owner(kept), sizes).to(x.dtype)",
        new="out[mask] = standardise(kept, one_owner(kept)).to(x.dtype)",
        test="tests/algos/test_credit.py::test_what_numbers_left_behind_when_they_cancelled_is_flat",
    ),
    # So does a group whose rewards cancel.
    Mutation(
        file="stepcredit/algos/group.py",
        old="return paid.sum(1), paid.abs().sum(1)",
        new="return paid.sum(1), paid.sum(1)",
        test="tests/algos/test_group.py::test_rewards_that_cancel_are_no_advantage",
    ),
    # And a turn whose rewards do.
    Mutation(
        file="stepcredit/algos/group.py",
        old="return turn, per_segment(paid, turn), per_segment(paid.abs(), turn), exists",
        new="return turn, per_segment(paid, turn), per_segment(paid, turn), exists",
        test="tests/algos/test_group.py::test_rewards_that_cancel_are_no_advantage",
    ),
    # --- one number per row
    # Group and batch scale change places.
    Mutation(
        file="stepcredit/algos/group.py",
        old='scale_rewards == "group"',
        new='scale_rewards == "batch"',
        test="tests/algos/test_group.py::test_group_outcome_scales_by_hand",
    ),
    # The batch's deviation is not divided by.
    Mutation(
        file="stepcredit/algos/group.py",
        old='scale_rewards != "none"',
        new='scale_rewards == "group"',
        test="tests/algos/test_group.py::test_group_outcome_scales_by_hand",
    ),
    # Dr. GRPO divides.
    Mutation(
        file="stepcredit/algos/group.py",
        old='    if scale_rewards != "none":\n',
        new="    if scale_rewards:\n",
        test="tests/algos/test_group.py::test_group_outcome_scales_by_hand",
    ),
    # Observation tokens get the row's advantage.
    Mutation(
        file="stepcredit/algos/group.py",
        old="return Credit(masked(spread, action_mask))",
        new="return Credit(spread)",
        test="tests/algos/test_group.py::test_group_outcome_by_hand",
    ),
    # A masked slot's reward is earned.
    Mutation(
        file="stepcredit/algos/group.py",
        old="paid = masked(rewards, action_mask).double()  # [B, T]",
        new="paid = rewards.double()  # [B, T]",
        test="tests/algos/test_estimators.py::test_masked_slots_change_nothing",
    ),
    # A row is in its own baseline.
    Mutation(
        file="stepcredit/algos/group.py",
        old="centred * count / (count - 1).clamp(min=1)",
        new="centred",
        test="tests/algos/test_group.py::test_leave_one_out_by_hand",
    ),
    # The others are the batch's.
    Mutation(
        file="stepcredit/algos/group.py",
        old="torch.bincount(group_index)[group_index].double()",
        new="torch.full_like(group_index, len(group_index)).double()",
        test="tests/algos/test_group.py::test_leave_one_out_by_hand",
    ),
    # Returns-to-go are not discounted.
    Mutation(
        file="stepcredit/algos/group.py",
        old="returns_to_go(rewards, action_mask, gamma=gamma)",
        new="returns_to_go(rewards, action_mask, gamma=1.0)",
        test="tests/algos/test_group.py::test_reinforce_plus_plus_by_hand",
    ),
    # Returns-to-go walk over observation tokens.
    Mutation(
        file="stepcredit/algos/group.py",
        old="returns_to_go(rewards, action_mask, gamma=gamma)",
        new="returns_to_go(rewards, torch.ones_like(action_mask), gamma=gamma)",
        test="tests/algos/test_group.py::test_reinforce_plus_plus_by_hand",
    ),
    # The baseline variant divides within the group as well.
    Mutation(
        file="stepcredit/algos/group.py",
        old='group_index, scale_rewards="none")',
        new="group_index)",
        test="tests/algos/test_group.py::test_reinforce_plus_plus_baseline_is_whitened_over_tokens",
    ),
    # --- one number per judged step
    # A step that pays nothing leaves the pool.
    Mutation(
        file="stepcredit/algos/group.py",
        old="judged = per_segment((step_end & action_mask).long(), segment) > 0",
        new="judged = per_segment(masked(rewards, step_end), segment) != 0",
        test="tests/algos/test_process.py::test_group_process_by_hand",
    ),
    # The unjudged tail is in the pool.
    Mutation(
        file="stepcredit/algos/group.py",
        old="judged = per_segment((step_end & action_mask).long(), segment) > 0",
        new="judged = per_segment(action_mask.long(), segment) > 0",
        test="tests/algos/test_process.py::test_group_process_by_hand",
    ),
    # Steps already past are credited.
    Mutation(
        file="stepcredit/algos/group.py",
        old="owner = group_index[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = returns_to_go(normalised, judged, gamma=1.0)",
        new="owner = group_index[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = normalised.cumsum(1)",
        test="tests/algos/test_process.py::test_group_process_by_hand",
    ),
    # Each step keeps its own reward alone.
    Mutation(
        file="stepcredit/algos/group.py",
        old="owner = group_index[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = returns_to_go(normalised, judged, gamma=1.0)",
        new="owner = group_index[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = normalised",
        test="tests/algos/test_process.py::test_group_process_by_hand",
    ),
    # All groups share one pool.
    Mutation(
        file="stepcredit/algos/group.py",
        old="owner = group_index[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = returns_to_go(normalised, judged, gamma=1.0)",
        new="owner = (group_index * 0)[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = returns_to_go(normalised, judged, gamma=1.0)",
        test="tests/algos/test_process.py::test_process_against_loops",
    ),
    # Further steps are not credited.
    Mutation(
        file="stepcredit/algos/group.py",
        old="to_come = returns_to_go(step_rewards, judged, gamma=gamma)",
        new="to_come = step_rewards",
        test="tests/algos/test_process.py::test_process_returns_by_hand",
    ),
    # Returns are not discounted.
    Mutation(
        file="stepcredit/algos/group.py",
        old="returns_to_go(step_rewards, judged, gamma=gamma)",
        new="returns_to_go(step_rewards, judged, gamma=1.0)",
        test="tests/algos/test_process.py::test_process_returns_by_hand",
    ),
    # All groups share one pool of returns.
    Mutation(
        file="stepcredit/algos/group.py",
        old="owner = group_index[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(to_come[",
        new="owner = (group_index * 0)[:, None].expand_as(judged)[judged]  # [N]\n    normalised = _scatter(standardise(to_come[",
        test="tests/algos/test_process.py::test_process_against_loops",
    ),
    # Returns are rewards, normalised before they are summed.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_scatter(standardise(to_come[judged], owner), judged)",
        new="returns_to_go(_scatter(standardise(step_rewards[judged], owner), judged), judged, gamma=gamma)",
        test="tests/algos/test_process.py::test_returns_have_no_length_artefact",
    ),
    # Steps of all numbers share one pool.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_owners(group_index, number, judged)",
        new="_owners(group_index, number * 0, judged)",
        test="tests/algos/test_process.py::test_positions_compare_steps_of_one_number_alone",
    ),
    # Steps of one number meet across groups.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_owners(group_index, number, judged)",
        new="_owners(group_index * 0, number, judged)",
        test="tests/algos/test_process.py::test_process_against_loops",
    ),
    # Further steps are not credited.
    Mutation(
        file="stepcredit/algos/group.py",
        old="owner = _owners(group_index, number, judged)  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = returns_to_go(normalised, judged, gamma=1.0)",
        new="owner = _owners(group_index, number, judged)  # [N]\n    normalised = _scatter(standardise(step_rewards[judged], owner), judged)  # [B, K]\n    to_come = normalised",
        test="tests/algos/test_process.py::test_process_positions_by_hand",
    ),
    # --- one number per turn
    # The last turn's own reward is credited beside the outcome.
    Mutation(
        file="stepcredit/algos/group.py",
        old="exists & (number < turn.max(1, keepdim=True).values)",
        new="exists",
        test="tests/algos/test_group.py::test_mt_grpo_by_hand",
    ),
    # The turn's part is taken off.
    Mutation(
        file="stepcredit/algos/group.py",
        old="outcome + turn_coef * to_tokens",
        new="outcome - turn_coef * to_tokens",
        test="tests/algos/test_group.py::test_mt_grpo_by_hand",
    ),
    # The outcome is not centred.
    Mutation(
        file="stepcredit/algos/group.py",
        old="outcome = standardise(outcomes, group_index)[:, None]",
        new="outcome = outcomes[:, None]",
        test="tests/algos/test_group.py::test_mt_grpo_by_hand",
    ),
    # Turns of all numbers share one pool.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_owners(group_index, number, before_last)",
        new="_owners(group_index, number * 0, before_last)",
        test="tests/algos/test_group.py::test_mt_grpo_against_loops",
    ),
    # Turns of one number meet across groups.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_owners(group_index, number, before_last)",
        new="_owners(group_index * 0, number, before_last)",
        test="tests/algos/test_group.py::test_mt_grpo_against_loops",
    ),
    # Observation tokens get the outcome's advantage.
    Mutation(
        file="stepcredit/algos/group.py",
        old="masked(outcome + turn_coef * to_tokens(by_turn, turn), action_mask)",
        new="outcome + turn_coef * to_tokens(by_turn, turn)",
        test="tests/algos/test_group.py::test_mt_grpo_by_hand",
    ),
    # A turn that pays nothing is dropped.
    Mutation(
        file="stepcredit/algos/group.py",
        old="exists = per_segment(action_mask.long(), turn) > 0",
        new="exists = per_segment(masked(rewards, action_mask), turn) != 0",
        test="tests/algos/test_group.py::test_gigpo_by_hand",
    ),
    # Unknown states are one state.
    Mutation(
        file="stepcredit/algos/group.py",
        old="known = exists & (state >= 0)",
        new="known = exists",
        test="tests/algos/test_group.py::test_gigpo_with_unique_states_is_grpo",
    ),
    # Equal states meet across groups.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_owners(group_index, state, known)",
        new="_owners(group_index * 0, state, known)",
        test="tests/algos/test_group.py::test_equal_states_of_two_groups_do_not_meet",
    ),
    # All states are one state.
    Mutation(
        file="stepcredit/algos/group.py",
        old="_owners(group_index, state, known)",
        new="_owners(group_index, state * 0, known)",
        test="tests/algos/test_group.py::test_gigpo_with_unique_states_is_grpo",
    ),
    # The state is summed over the turn's tokens.
    Mutation(
        file="stepcredit/algos/group.py",
        old="per_segment(masked(state_index, first), turn)",
        new="per_segment(state_index, turn)",
        test="tests/algos/test_group.py::test_gigpo_against_loops",
    ),
    # A turn's return is not discounted.
    Mutation(
        file="stepcredit/algos/group.py",
        old="returns_to_go(turn_rewards, exists, gamma=gamma)",
        new="returns_to_go(turn_rewards, exists, gamma=1.0)",
        test="tests/algos/test_group.py::test_gigpo_by_hand",
    ),
    # A turn is compared by its reward alone.
    Mutation(
        file="stepcredit/algos/group.py",
        old="to_come = returns_to_go(turn_rewards, exists, gamma=gamma)",
        new="to_come = turn_rewards",
        test="tests/algos/test_group.py::test_gigpo_by_hand",
    ),
    # The state's part is taken off.
    Mutation(
        file="stepcredit/algos/group.py",
        old="episode + step_coef * to_tokens",
        new="episode - step_coef * to_tokens",
        test="tests/algos/test_group.py::test_gigpo_by_hand",
    ),
    # The two scales change places.
    Mutation(
        file="stepcredit/algos/group.py",
        old='standardise if scale == "group" else centre',
        new='centre if scale == "group" else standardise',
        test="tests/algos/test_group.py::test_gigpo_by_hand",
    ),
    # Observation tokens get the episode's advantage.
    Mutation(
        file="stepcredit/algos/group.py",
        old="masked(episode + step_coef * to_tokens(by_turn, turn), action_mask)",
        new="episode + step_coef * to_tokens(by_turn, turn)",
        test="tests/algos/test_group.py::test_gigpo_by_hand",
    ),
]
