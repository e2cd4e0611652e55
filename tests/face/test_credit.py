"""The credit page's rows come from the estimators themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepcredit.agents.trajectory import load_trajectories, save_trajectories
from stepcredit.algos import train
from stepcredit.algos.settings import RunConfig
from stepcredit.credit import credit_rows


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPCREDIT_CACHE", str(folder / "cache"))
        sections: dict[str, dict[str, Any]] = {
            "env": {"id": "stepcredit/Doors-v0", "turns": 3, "reward": "dense"},
            "model": {"size": "0.12M", "sft": {"steps": 30}},
            "algo": {"preset": "ppo_step", "num_generations": 4, "beta": 0.0},
            "train": {"tasks_per_step": 2, "steps": 3, "eval_episodes": 2},
        }
        train(RunConfig.model_validate(sections), folder / "run")
    return folder / "run"


def test_one_row_for_each_estimator_and_placement(run_dir: Path) -> None:
    rows = credit_rows(run_dir)
    assert len(rows) == 7
    assert len({tuple(row.tokens) for row in rows}) == 1, "it is the same trajectory in every row"
    assert [row.values is not None for row in rows] == [False] * 6 + [True]
    for row in rows:
        given = [a is not None for a in row.advantages]
        assert given == row.action_mask


def test_outcome_grpo_says_one_number_and_dense_totals_agree(run_dir: Path) -> None:
    rows = {row.label.split(":")[0]: row for row in credit_rows(run_dir)}
    for placement in ("outcome", "dense@end", "dense"):
        scores = {a for a in rows[f"GRPO, {placement}"].advantages if a is not None}
        assert len(scores) == 1
    earned = rows["GRPO, dense"]
    paid_late = rows["GRPO, dense@end"]
    assert sum(earned.rewards) == pytest.approx(sum(paid_late.rewards))
    assert earned.advantages == pytest.approx(paid_late.advantages)


def test_process_credit_only_counts_steps_still_to_come(run_dir: Path) -> None:
    (row,) = [r for r in credit_rows(run_dir) if r.label.startswith("process GRPO, dense:")]
    by_turn = list(dict.fromkeys(a for a in row.advantages if a is not None))
    assert len(by_turn) > 1, "three turns that paid differently cannot share one number"


def test_the_critics_row_is_what_training_made_of_the_rewards(run_dir: Path) -> None:
    (file,) = (run_dir / "trajectories").glob("*.parquet")
    trained = load_trajectories(file)
    row = credit_rows(run_dir)[-1]
    (same,) = [t for t in trained if t.values is not None and t.values.tolist() == row.values]
    assert same.advantages is not None
    shown = [a for a in row.advantages if a is not None]
    assert shown == same.advantages[same.action_mask].tolist()


def test_a_run_without_saved_trajectories_says_so(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "config.yaml").write_text((run_dir / "config.yaml").read_text())
    with pytest.raises(ValueError, match="no trajectories saved"):
        credit_rows(tmp_path)


def test_without_a_critic_there_are_group_rows_alone(run_dir: Path, tmp_path: Path) -> None:
    (file,) = (run_dir / "trajectories").glob("*.parquet")
    plain = [replace(t, values=None) for t in load_trajectories(file)]
    (tmp_path / "trajectories").mkdir()
    save_trajectories(tmp_path / "trajectories" / file.name, plain)
    (tmp_path / "config.yaml").write_text((run_dir / "config.yaml").read_text())
    assert len(credit_rows(tmp_path)) == 6
