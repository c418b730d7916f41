"""Journals: written whole lines at a time, read up to where they can be trusted.

No decision about a run may enter: records go in and come out. Law of reading: the numbers of the records in a file
leave no gap. A damaged line that costs no number (the torn half of an append that was tried again) is passed over with
a note; one that does cost a number ends what can be trusted of that file.

Beside each journal lies the counter of its term: sign of life and newest figures for ``status``. Nothing durable may
depend on the counter: it is overwritten in place, never fsynced, and may be lost or half old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.wire import record as wire_record
from gangrun.wire.record import History, Record


class JournalError(wire_record.RecordError):
    """A journal from which a run must not be taken over; the message says where and why."""


class JournalDamaged(JournalError):
    """Records are missing in the middle: what came after them cannot be understood."""


class JournalTooNew(JournalError):
    """A newer gangrun wrote it."""


class JournalShrank(JournalError):
    """What was durable is gone from the file."""


# ---- writing -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class JournalWriter:
    """Appends lines to one term's file, durably. After an ``OSError`` call ``append`` again with the same lines."""

    disk: Disk
    path: Path
    end: int = 0  # everything before it is durable
    _fd: int = -1
    _created: bool = False

    def append(self, data: bytes) -> None:
        """Write and fsync whole lines. On error the file is as before, or its torn tail is cut at the next call."""
        if self._fd < 0:
            self._open()
        try:
            self.disk.write_all(self._fd, data, self.path)
            self.disk.fsync(self._fd, self.path)
        except OSError:
            # After a failed fsync the kernel may forget what it could not write: nothing since ``end`` counts.
            self._forget()
            raise
        self.end += len(data)

    def _open(self) -> None:
        if not self._created:
            # O_EXCL: a file of our term that is not ours means that somebody else held it. Kept open only when durable.
            fd = self.disk.create(self.path)
            self._created = True
        else:
            fd = self.disk.open_append(self.path)
        try:
            self.disk.fsync_dir(self.path.parent)
            size = self.disk.size(fd, self.path)
            if size < self.end:
                raise JournalShrank(f"{self.path} has {size} bytes where {self.end} were durable")
            if size > self.end:
                self.disk.truncate(fd, self.end, self.path)
        except (OSError, JournalError):
            self.disk.close(fd)
            raise
        self._fd = fd

    def _forget(self) -> None:
        """Cut the torn tail at once if that works; ``_open`` does it again before the next append."""
        try:
            self.disk.truncate(self._fd, self.end, self.path)
        except OSError:
            pass
        finally:
            self.disk.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            self.disk.close(self._fd)
            self._fd = -1


# ---- reading -------------------------------------------------------------------------------------------------------


class Trust(Enum):
    """How far a file could be trusted."""

    WHOLE = "whole"
    TORN = "torn"  # the last line is cut off: it was never durable
    DAMAGED = "damaged"  # records are missing, others follow
    TOO_NEW = "too new"


@dataclass(slots=True)
class Lines:
    """The trusted records of one file, fed piece by piece; what ``JournalReader`` and ``JournalFollower`` share."""

    name: str
    term: int
    expected: int = 0
    line: int = 0
    ending: Trust = Trust.WHOLE
    why: str = ""
    notes: list[str] = field(default_factory=list)
    bad: tuple[int, str] | None = None  # a line that could not be read, not yet known to cost a record
    last: bytes = b""

    @property
    def trusted(self) -> bool:
        """Whether more lines of this file can be used."""
        return self.ending in (Trust.WHOLE, Trust.TORN)

    def feed(self, line: bytes) -> Record | None:
        """The record on this whole line, or None where it is to be passed over."""
        self.line += 1
        if not self.trusted or not line.strip():
            return None
        try:
            record = wire_record.decode(line)
        except wire_record.NewerSchema as error:
            self._end(Trust.TOO_NEW, f"{self.name} line {self.line}: {error}")
            return None
        except wire_record.RecordError as error:
            if self.bad is None:
                self.bad = (self.line, str(error))
            return None
        return self._in_order(record, line)

    def _in_order(self, record: Record, line: bytes) -> Record | None:
        if record.term != self.term:
            self._end(Trust.DAMAGED, f"{self.name} line {self.line}: it is of term {record.term}, not {self.term}")
            return None
        if record.n == self.expected - 1 and line == self.last:
            self.notes.append(f"{self.name} line {self.line}: record {record.n} is there twice; counted once")
            self.bad = None
            return None
        if record.n != self.expected:
            where, what = self.bad or (self.line, f"record {record.n} follows {self.expected - 1}")
            self._end(Trust.DAMAGED, f"{self.name} line {where}: {what}; records from {self.expected} on are missing")
            return None
        if self.bad is not None:
            self.notes.append(f"{self.name} line {self.bad[0]}: half of an append tried again; nothing is missing")
            self.bad = None
        self.expected += 1
        self.last = line
        return record

    def finish(self, tail: bytes) -> Record | None:
        """The file ends here, with ``tail`` after its last newline."""
        record = self.feed(tail) if tail else None
        if self.trusted and self.bad is not None:
            self.ending = Trust.TORN
            line, why = self.bad
            self.why = f"{self.name} line {line}: {why}; state is right up to record {self.expected - 1}"
            self.notes.append(self.why)
        return record

    def _end(self, ending: Trust, why: str) -> None:
        self.ending, self.why = ending, why
        self.notes.append(why)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One term's journal as far as it can be trusted."""

    term: int
    records: tuple[Record, ...]
    ending: Trust
    why: str
    notes: tuple[str, ...]


