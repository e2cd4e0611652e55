"""report.html and report.png: everything a study measured on one self-contained page."""

import base64
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stepcredit import __version__, figure
from stepcredit.claims import ClaimVerdict, judge
from stepcredit.findings import (
    REWARD_MEANINGS,
    Difference,
    arm_differences,
    reward_questions,
    table,
)
from stepcredit.folders import whole
from stepcredit.results import Result
from stepcredit.statistics import Interval, digits_of, excludes_zero, number
from stepcredit.study import Cell, Panel, Study, cell_text

WHISKER_PX = 150
MACHINE_PACKAGES = ("torch", "transformers", "gymnasium", "numpy")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A finished study: what was asked, what came out, and what it took."""

    study: Study
    results: Sequence[Result]
    tuning: Sequence[Result]
    chosen: Mapping[tuple[str, Cell, str], Mapping[str, Any]]
    wall_s: float
    """Wall seconds of all runs, tuning included, one after the other."""
    cpu_s: float
    num_workers: int
    credit_html: str
    credit_run: str
    """Panel, cell, arm and seed of the run that the credit page shows."""
    no_credit: str
    """Why there is no credit page, where there is none."""
    command: str


def write_report(measured: Measured, out: Path) -> list[ClaimVerdict]:
    """Write report.png and report.html; return the verdict on every declared claim."""
    png = figure.draw(measured.study.file, measured.results)
    with whole(out / "report.png") as part:
        part.write_bytes(png)
    panels = [_panel(measured, name) for name in measured.study.file.panels]
    html = _template().render(
        title=measured.study.file.title,
        facts=_facts(measured),
        words=_words(measured),
        missing=_missing(measured.results),
        has_claims=any(panel["claims"] for panel in panels),
        figure=base64.b64encode(png).decode(),
        panels=panels,
        colours=figure.arm_colours(measured.study.file),
        credit=Markup(measured.credit_html),  # credit_page escapes its tokens
        credit_run=measured.credit_run,
        no_credit=measured.no_credit,
        num_intervals=sum(panel["num_intervals"] for panel in panels),
        versions=_versions(),
        command=measured.command,
    )
    with whole(out / "report.html") as part:
        part.write_text(html, encoding="utf-8")
    return [claim for panel in panels for claim in panel["claims"]]


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("stepcredit", ""), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["number"] = number
    environment.filters["difference"] = _difference
    environment.filters["whisker"] = whisker
    environment.filters["cell"] = cell_text
    environment.filters["seconds"] = lambda i: "-" if i is None else f"{i.mean:.1f}"
    environment.filters["chance"] = lambda n: f"{n * 0.05:.0f}" if n >= 20 else f"{n * 0.05:.1f}"
    return environment.get_template("report.html.jinja")


def _difference(interval: Interval) -> str:
    """A difference in the digits that its sentence has."""
    return number(interval.mean, digits_of(interval))


def _panel(measured: Measured, name: str) -> dict[str, Any]:
    panel = measured.study.file.panels[name]
    results = [r for r in measured.results if r.spec.panel == name]
    arms = arm_differences(panel, results)
    questions = reward_questions(panel, results)
    shown = [*arms, *(row for question in questions for row in question.differences)]
    return {
        "title": "" if figure.repeats_title(measured.study.file, panel) else panel.title,
        "metric": panel.metric,
        "axes": list(panel.axes),
        "num_seeds": len(panel.seeds),
        "table": table(panel, results),
        "arm_differences": arms,
        "questions": questions,
        "claims": judge(panel, results),
        "scale": _scale(shown),
        "num_intervals": sum(row.interval is not None and bool(row.interval.half) for row in shown),
        "tuning": _tuning(measured, name),
        "tuning_seeds": panel.tune.seeds if panel.tune else [],
    }


def _scale(rows: Sequence[Difference]) -> float:
    """Half-width of the whisker column: the furthest end of any interval, at least .05."""
    found = [row.interval for row in rows if row.interval is not None]
    return max([0.05, *(min(1.0, abs(i.mean) + (i.half or 0.0)) for i in found)])


def whisker(interval: Interval | None, scale: float) -> Markup:
    """A dot with its interval around a zero line, as inline SVG."""
    if interval is None:
        return Markup("")
    middle = WHISKER_PX / 2

    def x(value: float) -> float:
        return round(middle + max(-1.0, min(1.0, value / scale)) * (middle - 6), 1)

    low, high = interval.low, interval.high
    ink = "#1a1a1a" if excludes_zero(interval) else "#8a8a8a"
    line = ""
    if low is not None and high is not None:
        line = f'<line x1="{x(low)}" x2="{x(high)}" y1="9" y2="9" stroke="{ink}" stroke-width="2"/>'
    return Markup(
        f'<svg class="whisker" width="{WHISKER_PX}" height="18" role="img" aria-hidden="true">'
        f'<line x1="{middle}" x2="{middle}" y1="0" y2="18" stroke="#bbb"/>{line}'
        f'<circle cx="{x(interval.mean)}" cy="9" r="4" fill="{ink}"/></svg>'
    )


def _tuning(measured: Measured, name: str) -> list[dict[str, Any]]:
    groups: dict[tuple[Cell, str, tuple[tuple[str, Any], ...]], list[float]] = {}
    for result in measured.tuning:
        spec = result.spec
        if spec.panel == name:
            values = groups.setdefault((spec.cell, spec.arm, spec.trial), [])
            values += [] if result.auc is None else [result.auc]
    return [
        {
            "cell": cell,
            "arm": arm,
            "trial": ", ".join(f"{key}={value}" for key, value in trial),
            "auc": sum(values) / len(values) if values else None,
            "chosen": measured.chosen.get((name, cell, arm)) == dict(trial),
        }
        for (cell, arm, trial), values in groups.items()
    ]


def _missing(results: Sequence[Result]) -> str:
    gone = sum(not r.ok for r in results)
    if not gone:
        return ""
    return (
        f"{len(results) - gone} of {len(results)} runs finished; {gone} did not and are in no mean "
        "or difference. Each table says which."
    )


def _facts(measured: Measured) -> list[tuple[str, str]]:
    panels: list[Panel] = list(measured.study.file.panels.values())
    seeds = sorted({len(panel.seeds) for panel in panels})
    tokens = sorted({r.spec.config["train"]["sampled_tokens"] for r in measured.results})
    done = sum(r.ok for r in measured.results)
    facts = [
        ("runs", f"{done} of {len(measured.results)}"),
        ("seeds per arm and cell", " or ".join(map(str, seeds))),
        ("sampled policy tokens per run", " or ".join(f"{n:,}" for n in tokens)),
    ]
    allowed = measured.study.file.budget.cpu_hours * 60
    if measured.tuning:
        facts.append(("tuning runs", str(len(measured.tuning))))
    return [
        *facts,
        ("CPU", f"{measured.cpu_s / 60:.1f} of {allowed:g} min allowed"),
        ("wall, about", f"{measured.wall_s / measured.num_workers / 60:.1f} min"),
        ("workers", f"{measured.num_workers} on {os.cpu_count()} cores"),
    ]


def _words(measured: Measured) -> list[tuple[str, str]]:
    """What axes, reward set-ups and columns stand for, for a reader who knows none of them."""
    axes: dict[str, list[str]] = {}
    for panel in measured.study.file.panels.values():
        for axis, labels in panel.axes.items():
            texts = axes.setdefault(axis, [])
            texts += [text for text in _axis_texts(axis, labels) if text not in texts]
    rewards = {str(r.spec.config["env"].get("reward")) for r in measured.results}
    paid = [f"{name}: {told}" for name, told in REWARD_MEANINGS.items() if name in rewards]
    return [
        *((axis, "; ".join(texts)) for axis, texts in axes.items()),
        *([("reward set-ups", "; ".join(paid))] if paid else []),
        ("start, final", "the metric on the evaluation tasks, before and after training"),
        ("AUC", "mean of the metric over sampled tokens, of the training episodes"),
        (
            "zero-variance groups",
            "share of tasks whose samples all earned the same: group baselines learn nothing there",
        ),
    ]


def _axis_texts(axis: str, labels: Sequence[tuple[Any, Mapping[str, Any]]]) -> list[str]:
    """The settings that an axis stands for: one key, or what each label of it sets."""
    if all(list(changes.values()) == [label] for label, changes in labels):
        keys = dict.fromkeys(key for _, changes in labels for key in changes)
        return [f"the setting {', '.join(keys)}"]
    return [
        f"{label} sets {', '.join(f'{key}={value}' for key, value in changes.items())}"
        for label, changes in labels
    ]


def _versions() -> str:
    names = [f"stepcredit {__version__}", f"Python {platform.python_version()}"]
    for package in MACHINE_PACKAGES:
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            names.append(f"{package} not installed")
    return ", ".join([*names, f"{platform.system()} {platform.machine()}"])
