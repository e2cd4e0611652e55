"""Drawing tokens: each row's numbers from its own seed, each step's distribution.

Legend: N rows, V words.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def uniforms(seeds: Sequence[int], count: int, stream: int = 0) -> np.ndarray[Any, Any]:
    """Return [N, count] numbers in [0, 1): row n's begin a Philox stream of its seed."""
    bits = np.random.Philox(key=0)
    generator = np.random.Generator(bits)
    # Re-keying one generator costs a quarter of making one.
    state = bits.state
    out = np.empty((len(seeds), count))  # [N, count]
    for row, seed in zip(out, seeds, strict=True):
        state["state"]["key"][:] = (seed, stream)
        bits.state = state
        generator.random(out=row)
    return out


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Return the log-probabilities [N, V] to draw from; temperature 0 puts all on the mode."""
    if temperature == 0:
        mode = logits.argmax(-1, keepdim=True)  # [N, 1]
        return torch.full_like(logits, -torch.inf, dtype=torch.float32).scatter(-1, mode, 0.0)
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def draw(logp: Tensor, uniforms: np.ndarray[Any, Any]) -> Tensor:
    """Invert each row's cumulative distribution at its uniform; return the tokens [N, 1]."""
    cumulative = logp.double().exp().cumsum(-1)  # [N, V]
    u = torch.from_numpy(uniforms).to(logp.device)[:, None]  # [N, 1]
    # Scaled by the total, which rounding moves off 1; `right` never lands on a probability of 0.
    tokens = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)  # [N, 1]
    return tokens.clamp_max(logp.shape[-1] - 1)
