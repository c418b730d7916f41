"""The log files of a run as lines.

One file a node and attempt, each line with its ``[node:rankN] `` prefix; a file that got too long goes on in its tail
files. Where several nodes are read their lines come node by node, as lines bear no times; while following they come as
they are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gangrun.adapters.fs.run_dir import RunPaths, file_name
from gangrun.core.nodeset import natural_sort

CHUNK_BYTES = 1 << 20
LINE_MAX_BYTES = 1 << 20
_PREFIX = re.compile(r"^\[(?P<node>[^\]]*):(?:rank(?P<rank>[0-9]{1,9})|gangrun)\] ")
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
        match = _PREFIX.match(line)
        return match is not None and match["rank"] is not None and int(match["rank"]) in self.ranks


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
