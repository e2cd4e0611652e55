"""Neighbour mixing (see `Mixing`): which embeddings are mixed, and the mix that a model reads.

Legend: N rows, B rows of a batch, T positions, V words, H hidden size, k tokens in a mix.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepcredit.agents.engines.base import Mixing


class Mixer:
    """The mixes of one turn of N rows, by their coins [N, most tokens]: below the rate is heads."""

    def __init__(self, mixing: Mixing, embeddings: Tensor, coins: np.ndarray[Any, Any]):
        self.mixing, self.coins = mixing, coins
        self.embeddings = embeddings.detach()  # [V, H]
        self.norms = torch.linalg.vector_norm(self.embeddings, dim=-1, dtype=torch.float32)  # [V]

    def mix(
        self, logp: Tensor, live: np.ndarray[Any, Any], t: int, goes_on: np.ndarray[Any, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return ids and weights [N, k] of what `live` rows read in place of their token t.

        All are 0 where the coin says tails, and for a token that no other one follows.
        """
        shape = (len(logp), self.mixing.k)
        ids = torch.zeros(shape, dtype=torch.int64, device=logp.device)  # [N, k]
        weights = torch.zeros(shape, device=logp.device)  # [N, k]
        heads = torch.from_numpy(goes_on & (self.coins[live, t] < self.mixing.rate))  # [N]
        if heads.any():
            heads = heads.to(logp.device)
            ids[heads], weights[heads] = neighbours(
                logp[heads], self.embeddings, self.norms, self.mixing.k
            )
        return ids, weights


def neighbours(logp: Tensor, embeddings: Tensor, norms: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ids and weights [N, k] of each row's mix, its likeliest token first.

    `logp` [N, V] are its log-probabilities, `norms` [V] the lengths of the `embeddings` [V, H].
    """
    anchors = logp.argmax(-1, keepdim=True)  # [N, 1]
    products = (embeddings[anchors[:, 0]] @ embeddings.T).float()  # [N, V]
    # The cosine but for the anchor's own length, which changes no order.
    nearness = products / norms.clamp_min(torch.finfo(norms.dtype).tiny)  # [N, V]
    # The anchor comes first even where another row points the very same way.
    ids = nearness.scatter(-1, anchors, torch.inf).topk(k, dim=-1).indices  # [N, k]
    return ids, torch.softmax(logp.gather(-1, ids), dim=-1)


def mixed_embeddings(
    embed: nn.Module, input_ids: Tensor, mix_ids: Tensor, mix_weights: Tensor
) -> Tensor:
    """Return input embeddings [B, T, H]: the mix where `mix_weights` [B, T, k] are not all 0."""
    own: Tensor = embed(input_ids)  # [B, T, H]
    mixed = (mix_weights > 0).any(-1)  # [B, T]
    parts = embed(mix_ids[mixed].long())  # [tokens mixed, k, H]
    mixes = (mix_weights[mixed].unsqueeze(-1) * parts.float()).sum(-2)
    return own.masked_scatter(mixed.unsqueeze(-1), mixes.to(own.dtype))
