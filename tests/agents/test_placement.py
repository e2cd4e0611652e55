import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcredit.agents.errors import SpanError
from stepcredit.agents.placement import place_rewards
from stepcredit.agents.render import ChatRenderer
from stepcredit.envs import StepReward
from tests.agents.worlds import TEXTS, byte_tokenizer

CHARS = [(0, 1), (1, 2), (2, 3), (3, 4)]
STOP = [*CHARS, (4, 4)]


def placed(tokens: list, length: int, reward: float, *spans: tuple) -> tuple:
    found = place_rewards(tokens, length, reward, [StepReward(*s) for s in spans])
    assert found.step_end.count(True) == len(set(found.steps) - {-1})
    return found.steps, [i for i, end in enumerate(found.step_end) if end], found.rewards


def test_without_spans_the_turn_is_one_step() -> None:
    assert placed(STOP, 4, 2.0) == ([0] * 5, [4], [0, 0, 0, 0, 2.0])
    assert placed([(0, 0)], 0, 0.0) == ([0], [0], [0.0])


def test_the_stop_token_joins_a_span_that_reaches_the_end() -> None:
    assert placed(STOP, 4, 3.0, (0, 2, 1.0), (2, 4, 2.0)) == (
        [0, 0, 1, 1, 1],
        [1, 4],
        [0, 1.0, 0, 0, 2.0],
    )
    assert placed(CHARS, 4, 3.0, (0, 2, 1.0), (2, 4, 2.0)) == ([0, 0, 1, 1], [1, 3], [0, 1, 0, 2])


def test_the_stop_token_is_unjudged_behind_a_shorter_span() -> None:
    assert placed(STOP, 4, 1.0, (1, 3, 1.0)) == ([-1, 0, 0, -1, -1], [2], [0, 0, 1.0, 0, 0])


def test_what_is_left_over_becomes_a_step_of_the_unjudged_tail() -> None:
    assert placed(STOP, 4, 1.5, (1, 3, 1.0)) == ([-1, 0, 0, 1, 1], [2, 4], [0, 0, 1.0, 0, 0.5])


def test_what_is_left_over_joins_the_step_of_the_last_token() -> None:
    assert placed(STOP, 4, 1.5, (1, 4, 1.0)) == ([-1, 0, 0, 0, 0], [4], [0, 0, 0, 0, 1.5])


def test_a_zero_reward_step_is_a_step() -> None:
    assert placed(STOP, 4, 0.0, (0, 1, 0.0), (1, 4, 0.0)) == ([0, 1, 1, 1, 1], [0, 4], [0.0] * 5)


def test_a_span_without_a_token_joins_the_token_that_covers_it() -> None:
    tokens = [(0, 3), (3, 4), (4, 4)]
    assert placed(tokens, 4, 7.0, (0, 1, 1.0), (1, 2, 2.0), (3, 4, 4.0)) == (
        [0, 1, 1],
        [0, 2],
        [3.0, 0, 4.0],
    )
    # No span holds the covering token: it is judged by the two that lie inside it.
    assert placed(tokens, 4, 3.0, (1, 2, 1.0), (2, 3, 2.0)) == ([0, -1, -1], [0], [3.0, 0, 0])


def test_spans_are_taken_in_order_of_their_place() -> None:
    assert placed(CHARS, 4, 3.0, (2, 4, 2.0), (0, 2, 1.0))[0] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 2, 1.0), (1, 3, 1.0)], "overlaps"),
        ([(1, 1, 1.0)], "non-empty range inside the action of 4"),
        ([(3, 5, 1.0)], "non-empty range inside the action of 4"),
        ([(-1, 2, 1.0)], "non-empty range"),
        ([(0, 1, math.nan)], "finite"),
    ],
)
def test_spans_that_do_not_fit_are_refused(spans: list, message: str) -> None:
    with pytest.raises(SpanError, match=message):
        placed(STOP, 4, 1.0, *spans)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(SpanError, match="reward=nan"):
        placed(STOP, 4, math.nan)


@st.composite
def judged_turns(draw: st.DrawFn) -> tuple[str, bool, list[StepReward], float]:
    text = draw(st.one_of(st.sampled_from(TEXTS), st.text(min_size=0, max_size=12)))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))
    spans = [
        StepReward(a, b, draw(st.sampled_from([0.0, 1.0, -0.25, 0.1])))
        for a, b in itertools.pairwise(cuts)
        if draw(st.booleans())
    ]
    return text, draw(st.booleans()) or not text, spans, draw(st.sampled_from([0.0, 0.7, -1.0]))


@given(judged_turns())
def test_on_real_tokens_every_reward_arrives_where_its_step_ends(turn: tuple) -> None:
    text, ended, spans, left_over = turn
    renderer = ChatRenderer(byte_tokenizer())
    ids = renderer.reply(text) if ended else renderer.reply(text)[:-1]
    _, tokens = renderer.action(ids)
    reward = sum(span.value for span in spans) + left_over
    found = place_rewards(tokens, len(text), reward, spans)
    assert len(found.steps) == len(found.step_end) == len(found.rewards) == len(ids)
    assert math.isclose(sum(found.rewards), reward, abs_tol=1e-9)
    for i, (step, end, value) in enumerate(
        zip(found.steps, found.step_end, found.rewards, strict=True)
    ):
        assert end == (step >= 0 and step not in found.steps[i + 1 :])
        assert value == 0 or end
    judged = [step for step in found.steps if step >= 0]
    assert judged == sorted(judged)
    assert set(judged) == set(range(len(set(judged))))
    # Spans with a first character in them keep a step of their own, with exactly their value.
    starts = [start for start, _ in tokens]
    for span in spans:
        inside = [i for i, s in enumerate(starts) if span.start <= s < span.end]
        if inside:
            assert len({found.steps[i] for i in inside}) == 1
            assert found.steps[inside[0]] >= 0
