"""What an estimator says of each token, and the parts that estimators share.

Every function reads policy tokens (`action_mask`) alone: observation tokens are skipped, never
walked over, and whatever stands in their slots (NaN included) changes nothing.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

FLAT = 1e-6
"""A group that varies by no more than this share of its largest reward has nothing to tell apart:
its advantages are 0. Single precision rounds at 1e-7."""


@dataclass(frozen=True, eq=False)
class Credit:
    """What an estimator says of each token, and what its critic should learn from it."""

    advantages: Tensor
    """[B, T], 0 where not an action."""
    returns: Tensor | None = None
    """[B, T] value targets, 0 outside `value_mask`."""
    value_mask: Tensor | None = None
    """[B, T] bool, the tokens whose state the baseline is read at."""
    found: dict[str, float] = field(default_factory=dict)
    """What the estimator noticed on the way, by the name of its metric."""


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return `x` with zeros outside the mask, whatever stood there."""
    return torch.where(mask, x, torch.zeros_like(x))


# --- segments: the steps or the turns of a row ----------------------------------------------


def segment_ids(action_mask: Tensor, step_end: Tensor) -> Tensor:
    """Number each policy token by the step it leads to; -1 on all other tokens. [B, T]."""
    ends = (step_end & action_mask).long()
    before = ends.cumsum(1) - ends
    return torch.where(action_mask, before, -1)


def starts_segment(segment: Tensor, action_mask: Tensor) -> Tensor:
    """Mark the first policy token of each segment, skipping what lies between. [B, T] bool."""
    # The largest segment seen so far among policy tokens; -1 elsewhere never raises it.
    seen = segment.cummax(1).values
    earlier = torch.cat([torch.full_like(seen[:, :1], -1), seen[:, :-1]], dim=1)
    return action_mask & (segment > earlier)


def ends_segment(segment: Tensor, action_mask: Tensor) -> Tensor:
    """Mark the last policy token of each segment, skipping what lies between. [B, T] bool."""
    from_behind = torch.where(action_mask, segment.max() - segment, -1)  # [B, T]
    return starts_segment(from_behind.flip(1), action_mask.flip(1)).flip(1)


def per_segment(x: Tensor, segment: Tensor) -> Tensor:
    """Sum `x` over the tokens of each segment. [B, T] -> [B, K]."""
    count = int(segment.max().item()) + 1 if segment.numel() else 0
    out = x.new_zeros(len(x), max(count, 1))  # [B, K]
    return out.scatter_add(1, segment.clamp(min=0), masked(x, segment >= 0))


def to_tokens(x: Tensor, segment: Tensor) -> Tensor:
    """Give each token its segment's value, 0 where it has none. [B, K] -> [B, T]."""
    return masked(x.gather(1, segment.clamp(min=0)), segment >= 0)


# --- statistics, all in double precision ----------------------------------------------------


def moments(x: Tensor, owner: Tensor, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation (n - 1) of each entry's owner. [N], [N].

    The deviation is infinite for an owner whose values do not differ (see `FLAT`). `size` [N] says
    how large the numbers were that each entry was added up from: what they leave behind when they
    cancel is rounding.
    """
    x = x.double()
    groups = int(owner.max().item()) + 1 if len(owner) else 0
    count = torch.bincount(owner, minlength=groups).to(x.dtype)  # [groups]
    mean = x.new_zeros(groups).index_add(0, owner, x) / count.clamp(min=1)
    squares = x.new_zeros(groups).index_add(0, owner, (x - mean[owner]) ** 2)
    std = (squares / (count - 1).clamp(min=1)).sqrt()  # [groups]
    size = (x if size is None else size.to(x.dtype)).abs()
    largest = x.new_zeros(groups).scatter_reduce(0, owner, size, "amax")  # [groups]
    return mean[owner], torch.where(std <= FLAT * largest, torch.inf, std)[owner]


def centre(x: Tensor, owner: Tensor, size: Tensor | None = None) -> Tensor:
    """Subtract the owner's mean; exactly 0 for an owner whose values do not differ. [N]."""
    mean, std = moments(x, owner, size)
    return masked(x.double() - mean, std.isfinite())


def standardise(x: Tensor, owner: Tensor, size: Tensor | None = None) -> Tensor:
    """Subtract the owner's mean and divide by its standard deviation (n - 1), 0 where flat. [N]."""
    return centre(x, owner, size) / moments(x, owner, size)[1]


def one_owner(x: Tensor) -> Tensor:
    """Return the owners [N] of a batch that is pooled as a whole."""
    return torch.zeros(len(x), dtype=torch.int64, device=x.device)


def whiten(x: Tensor, mask: Tensor, *, size: Tensor | None = None) -> Tensor:
    """Centre and scale `x` over the masked tokens of the whole batch; 0 elsewhere. [B, T].

    `size` [] is the largest of the numbers that `x` was made of, see `moments`.
    """
    kept = x[mask]  # [N]
    out = torch.zeros_like(x)  # [B, T]
    sizes = None if size is None else size.expand_as(kept)
    out[mask] = standardise(kept, one_owner(kept), sizes).to(x.dtype)
    return out


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return 1 - Var(returns - values) / Var(returns) of [N] pairs; 0 where returns do not vary."""
    if not len(returns):
        return 0.0
    values, returns = values.double(), returns.double()
    total = returns.var(correction=0)
    if moments(returns, one_owner(returns))[1].isinf().any():
        return 0.0
    return float(1 - (returns - values).var(correction=0) / total)
