"""Records on their way to disk, what waits for them, and a disk that does not answer.

Nothing that a record asks for is performed, and no agent is told that its event is journalled, before ``Stored``.
``StorageStall`` knows since when nothing became durable. It holds the verdict on a hang until the disk is known to
answer: ranks that wait for a disk that stands still are not hung.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gangrun.core.actions import TICKETED, Action, Decision
from gangrun.core.events import ProgressStalled, Stamped, StoreBack, StoreStalled
from gangrun.core.model import Node, Outcome, RunState
from gangrun.core.policy import Timing
from gangrun.core.versions import Table
from gangrun.ports import Store
from gangrun.wire import kinds
from gangrun.wire import record as wire_record
from gangrun.wire.record import Inherited, Record


@dataclass(frozen=True, slots=True)
class Written:
    """A record that was handed to the store, and what is due once it is durable."""

    n: int
    at: float
    acts: tuple[tuple[Action, int], ...]  # each with its ticket, 0 where it needs none
    nodes: Mapping[str, Node]
    marks: Mapping[str, tuple[str, int]]  # that are new; all of them if ``afresh``
    afresh: bool


class JournalQueue:
    """Numbers records and tickets of one term, and remembers what is not durable yet."""

    def __init__(self, store: Store, term: int) -> None:
        self.term = term
        # As of the newest record on disk. Whole states would be kept for each of thousands of records on their way.
        self.durable_nodes: Mapping[str, Node] | None = None
        self.durable_marks: dict[str, tuple[str, int]] = {}
        self.trouble = ""  # why the oldest record is not on disk yet, as the store says
        self._store = store
        self._next_n = 0
        self._next_number = 1
        self._pending: deque[Written] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest record that is not durable yet was written."""
        return self._pending[0].at if self._pending else None

    def number(self) -> int:
        """A number that nothing else in this term has: for tickets and for commands alike."""
        self._next_number += 1
        return self._next_number - 1

    def snapshot(self, state: RunState, carried: Inherited, at: float, wall: float, reason: str) -> None:
        """The term's first record: the whole state, and what else a successor needs of all terms before this one."""
        record = self._record(
            "Snapshot", state, state, at, wall,
            event=wire_record.builtins(carried), reason=reason, patch=wire_record.snapshot(state),
        )  # fmt: skip
        self._commit(record, None, state)

    def write(self, before: RunState, stamped: Stamped, decision: Decision, at: float, wall: float) -> Written:
        """One event and what was decided of it."""
        acts = tuple((a, self.number() if isinstance(a, TICKETED) else 0) for a in decision.actions)
        record = self._record(
            type(stamped.event).__name__, before, decision.state, at, wall,
            event=wire_record.sparse(stamped.event),
            origin=None if stamped.origin is None else wire_record.told_of(stamped.origin),
            outcome=decision.outcome.value,
            reason=decision.reason,
            actions=tuple(kinds.act(a, n) for a, n in acts),
        )  # fmt: skip
        record = msgspec.structs.replace(record, patch=wire_record.change(before, decision.state, record))
        return self._commit(record, before, decision.state, acts)

    def malformed(
        self, before: RunState, after: RunState, what: Mapping[str, object], why: str, at: float, wall: float
    ) -> None:
        """An event that nobody can read: counted, so that its sender may forget it."""
        record = self._record(
            "Malformed", before, after, at, wall,
            event=dict(what), outcome=Outcome.REFUSED.value, reason=why, patch=wire_record.diff(before, after),
        )  # fmt: skip
        self._commit(record, before, after)

    def look(self, state: RunState, reason: str, at: float, wall: float) -> int:
        """A record that changes nothing: once it is durable, the disk is known to answer."""
        record = self._record("Looking", state, state, at, wall, reason=reason)
        self._commit(record, state, state)
        return record.n

    def stored(self, n: int) -> list[Written]:
        """Record ``n`` and all before it are durable: what they were waiting for, in order."""
        done: list[Written] = []
        while self._pending and self._pending[0].n <= n:
            done.append(self._pending.popleft())
        for written in done:
            if written.afresh:
                self.durable_marks.clear()
            self.durable_marks.update(written.marks)
        if done:
            self.durable_nodes = done[-1].nodes
            self.trouble = ""
        return done

    def _record(self, kind: str, was: RunState, now: RunState, at: float, wall: float, **rest: Any) -> Record:
        """The next record; numbers are taken in the order in which records are committed."""
        n, self._next_n = self._next_n, self._next_n + 1
        return Record(
            v=wire_record.SCHEMA, term=self.term, n=n, at=at, wall=wall, kind=kind,
            was=was.phase.value, phase=now.phase.value, **rest,
        )  # fmt: skip

    def _commit(
        self, record: Record, before: RunState | None, after: RunState, acts: tuple[tuple[Action, int], ...] = ()
    ) -> Written:
        was, marks = None if before is None else before.marks, after.marks
        changed = was.changed_in(marks) if isinstance(was, Table) else None
        afresh = changed is None and was is not marks
        new = dict(marks) if afresh else {node: marks[node] for node in changed or ()}
        written = Written(record.n, record.at, acts, after.roster.nodes, new, afresh)
        self._pending.append(written)
        self._store.commit(record, tuple(n for _, n in acts if n))
        return written


NEVER = float("inf")


class StorageStall:
    """One term's."""

    def __init__(self, ledger: JournalQueue, timing: Timing) -> None:
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
