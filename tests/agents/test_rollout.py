import threading
import time
from dataclasses import fields
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from stepcredit.agents.episode import TaskSpec
from stepcredit.agents.errors import AgentError, RolloutError
from stepcredit.agents.rollout import EnvPool, Limits, rollout
from stepcredit.agents.trajectory import Trajectory
from stepcredit.envs import RewardSetup
from tests.agents.worlds import (
    Ragged,
    Scripted,
    char_renderer,
    ending_after,
    engine,
    members,
    one_pass_logprobs,
    play,
    raises,
    tasks,
    tiny,
)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_stored_logprobs_are_those_of_one_fresh_forward_pass(temperature: float) -> None:
    model = tiny()
    groups, _ = play(Ragged, num_tasks=4, num_generations=6, temperature=temperature, model=model)
    seen = members(groups)
    assert len({len(t.turn_cut) for t in seen}) > 2, "rows must finish at different turns"
    assert any(any(t.turn_cut) for t in seen)
    assert any(not all(t.turn_cut) for t in seen)
    for t in seen:
        expected = np.array(one_pass_logprobs(model, t.token_ids, temperature))
        np.testing.assert_allclose(t.logprobs[t.action_mask], expected[t.action_mask], atol=1e-5)
        assert (t.logprobs[~t.action_mask] == 0).all()
        assert (t.logprobs[t.action_mask] < 0).all()
        assert ((t.policy_version >= 0) == t.action_mask).all()


def test_tokens_are_the_talk_as_the_template_writes_it() -> None:
    groups, _ = play(Ragged)
    tokenizer = char_renderer().tokenizer
    for t in members(groups):
        talk = t.messages
        if t.terminated:
            talk = talk[: 1 + max(i for i, m in enumerate(talk) if m["role"] == "assistant")]
        shown = tokenizer.apply_chat_template(talk, tokenize=False)
        text = tokenizer.decode(t.token_ids, skip_special_tokens=False)
        assert shown in (text, text + "<e>" if t.turn_cut[-1] else text)


def test_a_cut_turn_is_stepped_and_closed_with_an_unsampled_stop_token() -> None:
    said: list[str] = []

    def answer(env: Any, action: str) -> Any:
        said.append(action)
        return ending_after(2)(env, action)

    groups, stats = play(
        partial(Scripted, answer), num_tasks=1, num_generations=1, max_turn_tokens=1, run_seed=3
    )
    (t,) = members(groups)
    renderer = char_renderer()
    assert t.turn_cut == [True, True]
    assert stats["cut_turns"] == 2
    first = int(np.flatnonzero(t.action_mask)[0])
    assert t.token_ids[first + 1] == renderer.stop_id
    assert not t.action_mask[first + 1]
    assert said[0] == renderer.tokenizer.decode(t.token_ids[first : first + 1])
    assert t.num_action_tokens == 2


def test_arrays_agree_about_turns_steps_and_rewards() -> None:
    groups, stats = play(Ragged, num_tasks=6)
    for t in members(groups):
        for f in fields(Trajectory):
            value = getattr(t, f.name)
            if isinstance(value, np.ndarray):
                assert len(value) == len(t.token_ids), f.name
        assert t.live
        assert t.turn_ids[0] == 0
        assert set(np.diff(t.turn_ids)) <= {0, 1}
        assert t.turn_ids.max() + 1 == len(t.turn_cut) == len(t.state_keys)
        assert t.ret == pytest.approx(t.reward_components["noise"], abs=1e-9)
        assert ((t.rewards != 0) <= t.step_end).all()
        assert ((t.step_ids >= 0) <= t.action_mask).all()
        for step in range(t.step_ids.max() + 1):
            held = np.flatnonzero(t.step_ids == step)
            assert np.flatnonzero(t.step_end & (t.step_ids == step)).tolist() == [held[-1]]
            assert len(set(t.turn_ids[held])) == 1
        assert t.state_keys == [str(n) for n in range(len(t.state_keys), 0, -1)]
    assert stats["policy_tokens"] == sum(t.num_action_tokens for t in members(groups))
    assert stats["turns"] == sum(len(t.turn_cut) for t in members(groups))


def test_siblings_meet_the_same_task_with_a_chance_each() -> None:
    groups, _ = play(Ragged, num_tasks=3, num_generations=4)
    for group in groups:
        assert [t.sample_id for t in group.trajectories] == [0, 1, 2, 3]
        assert len({t.messages[0]["content"] for t in group.trajectories}) == 1
        assert len({t.chance_seed for t in group.trajectories}) == 4
        assert len({(t.task, t.seed, t.group_id) for t in group.trajectories}) == 1
    assert len({g.trajectories[0].messages[0]["content"] for g in groups}) == 3
    assert len({t.chance_seed for t in members(groups)}) == 12


