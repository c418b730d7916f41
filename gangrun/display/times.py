"""What time it is for people, and how times are said.

Journals are kept on the run clock, which never jumps; people read wall clocks. ``WallTimes`` translates by the pairs
that every record carries. Words are functions of values: ``now`` is handed in, so that they can be tested.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo

from gangrun.adapters.clock import SystemClock
from gangrun.wire.record import Record

DAY_S = 86400.0
_EPOCH_MAX = 253370764800.0  # the year 9999, in any zone


def wall_now() -> float:
    """Seconds since the epoch."""
    return SystemClock().wall()


def steady_now() -> float:
    """Seconds that only grow, for time-outs."""
    return SystemClock().now()


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


def clock_words(wall: float, now: float, zone: tzinfo | None = None) -> str:
    """``14:02:31``, with the date where it is not today's."""
    moment, today = _moment(wall, zone), _moment(now, zone)
    if moment is None or today is None:
        return "at an unknown time"
    return moment.strftime("%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def date_words(wall: float, zone: tzinfo | None = None) -> str:
    """``2026-11-18``."""
    moment = _moment(wall, zone)
    return moment.strftime("%Y-%m-%d") if moment else "an unknown day"


def _moment(wall: float, zone: tzinfo | None) -> datetime | None:
    if not 0 <= wall <= _EPOCH_MAX:
        return None
    return datetime.fromtimestamp(wall, tz=timezone.utc).astimezone(zone)


def span_words(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = int(max(0.0, min(seconds, 1e12)))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < DAY_S:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86400} d" + (f" {whole % 86400 // 3600} h" if whole % 86400 >= 3600 else "")


def ago_words(wall: float, now: float) -> str:
    """``3 min ago``, or ``in 55 min`` for what is to come."""
    if wall > now + 1:
        return f"in {span_words(wall - now)}"
    return "just now" if now - wall < 2 else f"{span_words(now - wall)} ago"


def when_words(wall: float, now: float, zone: tzinfo | None = None) -> str:
    """``14:02:31 (3 min ago)``."""
    return f"{clock_words(wall, now, zone)} ({ago_words(wall, now)})"
