from collections import defaultdict
from pathlib import Path

import pytest

from stepcredit.config import UserError
from stepcredit.plan import RunSpec, expand, tuning_runs
from stepcredit.study import Study, load_study
from tests.face.fakes import build_config

STUDY = """
title: Doors
base: train.yaml
budget: {sampled_tokens: 2560, cpu_hours: 0.3}
seeds: [0, 1, 2]
arms: {ppo_step: {algo.preset: ppo_step}, grpo: {algo.preset: grpo}}
cells: {env.turns: [4, 16], env.reward: [outcome, dense]}
"""
PANELS = """
budget: {sampled_tokens: 2560, cpu_hours: 0.3}
set: {algo.learning_rate: 1e-3}
seeds: [0, 1]
tune: {algo.learning_rate: [3e-4, 1e-3], seeds: [100, 101]}
panels:
  doors:
    arms: {a: {}, b: {algo.preset: ppo}}
    cells: {T: {4: {env.turns: 4, train.eval_every: 9}, 16: {env.turns: 16}}}
  luck:
    set: {env: {id: luck}}
    seeds: [7]
    tune: null
    metric: outcome
    arms: {a: {}}
"""


def load(tmp_path: Path, text: str, *overrides: str) -> Study:
    (tmp_path / "train.yaml").write_text("env: {id: doors, size: 5}\ntrain: {eval_every: 3}\n")
    (tmp_path / "study.yaml").write_text(text)
    return load_study(tmp_path / "study.yaml", overrides)


