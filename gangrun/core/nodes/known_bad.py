"""Nodes that a user's earlier runs found broken: what is remembered, for how long, how many count.

Pure. Wall-clock seconds, since it outlives runs and machines. A node counts for a day, twice as long each time it is
found broken again, a week at most; so few count at once that a fault of the judge cannot empty a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

DAY_S = 24 * 3600.0
WEEK_S = 7 * DAY_S
COUNTED_MAX = 8
KEPT_MAX_COUNT = 256


@dataclass(frozen=True, slots=True)
class KnownBad:
    """One node: why, found by which run, when last, how often so far."""

    node: str
    reason: str
    run: str
    at: float
    times: int = 1

    @property
    def until(self) -> float:
        """When it is given another chance."""
        return self.at + min(WEEK_S, DAY_S * 2.0 ** min(self.times - 1, 10))


def found(known: Mapping[str, KnownBad], node: str, reason: str, run: str, now: float) -> Mapping[str, KnownBad]:
    """The list with one more finding; the same run's second word about the same node is no second time."""
    held = remembered(known, now)
    old = held.get(node)
    again = old is not None and old.run != run
    times = (old.times if old is not None else 0) + (1 if again or old is None else 0)
    kept = {**held, node: KnownBad(node, reason, run, now, times)}
    newest = sorted(kept.values(), key=lambda one: one.at, reverse=True)[:KEPT_MAX_COUNT]
    return {one.node: one for one in sorted(newest, key=lambda one: one.at)}


def remembered(known: Mapping[str, KnownBad], now: float) -> Mapping[str, KnownBad]:
    """Without those that were well for a week after their time was up. A clock that ran ahead is not believed."""
    held = {node: replace(one, at=min(one.at, now)) for node, one in known.items()}
    return {node: one for node, one in held.items() if now < one.until + WEEK_S}


def counting(known: Mapping[str, KnownBad], now: float) -> tuple[KnownBad, ...]:
    """Those that a new run does without: the newest first, and only so many."""
    now_out = [one for one in remembered(known, now).values() if now < one.until]
    return tuple(sorted(now_out, key=lambda one: (-one.at, one.node))[:COUNTED_MAX])
