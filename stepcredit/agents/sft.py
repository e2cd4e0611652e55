"""Warm start: a fresh tiny decoder imitates an environment's own demonstrations."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

import stepcredit
from stepcredit.agents.engines.base import Completion
from stepcredit.agents.episode import Episode, TaskSpec, reset_env, step_env
from stepcredit.agents.errors import ModelError
from stepcredit.agents.logprobs import token_logprobs
from stepcredit.agents.model import build_tiny
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.tokenizer import build_char_tokenizer
from stepcredit.agents.trajectory import Trajectory
from stepcredit.envs import derive_seed, make

PROBES = 8


@dataclass(frozen=True, kw_only=True)
class SFT:
    """How long and on how much the policy imitates."""

    steps: int = 400
    """Optimizer steps; 0 leaves the fresh weights."""
    batch_turns: int = 64
    """Demonstrated turns of one step, so that long and short episodes teach alike."""
    learning_rate: float = 3e-3
    """Peak of a cosine that ends at 0, after a twentieth of the steps as warm-up."""
    demonstrations: int = 8192
    """Different turns that are demonstrated; they are used again once they run out."""


def warm_start(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    size: str,
    seed: int,
    sft: SFT,
    cache_dir: str | Path | None = None,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return a policy that imitates the environment's demonstrations, and its tokenizer.

    Weights, tasks and demonstrations are fresh for each `seed`. The result is kept in `cache_dir`
    (default: $STEPCREDIT_CACHE, else ~/.cache/stepcredit) under a hash of all that it depends on;
    the reward set-up is not among that. Raises ModelError for an environment without
    `demonstration` or `alphabet`.
    """
    kwargs = {name: value for name, value in env_kwargs.items() if name != "reward"}
    env = make(env_id, **kwargs)
    try:
        tokenizer = build_char_tokenizer(_alphabet(env))
        renderer = ChatRenderer(tokenizer)
        # The first demonstrations stand for the environment's code, which may change under its id.
        probes = [_demonstrate(env, renderer, seed, i).token_ids.tolist() for i in range(PROBES)]
        content = {
            "env": [env_id, sorted(kwargs.items())],
            "alphabet": sorted(set(_alphabet(env))),
            "probes": probes,
            "model": [size, seed],
            "sft": asdict(sft),
            "version": stepcredit.__version__,
        }
        name = hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()[:32]
        entry = _cache(cache_dir) / f"warm-start-{name}.safetensors"
        fresh = partial(build_tiny, len(tokenizer), size, derive_seed("model", seed))
        train = partial(_train, env=env, renderer=renderer, seed=seed, sft=sft)
        return _cached(entry, fresh, train).eval(), tokenizer
    finally:
        env.close()


def _train(
    model: LlamaForCausalLM,
    *,
    env: gym.Env[Any, Any],
    renderer: ChatRenderer,
    seed: int,
    sft: SFT,
) -> None:
    played: list[Trajectory] = []
    turns = 0
    while turns < min(sft.demonstrations, sft.steps * sft.batch_turns):
        played.append(_demonstrate(env, renderer, seed, len(played)))
        turns += len(played[-1].turn_cut)
    if played:
        imitate(model, played, sft, seed=seed, pad_id=renderer.pad_id)


def imitate(
    model: LlamaForCausalLM,
    demonstrations: list[Trajectory],
    sft: SFT,
    *,
    seed: int,
    pad_id: int,
) -> float:
    """Fit the model to the action tokens (stop token included); return the last step's loss."""
    rng = np.random.default_rng(derive_seed("sft order", seed))
    turns = float(np.mean([len(t.turn_cut) for t in demonstrations]))
    rows = max(1, round(sft.batch_turns / turns))
    optimizer = torch.optim.AdamW(model.parameters(), lr=sft.learning_rate, fused=True)
    warm_up = max(1, sft.steps // 20)
    order = np.empty(0, dtype=np.int64)
    loss = torch.zeros(())
    model.train()
    for step in range(sft.steps):
        if len(order) < rows:
            order = np.concatenate([order, rng.permutation(len(demonstrations))])
        chosen, order = order[:rows], order[rows:]
        ids, mask, actions = _padded([demonstrations[i] for i in chosen], pad_id)
        logprobs, _ = token_logprobs(model, ids, mask, 1.0)  # [B, T]
        loss = -(logprobs * actions).sum() / actions.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * step / sft.steps))
        optimizer.param_groups[0]["lr"] = (
            sft.learning_rate * min(1.0, (step + 1) / warm_up) * cosine
        )
        optimizer.step()
    model.eval()
    model.zero_grad()
    return float(loss.detach())


