"""Every estimator again, from its formula, with plain loops over lists: slow and obvious.

Also the random batches that both are compared on, and the toys that several test files use.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

Grid = list[list[float]]


@dataclass(frozen=True, eq=False)
class Case:
    """What estimators read. B rows, T positions."""

    rewards: Tensor  # [B, T]
    values: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool, policy tokens
    ends: Tensor  # [B, T] bool, a judged step ends here
    turns: Tensor  # [B, T] int64
    states: Tensor  # [B, T] int64, -1 unknown
    group: Tensor  # [B] int64
    final: Tensor  # [B]
    outcomes: Tensor  # [B]

    def rows(self, index: Tensor) -> "Case":
        return Case(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def float(self) -> "Case":
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v.float() for k, v in parts.items() if v.is_floating_point()})


def random_case(seed: int) -> Case:
    """Uneven turns, tool tokens inside, steps that pay 0, unjudged tails, truncations, lone rows.

    Every third batch pays on all policy tokens, as KL in the reward does; every fourth has whole
    rewards, so that groups tie.
    """
    g = torch.Generator().manual_seed(seed)

    def below(share: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=g) < share

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    count, width = int(torch.randint(1, 8, (), generator=g)), 2 + seed % 15
    shape = (count, width)
    mask = below(0.6, *shape)
    ends = mask & below(0.4, *shape)
    rewards = normal(*shape) * (ends & below(0.7, *shape))
    if seed % 4 == 0:
        rewards = rewards.round()
    if seed % 3 == 0:
        rewards = rewards + 0.1 * normal(*shape) * mask
    turns = below(0.3, *shape).long().cumsum(1)
    in_turn = torch.randint(-1, 3, (count, width + 1), generator=g)
    return Case(
        rewards=rewards,
        values=normal(*shape),
        mask=mask,
        ends=ends,
        turns=turns,
        states=in_turn.gather(1, turns),
        group=torch.randint(0, 3, (count,), generator=g),
        final=normal(count) * below(0.3, count),
        outcomes=below(0.5, count).double(),
    )


# --- parts ------------------------------------------------------------------------------------


def policy_tokens(c: Case, row: int) -> list[int]:
    return [t for t, chosen in enumerate(c.mask[row].tolist()) if chosen]


def judged_steps(c: Case, row: int) -> list[list[int]]:
    """Places of each judged step's policy tokens; a tail after the last end is left out."""
    steps: list[list[int]] = []
    here: list[int] = []
    for t in policy_tokens(c, row):
        here.append(t)
        if c.ends[row, t]:
            steps.append(here)
            here = []
    return steps


def all_steps(c: Case, row: int) -> list[list[int]]:
    """The same with the tail as a last step."""
    steps = judged_steps(c, row)
    tail = policy_tokens(c, row)[sum(len(s) for s in steps) :]
    return steps + ([tail] if tail else [])


def turns_of(c: Case, row: int) -> dict[int, list[int]]:
    """Turn number -> places of its policy tokens."""
    out: dict[int, list[int]] = {}
    for t in policy_tokens(c, row):
        out.setdefault(int(c.turns[row, t]), []).append(t)
    return out


def total(c: Case, row: int, places: list[int]) -> float:
    return sum(float(c.rewards[row, t]) for t in places)


def members(c: Case, row: int) -> list[int]:
    return [i for i in range(len(c.group)) if c.group[i] == c.group[row]]


def is_flat(pool: list[float]) -> bool:
    return deviation(pool) <= 1e-6 * max(map(abs, pool))


def deviation(pool: list[float]) -> float:
    if len(pool) < 2:
        return 0.0
    mean = sum(pool) / len(pool)
    return math.sqrt(sum((x - mean) ** 2 for x in pool) / (len(pool) - 1))


def centred(x: float, pool: list[float]) -> float:
    return 0.0 if is_flat(pool) else x - sum(pool) / len(pool)


def z_score(x: float, pool: list[float]) -> float:
    return 0.0 if is_flat(pool) else centred(x, pool) / deviation(pool)


