"""Monte-Carlo values by replay, against exact enumeration and continuations worked out by hand."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from stepcredit.agents.branch import Branch, continuation_returns
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool, Limits
from stepcredit.envs import Env, RewardSetup, StepReward
from stepcredit.envs.chain import Chain
from stepcredit.envs.doors import Doors
from stepcredit.envs.luck import Luck
from tests.agents.continuations import RENDERER, STOP, Says, go_on, policy, positions, record
from tests.agents.worlds import Ragged, byte_tokenizer


@torch.no_grad()
def exact(
    model: LlamaForCausalLM, env: Any, ids: list[int], said: list[int], max_turn_tokens: int
) -> float:
    """The expected reward still to come, by asking the model once for every possible prefix.

    `env` stands before the turn of which `said` has been said; `ids` are all tokens so far.
    """
    probs = torch.softmax(model(input_ids=torch.tensor([ids])).logits[0, -1].double(), -1)
    total = 0.0
    for token, p in enumerate(probs.tolist()):
        turn = [*said, token]
        if token != STOP and len(turn) < max_turn_tokens:
            total += p * exact(model, env, [*ids, token], turn, max_turn_tokens)
            continue
        unseen = isinstance(env, Luck) and env._digit is None
        for digit in range(10) if unseen else [None]:
            world = copy(env)
            if unseen:
                world._digit = digit
            obs, reward, ended, _, _ = world.step(RENDERER.action(turn)[0])
            value = float(reward)
            if not ended:
                end = [] if token == STOP else [STOP]
                shown = RENDERER.delta([{"role": "user", "content": obs}])
                value += exact(model, world, [*ids, token, *end, *shown], [], max_turn_tokens)
            total += p * value / (10 if unseen else 1)
    return total


@torch.no_grad()
def favourite_digit(env: Env, model: LlamaForCausalLM) -> str:
    """What the model says most readily after the first prompt."""
    obs, _ = env.reset(options={"task": 0})
    ids = RENDERER.prompt([{"role": "user", "content": str(obs)}])
    logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    return max("0123456789", key=lambda digit: float(logits[RENDERER.reply(digit)[0]]))


WORLDS: dict[str, tuple[Callable[[], Any], int]] = {
    "doors": (partial(Doors, turns=2, facts=20), 1),
    "chain": (partial(Chain, steps=2), 2),
    "luck": (partial(Luck, turns=2, facts=20, kappa=16.0, reveal=1), 1),
    "luck shown at once": (partial(Luck, turns=2, facts=20, kappa=16.0, reveal=0), 1),
    "stakes": (partial(Luck, turns=2, facts=20, mode="stakes", reveal=1), 1),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_mean_of_continuations_is_the_exact_value(world: str) -> None:
    plain, max_turn_tokens = WORLDS[world]
    limits = Limits(max_turn_tokens=max_turn_tokens)
    engine = policy(seed=27)
    model: Any = engine.model
    model.lm_head.weight.data *= 2  # surer of itself, so that what it has read matters
    digit = favourite_digit(plain(), model)

    def make_env() -> Env:
        """A world whose answers the policy half knows."""
        env = plain()
        env.facts = replace(env.facts, answers=(digit,) * len(env.facts.answers))
        return env

    values = []
    for t in record(engine, make_env, samples=2, limits=limits):
        branches = [Branch(t, position) for position in positions(t)]
        returns, _ = go_on(engine, make_env, branches, 300, limits=limits)
        for branch, drawn in zip(branches, returns, strict=True):
            env = make_env()
            env.reset(options={"task": t.task, "split": t.split, "chance_seed": t.chance_seed})
            for turn in range(branch.turn):
                env.step(t.messages[2 * turn + 1]["content"])
            ids = t.token_ids[: branch.position].tolist()
            # The reference steps with the whole turn: what the recording had of it is no future.
            inside = t.rewards[: branch.position] * (t.turn_ids[: branch.position] == branch.turn)
            values.append(exact(model, env, ids, branch.begun_ids, max_turn_tokens) - inside.sum())
            error = drawn.std() / np.sqrt(len(drawn))
            assert error < 0.2
            assert drawn.mean() == pytest.approx(values[-1], abs=4 * error + 1e-9)
    assert max(values) - min(values) > 0.1


def test_luck_that_was_shown_stays_and_luck_that_was_not_is_drawn_afresh() -> None:
    make_env = partial(Luck, turns=3, facts=20, kappa=16.0, reveal=1)
    (t,) = record(Says(rest="a"), make_env)
    shown = t.reward_components["luck"]
    assert shown != 0
    first_tokens = [Branch(t, positions(t)[2 * turn]) for turn in range(3)]
    returns, _ = go_on(Says(rest="a"), make_env, first_tokens, 60)
    assert len(np.unique(returns[0].round(9))) == 10
    np.testing.assert_allclose(returns[1:], shown)


class Dealer(Env):
    """Pays a card at the end, from a generator that it was handed at the start."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.deck = self.chance
        return "a", {}

    def step(self, action: str) -> Any:
        return "", float(self.deck.integers(10**6)), True, False, {"outcome": 0.0}


