"""Claims, tickets and seals: who may act.

This file is section 1 of ``docs/protocol.md`` made of link, mkdir, chmod and rmdir. It never takes a stat or a listing
as proof that something is *not* there, and no error but ENOENT as a word about what is there: an ``OSError`` that goes
to the caller says "not known".
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gangrun.adapters.fs.disk import ABSENT, Disk
from gangrun.adapters.fs.job_claims import UNREADABLE_VOID_AFTER_S, link_whole, temporary_tag, wait
from gangrun.adapters.fs.journal import read_history, terms_seen
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.actions import StartGang
from gangrun.ports import Clock, History
from gangrun.wire import record as wire_record
from gangrun.wire.record import Act, Claim

DEPOSED = frozenset({errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR})
SEALED_MODE = 0o500


class TicketRefused(Exception):
    """A later term exists or this one is sealed: stop at once."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket says it was for; ``attempt`` -1 and ``kind`` "" where that was lost."""

    term: int
    n: int
    kind: str = ""
    attempt: int = -1

    @property
    def note(self) -> bytes:
        """As it is written into the ticket."""
        return f"{self.kind} {self.attempt}\n".encode("ascii", "replace")

    @staticmethod
    def of(term: int, act: Act) -> Ticket:
        """The ticket that a recorded act needs."""
        attempt = act.args.get("attempt", -1)
        return Ticket(term, act.n, act.kind, attempt if isinstance(attempt, int) else -1)

    @staticmethod
    def read(term: int, n: int, note: bytes) -> Ticket:
        """As much as can be read."""
        match note.decode("ascii", "replace").split():
            case [kind, attempt] if attempt.isdecimal() and len(attempt) < 12:
                return Ticket(term, n, kind, int(attempt))
        return Ticket(term, n)


