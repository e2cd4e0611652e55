"""Whole runs on the real line: learning, reproducing, resuming, refusing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepcredit.agents.trajectory import load_trajectories
from stepcredit.algos import ALGORITHMS, train
from stepcredit.algos.errors import TrainingError
from tests.algos.runs import config, log, policy, sampled


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
