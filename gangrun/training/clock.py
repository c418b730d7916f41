"""The time that a training process measures its own saves by.

Passed as an argument to whoever needs it, so that tests hold it in the hand.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What saves are measured by."""

    def now(self) -> float:
        """Seconds that never run backwards."""

    def wall(self) -> float:
        """Seconds since 1970."""


class RealClock:
    """This machine's."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
