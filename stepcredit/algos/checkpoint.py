"""Checkpoints that are whole or absent: written beside, flushed, then renamed."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn
from torch.optim import Optimizer

from stepcredit.agents.model import ValueModel
from stepcredit.algos.errors import TrainingError


@dataclass(frozen=True, kw_only=True, eq=False)
class Learner:
    """Everything that training changes."""

    policy: nn.Module
    optimizer: Optimizer
    critic: ValueModel | None = None
    critic_optimizer: Optimizer | None = None
    moving_reference: nn.Module | None = None
    """The reference policy where it is refreshed; one that never moves is no part of this."""


def save(folder: Path, learner: Learner, counters: dict[str, Any]) -> Path:
    """Write `folder/step-NNNNNN` and drop the older ones; a kill leaves the last whole one.

    Raises TrainingError where it cannot be written, on a full disk above all.
    """
    name = f"{counters['step']:06d}"
    target, partial = folder / f"step-{name}", folder / f".partial-{name}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(partial, counters, learner)
    except (OSError, SafetensorError, RuntimeError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainingError(
            f"{target}: cannot be written: {error}; free some space and go on with --resume"
        ) from error
    shutil.rmtree(target, ignore_errors=True)
    os.replace(partial, target)
    _flush(folder)
    for old in _steps(folder):
        if old != target:
            shutil.rmtree(old)
    return target


def _write(partial: Path, counters: dict[str, Any], learner: Learner) -> None:
    partial.mkdir(parents=True)
    save_model(learner.policy, str(partial / "policy.safetensors"))
    optimizers = {"policy": learner.optimizer.state_dict()}
    if learner.critic is not None and learner.critic_optimizer is not None:
        save_model(learner.critic, str(partial / "critic.safetensors"))
        optimizers["critic"] = learner.critic_optimizer.state_dict()
    if learner.moving_reference is not None:
        save_model(learner.moving_reference, str(partial / "reference.safetensors"))
    torch.save(optimizers, partial / "optimizers.pt")
    (partial / "counters.json").write_text(json.dumps(counters))
    for path in partial.iterdir():
        _flush(path)


def latest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a run, if there is one."""
    steps = _steps(folder)
    return steps[-1] if steps else None


def restore(path: Path, learner: Learner) -> dict[str, Any]:
    """Load a checkpoint into the learner and return its counters.

    Raises TrainingError for files that are missing or broken.
    """
    try:
        return _restored(path, learner)
    except (OSError, SafetensorError, RuntimeError, ValueError, LookupError) as error:
        raise TrainingError(
            f"{path}: cannot be read: {error}; without this folder the run starts from step 0"
        ) from error


def _restored(path: Path, learner: Learner) -> dict[str, Any]:
    load_model(learner.policy, str(path / "policy.safetensors"))
    optimizers = torch.load(path / "optimizers.pt", weights_only=True)
    learner.optimizer.load_state_dict(optimizers["policy"])
    if learner.critic is not None and learner.critic_optimizer is not None:
        load_model(learner.critic, str(path / "critic.safetensors"))
        learner.critic_optimizer.load_state_dict(optimizers["critic"])
    if learner.moving_reference is not None:
        load_model(learner.moving_reference, str(path / "reference.safetensors"))
    counters: dict[str, Any] = json.loads((path / "counters.json").read_text())
    return counters


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
