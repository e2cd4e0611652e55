"""What a model says about the tokens of a batch: the only place that shifts by one position.

Legend: B rows, T positions, V vocabulary. Rows are padded on the right; a causal model never looks
right, so padding cannot reach a real token and no padding mask is handed to the model.
"""

import torch
from torch import Tensor, nn

from stepcredit.agents.model import ValueModel


def token_logprobs(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log-probability [B, T] of each token and entropy [B, T] of where it was drawn from.

    Position t speaks of token t given the tokens before it, under logits / temperature; position 0
    and padding are 0. Both carry gradient.
    """
    logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits  # [B, T-1, V]
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)  # [B, T-1, V]
    chosen = logp.gather(-1, input_ids[:, 1:, None]).squeeze(-1)  # [B, T-1]
    entropy = -(logp.exp() * logp).sum(-1)  # [B, T-1]
    return _before(chosen, attention_mask), _before(entropy, attention_mask)


def token_values(critic: ValueModel, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return [B, T]: the value of the state before token t, read at the output of token t-1.

    Position 0 (no state precedes it) and padding are 0. For the value after a row's last token,
    pad the batch by one more column with the mask True there, and read that column.
    """
    return _before(critic(input_ids[:, :-1]), attention_mask)


def _before(outputs: Tensor, attention_mask: Tensor) -> Tensor:
    """Move outputs [B, T-1] one position to the right, on to the token that each one precedes."""
    shifted = nn.functional.pad(outputs, (1, 0))  # [B, T]
    return shifted.masked_fill(~attention_mask.bool(), 0.0)
