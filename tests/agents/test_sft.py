import importlib
import multiprocessing
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from stepcredit.agents import cache
from stepcredit.agents import sft as module
from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.episode import TaskSpec
from stepcredit.agents.errors import ModelError
from stepcredit.agents.model import build_tiny
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.rollout import EnvPool, Limits, rollout
from stepcredit.agents.sft import SFT, imitate, warm_start
from stepcredit.agents.tokenizer import build_char_tokenizer
from stepcredit.envs import make, register
from tests.agents.worlds import Ragged, one_pass_logprobs

DOORS = "stepcredit/Doors-v0"
SHORT = SFT(steps=3, batch_turns=8)


def start(cache: Path, **changes: Any) -> tuple[Any, Any]:
    given: dict[str, Any] = {"size": "0.12M", "seed": 0, "sft": SHORT, "kwargs": {"turns": 2}}
    given |= changes
    return warm_start(DOORS, given.pop("kwargs"), cache_dir=cache, **given)


def weights(model: Any) -> list[list[float]]:
    return [p.flatten()[:50].tolist() for p in model.parameters()]


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def test_a_policy_imitates_the_noisy_expert(tmp_path: Path) -> None:
    kwargs = {"turns": 4, "facts": 20}
    model, tokenizer = start(tmp_path, kwargs=kwargs, sft=SFT(steps=120))
    renderer = ChatRenderer(tokenizer)
    pool = EnvPool(partial(make, DOORS, reward="dense", **kwargs))
    groups, _ = rollout(
        TransformersEngine(model, stop_id=renderer.stop_id),
        renderer,
        pool,
        [TaskSpec(group_id=str(i), task=i, split="eval") for i in range(200)],
        num_generations=1,
        run_seed=0,
        env_id=DOORS,
        limits=Limits(max_turn_tokens=8),
    )
    played = [g.trajectories[0] for g in groups]
    # The expert is right on .76 of the facts and a digit is a guess at .1.
    assert 0.65 < np.mean([t.outcome for t in played]) < 0.85
    assert np.mean([t.num_action_tokens == 8 and len(t.token_ids) == 24 for t in played]) > 0.95


def test_the_same_request_is_answered_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = start(tmp_path)
    assert len(entries(tmp_path)) == 1
    monkeypatch.setattr(module, "imitate", partial(pytest.fail, "trained again"))
    again, _ = start(tmp_path)
    assert weights(again) == weights(model)
    assert not again.training
    with_reward, _ = start(tmp_path, kwargs={"turns": 2, "reward": "dense@end"})
    assert weights(with_reward) == weights(model)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"size": "0.2M"},
        {"sft": SFT(steps=4, batch_turns=8)},
        {"kwargs": {"turns": 3}},
        {"kwargs": {"turns": 2, "world_seed": 1}},
    ],
)
def test_whatever_changes_the_result_is_an_entry_of_its_own(tmp_path: Path, change: dict) -> None:
    a, _ = start(tmp_path)
    b, _ = start(tmp_path, **change)
    assert len(entries(tmp_path)) == 2
    assert weights(a) != weights(b)


def test_another_seed_sees_other_demonstrations(tmp_path: Path, monkeypatch: Any) -> None:
    seen = []

    def spy(model: Any, demonstrations: list, *args: Any, **kwargs: Any) -> float:
        seen.append([t.token_ids.tolist() for t in demonstrations])
        return 0.0

    monkeypatch.setattr(module, "imitate", spy)
    start(tmp_path)
    start(tmp_path, seed=1)
    assert len(seen[0]) == len(seen[1]) == 12
    assert not any(a == b for a, b in zip(*seen, strict=True))


def test_other_code_behind_the_same_id_is_another_entry(tmp_path: Path, monkeypatch: Any) -> None:
    start(tmp_path)
    from stepcredit.envs.doors import Doors

    monkeypatch.setattr(Doors, "demonstration", lambda self, rng: "7")
    start(tmp_path)
    assert len(entries(tmp_path)) == 2


