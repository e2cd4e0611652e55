import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from stepcredit.compare import Comparison, _warm_starts_apart, compare
from stepcredit.config import UserError
from stepcredit.cost import biggest_cell, probe_config, probed_cost
from stepcredit.folders import whole
from stepcredit.plan import RunSpec
from stepcredit.workers import Job, write_json
from tests.face.fakes import runner

STUDY = """
title: Doors
budget: {sampled_tokens: 2560, cpu_hours: 0.3}
seeds: [0, 1]
arms: {ppo_step: {algo.preset: ppo_step}, grpo: {algo.preset: grpo}}
cells: {env.reward: [outcome, dense]}
"""
ROOT = Path(__file__).parents[2]


def run(
    tmp_path: Path, *overrides: str, text: str = STUDY, yes: bool = False
) -> tuple[Comparison, str]:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    told = io.StringIO()
    done = compare(
        path,
        tmp_path / "out",
        runner(),
        Console(file=told, width=200),
        overrides=overrides,
        num_workers=2,
        over_budget=yes,
    )
    return done, told.getvalue()


def finish_times(out: Path) -> dict[str, int]:
    return {str(p.parent.name): p.stat().st_mtime_ns for p in out.glob("runs/*/*/done.json")}


def nobody_left(group: int) -> bool:
    """Whether a process group is empty, after a moment for its last member to go."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_study_runs_resumes_and_notices_a_changed_config(tmp_path: Path) -> None:
    done, told = run(tmp_path)
    assert (done.num_runs, done.failed) == (8, [])
    assert re.search(r"8 runs x [\d.]+ CPU-seconds measured, warm starts included = ", told)
    out = tmp_path / "out"
    for name in ("results.parquet", "curves.parquet", "report.html", "report.png", "study.yaml"):
        assert (out / name).stat().st_size > 0
    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert len(rows) == 8 and {row["status"] for row in rows} == {"ok"}
    assert {row["sampled_tokens"] for row in rows} == {2560}
    assert {row["cell.reward"] for row in rows} == {"outcome", "dense"}
    assert all(0 < row["sft_start"] < row["auc"] < row["final"] for row in rows)
    assert {row["zero_variance_share"] for row in rows} == {0.5}
    curves = pq.read_table(out / "curves.parquet").to_pylist()
    assert len(curves) == 8 * 10

    before = finish_times(out)
    victim = next(out.glob("runs/*/*grpo*dense*/done.json"))
    victim.unlink()
    _, told = run(tmp_path)
    after = finish_times(out)
    assert "(7 finished before)" in told
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {victim.parent.name}

    _, told = run(tmp_path)
    assert told.splitlines() == ["all 8 runs are there: the report is written anew"]

    done, told = run(tmp_path, "train.eval_every=3", "seeds=[0]")
    assert done.num_runs == 4 and "finished before" not in told
    assert len(finish_times(out)) == 8 + 4


def test_above_the_budget_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"budget\.cpu_hours=1e-06: the runs need"):
        run(tmp_path, "budget.cpu_hours=1e-6")
    assert not (tmp_path / "out/runs").exists()
    done, _ = run(tmp_path, "budget.cpu_hours=1e-6", "seeds=[0]", yes=True)
    assert done.num_runs == 4


def test_failed_and_dead_runs_are_told_and_the_others_go_on(tmp_path: Path) -> None:
    done, told = run(tmp_path, "env.fail_seeds=[1]", "env.die_seeds=[2]", "seeds=[0, 1, 2]")
    reasons = {result.spec.seed: result.reason for result in done.failed}
    assert len(done.failed) == 8
    assert reasons[1] == "ValueError: door stuck; oil it"
    assert "process ended with code 9" in reasons[2]
    assert "failed runs/study/grpo_reward=dense_s1" in told
    html = (tmp_path / "out/report.html").read_text()
    assert "4 of 12 runs finished" in html and "1 of 3" in html
    assert "door stuck; oil it" in html and "too few to say" in html
    assert list((tmp_path / "out").glob("runs/*/*_s1_*/error.txt"))


def test_a_broken_arm_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="door stuck; oil it"):
        run(tmp_path, "env.fail_seeds=[0, 1]")


def test_tuning_picks_the_best_trial_for_each_arm_and_cell(tmp_path: Path) -> None:
    tune = "tune: {algo.learning_rate: [1e-3, 3e-4], seeds: [100]}\n"
    done, _ = run(tmp_path, "seeds=[0]", text=STUDY + tune)
    rows = pq.read_table(done.out / "results.parquet").to_pylist()
    tuning = [row for row in rows if row["tuning"]]
    final = [row for row in rows if not row["tuning"]]
    assert len(tuning) == 8 and len(final) == 4
    # the made-up trainer is faster at 3e-4
    assert {row["learning_rate"] for row in final} == {3e-4}
    assert {row["seed"] for row in tuning} == {100}
    html = (done.out / "report.html").read_text()
    assert html.count("<td>chosen</td>") == 4 and "on seeds 100" in html


def test_two_comparisons_never_share_a_folder(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "out").mkdir()
    with (tmp_path / "out/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another comparison is running"):
            run(tmp_path)


def test_a_folder_of_something_else_or_none_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.yaml").write_text("env: {}\n")
    with pytest.raises(UserError, match="holds a run of `stepcredit train`; pass another folder"):
        run(tmp_path)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["config.yaml"]
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "out").write_text("a file")
    with pytest.raises(UserError, match=r"out: is a file, must be a folder; pass another"):
        run(blocked)


def test_ctrl_c_stops_all_workers_and_the_same_command_goes_on(tmp_path: Path) -> None:
    # however slow the machine, half of the runs cannot end before the gate opens
    (tmp_path / "study.yaml").write_text(STUDY + f"set: {{env.gate: {tmp_path / 'gate'}}}\n")
    script = tmp_path / "compare_fake.py"
    script.write_text(
        "import sys\n"
        "import stepcredit.compare\n"
        "from stepcredit.cli import main\n"
        "from tests.face.fakes import runner\n"
        "stepcredit.compare.training_runner = runner\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main())\n"
    )
    command = [sys.executable, str(script), "compare", str(tmp_path / "study.yaml")]
    command += ["--out", str(tmp_path / "out"), "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/runs/*/*/done.json")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    # a terminal's Ctrl-C reaches the whole process group
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert "the same command goes on from there" in told
    assert nobody_left(process.pid)
    kept = len(finish_times(tmp_path / "out"))
    assert 0 < kept <= 4

    (tmp_path / "gate").touch()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert f"({kept} finished before)" in again.stderr
    assert again.stdout.splitlines()[-1] == f"report: {tmp_path / 'out/report.html'}"
    assert len(finish_times(tmp_path / "out")) == 8


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        "from pathlib import Path\n"
        "from stepcredit.workers import Job, WorkerPool\n"
        "from tests.face.fake_trainer import run_one\n"
        "if __name__ == '__main__':\n"
        "    env = {'reward': 'dense', 'turns': 4, 'sleep_s': 60}\n"
        "    algo = {'preset': 'grpo', 'learning_rate': 1e-4}\n"
        "    train = {'seed': 0, 'steps': 9, 'sampled_tokens': 999, 'eval_every': 0}\n"
        "    config = {'env': env, 'algo': algo, 'train': train}\n"
        "    with WorkerPool(1, run_one, Path('log')) as pool:\n"
        "        for event in pool.run([Job(config, Path('run'), 'x')]):\n"
        "            print(event.kind, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "step\n"
    process.kill()
    process.communicate(timeout=30)
    assert nobody_left(process.pid)


def test_biggest_cell_is_the_largest_number_then_the_last_label() -> None:
    cells = [(("T", turns), ("reward", reward)) for turns in (16, 4) for reward in ("a", "b")]
    assert biggest_cell(cells) == (("T", 16), ("reward", "b"))
    assert biggest_cell([()]) == ()


def test_cost_of_a_full_run_from_a_few_steps(tmp_path: Path) -> None:
    # 4 steps of 100 tokens: 3 s for the first (with an evaluation), 1 s, 1 s, 3 s with another;
    # 1000 tokens are 10 steps, evaluated before, at 4, at 8 and after: 10 * 1 + 4 * 2 = 18 s
    clock = [0.0, 3.0, 4.0, 5.0, 8.0]
    rows = [
        {"step": i, "sampled_tokens": 100 * i, "cpu_s": at, "wall_s": 2 * at}
        for i, at in enumerate(clock)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(tmp_path / "done.json", {"config_hash": "", "cpu_s": 13.0, "wall_s": 20.0})
    train = {"sampled_tokens": 1000, "steps": 10**9, "eval_every": 4}
    cost = probed_cost(tmp_path, {"train": train})
    assert (cost.train_cpu_s, cost.train_wall_s) == (18.0, 36.0)
    assert (cost.warm_cpu_s, cost.warm_wall_s) == (5.0, 4.0)
    short = probe_config({"env": {}, "train": train})["train"]
    # A budget smaller than the probe must not end it before its steps can be timed.
    assert (short["steps"], short["sampled_tokens"]) == (4, None)


def test_probes_that_share_a_warm_start_do_not_begin_together() -> None:
    def probe(name: str, turns: int, reward: str) -> tuple[Job, RunSpec]:
        config = {"env": {"turns": turns, "reward": reward}, "model": {"sft": {}}}
        spec = RunSpec(panel="p", cell=(), arm=name, seed=0, config=config, config_hash=name)
        return Job(config, Path(name), name), spec

    probes = [probe("a", 4, "dense"), probe("b", 4, "outcome"), probe("c", 8, "dense")]
    assert [str(job.folder) for job in _warm_starts_apart(probes)] == ["a", "c", "b"]


def test_truth_values_and_numbers_may_share_an_axis_of_two_panels(tmp_path: Path) -> None:
    cells = "panels: {a: {cells: {env.x: [true, false]}}, b: {cells: {env.x: [3, 4.5]}}}"
    done, _ = run(tmp_path, text=STUDY.replace("cells: {env.reward: [outcome, dense]}", cells))
    column = pq.read_table(done.out / "results.parquet").column("cell.x").to_pylist()
    assert set(column) == {"True", "False", "3", "4.5"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("done.json", ""),
        ("done.json", "{}"),
        ("done.json", "[1]"),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", '{"step": 0, "sam'),
        ("metrics.jsonl", '{"step": 0}\n'),
        ("metrics.jsonl", None),
    ],
)
def test_a_run_whose_files_are_broken_is_run_again(
    tmp_path: Path, file: str, text: str | None
) -> None:
    done, _ = run(tmp_path)
    before = pq.read_table(done.out / "results.parquet").drop(["wall_s", "cpu_s"])
    broken = next(done.out.glob("runs/*/*")) / file
    broken.unlink() if text is None else broken.write_text(text)
    others = {k: v for k, v in finish_times(done.out).items() if k != broken.parent.name}
    again, _ = run(tmp_path)
    assert pq.read_table(again.out / "results.parquet").drop(["wall_s", "cpu_s"]) == before
    after = finish_times(again.out)
    assert {k: after[k] for k in others} == others and not again.failed


def test_a_folder_that_takes_no_files_fails_the_runs_and_not_the_study(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/runs").write_text("in the way")
    done, said = run(tmp_path)
    assert len(done.failed) == done.num_runs == 8
    assert "NotADirectoryError" in said and (done.out / "report.html").exists()


def test_a_file_is_whole_or_what_it_was(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    with pytest.raises(OSError, match="full"), whole(page) as part:
        part.write_text("ha")
        raise OSError("full")
    assert page.read_text() == "old"
    with whole(page) as part:
        part.write_text("new")
    assert page.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
