"""Sampled values: where episodes are branched, and what becomes of the continuations."""

from dataclasses import replace

import numpy as np
import torch

from stepcredit.algos.baseline import branch_points, sampled_values
from tests.algos.test_presets import one_token

NAN = float("nan")


def two_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Row 0: a prompt, a step of two, an observation, a step, a tail. Row 1: one step."""
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 0, 0]]).bool()
    ends = torch.tensor([[0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]]).bool()
    return mask, ends


def test_branches_at_the_first_policy_token_of_every_step() -> None:
    mask, ends = two_rows()
    batch = replace(one_token(), action_mask=mask, step_end=ends)
    assert branch_points(batch) == [(0, 1), (0, 4), (0, 5), (1, 2)]


def test_values_are_the_mean_of_what_could_be_scored() -> None:
    mask, ends = two_rows()
    rewards = torch.tensor([[0.0, 0, 0.5, 0, 2, 0], [0, 0, 0, 3, 0, 0]])
    batch = replace(one_token(), action_mask=mask, step_end=ends, rewards=rewards)
    returns = np.array([[1.0, 2, 3], [4, NAN, 6], [NAN, NAN, NAN], [NAN, NAN, NAN]])
    read = sampled_values(batch, branch_points(batch), returns)
    assert read.values is not None and read.final_values is not None
    # Nothing could be scored: what was earned from there on stands in, 0 and 3.
    assert read.values.tolist() == [[0, 2, 0, 0, 5, 0], [0, 0, 3, 0, 0, 0]]
    assert read.final_values.tolist() == [0, 0]
