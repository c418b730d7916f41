"""How far this node's wall clock is from its supervisor's.

Each ack echoes when its beat was sent and says the supervisor's wall time: the midpoint of the round trip is off by
half of it at most, whichever way was the slow one. So the shortest of the last trips says most, and what is within its
error is no skew. Nothing depends on wall clocks but what people read, so it is told, once, and excludes nobody.
"""

from __future__ import annotations

from collections import deque

from gangrun.core.model import Finding
from gangrun.wire.messages import Ack

CHECK = "clock_skew"
TRIPS_MIN_COUNT, TRIPS_MAX_COUNT = 5, 30
LIMIT_S = 1.0


class ClockSkew:
    """Fed with acks; knows the skew, and says it when it is too much."""

    def __init__(self, node: str, limit_s: float = LIMIT_S) -> None:
        self._node, self._limit_s = node, limit_s
        self._term = 0
        self._trips: deque[tuple[float, float]] = deque(maxlen=TRIPS_MAX_COUNT)  # (how long, ours less theirs)
        self._told = False

    def heard(self, ack: Ack, now: float, wall: float) -> Finding | None:
        """One ack at ``now``, by the clock that stamped its beat, and ``wall``, by the other: what is to be told."""
        if ack.term != self._term:
            self._term = ack.term
            self._trips.clear()  # another supervisor has another clock
        if ack.wall <= 0 or now < ack.boottime:
            return None
        trip_s = now - ack.boottime
        self._trips.append((trip_s, wall - trip_s / 2 - ack.wall))
        if self._told or len(self._trips) < TRIPS_MIN_COUNT or not (words := self.words()):
            return None
        self._told = True
        return Finding(self._node, CHECK, False, words, needs="admin", place=self._node)

    def words(self) -> str:
        """What is wrong with this node's clock, as far as is known; "" where nothing is."""
        if not self._trips:
            return ""
        trip_s, skew_s = min(self._trips)
        if abs(skew_s) - trip_s / 2 <= self._limit_s:
            return ""
        how = "ahead of" if skew_s > 0 else "behind"
        return f"this node's clock is {abs(skew_s):.1f} s {how} the supervisor's: times in logs will not fit together"
