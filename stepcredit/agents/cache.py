"""Trained weights kept on disk, and a hash of the code that they came from."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from safetensors import SafetensorError
from safetensors.torch import load, save
from transformers import LlamaForCausalLM

import stepcredit.envs
from stepcredit.agents.errors import ModelError

OWN_FOLDERS = (Path(stepcredit.envs.__file__).parent, Path(__file__).parent)
"""Our own code that decides what a warm start becomes: how demonstrations are made and learnt."""


def code_hash(env: gym.Env[Any, Any]) -> str:
    """Return a hash of the modules of an environment's classes and wrappers, and of our own."""
    foreign = {"gymnasium", *sys.stdlib_module_names}
    layers: list[gym.Env[Any, Any]] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    modules = {each.__module__ for layer in layers for each in type(layer).__mro__}
    files = [
        Path(getattr(sys.modules.get(name), "__file__", None) or "")
        for name in modules
        if name.partition(".")[0] not in foreign
    ]
    own = (file for folder in OWN_FOLDERS for file in folder.glob("*.py"))
    paths = sorted({path for path in (*files, *own) if path.is_file()})
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Return the folder asked for, else $STEPCREDIT_CACHE, else ~/.cache/stepcredit."""
    return Path(
        cache_dir or os.environ.get("STEPCREDIT_CACHE") or "~/.cache/stepcredit"
    ).expanduser()


def cached(
    entry: Path, fresh: Callable[[], LlamaForCausalLM], train: Callable[[LlamaForCausalLM], None]
) -> LlamaForCausalLM:
    """Return the model kept in `entry`; train it where there is none or it cannot be read.

    Raises ModelError where it could not be kept, before it is trained.
    """
    model = fresh()
    if _loaded(entry, model):
        return model
    model = fresh()
    # Whole or not at all, also where two processes train the same model at once.
    part = _part(entry.parent)
    try:
        train(model)
        part.write_bytes(save(model.state_dict()))
        part.replace(entry)
    finally:
        part.unlink(missing_ok=True)
    return model


def _part(folder: Path) -> Path:
    """Return a new file in the folder, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".part-", dir=folder, delete=False) as part:
            return Path(part.name)
    except OSError as problem:
        raise ModelError(
            f"cache_dir={str(folder)!r}: trained weights cannot be kept there ({problem}); it must "
            "be a folder that can be written: set $STEPCREDIT_CACHE to one"
        ) from problem


def _loaded(entry: Path, model: LlamaForCausalLM) -> bool:
    try:
        model.load_state_dict(load(entry.read_bytes()))
    except (OSError, SafetensorError, RuntimeError):
        return False
    return True
