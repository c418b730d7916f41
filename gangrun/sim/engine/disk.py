"""The shared file system that holds the run directory, as values.

``SimDisk`` is what the file server knows. ``Mount`` is one node's view of it, which may stand still, be full, be
read-only, be up to a minute old, or lose the reply to something that was done. ``SimTerms`` and ``SimStore`` are the
ports over it; their micro-steps are boundaries at which the process may die.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gangrun.node.speech import PIPE_BYTES
from gangrun.ports import Deposed, History, Item, Stored, StoreTrouble, Withheld
from gangrun.sim.engine.clock import Timeline
from gangrun.sim.engine.process import ProcessKilled, SimProcess
from gangrun.wire import record as wire_record
from gangrun.wire.record import Claim, Record

LATENCY_S = 0.002
SEAL_COUNT = 5  # file operations that sealing one term takes


@dataclass(slots=True)
class Acts:
    """``terms/N.acts``."""

    tickets: dict[int, int] = field(default_factory=dict)  # number -> the attempt that it names, or -1
    sealed: bool = False
    started_attempt: int = -1  # highest that a ticket to start one names


@dataclass(slots=True)
class JournalLine:
    """One line of a journal; ``torn`` is what a kill in the middle of a write leaves."""

    record: Record
    torn: bool = False


@dataclass(frozen=True, slots=True)
class SimJobClaim:
    """``jobs/<seq>.json``."""

    job: str
    restart: int
    at: float
    pid: int = 0  # of the batch script

    @property
    def token(self) -> str:
        """As the job's."""
        return f"{self.job}r{self.restart}" if self.restart else self.job


