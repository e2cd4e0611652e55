"""A call into code that may never come back."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class HangError(TimeoutError):
    """A call did not return in time; its thread is left behind."""


def bounded_call(function: Callable[[], T], seconds: float) -> T:
    """Returns ``function()``, run in a thread of its own, or raises what it raised.

    Raises `HangError` after ``seconds``. The thread cannot be stopped and ends with the process at
    the latest; code that holds Python's global lock for ever cannot be waited out this way.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, function()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=run, daemon=True, name="stepcredit-bounded").start()
    try:
        returned, answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise HangError(f"no answer within {seconds:g} s") from None
    if not returned:
        raise answer
    result: T = answer
    return result
