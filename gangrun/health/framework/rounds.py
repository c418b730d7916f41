"""Runs checks so that none can hurt: each family is read under a deadline, each judge may fail alone.

A reading that raises, hangs or makes no sense is unknown, and never more than that. While a hung one is still out no
second is sent after it, for a thread or child that the kernel holds cannot be killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gangrun.health.framework.check import (
    Check,
    CheckVerdict,
    HealthPolicy,
    NodeFacts,
    Reading,
    judged,
    unknown_verdict,
)  # fmt: skip
from gangrun.health.framework.readings import boot_id, only

if TYPE_CHECKING:
    from gangrun.ports import Clock

LATE_MAX_S = 10.0  # what came back so long after its deadline is still news


class Probes(Protocol):
    """Questions that may never come back, each asked in a process of its own."""

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        """What the child said; ``NodeFacts.absent`` says why it said nothing."""


@dataclass(frozen=True, slots=True)
class HealthSurroundings:
    """What the edge may look at: a root to find /sys and /proc under, children, and what concerns this job."""

    root: Path
    probes: Probes
    directories: tuple[str, ...] = ()  # that the job writes to
    peers: tuple[str, ...] = ()  # names that must resolve
    made_later: frozenset[str] = frozenset()  # directories that the script may have yet to make


@dataclass(frozen=True, slots=True)
class CheckFamily:
    """One file of checks: what is read once for all of them, how long that may take, and the checks."""

    name: str
    within_s: float
    read: Callable[[HealthSurroundings], NodeFacts]
    checks: tuple[Check, ...]
    remember: Callable[[Reading, Reading | None], Reading] = lambda now, before: now  # pure: what spans several looks
    counters: frozenset[str] = frozenset()  # values that are kept for whoever looks next, when this process is no more
    same: Callable[[Reading, Reading], Reading] = lambda before, now: before  # pure: devices under the names of now


class Rounds:
    """Readings of one node over time: the one before is the baseline of the next."""

    def __init__(
        self, families: Iterable[CheckFamily], around: HealthSurroundings, policy: HealthPolicy, clock: Clock
    ) -> None:
        self._families = tuple(families)
        self._around = around
        self._policy = policy
        self._clock = clock
        self._out: dict[str, _Out] = {}
        self._late: set[str] = set()
        self._before: dict[str, Reading] = {}
        self._earlier: dict[str, Reading] = {}

    def look(self) -> tuple[CheckVerdict, ...]:
        """Every check once, in the order of the list."""
        return tuple(verdict for family in self._families for verdict in self.look_at(family.name))

    def look_at(self, name: str) -> tuple[CheckVerdict, ...]:
        """Every check of one family."""
        mine = (family for family in self._families if family.name == name)
        return tuple(one for f in mine for one in self._told(f, self._begin(f), f.within_s, f.within_s))

    def begin_from(self, readings: Iterable[Reading]) -> None:
        """Readings that were kept earlier are the baseline of the first look."""
        self._before |= {reading.family: reading for reading in readings}

    def go_on_from(self, kept: Iterable[Reading]) -> None:
        """What others ``kept`` of their last look is what the first look is compared with; it is no reading of ours."""
        self._earlier |= {reading.family: reading for reading in kept}

    def readings(self) -> tuple[Reading, ...]:
        """The newest reading of each family that could be read: to be kept, for the next look."""
        return tuple(self._before.values())

    def kept(self) -> tuple[Reading, ...]:
        """Of these, what goes on counting while nobody looks."""
        counting = {family.name: family.counters for family in self._families if family.counters}
        newest = {**self._earlier, **self._before}
        return tuple(only(one, counting[name]) for name, one in newest.items() if name in counting)

    @property
    def late(self) -> frozenset[str]:
        """Families whose last look was not back in time."""
        return frozenset(self._late)

    def is_out(self, name: str) -> bool:
        """Is a look at this family still to come back?"""
        out = self._out.get(name)
        return out is not None and not out.back.is_set()

    def look_at_once(self, names: Collection[str], within_s: float) -> Mapping[str, tuple[CheckVerdict, ...]]:
        """Every check of these families, which are read at the same time; what is not back by then is unknown. So one
        that hangs costs the others nothing, and all of them no more than ``within_s``.
        """
        began = self._clock.now()
        begun = [(family, self._begin(family)) for family in self._families if family.name in names]
        told = {}
        for family, out in begun:
            left_s = max(0.0, min(family.within_s, within_s) - (self._clock.now() - began))
            told[family.name] = tuple(self._told(family, out, left_s, min(family.within_s, within_s)))
        return told

    def _begin(self, family: CheckFamily) -> _Out | None:
        """A look that begins, or has come back since nobody waited for it any more; None: one is still out."""
        out = self._out.get(family.name)
        if out is not None and not out.back.is_set():
            return None
        if out is None or family.name not in self._late or self._clock.now() - out.ended > LATE_MAX_S:
            out = self._out[family.name] = _Out(family, self._around, self._clock)
        return out

    def _told(self, family: CheckFamily, out: _Out | None, left_s: float, within_s: float) -> list[CheckVerdict]:
        facts, why = NodeFacts(), "an earlier look has still not come back, and no second one is sent after it"
        took_s = 0.0
        if out is not None:
            in_time = out.back.wait(left_s)
            (self._late.discard if in_time else self._late.add)(family.name)
            facts, why = out.said if in_time else (NodeFacts(), f"no answer within {within_s:g} s")
            took_s = (out.ended if in_time else self._clock.now()) - out.began
        why = why or facts.absent
        if out is None or why:
            return [replace(unknown_verdict(check, why), took_s=took_s) for check in family.checks]
        seen = Reading(family.name, out.ended, boot_id(self._around.root), facts)
        before = self._before.get(family.name, self._earlier.get(family.name))
        before = family.same(before, seen) if before is not None else None
        now = family.remember(seen, before)
        self._before[family.name] = now
        return [replace(judged(check, now, before, self._policy), took_s=took_s) for check in family.checks]


class _Out:
    """One look at one family, in a thread that may never come back."""

    def __init__(self, family: CheckFamily, around: HealthSurroundings, clock: Clock) -> None:
        self.back = threading.Event()
        self.said: tuple[NodeFacts, str] = (NodeFacts(), "could not be read")
        self.began = self.ended = clock.now()

        def go() -> None:
            try:
                self.said = family.read(around), ""
            except Exception as error:  # noqa: BLE001 - a broken checker is not a broken node: whatever it was, unknown
                self.said = NodeFacts(), f"could not be read: {type(error).__name__}: {error}"
            finally:
                self.ended = clock.now()
                self.back.set()

        threading.Thread(target=go, name=f"health-{family.name}", daemon=True).start()
