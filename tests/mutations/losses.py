"""Faults in trust regions, divergences, weights, KL terms and value loss."""

from tests.mutations.mutation import Mutation

LOSSES = [
    # The larger of the two surrogates.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="surrogate, held = torch.minimum(free, bounded), bounded < free",
        new="surrogate, held = torch.maximum(free, bounded), bounded < free",
        test="tests/algos/test_trust.py::test_clipped_surrogate_by_hand",
    ),
    # The clip is reported where it does not hold.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="surrogate, held = torch.minimum(free, bounded), bounded < free",
        new="surrogate, held = torch.minimum(free, bounded), bounded > free",
        test="tests/algos/test_trust.py::test_held_tokens_are_exactly_those_without_gradient",
    ),
    # The upper bound takes the lower epsilon.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="bounded = ratios.clamp(1 - epsilon, 1 + epsilon_high) * advantages",
        new="bounded = ratios.clamp(1 - epsilon, 1 + epsilon) * advantages",
        test="tests/algos/test_trust.py::test_clipped_surrogate_by_hand",
    ),
    # The ratio is upside down.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="return torch.exp((logprobs - old_logprobs).clamp(-LOG_LIMIT, LOG_LIMIT))",
        new="return torch.exp((old_logprobs - logprobs).clamp(-LOG_LIMIT, LOG_LIMIT))",
        test="tests/algos/test_trust.py::test_clipped_surrogate_by_hand",
    ),
    # A ratio may overflow.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="return torch.exp((logprobs - old_logprobs).clamp(-LOG_LIMIT, LOG_LIMIT))",
        new="return torch.exp(logprobs - old_logprobs)",
        test="tests/algos/test_trust.py::test_a_huge_ratio_stays_finite",
    ),
    # Dual clip of positive advantages.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="below = (advantages < 0) & (surrogate < floor)",
        new="below = (advantages > 0) & (surrogate < floor)",
        test="tests/algos/test_trust.py::test_dual_clip_by_hand",
    ),
    # Dual clip on the wrong side.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="below = (advantages < 0) & (surrogate < floor)",
        new="below = (advantages < 0) & (surrogate > floor)",
        test="tests/algos/test_trust.py::test_dual_clip_by_hand",
    ),
    # Dual clip is not reported.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="return torch.where(below, floor, surrogate), held | below",
        new="return torch.where(below, floor, surrogate), held",
        test="tests/algos/test_trust.py::test_held_tokens_are_exactly_those_without_gradient",
    ),
    # Tool output counts in an answer's own budget.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="counted = divergence.masked_fill(~mask, torch.nan)",
        new="counted = divergence.nan_to_num(1.0)",
        test="tests/algos/test_divergence.py::test_own_budget_is_the_clamped_percentile_of_policy_tokens",
    ),
    # One row's budget is every row's.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="highest = torch.nanquantile(counted, 0.9, dim=1, keepdim=True)",
        new="highest = torch.nanquantile(counted, 0.9).expand(len(mask), 1)",
        test="tests/algos/test_divergence.py::test_own_budget_is_the_clamped_percentile_of_policy_tokens",
    ),
    # A turn's ratio is its mean, as a row's.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="product = to_tokens(per_segment(gap, turn), turn)",
        new="product = to_tokens(per_segment(gap, turn) / per_segment(gap * 0 + 1, turn), turn)",
        test="tests/algos/test_trust.py::test_turn_ratio_by_hand",
    ),
    # Tool output multiplies a turn's ratio.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="turn = torch.where(mask, turn_ids, -1)",
        new="gap, turn = logprobs - old_logprobs, turn_ids",
        test="tests/algos/test_trust.py::test_turn_ratio_by_hand",
    ),
    # Every token of a turn carries the whole turn's gradient.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="turn_ratio = torch.exp(product.detach() + (gap - gap.detach()))",
        new="turn_ratio = torch.exp(product)",
        test="tests/algos/test_trust.py::test_turn_gradient_is_that_of_one_ratio_a_turn",
    ),
    # Masked tokens count in the row's ratio.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="gap = masked(logprobs - old_logprobs, mask)\n    lengths",
        new="gap = logprobs - old_logprobs\n    lengths",
        test="tests/algos/test_trust.py::test_sequence_ratio_by_hand",
    ),
    # The row's ratio is not normalised by its length.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="mean = (gap.sum(1, keepdim=True) / lengths).clamp(-LOG_LIMIT, LOG_LIMIT)  # [B, 1]",
        new="mean = (lengths / lengths * gap.sum(1, keepdim=True)).clamp(-LOG_LIMIT, LOG_LIMIT)",
        test="tests/algos/test_trust.py::test_sequence_ratio_by_hand",
    ),
    # The row's length is the padded width.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="lengths = mask.sum(1, keepdim=True).clamp(min=1)",
        new="lengths = mask.shape[1]",
        test="tests/algos/test_trust.py::test_sequence_ratio_by_hand",
    ),
    # The row's ratio has a gradient of its own next to the token's.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="row_ratio = torch.exp(mean.detach() + (gap - gap.detach()))  # [B, T]",
        new="row_ratio = torch.exp(mean + (gap - gap.detach()))",
        test="tests/algos/test_trust.py::test_sequence_gradient_is_that_of_the_published_sequence_form",
    ),
    # Advantages of masked slots.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="row_ratio, masked(advantages, mask), epsilon=epsilon, epsilon_high=epsilon_high",
        new="row_ratio, advantages, epsilon=epsilon, epsilon_high=epsilon_high",
        test="tests/algos/test_trust.py::test_sequence_ratio_ignores_masked_slots",
    ),
    # CISPO's weight has a gradient.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="weight = ratio(logprobs, old_logprobs).detach()",
        new="weight = ratio(logprobs, old_logprobs)",
        test="tests/algos/test_trust.py::test_cispo_gradient_by_finite_differences",
    ),
    # CISPO's bounds swapped.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="bounded = weight.clamp(1 - epsilon, 1 + epsilon_high)",
        new="bounded = weight.clamp(1 - epsilon_high, 1 + epsilon)",
        test="tests/algos/test_trust.py::test_cispo_by_hand",
    ),
    # CISPO's weight is not clipped.
    Mutation(
        file="stepcredit/algos/trust.py",
        old="return bounded * advantages * logprobs, bounded != weight",
        new="return weight * advantages * logprobs, bounded != weight",
        test="tests/algos/test_trust.py::test_cispo_by_hand",
    ),
    # Half the binary total variation.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return (old_logprobs.exp() - logprobs.exp()).abs()",
        new="return 0.5 * (old_logprobs.exp() - logprobs.exp()).abs()",
        test="tests/algos/test_divergence.py::test_binary_divergences_by_hand",
    ),
    # The divergence carries a gradient.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="@torch.no_grad()\ndef binary_tv",
        new="@torch.enable_grad()\ndef binary_tv",
        test="tests/algos/test_divergence.py::test_divergences_carry_no_gradient",
    ),
    # Binary KL in the other direction.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return _kl_terms(old_logprobs.exp(), old_logprobs, logprobs) + _kl_rest(old_rest, rest)",
        new="return _kl_terms(logprobs.exp(), logprobs, old_logprobs) + _kl_rest(rest, old_rest)",
        test="tests/algos/test_divergence.py::test_binary_divergences_by_hand",
    ),
    # Binary KL without the other tokens.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return _kl_terms(old_logprobs.exp(), old_logprobs, logprobs) + _kl_rest(old_rest, rest)",
        new="return _kl_terms(old_logprobs.exp(), old_logprobs, logprobs)",
        test="tests/algos/test_divergence.py::test_binary_divergences_by_hand",
    ),
    # A certain token divides by zero.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return old * (old.clamp(min=least) / new.clamp(min=least)).log()",
        new="return old * (old / new).log() + 0 * least",
        test="tests/algos/test_divergence.py::test_certain_and_impossible_tokens_give_finite_divergences",
    ),
    # Top-K total variation without the other tokens.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return 0.5 * (moved + (_rest(old) - _rest(new)).abs())",
        new="return 0.5 * moved",
        test="tests/algos/test_divergence.py::test_topk_divergences_by_hand",
    ),
    # Top-K total variation not halved.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return 0.5 * (moved + (_rest(old) - _rest(new)).abs())",
        new="return moved + (_rest(old) - _rest(new)).abs()",
        test="tests/algos/test_divergence.py::test_topk_divergences_by_hand",
    ),
    # Top-K KL without the other tokens.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return named + _kl_rest(_rest(old.exp()), _rest(new.exp()))",
        new="return named",
        test="tests/algos/test_divergence.py::test_topk_divergences_by_hand",
    ),
    # Top-K KL in the other direction.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="named = _kl_terms(old.exp(), old, new).sum(-1)",
        new="named = _kl_terms(new.exp(), new, old).sum(-1)",
        test="tests/algos/test_divergence.py::test_topk_equals_the_slow_sum",
    ),
    # The sampled token counts twice.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="extra = chosen.masked_fill(inside, -torch.inf)",
        new="extra = chosen.masked_fill(inside & False, -torch.inf)",
        test="tests/algos/test_divergence.py::test_topk_divergences_by_hand",
    ),
    # The sampled token never counts.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="extra = chosen.masked_fill(inside, -torch.inf)",
        new="extra = chosen.masked_fill(inside | True, -torch.inf)",
        test="tests/algos/test_divergence.py::test_topk_divergences_by_hand",
    ),
    # The sampled token is looked for in the first of the top K.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="inside = (topk_ids == token_ids[..., None]).any(-1)  # [B, T]",
        new="inside = topk_ids[..., 0] == token_ids",
        test="tests/algos/test_divergence.py::test_topk_equals_the_slow_sum",
    ),
    # A token without mass is not a number.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return torch.where(old > 0, old * (old_log - new_log), 0)",
        new="return old * (old_log - new_log)",
        test="tests/algos/test_divergence.py::test_certain_and_impossible_tokens_give_finite_divergences",
    ),
    # DPPO holds the tokens that stay.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="held = _leaving(logprobs, old_logprobs, advantages) & (divergence > delta)",
        new="held = _leaving(logprobs, old_logprobs, advantages) & (divergence <= delta)",
        test="tests/algos/test_divergence.py::test_dppo_by_hand",
    ),
    # DPPO holds tokens that return.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="held = _leaving(logprobs, old_logprobs, advantages) & (divergence > delta)",
        new="held = divergence > delta",
        test="tests/algos/test_divergence.py::test_dppo_by_hand",
    ),
    # Leaving is taken for returning.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return advantages * (logprobs - old_logprobs).detach() > 0",
        new="return advantages * (logprobs - old_logprobs).detach() < 0",
        test="tests/algos/test_divergence.py::test_dppo_by_hand",
    ),
    # A token's sign alone decides.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return advantages * (logprobs - old_logprobs).detach() > 0",
        new="return (logprobs - old_logprobs).detach() > 0",
        test="tests/algos/test_divergence.py::test_dppo_by_hand",
    ),
    # The cap is a floor.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="weight = weight.clamp(max=ratio_cap)",
        new="weight = weight.clamp(min=ratio_cap)",
        test="tests/algos/test_divergence.py::test_dppo_cap_bounds_the_weight_and_keeps_the_gradient",
    ),
    # A capped token loses its gradient.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return (weight * advantages * (1 + (logprobs - logprobs.detach()))).masked_fill(held, 0.0)",
        new="return (ratio(logprobs, old_logprobs).clamp(max=ratio_cap) * advantages).masked_fill(held, 0.0)",
        test="tests/algos/test_divergence.py::test_dppo_cap_bounds_the_weight_and_keeps_the_gradient",
    ),
    # The weight is gone from the gradient.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return (weight * advantages * (1 + (logprobs - logprobs.detach()))).masked_fill(held, 0.0)",
        new="return (advantages * (weight + (logprobs - logprobs.detach()))).masked_fill(held, 0.0)",
        test="tests/algos/test_divergence.py::test_gradient_by_finite_differences",
    ),
    # CPPO reads masked slots.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="masked(x, mask) for x in (logprobs, old_logprobs, advantages, divergence)",
        new="x for x in (logprobs, old_logprobs, advantages, divergence)",
        test="tests/algos/test_divergence.py::test_cppo_masked_slots_are_inert",
    ),
    # Scopes swapped.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old='segment = torch.where(mask, turn_ids if scope == "turn" else 0, -1)  # [B, T]',
        new='segment = torch.where(mask, 0 if scope == "turn" else turn_ids, -1)',
        test="tests/algos/test_divergence.py::test_cppo_turn_scope_restarts_weights_and_budget",
    ),
    # Tool tokens count as positions.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="ones = mask.to(divergence.dtype)",
        new="ones = torch.ones_like(divergence)",
        test="tests/algos/test_divergence.py::test_cppo_skips_tool_tokens",
    ),
    # The first token counts itself.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="running = nn.functional.pad(x.cumsum(1)[:, :-1], (1, 0))  # [B, T]",
        new="running = x.cumsum(1)",
        test="tests/algos/test_divergence.py::test_cppo_budget_runs_out_and_recovers",
    ),
    # Sums never begin anew.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="return running - running.gather(1, first)",
        new="return running",
        test="tests/algos/test_divergence.py::test_cppo_turn_scope_restarts_weights_and_budget",
    ),
    # Weights reach w_min one token too late.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="weights = ones * (1 - (1 - w_min) * position / (lengths - 1).clamp(min=1))",
        new="weights = ones * (1 - (1 - w_min) * position / lengths.clamp(min=1))",
        test="tests/algos/test_divergence.py::test_cppo_equals_the_slow_loop",
    ),
    # Weights rise with the position.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="weights = ones * (1 - (1 - w_min) * position / (lengths - 1).clamp(min=1))",
        new="weights = ones * (w_min + (1 - w_min) * position / (lengths - 1).clamp(min=1))",
        test="tests/algos/test_divergence.py::test_cppo_position_weights_by_hand",
    ),
    # Divergences are not weighted.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="drift = weights * divergence",
        new="drift = divergence",
        test="tests/algos/test_divergence.py::test_cppo_position_weights_by_hand",
    ),
    # The budget counts the token itself.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="grown = torch.where(prior > 0, budget * prior, 0)",
        new="grown = budget * (prior + weights)",
        test="tests/algos/test_divergence.py::test_cppo_budget_runs_out_and_recovers",
    ),
    # An infinite budget times no token.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="grown = torch.where(prior > 0, budget * prior, 0)",
        new="grown = budget * prior",
        test="tests/algos/test_divergence.py::test_cppo_without_weights_and_budget_is_dppo",
    ),
    # What was spent is given.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="allowed = (delta + grown - spent).clamp(max=delta)",
        new="allowed = (delta + grown + spent).clamp(max=delta)",
        test="tests/algos/test_divergence.py::test_cppo_budget_runs_out_and_recovers",
    ),
    # The budget raises the token's threshold.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="allowed = (delta + grown - spent).clamp(max=delta)",
        new="allowed = delta + grown - spent",
        test="tests/algos/test_divergence.py::test_cppo_budget_never_raises_the_token_threshold",
    ),
    # A spent budget stops at zero.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="allowed = (delta + grown - spent).clamp(max=delta)",
        new="allowed = (delta + grown - spent).clamp(min=delta / 2, max=delta)",
        test="tests/algos/test_divergence.py::test_cppo_budget_runs_out_and_recovers",
    ),
    # CPPO holds tokens that return.
    Mutation(
        file="stepcredit/algos/divergence.py",
        old="held = _leaving(logprobs, old_logprobs, advantages) & (drift > allowed)",
        new="held = mask & (drift > allowed)",
        test="tests/algos/test_divergence.py::test_cppo_holds_no_token_that_returns",
    ),
    # All tokens weigh alike.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return mask / (lengths * _rows(mask))",
        new="return mask / mask.sum()",
        test="tests/algos/test_weights.py::test_sequence_mean_weighs_rows_alike",
    ),
    # Rows of the mask's full width.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="lengths = mask.sum(1, keepdim=True).clamp(min=1)",
        new="lengths = mask.shape[1]",
        test="tests/algos/test_weights.py::test_sequence_mean_weighs_rows_alike",
    ),
    # Rows without a loss token are counted.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return mask.any(1).sum().clamp(min=1)",
        new="return mask.any(1).sum().clamp(min=len(mask))",
        test="tests/algos/test_weights.py::test_a_row_without_loss_tokens_changes_nothing",
    ),
    # Weights shifted by one token.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return mask / (lengths * _rows(mask))",
        new="return mask.roll(1, 1) / (lengths * _rows(mask))",
        test="tests/algos/test_weights.py::test_sequence_mean_weighs_rows_alike",
    ),
    # Token mean divides by all slots.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return mask / mask.sum().clamp(min=1)",
        new="return mask / mask.numel()",
        test="tests/algos/test_weights.py::test_token_mean_weighs_tokens_alike",
    ),
    # Token mean of each row.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return mask / mask.sum().clamp(min=1)",
        new="return mask / mask.sum(1, keepdim=True).clamp(min=1)",
        test="tests/algos/test_weights.py::test_token_mean_weighs_tokens_alike",
    ),
    # The padded width for the constant.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return sequence_sum(mask) / max_tokens",
        new="return sequence_sum(mask) / min(max_tokens, mask.shape[1])",
        test="tests/algos/test_weights.py::test_constant_forgets_the_lengths",
    ),
    # The constant does not divide by the rows.
    Mutation(
        file="stepcredit/algos/weights.py",
        old="return sequence_sum(mask) / max_tokens",
        new="return mask / max_tokens",
        test="tests/algos/test_weights.py::test_constant_forgets_the_lengths",
    ),
    # k1 has the other sign.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="    return logprobs - ref_logprobs\n",
        new="    return ref_logprobs - logprobs\n",
        test="tests/algos/test_kl.py::test_values_by_hand",
    ),
    # k2 is not halved.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return 0.5 * (logprobs - ref_logprobs) ** 2",
        new="return (logprobs - ref_logprobs) ** 2",
        test="tests/algos/test_kl.py::test_k2_in_the_loss_gives_the_reverse_kl_gradient",
    ),
    # k3 of the forward direction.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return ratio(ref_logprobs, logprobs) - (ref_logprobs - logprobs) - 1",
        new="return ratio(logprobs, ref_logprobs) - (logprobs - ref_logprobs) - 1",
        test="tests/algos/test_kl.py::test_values_by_hand",
    ),
    # k2 in place of k3.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return ratio(ref_logprobs, logprobs) - (ref_logprobs - logprobs) - 1",
        new="return k2(logprobs, ref_logprobs)",
        test="tests/algos/test_kl.py::test_k3_in_the_loss_gives_the_forward_kl_gradient",
    ),
    # k3_plus has the gradient of k3.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="steer = k2(logprobs, ref_logprobs)",
        new="steer = k3(logprobs, ref_logprobs)",
        test="tests/algos/test_kl.py::test_k3_plus_in_the_loss_gives_the_reverse_kl_gradient",
    ),
    # k3_plus has the value of k2.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return k3(logprobs, ref_logprobs).detach() + (steer - steer.detach())",
        new="return steer",
        test="tests/algos/test_kl.py::test_values_by_hand",
    ),
    # k3_plus has both gradients.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return k3(logprobs, ref_logprobs).detach() + (steer - steer.detach())",
        new="return k3(logprobs, ref_logprobs) + (steer - steer.detach())",
        test="tests/algos/test_kl.py::test_k3_plus_in_the_loss_gives_the_reverse_kl_gradient",
    ),
    # The ratio has no gradient.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return kl * ratio(logprobs, old_logprobs)",
        new="return kl * ratio(logprobs, old_logprobs).detach()",
        test="tests/algos/test_kl.py::test_unbiased_values_need_the_gradient_of_the_ratio",
    ),
    # The ratio is upside down.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return kl * ratio(logprobs, old_logprobs)",
        new="return kl * ratio(old_logprobs, logprobs)",
        test="tests/algos/test_kl.py::test_off_policy_values_are_unbiased_under_mu",
    ),
    # The coefficient moves the wrong way.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="return beta * (1 + horizon * error)",
        new="return beta * (1 - horizon * error)",
        test="tests/algos/test_kl.py::test_adapted_coefficient_by_hand",
    ),
    # The error is not bounded.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="error = min(max(kl / target - 1, -0.2), 0.2)",
        new="error = kl / target - 1",
        test="tests/algos/test_kl.py::test_adapted_coefficient_by_hand",
    ),
    # The error is absolute.
    Mutation(
        file="stepcredit/algos/kl.py",
        old="error = min(max(kl / target - 1, -0.2), 0.2)",
        new="error = min(max(kl - target, -0.2), 0.2)",
        test="tests/algos/test_kl.py::test_adapted_coefficient_by_hand",
    ),
    # The smaller value error.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="error = torch.maximum(error, (near - returns) ** 2)",
        new="error = torch.minimum(error, (near - returns) ** 2)",
        test="tests/algos/test_losses.py::test_value_loss_by_hand",
    ),
    # Clipped around the return, not the old value.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="near = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)",
        new="near = returns + (values - returns).clamp(-cliprange_value, cliprange_value)",
        test="tests/algos/test_losses.py::test_value_loss_by_hand",
    ),
    # Not halved.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="return 0.5 * error",
        new="return error",
        test="tests/algos/test_losses.py::test_value_loss_by_hand",
    ),
    # Value tokens that are none.
    Mutation(
        file="stepcredit/algos/losses.py",
        old="values, old_values, returns = (masked(x, value_mask) for x in (values, old_values, returns))",
        new="assert value_mask is not None",
        test="tests/algos/test_losses.py::test_value_loss_ignores_other_tokens",
    ),
]
