"""The study's one figure: the metric against sampled tokens, a row of cells for every panel."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any

from stepcredit.results import Result
from stepcredit.statistics import Interval, mean_interval
from stepcredit.study import Cell, Panel, StudyFile, cell_text

# Okabe and Ito's palette without its yellow: told apart under every common colour blindness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NUM_BINS = 20
MAX_COLUMNS = 4
WIDTH_IN = 10.0
ROW_IN = 2.15
LEGEND_IN = 0.75
START: dict[str, Any] = {"color": "#777777", "linewidth": 1, "linestyle": ":"}
"""The start is of other tasks than the curves, so it has a look and a legend entry of its own."""


def arm_colours(study: StudyFile) -> dict[str, str]:
    """One colour for each arm name, the same in every panel, table and figure."""
    names = dict.fromkeys(arm for panel in study.panels.values() for arm in panel.arms)
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def repeats_title(study: StudyFile, panel: Panel) -> bool:
    """Whether the study's only panel is called as the study is, so that one heading is enough."""
    return len(study.panels) == 1 and panel.title == study.title


def seed_band(
    curves: Sequence[Sequence[tuple[int, float]]], last: int, num_bins: int = NUM_BINS
) -> list[tuple[float, Interval]]:
    """Mean over seeds with its interval at the centre of each bin of sampled tokens.

    A seed's value in a bin is the mean of its points there; seeds without one are left out.
    """
    width = last / num_bins
    band = []
    for i in range(num_bins):
        means = []
        for curve in curves:
            inside = [y for x, y in curve if i * width < x <= (i + 1) * width]
            if inside:
                means.append(sum(inside) / len(inside))
        interval = mean_interval(means)
        if interval is not None:
            band.append(((i + 0.5) * width, interval))
    return band


def draw(study: StudyFile, results: Sequence[Result]) -> bytes:
    """The figure as PNG bytes."""
    # matplotlib takes a second to import, which `--help` must not pay
    from matplotlib.figure import Figure

    layouts = {name: _layout(panel) for name, panel in study.panels.items()}
    heights = [len(rows) * ROW_IN + 0.45 for rows in layouts.values()]
    columns = max(len(row) for rows in layouts.values() for row in rows)
    figure: Any = Figure(figsize=(WIDTH_IN, sum(heights) + LEGEND_IN), layout="constrained")
    parts = figure.subfigures(len(heights) + 1, 1, height_ratios=[LEGEND_IN, *heights])
    colours = arm_colours(study)
    _legend(parts[0], study, colours)
    for part, (name, panel) in zip(parts[1:], study.panels.items(), strict=True):
        mine = [r for r in results if r.spec.panel == name and r.ok]
        if not repeats_title(study, panel):
            part.suptitle(panel.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        _draw_panel(part, panel, mine, layouts[name], columns, colours)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()


def _layout(panel: Panel) -> list[list[Cell]]:
    """Cells in rows: the last axis runs across, the others down; long rows are wrapped."""
    across: Iterable[list[Cell]] = (
        list(cells) for _, cells in groupby(panel.grid, key=lambda cell: cell[:-1])
    )
    return [
        cells[start : start + MAX_COLUMNS]
        for cells in across
        for start in range(0, len(cells), MAX_COLUMNS)
    ]


def _legend(part: Any, study: StudyFile, colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=MARKERS[i % len(MARKERS)], label=arm, linewidth=2)
        for i, (arm, colour) in enumerate(colours.items())
    ]
    handles.append(Line2D([], [], label="start, on evaluation tasks", **START))
    told = "curves: sampled training episodes, mean over seeds; bands: 95 % intervals"
    part.legend(
        handles=handles,
        loc="center",
        ncols=6,
        frameon=False,
        fontsize=11,
        title=told,
        title_fontsize=10,
    )


def _draw_panel(
    part: Any,
    panel: Panel,
    results: Sequence[Result],
    rows: list[list[Cell]],
    columns: int,
    colours: dict[str, str],
) -> None:
    grid = part.subplots(len(rows), columns, squeeze=False, sharey=True)
    last = max((r.curve[-1][0] for r in results), default=1)
    # Where nothing falls below a half, the upper half is all there is to see.
    lowest = min((value for r in results for _, value in r.curve), default=0.0)
    floor = 0.5 if lowest > 0.5 else 0.0
    for i, j in ((i, j) for i in range(len(rows)) for j in range(columns)):
        axes = grid[i][j]
        if j >= len(rows[i]):
            axes.set_axis_off()
            continue
        cell = rows[i][j]
        _draw_cell(axes, panel, [r for r in results if r.spec.cell == cell], last, colours)
        axes.set_ylim(floor - 0.02, 1.02)
        axes.set_title(cell_text(cell) if cell else "", fontsize=10, pad=3)
        if j == 0:
            axes.set_ylabel(panel.metric, fontsize=10)
        if i == len(rows) - 1:
            axes.set_xlabel("sampled policy tokens", fontsize=9)


def _draw_cell(
    axes: Any, panel: Panel, results: Sequence[Result], last: int, colours: dict[str, str]
) -> None:
    order = list(colours)
    for arm in panel.arms:
        curves = [r.curve for r in results if r.spec.arm == arm]
        band = seed_band(curves, last)
        if not band:
            continue
        xs = [x for x, _ in band]
        marker = MARKERS[order.index(arm) % len(MARKERS)]
        means = [interval.mean for _, interval in band]
        axes.plot(
            xs, means, color=colours[arm], marker=marker, markevery=4, markersize=4.5, linewidth=1.8
        )
        halves = [interval.half or 0.0 for _, interval in band]
        low = [mean - half for mean, half in zip(means, halves, strict=True)]
        high = [mean + half for mean, half in zip(means, halves, strict=True)]
        axes.fill_between(xs, low, high, color=colours[arm], alpha=0.16, linewidth=0)
    starts = [r.sft_start for r in results if r.sft_start is not None]
    if starts:
        axes.axhline(sum(starts) / len(starts), **START)
    axes.set_xlim(0, last)
    axes.grid(color="#e3e3e3", linewidth=0.7)
    axes.tick_params(labelsize=9)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
    axes.locator_params(axis="x", nbins=5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
