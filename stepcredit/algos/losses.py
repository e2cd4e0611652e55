"""The critic's loss."""

import torch
from torch import Tensor

from stepcredit.algos.credit import masked


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    value_mask: Tensor,
    *,
    cliprange_value: float | None,
) -> Tensor:
    """Return half the squared error at each value token, clipped around the old value. [B, T]."""
    values, old_values, returns = (masked(x, value_mask) for x in (values, old_values, returns))
    error = (values - returns) ** 2
    if cliprange_value is not None:
        near = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
        error = torch.maximum(error, (near - returns) ** 2)
    return 0.5 * error
