"""How tokens are averaged: one weight per token, normalised over the whole optimizer step.

Every function takes the loss mask [B, T] of all rows of an optimizer step, before they are cut into
micro-batches. A row without a loss token counts nowhere: numerator and denominator share one mask.
"""

from torch import Tensor


def sequence_mean(mask: Tensor) -> Tensor:
    """Weigh each row by 1/rows and its loss tokens by 1/|o| (arXiv:2402.03300, eq. 3). [B, T]."""
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    return mask / (lengths * _rows(mask))


def token_mean(mask: Tensor) -> Tensor:
    """Weigh every loss token alike, by 1/(loss tokens of the step; arXiv:2503.14476). [B, T]."""
    return mask / mask.sum().clamp(min=1)


def constant(mask: Tensor, *, max_tokens: int) -> Tensor:
    """Weigh every loss token by 1/(rows x `max_tokens`), whatever the lengths. [B, T].

    Dr. GRPO (arXiv:2503.20783): `max_tokens` is the longest answer that may be generated.
    """
    return sequence_sum(mask) / max_tokens


def sequence_sum(mask: Tensor) -> Tensor:
    """Weigh every loss token by 1/rows: rows are averaged, the tokens of a row summed. [B, T]."""
    return mask / _rows(mask)


def _rows(mask: Tensor) -> Tensor:
    return mask.any(1).sum().clamp(min=1)