def refused(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        study = load(tmp_path, text, *overrides)
        expand(study, build_config)
    return str(caught.value)


def test_every_arm_of_a_cell_runs_the_same_seeds_to_the_same_tokens(tmp_path: Path) -> None:
    specs = expand(load(tmp_path, STUDY), build_config)
    assert len(specs) == 2 * 2 * 2 * 3
    seeds = defaultdict(list)
    for spec in specs:
        seeds[spec.group].append(spec.seed)
        assert spec.config["train"]["seed"] == spec.seed
        assert spec.config["train"]["sampled_tokens"] == 2560
        assert spec.config["train"]["steps"] > 10**6
        assert spec.config["env"]["size"] == 5 and spec.config["train"]["eval_every"] == 3
    assert all(mine == [0, 1, 2] for mine in seeds.values()) and len(seeds) == 8


def test_cell_and_arm_reach_the_config(tmp_path: Path) -> None:
    specs = expand(load(tmp_path, STUDY), build_config)
    spec = next(s for s in specs if s.arm == "ppo_step" and dict(s.cell)["turns"] == 16)
    assert spec.config["algo"]["preset"] == "ppo_step"
    assert spec.config["env"]["turns"] == 16
    assert spec.cell == (("turns", 16), ("reward", "outcome"))


def test_folder_changes_with_the_config_alone(tmp_path: Path) -> None:
    def names(*overrides: str) -> set[str]:
        return {s.name for s in expand(load(tmp_path, STUDY, *overrides), build_config)}

    assert names() == names("title=Other", "budget.cpu_hours=2")
    assert not names() & names("train.eval_every=4")
    assert len(names()) == 24


def test_overrides_reach_the_file_or_every_run(tmp_path: Path) -> None:
    study = load(tmp_path, STUDY, "seeds=[5]", "train.sampled_tokens=99", "budget.cpu_hours=2")
    specs = expand(study, build_config)
    assert {s.seed for s in specs} == {5}
    assert {s.config["train"]["sampled_tokens"] for s in specs} == {99}
    assert study.file.budget.cpu_hours == 2


def test_panels_inherit_and_override(tmp_path: Path) -> None:
    study = load(tmp_path, PANELS)
    assert study.file.panels["luck"].metric == "outcome"
    specs = expand(study, build_config)
    luck = [s for s in specs if s.panel == "luck"]
    assert [s.seed for s in luck] == [7]
    assert luck[0].config["env"]["id"] == "luck"
    assert luck[0].config["algo"]["learning_rate"] == 1e-3
    doors = [s for s in specs if s.panel == "doors" and dict(s.cell)["T"] == 4]
    assert {s.config["train"]["eval_every"] for s in doors} == {9}


def test_tuning_gives_every_arm_of_a_cell_the_same_trials(tmp_path: Path) -> None:
    study = load(tmp_path, PANELS)
    trials = tuning_runs(study, build_config)
    by_group: dict[object, list[tuple[object, int]]] = defaultdict(list)
    for spec in trials:
        by_group[spec.group].append((spec.trial, spec.seed))
    assert len(by_group) == 4 and len({tuple(mine) for mine in by_group.values()}) == 1
    assert {s.seed for s in trials} == {100, 101}
    group = trials[0].group
    chosen: dict[object, dict[str, float]] = {group: {"algo.learning_rate": 1e-3}}
    specs = expand(study, build_config, chosen)  # type: ignore[arg-type]  # keys are groups

    def rates(tuned: bool) -> set[float]:
        return {rate(s) for s in specs if s.panel == "doors" and (s.group == group) is tuned}

    def rate(spec: RunSpec) -> float:
        return float(spec.config["algo"]["learning_rate"])

    assert rates(True) == {1e-3} and rates(False) == {3e-4}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds:", "seed:", "seed: unknown key (did you mean seeds?; set in study.yaml:5)"),
        ("cpu_hours: 0.3", "cpu_hours: 0", "budget.cpu_hours: 0: must be above 0"),
        ("env.turns: [4, 16]", "evn.turns: [4, 16]", "evn.turns: unknown key (did you mean env?"),
        ("env.turns: [4, 16]", "env.turns: [4, -1]", "env.turns: -1: must be at least 1"),
        ("algo.preset: grpo}", "algo.preset: grop}", "must be 'ppo'"),
        ("[0, 1, 2]", "[0, 0]", "seeds: [0, 0]: 0 is listed twice; a seed is one run"),
        ("[0, 1, 2]", "[]", "seeds: []: must hold at least 1"),
        ("grpo: {", "g/rpo: {", "an arm's name is letters"),
        ("base: train.yaml", "base: trian.yaml", "did you mean"),
        ("[outcome, dense]", "dense", "cells.env.reward: 'dense': must be a list"),
        ("env.turns:", "algo.reward:", "two axes are called reward"),
        ("[outcome, dense]", "[dense, dense]", "'dense' is listed twice"),
        ("[4, 16]", "[1, true]", "True is listed twice"),
        ("[4, 16]", "[]", "turns has no labels"),
        ("[4, 16]", "{}", "env.turns has no labels"),
        ("[0, 1, 2]", "[99999999999999999999]", "must be below 9223372036854775808"),
        ("cpu_hours: 0.3", "cpu_hours: .inf", "budget.cpu_hours: inf: must be finite"),
        ("title: Doors", "1: Doors", "1: unknown key (known: base"),
        ("title: Doors", "null: Doors", "None: unknown key (known: base"),
        ("title: Doors", "set: {train.seed: 3}", "train.seed: is what `seeds` sets"),
        ("env.turns:", "train.seed:", "train.seed: is what `seeds` sets"),
        ("title: Doors", "tune: {train.seed: [3], seeds: [9]}", "train.seed: is what `seeds` sets"),
        ("algo.preset: grpo}", "env.turns: 4}", "env.turns: would overwrite env.turns, an axis of"),
        ("algo.preset: grpo}", "env: {id: luck}}", "env: would overwrite env.turns, an axis of"),
        (
            "title: Doors",
            "tune: {algo.preset: [grpo], seeds: [9]}",
            "algo.preset: would overwrite algo.preset, tuned in panel study",
        ),
        (
            "env.turns: [4, 16]",
            "T: {4: {env.turns: 4}, 16: {env.turns: 4}}",
            "T = 4, reward = outcome and T = 16, reward = outcome: are the same run",
        ),
        ("algo.preset: grpo}", "algo.preset: ppo_step}", "arm ppo_step and arm grpo: are the same"),
        (
            "algo.preset: grpo}",
            "algo.preset: grpo, train.steps: 9}",
            "train.steps=9: the arms of a cell are matched at",
        ),
        ("title: Doors", "set: {train: {seed: 3}}", "would drop the budget"),
        ("title: Doors", "set: {train.sampled_tokens: null}", "train.sampled_tokens"),
        (
            "algo.preset: grpo}",
            "algo.preset: grpo, train.sampled_tokens: 9}",
            "train.sampled_tokens=9: the arms of a cell are matched at 2560",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in STUDY
    assert said in refused(tmp_path, STUDY.replace(old, new))


@pytest.mark.parametrize(
    ("text", "override", "said"),
    [
        (PANELS, "seeds=[]", "seeds: []: must hold at least 1 (set in command line)"),
        (PANELS, "seeds=[0, 0]", "seeds: [0, 0]: 0 is listed twice; a seed is one run (set in"),
        (PANELS, "seds=[0]", "seds: unknown key (did you mean seeds?; set in command line)"),
        (STUDY, "cliams=[]", "cliams: unknown key (did you mean claims?; set in command line)"),
        (STUDY, "train.seed=3", "train.seed: is what `seeds` sets; pass seeds=[3] (set in command"),
        (STUDY, "env.turns=8", "env.turns: would overwrite env.turns, an axis of panel study; ch"),
        (STUDY, "env={id: x}", "env: would overwrite env.turns, an axis of panel study; change"),
        (PANELS, "algo.learning_rate=1", "algo.learning_rate: would overwrite algo.learning_rate"),
        (STUDY, "trian.steps=3", "trian: unknown key (did you mean train?; set in command line)"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_line_blamed_on_it(
    tmp_path: Path, text: str, override: str, said: str
) -> None:
    told = refused(tmp_path, text, override)
    assert told.startswith(said) and "\n" not in told and "command line" in told


def test_the_config_of_a_run_is_no_study(tmp_path: Path) -> None:
    told = refused(tmp_path, "env: {id: doors}\ntrain: {steps: 3}\n", "seeds=[0]")
    path = tmp_path / "study.yaml"
    assert told == f"{path}: is the config of one run; use: stepcredit train {path}"


def test_tuning_mistakes_are_named(tmp_path: Path) -> None:
    line = "tune: {algo.learning_rate: [3e-4, 1e-3], seeds: [100, 101]}"
    shared = PANELS.replace(line, "tune: {algo.learning_rate: [3e-4], seeds: [1]}")
    assert "tune on seeds of its own" in refused(tmp_path, shared)
    bare = PANELS.replace(line, "tune: {learning_rate: [3e-4], seeds: [100]}")
    assert "write algo.learning_rate" in refused(tmp_path, bare)


def test_mistake_says_where_in_the_study_it_stands(tmp_path: Path) -> None:
    text = refused(tmp_path, STUDY.replace("algo.preset: grpo}", "train.stpes: 3}"))
    assert "did you mean train.steps?" in text
    assert text.startswith("panel study, arm grpo, turns = 4, reward = outcome:\n")
    assert "set in panel study, arm grpo" in text


def test_true_and_false_stay_themselves_on_an_axis(tmp_path: Path) -> None:
    text = STUDY.replace("env.turns: [4, 16]", "env.shuffled: [true, false]")
    specs = expand(load(tmp_path, text), build_config)
    assert {str(spec.config["env"]["shuffled"]) for spec in specs} == {"True", "False"}


def test_a_panel_is_a_folder_of_its_own(tmp_path: Path) -> None:
    for name in (".", ".."):
        told = refused(tmp_path, PANELS.replace("  luck:", f"  {name}:"))
        assert told.startswith(f"panels.{name}: a panel's name is letters")


def test_a_long_label_still_names_a_folder(tmp_path: Path) -> None:
    text = STUDY.replace("env.turns: [4, 16]", "T: {%s: {env.turns: 4}}" % ("long" * 99))
    names = [Path(s.name).name for s in expand(load(tmp_path, text), build_config)]
    assert len(set(names)) == 2 * 2 * 3 and max(map(len, names)) < 200
