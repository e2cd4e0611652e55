"""Sampling from a transformers model in this process, with one key-value cache per episode.

Legend: N rows of a call, Q new tokens, W cache columns in sight, H heads, D head size, V words,
k tokens in a mix.
A row's token j lies in cache column j + 1, so that no row has padding inside its history; shorter
rows of a call write their padding to column 0, which nothing but padding looks at.
"""

import inspect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from stepcredit.agents.engines.base import Completion, Mixing
from stepcredit.agents.engines.draw import distribution, draw, uniforms
from stepcredit.agents.engines.mixing import Mixer, mixed_embeddings
from stepcredit.agents.errors import AgentError

COLUMN_BLOCK = 32
MASKED = -1e30


class TransformersEngine:
    """Lockstep sampling: the batch of every forward pass depends on row indices only."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_id: int,
        temperature: float = 1.0,
        topk: int = 0,
        mixing: Mixing | None = None,
    ):
        """Record `topk` likeliest tokens with each (all there are, where these are fewer)."""
        vocabulary = len(model.get_input_embeddings().get_parameter("weight"))
        if mixing is not None and not (0 <= mixing.rate <= 1 and 0 <= mixing.k <= vocabulary):
            raise AgentError(
                f"{mixing}: rate must lie in [0, 1] and k in [0, {vocabulary}], the size of the "
                "vocabulary; pass Mixing(rate=0.1, k=3)"
            )
        self.model = model
        self.stop_id = stop_id
        self.temperature = temperature
        self.topk = min(topk, vocabulary)
        self.mixing = mixing if mixing is not None and mixing.rate and mixing.k else None
        self.policy_version = 0
        self.max_context: int = model.config.max_position_embeddings
        # The keyword was renamed in transformers 5.20.
        parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self.cache_keyword = "cache" if "cache" in parameters else "past_key_values"

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters, as recorded on each trajectory."""
        record: dict[str, Any] = {"engine": "transformers", "temperature": self.temperature}
        if self.topk:
            record["topk"] = self.topk
        if self.mixing is not None:
            record["mixing"] = asdict(self.mixing)
        return record

    def mixer(self, seeds: Sequence[int], most: int) -> Mixer | None:
        """Return what mixes one turn of `most` tokens; None where nothing is mixed."""
        if self.mixing is None:
            return None
        # A stream of their own: with and without mixing, token t is drawn by the same number.
        coins = uniforms(seeds, most, stream=1)  # [N, most]
        return Mixer(self.mixing, self.model.get_input_embeddings().get_parameter("weight"), coins)

    def update_weights(self, policy_version: int) -> None:
        """Name the version of the weights; the model object is shared with the trainer."""
        self.policy_version = policy_version

    def start(self, num_rows: int) -> "TransformersSession":
        """Open a session of `num_rows` empty histories."""
        return TransformersSession(self, num_rows)


class TransformersSession:
    """The caches and lengths of one rollout's episodes."""

    def __init__(self, engine: TransformersEngine, num_rows: int):
        self.engine = engine
        self.cache = RowCache(num_rows, engine.model.config.num_hidden_layers)
        self.cached = np.zeros(num_rows, dtype=np.int64)
        # A row's last sampled token waits for the next turn, and enters with what follows it.
        self.waiting: list[list[int]] = [[] for _ in range(num_rows)]

    @torch.inference_mode()
    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Completion]:
        """Append `new_ids` to each named row's history, then sample one turn of it."""
        limits = np.asarray(max_tokens)  # [N]
        most = int(limits.max())
        u = uniforms(seeds, most)  # [N, most]
        mixer = self.engine.mixer(seeds, most)
        mix: tuple[Tensor, Tensor] | None = None
        ids = [[*self.waiting[row], *new] for row, new in zip(rows, new_ids, strict=True)]
        said: list[dict[str, list[Any]]] = [defaultdict(list) for _ in rows]
        live = np.arange(len(rows))  # [N]
        row_index = np.asarray(rows)
        model = self.engine.model
        was_training = model.training
        if was_training:
            model.eval()
        for t in range(most):
            logits = self._forward(row_index[live], ids, mix)  # [N, V]
            logp = distribution(logits, self.engine.temperature)  # [N, V]
            tokens = draw(logp, u[live, t])  # [N, 1]
            drawn = self._record(logp, tokens)
            chosen = tokens[:, 0].cpu().numpy()  # [N]
            goes_on = (chosen != self.engine.stop_id) & (t + 1 < limits[live])
            if mixer is not None:
                # A turn's last token is read as itself: it may wait for the next turn.
                mix_ids, mix_weights = mixer.mix(logp, live, t, goes_on)  # [N, k]
                drawn |= {"mix_ids": mix_ids, "mix_weights": mix_weights}
                on = torch.from_numpy(goes_on).to(logp.device)  # [N]
                mix = mix_ids[on], mix_weights[on]
            for name, values in drawn.items():
                for i, value in zip(live, values.tolist(), strict=True):
                    said[i][name].append(value)
            ids = [[int(token)] for token in chosen[goes_on]]
            live = live[goes_on]
            if not len(live):
                break
        if was_training:
            model.train()
        for row, turn in zip(rows, said, strict=True):
            self.waiting[row] = turn["token_ids"][-1:]
        return [
            Completion(
                **turn,
                finish_reason="stop" if turn["token_ids"][-1] == self.engine.stop_id else "length",
                policy_version=self.engine.policy_version,
            )
            for turn in said
        ]

    def _record(self, logp: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return what a completion says of the `tokens` [N, 1] drawn from `logp` [N, V]."""
        record = {"token_ids": tokens[:, 0], "logprobs": logp.gather(-1, tokens)[:, 0]}
        if self.engine.topk:
            likeliest = logp.topk(self.engine.topk, dim=-1)  # [N, K]
            record |= {"topk_ids": likeliest.indices, "topk_logprobs": likeliest.values}
        return record

    def _forward(
        self,
        rows: np.ndarray[Any, Any],
        ids: Sequence[Sequence[int]],
        mix: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Read the new ids of the named rows and return the logits [N, V] after each row's last.

        `mix`: ids and weights [N, k] of the mix that is read in place of a row's one new id.
        """
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))  # [N]
        width = int(lengths.max())
        padding = width - lengths  # [N]
        padded = np.zeros((len(ids), width), dtype=np.int64)  # [N, Q]
        for i, row in enumerate(ids):
            padded[i, padding[i] :] = row
        offsets = np.arange(width) - padding[:, None]  # [N, Q], negative on padding
        positions = np.maximum(self.cached[rows, None] + offsets, 0)  # [N, Q]
        self.cached[rows] += lengths
        reach = int(self.cached[rows].max())
        weight: Tensor = next(self.engine.model.parameters())
        device = weight.device
        mask = self.cache.aim(rows, positions, offsets < 0, reach, weight)
        tokens = torch.from_numpy(padded).to(device)  # [N, Q]
        read = {"input_ids": tokens}
        if mix is not None:
            mix_ids, mix_weights = (each[:, None] for each in mix)  # [N, 1, k]
            embed = self.engine.model.get_input_embeddings()
            read = {"inputs_embeds": mixed_embeddings(embed, tokens, mix_ids, mix_weights)}
        logits: Tensor = self.engine.model(
            **read,
            attention_mask=mask,
            position_ids=torch.from_numpy(positions).to(device),
            use_cache=True,
            logits_to_keep=1,
            **{self.engine.cache_keyword: self.cache},
        ).logits  # [N, 1, V]
        return logits[:, 0]


