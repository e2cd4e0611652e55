"""Whole runs on the real line: learning, reproducing, resuming, refusing."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from stepcredit.agents.trajectory import load_trajectories
from stepcredit.algos import ALGORITHMS, train
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.credit import Credit
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.fit import check_env_fit
from stepcredit.algos.presets import build
from stepcredit.algos.settings import AlgoSettings, EnvSettings, RunConfig
from stepcredit.envs import Env, StepReward, register

TIMES = ("wall_s", "cpu_s")


def config(**sections: dict[str, Any]) -> RunConfig:
    base: dict[str, dict[str, Any]] = {
        "env": {"id": "stepcredit/Doors-v0", "turns": 2, "reward": "dense"},
        "model": {"size": "0.12M", "sft": {"steps": 40}},
        "algo": {"preset": "grpo", "num_generations": 4, "learning_rate": 1e-3},
        "rollout": {"max_turn_tokens": 4},
        "train": {"tasks_per_step": 2, "steps": 6, "eval_episodes": 8, "save_every": 2},
    }
    return RunConfig.model_validate({name: base[name] | sections.get(name, {}) for name in base})


def log(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def policy(folder: Path) -> bytes:
    (found,) = folder.glob("checkpoints/step-*/policy.safetensors")
    return found.read_bytes()


def sampled(folder: Path) -> list[tuple[list[int], list[float]]]:
    (found,) = folder.glob("trajectories/step-000006.parquet")
    return [(t.token_ids.tolist(), t.logprobs.tolist()) for t in load_trajectories(found)]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPCREDIT_CACHE", str(tmp_path_factory.getbasetemp() / "warm-starts"))


@pytest.mark.parametrize(
    "preset",
    # Each kind of machinery once: critic, group, sampled values, top-K, mixing, other tasks.
    ["ppo_step", "grpo_process", "vineppo", "cppo", "n_grpo", "dapo"],
)
def test_the_same_config_twice_is_the_same_run(preset: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(config(algo={"preset": preset}), tmp_path / name)
    assert log(tmp_path / "a") == log(tmp_path / "b")
    assert policy(tmp_path / "a") == policy(tmp_path / "b")
    assert sampled(tmp_path / "a") == sampled(tmp_path / "b")


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    train(config(), tmp_path / "a")
    train(config(train={"seed": 1}), tmp_path / "b")
    assert sampled(tmp_path / "a") != sampled(tmp_path / "b")


def test_what_a_run_leaves(tmp_path: Path) -> None:
    summary = train(config(algo={"preset": "ppo_step"}), tmp_path / "run")
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "trajectories",
        "checkpoints",
        "summary.json",
    }
    rows = log(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(7))
    assert summary["sampled_tokens"] == rows[-1]["sampled_tokens"] > 0
    assert "eval/success" in rows[0] and "eval/success" in rows[-1]
    assert sum(n for name, n in rows[-1].items() if name.startswith("eval/status/")) == 8
    # Observed at the first update: the trainer sees the very distribution the rollout drew from.
    assert all(row["sampling/sampling_logp_difference/max"] < 1e-4 for row in rows[1:])
    (last,) = (tmp_path / "run/trajectories").glob("*.parquet")
    first = load_trajectories(last)[0]
    assert first.values is not None and first.advantages is not None
    assert set(first.reward_components) >= {"outcome", "dense", "dense@end"}


def test_siblings_share_the_task_and_never_the_chance(tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    (last,) = (tmp_path / "run/trajectories").glob("*.parquet")
    groups: dict[str, list[Any]] = {}
    for trajectory in load_trajectories(last):
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    assert len(groups) == 2
    for members in groups.values():
        assert len({t.task for t in members}) == 1
        assert len({t.messages[0]["content"] for t in members}) == 1
        assert len({t.chance_seed for t in members}) == len(members) == 4


def test_killed_and_resumed_equals_never_stopped(tmp_path: Path) -> None:
    settings = config(algo={"preset": "ppo_step"}, train={"steps": 40, "save_every": 3})
    train(settings, tmp_path / "whole")
    (tmp_path / "config.json").write_text(settings.model_dump_json())
    script = (
        "import sys; from pathlib import Path; from stepcredit.algos import train;"
        "from stepcredit.algos.settings import RunConfig;"
        f"train(RunConfig.model_validate_json(Path({str(tmp_path / 'config.json')!r}).read_text()),"
        f"Path({str(tmp_path / 'killed')!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=os.environ)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("killed/checkpoints/step-000006")) and time.monotonic() < until:
        time.sleep(0.02)
        assert process.poll() is None, "ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed/summary.json").exists()
    train(settings, tmp_path / "killed", resume=True)
    assert log(tmp_path / "whole") == log(tmp_path / "killed")
    assert policy(tmp_path / "whole") == policy(tmp_path / "killed")


def test_a_kill_while_resuming_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config(), tmp_path / "run")
    before = log(tmp_path / "run")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config(), tmp_path / "run", resume=True)
    assert log(tmp_path / "run") == before
    train(config(), tmp_path / "run", resume=True)
    assert log(tmp_path / "run") == before


def test_a_checkpoint_without_its_log_is_refused(tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    rows = (tmp_path / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run/metrics.jsonl").write_text("".join([rows[0], *rows[3:]]))
    with pytest.raises(TrainingError, match="does not hold every step up to 6"):
        train(config(), tmp_path / "run", resume=True)


@pytest.mark.parametrize("name", ["policy.safetensors", "optimizers.pt", "counters.json"])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path: Path, name: str) -> None:
    train(config(), tmp_path / "run")
    (broken,) = (tmp_path / "run/checkpoints").glob(f"step-*/{name}")
    os.truncate(broken, 4)
    with pytest.raises(TrainingError, match="step-000006: cannot be read: "):
        train(config(), tmp_path / "run", resume=True)
    broken.unlink()
    with pytest.raises(TrainingError, match="step-000006: cannot be read: "):
        train(config(), tmp_path / "run", resume=True)


@pytest.mark.parametrize("garbage", ['{"step": 3, "x}', '{"x": 1}', "[3]"])
def test_a_broken_line_of_the_log_is_a_missing_step(tmp_path: Path, garbage: str) -> None:
    train(config(), tmp_path / "run")
    path = tmp_path / "run/metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], garbage, *lines[4:]]))
    with pytest.raises(TrainingError, match="does not hold every step up to 6"):
        train(config(), tmp_path / "run", resume=True)


def test_a_checkpoint_that_finds_no_room_is_told_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(TrainingError, match=r"step-000002: cannot be written: .*free some space"):
        train(config(), tmp_path / "run")
    assert not list((tmp_path / "run/checkpoints").iterdir())
    monkeypatch.undo()
    train(config(), tmp_path / "run", resume=True)
    assert [row["step"] for row in log(tmp_path / "run")] == list(range(7))


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="lower the learning rate"):
        train(config(algo={"learning_rate": 1e30}), tmp_path / "run")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run already; pass --resume"):
        train(config(), tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run of another config"):
        train(config(train={"seed": 5}), tmp_path / "run", resume=True)


def test_a_group_of_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_generations=1: grpo compares"):
        train(config(algo={"num_generations": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(config(algo={"preset": "ppo", "num_generations": 1}), tmp_path / "ppo")


def test_the_token_budget_ends_the_run(tmp_path: Path) -> None:
    train(config(train={"sampled_tokens": 60, "steps": 100}), tmp_path / "run")
    rows = log(tmp_path / "run")
    assert rows[-1]["sampled_tokens"] >= 60 > rows[-2]["sampled_tokens"]


def test_grpo_learns_a_short_task(tmp_path: Path) -> None:
    began = time.process_time()
    summary = train(
        config(
            env={"turns": 4, "reward": "dense"},
            model={"sft": {"steps": 300}},
            algo={"num_generations": 8, "learning_rate": 1e-3, "beta": 0.0},
            train={
                "tasks_per_step": 8,
                "steps": 100,
                "eval_every": 0,
                "eval_episodes": 256,
                "save_every": 0,
            },
        ),
        tmp_path / "run",
    )
    assert 0.2 < summary["start"]["eval/success"] < 0.45
    assert summary["final"]["eval/success"] >= 0.8
    assert time.process_time() - began < 60


def test_flat_groups_are_sampled_anew_and_their_tokens_count(tmp_path: Path) -> None:
    # Success is rare: most groups of two fail alike.
    rare = config(
        env={"turns": 4, "reward": "outcome"},
        algo={"preset": "dapo", "num_generations": 2, "max_num_gen_batches": 3},
        train={"tasks_per_step": 4, "steps": 4, "trajectories_every": 1},
    )
    train(rare, tmp_path / "run")
    rows = log(tmp_path / "run")[1:]
    assert any(row["groups/sampled"] > 4 for row in rows)
    tokens = 0
    for row in rows:
        found = load_trajectories(tmp_path / f"run/trajectories/step-{row['step']:06d}.parquet")
        tokens += sum(t.num_action_tokens for t in found)
        groups = {t.group_id for t in found}
        assert len(groups) == row["groups/sampled"] <= 12
        trained = {t.group_id for t in found if t.advantages is not None}
        assert len(trained) <= 4
        for name in trained:
            assert len({t.ret for t in found if t.group_id == name}) > 1
        assert row["sampled_tokens"] == tokens


def test_tokens_of_continuations_count_as_sampled(tmp_path: Path) -> None:
    settings = config(algo={"preset": "vineppo", "num_continuations": 2}, train={"steps": 2})
    train(settings, tmp_path / "run")
    rows = log(tmp_path / "run")
    for before, row in itertools.pairwise(rows):
        more = row["sampled_tokens"] - before["sampled_tokens"]
        assert more > row["montecarlo/policy_tokens"] > 0


def test_the_reference_follows_the_policy_and_survives_a_resume(tmp_path: Path) -> None:
    algo = {
        "preset": "r1_zero",
        "reference_refresh_steps": 2,
        "beta": 0.5,
        "num_mini_batches": 1,
    }
    train(config(algo=algo), tmp_path / "run")
    kl = [row["objective/kl"] for row in log(tmp_path / "run")[1:]]
    # The step after a refresh starts from the reference itself.
    assert [step for step, each in enumerate(kl, start=1) if abs(each) < 1e-5] == [1, 3, 5]
    shorter = config(algo=algo, train={"steps": 3, "save_every": 1})
    longer = config(algo=algo, train={"steps": 6, "save_every": 1})
    train(shorter, tmp_path / "halves")
    (tmp_path / "halves/config.yaml").write_text(yaml.safe_dump(longer.model_dump(mode="json")))
    train(longer, tmp_path / "halves", resume=True)
    assert policy(tmp_path / "run") == policy(tmp_path / "halves")


def test_the_kl_coefficient_follows_its_target(tmp_path: Path) -> None:
    train(config(algo={"preset": "ppo", "beta": 0.1, "target_kl": 1e-6}), tmp_path / "run")
    rows = log(tmp_path / "run")[1:]
    assert rows[0]["objective/kl_coef"] == 0.1
    for before, after in itertools.pairwise(rows):
        error = min(max(before["objective/kl"] / 1e-6 - 1, -0.2), 0.2)
        expected = before["objective/kl_coef"] * (1 + 0.1 * error)
        assert after["objective/kl_coef"] == pytest.approx(expected)


class Same(Env):
    """Pays the same in every turn, whatever is said."""

    alphabet = "ab"

    def __init__(self, pay: float = 0.0, turns: int = 3):
        self.pay, self.turns = pay, turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.turn = 0
        return "a", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        ended = self.turn == self.turns
        return "" if ended else "b", self.pay, ended, False, {"outcome": 0.5} if ended else {}

    def demonstration(self, rng: Any) -> str:
        return str(rng.choice(["a", "b"]))


register("test/Same-v0", Same)


@pytest.mark.parametrize(
    ("preset", "changes", "env"),
    [
        # .1 seven times over: V(after) + .1 - V(before) is rounding.
        ("vineppo", {"num_continuations": 2, "beta": 0.0}, {"pay": 0.1, "turns": 7}),
        # Nobody earns anything, and the policy still is its own reference.
        ("vineppo", {"num_continuations": 2}, {}),
        ("ppo", {}, {}),
        ("ppo_turn", {}, {}),
        ("reinforce_plus_plus", {}, {}),
        ("reinforce_plus_plus_baseline", {}, {}),
    ],
)
def test_rounding_is_not_whitened_into_advantages(
    preset: str, changes: dict[str, Any], env: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(algo={"preset": preset} | changes, train={"steps": 1})
    same = EnvSettings.model_validate({"id": "test/Same-v0", "reward": "dense"} | env)
    train(settings.model_copy(update={"env": same}), tmp_path / "run")
    assert log(tmp_path / "run")[1]["grad_norm"] == 0


def rates(folder: Path, **settings: Any) -> list[float]:
    """The policy's and the critic's learning rate in the last step of a run."""
    train(config(**settings), folder)
    (found,) = folder.glob("checkpoints/step-*/optimizers.pt")
    kept = torch.load(found, weights_only=True)
    return [kept[whose]["param_groups"][0]["lr"] for whose in ("policy", "critic")]


def test_each_network_warms_up_in_its_own_first_steps(tmp_path: Path) -> None:
    algo = {"preset": "ppo", "warmup_steps": 4, "value_learning_rate": 1e-2}
    train_for = {"steps": 3, "eval_every": 0}
    both = rates(tmp_path / "both", algo=algo, train=train_for)
    assert both == pytest.approx([3 / 4 * 1e-3, 3 / 4 * 1e-2])
    late = algo | {"value_pretrain_steps": 2}
    assert rates(tmp_path / "late", algo=late, train=train_for) == pytest.approx(
        [1 / 4 * 1e-3, 3 / 4 * 1e-2]
    )


def without_returns() -> Algorithm:
    return replace(build("ppo", {}), advantage=lambda batch: Credit(batch.rewards))


def of_one_row() -> Algorithm:
    return replace(build("grpo", {}), advantage=lambda batch: Credit(batch.rewards[:1]))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("without_returns", "must say what the critic should learn"),
        ("of_one_row", r"advantages \[1, \d+\]: must be \[8, \d+\]"),
    ],
)
def test_credit_that_does_not_fit_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=says):
        train(config(algo={"preset": f"{__name__}:{name}"}), tmp_path / "run")


def test_the_critic_learns_alone_first(tmp_path: Path) -> None:
    settings = config(algo={"preset": "vapo", "value_pretrain_steps": 3, "alpha": 1.0})
    train(settings, tmp_path / "run")
    rows = log(tmp_path / "run")[1:]
    assert ["loss/policy" in row for row in rows] == [False] * 3 + [True] * 3
    assert all("loss/value" in row for row in rows)


def test_truncated_episodes_as_the_settings_say(tmp_path: Path) -> None:
    found = {}
    for kind in ("none", "bootstrap", "mask", "penalty"):
        settings = config(
            env={"turns": 4},
            algo={"preset": "ppo_step", "truncation": kind},
            rollout={"max_turns": 2},
            train={"steps": 2},
        )
        train(settings, tmp_path / kind)
        found[kind] = policy(tmp_path / kind)
    assert len(set(found.values())) == 4
    rows = log(tmp_path / "mask")[1:]
    # Every episode is cut after two turns: nothing is left to train the policy on.
    assert all(row["rollout/status/turn_limit"] > 0 and row["grad_norm"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("preset", "changes", "says"),
    [
        ("grpo", {"truncation": "bootstrap"}, "grpo has no critic that could value the state"),
        ("vineppo", {"truncation": "bootstrap"}, "vineppo has no critic"),
        ("ppo", {"value_pretrain_steps": 6}, "the policy would not learn in train.steps=6"),
        ("rloo", {"num_generations": 1}, "num_generations=1: rloo compares"),
        ("dapo", {"max_completion_length": 2, "overlong_cache": 3}, "overlong_cache=3: must be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    preset: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=says):
        train(config(algo={"preset": preset} | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Silent(Env):
    """Answers once, judges no step, names no state."""

    one_turn = True
    alphabet = "ab"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return "a", {}

    def step(self, action: str) -> Any:
        return "", float(action == "b"), True, False, {"outcome": float(action == "b")}

    def demonstration(self, rng: Any) -> str:
        return "b"


register("test/Silent-v0", Silent)


class Tested(Silent):
    """Is evaluated on a split of another name."""

    splits = ("train", "test")


register("test/Tested-v0", Tested)


class Sometimes(Silent):
    """Judges steps in some tasks, and only where something was said."""

    def step(self, action: str) -> Any:
        answer = super().step(action)
        if action and self.task % 4 == 0:
            answer[4]["step_rewards"] = [StepReward(0, len(action), answer[1])]
        return answer

    def demonstration(self, rng: Any) -> str:
        return str(rng.choice(["b", ""]))


register("test/Sometimes-v0", Sometimes)


def test_an_environment_without_the_split_that_is_evaluated(tmp_path: Path) -> None:
    other = config().model_copy(update={"env": EnvSettings(id="test/Tested-v0")})
    with pytest.raises(TrainingError, match="splits train, test: training plays train and eval"):
        train(other, tmp_path / "run")


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("grpo_process", "judges no step inside its answer"),
        ("gigpo", "does not name its states"),
    ],
)
def test_environments_that_lack_what_a_preset_needs(preset: str, says: str, tmp_path: Path) -> None:
    settings = config(algo={"preset": preset})
    silent = settings.model_copy(update={"env": EnvSettings(id="test/Silent-v0")})
    with pytest.raises(TrainingError, match=says):
        train(silent, tmp_path / "run")
    ready = silent.model_copy(update={"algo": AlgoSettings(preset="grpo", num_generations=2)})
    train(ready, tmp_path / "run")


def test_an_environment_that_judges_steps_now_and_then_is_not_refused() -> None:
    settings = config(algo={"preset": "grpo_process"})
    now_and_then = settings.model_copy(update={"env": EnvSettings(id="test/Sometimes-v0")})
    check_env_fit(now_and_then, build("grpo_process", {}))


LEARNS: dict[str, dict[str, Any]] = {
    # Lambda fits episodes of six tokens, and the value network has seconds, not hours.
    "vapo": {"alpha": 1.0, "value_pretrain_steps": 5},
    "vineppo": {"num_continuations": 2},
    "r1_zero": {"reference_refresh_steps": 20, "num_mini_batches": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", ALGORITHMS)
def test_every_preset_learns_the_short_task(preset: str, tmp_path: Path) -> None:
    summary = train(
        config(
            env={"turns": 3},
            model={"sft": {"steps": 200}},
            algo={"preset": preset, "num_generations": 8} | LEARNS.get(preset, {}),
            train={
                "tasks_per_step": 8,
                "steps": 40,
                "eval_every": 0,
                "eval_episodes": 256,
                "save_every": 0,
            },
        ),
        tmp_path / "run",
    )
    gain = summary["final"]["eval/success"] - summary["start"]["eval/success"]
    # Four standard errors of a difference between two shares of 256.
    assert gain > 0.15, f"{preset}: {gain:+.3f}"