def _padded(rows: list[Trajectory], pad_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = max(len(t.token_ids) for t in rows)
    ids = torch.full((len(rows), width), pad_id)  # [B, T]
    mask = torch.zeros((len(rows), width), dtype=torch.bool)  # [B, T]
    actions = torch.zeros((len(rows), width), dtype=torch.bool)  # [B, T]
    for i, t in enumerate(rows):
        length = len(t.token_ids)
        ids[i, :length] = torch.from_numpy(t.token_ids)
        mask[i, :length] = True
        actions[i, :length] = torch.from_numpy(t.action_mask)
    return ids, mask, actions


def _demonstrate(
    env: gym.Env[Any, Any], renderer: ChatRenderer, seed: int, number: int
) -> Trajectory:
    """Return the expert's episode on the `number`-th task of this seed."""
    rng = np.random.default_rng(derive_seed("expert", seed, number))
    episode = Episode(
        spec=TaskSpec(group_id=str(number), task=derive_seed("sft task", seed, number)),
        sample_id=0,
        env_id="",
        env=env,
        seed=derive_seed("sft reset", seed, number),
        chance_seed=derive_seed("sft chance", seed, number),
        sampling={},
    )
    reply = reset_env(episode)
    episode.next_ids = renderer.prompt(reply.messages)
    act: Callable[[np.random.Generator], str] = env.unwrapped.demonstration  # type: ignore[attr-defined]  # checked by _alphabet
    while not episode.done:
        episode.read(episode.next_ids)
        text = act(rng)
        ids = renderer.reply(text)
        episode.say(
            Completion(
                token_ids=ids,
                logprobs=[0.0] * len(ids),
                finish_reason="stop",
                policy_version=0,
            ),
            text,
        )
        if getattr(env.unwrapped, "one_turn", False):
            break  # nothing is read any more, and judging it may be costly
        reply = step_env(episode, text)
        episode.judge(reply, renderer.token_spans(ids), len(text))
        episode.next_ids = renderer.delta(reply.messages)
    return episode.trajectory()


def _alphabet(env: gym.Env[Any, Any]) -> str:
    for name in ("alphabet", "demonstration"):
        if not hasattr(env.unwrapped, name):
            raise ModelError(
                f"{type(env.unwrapped).__name__} has no {name!r}: a tiny model starts from the "
                "environment's own demonstrations; add it, or name a trained model instead"
            )
    text: str = env.unwrapped.alphabet  # type: ignore[attr-defined]  # just looked for
    return text


def _cache(cache_dir: str | Path | None) -> Path:
    return Path(
        cache_dir or os.environ.get("STEPCREDIT_CACHE") or "~/.cache/stepcredit"
    ).expanduser()


def _cached(
    entry: Path, fresh: Callable[[], LlamaForCausalLM], train: Callable[[LlamaForCausalLM], None]
) -> LlamaForCausalLM:
    """Return the model kept in `entry`; train it where there is none or it cannot be read."""
    model = fresh()
    if _loaded(entry, model):
        return model
    model = fresh()
    train(model)
    entry.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, also where two processes train the same model at once.
    with tempfile.NamedTemporaryFile(prefix=".part-", dir=entry.parent, delete=False) as part:
        part.write(save(model.state_dict()))
    Path(part.name).replace(entry)
    return model


def _loaded(entry: Path, model: LlamaForCausalLM) -> bool:
    try:
        model.load_state_dict(load(entry.read_bytes()))
    except (OSError, SafetensorError, RuntimeError):
        return False
    return True
