"""What a model says about the tokens of a batch: the only place that shifts by one position.

Legend: B rows, T positions, V vocabulary, K tokens asked about, k tokens in a mix. Rows are padded
on the right; a causal model never looks right, so padding cannot reach a real token and no padding
mask is handed to the model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepcredit.agents.engines.mixing import mixed_embeddings
from stepcredit.agents.model import ValueModel


@dataclass(frozen=True)
class Reading:
    """What a model says of a batch's tokens; all carry gradient."""

    logprobs: Tensor
    """[B, T]: log-probability of each token, given what precedes it."""
    entropy: Tensor
    """[B, T]: entropy of the distribution that the token was drawn from."""
    topk_logprobs: Tensor | None = None
    """[B, T, K]: log-probabilities, in its place, of the tokens that were asked for."""


def token_logprobs(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    temperature: float,
    *,
    topk_ids: Tensor | None = None,
    mix_ids: Tensor | None = None,
    mix_weights: Tensor | None = None,
) -> Reading:
    """Read each token of `input_ids` [B, T] given the tokens before it, under logits / temperature.

    `topk_ids` [B, T, K] at position t are asked about in the place of token t. Token t itself is
    read as the mix `mix_ids`, `mix_weights` [B, T, k] of input embeddings (see `Mixing`) where the
    weights are not all 0. Position 0 and padding are 0 in the result.
    """
    shown = {"input_ids": input_ids[:, :-1]}
    if mix_ids is not None and mix_weights is not None:
        embed = model.get_input_embeddings()  # type: ignore[operator]  # a transformers model
        embeds = mixed_embeddings(embed, input_ids[:, :-1], mix_ids[:, :-1], mix_weights[:, :-1])
        shown = {"inputs_embeds": embeds}
    logits = model(**shown, use_cache=False).logits  # [B, T-1, V]
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)  # [B, T-1, V]
    chosen = logp.gather(-1, input_ids[:, 1:, None]).squeeze(-1)  # [B, T-1]
    entropy = -(logp.exp() * logp).sum(-1)  # [B, T-1]
    likeliest = None
    if topk_ids is not None:
        asked = logp.gather(-1, topk_ids[:, 1:].long())  # [B, T-1, K]
        likeliest = _before(asked.movedim(-1, 0), attention_mask).movedim(0, -1)  # [B, T, K]
    return Reading(_before(chosen, attention_mask), _before(entropy, attention_mask), likeliest)


def token_values(critic: ValueModel, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return [B, T]: the value of the state before token t, read at the output of token t-1.

    Position 0 (no state precedes it) and padding are 0. For the value after a row's last token,
    pad the batch by one more column with the mask True there, and read that column.
    """
    return _before(critic(input_ids[:, :-1]), attention_mask)


def _before(outputs: Tensor, attention_mask: Tensor) -> Tensor:
    """Move outputs [..., B, T-1] one to the right, on to the token that each one precedes."""
    shifted = nn.functional.pad(outputs, (1, 0))  # [..., B, T]
    return shifted.masked_fill(~attention_mask.bool(), 0.0)
