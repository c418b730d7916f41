"""How a test waits: for a condition, with a deadline, never for a length of time.

This is the only file under tests/ that may sleep; the house test keeps it so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 4  # a machine may be so much slower than an idle one, and nothing is wrong
POLL_FIRST_S = 0.001
POLL_LONGEST_S = 0.05
AT_ONCE_S, LOOK_AGAIN_S = 0.3, 1.5


def until(condition: Callable[[], T | None], deadline_s: float, what: str | Callable[[], str]) -> T:
    """The first true value of ``condition``; AssertionError if none came.

    ``deadline_s`` is what an idle machine needs, with room to spare; a busy one is given ``PATIENCE`` times as long.
    ``what`` says what was awaited. Give a function where the message should show how things stand at the end.
    """
    return within(condition, deadline_s * PATIENCE, what)


def within(condition: Callable[[], T | None], limit_s: float, what: str | Callable[[], str]) -> T:
    """As ``until``, for what is promised within ``limit_s``: only a test that has the machine to itself may ask it."""
    start = time.monotonic()
    pause_s = POLL_FIRST_S
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - start
        if waited_s >= limit_s:
            told = what() if callable(what) else what
            raise AssertionError(f"waited {waited_s:.1f} s in vain: {told}")
        time.sleep(min(pause_s, limit_s - waited_s))
        pause_s = min(pause_s * 2, POLL_LONGEST_S)


def stays(condition: Callable[[], object], for_s: float, what: str) -> None:
    """AssertionError if ``condition`` turns false within ``for_s``: for "and nothing happens" claims, kept short."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        if not condition():
            raise AssertionError(f"did not last {for_s} s: {what}")
        time.sleep(POLL_LONGEST_S / 5)


def seldom(ask: Callable[[], T], trace: Callable[[], object]) -> Callable[[], T | None]:
    """``ask``, for what costs a quarter of a second of a core: None instead of an answer soon after the last one, and
    for longer while ``trace``, which costs nothing, stays the same.
    """
    asked_at, known = float("-inf"), None

    def look() -> T | None:
        nonlocal asked_at, known
        now, seen = time.monotonic(), trace()
        if now < asked_at + (LOOK_AGAIN_S if seen == known else AT_ONCE_S):
            return None
        answer = ask()
        asked_at, known = time.monotonic(), seen
        return answer

    return look
