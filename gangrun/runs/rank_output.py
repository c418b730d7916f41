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


@dataclass(slots=True)
class _Place:
    """How far one file was read. By inode, so that a file that was renamed is not read twice."""

    offset: int = 0
    rest: bytes = b""


@dataclass(slots=True)
class NewLines:
    """New lines of all logs of a run, over attempts, since the last ``poll``."""

    paths: RunPaths
    wanted: Wanted
    attempt: int  # attempts from this one on
    only: bool = False  # and none after it
    _places: dict[int, _Place] = field(default_factory=dict)

    def poll(self) -> Iterator[str]:
        """What came since; whole lines."""
        for attempt in attempts_of(self.paths):
            if attempt < self.attempt or (self.only and attempt != self.attempt):
                continue
            for log in node_logs(self.paths, attempt, self.wanted.node):
                for part in parts_of(log):
                    yield from self._fresh(part)

    def _fresh(self, part: Path) -> Iterator[str]:
        try:
            file = part.open("rb")
        except FileNotFoundError:
            return  # it was turned into an older tail just now
        with file:
            place = self._places.setdefault(os.fstat(file.fileno()).st_ino, _Place())
            file.seek(place.offset)
            while data := file.read(CHUNK_BYTES):
                place.offset += len(data)
                *whole, place.rest = (place.rest + data).split(b"\n")
                for line in whole:
                    text = line.decode("utf-8", "backslashreplace")
                    if self.wanted.takes(text):
                        yield text
