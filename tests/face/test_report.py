import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stepcredit.credit_choice import credit_part, how_telling
from stepcredit.credit_page import CreditRow, colour, render_credit, visible
from stepcredit.figure import PALETTE, arm_colours, seed_band
from stepcredit.plan import RunSpec
from stepcredit.report import whisker
from stepcredit.results import Result
from stepcredit.statistics import Interval
from stepcredit.study import StudyFile
from tests.face.fakes import credit_rows
from tests.face.test_compare import STUDY, run

CLAIMS = """
claims:
  - {difference: dense - outcome, at: {arm: grpo}, expect: above_zero}
  - {difference: ppo_step - grpo, at: {reward: outcome}, expect: within, margin: .001}
"""


class Links(HTMLParser):
    """Everything a page would load, and whether tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.scripts = 0
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.loaded += [v for k, v in attrs if k in ("src", "href", "srcset") and v]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag


def test_report_is_one_self_contained_page(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "seeds=[0, 1, 2]", "title=Rewards <&> credit", text=STUDY + CLAIMS)
    html = (done.out / "report.html").read_text()
    page = Links()
    page.feed(html)
    assert page.scripts == 0 and page.open == []
    assert page.loaded and all(link.startswith("data:") for link in page.loaded)
    assert not re.search(r"url\(|@import|https?://", html)
    assert "Rewards &lt;&amp;&gt; credit" in html and "Rewards <&>" not in html
    assert [claim.met for claim in done.claims] == [True, False]
    assert "dense - outcome: content and placement together" in html
    assert "dense is above outcome by" in html and "paired, n=3, 95 %" in html
    assert ">not met<" in html and ">met<" in html
    assert re.search(r"<b>not met: the (upper|lower) end -?\.\d+ is beyond -?\.001</b>", html)
    assert "of 18 min allowed" in html
    assert '<td class="name">ppo_step - grpo</td>' in html
    assert "<dt>reward:</dt> <dd>the setting env.reward</dd>" in html
    paid = "outcome: 1 at the end if all is right; dense: what was earned, paid at each step"
    assert paid in html and "dense@end:" not in html.split("</dl>")[0]
    assert "One trajectory of panel study, reward = dense, arm ppo_step, seed 0," in html
    assert "grey was not sampled" in html and "<code>&lt;e&gt;</code> ends a turn" in html


def test_a_difference_has_the_same_digits_in_its_column_and_in_its_sentence(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "seeds=[0, 1, 2]")
    html = (done.out / "report.html").read_text()
    rows = re.findall(
        r'<td class="num">(-?[\d.]+)</td>\n<td><svg.*?</svg></td><td class="says">(.*?)</td>', html
    )
    assert len(rows) == 8
    for column, sentence in rows:
        assert re.search(rf"(by|=) -?{re.escape(column.lstrip('-'))} \[", sentence), sentence


def test_the_credit_page_shows_the_most_telling_of_the_long_dense_runs() -> None:
    def result(panel: str, arm: str, reward: str, turns: int, seed: int) -> Result:
        config = {"env": {"reward": reward}, "algo": {"preset": arm}}
        cell = (("turns", turns), ("reward", reward))
        spec = RunSpec(panel=panel, cell=cell, arm=arm, seed=seed, config=config, config_hash="")
        return Result(spec=spec, folder=Path(spec.name))

    results = [
        result(panel, arm, reward, turns, seed)
        for panel in ("short", "long")
        for arm in ("grpo", "ppo_step")
        for turns in (2, 4)
        for reward in ("outcome", "dense")
        for seed in (0, 1)
    ]
    asked = []

    def rows_of(folder: Path) -> list[CreditRow]:
        asked.append(str(folder))
        # in the short panel all is right; seed 1 of the long one has more to tell than seed 0
        spread = 0.0 if "/short/" in str(folder) else (2.0 if "_s0_" in str(folder) else -1.0)
        return [row(advantages=[9.0, 2.0 * bool(spread), spread])]

    html, shown, missing = credit_part(results, rows_of)
    assert shown == "panel long, turns = 4, reward = dense, arm ppo_step, seed 1"
    assert len(asked) == 4 and all("ppo_step_turns=4_reward=dense" in name for name in asked)
    assert "advantage -1.000" in html and missing == ""


def test_turns_that_tell_right_from_wrong_come_first() -> None:
    def turns(*paid: float) -> list[CreditRow]:
        mask = [False, True] * len(paid)
        rewards = [part for reward in paid for part in (0.0, reward)]
        last = [0.0] * (len(mask) - 1) + [1.0]
        shared = {"tokens": ["x"] * len(mask), "action_mask": mask}
        credit = [float(i) for i in range(len(mask))]
        dense = row(**shared, rewards=rewards, advantages=credit)
        # paid at the end alone, every turn but the last looks unpaid
        return [dense, row(**shared, rewards=last, advantages=[0.0] * len(mask))]

    assert how_telling(turns(0.5, 0.0, 0.5, 0.0)) == (2, 1, 4)
    assert how_telling(turns(0.5, 0.5, 0.5, 0.0)) == (1, 1, 4)
    assert how_telling(turns(0.5, 0.5, 0.5, 0.5, 0.5)) == (0, 1, 5)
    assert how_telling([]) == (0, 0, 0)


def test_a_run_whose_rows_fail_is_passed_over(tmp_path: Path) -> None:
    done, _ = run(tmp_path)
    broken = next((tmp_path / "out").glob("runs/*/ppo_step_reward=dense_s0_*/summary.json"))
    broken.unlink()
    done, _ = run(tmp_path)
    html = (done.out / "report.html").read_text()
    assert "One trajectory of panel study, reward = dense, arm ppo_step, seed 1," in html
    assert (done.out / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_failing_credit_page_does_not_lose_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path) -> list[CreditRow]:
        raise KeyError("advantages")

    monkeypatch.setattr("tests.face.fakes.credit_rows", broken)
    done, _ = run(tmp_path, "seeds=[0]")
    assert "failed: KeyError: " in (done.out / "report.html").read_text()


def test_a_labelled_axis_says_what_each_label_sets(tmp_path: Path) -> None:
    cells = "cells: {kappa: {0: {env.x: 0}, 16: {env.x: 16, train.eval_every: 4}}}"
    text = STUDY.replace("cells: {env.reward: [outcome, dense]}", cells)
    done, _ = run(tmp_path, "seeds=[0]", text=text)
    html = (done.out / "report.html").read_text()
    assert "<dt>kappa:</dt> <dd>0 sets env.x=0; 16 sets env.x=16, train.eval_every=4</dd>" in html


def test_a_study_without_a_title_prints_its_name_once(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "seeds=[0]", text=STUDY.replace("title: Doors\n", "") + CLAIMS)
    html = (done.out / "report.html").read_text()
    assert len(re.findall(r"<h\d[^>]*>study</h\d>", html)) == 1
    assert "<h2>Every arm in every cell</h2>" in html


def test_the_figure_says_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[str] = []
    save = Figure.savefig

    def saved(figure: Figure, *args: object, **options: object) -> None:
        legend = figure.subfigs[0].legends[0]
        drawn.extend([legend.get_title().get_text(), *(t.get_text() for t in legend.get_texts())])
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    run(tmp_path, "seeds=[0]")
    assert drawn[0].startswith("curves: sampled training episodes, mean over seeds")
    assert drawn[1:] == ["ppo_step", "grpo", "start, on evaluation tasks"]


def test_arms_keep_their_colour_in_every_panel() -> None:
    arms = [{"a": {}, "b": {}}, {"c": {}, "a": {}}]
    panels = {str(i): {"title": "", "seeds": [0], "arms": mine} for i, mine in enumerate(arms)}
    budget = {"sampled_tokens": 1, "cpu_hours": 1}
    study = StudyFile.model_validate({"title": "", "budget": budget, "panels": panels})
    assert arm_colours(study) == dict(zip("abc", PALETTE, strict=False))


def test_band_is_the_mean_over_seeds_of_bin_means() -> None:
    curves = [[(50, 0.0), (100, 0.2), (200, 1.0)], [(100, 0.3), (150, 0.8)]]
    first, second = seed_band(curves, last=200, num_bins=2)
    # up to 100: seed means .1 and .3; above: 1.0 and .8
    assert first[0] == 50 and second[0] == 150
    assert abs(first[1].mean - 0.2) < 1e-9 and abs(second[1].mean - 0.9) < 1e-9
    assert first[1].n == 2


def test_whisker_marks_what_excludes_zero() -> None:
    assert "#1a1a1a" in whisker(Interval(0.2, 0.1, 5), 0.5)
    assert "#1a1a1a" not in whisker(Interval(0.05, 0.1, 5), 0.5)
    assert whisker(None, 0.5) == ""


def row(**changes: object) -> CreditRow:
    fields: dict[str, object] = {
        "label": "grpo",
        "tokens": ["a<", " b\n", "c"],
        "action_mask": [False, True, True],
        "rewards": [0.0, 0.5, -1.0],
        "advantages": [9.0, 2.0, -1.0],
    }
    return CreditRow(**{**fields, **changes})  # type: ignore[arg-type]  # fields by name


def test_tokens_are_escaped_coloured_and_rewards_marked() -> None:
    html = render_credit([row()])
    assert '<span class="grey">a&lt;</span>' in html
    assert f'background:{colour(2, 2)}" title="advantage +2.000">·b↵<br></span>' in html
    assert f'background:{colour(-1, 2)}" title="advantage -1.000">c</span>' in html
    assert 'title="reward +0.5 arrived here">+0.5</b>' in html
    assert 'class="minus" title="reward -1 arrived here">-1</b>' in html
    # the masked 9.0 must not set the scale
    assert "-2.00" in html and "+2.00" in html and "9.0" not in html


def test_the_numbers_of_a_row_stand_below_it() -> None:
    html = render_credit(
        [
            row(
                tokens=["p", "<", "b", "c", "o", "d"],
                action_mask=[False, True, True, True, False, True],
                rewards=[0.0] * 6,
                advantages=[None, 0.5, 0.5, -1.0, None, -1.0],
            )
        ]
    )
    listed = re.findall(r"<li><code>(.*?)</code> (.*?)</li>", html)
    told = ["advantage +0.500", "advantage -1.000", "advantage -1.000"]
    assert listed == list(zip(["&lt;b", "c", "d"], told, strict=True))
    alike = row(action_mask=[True, False, True], advantages=[0.5, None, 0.5])
    assert "<li>every token of the policy: advantage +0.500</li>" in render_credit([alike])
    many = [float(i) for i in range(500)]
    long = row(tokens=["x"] * 500, action_mask=[True] * 500, rewards=[0.0] * 500, advantages=many)
    assert "<summary>500 numbers</summary>" in render_credit([long])


def test_colours_diverge_from_white() -> None:
    assert colour(0, 1) == "#ffffff" == colour(3, 0)
    assert colour(1, 1) == colour(5, 1) != colour(-1, 1)
    red, blue = int(colour(1, 1)[1:3], 16), int(colour(1, 1)[5:], 16)
    assert blue > red
    assert int(colour(-1, 1)[1:3], 16) > int(colour(-1, 1)[5:], 16)


def test_no_credit_values_and_zero_rows() -> None:
    html = render_credit([row(advantages=[None, None, 0.0], values=[0.1, 0.2, 0.3])])
    assert 'class="act none" title="no credit, value 0.200"' in html
    assert "every advantage is 0" in html


def test_long_prompts_lose_their_middle_and_actions_nothing() -> None:
    prompt, action = ["p"] * 500, ["x"] * 500
    mask = [False] * 500 + [True] * 500
    many = row(
        tokens=prompt + action,
        action_mask=mask,
        rewards=[0.0] * 1000,
        advantages=[1.0] * 1000,
    )
    html = render_credit([many])
    assert "380 tokens not shown" in html
    assert html.count('class="act"') == 500 and html.count('class="grey"') == 120


def test_uneven_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        row(rewards=[0.0])


def test_white_space_is_visible() -> None:
    assert visible(" \t\r") == "·⇥␍" and visible("") == "∅"
    assert visible("<script>") == "&lt;script&gt;"


def test_every_estimator_and_placement_has_its_row(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    rows = credit_rows(tmp_path)
    html = render_credit(rows)
    assert html.count('class="credit-row"') == len(rows) == 6
