"""The reward set-ups on whole episodes: one structure of steps, other values."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcredit.agents.engines.base import Completion
from stepcredit.agents.episode import Episode, TaskSpec, step_env
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.trajectory import Trajectory
from stepcredit.envs import REWARDS, RewardSetup, StepReward
from tests.agents.worlds import TEXTS, Scripted, byte_tokenizer

Turn = tuple[str, bool, list[StepReward] | None, float]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """An action, whether it said its stop token, its judged spans, and what they leave over."""
    text = draw(st.one_of(st.sampled_from(TEXTS), st.text(max_size=10)))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = [
        StepReward(a, b, draw(st.sampled_from([0.0, 1.0, -0.25, 0.1])))
        for a, b in itertools.pairwise(cuts)
        if draw(st.booleans())
    ]
    left_over = draw(st.sampled_from([0.0, 0.0, 0.7, -1.0, 1e-13]))
    ended = draw(st.booleans()) or not text
    return text, ended, draw(st.sampled_from([spans, spans, None])), left_over


def played(script: list[Turn], reward: str, ending: str, outcome: float) -> Trajectory:
    """The episode of these turns under a set-up; `ending` says who ends it."""

    def answer(env: Any, action: str) -> Any:
        _, _, spans, left_over = script[env.turn - 1]
        value = math.fsum(span.value for span in spans or ()) + left_over
        last = env.turn == len(script)
        info: dict[str, Any] = {} if spans is None else {"step_rewards": spans}
        if last and ending != "cut":
            info["outcome"] = outcome
        return "a", value, last and ending == "env", last and ending == "limit", info

    renderer = ChatRenderer(byte_tokenizer())
    env = RewardSetup(Scripted(answer), reward)
    env.reset()
    episode = Episode(
        spec=TaskSpec(group_id="g", task=0),
        sample_id=0,
        env_id="x",
        env=env,
        seed=0,
        chance_seed=0,
        sampling={},
    )
    for text, ended, _, _ in script:
        ids = renderer.reply(text) if ended else renderer.reply(text)[:-1]
        text, spans = renderer.action(ids)
        episode.read([0])
        episode.say(
            Completion(
                token_ids=ids,
                logprobs=[0.0] * len(ids),
                finish_reason="stop" if ended else "length",
                policy_version=0,
            ),
            text,
        )
        episode.judge(step_env(episode, text), spans, len(text))
    if ending == "cut":
        episode.cut("turn_limit")
    return episode.trajectory()


@given(
    st.lists(turns(), min_size=1, max_size=3),
    st.sampled_from(["env", "limit", "cut"]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_set_ups_share_the_steps_and_pay_what_they_say(
    script: list[Turn], ending: str, outcome: float
) -> None:
    by_name = {reward: played(script, reward, ending, outcome) for reward in REWARDS}
    dense = by_name["dense"]
    own = math.fsum(s.value for t in script for s in t[2] or ()) + math.fsum(t[3] for t in script)
    totals = {
        "dense": own,
        "dense@end": own,
        "outcome": float(outcome == 1.0 and ending != "cut"),
    }
    for reward, t in by_name.items():
        assert t.step_ids.tolist() == dense.step_ids.tolist()
        assert t.step_end.tolist() == dense.step_end.tolist()
        assert t.env_rewards.tolist() == dense.env_rewards.tolist()
        assert t.ret == pytest.approx(totals[reward], abs=1e-9)
        assert t.reward_components[reward] == pytest.approx(totals[reward], abs=1e-9)
        assert ((t.rewards != 0) <= t.step_end).all()
        assert ((t.env_rewards != 0) <= t.step_end).all()
        if reward != "dense":
            assert not t.rewards[: t.step_end.nonzero()[0][-1]].any()


def test_a_left_over_makes_the_end_of_a_turn_a_step_and_none_does_not() -> None:
    for left_over, steps in ((0.5, [-1, 0, 1, 1]), (0.0, [-1, 0, -1, -1])):
        script: list[Turn] = [("abc", True, [StepReward(0, 1, 0.25)], left_over)]
        for reward, paid in (("dense", 0.25), ("dense@end", 0.0), ("outcome", 0.0)):
            t = played(script, reward, "env", 1.0)
            assert t.step_ids.tolist() == steps
            if left_over:
                assert t.rewards.tolist()[1:3] == [paid, 0.0]
        assert played(script, "dense@end", "env", 1.0).rewards.max() == 0.25 + left_over


def test_what_a_cut_episode_is_owed_makes_no_step() -> None:
    script: list[Turn] = [("abc", True, [StepReward(0, 1, 0.25)], 0.0)] * 2
    for reward, paid in (("dense", [0.25, 0.25]), ("dense@end", [0.0, 0.5]), ("outcome", [0, 0])):
        t = played(script, reward, "cut", 0.0)
        assert t.step_ids[t.step_ids >= 0].tolist() == [0, 1]
        assert t.rewards[t.step_end].tolist() == paid


def test_rounding_is_no_left_over_however_large_the_rewards_are() -> None:
    for size in (1.0, 1e9):
        spans = [StepReward(0, 1, 0.1 * size), StepReward(1, 2, 0.2 * size)]
        script: list[Turn] = [("abc", True, spans, 1e-12 * size)]
        for reward in REWARDS:
            # "ab" is one token here, and with it the two spans are one step.
            assert played(script, reward, "env", 1.0).step_ids.tolist() == [-1, 0, -1, -1]
