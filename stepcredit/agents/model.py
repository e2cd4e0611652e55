"""Tiny decoders from transformers' own classes, and the value network that goes with a policy."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from stepcredit.agents.errors import ModelError
from stepcredit.agents.sizes import SIZES

HEAD_DIM = 32
MAX_POSITIONS = 4096
# The usual 0.02 is meant for widths in the thousands: with it a tiny model learns facts several
# times slower, and slower still where position drowns out which letter is read.
WEIGHT_STD = 0.1
EMBEDDING_STD = 0.5


def build_tiny(vocab_size: int, size: str, seed: int) -> LlamaForCausalLM:
    """Return a fresh fp32 decoder with untied embeddings; the weights depend on the seed alone.

    Raises ModelError for an unknown size.
    """
    if size not in SIZES:
        raise ModelError(f"size={size!r}: must be one of {', '.join(SIZES)}; pass size='0.2M'")
    shape = SIZES[size]
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // HEAD_DIM,
        num_key_value_heads=shape.hidden // HEAD_DIM,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=WEIGHT_STD,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    return model


class ValueModel(nn.Module):
    """A decoder with one number per position in place of a distribution.

    Output t has read the tokens up to and with t, so it is the value of the state after token t;
    `stepcredit.agents.logprobs.token_values` moves it to the token that is decided there.
    """

    def __init__(self, trunk: nn.Module, hidden_size: int):
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return [B, T] from right-padded [B, T] token ids."""
        hidden = self.trunk(input_ids=input_ids, use_cache=False).last_hidden_state  # [B, T, H]
        out: Tensor = self.head(hidden).squeeze(-1)  # [B, T]
        return out


def value_model(policy: PreTrainedModel) -> ValueModel:
    """Return a separate network with the policy's weights and a head that says 0 everywhere."""
    trunk = deepcopy(policy.base_model)
    head_like = next(policy.parameters())
    return ValueModel(trunk, policy.config.hidden_size).to(head_like.device, head_like.dtype)
