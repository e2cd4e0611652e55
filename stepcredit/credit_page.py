"""The credit page: one trajectory under several estimators, tokens coloured by advantage."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

POSITIVE = (29, 100, 190)
NEGATIVE = (214, 93, 14)
NUM_LEGEND_STEPS = 9
LONGEST_GREY = 160
"""Grey stretches (prompts, tool replies) above this many tokens lose their middle."""
KEPT_GREY = 60
MOST_NUMBERS = 40
"""A row of more numbers shows them when asked."""

STYLE = """
.credit { font: 14px/1.5 system-ui, sans-serif; color: #1a1a1a; }
.credit-row { border-top: 1px solid #e2e2e2; padding: .7em 0 .8em; }
.credit-head { display: flex; flex-wrap: wrap; gap: .3em 1.2em; align-items: baseline;
  justify-content: space-between; margin-bottom: .35em; }
.credit-label { font-weight: 600; overflow-wrap: anywhere; }
.credit-legend { font-size: 12px; color: #444; white-space: nowrap; }
.credit-legend i { display: inline-block; width: 1.3em; height: .85em; vertical-align: -1px;
  box-shadow: inset 0 0 0 1px #0000001c; }
.credit-text { font: 14px/2.0 ui-monospace, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
.credit-text span { padding: 2px 1px; border-radius: 2px; }
.credit-text .act { box-shadow: inset 0 0 0 1px #0000001c; }
.credit-text .grey { color: #767676; }
.credit-text .grey + .act, .credit-text .act + .grey { margin-left: 4px; }
.credit-text .none { outline: 1px dashed #999; outline-offset: -1px; }
.credit-text .cut { color: #666; font: italic 12px system-ui, sans-serif; }
.credit-text b { font: 600 11px system-ui, sans-serif; color: #fff; background: #333;
  border-radius: 8px; padding: 1px 5px; margin: 0 3px 0 2px; white-space: nowrap; }
.credit-text b.minus { background: #8c2d04; }
.credit-numbers { display: flex; flex-wrap: wrap; gap: .1em 1.1em; margin: .35em 0 0; padding: 0;
  list-style: none; font-size: 12px; color: #444; font-variant-numeric: tabular-nums; }
.credit-numbers code { color: #1a1a1a; background: #f2f2f2; padding: 0 3px; border-radius: 2px; }
.credit-row summary { cursor: pointer; font-size: 12px; color: #444; }
"""


@dataclass(frozen=True, kw_only=True)
class CreditRow:
    """One trajectory under one estimator and reward placement; all lists have one length L."""

    label: str
    tokens: list[str]
    action_mask: list[bool]
    """True where the policy sampled the token."""
    rewards: list[float]
    advantages: list[float | None]
    """None where the estimator gives no credit."""
    values: list[float] | None = None
    """The critic's value at each token, where there is a critic."""

    def __post_init__(self) -> None:
        lengths = {
            "tokens": len(self.tokens),
            "action_mask": len(self.action_mask),
            "rewards": len(self.rewards),
            "advantages": len(self.advantages),
            "values": len(self.tokens if self.values is None else self.values),
        }
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.label}: {lengths}: must have one length; pass whole rows")


def render_credit(rows: Sequence[CreditRow]) -> str:
    """An HTML fragment with its own style, free of scripts and of anything loaded."""
    body = "\n".join(_row(row) for row in rows)
    return f'<style>{STYLE}</style>\n<div class="credit">\n{body}\n</div>'


def colour(advantage: float, largest: float) -> str:
    """Orange below zero, white at zero, blue above; full colour at ±`largest`."""
    share = 0.0 if largest == 0 else max(-1.0, min(1.0, advantage / largest))
    end = POSITIVE if share >= 0 else NEGATIVE
    # 0.75 keeps dark text readable on the fullest colour
    mixed = [round(255 + (part - 255) * abs(share) * 0.75) for part in end]
    return f"#{mixed[0]:02x}{mixed[1]:02x}{mixed[2]:02x}"


def visible(token: str) -> str:
    """A token as HTML: escaped, with spaces, tabs and line ends shown."""
    shown = escape(token).replace(" ", "·").replace("\t", "⇥").replace("\r", "␍")
    return shown.replace("\n", "↵<br>") or "∅"


def _row(row: CreditRow) -> str:
    credited = [
        abs(a)
        for a, mine in zip(row.advantages, row.action_mask, strict=True)
        if mine and a is not None
    ]
    largest = max(credited, default=0.0)
    parts = [_stretch(row, start, stop, largest) for start, stop in _stretches(row.action_mask)]
    return (
        f'<div class="credit-row"><div class="credit-head">'
        f'<span class="credit-label">{escape(row.label)}</span>{_legend(largest)}</div>'
        f'<div class="credit-text">{"".join(parts)}</div>{_numbers(row)}</div>'
    )


def _numbers(row: CreditRow) -> str:
    """Each stretch of policy tokens of one turn that share their numbers, and those numbers."""
    found = []
    for start, stop in _stretches(row.action_mask):
        if row.action_mask[start]:
            for told, same in groupby(range(start, stop), key=lambda i: _told(row, i)):
                text = "".join(visible(row.tokens[i]) for i in same).replace("<br>", "")
                found.append((f"<code>{text}</code>", told))
    if len({told for _, told in found}) == 1:
        found = [("every token of the policy:", found[0][1])]
    entries = [f"<li>{text} {told}</li>" for text, told in found]
    listed = f'<ul class="credit-numbers">{"".join(entries)}</ul>'
    if len(entries) <= MOST_NUMBERS:
        return listed
    return f"<details><summary>{len(entries)} numbers</summary>{listed}</details>"


def _stretches(action_mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Half-open ranges of equal mask, in order."""
    edges = [i for i in range(1, len(action_mask)) if action_mask[i] != action_mask[i - 1]]
    bounds = [0, *edges, len(action_mask)]
    return [(a, b) for a, b in pairwise(bounds) if b > a]


def _stretch(row: CreditRow, start: int, stop: int, largest: float) -> str:
    if row.action_mask[start] or stop - start <= LONGEST_GREY:
        return "".join(_token(row, i, largest) for i in range(start, stop))
    head = "".join(_token(row, i, largest) for i in range(start, start + KEPT_GREY))
    tail = "".join(_token(row, i, largest) for i in range(stop - KEPT_GREY, stop))
    left_out = stop - start - 2 * KEPT_GREY
    return f'{head}<span class="cut"> … {left_out} tokens not shown … </span>{tail}'


def _token(row: CreditRow, i: int, largest: float) -> str:
    reward = row.rewards[i]
    badge = ""
    if reward:
        sign = ' class="minus"' if reward < 0 else ""
        badge = f'<b{sign} title="reward {reward:+.3g} arrived here">{reward:+.3g}</b>'
    text = visible(row.tokens[i])
    if not row.action_mask[i]:
        return f'<span class="grey">{text}</span>{badge}'
    advantage, told = row.advantages[i], _told(row, i)
    if advantage is None:
        return f'<span class="act none" title="{told}">{text}</span>{badge}'
    back = colour(advantage, largest)
    return f'<span class="act" style="background:{back}" title="{told}">{text}</span>{badge}'


def _told(row: CreditRow, i: int) -> str:
    """The numbers of one policy token."""
    advantage = row.advantages[i]
    told = "no credit" if advantage is None else f"advantage {advantage:+.3f}"
    return told if row.values is None else f"{told}, value {row.values[i]:.3f}"


def _legend(largest: float) -> str:
    half = NUM_LEGEND_STEPS // 2
    boxes = "".join(
        f'<i style="background:{colour(step / half, 1.0)}"></i>' for step in range(-half, half + 1)
    )
    if largest == 0:
        return '<span class="credit-legend">every advantage is 0</span>'
    return f'<span class="credit-legend">{-largest:+.2f} {boxes} {largest:+.2f}</span>'