def test_a_generator_that_was_handed_on_is_renewed_too() -> None:
    (t,) = record(Says(rest="a"), Dealer)
    returns, _ = go_on(Says(rest="a"), Dealer, [Branch(t, positions(t)[0])], 5)
    assert len({t.ret, *returns[0]}) == 6


def test_the_policy_reads_exactly_the_recorded_tokens_and_keeps_to_the_turns_limit() -> None:
    renderer = ChatRenderer(byte_tokenizer())
    limits = Limits(max_turn_tokens=5, max_turns=3)
    recorded = record(policy(renderer), Ragged, samples=6, task=3, renderer=renderer, limits=limits)
    branches = [Branch(t, position) for t in recorded for position in positions(t)]
    texts = [renderer.tokenizer.decode(t.token_ids[t.action_mask]) for t in recorded]
    again = [renderer.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert any(
        ids != t.token_ids[t.action_mask].tolist() for ids, t in zip(again, recorded, strict=True)
    ), "encoding the text again must give other tokens"
    says = Says(renderer=renderer)
    _, stats = go_on(says, Ragged, branches, 2, renderer=renderer, limits=limits)
    assert stats["error"] == 0
    first = {row: (ids, most) for row, ids, most, _ in reversed(says.asked)}
    for row, (ids, most) in first.items():
        branch = branches[row // 2]
        t = branch.trajectory
        assert ids == t.token_ids[: branch.position].tolist()
        turn = np.flatnonzero(t.action_mask & (t.turn_ids == t.turn_ids[branch.position]))
        assert most == 5 - (branch.position - turn[0])
    assert len(first) == 2 * len(branches)
    assert len({seed for *_, seed in says.asked}) == len(says.asked)


def test_only_what_is_sampled_afresh_is_counted() -> None:
    make_env = partial(Doors, turns=4, facts=20)
    (t,) = record(Says("00", rest="1"), make_env, limits=Limits(max_turn_tokens=2))
    assert t.turn_cut == [True, False, False, False]
    # Turn 0 after its first 0; turn 3 before and after its digit.
    at = [positions(t)[1], positions(t)[-2], positions(t)[-1]]
    branches = [Branch(t, position) for position in at]
    _, stats = go_on(Says(rest="1"), make_env, branches, 2, limits=Limits(max_turn_tokens=2))
    # "1" where the limit leaves one token, then three turns of "1<e>"; "1<e>"; "1".
    assert stats["policy_tokens"] == 2 * (1 + 3 * 2 + 2 + 1)
    assert stats["turns"] == 2 * (4 + 1 + 1)
    assert stats["cut_turns"] == 2 * (1 + 0 + 1)
    assert (stats["episodes"], stats["ok"], stats["truncated"]) == (6, 6, 0)


def golds(turns: int) -> list[str]:
    """The digits that open task 0's doors."""
    env = Doors(turns=turns, facts=20)
    env.reset(options={"task": 0})
    said = []
    for _ in range(turns):
        said.append(env.gold())
        env.step("a")
    return said


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        # From turn 0, 1, 2 on, always with right digits, after a record of right, wrong, right.
        ("dense", [1.0, 2 / 3, 1 / 3]),
        ("dense@end", [1.0, 1.0, 2 / 3]),
        ("outcome", [1.0, 1.0, 0.0]),
    ],
)
def test_a_set_up_pays_at_the_end_what_was_earned_from_the_start(
    reward: str, expected: list[float]
) -> None:
    right = golds(3)

    def make_env() -> RewardSetup:
        return RewardSetup(Doors(turns=3, facts=20), reward)

    (t,) = record(Says(right[0], "a", right[2]), make_env)
    for turn, value in enumerate(expected):
        branch = Branch(t, positions(t)[2 * turn])
        assert branch.turn == turn
        returns, _ = go_on(Says(*right[turn:]), make_env, [branch])
        assert returns.tolist() == [[pytest.approx(value)]]


