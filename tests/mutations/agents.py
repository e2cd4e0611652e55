"""Faults in the formulas of `stepcredit/agents`."""

from tests.mutations.mutation import Mutation

AGENTS = [
    # Log-probabilities are not shifted.
    Mutation(
        "stepcredit/agents/logprobs.py",
        "nn.functional.pad(outputs, (1, 0))",
        "nn.functional.pad(outputs, (0, 1))",
        "tests/agents/test_logprobs.py::test_position_t_speaks_of_token_t_given_what_precedes_it",
    ),
    # Values are not shifted.
    Mutation(
        "stepcredit/agents/logprobs.py",
        "nn.functional.pad(outputs, (1, 0))",
        "nn.functional.pad(outputs, (0, 1))",
        "tests/agents/test_logprobs.py::test_values_are_those_of_the_state_before_the_token",
    ),
    # The trainer forgets the temperature.
    Mutation(
        "stepcredit/agents/logprobs.py",
        "logits.float() / temperature",
        "logits.float()",
        "tests/agents/test_logprobs.py::test_entropy_is_that_of_the_distribution_the_token_was_drawn_from",
    ),
    # The likeliest tokens are looked up in the place of the token before.
    Mutation(
        "stepcredit/agents/logprobs.py",
        "topk_ids[:, 1:]",
        "topk_ids[:, :-1]",
        "tests/agents/test_logprobs.py::test_topk_speaks_of_the_named_tokens_in_the_place_of_token_t",
    ),
    # A mix is read one token early.
    Mutation(
        "stepcredit/agents/logprobs.py",
        "mix_ids[:, :-1], mix_weights[:, :-1]",
        "mix_ids[:, 1:], mix_weights[:, 1:]",
        "tests/agents/test_logprobs.py::test_a_mixed_token_is_read_as_the_mix_of_embeddings",
    ),
    # The trainer reads every token as itself.
    Mutation(
        "stepcredit/agents/logprobs.py",
        'shown = {"inputs_embeds": embeds}',
        "assert len(embeds)",
        "tests/agents/test_mixing.py::test_the_trainer_reads_what_the_rollout_read",
    ),
    # The weights of a mix are not those that were recorded.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "(mix_weights[mixed].unsqueeze(-1) * parts.float()).sum(-2)",
        "parts.float().mean(-2)",
        "tests/agents/test_logprobs.py::test_a_mixed_token_is_read_as_the_mix_of_embeddings",
    ),
    # Neighbours by inner product.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "nearness = products / norms.clamp_min(torch.finfo(norms.dtype).tiny)",
        "nearness = products",
        "tests/agents/test_mixing.py::test_neighbours_are_the_nearest_by_cosine",
    ),
    # Neighbours by distance.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "nearness = products / norms.clamp_min(torch.finfo(norms.dtype).tiny)",
        "nearness = 2 * products - norms**2",
        "tests/agents/test_mixing.py::test_neighbours_are_the_nearest_by_cosine",
    ),
    # A row that points the same way takes the place of the likeliest token.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "nearness.scatter(-1, anchors, torch.inf)",
        "nearness",
        "tests/agents/test_mixing.py::test_the_likeliest_token_comes_first_among_rows_that_point_the_same_way",
    ),
    # The weights of a mix do not sum to 1.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "torch.softmax(logp.gather(-1, ids), dim=-1)",
        "logp.gather(-1, ids).exp()",
        "tests/agents/test_mixing.py::test_neighbours_are_the_nearest_by_cosine",
    ),
    # The last token of a turn is mixed too.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "goes_on & (self.coins[live, t] < self.mixing.rate)",
        "self.coins[live, t] < self.mixing.rate",
        "tests/agents/test_mixing.py::test_a_turns_last_token_and_what_is_not_sampled_are_never_mixed",
    ),
    # The coin of another row.
    Mutation(
        "stepcredit/agents/engines/mixing.py",
        "self.coins[live, t]",
        "self.coins[: len(live), t]",
        "tests/agents/test_mixing.py::test_rows_are_those_of_a_slow_sampler",
    ),
    # The coin is the number that drew the token.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "uniforms(seeds, most, stream=1)",
        "uniforms(seeds, most)",
        "tests/agents/test_mixing.py::test_rows_are_those_of_a_slow_sampler",
    ),
    # The mix is recorded and not read.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "mix = mix_ids[on], mix_weights[on]",
        "mix = mix_ids[on], 0 * mix_weights[on]",
        "tests/agents/test_mixing.py::test_rows_are_those_of_a_slow_sampler",
    ),
    # The least likely tokens.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "logp.topk(self.engine.topk, dim=-1)",
        "logp.topk(self.engine.topk, dim=-1, largest=False)",
        "tests/agents/test_engine.py::test_topk_are_the_likeliest_of_a_fresh_forward_pass",
    ),
    # What is recorded of sampled tokens walks on to prompts and observations.
    Mutation(
        "stepcredit/agents/episode.py",
        "self.completions.append((len(self.token_ids), completion))",
        "self.completions.append((sum(self.action_mask), completion))",
        "tests/agents/test_mixing.py::test_a_turns_last_token_and_what_is_not_sampled_are_never_mixed",
    ),
    # The stop token is in no step.
    Mutation(
        "stepcredit/agents/placement.py",
        "(start < spans[number].end or start == length == spans[number].end)",
        "start < spans[number].end",
        "tests/agents/test_placement.py::test_the_stop_token_joins_a_span_that_reaches_the_end",
    ),
    # A span without a token forgets its step's other value.
    Mutation(
        "stepcredit/agents/placement.py",
        "value[owner[cover]] = value.get(owner[cover], 0.0) + span.value",
        "value[owner[cover]] = span.value",
        "tests/agents/test_placement.py::test_a_span_without_a_token_joins_the_token_that_covers_it",
    ),
    # What the spans leave over is lost.
    Mutation(
        "stepcredit/agents/placement.py",
        "if rest:",
        "if rest < 0:",
        "tests/agents/test_placement.py::test_what_is_left_over_becomes_a_step_of_the_unjudged_tail",
    ),
    # A step that pays nothing is no step.
    Mutation(
        "stepcredit/agents/placement.py",
        "ends = [last.get(step) == i for i, step in enumerate(owner)]",
        "ends = [last.get(step) == i and value[step] != 0 for i, step in enumerate(owner)]",
        "tests/agents/test_placement.py::test_a_zero_reward_step_is_a_step",
    ),
    # A byte of an emoji moves to the next character.
    Mutation(
        "stepcredit/agents/render.py",
        "start = done - 1 if same else done",
        "start = done",
        "tests/agents/test_render.py::test_a_cut_inside_an_emoji_keeps_its_bytes_on_one_character",
    ),
    # A token sees the one after it.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "(sight <= positions[:, :, None] + 1)",
        "(sight <= positions[:, :, None] + 2)",
        "tests/agents/test_engine.py::test_logprobs_are_those_of_a_fresh_forward_pass",
    ),
    # Every token sees the scratch column.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "((sight > 0) | is_padding[:, :, None])",
        "(sight >= 0)",
        "tests/agents/test_engine.py::test_logprobs_are_those_of_a_fresh_forward_pass",
    ),
    # Positions count the padding.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "np.maximum(self.cached[rows, None] + offsets, 0)",
        "np.maximum(self.cached[rows, None] + offsets + padding[:, None], 0)",
        "tests/agents/test_engine.py::test_logprobs_are_those_of_a_fresh_forward_pass",
    ),
    # The rollout forgets the temperature.
    Mutation(
        "stepcredit/agents/engines/draw.py",
        "logits.float() / temperature",
        "logits.float()",
        "tests/agents/test_engine.py::test_samples_follow_the_models_distribution",
    ),
    # A cut turn is left open.
    Mutation(
        "stepcredit/agents/rollout.py",
        "end = [renderer.stop_id] if episode.turn_cut[-1] else []",
        "end: list[int] = []",
        "tests/agents/test_rollout.py::test_a_cut_turn_is_stepped_and_closed_with_an_unsampled_stop_token",
    ),
    # Siblings share their chance.
    Mutation(
        "stepcredit/agents/rollout.py",
        'derive_seed("chance", run_seed, spec.group_id, sample)',
        'derive_seed("chance", run_seed, spec.group_id)',
        "tests/agents/test_rollout.py::test_siblings_meet_the_same_task_with_a_chance_each",
    ),
    # An episode that is cut short is not paid.
    Mutation(
        "stepcredit/agents/episode.py",
        "owed=owed.get(reward_setup(self.env), 0.0)",
        "owed=0.0",
        "tests/agents/test_rollout.py::test_an_episode_cut_by_the_rollout_is_paid_what_it_earned",
    ),
    # What a cut episode is owed makes a step of its own.
    Mutation(
        "stepcredit/agents/episode.py",
        "judged[-1] = replace(judged[-1], value=judged[-1].value + owed)",
        "judged[-1] = replace(judged[-1])",
        "tests/agents/test_set_ups.py::test_what_a_cut_episode_is_owed_makes_no_step",
    ),
    # Every turn counts its steps from 0.
    Mutation(
        "stepcredit/agents/episode.py",
        "s if s == UNJUDGED else s + first",
        "s",
        "tests/agents/test_rollout.py::test_arrays_agree_about_turns_steps_and_rewards",
    ),
    # All rows of a session are taken to stand in their order.
    Mutation(
        "stepcredit/agents/engines/transformers.py",
        "everything = np.array_equal(rows, np.arange(self.num_rows))",
        "everything = len(rows) == self.num_rows",
        "tests/agents/test_engine.py::test_rows_may_be_named_in_any_order",
    ),
    # The loss covers the prompt.
    Mutation(
        "stepcredit/agents/sft.py",
        "loss = -(logprobs * actions).sum() / actions.sum()",
        "loss = -(logprobs * mask).sum() / mask.sum()",
        "tests/agents/test_sft.py::test_the_loss_is_that_of_the_action_tokens_stop_token_included",
    ),
    # What an environment showed when it cut an episode off is not read.
    Mutation(
        file="stepcredit/agents/rollout.py",
        old="if episode.stop_reason == CUT_OFF and fits:",
        new="if False:",
        test="tests/agents/test_rollout.py::test_an_environments_own_truncation_is_told_apart",
    ),
]
