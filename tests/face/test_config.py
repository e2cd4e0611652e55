from pathlib import Path

import pytest
import yaml

from stepcredit.config import (
    Layered,
    UserError,
    build,
    content_hash,
    dump,
    load_layers,
    override,
    parse_override,
    with_overrides,
)
from stepcredit.explain import nearest
from tests.face.fakes import FakeConfig


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def mistake(layer: Layered) -> str:
    with pytest.raises(UserError) as caught:
        build(FakeConfig, layer)
    return str(caught.value)


def test_base_chain_is_relative_to_each_file(tmp_path: Path) -> None:
    write(tmp_path / "root.yaml", "train: {steps: 5, seed: 1}\nenv: {turns: 2}\n")
    write(tmp_path / "sub/middle.yaml", "base: ../root.yaml\ntrain: {steps: 6}\n")
    top = write(tmp_path / "sub/deep/top.yaml", "base: ../middle.yaml\nenv: {reward: dense}\n")
    values = load_layers(top).values
    assert values == {"train": {"steps": 6, "seed": 1}, "env": {"turns": 2, "reward": "dense"}}


def test_circle_of_bases_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "base: b.yaml\n")
    b = write(tmp_path / "b.yaml", "base: a.yaml\n")
    with pytest.raises(UserError, match=r"b\.yaml -> a\.yaml -> b\.yaml is a circle"):
        load_layers(b)


def test_overrides_come_last_and_are_yaml_scalars(tmp_path: Path) -> None:
    layer = load_layers(write(tmp_path / "a.yaml", "train: {steps: 5}\n"))
    texts = ["train.steps=7", "env.reward=dense", "algo.learning_rate=3e-4", "env.flag=null"]
    config = build(FakeConfig, with_overrides(layer, texts))
    assert config.train.steps == 7
    assert config.algo.learning_rate == 3e-4
    assert config.env.model_extra == {"flag": None}


def test_override_of_a_section_replaces_it() -> None:
    layer = Layered({"env": {"id": "doors", "turns": 4}})
    assert override(layer, {"env": {"id": "luck"}}, "here").values == {"env": {"id": "luck"}}
    assert layer.values == {"env": {"id": "doors", "turns": 4}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3e-4", 3e-4),
        ("a=1e3", 1000.0),
        ("a=on", "on"),
        ("a=no", "no"),
        ("a=true", True),
        ("a=010", "010"),
        ("a=1:30", "1:30"),
        ("a=2024-13-45", "2024-13-45"),
        ("a=0x_", "0x_"),
        ("a=-1_000", -1000),
        ("a=0x1f", 31),
        ("a=0", 0),
    ],
)
def test_yaml_1_1_traps_are_closed(text: str, value: object) -> None:
    found = parse_override(text)[1]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["steps", "=3", "train..steps=3", "train.steps=[1"])
def test_broken_override_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="override"):
        parse_override(text)


def test_override_through_a_value_is_refused() -> None:
    with pytest.raises(UserError, match="steps is 3, not a section"):
        override(Layered({"train": {"steps": 3}}), {"train.steps.x": 1}, "command line")


def test_unknown_key_names_the_nearest_and_its_line(tmp_path: Path) -> None:
    layer = load_layers(write(tmp_path / "run.yaml", "env: {id: doors}\ntrain:\n  stpes: 3\n"))
    text = mistake(layer)
    assert text == "train.stpes: unknown key (did you mean train.steps?; set in run.yaml:3)"


def test_unknown_section_and_override_are_located() -> None:
    text = mistake(with_overrides(Layered(), ["trian.steps=3"]))
    assert text == "trian: unknown key (did you mean train?; set in command line)"


def test_value_out_of_range_gives_value_rule_and_fix() -> None:
    text = mistake(with_overrides(Layered(), ["train.steps=-3"]))
    assert text == ("train.steps: -3: must be at least 1 (pass train.steps=1; set in command line)")


def test_every_mistake_is_one_line(tmp_path: Path) -> None:
    layer = load_layers(
        write(tmp_path / "run.yaml", "train: {steps: many, seed: -1}\nalgo: {preset: grop}\n")
    )
    lines = mistake(layer).splitlines()
    assert len(lines) == 3
    assert "train.steps: 'many': must be a whole number" in "\n".join(lines)
    assert any("algo.preset: 'grop': must be 'ppo', 'ppo_step'" in line for line in lines)


def test_yaml_errors_carry_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bad\.yaml: not valid YAML: .*line 2"):
        load_layers(write(tmp_path / "bad.yaml", "train:\n  steps: [3\n"))
    with pytest.raises(UserError, match=r"twice\.yaml:3: train\.steps is written twice"):
        load_layers(write(tmp_path / "twice.yaml", "train:\n  steps: 3\n  steps: 4\n"))
    with pytest.raises(UserError, match="holds a list"):
        load_layers(write(tmp_path / "list.yaml", "- a\n"))
    with pytest.raises(UserError, match=r"did you mean .*list\.yaml"):
        load_layers(tmp_path / "lst.yaml")


def test_tags_that_run_code_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "evil.yaml", "a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(UserError, match="not valid YAML"):
        load_layers(path)


@pytest.mark.parametrize(
    "text",
    [
        "x: &a {b: *a}\n",
        "x: " + "[" * 3000 + "]" * 3000 + "\n",
        "x: " + "9" * 5000 + "\n",
        "x: !!int many\n",
        "x: !!timestamp 2024-13-45\n",
        "x: \x01\n",
    ],
)
def test_yaml_that_cannot_be_a_value_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"odd\.yaml: not valid YAML: "):
        load_layers(write(tmp_path / "odd.yaml", text))


def test_dump_reads_back_unchanged(tmp_path: Path) -> None:
    config = build(FakeConfig, with_overrides(Layered(), ["algo.learning_rate=1e-5"]))
    values = config.model_dump(mode="json")
    dump(values, tmp_path / "config.yaml")
    assert load_layers(tmp_path / "config.yaml").values == values
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == values


def test_hash_follows_content_not_order() -> None:
    assert content_hash({"a": 1, "b": {"c": 2}}) == content_hash({"b": {"c": 2}, "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": 2})


def test_nearest() -> None:
    assert nearest("grop", ["ppo", "grpo"]) == "grpo"
    assert nearest("zzz", ["ppo", "grpo"]) is None
