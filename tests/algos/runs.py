"""Short runs on the real line, and what they leave."""

import hashlib
import json
from pathlib import Path
from typing import Any

from stepcredit.agents.trajectory import load_trajectories
from stepcredit.algos.settings import RunConfig

TIMES = ("wall_s", "cpu_s")


def config(**sections: dict[str, Any]) -> RunConfig:
    base: dict[str, dict[str, Any]] = {
        "env": {"id": "stepcredit/Doors-v0", "turns": 2, "reward": "dense"},
        "model": {"size": "0.12M", "sft": {"steps": 40}},
        "algo": {"preset": "grpo", "num_generations": 4, "learning_rate": 1e-3},
        "rollout": {"max_turn_tokens": 4},
        "train": {"tasks_per_step": 2, "steps": 6, "eval_episodes": 8, "save_every": 2},
    }
    return RunConfig.model_validate({name: base[name] | sections.get(name, {}) for name in base})


def log(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def policy(folder: Path) -> str:
    """The hash of the last policy: of two files that differ pytest would print every byte."""
    (found,) = folder.glob("checkpoints/step-*/policy.safetensors")
    return hashlib.sha256(found.read_bytes()).hexdigest()


def sampled(folder: Path) -> list[tuple[list[int], list[float]]]:
    (found,) = folder.glob("trajectories/step-000006.parquet")
    return [(t.token_ids.tolist(), t.logprobs.tolist()) for t in load_trajectories(found)]
