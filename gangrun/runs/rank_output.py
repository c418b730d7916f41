"""The log files of a run as lines.

One file a node and attempt, each line with its ``[node:rankN HH:MM:SS] `` prefix; a file that got too long goes on in
its tail files. Where several nodes are read their lines come node by node; while following they come as they are
written.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gangrun.adapters.fs.run_dir import RunPaths, file_name
from gangrun.core.nodeset import NodesetError, natural_sort, unfold
from gangrun.core.text import listed
from gangrun.errors import UserError
from gangrun.runs.follow import Follower
from gangrun.runs.snapshot import read
from gangrun.runs.state import run_state
from gangrun.runs.times import pause, steady_now, wall_now

LOOK_EVERY_S = 0.25
LOOK_AT_RUN_EVERY_S = 1.0
TAIL_LINES_COUNT = 15
LOST_ATTEMPTS_COUNT = 5
LOST_WORDS = "some of what ranks printed is missing in"
LAST_ROUNDS_COUNT = 2  # after the end, so that the last lines are not missed

CHUNK_BYTES = 1 << 20
LINE_MAX_BYTES = 1 << 20
_PREFIX = re.compile(r"^\[(?P<node>[^\]]*):(?:rank(?P<rank>[0-9]{1,9})|gangrun)(?: [0-9:]{8})?\] ")
_RANK_LOG = re.compile(r"rank-[0-9]+\.log")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines; None means all."""

    ranks: frozenset[int] | None = None
    node: str | None = None

    def takes(self, line: str) -> bool:
        """Is this line wanted?"""
        if self.ranks is None:
            return True
        return rank_of(line) in self.ranks


def rank_of(line: str) -> int | None:
    """The rank that printed it; None for gangrun's own lines."""
    match = _PREFIX.match(line)
    return None if match is None or match["rank"] is None else int(match["rank"])


def attempts_of(paths: RunPaths) -> list[int]:
    """Attempts that have output, ascending."""
    try:
        names = os.listdir(paths.logs)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def node_logs(paths: RunPaths, attempt: int, node: str | None = None) -> list[Path]:
    """The node logs of an attempt, by node in roster order."""
    folder = paths.logs / str(attempt)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    logs = [name for name in names if name.endswith(".log") and not _RANK_LOG.fullmatch(name)]
    if node is not None:
        logs = [name for name in logs if name in (f"{node}.log", f"{file_name(node)}.log")]
    return [folder / name for name in natural_sort(logs)]


def lost_output(paths: RunPaths) -> tuple[str, ...]:
    """Of the newest attempts, a sentence for each log in which the disk did not take all that ranks printed."""
    told = []
    with contextlib.suppress(OSError):  # a page that shows less is better than none
        for attempt in attempts_of(paths)[-LOST_ATTEMPTS_COUNT:]:
            for mark in sorted((paths.logs / str(attempt)).glob("*.log.lost")):
                how = mark.read_text("utf-8", "replace").strip() or "the disk was full"
                told.append(f"{LOST_WORDS} logs/{attempt}/{mark.name.removesuffix('.lost')} ({how})")
    return tuple(told)


def note_loss(log: Path, words: str) -> None:
    """How much is missing in a log, told by its node, whose disk may not have taken a note."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.with_name(f"{log.name}.lost").write_text(words, "utf-8")


def parts_of(log: Path) -> list[Path]:
    """The files of one log in the order in which to read them; see ``agent/ranks/capped_log``."""
    names = (log.name, log.name + ".tail.1", log.name + ".tail")
    return [part for part in (log.with_name(name) for name in names) if part.exists()]


def lines_of(log: Path, wanted: Wanted) -> Iterator[str]:
    """Every wanted line of one node's log, head and tail."""
    for part in parts_of(log):
        with part.open("rb") as file:
            while line := file.readline(LINE_MAX_BYTES):
                text = line.rstrip(b"\n").decode("utf-8", "backslashreplace")
                if wanted.takes(text):
                    yield text