def gae(r: list[float], v: list[float], final: float, gamma: float, lam: float) -> list[float]:
    """A_t = sum over k >= t of (gamma lambda)^(k - t) delta_k."""
    after = [*v[1:], final]
    deltas = [r[t] + gamma * after[t] - v[t] for t in range(len(r))]
    return [
        sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(r))) for t in range(len(r))
    ]


def empty(c: Case) -> Grid:
    return [[0.0] * c.mask.shape[1] for _ in c.mask]


# --- a critic -----------------------------------------------------------------------------------


def token_gae(c: Case, gamma: float, lam: float | list[float]) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        places = policy_tokens(c, i)
        r, v = [float(c.rewards[i, t]) for t in places], [float(c.values[i, t]) for t in places]
        own = lam[i] if isinstance(lam, list) else lam
        for t, a in zip(places, gae(r, v, float(c.final[i]), gamma, own), strict=True):
            out[i][t] = a
    return out


def segment_gae(c: Case, segments: list[list[list[int]]], gamma: float, lam: float) -> Grid:
    """One baseline per segment, at its first token; `segments[i]` are the places of row i's."""
    out = empty(c)
    for i, parts in enumerate(segments):
        r = [total(c, i, places) for places in parts]
        v = [float(c.values[i, places[0]]) for places in parts]
        by_segment = gae(r, v, float(c.final[i]), gamma, lam)
        for places, a in zip(parts, by_segment, strict=True):
            for t in places:
                out[i][t] = a
    return out


def step_gae(c: Case, gamma: float, lam: float) -> Grid:
    return segment_gae(c, [all_steps(c, i) for i in range(len(c.mask))], gamma, lam)


def turn_gae(c: Case, gamma: float, lam: float) -> Grid:
    segments = [list(turns_of(c, i).values()) for i in range(len(c.mask))]
    return segment_gae(c, segments, gamma, lam)


def bilevel_gae(c: Case, gamma: float, lam: float, gamma_turn: float, lam_turn: float) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        turns = list(turns_of(c, i).values())
        deltas = []
        for k, places in enumerate(turns):
            after = float(c.final[i])
            if k + 1 < len(turns):
                following = turns[k + 1]
                after = total(c, i, following[:-1]) + float(c.values[i, following[-1]])
            end = places[-1]
            deltas.append(float(c.rewards[i, end]) + gamma_turn * after - float(c.values[i, end]))
        for k, places in enumerate(turns):
            of_turn = sum(
                (gamma_turn * lam_turn) ** (j - k) * deltas[j] for j in range(k, len(turns))
            )
            n = len(places) - 1
            inner = [
                float(c.rewards[i, places[j]])
                + gamma * float(c.values[i, places[j + 1]])
                - float(c.values[i, places[j]])
                for j in range(n)
            ]
            for j, t in enumerate(places):
                within = sum((gamma * lam) ** (m - j) * inner[m] for m in range(j, n))
                out[i][t] = within + (gamma * lam) ** (n - j) * of_turn
    return out


def to_go(c: Case, row: int, gamma: float) -> list[float]:
    """Discounted rewards from each policy token on, with the value where the row was cut."""
    places = policy_tokens(c, row)
    r = [float(c.rewards[row, t]) for t in places]
    n = len(r)
    return [
        sum(gamma ** (k - t) * r[k] for k in range(t, n)) + gamma ** (n - t) * float(c.final[row])
        for t in range(n)
    ]


def evpo(c: Case, gamma: float, lam: float) -> tuple[Grid, bool]:
    """Advantages, and whether the critic was used."""
    places = [(i, t) for i in range(len(c.mask)) for t in policy_tokens(c, i)]
    returns = [x for i in range(len(c.mask)) for x in to_go(c, i, gamma)]
    errors = [x - float(c.values[p]) for p, x in zip(places, returns, strict=True)]
    use = bool(returns) and not is_flat(returns) and deviation(errors) < deviation(returns)
    if use:
        return token_gae(c, gamma, lam), True
    out = empty(c)
    for (i, t), x in zip(places, returns, strict=True):
        out[i][t] = centred(x, returns)
    return out, False


# --- a group ------------------------------------------------------------------------------------


def row_return(c: Case, row: int) -> float:
    return total(c, row, policy_tokens(c, row))


