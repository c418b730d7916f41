"""The thread that waits for XIDs: what it hands on, and what it survives."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from gangrun.health.gpu import xid
from gangrun.health.gpu.xid import XidWatch, xid_of
from tests.health.looks import HandClock
from tests.waiting import until


class Driver:
    """Plays a script of events and errors; then it is quiet until it is let go."""

    def __init__(self, script: list[object], refuses: object = None) -> None:
        self.script, self.refuses, self.closed, self.hang = script, refuses, threading.Event(), threading.Event()

    def open(self) -> Mapping[str, str]:
        if isinstance(self.refuses, Exception):
            raise self.refuses
        if self.refuses == "hang":
            self.hang.wait(60)
        return {"gpu 3": "it tells no events"} if self.refuses == "one" else {}

    def wait(self, within_ms: int) -> tuple[str, int, int] | None:
        if not self.script:
            self.hang.wait(0.01)
            return None
        told = self.script.pop(0)
        if isinstance(told, Exception):
            raise told
        return told  # type: ignore[return-value]

    def close(self) -> None:
        self.closed.set()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xid, "WAIT_MS", 10)


def watch(driver: Driver) -> tuple[XidWatch, list[tuple[str, int, float]]]:
    told: list[tuple[str, int, float]] = []
    thread = XidWatch(driver, lambda *event: told.append(event), HandClock())
    thread.start()
    return thread, told


def test_faults_are_handed_on_and_the_rest_is_not() -> None:
    driver = Driver([("GPU-1", 8, 79), None, ("GPU-2", 0x1, 1), ("GPU-2", 0x8000, 5), ("", 8, 31)], "one")
    thread, told = watch(driver)
    assert thread.opened(100)
    until(lambda: len(told) == 3, 10, "three faults")
    assert told == [("GPU-1", 79, 1000.0), ("GPU-2", 154, 1000.0), ("", 31, 1000.0)]
    assert thread.trouble == "gpu 3: it tells no events"
    thread.close()
    thread.join(100)
    assert driver.closed.is_set()


def test_no_watch_is_said_and_costs_nothing() -> None:
    thread, told = watch(Driver([], OSError("NVML error 12: not found")))
    assert thread.opened(100)
    thread.join(100)
    assert (told, thread.trouble) == ([], "GPU events are not watched: NVML error 12: not found")


def test_an_error_is_survived_and_many_end_it() -> None:
    driver = Driver([OSError("999"), ("GPU-1", 8, 79), *[OSError("15")] * xid.ERRORS_MAX_COUNT, ("GPU-1", 8, 1)])
    thread, told = watch(driver)
    thread.join(100)
    assert told == [("GPU-1", 79, 1000.0)]
    assert thread.trouble == "GPU events are no longer watched: 15"
    assert driver.closed.is_set()


def test_a_driver_that_hangs_keeps_nobody_waiting() -> None:
    driver = Driver([], "hang")
    thread, _ = watch(driver)
    assert not thread.opened(0.05)
    thread.close()
    driver.hang.set()
    thread.join(100)


def test_other_types_of_event_in_the_language_of_xids() -> None:
    assert [xid_of(kind, 7) for kind in (8, 2, 0x4000, 0x8000, 1, 0x1000)] == [7, 48, 79, 154, None, None]
