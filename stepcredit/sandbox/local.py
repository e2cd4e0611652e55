"""The backend without a jail: a plain child process under resource limits."""

from __future__ import annotations

import warnings

from stepcredit.sandbox.bwrap import interpreter

WARNING = (
    "unsafe_local runs the code on this machine with your rights: it can read your files, use the "
    "network and forge its verdict; use it for code you trust alone"
)


def command(python_args: list[str]) -> list[str]:
    """Build the command that runs the bare interpreter with these arguments on the host."""
    return [interpreter(), *python_args]


def warn() -> None:
    """Warn once per place of call."""
    warnings.warn(WARNING, RuntimeWarning, stacklevel=4)
