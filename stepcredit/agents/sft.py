"""Warm start: a fresh tiny decoder imitates an environment's own demonstrations."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import transformers
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

import stepcredit
from stepcredit.agents.cache import cache_folder, cached, code_hash
from stepcredit.agents.engines.base import Completion
from stepcredit.agents.episode import Episode, TaskSpec, reset_env, step_env
from stepcredit.agents.errors import ModelError
from stepcredit.agents.logprobs import token_logprobs
from stepcredit.agents.model import build_tiny
from stepcredit.agents.render import ChatRenderer
from stepcredit.agents.tokenizer import build_char_tokenizer
from stepcredit.agents.trajectory import Trajectory
from stepcredit.envs import derive_seed, make
from stepcredit.envs.bounded import HangError, call_all
from stepcredit.envs.contract import shown

PROBES = 16
"""Demonstrations that stand for the environment's behaviour, and the fewest to judge it by."""
MAX_HANGS = 3
MAX_ERROR_SHARE = 0.5


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
    max_episode_tokens: int = 2048,
    env_timeout_s: float = 20.0,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return a policy that imitates the environment's demonstrations, and its tokenizer.

    Weights, tasks and demonstrations are fresh for each `seed`. The result is kept in `cache_dir`
    (default: $STEPCREDIT_CACHE, else ~/.cache/stepcredit) under a hash of all that it depends on;
    the reward set-up is not among that. A demonstration ends at `max_episode_tokens`, and counts as
    failed after `env_timeout_s` seconds. Raises ModelError for an environment without
    `demonstration` or `alphabet`, and where more than half of the demonstrations fail, or three
    hang.
    """
    kwargs = {name: value for name, value in env_kwargs.items() if name != "reward"}
    stage = _Stage(partial(make, env_id, **kwargs), seed, max_episode_tokens, env_timeout_s)
    try:
        tokenizer = build_char_tokenizer(_alphabet(stage.env))
        renderer = ChatRenderer(tokenizer)
        probes = [stage.play(renderer, number) for number in range(PROBES)]
        content = {
            "env": [env_id, sorted(kwargs.items())],
            "alphabet": sorted(set(_alphabet(stage.env))),
            # The environment's code may change under its id: its text, and what it does.
            "code": code_hash(stage.env),
            "probes": [None if each is None else each.token_ids.tolist() for each in probes],
            "max_episode_tokens": max_episode_tokens,
            "model": [size, seed],
            "sft": asdict(sft),
            "versions": [stepcredit.__version__, torch.__version__, transformers.__version__],
        }
        name = hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()[:32]
        entry = cache_folder(cache_dir) / f"warm-start-{name}.safetensors"
        fresh = partial(build_tiny, len(tokenizer), size, derive_seed("model", seed))
        train = partial(_train, stage=stage, probes=probes, renderer=renderer, seed=seed, sft=sft)
        return cached(entry, fresh, train).eval(), tokenizer
    finally:
        stage.close()


def demonstrated(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    seed: int,
    max_episode_tokens: int = 2048,
    env_timeout_s: float = 20.0,
) -> tuple[list[Trajectory], PreTrainedTokenizerBase]:
    """Return the first demonstrations that `warm_start` learns from, and the tokenizer.

    Those that failed are left out; raises ModelError as `warm_start` does.
    """
    stage = _Stage(partial(make, env_id, **env_kwargs), seed, max_episode_tokens, env_timeout_s)
    try:
        tokenizer = build_char_tokenizer(_alphabet(stage.env))
        renderer = ChatRenderer(tokenizer)
        played = [stage.play(renderer, number) for number in range(PROBES)]
        return [each for each in played if each is not None], tokenizer
    finally:
        stage.close()


class _Stage:
    """Where demonstrations are played: one environment, replaced by a new one when it fails."""

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        seed: int,
        max_episode_tokens: int,
        env_timeout_s: float,
    ):
        self.make_env, self.env = make_env, make_env()
        self.seed, self.cap, self.timeout_s = seed, max_episode_tokens, env_timeout_s
        self.played, self.hangs = 0, 0
        self.failures: list[str] = []

    def play(self, renderer: ChatRenderer, number: int) -> Trajectory | None:
        """Return the `number`-th demonstration, None for one that failed; raises ModelError."""
        self.played += 1
        call = partial(_demonstrate, self.env, renderer, self.seed, number, self.cap)
        (outcome,) = call_all([call], timeout_s=self.timeout_s)
        if not outcome.error:
            played: Trajectory = outcome.value
            return played
        self.failures.append(outcome.error)
        self.hangs += isinstance(outcome.problem, HangError)
        allowed = MAX_ERROR_SHARE * max(self.played, PROBES)
        if len(self.failures) > allowed or self.hangs == MAX_HANGS:
            raise ModelError(
                f"{len(self.failures)} of {self.played} demonstrations of "
                f"{type(self.env.unwrapped).__name__} failed, {self.hangs} of them by a hang: "
                f"mend the environment; the first failure was: {self.failures[0]}"
            ) from outcome.problem
        self.close()
        self.env = self.make_env()
        return None

    def close(self) -> None:
        """Close the environment, whatever state it is in."""
        call_all([self.env.close], timeout_s=self.timeout_s)


def _train(
    model: LlamaForCausalLM,
    *,
    stage: _Stage,
    probes: list[Trajectory | None],
    renderer: ChatRenderer,
    seed: int,
    sft: SFT,
) -> None:
    wanted = min(sft.demonstrations, sft.steps * sft.batch_turns)
    played: list[Trajectory] = []
    turns = number = 0
    while turns < wanted:
        one = probes[number] if number < len(probes) else stage.play(renderer, number)
        number += 1
        if one is not None:
            played.append(one)
            turns += len(one.turn_cut)
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
        logprobs = token_logprobs(model, ids, mask, 1.0).logprobs  # [B, T]
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
    env: gym.Env[Any, Any], renderer: ChatRenderer, seed: int, number: int, cap: int
) -> Trajectory:
    """Return the expert's episode on the `number`-th task of this seed, of `cap` tokens at most."""
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
    if len(episode.next_ids) >= cap:
        raise ModelError(
            f"the prompt of {len(episode.next_ids)} tokens leaves no room to answer within {cap}"
        )
    act: Callable[[np.random.Generator], str] = env.unwrapped.demonstration  # type: ignore[attr-defined]  # checked by _alphabet
    while not episode.done:
        if len(episode.token_ids) + len(episode.next_ids) >= cap:
            episode.cut("token_limit")
            break
        episode.read(episode.next_ids)
        said = renderer.reply(act(rng))
        ids = said[: cap - len(episode.token_ids)]
        text, spans = renderer.action(ids)
        episode.say(
            Completion(
                token_ids=ids,
                logprobs=[0.0] * len(ids),
                finish_reason="stop" if ids == said else "length",
                policy_version=0,
            ),
            text,
        )
        if getattr(env.unwrapped, "one_turn", False):
            break  # nothing is read any more, and judging it may be costly
        reply = step_env(episode, text)
        episode.judge(reply, spans, len(text))
        episode.next_ids = renderer.delta(reply.messages)
    return episode.trajectory()


def _alphabet(env: gym.Env[Any, Any]) -> str:
    for name in ("alphabet", "demonstration"):
        if not hasattr(env.unwrapped, name):
            raise ModelError(
                f"{type(env.unwrapped).__name__} has no {name!r}: a tiny model starts from the "
                "environment's own demonstrations; add it, or name a trained model instead"
            )
    text: Any = env.unwrapped.alphabet  # type: ignore[attr-defined]  # just looked for
    if not isinstance(text, str):
        raise ModelError(
            f"{type(env.unwrapped).__name__}.alphabet is {shown(text)}: must be a text of every "
            "character in use; make it an attribute or a property"
        )
    return text