def test_two_rollouts_are_equal_to_the_bit_and_seeds_matter() -> None:
    def content(**kwargs: Any) -> list[Any]:
        found = members(play(Ragged, **kwargs)[0])
        return [(t.token_ids.tolist(), t.logprobs.tolist(), t.rewards.tolist()) for t in found]

    assert content() == content()
    assert content() != content(run_seed=1)


def test_a_used_environment_plays_as_a_new_one() -> None:
    pool = EnvPool(Ragged)

    def once() -> list[list[int]]:
        groups, _ = rollout(
            engine(tiny()),
            char_renderer(),
            pool,
            tasks(2),
            num_generations=2,
            run_seed=0,
            env_id="test/Env-v0",
            limits=Limits(max_turn_tokens=6),
        )
        return [t.token_ids.tolist() for t in members(groups)]

    first = once()
    assert len(pool.idle) == 4
    pool.idle.reverse()
    assert once() == first
    assert len(pool.idle) == 4


def test_what_a_row_samples_does_not_depend_on_the_other_tasks() -> None:
    many, _ = play(Ragged, num_tasks=5)
    few, _ = play(Ragged, num_tasks=2)
    for a, b in zip(members(many[:2]), members(few), strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


class Served(Scripted):
    blocking = 2


def test_an_environment_that_serves_two_is_asked_by_two() -> None:
    at_once: list[int] = []
    lock = threading.Lock()

    def answer(env: Any, action: str) -> Any:
        with lock:
            at_once.append(at_once[-1] + 1 if at_once else 1)
        time.sleep(0.02)
        with lock:
            at_once.append(at_once[-1] - 1)
        return ending_after(1)(env, action)

    play(partial(Served, answer), num_tasks=3)
    assert max(at_once) == 2


FOREVER = partial(Scripted, ending_after(10**6))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turns": 2}, "turn_limit"),
        ({"max_episode_tokens": 30}, "token_limit"),
        ({"max_wall_s": 0.0}, "wall_clock"),
    ],
)
def test_limits_truncate_and_say_why(limits: dict, reason: str) -> None:
    groups, stats = play(FOREVER, **limits)
    for t in members(groups):
        assert (t.stop_reason, t.truncated, t.terminated, t.live) == (reason, True, False, True)
        assert (t.outcome, t.success) == (None, False)
        assert len(t.token_ids) <= limits.get("max_episode_tokens", 200)
    assert stats["truncated"] == 12


def test_the_state_that_was_cut_off_is_kept_where_it_fits() -> None:
    groups, _ = play(FOREVER, max_turns=2)
    for t in members(groups):
        tail = t.token_ids[np.flatnonzero(t.action_mask)[-1] + 1 :]
        text = char_renderer().tokenizer.decode(tail)
        assert text.removeprefix("<e>") == "<u>bb<a>"
        assert (t.turn_ids[-4:] == 2).all()


def test_the_models_context_is_a_limit_of_its_own() -> None:
    model = tiny()
    model.config.max_position_embeddings = 25
    groups, _ = play(FOREVER, model=model)
    assert {t.stop_reason for t in members(groups)} == {"context"}
    assert max(len(t.token_ids) for t in members(groups)) <= 25


def test_a_prompt_without_room_to_answer_is_an_error() -> None:
    with pytest.raises(RolloutError, match="the prompt of 3 tokens leaves no room"):
        play(FOREVER, max_episode_tokens=3)


def test_an_environments_own_truncation_is_told_apart() -> None:
    def answer(env: Any, action: str) -> Any:
        return "b", 0.0, False, True, {"outcome": 0.25}

    groups, _ = play(partial(Scripted, answer))
    for t in members(groups):
        assert (t.stop_reason, t.truncated, t.terminated) == ("env_truncated", True, False)
        assert (t.outcome, t.success) == (0.25, False)
        # What it showed last is the state that a critic is asked about.
        tail = t.token_ids[np.flatnonzero(t.action_mask)[-1] + 1 :]
        text = char_renderer().tokenizer.decode(tail)
        assert text.removeprefix("<e>") == "<u>b<a>"


def test_nothing_is_read_after_an_end_that_shows_nothing() -> None:
    def answer(env: Any, action: str) -> Any:
        return "", 0.0, False, True, {"outcome": 0.25}

    for script in (answer, lambda env, action: ("b", 0.0, True, False, {"outcome": 0.25})):
        groups, _ = play(partial(Scripted, script))
        assert all(t.action_mask[-1] for t in members(groups))


