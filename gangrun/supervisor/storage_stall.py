"""A journal whose disk does not answer.

Since when nothing became durable, and the verdict on a hang that waits until the disk is known to answer: ranks that
wait for a disk that stands still are not hung.
"""

from __future__ import annotations

from gangrun.core.events import ProgressStalled, StoreBack, StoreStalled
from gangrun.core.policy import Timing
from gangrun.supervisor.journal_queue import Ledger

NEVER = float("inf")


class Stalls:
    """One term's."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        self.since: float | None = None
        self._ledger = ledger
        self._after_s = timing.store_stalled_after_s
        self._held: tuple[int, ProgressStalled] | None = None

    def due(self) -> float:
        """When the oldest record has waited too long."""
        oldest_at = self._ledger.oldest_at
        return NEVER if oldest_at is None or self.since is not None else oldest_at + self._after_s

    def begun(self, now: float) -> StoreStalled | None:
        """The event, if it is due."""
        if now < self.due():
            return None
        self.since, self._held = self._ledger.oldest_at, None
        assert self.since is not None
        return StoreStalled(self.since)

    def over(self, now: float) -> StoreBack | None:
        """Something became durable: the event, if that ends a stall."""
        oldest_at = self._ledger.oldest_at
        if self.since is None or (oldest_at is not None and now - oldest_at >= self._after_s):
            return None
        stalled_s, self.since = now - self.since, None
        return StoreBack(stalled_s)

    def hold(self, n: int, event: ProgressStalled) -> None:
        """Not before record ``n`` is durable."""
        self._held = n, event

    def released(self, n: int) -> ProgressStalled | None:
        """Record ``n`` is durable: what waited for it."""
        if self._held is None or n < self._held[0]:
            return None
        event, self._held = self._held[1], None
        return event
