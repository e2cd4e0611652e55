"""What a run keeps in memory, model by model: bytes on paper, and measured by one step."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from stepcredit import memory_paper as paper
from stepcredit.agents.model import MAX_POSITIONS, build_tiny
from stepcredit.agents.sft import demonstrated
from stepcredit.algos.algorithm import Algorithm, MonteCarlo
from stepcredit.algos.presets import build
from stepcredit.algos.settings import RunConfig
from stepcredit.config import UserError
from stepcredit.memory_measured import Sizes, measure
from stepcredit.memory_paper import Bytes

PARTS = [each.name for each in fields(Bytes)]
STEP_TAKES = 2
"""A step passes through more than it saves: what is free before one is measured, as a multiple."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What each model of a run takes, and under which assumptions."""

    sizes: Sizes
    paper: dict[str, Bytes]
    measured: dict[str, Bytes] | None
    """None where it would not fit."""
    notes: list[str]

    @property
    def dominant(self) -> tuple[str, str]:
        """The model and the part of it that take most."""
        models = self.measured or self.paper
        each = {(name, part): getattr(models[name], part) for name in models for part in PARTS}
        return max(each, key=lambda key: each[key])


def memory_of(values: Mapping[str, Any], *, tokens: int | None = None) -> Memory:
    """Return the memory of the run of a complete config, for episodes of `tokens` tokens.

    Without `tokens` an episode is as long as the longest of a few demonstrated ones. Raises
    UserError for a number of tokens that no episode of the run can have.
    """
    config = RunConfig.model_validate(values)
    algorithm = build(config.algo.preset, config.algo.further)
    limit = min(config.rollout.max_episode_tokens, MAX_POSITIONS)
    if tokens is not None and not 2 <= tokens <= limit:
        raise UserError(
            f"--tokens {tokens}: must lie in [2, {limit}], for an episode ends at "
            f"rollout.max_episode_tokens={config.rollout.max_episode_tokens} and the model reads "
            f"{MAX_POSITIONS}; leave it out to take a demonstrated episode's"
        )
    played, tokenizer = demonstrated(
        config.env.id,
        config.env.further,
        seed=config.train.seed,
        max_episode_tokens=config.rollout.max_episode_tokens,
        env_timeout_s=config.rollout.env_timeout_s,
    )
    longest = max(played, key=lambda t: len(t.token_ids))
    sizes = sizes_of(
        config,
        algorithm,
        vocabulary=len(tokenizer),
        prompt=int(longest.action_mask.argmax()),
        tokens=tokens or len(longest.token_ids),
    )
    # On the meta device: a config without its weights.
    with torch.device("meta"):
        shape = build_tiny(sizes.vocabulary, config.model.size, config.train.seed).config
    on_paper = paper_of(shape, algorithm, sizes)
    source = "--tokens" if tokens else f"the longest of {len(played)} demonstrated episodes"
    steps = max(1, int(longest.step_end.sum()))
    notes = [
        f"{sizes.tokens} tokens an episode: {source}; none can have more than {limit}",
        *_other_caches(config, algorithm, sizes, steps, shape),
    ]
    need, free = STEP_TAKES * at_one_time(on_paper), free_bytes()
    if need > free:
        notes.append(
            f"not measured: that takes about {told(need)} and {told(free)} are free; pass fewer "
            "--tokens, or a smaller train.micro_batch_size"
        )
        return Memory(sizes=sizes, paper=on_paper, measured=None, notes=notes)
    measured = measure(config, algorithm, sizes)
    return Memory(sizes=sizes, paper=on_paper, measured=measured, notes=notes)


def sizes_of(
    config: RunConfig, algorithm: Algorithm, *, vocabulary: int, prompt: int, tokens: int
) -> Sizes:
    """Return the sizes of a run: a micro-batch is no larger than a mini-batch."""
    episodes = config.train.tasks_per_step * config.algo.num_generations

    def rows(num_mini_batches: int) -> int:
        return min(config.train.micro_batch_size, -(-episodes // num_mini_batches))

    return Sizes(
        vocabulary=vocabulary,
        prompt=prompt,
        tokens=tokens,
        episodes=episodes,
        policy_rows=rows(algorithm.num_mini_batches),
        critic_rows=rows(algorithm.critic.num_mini_batches) if algorithm.critic else 0,
    )


def paper_of(shape: PretrainedConfig, algorithm: Algorithm, sizes: Sizes) -> dict[str, Bytes]:
    """Return the bytes of every model that the run keeps, on paper.

    There is no reward model: rewards come from the environment.
    """
    policy = paper.trained(shape)
    saved = paper.activations(shape, rows=sizes.policy_rows, tokens=sizes.tokens)
    cache = paper.cache(shape, rows=sizes.episodes, prompt=sizes.prompt, tokens=sizes.tokens)
    models = {"policy": replace(policy, activations=saved, cache=cache)}
    if algorithm.critic is not None:
        critic = paper.trained(shape, value_head=True)
        saved = paper.activations(
            shape, rows=sizes.critic_rows, tokens=sizes.tokens, value_head=True
        )
        models["critic"] = replace(critic, activations=saved)
    if algorithm.kl is not None:
        models["reference"] = Bytes(weights=policy.weights)
    return models


def at_one_time(models: Mapping[str, Bytes]) -> int:
    """Return the most that is there at once: activations and caches take turns."""
    passing = [size for each in models.values() for size in (each.activations, each.cache)]
    return sum(each.kept for each in models.values()) + max(passing)


def total(models: Mapping[str, Bytes]) -> int:
    """Return the sum over all models and parts."""
    return sum(each.total for each in models.values())


def free_bytes() -> int:
    """Return the memory that a new program can have: what Linux says, else all there is."""
    info = Path("/proc/meminfo")
    if info.exists():
        lines = dict(line.split(":") for line in info.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _other_caches(
    config: RunConfig,
    algorithm: Algorithm,
    sizes: Sizes,
    steps: int,
    shape: PretrainedConfig,
) -> list[str]:
    """Say what else samples episodes, where it holds more of them than a rollout."""
    others = {"an evaluation": config.train.eval_episodes}
    if isinstance(algorithm.baseline, MonteCarlo):
        others["continuing each step"] = (
            sizes.episodes * steps * algorithm.baseline.num_continuations
        )
    return [
        f"{name} holds {rows} episodes: a cache of "
        + told(paper.cache(shape, rows=rows, prompt=sizes.prompt, tokens=sizes.tokens))
        for name, rows in others.items()
        if rows > sizes.episodes
    ]


def told(size: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