def test_inside_a_turn_the_kept_steps_count_for_what_follows_and_are_not_paid_again() -> None:
    make_env = partial(Chain, steps=4)
    env = make_env()
    env.reset(options={"task": 0})
    gold = env.gold()
    slip = gold[0] + ("0" if gold[1] != "0" else "1")
    (t,) = record(Says(slip + gold[2:]), make_env)
    at = positions(t)
    assert t.rewards[at].tolist() == [0.25, 0.0, 0.0, 0.0, 0.25]
    for kept, rest, value in [
        (0, gold, 1.0),
        (1, gold[1:], 0.75),
        (2, gold[2:], 0.25),  # the third digit follows from the slip, and gold is wrong there
        (3, gold[3:], 0.25),
        (3, "a", 0.0),
        (4, "", 0.25),  # the stop token ends the last step
    ]:
        returns, _ = go_on(Says(rest), make_env, [Branch(t, at[kept])])
        assert returns.tolist() == [[pytest.approx(value, abs=1e-12)]], (kept, rest)


class Words(Env):
    """Pays 1 for each "ab" between commas; a word is a step."""

    def step(self, action: str) -> Any:
        spans, start = [], 0
        for word in action.split("+"):
            if word:
                spans.append(StepReward(start, start + len(word), float(word == "ab")))
            start += len(word) + 1
        reward = sum(span.value for span in spans)
        return "", reward, True, False, {"step_rewards": spans, "outcome": 0.0}


def test_what_was_recorded_of_a_step_that_goes_on_is_taken_off() -> None:
    (t,) = record(Says("ab+ab"), Words)
    at = positions(t)
    assert t.rewards[at].tolist() == [0, 1, 0, 0, 0, 1]
    for rest, value in [("", 0.0), ("+ab", 1.0), ("c", -1.0), ("c+ab", 0.0)]:
        returns, _ = go_on(Says(rest), Words, [Branch(t, at[2])])
        assert returns.tolist() == [[value]], rest


def test_a_branch_does_not_depend_on_its_company_and_equal_calls_give_equal_bits() -> None:
    make_env = partial(Luck, turns=3, facts=20, kappa=4.0)
    limits = Limits(max_turn_tokens=2)
    engine = policy()
    recorded = record(engine, make_env, samples=3, limits=limits)
    branches = [Branch(t, position) for t in recorded for position in positions(t)]
    together, _ = go_on(engine, make_env, branches, 7, limits=limits)
    assert together.tobytes() == go_on(engine, make_env, branches, 7, limits=limits)[0].tobytes()
    for row in (0, 4, len(branches) - 1):
        alone, _ = go_on(engine, make_env, branches[row : row + 1], 7, limits=limits)
        assert alone.tolist() == together[row : row + 1].tolist()
    few, _ = go_on(engine, make_env, branches[::-1], 3, limits=limits)
    assert few[::-1].tolist() == together[:, :3].tolist()
    other, _ = go_on(engine, make_env, branches, 7, run_seed=1, limits=limits)
    assert other.tolist() != together.tolist()


def test_a_used_environment_continues_as_a_new_one() -> None:
    make_env = partial(Luck, turns=3, facts=20, kappa=4.0)
    (t,) = record(policy(), make_env, limits=Limits(max_turn_tokens=6))
    pool = EnvPool(make_env)
    branches = [Branch(t, positions(t)[-1])]

    def once() -> list[list[float]]:
        returns, _ = continuation_returns(
            policy(),
            RENDERER,
            pool,
            branches,
            num_continuations=4,
            run_seed=0,
            limits=Limits(max_turn_tokens=6),
        )
        return returns.tolist()

    first = once()
    assert len(pool.idle) == 4
    assert once() == first
    assert len(pool.idle) == 4


def test_a_continuation_that_a_limit_cuts_is_paid_what_it_is_owed() -> None:
    def make_env() -> RewardSetup:
        return RewardSetup(Doors(turns=4, facts=20), "dense@end")

    right = golds(4)
    (t,) = record(Says(*right), make_env, limits=Limits(max_turns=2))
    assert t.stop_reason == "turn_limit"
    branch = Branch(t, positions(t)[2])
    for text, value in ((right[1], 0.5), ("a", 0.25)):
        returns, stats = go_on(Says(text), make_env, [branch], limits=Limits(max_turns=2))
        assert returns.tolist() == [[value]]
        assert stats["truncated"] == 1