def read_file(disk: Disk, paths: RunPaths, term: int) -> JournalFile | None:
    """One term's journal; None where there is no file. Raises ``OSError`` only where the disk does."""
    path = paths.journal(term)
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    lines = Lines(str(path), term)
    pieces = data.split(b"\n")
    read = [lines.feed(piece) for piece in pieces[:-1]]
    read.append(lines.finish(pieces[-1]))
    records = tuple(record for record in read if record is not None)
    return JournalFile(term, records, lines.ending, lines.why, tuple(lines.notes))


def read_history(disk: Disk, paths: RunPaths, before: int) -> History:
    """The terms below ``before`` back to the newest snapshot that carries what was before it, for a takeover.

    Only the newest term that wrote anything decides what the state is, so damage in older ones is a note. Of that one
    a torn end is dropped with a note; anything worse is refused.
    """
    files: list[JournalFile] = []
    for term in reversed(range(before)):
        if (found := read_file(disk, paths, term)) is not None:
            files.insert(0, found)
            if wire_record.inherited(found.records) is not None:
                break
    newest = next((found for found in reversed(files) if found.records or not _torn_or_whole(found)), None)
    if newest is not None and newest.ending is Trust.TOO_NEW:
        raise JournalTooNew(newest.why)
    if newest is not None and newest.ending is Trust.DAMAGED:
        raise JournalDamaged(newest.why)
    records = tuple(record for found in files for record in found.records)
    return History(records, tuple(note for found in files for note in found.notes))


def _torn_or_whole(found: JournalFile) -> bool:
    return found.ending in (Trust.WHOLE, Trust.TORN)


def terms_seen(disk: Disk, paths: RunPaths) -> tuple[int, ...]:
    """Terms whose journal was seen, ascending; a listing, so no proof that there are no more."""
    try:
        names = disk.names(paths.journals)
    except FileNotFoundError:
        return ()
    return tuple(sorted(int(name[:-6]) for name in names if name.endswith(".jsonl") and name[:-6].isdecimal()))


@dataclass(slots=True)
class JournalReader:
    """The whole journal for a viewer: every record that can be trusted, and notes on what cannot. Never refuses."""

    paths: RunPaths
    disk: Disk = field(default_factory=Disk)

    def read(self, newest_only: bool = False) -> History:
        """Everything now, or from the newest snapshot on; raises ``OSError`` only where the disk does."""
        follower = JournalFollower(self.paths, self.disk, newest_only)
        records = tuple(follower.poll())
        return History(records, follower.notes(final=True))


@dataclass(slots=True)
class _Followed:
    lines: Lines
    offset: int = 0


@dataclass(slots=True)
class JournalFollower:
    """New records since the last ``poll``, over all terms, in an order that ``wire.record.replay`` may be fed with.

    Once a newer term has a record, nothing of older ones is given any more: late writes of a deposed holder count for
    nothing.
    """

    paths: RunPaths
    disk: Disk = field(default_factory=Disk)
    newest_only: bool = False  # begin at the newest snapshot: all that the state needs, none of the story
    _files: dict[int, _Followed] = field(default_factory=dict)
    _term: int = -1
    _read: list[Record] = field(default_factory=list)  # not given yet

    def poll(self) -> list[Record]:
        """Whole lines that came since; a half-written last line is left for the next time."""
        if self.newest_only and self._term < 0:
            self._leap()
        # Seen first, read afterwards: whatever a newer holder read before its snapshot is in the older files by now.
        for term in self._candidates():
            fresh = list(self._fresh(term))
            if fresh:
                self._term = term
            self._read.extend(fresh)  # stays here if the next term cannot be read
        result, self._read = self._read, []
        return result

    def _leap(self) -> None:
        for term in reversed(terms_seen(self.disk, self.paths)):
            path = self.paths.journal(term)
            try:
                first, _, _ = self.disk.read(path).partition(b"\n")
            except FileNotFoundError:
                continue  # a listing may be stale
            if Lines(str(path), term).feed(first) is not None:
                self._term = term
                return

    def notes(self, final: bool = False) -> tuple[str, ...]:
        """What could not be used, in words; ``final`` also names a torn end."""
        notes = [note for _, followed in sorted(self._files.items()) for note in followed.lines.notes]
        for term, followed in sorted(self._files.items()) if final else ():
            notes.extend(self._torn_end(term, followed))
        return tuple(notes)

    def _torn_end(self, term: int, followed: _Followed) -> tuple[str, ...]:
        ending = replace(followed.lines, notes=[])
        try:
            ending.finish(self.disk.read(self.paths.journal(term), followed.offset))
        except FileNotFoundError:
            return ()
        return tuple(ending.notes)

    def _candidates(self) -> tuple[int, ...]:
        listed = set(terms_seen(self.disk, self.paths))
        newest = max(listed, default=self._term)
        while self.disk.exists(self.paths.journal(newest + 1)):
            newest += 1
            listed.add(newest)
        return tuple(sorted(term for term in listed | {self._term} if term >= max(self._term, 0)))

    def _fresh(self, term: int) -> Iterator[Record]:
        path = self.paths.journal(term)
        followed = self._files.setdefault(term, _Followed(Lines(str(path), term)))
        try:
            data = self.disk.read(path, followed.offset)
        except FileNotFoundError:
            return
        end = data.rfind(b"\n") + 1
        followed.offset += end
        for line in data[:end].split(b"\n")[:-1]:
            if (record := followed.lines.feed(line)) is not None:
                yield record


