"""Numbers behind a comparison: means with intervals, paired differences, verdict sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

CONFIDENCE = 0.95
ROUNDING = 1e-9
"""Equal runs differ by rounding alone; that is no difference."""
NO_SPREAD = "the seeds do not differ: too few to judge"


@dataclass(frozen=True)
class Interval:
    """A mean over `n` seeds and the half-width of its 95 % t-interval; None where there is none."""

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half is None else self.mean + self.half


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Mean and t-interval, mean ± t(n-1) * s / sqrt(n); None for no values at all."""
    # scipy takes half a second to import, which `--help` must not pay
    from scipy.stats import t

    n = len(values)
    if n == 0:
        return None
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, None, 1)
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    quantile = float(t.ppf((1 + confidence) / 2, n - 1))
    return Interval(mean, quantile * sqrt(variance / n), n)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Interval | None:
    """Mean of `first - second` over the seeds that both have, with its t-interval.

    Differences that are all equal say nothing of how seeds vary: the interval of no width would be
    certainty. They have none, unless all are 0.
    """
    shared = sorted(first.keys() & second.keys())
    differences = [first[seed] - second[seed] for seed in shared]
    found = mean_interval(differences)
    if found is None or max(differences) - min(differences) > ROUNDING:
        return found
    if len(differences) > 1 and abs(found.mean) <= ROUNDING:
        return Interval(0.0, 0.0, found.n)
    return Interval(found.mean, None, found.n)


def area_under_curve(tokens: Sequence[float], values: Sequence[float]) -> float:
    """Trapezoid area of `values` over `tokens`, divided by the range of tokens.

    A constant curve at c has area c. Tokens must increase; a single point is its own area.

    Raises:
        ValueError: no points, different lengths, or tokens that do not increase.
    """
    if not tokens or len(tokens) != len(values):
        raise ValueError(
            f"{len(tokens)} tokens, {len(values)} values: pass equally many, at least one"
        )
    if any(right <= left for left, right in pairwise(tokens)):
        raise ValueError("tokens must increase from point to point; sort and drop repeated points")
    if len(tokens) == 1:
        return float(values[0])
    points = list(zip(tokens, values, strict=True))
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    return area / (tokens[-1] - tokens[0])


def excludes_zero(interval: Interval) -> bool:
    """Whether the whole interval lies on one side of zero."""
    return interval.half is not None and abs(interval.mean) - interval.half > ROUNDING


def identical(interval: Interval) -> bool:
    """Whether a paired difference is 0 in each of several seeds."""
    return interval.mean == 0 and interval.half == 0


def within(interval: Interval, margin: float) -> bool:
    """Whether the whole interval lies inside ±margin: equivalence by that margin."""
    return interval.half is not None and abs(interval.mean) + interval.half <= margin


def number(value: float, digits: int = 2) -> str:
    """A share or difference as the report writes it: `.12`, `-.03`, `1.20`."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def exact(value: float) -> str:
    """A declared margin with all of its decimals, at least two: `.30`, `.001`."""
    return number(value, next((d for d in range(2, 6) if abs(round(value, d) - value) < 1e-9), 6))


def digits_of(interval: Interval, bounds: Sequence[float] = ()) -> int:
    """Decimals that a difference is written with: 2, or more where the interval needs them.

    No end is rounded onto a bound that it does not touch, 0 among them where it is excluded.
    """
    if interval.low is None or interval.high is None or interval.half is None:
        there = abs(interval.mean) > ROUNDING
        return next((d for d in range(2, 6) if there and float(number(interval.mean, d))), 2)
    digits = 2 if interval.half >= 0.02 else 3
    bounds = [0.0, *bounds] if excludes_zero(interval) else bounds
    gaps = [(end, bound) for end in (interval.low, interval.high) for bound in bounds]
    apart = [(end, bound) for end, bound in gaps if abs(end - bound) > ROUNDING]
    while digits < 6 and any(number(e, digits) == number(b, digits) for e, b in apart):
        digits += 1
    return digits


def bracket(interval: Interval, bounds: Sequence[float] = ()) -> str:
    """`.12 [.05, .19]`, in the digits of `digits_of`; the bare mean for n=1."""
    digits = digits_of(interval, bounds)
    if interval.low is None or interval.high is None:
        return number(interval.mean, digits)
    low, high = number(interval.low, digits), number(interval.high, digits)
    return f"{number(interval.mean, digits)} [{low}, {high}]"


def verdict(
    first: str,
    second: str,
    difference: Interval | None,
    margin: float | None = None,
    bounds: Sequence[float] = (),
) -> str:
    """What the paired difference `first - second` shows, in one sentence; never more than that.

    `margin` is one of equivalence; ends are written so that they tell on which side of each of
    `bounds` they lie.
    """
    if difference is None:
        return f"{first} and {second} share no finished seed: nothing can be said"
    if difference.half is None:
        shown = f"{first} - {second} = {bracket(difference)}"
        if difference.n == 1:
            return f"{shown} on one seed: too few to say"
        return f"{shown} in each of {difference.n} seeds: {NO_SPREAD}"
    basis = f"paired, n={difference.n}, 95 %"
    parts = []
    if identical(difference):
        same = f"{first} and {second} give the same here"
        parts.append(f"identical in every seed (n={difference.n}): {same}")
    elif excludes_zero(difference):
        upper, lower = (first, second) if difference.mean > 0 else (second, first)
        size = Interval(abs(difference.mean), difference.half, difference.n)
        bounds = bounds if upper == first else [-bound for bound in bounds]
        parts.append(f"{upper} is above {lower} by {bracket(size, bounds)} ({basis})")
    else:
        shown = bracket(difference, bounds)
        alike = margin is None or within(difference, margin)
        told = "no difference shown" if alike else "neither a difference nor equivalence shown"
        parts.append(f"{told}: {first} - {second} = {shown} ({basis})")
    if margin is not None and within(difference, margin):
        parts.append(f"within ±{exact(margin)}: equivalent by the margin declared before")
    return "; ".join(parts)
