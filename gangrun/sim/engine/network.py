"""Who reaches whom, how late, and how often.

One ``Network`` carries every message of a world. A cut may be whole, half or one-way; what is sent meanwhile waits (TCP
sends it again when the cut heals, all at once) or is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gangrun.sim.engine.clock import Timeline

LATENCY_S = 0.0008


@dataclass(slots=True)
class Trouble:
    """One thing wrong with the way between nodes, until then."""

    until: float
    heard: frozenset[int] | None  # senders whose messages do not get through (None: any)
    hears: frozenset[int] | None  # receivers
    cut: bool = True
    across: frozenset[int] | None = None  # only between this side and the other
    delay_s: float = 0.0
    lose_share: float = 0.0
    twice: bool = False
    shuffle: bool = False

    def on(self, source: int, target: int) -> bool:
        """Does it touch messages this way."""
        if self.across is not None:
            return (source in self.across) != (target in self.across)
        return (self.heard is None or source in self.heard) and (self.hears is None or target in self.hears)


class Network:
    """The way between any two nodes."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        """Healthy."""
        self.timeline = timeline
        self.rng = rng
        self.troubles: list[Trouble] = []
        self.on_change: Callable[[], None] = lambda: None

    def add(self, trouble: Trouble) -> None:
        """From now until it ends."""
        self.on_change()
        self.troubles.append(trouble)
        self.timeline.at(trouble.until, self._heal)

    def _heal(self) -> None:
        self.on_change()
        now = self.timeline.now
        self.troubles = [trouble for trouble in self.troubles if trouble.until > now]

    def clear(self, source: int, target: int) -> bool:
        """Nothing at all is wrong on this way."""
        return not self.troubles or not any(t.on(source, target) for t in self.troubles if source != target)

    def reaches(self, source: int, target: int) -> bool:
        """Not cut."""
        if not self.troubles or source == target:
            return True
        return not any(trouble.cut and trouble.on(source, target) for trouble in self.troubles)

    def send(self, source: int, target: int, action: Callable[[], None]) -> None:
        """Run ``action`` when the message arrives, if it does."""
        timeline = self.timeline
        if not self.troubles or source == target:
            timeline.after(LATENCY_S, action)
            return
        delay_s, copies_count = LATENCY_S, 1
        for trouble in self.troubles:
            if not trouble.on(source, target):
                continue
            if trouble.cut:
                if trouble.until - timeline.now > 15.0 or self.rng.random() < 0.3:
                    return  # the connection is reset, and what was queued is gone
                delay_s = max(delay_s, trouble.until - timeline.now + LATENCY_S)
            if trouble.lose_share and self.rng.random() < trouble.lose_share:
                return
            delay_s += trouble.delay_s
            if trouble.shuffle:
                delay_s += self.rng.uniform(0.0, 1.5)
            if trouble.twice:
                copies_count = 2
        for i in range(copies_count):
            timeline.after(delay_s + 0.4 * i, action)
