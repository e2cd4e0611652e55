"""The pages of docs/algorithms say what the code does: presets, settings, tests, links, example."""

import re
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from stepcredit.algos import ALGORITHMS, Algorithm, train
from stepcredit.algos.algorithm import MonteCarlo
from stepcredit.algos.presets import ALIASES, build, summary
from stepcredit.algos.settings import AlgoSettings
from tests.algos.runs import config
from tests.algos.test_presets import one_token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/algorithms"
INDEX = (DOCS / "README.md").read_text()
PAGES = sorted(DOCS.glob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])

Rows = list[list[str]]


def table(text: str, heading: str) -> Rows:
    """The cells of the first table under a heading, its own heading left out."""
    section = re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    lines = re.findall(r"^\|.*\|$", section, flags=re.M)
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def names(rows: Rows, column: int = 0) -> list[str]:
    return [row[column].strip("`") for row in rows]


PRESETS = {re.findall(r"`(\w+)`", row[0])[0]: row for row in table(INDEX, "Algorithms")}


def page_of(preset: str) -> str:
    (name,) = re.findall(r"\]\((\w+\.md)\)", PRESETS[preset][0])
    return (DOCS / name).read_text()


def part(function: Any) -> str:
    """The name of a function, settings bound to it or not."""
    name: str = (function.func if isinstance(function, partial) else function).__name__
    return name


# --- the index ----------------------------------------------------------------------------------


def test_the_index_has_every_preset_once_and_in_order() -> None:
    rows = table(INDEX, "Algorithms")
    assert [re.findall(r"`(\w+)`", row[0]) for row in rows] == [[name] for name in ALGORITHMS]


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_the_index_says_what_a_preset_is_and_needs(preset: str) -> None:
    _, line, _, _, weight, kl, needs = PRESETS[preset]
    algorithm = build(preset, {})
    assert line == summary(preset)
    assert weight == f"`{part(algorithm.weight)}`"
    assert kl == kl_of(algorithm)
    assert needs == (", ".join(needs_of(algorithm)) or "nothing")


def kl_of(algorithm: Algorithm) -> str:
    if algorithm.kl is None:
        return "none"
    term = {"reward": "k1", "loss": "k3"}[algorithm.kl.place]
    return f"{term} in the {algorithm.kl.place}, {algorithm.kl.beta}"


def needs_of(algorithm: Algorithm) -> list[str]:
    group = algorithm.min_members > 1
    found = {
        "critic": algorithm.critic is not None,
        "replay": isinstance(algorithm.baseline, MonteCarlo),
        "group": group,
        "judged steps": group and algorithm.reads == "steps",
        "state_key": algorithm.needs_states,
        "top-K": algorithm.topk > 0,
        "mixing": algorithm.mixing is not None,
        "reference": algorithm.kl is not None,
    }
    return [name for name, needed in found.items() if needed]


def test_from_ppo_to_grpo_names_what_they_are_made_of() -> None:
    rows = table(INDEX, "PPO to GRPO in ten lines")
    assert len(rows) == 10
    for field, *cells, _ in rows:
        for preset, cell in zip(("ppo", "grpo"), cells, strict=False):
            algorithm = build(preset, {})
            if field == "`advantage`":
                assert cell.strip("`") in algorithm.advantage.__code__.co_names
                continue
            value: Any = algorithm
            for name in field.strip("`").split("."):
                value = getattr(value, name)
            shown = part(value) if callable(value) else value
            shown = type(shown).__name__ if field == "`baseline`" and shown else str(shown)
            assert cell == f"`{shown}`", f"{preset} {field}"


def test_verls_names_are_all_there() -> None:
    rows = table(INDEX, "Names that verl uses")
    ours = [tuple(re.findall(r"`(\w+)`", row[1])) for row in rows]
    assert dict(zip(names(rows), ours, strict=True)) == ALIASES


def test_metrics_exist() -> None:
    source = (ROOT / "stepcredit/algos/metrics.py").read_text()
    for name in names(table(INDEX, "Groups"), -1):
        assert f'"{name}"' in source, name


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_a_page_lists_the_settings_of_its_preset(preset: str) -> None:
    page = page_of(preset)
    assert f"`{preset}`" in page.splitlines()[0]
    rows = table(page, "Settings")
    assert all(len(row) == 3 and row[2] for row in rows)
    # Where presets share a page, a setting of one says so: "`preset` alone has it".
    rows = [row for row in rows if preset in (re.findall(r"`(\w+)` alone", row[2]) or [preset])]
    shown = dict(zip(names(rows), (yaml.safe_load(row[1]) for row in rows), strict=True))
    assert shown == {f.name: f.default for f in fields(ALGORITHMS[preset][1])}


def test_the_settings_of_every_preset() -> None:
    rows = table(INDEX, "Settings of every preset")
    shown = dict(zip(names(rows), (yaml.safe_load(row[1]) for row in rows), strict=True))
    known = AlgoSettings.model_fields.items()
    assert shown == {name: "required" if f.is_required() else f.default for name, f in known}


# --- what a page refers to ----------------------------------------------------------------------


@each_page
def test_named_tests_exist(page: Path) -> None:
    sources = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert named, "no test is named"
    assert not named - set(re.findall(r"^def (test_\w+)\(", sources, flags=re.M))


@each_page
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    for target, _, anchor in (t.partition("#") for t in re.findall(r"\]\(([^)]+)\)", text)):
        file = page.parent / target if target else page
        assert file.is_file(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.M)
        slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
        assert not anchor or anchor in slugs, f"{target}#{anchor}"
    for file in re.findall(r"`((?:stepcredit|tests)/[\w/]+\.py)`", text):
        assert (ROOT / file).is_file(), file


@each_page
def test_every_page_has_a_source_and_is_linked(page: Path) -> None:
    if page.name != "README.md":
        assert re.search(r"arXiv:\d{4}\.\d{5}", page.read_text())
        assert f"({page.name})" in INDEX


# --- the example --------------------------------------------------------------------------------


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(# mine\.py\n.*?)```", INDEX, flags=re.S)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STEPCREDIT_CACHE", str(tmp_path / "warm-starts"))
    (preset, setting) = re.findall(r"algo\.preset=(mine:\w+) algo\.(\S+)", INDEX)[0]
    name, _, value = setting.partition("=")
    algo = {"preset": preset, name: yaml.safe_load(value)}
    assert build(preset, {}).min_members == 2
    # What the text says it is: grpo_process_returns with a discount.
    steps = torch.ones(2, 2).bool()
    rewards = torch.tensor([[0.0, 1], [0, 0]])
    batch = replace(one_token(), action_mask=steps, step_end=steps, rewards=rewards)
    batch = replace(batch, group_index=torch.zeros(2, dtype=torch.int64))
    published = build("grpo_process_returns", {}).advantage(batch).advantages
    undiscounted = build(preset, {name: 1.0}).advantage(batch).advantages
    assert undiscounted.tolist() == published.tolist()
    early, late = build(preset, {name: yaml.safe_load(value)}).advantage(batch).advantages[0]
    assert 0 < early < late
    summary = train(config(algo=algo, train={"steps": 2}), tmp_path / "run")
    assert summary["final"]["step"] == 2