@pytest.mark.parametrize("reward", ["outcome", "dense", "dense@end"])
def test_all_reward_set_ups_are_recorded_whichever_is_trained_on(reward: str) -> None:
    groups, _ = play(lambda: RewardSetup(Ragged(), reward=reward))
    for t in members(groups):
        assert t.ret == pytest.approx(t.reward_components[reward], abs=1e-9)
        assert t.reward_components["dense"] == pytest.approx(t.env_rewards.sum(), abs=1e-9)
        assert t.reward_components["dense@end"] == pytest.approx(t.env_rewards.sum(), abs=1e-9)
        assert t.reward_components["outcome"] == 0.0
        if reward != "dense":
            paid = np.flatnonzero(t.rewards)
            assert set(paid) <= {np.flatnonzero(t.action_mask)[-1]}
    dense, _ = play(lambda: RewardSetup(Ragged(), reward="dense"))
    for t, other in zip(members(groups), members(dense), strict=True):
        assert t.env_rewards.tolist() == pytest.approx(other.rewards.tolist(), abs=1e-9)


def test_an_episode_cut_by_the_rollout_is_paid_what_it_earned() -> None:
    script = partial(Scripted, ending_after(10**6, reward=0.5))
    groups, _ = play(lambda: RewardSetup(script(), reward="dense@end"), max_turns=3)
    for t in members(groups):
        assert t.ret == pytest.approx(1.5)
        assert t.rewards[np.flatnonzero(t.action_mask)[-1]] == pytest.approx(1.5)
        assert t.step_ids.max() == 2
        assert t.env_rewards.sum() == pytest.approx(1.5)
        assert t.reward_components["dense@end"] == pytest.approx(1.5)


def test_plain_gymnasium_environments_get_a_seed_and_no_options() -> None:
    envs: list[Scripted] = []

    def make_env() -> Scripted:
        envs.append(Scripted(ending_after(1)))
        return envs[-1]

    groups, _ = play(make_env, num_tasks=2, num_generations=2)
    assert [env.options for env in envs] == [None] * 4
    assert envs[0].seed == envs[1].seed != envs[2].seed
    assert all(t.success for t in members(groups))


def test_environments_that_wait_are_stepped_side_by_side() -> None:
    class Slow(Scripted):
        blocking = True

    def answer(env: Any, action: str) -> Any:
        time.sleep(0.1)
        return ending_after(1)(env, action)

    begun = time.monotonic()
    play(partial(Slow, answer), num_tasks=4)
    assert time.monotonic() - begun < 1.2  # 16 x 0.1 s one after another


def test_the_sampling_parameters_are_recorded() -> None:
    groups, _ = play(Ragged)
    t = groups[0].trajectories[0]
    assert t.sampling == {
        "engine": "transformers",
        "temperature": 1.0,
        "max_turn_tokens": 6,
        "max_episode_tokens": 200,
    }
    assert (t.env_id, t.split, t.task) == ("test/Env-v0", "train", 0)


@pytest.mark.parametrize(
    ("specs", "generations", "message"),
    [
        ([], 2, "tasks: must be at least one"),
        ([TaskSpec(group_id="a", task=0)] * 2, 2, "a group_id each"),
        ([TaskSpec(group_id="a", task=0)], 0, "num_generations=0: must be at least 1"),
    ],
)
def test_bad_requests_are_refused(specs: list, generations: int, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        rollout(
            engine(tiny()),
            char_renderer(),
            EnvPool(Ragged),
            specs,
            num_generations=generations,
            run_seed=0,
            env_id="x",
            limits=Limits(),
        )


def test_pool_makes_only_what_is_missing() -> None:
    made: list[gym.Env] = []

    def make_env() -> Ragged:
        made.append(Ragged())
        return made[-1]

    pool = EnvPool(make_env)
    pool.give_back(pool.take(3))
    assert len(pool.take(5)) == len(made) == 5


def test_a_pool_closes_every_environment_whatever_one_of_them_does() -> None:
    class Stuck(Scripted):
        def close(self) -> None:
            super().close()
            raise OSError("already gone")

    envs = [Stuck(raises), Scripted(raises), Stuck(raises)]
    pool = EnvPool(iter(envs).__next__)
    pool.give_back(pool.take(3))
    with pytest.warns(UserWarning, match=r"2 of 3 .* OSError: already gone"):
        pool.close()
    assert all(env.closed for env in envs) and not pool.idle
