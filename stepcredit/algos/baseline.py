"""Values that are sampled, not learned: where to branch, and what the continuations say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import segment_ids, starts_segment

Point = tuple[int, int]
"""Row, and position of a step's first policy token."""


def branch_points(batch: Batch) -> list[Point]:
    """Return the first policy token of every step of every row."""
    segment = segment_ids(batch.action_mask, batch.step_end)  # [B, T]
    first = starts_segment(segment, batch.action_mask)  # [B, T]
    return [(int(row), int(position)) for row, position in first.nonzero()]


def sampled_values(batch: Batch, points: Sequence[Point], returns: np.ndarray[Any, Any]) -> Batch:
    """Put the mean return of each point's continuations [N, K] into `values` (arXiv:2410.01679).

    A point none of whose continuations could be scored has the return that was seen from there on.
    """
    to_come = batch.rewards.flip(1).cumsum(1).flip(1)  # [B, T]
    values = torch.zeros_like(batch.rewards)  # [B, T]
    for (row, position), row_returns in zip(points, returns, strict=True):
        scored = row_returns[np.isfinite(row_returns)]
        seen = float(to_come[row, position])
        values[row, position] = float(scored.mean()) if len(scored) else seen
    return replace(batch, values=values, final_values=values.new_zeros(len(values)))
