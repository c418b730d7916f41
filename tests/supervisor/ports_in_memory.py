"""The smallest world a supervisor's loop can live in: ports held in the hand.

For tests that set every message and every instant themselves. Nothing happens by itself: time moves when the mailbox
is asked and is empty, disks answer at once or when told to. ``world`` is the place with faults and many nodes.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gangrun.core.actions import Action, ChooseResume, EndJob
from gangrun.core.events import ActDone, AttemptSealed, ResumeChosen, Stamped, StepBrought
from gangrun.core.evidence import StateFigures
from gangrun.ports import Deposed, History, Item, Stored, Withheld, Woken
from gangrun.wire import record as wire_record
from gangrun.wire.record import Claim, Record


@dataclass(slots=True)
class HandClock:
    """Stands still until moved."""

    boot: float = 1_000.0
    epoch: float = 1_800_000_000.0

    def now(self) -> float:
        """CLOCK_BOOTTIME."""
        return self.boot

    def wall(self) -> float:
        """Wall time."""
        return self.epoch + self.boot


@dataclass(slots=True)
class HandMailbox:
    """What was posted, in order; when empty, time moves to ``until`` but never beyond ``stop_at``."""

    clock: HandClock
    stop_at: float = float("inf")
    items: deque[Item] = field(default_factory=deque)

    def post(self, item: Item) -> None:
        """Into the queue."""
        self.items.append(item)

    def next(self, until: float) -> Item:
        """The next item, or time moves."""
        if self.items:
            return self.items.popleft()
        self.clock.boot = max(self.clock.boot, min(until, self.stop_at))
        return Woken()


@dataclass(slots=True)
class MemoryDisk:
    """What all terms share: claims, tickets, seals, journals as bytes."""

    claims: dict[int, Claim] = field(default_factory=dict)
    tickets: dict[int, set[int]] = field(default_factory=dict)
    sealed: set[int] = field(default_factory=set)
    journals: dict[int, list[bytes]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    started_attempt: int = -1
    quiet_s: float | None = None  # what the file system's stamps say
    cancelled_by: str = ""

    def records(self, term: int) -> list[Record]:
        """One term's journal."""
        return [wire_record.decode(line) for line in self.journals.get(term, [])]


@dataclass(slots=True)
class MemoryTerms:
    """``ports.Terms``; ``lost_replies`` claims in a row are made but reported as lost."""

    disk: MemoryDisk
    lost_replies: int = 0

    def newest(self) -> Claim | None:
        """The newest claim."""
        return self.disk.claims[max(self.disk.claims)] if self.disk.claims else None

    def claim(self, claim: Claim) -> bool:
        """First come, first served."""
        if claim.term in self.disk.claims:
            return False
        self.disk.claims[claim.term] = claim
        if self.lost_replies:
            self.lost_replies -= 1
            return False
        return True

    def open_acts(self, term: int) -> bool:
        """False if a newer term sealed it already."""
        if term in self.disk.sealed or term in self.disk.tickets:
            return False
        self.disk.tickets[term] = set()
        return True

    def seal_before(self, term: int) -> tuple[str, ...]:
        """No ticket of an earlier term any more."""
        self.disk.sealed |= set(range(term))
        return ()

    def history(self, before: int) -> History:
        """All earlier journals."""
        records = [record for term in sorted(self.disk.journals) if term < before for record in self.disk.records(term)]
        return History(
            tuple(records), self.disk.notes, started_attempt=self.disk.started_attempt, quiet_s=self.disk.quiet_s
        )


@dataclass(slots=True)
class MemoryStore:
    """``ports.Store``; with ``stalled`` set nothing becomes durable until ``flush``."""

    disk: MemoryDisk
    term: int
    post: Callable[[Item], None]
    stalled: bool = False
    waiting: deque[tuple[Record, tuple[int, ...]]] = field(default_factory=deque)
    live: Mapping[str, object] = field(default_factory=dict)
    seen_open: float = float("inf")
    log: list[tuple[str, int]] = field(default_factory=list)  # ("fsync", n) and ("ticket", n), as they happened

    def commit(self, record: Record, tickets: Sequence[int]) -> None:
        """Durable at once, or when flushed."""
        self.waiting.append((record, tuple(tickets)))
        if not self.stalled:
            self.flush()

    def flush(self, count: int = -1) -> None:
        """Make the oldest ``count`` records durable; all by default."""
        while self.waiting and count != 0:
            count -= 1
            record, tickets = self.waiting.popleft()
            self.disk.journals.setdefault(self.term, []).append(wire_record.encode(record))
            self.log.append(("fsync", record.n))
            if self.term in self.disk.sealed:
                self.waiting.clear()
                self.post(Deposed(f"the acts of term {self.term} are sealed"))
                return
            starts = {act.n for act in record.actions if act.kind == "StartGang"}
            withheld = starts if self.disk.cancelled_by else set()
            for n in [n for n in tickets if n not in withheld]:
                self.disk.tickets[self.term].add(n)
                self.log.append(("ticket", n))
            self.post(Withheld(record.n, self.disk.cancelled_by) if withheld else Stored(record.n))

    def note_progress(self, live: Mapping[str, object]) -> bool:
        """Kept for whoever looks."""
        self.live = dict(live)
        return True

    def seen_open_at(self) -> float:
        """As set by hand."""
        return self.seen_open