def test_a_changed_module_is_another_entry_whatever_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from stepcredit.envs.doors import Doors\n"
        "class Mine(Doors):\n    rare = {rare}\n"
        "    def demonstration(self, rng): return '1'\n"
    )
    file = tmp_path / "rare_doors.py"
    monkeypatch.syspath_prepend(tmp_path)
    for rare in (1, 2):
        file.write_text(source.format(rare=rare))
        sys.modules.pop("rare_doors", None)
        importlib.invalidate_caches()
        register("test/Rare-v0", "rare_doors:Mine")
        warm_start("test/Rare-v0", {}, size="0.12M", seed=0, sft=SHORT, cache_dir=tmp_path / "c")
        gym.registry.pop("test/Rare-v0")
    assert len(entries(tmp_path / "c")) == 2


def test_other_code_of_the_training_is_another_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path)
    changed = tmp_path / "own"
    changed.mkdir()
    for file in Path(module.__file__).parent.glob("*.py"):
        (changed / file.name).write_bytes(file.read_bytes())
    (changed / "model.py").write_text("WEIGHT_STD = 0.2\n")
    monkeypatch.setattr(cache, "OWN_FOLDERS", (cache.OWN_FOLDERS[0], changed))
    start(tmp_path)
    assert len(list(tmp_path.glob("warm-start-*"))) == 2


def test_the_code_of_a_wrapper_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import gymnasium as gym\nfrom stepcredit.envs.doors import Doors\n"
        "class Rarely(gym.Wrapper):\n    rare = {rare}\n"
        "def mine():\n    return Rarely(Doors(turns=2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for rare in (1, 2):
        (tmp_path / "rare_wrapper.py").write_text(source.format(rare=rare))
        sys.modules.pop("rare_wrapper", None)
        importlib.invalidate_caches()
        register("test/Wrapped-v0", "rare_wrapper:mine")
        warm_start("test/Wrapped-v0", {}, size="0.12M", seed=0, sft=SHORT, cache_dir=tmp_path / "c")
        gym.registry.pop("test/Wrapped-v0")
    assert len(entries(tmp_path / "c")) == 2


def test_a_folder_that_cannot_be_written_is_named_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "imitate", partial(pytest.fail, "trained for nothing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cache_dir=.*file.*STEPCREDIT_CACHE"):
        start(tmp_path / "file")


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_another_version_of_a_library_is_another_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start(tmp_path)
    monkeypatch.setattr(getattr(module, name), "__version__", "0.0")
    start(tmp_path)
    assert len(entries(tmp_path)) == 2


class Endless(Ragged):
    """Goes on for ever."""

    def demonstration(self, rng: np.random.Generator) -> str:
        return "abc"

    def step(self, action: str) -> Any:
        return "ab", 0.0, False, False, {}


class FailsAtTimes(Endless):
    """Cannot step in a third of its tasks."""

    def step(self, action: str) -> Any:
        if self.task % 3 == 0:
            raise RuntimeError("the world fell over")
        return "", 1.0, True, False, {"outcome": 1.0}


class FailsMostly(FailsAtTimes):
    def step(self, action: str) -> Any:
        self.task = 0 if self.task % 3 else 1
        return super().step(action)


class Hangs(Endless):
    def step(self, action: str) -> Any:
        while True:
            pass


def start_own(cache: Path, env: type, **given: Any) -> list[Any]:
    """Warm-start on an environment of ours; return the demonstrations that were imitated."""
    seen: list[Any] = []

    def spy(model: Any, demonstrations: list, *args: Any, **kwargs: Any) -> float:
        seen.extend(demonstrations)
        return 0.0

    register("test/Own-v0", env)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "imitate", spy)
        settings = SFT(steps=3, batch_turns=40)
        try:
            warm_start(
                "test/Own-v0", {}, size="0.12M", seed=0, sft=settings, cache_dir=cache, **given
            )
        finally:
            gym.registry.pop("test/Own-v0")
    return seen