@dataclass(slots=True)
class FsTerms:
    """``ports.Terms`` over ``.gangrun/terms``; used by one thread."""

    paths: RunPaths
    clock: Clock
    disk: Disk = field(default_factory=Disk)
    wait: Callable[[float], None] = wait
    _void: set[int] = field(default_factory=set)

    # ---- claims ----

    def newest(self) -> Claim | None:
        """The newest claim that can be read; None never proves that there is none.

        Waits for a claim that is being written without link; one that makes no sense for 5 s is void.
        """
        for term in sorted(self._seen(), reverse=True):
            if (found := self._read_patiently(term)) is not None:
                return found
        return None

    def highest(self) -> int:
        """The highest term number whose claim was seen, readable or not; -1: none seen. A lower bound, no proof."""
        return max(self._seen(), default=-1)

    def _seen(self) -> set[int]:
        names = self._names(self.paths.terms)
        seen = {int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal()}
        # A listing may be a minute old where a lookup of the very name is not.
        following = max(seen, default=-1) + 1
        while self.disk.exists(self.paths.claim(following)):
            seen.add(following)
            following += 1
        return seen

    def _names(self, folder: Path) -> tuple[str, ...]:
        try:
            return self.disk.names(folder)
        except ABSENT:
            return ()

    def _read_patiently(self, term: int) -> Claim | None:
        if term in self._void:
            return None
        until = self.clock.now() + UNREADABLE_VOID_AFTER_S
        while True:
            try:
                found = wire_record.decode_claim(self.disk.read(self.paths.claim(term)))
            except FileNotFoundError:
                return None
            except (OSError, wire_record.ClaimError) as error:
                if self.clock.now() >= until:
                    if isinstance(error, OSError):
                        raise
                    self._void.add(term)
                    return None
                self.wait(0.05)
                continue
            return found if found.term == term else None

    def claim(self, claim: Claim) -> bool:
        """Take ``claim.term`` by link(2); an error counts as lost if a claim of the term is there afterwards.

        True only if it is ours for sure. ``OSError``: no claim of the term is seen, or nobody knows.
        """
        target = self.paths.claim(claim.term)
        tag = temporary_tag(claim.node, claim.job, claim.pid, claim.start_ticks)
        try:
            link_whole(self.disk, self.paths.temporary(target, tag), target, wire_record.encode_claim(claim))
        except FileExistsError:
            return False
        except OSError:
            if not self.disk.exists(target):
                raise
            return False
        return True

    # ---- acts ----

    def open_acts(self, term: int) -> bool:
        """Make the folder of tickets; False means deposed already. Other errors are raised: nothing may be assumed."""
        try:
            self.disk.mkdir(self.paths.acts(term))
        except FileExistsError:
            return False
        self.disk.fsync_dir(self.paths.terms)
        return True

    def take_ticket(self, ticket: Ticket) -> None:
        """The right to act once. ``TicketRefused``: deposed. An ``OSError``: not known, may be tried again; if the
        first try had worked after all, the second is refused, which costs a takeover and never a second act.

        What it is for is written into it for whoever comes later; that may be lost.
        """
        path = self.paths.ticket(ticket.term, ticket.n)
        try:
            fd = self.disk.create(path)
        except OSError as error:
            if error.errno in DEPOSED:
                why = f"act {ticket.n} of term {ticket.term} was refused: {error.strerror}"
                raise TicketRefused(why) from error
            raise
        try:
            self.disk.write_all(fd, ticket.note, path)
        except OSError:
            return
        finally:
            self.disk.close(fd)

    def still_open(self, term: int) -> None:
        """Raise ``TicketRefused`` if a seal of ``term`` is seen.

        Asked after an fsync it proves that whoever reads the journal after sealing reads that record too, so that a
        record without acts may be acked: no later holder will miss it.
        """
        try:
            facts = self.disk.stat_fresh(self.paths.acts(term))
        except OSError as error:
            if error.errno in DEPOSED or error.errno == errno.ELOOP:
                raise TicketRefused(f"the acts of term {term}: {error.strerror}") from error
            raise
        if not stat.S_ISDIR(facts.st_mode) or not facts.st_mode & stat.S_IWUSR:
            raise TicketRefused(f"the acts of term {term} are sealed")

    # ---- seal ----

    def seal_before(self, term: int) -> tuple[str, ...]:
        """Let no earlier term obtain another ticket; returns warnings. ``OSError``: not sealed, do not go on."""
        by_removal = [k for k in range(self._sealed_below(term), term) if not self._seal_by_mode(k)]
        for k in by_removal:
            self._seal_by_removal(k)
        self.disk.fsync_dir(self.paths.terms)
        if not by_removal:
            return ()
        whom = "root, as whom this runs" if os.geteuid() == 0 else "anybody on this file system"
        return (f"file modes do not bind {whom}: earlier terms were sealed by removing their folders",)

    def _sealed_below(self, term: int) -> int:
        """A term writes its journal only after it has sealed all before it: where one is seen, that was done."""
        return max((seen for seen in terms_seen(self.disk, self.paths) if seen < term), default=0)

    def _seal_by_mode(self, k: int) -> bool:
        """Whether mode 0500 alone, or an earlier seal, keeps everybody out.

        The server checks it under the lock under which it creates: who looked the folder up before does not slip in.
        """
        acts = self.paths.acts(k)
        try:
            self.disk.mkdir(acts, SEALED_MODE)
        except FileExistsError:
            pass
        try:
            if not stat.S_ISDIR(self.disk.lstat(acts).st_mode):
                return True  # sealed by removal before
            self.disk.chmod(acts, SEALED_MODE)
            self.disk.fsync_dir(acts)
        except (FileNotFoundError, NotADirectoryError):  # another claimant is at its removal: finish that
            return False
        return self._creation_refused(acts)

    def _creation_refused(self, acts: Path) -> bool:
        trial = acts / ".seal-trial"
        try:
            self.disk.close(self.disk.create(trial))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return True
            if error.errno in (errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        self.disk.discard((trial,))
        return False

    def _seal_by_removal(self, k: int) -> None:
        """For root and file systems without modes: remove the folder and put a file in its place.

        A rename would let in whoever had looked the folder up before it moved; a removed folder is dead for them too.
        The file is only ever created, so: where it stands, every folder that bore the name is dead, also after a crash
        of the sealer or with two of them. A late ``mkdir`` by the old holder finds the file (EEXIST).
        """
        acts, kept = self.paths.acts(k), self.paths.acts_kept(k)
        try:
            self.disk.mkdir(kept)
        except FileExistsError:
            pass
        while True:
            try:
                self._empty(acts, kept)
                self.disk.rmdir(acts)
            except NotADirectoryError:
                return
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # a ticket taken meanwhile: before the seal, valid
                    continue
                raise
            try:
                self.disk.write_new(acts, b"sealed\n", 0o400)
            except FileExistsError:
                continue
            return

    def _empty(self, acts: Path, kept: Path) -> None:
        for name in self.disk.names(acts):
            try:
                if name == ".seal-trial":
                    self.disk.unlink(acts / name)
                else:
                    self.disk.rename(acts / name, kept / name)
            except FileNotFoundError:
                continue

    # ---- what earlier terms left ----

    def history(self, before: int) -> History:
        """What earlier terms left; read only after ``seal_before``. ``JournalError``: must not go on."""
        found = read_history(self.disk, self.paths, before)
        recorded = {(record.term, act.n): act for record in found.records for act in record.actions}
        carried = wire_record.inherited(found.records)
        since = 0 if carried is None else found.records[0].term
        notes = list(found.notes)
        attempt, started = (-1, -1) if carried is None else (carried.ticketed_attempt, carried.started_attempt)
        for ticket in self._tickets(range(since, before), recorded):
            attempt = max(attempt, ticket.attempt)
            if ticket.kind == StartGang.__name__:
                started = max(started, ticket.attempt)
            if (ticket.term, ticket.n) not in recorded:
                notes.append(
                    f"term {ticket.term} took the ticket of act {ticket.n} ({ticket.kind or 'unknown'}), but its record"
                    " is gone: the journal's end was lost after it was durable"
                )
        quiet_s = self._quiet_s(found, before)
        return replace(found, notes=tuple(notes), ticketed_attempt=attempt, started_attempt=started, quiet_s=quiet_s)

    def _quiet_s(self, found: History, claimed: int) -> float | None:
        """How long after the newest record term ``claimed`` was claimed: both files bear one file server's time."""
        if not found.records:
            return None
        try:
            last = self.disk.lstat(self.paths.journal(found.records[-1].term)).st_mtime
            return max(0.0, self.disk.lstat(self.paths.claim(claimed)).st_mtime - last)
        except OSError:
            return None

    def _tickets(self, terms: Iterable[int], recorded: Mapping[tuple[int, int], Act]) -> Iterator[Ticket]:
        """Only a ticket whose record is gone is opened: there may be thousands, and each costs a file operation."""
        for term in terms:
            for folder in (self.paths.acts(term), self.paths.acts_kept(term)):
                for name in self._names(folder):
                    if not name.isdecimal():
                        continue
                    act = recorded.get((term, int(name)))
                    note = self._note(folder / name) if act is None else b""
                    yield Ticket.read(term, int(name), note) if act is None else Ticket.of(term, act)

    def _note(self, path: Path) -> bytes:
        try:
            return self.disk.read(path, limit=4096)
        except ABSENT:
            return b""
