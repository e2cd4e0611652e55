import sys
import threading
import time
from functools import partial

import pytest

from stepcredit.envs.bounded import call_all


def spin() -> None:
    while True:
        pass


def swallow() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # a careless environment
            continue


def fail() -> None:
    raise KeyError("x")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def fail_without_text() -> None:
    raise Unprintable


def identity(value: int) -> int:
    return value


@pytest.mark.parametrize("workers", [1, 3, 99])
def test_outcomes_keep_the_order_of_the_calls(workers: int) -> None:
    done = call_all([partial(identity, i) for i in range(10)], timeout_s=5, workers=workers)
    assert [o.value for o in done] == list(range(10))
    assert not any(o.error for o in done)


def test_no_calls_are_no_outcomes() -> None:
    assert call_all([], timeout_s=1) == []


def test_errors_name_type_text_and_place() -> None:
    (done,) = call_all([fail], timeout_s=5)
    assert done.error.startswith("KeyError: 'x' (test_bounded.py:")


def test_an_error_without_a_text_is_an_error() -> None:
    done = call_all([fail_without_text, partial(identity, 1)], timeout_s=5)
    assert done[0].error.startswith("Unprintable (test_bounded.py:")
    assert done[1].value == 1


def test_the_time_of_a_call_begins_when_a_thread_takes_it_up() -> None:
    done = call_all([partial(time.sleep, 0.2)] * 6, timeout_s=0.5, workers=2)
    assert [o.error for o in done] == [""] * 6


def test_no_more_threads_than_allowed_after_a_hang() -> None:
    seen: list[int] = []
    before = threading.active_count()

    def count() -> None:
        seen.append(threading.active_count() - before)
        time.sleep(0.05)

    call_all([spin, *[count] * 8], timeout_s=0.2, workers=1, most=2)
    assert len(seen) == 8
    assert max(seen) <= 3  # the two, and the one that is being stopped


def test_foreign_code_cannot_end_the_program() -> None:
    done = call_all([partial(sys.exit, 3), partial(identity, 1)], timeout_s=5)
    assert done[0].error.startswith("SystemExit: 3")
    assert done[1].value == 1


@pytest.mark.parametrize("hang", [spin, swallow, partial(time.sleep, 30)])
def test_a_call_that_hangs_is_bounded_and_the_others_go_on(hang) -> None:
    calls = [partial(identity, 1), hang, partial(identity, 2), hang, partial(identity, 3)]
    begun = time.monotonic()
    done = call_all(calls, timeout_s=0.3)
    assert time.monotonic() - begun < 3
    assert [o.value for o in done] == [1, None, 2, None, 3]
    assert done[1].error == done[3].error == "TimeoutError: no answer within 0.3 s"


def test_a_loop_that_ran_out_of_time_does_not_keep_running() -> None:
    before = threading.active_count()
    call_all([spin], timeout_s=0.2)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_waiting_calls_share_the_workers() -> None:
    begun = time.monotonic()
    call_all([partial(time.sleep, 0.1)] * 16, timeout_s=5, workers=16)
    assert time.monotonic() - begun < 1.0
