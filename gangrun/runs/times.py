"""What time it is for a command, and when something happened in a run.

Journals are kept on the run clock, which never jumps; people read wall clocks. ``WallTimes`` translates by the pairs
that every record carries.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from gangrun.node import processes
from gangrun.wire.record import Record

UNCLAIMED_FOR_S = 60.0  # a job or run that nobody took up this long after it was made will not be taken up by itself


def wall_now() -> float:
    """Seconds since the epoch."""
    return processes.wall_s()


def steady_now() -> float:
    """Seconds that only grow, for time-outs."""
    return processes.boottime_ns() / 1e9


def pause(seconds: float) -> None:
    """Wait; Ctrl-C ends it at once."""
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class WallTimes:
    """From the run clock to the wall clock, piece by piece between records."""

    ats: tuple[float, ...] = ()
    walls: tuple[float, ...] = ()

    @staticmethod
    def of(records: Iterable[Record]) -> WallTimes:
        """By what these records say; they are in the order of the run clock."""
        ats: list[float] = []
        walls: list[float] = []
        for record in records:
            if not ats or record.at > ats[-1]:
                ats.append(record.at)
                walls.append(record.wall)
        return WallTimes(tuple(ats), tuple(walls))

    def wall(self, at: float) -> float:
        """Seconds since the epoch of that moment of the run."""
        if not self.ats:
            return at
        k = max(0, bisect.bisect_right(self.ats, at) - 1)
        return at + (self.walls[k] - self.ats[k])