class RowCache(Cache):
    """Keys and values of all rows, of which any subset can be read and extended."""

    def __init__(self, num_rows: int, num_layers: int):
        self.row_layers = [RowLayer(num_rows) for _ in range(num_layers)]
        super().__init__(layers=[*self.row_layers])
        self.num_rows = num_rows
        self.capacity = 0

    def aim(
        self,
        rows: np.ndarray[Any, Any],
        positions: np.ndarray[Any, Any],
        is_padding: np.ndarray[Any, Any],
        reach: int,
        like: Tensor,
    ) -> Tensor:
        """Say where the next forward pass writes, and return the mask [N, 1, Q, W] it reads with.

        `positions` [N, Q] are those of the new tokens in their rows, `reach` the longest history.
        """
        device, dtype = like.device, like.dtype
        while self.capacity < reach + 1:
            self.capacity = max(2 * self.capacity, -(-(reach + 1) // COLUMN_BLOCK) * COLUMN_BLOCK)
        flat = rows[:, None] * self.capacity + np.where(is_padding, 0, positions + 1)  # [N, Q]
        write_to = torch.from_numpy(flat.reshape(-1)).to(device)
        everything = np.array_equal(rows, np.arange(self.num_rows))
        chosen = None if everything else torch.from_numpy(rows).to(device)
        for layer in self.row_layers:
            layer.aim(write_to, chosen, reach + 1, self.capacity)
        sight = np.arange(reach + 1)  # [W]
        visible = (sight <= positions[:, :, None] + 1) & ((sight > 0) | is_padding[:, :, None])
        # Added to the scores, which every attention implementation understands.
        return torch.from_numpy(np.where(visible[:, None], np.float32(0), np.float32(MASKED))).to(
            device, dtype
        )


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, as [rows, columns, H, D], so that a token is one slice."""

    is_sliding = False

    def __init__(self, num_rows: int):
        super().__init__()  # type: ignore[no-untyped-call]  # of transformers
        self.num_rows = num_rows
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def aim(self, write_to: Tensor, rows: Tensor | None, sight: int, capacity: int) -> None:
        """Set the flat slots to write, the rows to read (None: all) and how many columns."""
        self.write_to, self.rows, self.sight, self.capacity = write_to, rows, sight, capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the first `update` makes the columns."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new [N, H, Q, D] states and return all that the rows may look at."""
        self.keys = self._written(self.keys, key_states)
        self.values = self._written(self.values, value_states)
        return self._seen(self.keys), self._seen(self.values)

    def _written(self, store: Tensor | None, states: Tensor) -> Tensor:
        if store is None or store.shape[1] < self.capacity:
            _, heads, _, size = states.shape
            grown = states.new_zeros((self.num_rows, self.capacity, heads, size))
            if store is not None:
                grown[:, : store.shape[1]] = store
            store = grown
        new = states.transpose(1, 2).flatten(0, 1)  # [N*Q, H, D]
        store.view(-1, *store.shape[2:]).index_copy_(0, self.write_to, new)
        return store

    def _seen(self, store: Tensor) -> Tensor:
        seen = store[:, : self.sight]  # [rows, W, H, D]
        if self.rows is not None:
            seen = seen.index_select(0, self.rows)
        return seen.transpose(1, 2)  # [N, H, W, D]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys; the mask is made by `RowCache.aim`."""
        return self.sight, 0

    def get_seq_length(self) -> int:
        """Return the number of columns in sight."""
        return self.sight

    def get_max_length(self) -> int:
        """Return -1: the columns grow without bound."""
        return -1
