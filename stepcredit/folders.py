"""Output folders: whether they can be written, and by one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from stepcredit.config import UserError


def need_place(folder: Path) -> None:
    """Look whether an output folder could be written, and make nothing.

    Raises:
        UserError: it is a file or below one, or its owner keeps it from being written.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if there == folder and not there.is_dir():
        raise UserError(f"{folder}: is a file, must be a folder; pass another --out")
    if not there.is_dir():
        raise UserError(f"{folder}: cannot be made: {there} is a file; pass another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}: cannot be written: {there} takes no files of yours; pass another --out"
        )


def need_writable(folder: Path) -> None:
    """Make an output folder, before anything is spent on what would go into it.

    Raises:
        UserError: it cannot be made, or nothing can be written into it.
    """
    need_place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written: {error.strerror}; pass another folder as --out"
        ) from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give the place to write a file to; it takes its name, at once, when the block ends well."""
    part = path.with_name(f".{path.name}.part")
    yield part
    part.replace(path)


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder against any other process that would write into it.

    Raises:
        UserError: another process holds it.
    """
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another {what} is running here; pass --out") from error
        yield
