from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from stepcredit.agents.engines.base import Completion, Mixing
from stepcredit.agents.engines.mixing import neighbours
from stepcredit.agents.errors import AgentError
from stepcredit.agents.logprobs import token_logprobs
from stepcredit.agents.trajectory import Trajectory
from tests.agents.plans import PLAN, VOCABULARY, histories
from tests.agents.worlds import Ragged, engine, play, tiny

MODEL = tiny()
STOP = engine(MODEL).stop_id
RAGGED_PLAN = [[([5 + r, 6, 7][: 1 + (r + n) % 3], 2 + 3 * n) for n in range(3)] for r in range(9)]


def mixed(completion: Completion) -> tuple[list[list[int]], list[list[float]]]:
    assert completion.mix_ids is not None and completion.mix_weights is not None
    assert len(completion.mix_ids) == len(completion.mix_weights) == len(completion.token_ids)
    return completion.mix_ids, completion.mix_weights


def test_neighbours_are_the_nearest_by_cosine() -> None:
    # To (1, 0): by inner product the nearest is (90, 90), by distance (1, 0.5), by cosine (10, 1).
    embeddings = torch.tensor([[-1.0, 0], [90, 90], [1, 0.5], [1, 0], [10, 1]])
    logp = torch.tensor([[0.0, 0, 0, 0.6, 0.1], [0.1, 0.2, 0.3, 0.6, 0.1]]).log()
    ids, weights = neighbours(logp, embeddings, embeddings.norm(dim=-1), 3)
    assert ids.tolist() == [[3, 4, 2], [3, 4, 2]]
    assert weights[0].tolist() == pytest.approx([6 / 7, 1 / 7, 0])
    assert weights[1].tolist() == pytest.approx([0.6, 0.1, 0.3])


def test_the_likeliest_token_comes_first_among_rows_that_point_the_same_way() -> None:
    embeddings = torch.tensor([[2.0, 0], [1, 0], [3, 0], [0, 0]])
    for anchor in range(4):
        logp = torch.zeros(1, 4).scatter(1, torch.tensor([[anchor]]), 1.0)
        ids, weights = neighbours(logp, embeddings, embeddings.norm(dim=-1), 1)
        assert ids.tolist() == [[anchor]]
        assert weights.tolist() == [[1.0]]


@torch.no_grad()
def slow_row(
    turns: list[tuple[list[int], int]], mixing: Mixing, temperature: float, seed: int
) -> list[Completion]:
    """One row, sampled by a whole forward pass for every token, the mixes made one by one."""
    table = MODEL.model.embed_tokens.weight
    read: list[torch.Tensor] = []
    done = []
    for number, (new, most) in enumerate(turns):
        read += [table[token] for token in new]
        uniforms = np.random.Generator(np.random.Philox(key=[seed + number, 0])).random(most)
        coins = np.random.Generator(np.random.Philox(key=[seed + number, 1])).random(most)
        said = Completion(
            token_ids=[],
            logprobs=[],
            finish_reason="length",
            policy_version=0,
            mix_ids=[],
            mix_weights=[],
        )
        ids, weights = mixed(said)
        for u, coin in zip(uniforms, coins, strict=True):
            logits = MODEL(inputs_embeds=torch.stack(read)[None]).logits[0, -1] / temperature
            p = torch.softmax(logits.double(), -1)
            token = int((p.cumsum(-1) <= u).sum())
            said.token_ids.append(token)
            said.logprobs.append(float(p[token].log()))
            last = token == STOP or len(said.token_ids) == most
            if coin < mixing.rate and not last:
                anchor = int(logits.argmax())
                near = [float(torch.cosine_similarity(table[anchor], row, dim=0)) for row in table]
                order = sorted(range(len(table)), key=lambda c: -near[c])[: mixing.k]
                alpha = torch.softmax(logits[order], -1)
                read.append(sum(a * table[c] for a, c in zip(alpha, order, strict=True)))
                ids.append(order)
                weights.append(alpha.tolist())
            else:
                read.append(table[token])
                ids.append([0] * mixing.k)
                weights.append([0.0] * mixing.k)
            if last:
                break
        done.append(replace(said, finish_reason="stop" if said.token_ids[-1] == STOP else "length"))
    return done


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("mixing", [Mixing(0.0, 2), Mixing(0.4, 3), Mixing(1.0, 1)])
def test_rows_are_those_of_a_slow_sampler(mixing: Mixing, temperature: float) -> None:
    made = engine(MODEL, temperature, mixing=mixing)
    for r, row in enumerate(histories(made, RAGGED_PLAN, seed=11)):
        slow = slow_row(RAGGED_PLAN[r], mixing, temperature, 11 + 1000 * r)
        for (_, fast), expected in zip(row, slow, strict=True):
            assert fast.token_ids == expected.token_ids
            assert fast.finish_reason == expected.finish_reason
            assert fast.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
            if mixing.rate:
                for ours, theirs in zip(mixed(fast), mixed(expected), strict=True):
                    assert np.array(ours) == pytest.approx(np.array(theirs), abs=1e-5)


