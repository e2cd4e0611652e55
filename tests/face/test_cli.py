import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepcredit.cli import EXAMPLES, main
from stepcredit.config import only_one
from tests.face.fakes import runner
from tests.face.test_compare import STUDY


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_command_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert f"stepcredit {name}" in capsys.readouterr().out.split("examples:")[1]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['stepcredit', '--help']\n"
        "from stepcredit.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'scipy', 'matplotlib', 'pyarrow', 'jinja2'} & set(sys.modules)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_misspelt_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["comapre"])
    assert left.value.code == 2
    assert "comapre: no such command; did you mean compare?" in told(capsys)


def test_envs_lists_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert "stepcredit/Doors-v0" in {row["id"] for row in rows}
    assert main(["envs"]) == 0
    assert "stepcredit/Doors-v0" in capsys.readouterr().out


def test_check_passes_finds_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "stepcredit/Doors-v0", "turns=2"]) == 0
    assert "keeps every rule" in capsys.readouterr().out
    assert main(["check", "stepcredit/Dors-v0"]) == 2
    assert "Doors-v0" in told(capsys)
    (tmp_path / "broken_envs.py").write_text(
        "import stepcredit.envs as envs\n"
        "class Broken(envs.Env):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed, options=options)\n"
        "        return 'hello', {}\n"
        "    def step(self, action):\n"
        "        return 'bye', float('nan'), True, False, {'outcome': 1.0}\n"
        "envs.register('my/Broken-v0', Broken)\n"
    )
    assert main(["check", "broken_envs:my/Broken-v0", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)
    assert "finite" in {problem["rule"] for problem in problems}
    assert main(["check", "broken_envs:my/Broken-v0"]) == 1
    assert "fix:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trian.steps=3"], "did you mean train?"),
        (["train.stpes=3"], "did you mean train.steps?"),
        (["train.steps=-3"], "train.steps: -3: must be at least 0"),
        (["algo.num_generations=1"], "algo.num_generations=1: grpo compares the samples"),
        (["algo.lamm=1", "algo.preset=ppo"], "did you mean algo.lam?"),
        (
            ["algo.presett=grpo"],
            "algo.presett: grpo has no such setting (did you mean algo.preset",
        ),
        (["algo.preset=grop"], "did you mean grpo?"),
        (["env.id=stepcredit/Dors-v0"], "Doors-v0"),
        (["env.trns=3"], "turns"),
        (["env.reward=densse"], "did you mean 'dense'?"),
        (["train.steps"], "write it as section.key=value"),
    ],
)
def test_mistakes_in_a_run_are_one_line_each(
    tmp_path: Path, overrides: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    assert main(["train", "run.yaml", *overrides]) == 2
    text = told(capsys)
    assert text.startswith("error: ") and said in text and "Traceback" not in text
    assert not (tmp_path / "runs").exists()


def test_missing_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read: No such file or directory" in told(capsys)
    assert main(["compare", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read" in told(capsys)
    assert main(["grade", "code", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl: no such file" in told(capsys)


def test_train_never_overwrites_a_run_and_never_resumes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    assert main(["train", "run.yaml", "--resume"]) == 2
    assert "holds no run to resume" in told(capsys)
    (tmp_path / "runs/run").mkdir(parents=True)
    (tmp_path / "runs/run/config.yaml").write_text("")
    assert main(["train", "run.yaml"]) == 2
    assert "pass --resume, or --out" in told(capsys)


def test_compare_prints_claims_and_where_the_report_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepcredit.compare.training_runner", runner)
    claims = "claims: [{difference: dense - outcome, at: {arm: grpo}}]\n"
    (tmp_path / "study.yaml").write_text(STUDY + claims)
    assert main(["compare", "study.yaml", "seeds=[0, 1, 2]", "--workers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 12 and found["failed"] == []
    assert found["claims"] == [
        {"claim": "dense - outcome excludes 0 at arm = grpo, on AUC", "met": True, "reason": ""}
    ]
    assert Path(found["report"]).exists()
    failing = ["compare", "study.yaml", "seeds=[0, 1]", "env.fail_seeds=[1]", "--workers", "2"]
    assert main(failing) == 1
    captured = capsys.readouterr()
    told_in_text = "cannot tell dense - outcome excludes 0 at arm = grpo, on AUC (needs at least 2"
    assert told_in_text in captured.out
    assert "4 runs failed" in captured.err


def test_compare_says_why_a_claim_is_not_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepcredit.compare.training_runner", runner)
    claims = "claims: [{difference: final - start, expect: at_least, margin: 0.9}]\n"
    (tmp_path / "study.yaml").write_text(STUDY + claims)
    command = ["compare", "study.yaml", "--workers", "2"]
    assert main(command) == 0
    told_in_text = capsys.readouterr().out.splitlines()[0]
    assert told_in_text.startswith("not met     final - start is at least .90 (final - start at ")
    assert " is below .90; 3 more)" in told_in_text
    assert main([*command, "seeds=[0]", "--json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert claim["met"] is None and claim["reason"] == "needs at least 2 seeds"


def test_train_and_compare_name_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    assert main(["train", "study.yaml"]) == 2
    assert "study.yaml: is a study; use: stepcredit compare study.yaml" in told(capsys)
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    assert main(["compare", "run.yaml"]) == 2
    assert "is the config of one run; use: stepcredit train run.yaml" in told(capsys)


def test_train_needs_a_folder_of_its_own_that_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    assert main(["train", "run.yaml", "--out", "run.yaml/below"]) == 2
    assert "run.yaml/below: cannot be written: Not a directory; pass another" in told(capsys)
    (tmp_path / "studied").mkdir()
    (tmp_path / "studied/study.yaml").write_text(STUDY)
    assert main(["train", "run.yaml", "--out", "studied"]) == 2
    assert "studied: holds a study; pass another folder as --out" in told(capsys)


def test_ctrl_c_in_train_says_from_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(
        "env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\ntrain: {save_every: 7}\n"
    )
    left: list[str] = []

    def interrupted(config: object, out: Path, *_: object) -> None:
        for name in left:
            path = tmp_path / out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"step": 14}')
        raise KeyboardInterrupt

    monkeypatch.setattr("stepcredit.commands._train", interrupted)
    command = ["train", "run.yaml", "train.seed=3", "--out", "here"]
    again = "stepcredit train run.yaml train.seed=3 --out here"
    assert main(command) == 130
    assert f"before anything was written; start again with: {again}\n" in told(capsys)
    left.append("config.yaml")
    assert main(command) == 130
    text = told(capsys)
    assert "stopped before the first checkpoint (train.save_every=7)" in text
    assert text.endswith(f"--resume starts from step 0: {again} --resume\n")
    left.append("checkpoints/step-000014/counters.json")
    command[-1] = "there"
    assert main(command) == 130
    assert "stopped; go on from step 14 with: stepcredit train run.yaml" in told(capsys)


def test_compare_refuses_above_the_budget_and_bad_worker_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepcredit.compare.training_runner", runner)
    (tmp_path / "study.yaml").write_text(STUDY)
    assert main(["compare", "study.yaml", "--workers", "0"]) == 2
    assert "--workers 0: must be at least 1" in told(capsys)
    assert main(["compare", "study.yaml", "budget.cpu_hours=1e-6"]) == 2
    assert "error: budget.cpu_hours=1e-06: the runs need" in told(capsys)


def test_sandbox_shows_what_was_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepcredit.sandbox import BackendReport

    def report(name: str, available: bool) -> BackendReport:
        guarantees = {"network": available, "memory": True}
        reason = "" if available else "no bwrap"
        return BackendReport(
            name=name, available=available, guarantees=guarantees, reason=reason, fix="get it"
        )

    reports = [report("bwrap", True), report("unsafe_local", True)]
    monkeypatch.setattr("stepcredit.sandbox.probe", lambda: reports)
    assert main(["sandbox"]) == 0
    text = capsys.readouterr().out
    assert "bwrap: works" in text and "unsafe_local: no jail" in text and "proved: network" in text
    reports[0] = report("bwrap", False)
    assert main(["sandbox", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found[0]["reason"] == "no bwrap" and found[0]["guarantees"]["network"] is False


@pytest.mark.filterwarnings("ignore:unsafe_local")
def test_grade_writes_verdicts_and_tells_bad_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        {"id": 7, "code": "def f(x): return 2 * x", "tests": ["assert f(2) == 4"]},
        {"code": "def f(x): return x", "tests": ["assert f(2) == 4", "assert f(0) == 0"]},
    ]
    good = "".join(json.dumps(row) + "\n" for row in answers)
    (tmp_path / "a.jsonl").write_text(good)
    grade = ["grade", "code", "a.jsonl", "--backend", "unsafe_local"]
    assert main([*grade, "--out", "b.jsonl"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [(row["passed"], row["total"]) for row in rows] == [(1, 1), (1, 2)]
    assert rows[0]["id"] == 7
    assert "2 graded" in told(capsys)
    (tmp_path / "a.jsonl").write_text(good + "not json\n")
    assert main(grade) == 1
    captured = capsys.readouterr()
    assert "line 3" in captured.out.splitlines()[2] and "1 error" in captured.err
    assert main([*grade, "--out", "a.jsonl"]) == 2
    assert "is the file being read" in told(capsys)
    assert (tmp_path / "a.jsonl").read_text().startswith(good)


def test_grade_with_an_unknown_backend_leaves_an_old_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"code": "", "tests": []}) + "\n")
    (tmp_path / "old.jsonl").write_text("precious")
    assert main(["grade", "code", "a.jsonl", "--backend", "bwarp", "--out", "old.jsonl"]) == 2
    assert "bwarp" in told(capsys)
    assert (tmp_path / "old.jsonl").read_text() == "precious"


def test_train_leaves_a_run_folder_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text(
        "env: {id: stepcredit/Doors-v0, turns: 2, reward: dense}\n"
        "model: {size: 0.12M, sft: {steps: 3}}\n"
        "algo: {preset: grpo, num_generations: 2}\n"
        "train: {tasks_per_step: 1, steps: 2, eval_every: 1, eval_episodes: 2}\n"
    )
    assert main(["train", "run.yaml", "train.seed=3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == "runs/run" and found["steps"] == 2
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "checkpoints", "trajectories"):
        assert (tmp_path / "runs/run" / name).exists()
    assert "seed: 3" in (tmp_path / "runs/run/config.yaml").read_text()
    assert main(["train", "run.yaml", "train.seed=3", "--resume"]) == 0
    assert "run folder: runs/run" in capsys.readouterr().out
    assert main(["train", "run.yaml", "train.seed=4", "--resume"]) == 2
    assert "another config" in told(capsys)
    assert main(["train", "run.yaml", "model.size=3M", "--out", "other"]) == 2
    assert "3M" in told(capsys)


def test_a_second_training_in_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    (tmp_path / "here").mkdir()
    with only_one(tmp_path / "here", "training"):
        assert main(["train", "run.yaml", "--out", "here"]) == 2
    assert "here: another training is running here; pass --out" in told(capsys)
    assert not (tmp_path / "here/config.yaml").exists()


def test_a_full_disk_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    monkeypatch.setattr("stepcredit.commands._train", full)
    assert main(["train", "run.yaml", "--out", "here"]) == 2
    text = told(capsys)
    assert (
        text == "error: nothing more could be written: No space left on device; free some space\n"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.sft.env={turns: 0}", "turns=0"),
        ("model.sft.env={trns: 4}", "trns"),
        ("algo.learning_rate=.inf", "algo.learning_rate: inf: must be finite"),
        ("algo.beta=.inf", "algo.beta=inf"),
        ("rollout.temperature=.inf", "rollout.temperature: inf: must be finite"),
    ],
)
def test_settings_that_no_run_can_have_are_refused_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, said: str
) -> None:
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    assert main(["train", "run.yaml", change, "--out", "here"]) == 2
    assert said in told(capsys) and not (tmp_path / "here").exists()
