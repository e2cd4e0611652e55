from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from stepcredit.agents.engines.transformers import TransformersEngine
from tests.agents.plans import PLAN, VOCABULARY, flat, histories
from tests.agents.worlds import engine, one_pass_logprobs, tiny

MODEL = tiny()


@settings(max_examples=25)
@given(PLAN, st.sampled_from([1.0, 0.6, 1.7]))
def test_logprobs_are_those_of_a_fresh_forward_pass(plan: Any, temperature: float) -> None:
    for history in histories(engine(MODEL, temperature), plan, seed=5):
        ids, logprobs = flat(history)
        expected = one_pass_logprobs(MODEL, ids, temperature)
        for at, value in logprobs.items():
            assert value == pytest.approx(expected[at], abs=1e-5)


@settings(max_examples=25)
@given(PLAN, st.sampled_from([1.0, 0.6]))
def test_topk_are_the_likeliest_of_a_fresh_forward_pass(plan: Any, temperature: float) -> None:
    for history in histories(engine(MODEL, temperature, topk=4), plan, seed=5):
        ids, _ = flat(history)
        with torch.no_grad():
            logits = MODEL(input_ids=torch.tensor([ids])).logits[0].double() / temperature
        expected = torch.log_softmax(logits, -1)  # [L, V], of the token after each
        at = 0
        for new, c in history:
            at += len(new)
            assert c.topk_ids is not None and c.topk_logprobs is not None
            assert len(c.topk_ids) == len(c.topk_logprobs) == len(c.token_ids)
            for chosen, values in zip(c.topk_ids, c.topk_logprobs, strict=True):
                assert values == pytest.approx(expected[at - 1].topk(4).values.tolist(), abs=1e-5)
                assert values == pytest.approx(expected[at - 1][chosen].tolist(), abs=1e-5)
                assert len(set(chosen)) == 4
                at += 1


def test_what_is_recorded_changes_no_sample() -> None:
    plan = [[([5 + r, 6, 7][: 1 + r % 3], 6)] * 3 for r in range(9)]
    plain, recorded = histories(engine(MODEL), plan, 3), histories(engine(MODEL, topk=4), plan, 3)
    for a, b in zip(chain(*plain), chain(*recorded), strict=True):
        assert replace(b[1], topk_ids=None, topk_logprobs=None) == a[1]
    assert engine(MODEL).sampling == {"engine": "transformers", "temperature": 1.0}
    assert engine(MODEL, topk=4).sampling["topk"] == 4


def test_topk_of_more_tokens_than_there_are_is_all_of_them() -> None:
    made = engine(MODEL, topk=1000)
    (done,) = made.start(1).generate([0], [[7]], [1], [0])
    assert done.topk_ids is not None and done.topk_logprobs is not None
    assert sorted(done.topk_ids[0]) == list(range(VOCABULARY))
    assert np.exp(done.topk_logprobs[0]).sum() == pytest.approx(1)
    assert made.sampling["topk"] == VOCABULARY


@settings(max_examples=25)
@given(PLAN)
def test_a_row_alone_samples_what_it_samples_among_others(plan: Any) -> None:
    together = histories(engine(MODEL), plan, seed=7)
    for r, row in enumerate(plan):
        (alone,) = histories(engine(MODEL), [row], seed=7 + 1000 * r)
        for (_, a), (_, b) in zip(together[r], alone, strict=True):
            assert a.token_ids == b.token_ids
            assert a.finish_reason == b.finish_reason
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 0], [2, 1, 0]])
def test_rows_may_be_named_in_any_order(order: list[int]) -> None:
    new = [[5, 6, 7], [8], [9, 5]]
    asked, mixed = engine(MODEL).start(3), engine(MODEL).start(3)
    for _ in range(2):
        rows = sorted(order)
        told = asked.generate(rows, [new[r] for r in rows], [4] * len(rows), rows)
        got = mixed.generate(order, [new[r] for r in order], [4] * len(order), order)
        for row, one in zip(order, got, strict=True):
            other = told[rows.index(row)]
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_same_call_twice_is_equal_to_the_bit() -> None:
    plan = [[([5 + r, 6, 7][: 1 + r % 3], 6)] * 3 for r in range(9)]
    assert histories(engine(MODEL), plan, 3) == histories(engine(MODEL), plan, 3)
    assert histories(engine(MODEL), plan, 3) != histories(engine(MODEL), plan, 4)


def test_no_token_is_read_twice() -> None:
    read = []
    handle = MODEL.model.embed_tokens.register_forward_hook(
        lambda _m, args, _out: read.append(args[0].numel())
    )
    try:
        # Equal lengths, so that no padding is counted.
        history = histories(engine(MODEL), [[([5, 6, 7], 1)] * 4] * 3, seed=0)
    finally:
        handle.remove()
    tokens = sum(len(flat(row)[0]) for row in history)
    assert sum(read) == tokens - len(history)  # each row's last sampled token waits


def test_turns_end_at_the_stop_token_or_at_the_limit() -> None:
    history = histories(engine(MODEL), [[([5], 6)] * 4 for _ in range(40)], seed=0)
    completions = [c for row in history for _, c in row]
    stop = engine(MODEL).stop_id
    reasons = {c.finish_reason for c in completions}
    assert reasons == {"stop", "length"}
    for c in completions:
        assert (c.token_ids[-1] == stop) == (c.finish_reason == "stop")
        assert stop not in c.token_ids[:-1]
        assert c.finish_reason == "stop" or len(c.token_ids) == 6


def test_samples_follow_the_models_distribution() -> None:
    count = 4000
    done = (
        engine(MODEL, 0.8)
        .start(count)
        .generate(range(count), [[7, 8]] * count, [1] * count, list(range(count)))
    )
    with torch.no_grad():
        logits = MODEL(input_ids=torch.tensor([[7, 8]])).logits[0, -1]
    expected = torch.softmax(logits / 0.8, -1).numpy()
    found = np.bincount([c.token_ids[0] for c in done], minlength=VOCABULARY) / count
    deviation = np.abs(found - expected) / np.sqrt(expected * (1 - expected) / count)
    assert deviation.max() < 4.5


def test_temperature_zero_takes_the_mode() -> None:
    (done,) = engine(MODEL, 0.0).start(1).generate([0], [[7, 8]], [1], [0])
    with torch.no_grad():
        assert done.token_ids == [
            int(MODEL(input_ids=torch.tensor([[7, 8]])).logits[0, -1].argmax())
        ]
    assert done.logprobs == [0.0]


def test_completions_carry_the_version_of_the_weights() -> None:
    made = engine(MODEL)
    made.update_weights(12)
    (done,) = made.start(1).generate([0], [[7]], [1], [0])
    assert done.policy_version == 12


def test_a_model_in_training_mode_is_sampled_without_dropout_and_left_in_it() -> None:
    model = tiny().train()
    engine(model).start(1).generate([0], [[7]], [2], [0])
    assert model.training


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_grouped_heads_and_other_models_are_exact_too(attention: str) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    plan = [[([5, 6, 7, 8][: 1 + r], 4)] * (1 + r) for r in range(4)]
    for history in histories(TransformersEngine(model, stop_id=4), plan, seed=5):
        ids, logprobs = flat(history)
        expected = one_pass_logprobs(model, ids, 1.0)
        assert all(p == pytest.approx(expected[at], abs=1e-5) for at, p in logprobs.items())