@settings(max_examples=10)
@given(PLAN)
def test_a_row_alone_is_mixed_as_it_is_among_others(plan: Any) -> None:
    made = engine(MODEL, mixing=Mixing(0.5, 3))
    together = histories(made, plan, seed=7)
    for r, row in enumerate(plan):
        (alone,) = histories(made, [row], seed=7 + 1000 * r)
        for (_, a), (_, b) in zip(together[r], alone, strict=True):
            assert a.token_ids == b.token_ids
            assert a.mix_ids == b.mix_ids
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            assert np.array(a.mix_weights) == pytest.approx(np.array(b.mix_weights), abs=1e-5)


@pytest.mark.parametrize("mixing", [Mixing(0.0, 3), Mixing(0.5, 0)])
def test_a_rate_or_k_of_zero_mixes_nothing(mixing: Mixing) -> None:
    off, plain = engine(MODEL, mixing=mixing), engine(MODEL)
    assert histories(off, RAGGED_PLAN, 3) == histories(plain, RAGGED_PLAN, 3)
    assert off.sampling == plain.sampling


def test_the_rate_is_the_share_of_mixed_tokens() -> None:
    made = engine(MODEL, mixing=Mixing(0.3, 2))
    done = made.start(400).generate(range(400), [[7, 8]] * 400, [16] * 400, list(range(400)))
    flags = np.concatenate([np.sum(mixed(c)[1], -1)[:-1] > 0 for c in done])
    assert abs(flags.mean() - 0.3) < 4.5 * np.sqrt(0.3 * 0.7 / len(flags))
    assert made.sampling["mixing"] == {"rate": 0.3, "k": 2}


@pytest.mark.parametrize("mixing", [Mixing(1.5, 3), Mixing(-0.1, 3), Mixing(0.1, VOCABULARY + 1)])
def test_impossible_mixing_is_refused(mixing: Mixing) -> None:
    expected = rf"rate must lie in \[0, 1\] and k in \[0, {VOCABULARY}\]"
    with pytest.raises(AgentError, match=expected):
        engine(MODEL, mixing=mixing)


def episodes(**kwargs: Any) -> list[Trajectory]:
    groups, _ = play(Ragged, model=MODEL, **kwargs)
    return [t for group in groups for t in group.trajectories]


def read_again(t: Trajectory, temperature: float, *, mix: bool) -> Any:
    def row(column: Any) -> Any:
        return torch.from_numpy(column.astype(np.int64 if column.dtype == np.int32 else None))[None]

    ids = row(t.token_ids)
    kwargs = {"mix_ids": row(t.mix_ids), "mix_weights": row(t.mix_weights)} if mix else {}
    with torch.no_grad():
        return token_logprobs(
            MODEL, ids, torch.ones_like(ids), temperature, topk_ids=row(t.topk_ids), **kwargs
        )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_trainer_reads_what_the_rollout_read(temperature: float) -> None:
    for t in episodes(temperature=temperature, topk=4, mixing=Mixing(1.0, 3)):
        acts = t.action_mask
        rebuilt = read_again(t, temperature, mix=True)
        assert np.abs(rebuilt.logprobs[0].numpy() - t.logprobs)[acts].max() < 1e-4
        assert np.abs(rebuilt.topk_logprobs[0].numpy() - t.topk_logprobs)[acts].max() < 1e-4
        plain = read_again(t, temperature, mix=False).logprobs[0].numpy()
        after = np.flatnonzero(t.mix_weights.sum(-1))[:1] + 1  # what follows the first mixed token
        assert (np.abs(plain - t.logprobs)[after] > 1e-4).all()


def test_a_turns_last_token_and_what_is_not_sampled_are_never_mixed() -> None:
    lengths = set()
    for t in episodes(topk=4, mixing=Mixing(1.0, 3)):
        total = t.mix_weights.sum(-1)  # [L]
        for turn in range(len(t.turn_cut)):
            places = np.flatnonzero(t.action_mask & (t.turn_ids == turn))
            lengths.add((len(places), t.turn_cut[turn]))
            assert total[places[:-1]] == pytest.approx(1, abs=1e-6)
            assert total[places[-1]] == 0
        for column in (t.mix_ids, t.mix_weights, t.topk_ids, t.topk_logprobs):
            assert column.dtype in (np.int32, np.float32)
            assert not column[~t.action_mask].any()
        assert (t.topk_logprobs[t.action_mask] < 0).all()
    assert {(6, True), (2, False)} <= lengths  # turns that were cut, and turns that stopped


def test_columns_that_nobody_recorded_are_none() -> None:
    (first, *_) = episodes()
    assert first.topk_ids is first.topk_logprobs is first.mix_ids is first.mix_weights is None