@dataclass(slots=True)
class MemoryRadio:
    """``ports.Radio``: everything said, in order."""

    sent: list[tuple[str, object]] = field(default_factory=list)
    peers: dict[str, bytes] = field(default_factory=dict)
    on_send: Callable[[str, object], None] = lambda node, message: None

    def send(self, node: str, message: object) -> None:
        """Noted, and handed on."""
        if node in self.peers:
            self.sent.append((node, message))
            self.on_send(node, message)

    def bind_peer(self, node: str, peer: bytes) -> None:
        """Noted."""
        self.peers[node] = peer


@dataclass(slots=True)
class HandCheckpoints:
    """``ports.Checkpoints`` of a directory that is empty; what was asked is in ``asked``."""

    post: Callable[[Item], None]
    asked: list[tuple[str, int]] = field(default_factory=list)
    on_ask: Callable[[str], None] = lambda what: None
    has_staging: bool = True
    brought: dict[str, set[str]] = field(default_factory=dict)  # paths, by the staging that they are in
    told: StateFigures | None = None  # by the framework's own files

    def prepare(self, staging: str) -> None:
        """Done at once, if there is a disk to do it on."""
        self.brought[staging] = set()

    def prepared(self, staging: str) -> bool:
        """As set by hand."""
        del staging
        return self.has_staging

    def bring(self, path: str) -> str:
        """As a node does, which never makes the staging; "" or why not."""
        staging = self.brought.get(os.path.dirname(path))
        if staging is None:
            return os.strerror(errno.ENOENT)
        staging.add(path)
        return ""

    def discard(self, path: str, *, more: bool = False) -> None:
        """Noted, and done."""
        self.asked.append((f"discard {path}", -1))
        self._remove(path, more=more)

    def _remove(self, path: str, *, more: bool = False) -> None:
        staging = os.path.dirname(path)
        self.brought.get(staging, set()).discard(path)
        if not more and not self.brought.get(staging):
            self.brought.pop(staging, None)

    def adopt(self, path: str, attempt: int, step: int, nonce: str, nodes: Sequence[str], rebuilt_count: int) -> None:
        """Noted, and done if it was brought."""
        del nonce, rebuilt_count
        self.asked.append(("adopt", step))
        there = path in self.brought.get(os.path.dirname(path), ())
        self._remove(path)
        self.post(Stamped(StepBrought(attempt, step, tuple(nodes), "" if there else os.strerror(errno.ENOENT))))

    def seal(self, attempt: int) -> None:
        """Nothing to seal."""
        self.asked.append(("seal", attempt))
        self.on_ask("seal")
        self.post(Stamped(AttemptSealed(attempt)))

    def choose(self, asked: ChooseResume, sealed: Sequence[tuple[int, str]]) -> None:
        """Nothing to choose from."""
        del sealed
        self.asked.append(("choose", asked.attempt))
        self.on_ask("choose")
        self.post(Stamped(ResumeChosen(asked.attempt, None, "no checkpoint was ever committed")))

    def put_back(self, paths: Sequence[str]) -> None:
        """Nothing was set aside."""
        assert not paths

    def figures(self) -> StateFigures | None:
        return self.told

    def look(self, above_step: int) -> None:
        """Nothing newer."""
        self.asked.append(("look", above_step))

    def await_save(self) -> None:
        """Noted."""
        self.asked.append(("await save", -1))


@dataclass(slots=True)
class NoJobs:
    """``ports.Jobs`` without a scheduler; ``ended`` holds what was asked to end, with the nodes that are lost."""

    post: Callable[[Item], None] = lambda item: None
    asked: list[tuple[tuple[int, int], Action]] = field(default_factory=list)
    ended: list[tuple[EndJob, tuple[str, ...]]] = field(default_factory=list)
    answers: bool = True
    confirmed_at: float = float("inf")  # there is no scheduler that could begin another job

    def submit(self, act: tuple[int, int], action: Action) -> None:
        """Noted."""
        self.asked.append((act, action))

    def end(self, act: tuple[int, int], action: EndJob, lost: tuple[str, ...]) -> None:
        """Noted, and done at once."""
        self.ended.append((action, lost))
        if self.answers:
            self.post(Stamped(ActDone(act, EndJob.__name__)))

    def look(self) -> None:
        """Nothing was taken."""

    def looked_at(self) -> float:
        return float("-inf")

    def runs_at(self) -> float:
        """As the test says."""
        return self.confirmed_at

    def left_s(self) -> float | None:
        """There is no limit."""
        return None
