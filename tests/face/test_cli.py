import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepcredit.cli import EXAMPLES, main
from tests.face.fakes import runner
from tests.face.test_compare import ROOT, STUDY

pytestmark = pytest.mark.usefixtures("elsewhere")


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


def test_every_config_in_an_example_is_there() -> None:
    words = [word for text in EXAMPLES.values() for word in text.split()]
    named = {word for word in words if word.endswith(".yaml")}
    assert named and all((ROOT / name).exists() for name in named)


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


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_narrow_table_breaks_no_name(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["envs"]) == 0
    text = capsys.readouterr().out
    words = text.split()
    assert "`" not in text
    for whole in ("stepcredit/Program-v0", "hard_share=0.3,", "world_seed=0,", "sandbox=auto"):
        assert whole in words


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
    assert main(["check", "stepcredit/Doors-v0", "turns=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert "finite" in {problem["rule"] for problem in problems}
    assert main(["check", "broken_envs:my/Broken-v0"]) == 1
    assert "fix:" in capsys.readouterr().out


def test_missing_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read: No such file or directory" in told(capsys)
    assert main(["compare", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read" in told(capsys)
    assert main(["grade", "code", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl: no such file" in told(capsys)


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


def test_compare_refuses_above_the_budget_and_bad_worker_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepcredit.compare.training_runner", runner)
    (tmp_path / "study.yaml").write_text(STUDY)
    assert main(["compare", "study.yaml", "--workers", "0"]) == 2
    assert "--workers 0: must be at least 1" in told(capsys)
    with pytest.raises(SystemExit):
        main(["compare", "study.yaml", "--workers", "abc"])
    assert told(capsys).startswith("error: --workers abc: must be a whole number\n")
    assert main(["compare", "study.yaml", "budget.cpu_hours=1e-6"]) == 2
    assert "error: budget.cpu_hours=1e-06: the runs need" in told(capsys)


def test_an_empty_study_says_what_a_study_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert main(["compare", "empty.yaml"]) == 2
    said = told(capsys)
    assert "empty.yaml: holds nothing; a study needs" in said and "studies/quick.yaml" in said
