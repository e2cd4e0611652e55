"""Bytes on paper: formulas from the config of a Llama-like decoder, with nothing allocated.

Legend: H hidden size, I intermediate size, L layers, A query heads and A' their width (heads x head
size), K width of the key-value heads, D head size, V words, s bytes of one weight; b rows of T
tokens in a micro-batch, of which n = b (T - 1) are read: a row's last token predicts nothing.
"""

from dataclasses import astuple, dataclass

import torch
from transformers import PretrainedConfig

from stepcredit.agents.engines.transformers import COLUMN_BLOCK

FLOAT = 4
"""Bytes of what is fp32 whatever the weights are: norms, the softmax over words, Adam's counts."""
ID = 8
"""Bytes of a token id."""


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """What one model takes."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    """Saved by one forward pass of a micro-batch for its backward pass."""
    cache: int = 0
    """Keys and values of all episodes of a rollout."""

    @property
    def kept(self) -> int:
        """What stays from the first step to the last."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """Everything, as if it were there at one time."""
        return sum(astuple(self))


def parameters(config: PretrainedConfig, *, value_head: bool = False) -> tuple[int, int]:
    """Return how many numbers the parameters hold, and in how many tensors.

    V H + L (2 H A' + 2 H K + 3 H I + 2 H) + H, the biases where the config has them, and the head:
    V H, nothing where it is tied to the embeddings, H + 1 for a value.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = _widths(config)
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden
    tensors = 9
    if getattr(config, "attention_bias", False):
        layer, tensors = layer + queries + 2 * keys + hidden, tensors + 4
    if getattr(config, "mlp_bias", False):
        layer, tensors = layer + 2 * inner + hidden, tensors + 3
    words = config.vocab_size * hidden
    if value_head:
        head, head_tensors = hidden + 1, 2
    else:
        head, head_tensors = (0, 0) if config.tie_word_embeddings else (words, 1)
    layers = config.num_hidden_layers
    return words + layers * layer + hidden + head, 2 + layers * tensors + head_tensors


def trained(config: PretrainedConfig, *, value_head: bool = False) -> Bytes:
    """Return weights, gradients and optimizer state of a model under AdamW.

    A gradient for every weight, two moments of its type, and a count of steps for every tensor.
    """
    numbers, tensors = parameters(config, value_head=value_head)
    weights = numbers * _itemsize(config)
    return Bytes(weights=weights, gradients=weights, optimizer=2 * weights + tensors * FLOAT)


def activations(
    config: PretrainedConfig, *, rows: int, tokens: int, value_head: bool = False
) -> int:
    """Return the bytes that the forward pass of a micro-batch saves for its backward pass.

    Saved at each of the n positions read, under torch's own scaled dot-product attention:

    * each of the 2 L + 1 norms: its input in fp32 (4 H), the root mean square (4), the normalised
      input (s H) and the output (s H), which the next matrices read;
    * attention, L times: rotated queries and keys, values and output (s (2 A' + 2 K)), and the
      logarithm of each head's softmax denominator (4 A);
    * gated MLP, L times: gate, up, SiLU of the gate, and the product (4 s I);
    * the log-probabilities of all words and, for the entropy, their exponentials (2 x 4 V); nothing
      for a value head;
    * the token's id (8).

    Cosines and sines of the positions (2 s D (T - 1)) are shared by rows and layers. Left out: the
    few numbers a token that the losses save, mixed embeddings, and what a kernel needs only while
    it runs. Attention that writes its scores out would save 4 A (T - 1) more at each position.
    """
    size, hidden = _itemsize(config), int(config.hidden_size)
    queries, keys = _widths(config)
    norm = FLOAT * (hidden + 1) + 2 * size * hidden
    attention = size * (2 * queries + 2 * keys) + FLOAT * int(config.num_attention_heads)
    mlp = 4 * size * int(config.intermediate_size)
    head = 0 if value_head else 2 * FLOAT * int(config.vocab_size)
    layers = int(config.num_hidden_layers)
    position = layers * (2 * norm + attention + mlp) + norm + head + ID
    shared = 2 * size * _head_size(config) * (tokens - 1)
    return rows * (tokens - 1) * position + shared


def cache(config: PretrainedConfig, *, rows: int, prompt: int, tokens: int) -> int:
    """Return the bytes of keys and values, 2 s L K a column, of `rows` episodes of `tokens`.

    A row holds all its tokens but the last, which nothing reads, and one column of padding. Columns
    come in blocks that fit the prompt, and double whenever an episode outgrows them.
    """
    columns = -(-(min(prompt, tokens - 1) + 1) // COLUMN_BLOCK) * COLUMN_BLOCK
    while columns < tokens:
        columns *= 2
    _, keys = _widths(config)
    layers = int(config.num_hidden_layers)
    return 2 * _itemsize(config) * layers * keys * rows * columns


def _widths(config: PretrainedConfig) -> tuple[int, int]:
    """Return the widths of queries and of keys: heads x head size."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads * _head_size(config), kv_heads * _head_size(config)


def _head_size(config: PretrainedConfig) -> int:
    own: int | None = getattr(config, "head_dim", None)
    return own or int(config.hidden_size // config.num_attention_heads)


def _itemsize(config: PretrainedConfig) -> int:
    dtype = config.dtype or torch.float32
    named: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return named.itemsize
