"""Trained weights kept on disk, and a hash of the code that they came from."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from transformers import LlamaForCausalLM

import stepcredit.envs


def code_hash(env_class: type) -> str:
    """Return a hash of the modules of an environment's class and its bases, and of our own."""
    foreign = {"gymnasium", *sys.stdlib_module_names}
    modules = {each.__module__ for each in env_class.__mro__}
    files = [
        Path(getattr(sys.modules.get(name), "__file__", None) or "")
        for name in modules
        if name.partition(".")[0] not in foreign
    ]
    own = Path(stepcredit.envs.__file__).parent.glob("*.py")
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