BLOCK_BYTES = 512


class Live(msgspec.Struct, frozen=True):
    """What the holder last wrote: ``count`` grows with each write, ``wall`` is when."""

    count: int
    wall: float
    live: dict[str, Any] = {}


@dataclass(slots=True)
class Counter:
    """Writes one term's counter file. In place: a full disk must not look like a dead supervisor."""

    disk: Disk
    paths: RunPaths
    term: int
    count: int = field(default=0)

    def write(self, live: Mapping[str, object], wall: float) -> None:
        """One small write; raises ``OSError`` where the disk does."""
        self.count += 1
        data = msgspec.json.encode(Live(self.count, wall, dict(live)))
        padded = data + b" " * (-(len(data) + 1) % BLOCK_BYTES) + b"\n"
        path = self.paths.counter(self.term)
        fd = self.disk.open_rewrite(path)
        try:
            self.disk.overwrite(fd, padded, path)
            if self.disk.size(fd, path) > len(padded):
                self.disk.truncate(fd, len(padded), path)
        finally:
            self.disk.close(fd)


def read_counter(disk: Disk, paths: RunPaths, term: int) -> Live | None:
    """What is there now, opened anew; None where nothing readable is."""
    try:
        return msgspec.json.decode(disk.read(paths.counter(term), limit=1 << 20), type=Live)
    except (OSError, msgspec.MsgspecError):
        return None


class RanksNote(msgspec.Struct, frozen=True):
    """The ranks of an attempt by node: each with its number, pid, state as /proc has it, and step."""

    attempt: int
    nodes: dict[str, list[tuple[int, int, str, int]]]
    gpus: dict[int, list[int]] = {}  # ``GpuUse`` of each rank that has told of one


def note_ranks(disk: Disk, paths: RunPaths, term: int, attempt: object, nodes: object, gpus: object = None) -> None:
    """All of a ``RanksNote``, or nothing. Each term has its file: a deposed holder replaces no newer note."""
    data = msgspec.json.encode({"attempt": attempt, "nodes": nodes, "gpus": gpus or {}})
    with contextlib.suppress(FileExistsError):
        disk.mkdir(paths.ranks)
    target = _ranks_of(paths, term)
    disk.replace(target, data, paths.temporary(target, "new"))
    disk.discard(_ranks_of(paths, old) for old in _noted_terms(disk, paths) if old < term)


def read_ranks(disk: Disk, paths: RunPaths) -> RanksNote | None:
    """What the newest term has noted last; None if nothing readable is there."""
    try:
        newest = max(_noted_terms(disk, paths), default=0)
        return msgspec.json.decode(disk.read(_ranks_of(paths, newest)), type=RanksNote)
    except (OSError, msgspec.MsgspecError):
        return None


def _ranks_of(paths: RunPaths, term: int) -> Path:
    return paths.ranks / f"{term}.json"


def _noted_terms(disk: Disk, paths: RunPaths) -> tuple[int, ...]:
    names = (name.removesuffix(".json") for name in disk.names(paths.ranks) if name.endswith(".json"))
    return tuple(int(name) for name in names if name.isdecimal())


def live_of(disk: Disk, paths: RunPaths, term: int) -> Mapping[str, Any]:
    """The newest figures of the run's supervisor; empty where there are none."""
    for number in (term, max(terms_seen(disk, paths), default=term)):
        found = read_counter(disk, paths, number)
        if found is not None:
            return found.live
    return {}