def test_an_episode_without_an_end_is_cut_at_the_limit(tmp_path: Path) -> None:
    seen = start_own(tmp_path, Endless, max_episode_tokens=50)
    assert seen
    assert all(40 < len(t.token_ids) <= 50 and t.stop_reason == "token_limit" for t in seen)
    start_own(tmp_path, Endless, max_episode_tokens=60)
    assert len(entries(tmp_path)) == 2


def test_failed_demonstrations_are_left_out(tmp_path: Path) -> None:
    seen = start_own(tmp_path, FailsAtTimes)
    assert len(seen) == 120
    assert all(t.task % 3 and t.terminated for t in seen)


def test_too_many_failed_demonstrations_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"9 of \d+ demonstrations of FailsMostly .*fell o"):
        start_own(tmp_path, FailsMostly)


def test_demonstrations_that_hang_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="3 of 3 demonstrations of Hangs failed, 3 of them by a h"):
        start_own(tmp_path, Hangs, env_timeout_s=0.2)


@pytest.mark.parametrize("damage", [b"", b"not a model", None])
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    model, _ = start(tmp_path)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    again, _ = start(tmp_path)
    assert weights(again) == weights(model)
    assert entry.read_bytes() == whole
    assert entries(tmp_path) == [entry]


def make_entry(cache: Path, both_train: Any, out: Any) -> None:
    both_train.wait(60)
    out.put(weights(start(cache)[0]))


def test_two_processes_may_make_the_same_entry(tmp_path: Path) -> None:
    # Forked: starting an interpreter that loads torch takes longer than the whole file.
    fork = multiprocessing.get_context("fork")
    out, both_train = fork.Queue(), fork.Barrier(2)
    both = [fork.Process(target=make_entry, args=(tmp_path, both_train, out)) for _ in range(2)]
    for process in both:
        process.start()
    said = [out.get(timeout=60) for _ in both]
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert len(entries(tmp_path)) == 1
    assert said[0] == said[1] == weights(start(tmp_path)[0])


def test_no_steps_leave_the_fresh_weights(tmp_path: Path) -> None:
    a, _ = start(tmp_path, sft=SFT(steps=0))
    b, _ = start(tmp_path, sft=SFT(steps=0), seed=1)
    assert weights(a) != weights(b)


def test_an_environment_without_demonstrations_is_refused(tmp_path: Path) -> None:
    register("test/Ragged-v0", Ragged)
    with pytest.raises(ModelError, match="Ragged has no 'demonstration'"):
        warm_start("test/Ragged-v0", {}, size="0.12M", seed=0, sft=SHORT, cache_dir=tmp_path)


def test_an_alphabet_that_is_no_text_is_refused(tmp_path: Path) -> None:
    class Method(Ragged):
        def alphabet(self) -> str:  # type: ignore[override]  # the mistake in question
            return "ab"

        def demonstration(self, rng: Any) -> str:
            return "a"

    with pytest.raises(ModelError, match=r"Method\.alphabet is <bound method"):
        start_own(tmp_path, Method)


def test_the_loss_is_that_of_the_action_tokens_stop_token_included() -> None:
    env = make(DOORS, turns=2)
    renderer = ChatRenderer(build_char_tokenizer(env.unwrapped.alphabet))
    played = [module._demonstrate(env, renderer, 0, i, 2048) for i in range(3)]
    model = build_tiny(len(renderer.tokenizer), "0.12M", 0)
    expected = []
    for t in played:
        assert t.token_ids[t.action_mask].tolist()[1::2] == [renderer.stop_id] * 2
        expected += np.array(one_pass_logprobs(model, t.token_ids, 1.0))[t.action_mask].tolist()
    loss = imitate(model, played, SFT(steps=1, batch_turns=6), seed=0, pad_id=0)
    assert loss == pytest.approx(-np.mean(expected), abs=1e-5)