def broadcast(c: Case, by_row: list[float]) -> Grid:
    out = empty(c)
    for i, a in enumerate(by_row):
        for t in policy_tokens(c, i):
            out[i][t] = a
    return out


def group_outcome(c: Case, scale: str = "group") -> Grid:
    everyone = [row_return(c, i) for i in range(len(c.mask))]
    by_row = []
    for i, own in enumerate(everyone):
        pool = [everyone[j] for j in members(c, i)]
        a = centred(own, pool)
        if scale == "group":
            a = z_score(own, pool)
        elif scale == "batch" and a:
            a = a / deviation(everyone)
        by_row.append(a)
    return broadcast(c, by_row)


def leave_one_out(c: Case) -> Grid:
    by_row = []
    for i in range(len(c.mask)):
        others = [row_return(c, j) for j in members(c, i) if j != i]
        by_row.append(row_return(c, i) - sum(others) / len(others) if others else 0.0)
    return broadcast(c, by_row)


def reinforce_plus_plus(c: Case, gamma: float) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        uncut = replace(c, final=torch.zeros_like(c.final))
        for t, x in zip(policy_tokens(c, i), to_go(uncut, i, gamma), strict=True):
            out[i][t] = x
    return out


def group_process(c: Case) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        pool = [total(c, j, s) for j in members(c, i) for s in judged_steps(c, j)]
        steps = judged_steps(c, i)
        for k, places in enumerate(steps):
            for t in places:
                out[i][t] = sum(z_score(total(c, i, s), pool) for s in steps[k:])
    return out


def step_returns(c: Case, row: int, gamma: float) -> list[float]:
    r = [total(c, row, s) for s in judged_steps(c, row)]
    return [sum(gamma ** (k - j) * r[k] for k in range(j, len(r))) for j in range(len(r))]


def process_returns(c: Case, gamma: float) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        pool = [x for j in members(c, i) for x in step_returns(c, j, gamma)]
        for x, places in zip(step_returns(c, i, gamma), judged_steps(c, i), strict=True):
            for t in places:
                out[i][t] = z_score(x, pool)
    return out


def process_positions(c: Case) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        steps = judged_steps(c, i)
        scores = []
        for k, places in enumerate(steps):
            pool = [
                total(c, j, judged_steps(c, j)[k])
                for j in members(c, i)
                if len(judged_steps(c, j)) > k
            ]
            scores.append(z_score(total(c, i, places), pool))
        for k, places in enumerate(steps):
            for t in places:
                out[i][t] = sum(scores[k:])
    return out


def mt_grpo(c: Case, turn_coef: float) -> Grid:
    out = empty(c)
    for i in range(len(out)):
        outcome = z_score(float(c.outcomes[i]), [float(c.outcomes[j]) for j in members(c, i)])
        turns = turns_of(c, i)
        for number, places in turns.items():
            a = outcome
            if number < max(turns):
                pool = [
                    total(c, j, turns_of(c, j)[number])
                    for j in members(c, i)
                    if number in turns_of(c, j) and number < max(turns_of(c, j))
                ]
                a += turn_coef * z_score(total(c, i, places), pool)
            for t in places:
                out[i][t] = a
    return out


def gigpo(c: Case, gamma: float, step_coef: float, scale: str) -> Grid:
    compare = z_score if scale == "group" else centred
    out = group_outcome(c, scale)
    # (row, first place of the turn) -> discounted return from the turn on
    returns: dict[tuple[int, int], float] = {}
    for i in range(len(out)):
        turns = list(turns_of(c, i).values())
        r = [total(c, i, places) for places in turns]
        for k, places in enumerate(turns):
            returns[i, places[0]] = sum(gamma ** (j - k) * r[j] for j in range(k, len(r)))
    for i in range(len(out)):
        for places in turns_of(c, i).values():
            here = (i, places[0])
            if c.states[here] < 0:
                continue
            pool = [
                x
                for other, x in returns.items()
                if c.group[other[0]] == c.group[i] and c.states[other] == c.states[here]
            ]
            for t in places:
                out[i][t] += step_coef * compare(returns[here], pool)
    return out