class SimDisk:
    """What is really there."""

    def __init__(self, timeline: Timeline) -> None:
        """An empty run directory."""
        self.timeline = timeline
        self.claims: dict[int, tuple[float, Claim]] = {}
        self.acts: dict[int, Acts] = {}
        self.journals: dict[int, list[JournalLine]] = {}
        self.written: dict[int, float] = {}  # when a line was last appended to each
        self.counters: dict[int, float] = {}
        self.lineage: dict[int, dict[int, int]] = {}  # term -> how much of each earlier journal it was born from
        self.job_claims: dict[int, SimJobClaim] = {}
        self.cancelled_at: float | None = None
        self.on_ticket: Callable[[int, int], None] = lambda term, n: None
        self.on_record: Callable[[Record], None] = lambda record: None

    def link_claim(self, claim: Claim) -> bool:
        """Link(2): the name must not exist."""
        if claim.term in self.claims:
            return False
        self.claims[claim.term] = (self.timeline.now, claim)
        return True

    def make_acts(self, term: int) -> bool:
        """Mkdir: False where it exists."""
        if term in self.acts:
            return False
        self.acts[term] = Acts()
        return True

    def seal_acts(self, term: int) -> None:
        """Chmod 0500, created first if absent."""
        self.acts.setdefault(term, Acts()).sealed = True

    def take_ticket(self, term: int, n: int, attempt: int = -1, *, starts: bool = False) -> None:
        """Create with O_EXCL; an OSError where the server refuses."""
        acts = self.acts.get(term)
        if acts is None:
            raise FileNotFoundError(errno.ENOENT, "no folder of tickets")
        if acts.sealed:
            raise PermissionError(errno.EACCES, "sealed by a later term")
        if n in acts.tickets:
            raise FileExistsError(errno.EEXIST, "the ticket exists")
        acts.tickets[n] = attempt
        if starts:
            acts.started_attempt = max(acts.started_attempt, attempt)
        self.on_ticket(term, n)

    def append(self, record: Record, *, torn: bool = False) -> None:
        """Append a line to its term's journal."""
        self.journals.setdefault(record.term, []).append(JournalLine(record, torn))
        self.written[record.term] = self.timeline.now
        if not torn:
            self.on_record(record)

    def readable(self, term: int) -> tuple[list[Record], str]:
        """The records up to the first torn line, as a reader gets them, and what is wrong with the rest."""
        records: list[Record] = []
        for line in self.journals.get(term, ()):
            data = wire_record.encode(line.record)
            try:
                records.append(wire_record.decode(data[: len(data) // 2] if line.torn else data))
            except wire_record.TornRecord as error:
                return records, f"journal of term {term} ends at record {len(records)}: {error}"
        return records, ""


def named_by(record: Record, n: int) -> tuple[int, bool]:
    """The attempt that ticket ``n`` of this record names, -1 for none, and whether it is to start it."""
    acts = [act for act in record.actions if act.n == n]
    attempt = max((int(act.args.get("attempt", -1)) for act in acts), default=-1)
    return attempt, any(act.kind == "StartGang" for act in acts)


class Mount:
    """One node's view of the disk."""

    def __init__(self, disk: SimDisk, timeline: Timeline) -> None:
        """Healthy."""
        self.disk = disk
        self.timeline = timeline
        self.stalled_until = 0.0
        self.full_until = 0.0
        self.read_only_until = 0.0
        self.broken_until = 0.0
        self.stale_until = 0.0
        self.stale_since = 0.0
        self.lose_reply = False
        self.tear_next = False
        self.late_by_s = 0.0
        self.slow_until = 0.0
        self.slow_by_s = 0.0

    @property
    def stands_still(self) -> bool:
        """Nothing that is begun now ends for a while."""
        return self.timeline.now < self.stalled_until

    def ready_at(self, count: int = 1) -> float:
        """When an operation that is begun now ends, or ``count`` of them, one after the other."""
        slow_s = count * self.slow_by_s if self.timeline.now < self.slow_until else 0.0
        return max(self.timeline.now, self.stalled_until) + LATENCY_S + slow_s

    def trouble(self) -> int:
        """The errno that a write gets now, 0 for none."""
        now = self.timeline.now
        if self.broken:
            return errno.EIO
        if now < self.full_until:
            return errno.ENOSPC
        return errno.EROFS if now < self.read_only_until else 0

    @property
    def broken(self) -> bool:
        """Does every operation fail, reading too?"""
        return self.timeline.now < self.broken_until

    def known(self) -> None:
        """Before anything is read: ``OSError`` where there is no answer."""
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")

    def cancelled(self) -> bool:
        """Is the mark of a cancel there? ``OSError``: not known."""
        self.known()
        return self.disk.cancelled_at is not None

    def claim_job(self, seq: int, claim: SimJobClaim) -> None:
        """By link(2), where nobody is seen to hold the place. ``OSError``: not known whether it is done."""
        if number := self.trouble():
            raise OSError(number, errno.errorcode[number])
        self.disk.job_claims[seq] = claim
        if self.reply_lost():
            raise OSError(errno.EIO, "lost reply")

    def reply_lost(self) -> bool:
        """Was it done, but the caller is told EIO? True once per fault."""
        lost, self.lose_reply = self.lose_reply, False
        return lost

    def claims(self) -> dict[int, Claim]:
        """The claims as this node sees them: maybe not the newest. ``OSError``: not known."""
        self.known()
        old = self.stale_since if self.timeline.now < self.stale_until else None
        return {n: claim for n, (at, claim) in self.disk.claims.items() if old is None or at <= old}


class SimStandardError:
    """A process's standard error: the pipe to its node's log writer, which alone waits where the disk stands still."""

    def __init__(self, mount: Mount, process: SimProcess) -> None:
        """Empty."""
        self.mount = mount
        self.process = process
        self._waiting_bytes = 0

    def write(self, fd: int, data: bytes) -> int:
        """As ``os.write`` to a pipe that does not block."""
        del fd
        self._waiting_bytes = self._waiting_bytes + len(data) if self.mount.stands_still else 0
        if self._waiting_bytes > PIPE_BYTES:
            raise BlockingIOError(errno.EAGAIN, "the pipe is full")
        return len(data)


class SimTerms:
    """The ``Terms`` port: claims, seals, history."""

    def __init__(self, mount: Mount, process: SimProcess) -> None:
        """For one process, on its node's mount."""
        self.mount = mount
        self.disk = mount.disk
        self.process = process

    def _io(self, label: str, count: int = 1) -> None:
        self.process.boundary(f"before {label}")
        self.process.wait_until(self.mount.ready_at(count))
        self.mount.known()

    def _writes(self) -> None:
        if number := self.mount.trouble():
            raise OSError(number, errno.errorcode[number])

    def _done(self, label: str) -> None:
        self.process.boundary(f"after {label}")

    def newest(self) -> Claim | None:
        """The newest claim that this node can see."""
        self._io("reading claims")
        claims = self.mount.claims()
        return claims[max(claims)] if claims else None

    def claim(self, claim: Claim) -> bool:
        """By link(2); a lost reply counts as lost."""
        self._io("claim")
        self._writes()
        won = self.disk.link_claim(claim)
        self._done("claim")
        return won and not self.mount.reply_lost()

    def open_acts(self, term: int) -> bool:
        """Make the folder of tickets."""
        self._io("open acts")
        self._writes()
        made = self.disk.make_acts(term)
        self._done("open acts")
        return made and not self.mount.reply_lost()

    def seal_before(self, term: int) -> tuple[str, ...]:
        """Seal every earlier folder of tickets, and make it first where it is missing."""
        for earlier in range(self.sealed_below(term), term):
            self._io(f"seal {earlier}", SEAL_COUNT)
            self.disk.seal_acts(earlier)
            self._done(f"seal {earlier}")
        return ()

    def sealed_below(self, term: int) -> int:
        """Whoever wrote a journal had sealed all before it."""
        return max((seen for seen in self.disk.journals if seen < term), default=1)

    def history(self, before: int) -> History:
        """The journals of earlier terms, back to a snapshot that carries all before it, and the tickets since then."""
        self._io("history")
        self.disk.lineage[before] = {term: len(lines) for term, lines in self.disk.journals.items()}
        records: list[Record] = []
        notes: list[str] = []
        since, count = 0, 0
        for term in sorted((term for term in self.disk.journals if term < before), reverse=True):
            readable, note = self.disk.readable(term)
            count += 1
            records[:0] = readable
            notes[:0] = [note] if note else []
            if wire_record.inherited(readable) is not None:
                since = term
                break
        carried = wire_record.inherited(records)
        named, started = (-1, -1) if carried is None else (carried.ticketed_attempt, carried.started_attempt)
        recorded = {(record.term, act.n) for record in records for act in record.actions}
        for term, acts in self.disk.acts.items():
            if since <= term < before:
                named = max([named, *acts.tickets.values()])
                started = max(started, acts.started_attempt)
                count += 2 + sum((term, n) not in recorded for n in acts.tickets)
        self.process.wait_until(self.mount.ready_at(count) - LATENCY_S)
        claimed = self.disk.claims.get(before)
        quiet_s = max(0.0, claimed[0] - self.disk.written[records[-1].term]) if records and claimed else None
        return History(tuple(records), tuple(notes), named, started, quiet_s)


class SimStore:
    """The ``Store`` port: one commit after the other, each as fsync, then its tickets, then word to the loop."""

    def __init__(self, mount: Mount, process: SimProcess, post: Callable[[Item], None]) -> None:
        """``post`` puts an item into the loop's mailbox."""
        self.mount = mount
        self.process = process
        self.post = post
        self.timeline = mount.timeline
        self.notes_count = 0
        self._queue: deque[tuple[Record, tuple[int, ...]]] = deque()
        self._busy = False
        self._told = -1
        self._withheld: Withheld | None = None
        self.seen_open = float("-inf")
        self.boot: Callable[[], float] = lambda: self.timeline.now

    def commit(self, record: Record, tickets: Sequence[int]) -> None:
        """In order, off the loop."""
        self._queue.append((record, tuple(tickets)))
        if not self._busy:
            self._busy = True
            self.timeline.at(self.mount.ready_at(), self._work)

    def note_progress(self, live: Mapping[str, object]) -> bool:  # noqa: ARG002 - the port has it
        """The counter file."""
        self.notes_count += 1
        works = self.timeline.now >= self.mount.stalled_until and not self.mount.trouble()
        if works and self._queue_term() >= 0:
            self.mount.disk.counters[self._queue_term()] = self.timeline.now
            if self.mount.disk.acts[self.term].sealed:
                self.post(Deposed(f"the acts of term {self.term} are sealed"))
            else:
                self.seen_open = self.boot()
        return works

    def seen_open_at(self) -> float:
        """When the term was not sealed yet, on this host's clock."""
        return self.seen_open

    term = -1

    def _queue_term(self) -> int:
        return self.term

    def _work(self) -> None:
        if not self.process.awake:
            self.process.when_awake(self._work)
            return
        try:
            while self._queue:
                if self.timeline.now < self.mount.stalled_until:
                    self.timeline.at(self.mount.ready_at(), self._work)
                    return
                record, tickets = self._queue[0]
                if not self._store(record, tickets):
                    return
                self._queue.popleft()
                self.post(self._withheld or Stored(record.n))
        except ProcessKilled:
            return
        self._busy = False

    def _store(self, record: Record, tickets: tuple[int, ...]) -> bool:
        disk, boundary = self.mount.disk, self.process.boundary
        self._withheld = None
        boundary(f"before fsync {record.n}")
        number = self.mount.trouble()
        if number:
            if self._told != record.n:
                self._told = record.n
                self.post(StoreTrouble(record.n, f"[Errno {number}] {errno.errorcode[number]}"))
            self.timeline.after(1.0, self._work)
            return False
        if record.n == 0:
            self.term = record.term
        disk.append(record)
        boundary(f"after fsync {record.n}")
        if not tickets and disk.acts[record.term].sealed:
            # As the real store does: seen open after the fsync, whoever seals later reads this record too.
            self.post(Deposed(f"the acts of term {record.term} are sealed"))
            return False
        for n in tickets:
            boundary(f"before ticket {n}")
            try:
                attempt, starts = named_by(record, n)
                if starts and disk.cancelled_at is not None:
                    self._withheld = Withheld(record.n, "gangrun cancel")
                    continue
                disk.take_ticket(record.term, n, attempt, starts=starts)
            except OSError as error:
                self.post(Deposed(f"ticket {n} of term {record.term}: {error}"))
                return False
            boundary(f"after ticket {n}")
            if self.mount.reply_lost():
                self.post(Deposed(f"ticket {n} of term {record.term}: exists already after an unclear error"))
                return False
        self.seen_open = self.boot()
        return True

    def killed(self) -> None:
        """What a SIGKILL leaves of the line that was being written: nothing, half of it, or the whole, later."""
        if not self._queue:
            return
        record, _ = self._queue[0]
        mount = self.mount
        if mount.tear_next:
            mount.tear_next = False
            mount.disk.append(record, torn=True)
        elif mount.late_by_s:
            self.timeline.after(mount.late_by_s, lambda: mount.disk.append(record))
            mount.late_by_s = 0.0
