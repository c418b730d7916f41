"""Who is silent, judged from the table of beats at deadlines.

Beats never go through ``lifecycle``: only a change, a node that fell silent or is heard again, becomes an event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gangrun.core.nodeset import natural_key
from gangrun.core.policy import Timing

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Liveness:
    """What changed since the last look, and when to look again if nothing else happens."""

    newly_silent: tuple[tuple[str, float], ...]  # (node, last heard), longest silent first
    newly_heard: tuple[str, ...]
    next_at: float


def judge(heard: Mapping[str, float], silent: Collection[str], now: float, timing: Timing) -> Liveness:
    """Compare last beats with S. ``silent``: those already reported, so that each change is told once.

    A node is silent from the very instant ``heard + S`` on, which is also what ``next_at`` says: a caller that sleeps
    until then finds the change, never an instant too early.
    """
    after_s = timing.silence_after_s
    if not silent:  # the common case costs one pass in C
        oldest = min(heard.values(), default=NEVER)
        if oldest + after_s > now:
            return Liveness((), (), oldest + after_s)
    known = frozenset(silent)
    fell: list[tuple[str, float]] = []
    back: list[str] = []
    oldest = NEVER
    for node, at in heard.items():
        if at + after_s <= now:
            if node not in known:
                fell.append((node, at))
        else:
            if node in known:
                back.append(node)
            if at < oldest:  # noqa: PLR1730 - a call to min() each would double the cost
                oldest = at
    fell.sort(key=lambda item: (item[1], natural_key(item[0])))
    return Liveness(tuple(fell), tuple(sorted(back, key=natural_key)), oldest + after_s)