class LogTail:
    """New whole lines of one growing log, also where it goes on in another file; see ``agent/ranks/capped_log``.

    A file is known by its inode, so that one that was renamed is not read twice.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset, self._rest = path, 0, 0, b""
        self.is_behind = False  # more was there than is read at once

    def lines(self) -> list[str]:
        """Lines that came since the last call; none while the file is missing."""
        self.is_behind = False
        try:
            data = self._fresh()
        except FileNotFoundError:
            return []
        self.is_behind = len(data) >= CHUNK_BYTES
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "backslashreplace") for line in whole]

    def _fresh(self) -> bytes:
        parts = [(part.stat().st_ino, part) for part in parts_of(self._path)]
        inodes, data = [inode for inode, _ in parts], b""
        begin = inodes.index(self._inode) if self._inode in inodes else int(self._inode > 0)
        for inode, part in parts[begin:]:
            with part.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != inode:
                    return data  # it was turned into an older one just now
                if inode != self._inode or found.st_size < self._offset:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                more = file.read(CHUNK_BYTES - len(data))
            self._offset += len(more)
            data += more
            if len(data) >= CHUNK_BYTES:
                return data
        return data


@dataclass(slots=True)
class NewLines:
    """New lines of all logs of a run, over attempts, since the last ``poll``."""

    paths: RunPaths
    wanted: Wanted
    attempt: int  # attempts from this one on
    only: bool = False  # and none after it
    _tails: dict[Path, LogTail] = field(default_factory=dict)

    def poll(self) -> Iterator[str]:
        """What came since; whole lines."""
        for attempt in attempts_of(self.paths):
            if attempt < self.attempt or (self.only and attempt != self.attempt):
                continue
            for log in node_logs(self.paths, attempt, self.wanted.node):
                tail = self._tails.setdefault(log, LogTail(log))
                lines = tail.lines()
                while lines or tail.is_behind:
                    yield from (line for line in lines if self.wanted.takes(line))
                    lines = tail.lines()


def ranks_in(text: str | None) -> frozenset[int] | None:
    """The ranks that ``3`` or ``0,4-7`` names; None is all."""
    if text is None:
        return None
    try:
        return frozenset(int(name) for name in unfold(f"[{text}]"))
    except (NodesetError, ValueError):
        hint = "write 3, or 0,4-7"
        raise UserError("usage", f"--rank: {text!r} is neither a rank nor a list of ranks", hint) from None


def refuse_unknown_ranks(paths: RunPaths, wanted: Wanted, attempt: int | None) -> None:
    """``UserError`` if a wanted rank is not in ``attempt`` (None: the newest). Of earlier ones the most is known."""
    if not wanted.ranks:
        return
    reading = read(paths)
    count, newest = reading.spec.full_world_size, reading.state.attempt if reading.state else None
    if newest is not None and newest.placement is not None and attempt in (None, newest.number):
        count = newest.placement.world_size
    unknown = sorted(rank for rank in wanted.ranks if rank >= count)
    if count and unknown:
        have = "has only rank 0" if count == 1 else f"has ranks 0 to {count - 1}"
        which = f"attempt {attempt}" if attempt is not None else "this run"
        words = f"--rank: there is no rank {unknown[0]}; {which} {have}"
        raise UserError("usage", words, "leave --rank out to see all of them")


def newest_attempt(paths: RunPaths, *, wait_for_it: bool) -> int:
    """The newest attempt with output; before there is any 0 if it is worth to ``wait_for_it``."""
    if known := attempts_of(paths):
        return known[-1]
    reading = read(paths)
    if wait_for_it and not reading.ended:
        return 0
    reason = reading.state.reason if reading.state else "no supervisor has begun yet"
    raise UserError("no output", f"no rank of {paths.run} has printed anything yet", f"the run says: {reason}", 1)


def written(paths: RunPaths, wanted: Wanted, attempt: int, tail: int | None) -> Iterator[str]:
    """The lines of one attempt, the last ``tail`` of each node."""
    logs = node_logs(paths, attempt, wanted.node)
    if not logs:
        have = ", ".join(str(number) for number in attempts_of(paths)) or "none"
        words, hint = f"there is no output in attempt {attempt}", f"attempts with output: {have}"
        if wanted.node and (others := node_logs(paths, attempt)):
            words = f"there is no output of node {wanted.node} in attempt {attempt}"
            hint = f"nodes with output: {listed([log.name.removesuffix('.log') for log in others])}"
        raise UserError("no output", words, hint, 1)
    for log in logs:
        yield from lines_of(log, wanted) if tail is None else deque(lines_of(log, wanted), maxlen=tail)


def followed(paths: RunPaths, wanted: Wanted, attempt: int, tail: int | None, *, only: bool) -> Iterator[str]:
    """The lines from now on, over attempts unless ``only`` this one is wanted, until the run ends."""
    new, run = NewLines(paths, wanted, attempt, only), Follower(paths)
    lines = new.poll()
    yield from lines if tail is None else deque(lines, maxlen=tail)
    look_at, rounds_left = steady_now(), LAST_ROUNDS_COUNT
    while rounds_left:
        yield from new.poll()
        if steady_now() >= look_at:
            look_at = steady_now() + LOOK_AT_RUN_EVERY_S
            reading = run.look()
            newer = reading.state is not None and reading.state.attempt.number > attempt
            rounds_left -= run_state(reading, wall_now()).over or (only and newer)
        pause(LOOK_EVERY_S)


def tail_of(paths: RunPaths, attempt: int, rank: int) -> list[str]:
    """The last lines of one rank."""
    last: deque[str] = deque(maxlen=TAIL_LINES_COUNT)
    for log in node_logs(paths, attempt):
        last.extend(lines_of(log, Wanted(frozenset({rank}))))
    return list(last)
