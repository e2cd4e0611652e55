import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepcredit.cli import main
from stepcredit.folders import only_one
from stepcredit.train_command import _success_text
from tests.face.test_compare import ROOT, STUDY

pytestmark = pytest.mark.usefixtures("elsewhere")


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


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
        (["env.trns=3"], "env.trns: unknown parameter 'trns': did you mean env.turns?"),
        (["env.turns=0"], "error: env.turns=0: must be at least 1; pass env.turns=4"),
        (["model.sft.env={turns: 0}"], "error: model.sft.env.turns=0: must be at least 1; pass mo"),
        (["env.id=my/Parity-v0"], "one of your own is named with its module, my_envs:my/Parity-v0"),
        (["env.id=parity"], "one of your own is named with its module, parity:my/Env-v0"),
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


def test_train_needs_a_folder_of_its_own_that_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("env: {id: stepcredit/Doors-v0}\nalgo: {preset: grpo}\n")
    assert main(["train", "run.yaml", "--out", "run.yaml/below"]) == 2
    assert "run.yaml/below: cannot be made: " in told(capsys)
    assert main(["train", "run.yaml", "--out", "run.yaml"]) == 2
    assert "run.yaml: is a file, must be a folder; pass another --out" in told(capsys)
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

    monkeypatch.setattr("stepcredit.train_command._train", interrupted)
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
    text = capsys.readouterr().out
    assert "run folder: runs/run" in text
    assert text.startswith("success on evaluation tasks ")
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
    monkeypatch.setattr("stepcredit.train_command._train", full)
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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["algo.learning_rate=-1"], "algo.learning_rate: -1: must be above 0"),
        (["train.stpes=3"], "did you mean train.steps?"),
        (["model.size=3M"], "must be one of 0.12M"),
        (["env.turns=0"], "env.turns=0: must be at least 1"),
        (["--resume"], "holds no run to resume"),
        (["--out", "old"], "holds a run already"),
        (["--out", "studied"], "holds a study"),
        (["--out", "old/config.yaml"], "is a file, must be a folder"),
    ],
)
def test_a_slip_in_a_command_does_not_wait_for_torch(
    tmp_path: Path, command: list[str], said: str
) -> None:
    for name in ("old/config.yaml", "studied/study.yaml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    argv = ["train", str(ROOT / "studies/train.yaml"), *command]
    code = (
        "import sys\n"
        "from stepcredit.cli import main\n"
        f"print(main({argv!r}), 'torch' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said in done.stderr
    assert done.stdout == "2 False\n"


def test_success_names_the_episodes_it_is_of() -> None:
    assert _success_text({"eval/success": 0.5}) == "success on evaluation tasks 0.500"
    both = {"success": 0.25, "eval/success": 0.5}
    assert _success_text(both) == "success on this step's episodes 0.250"
    assert _success_text({}) == ""
