"""A log file that keeps its head and its tail, whatever is poured into it.

``X.log`` holds the first bytes. What comes after goes to ``X.log.tail``; once that is half of the tail's cap it becomes
``X.log.tail.1`` and the older one goes: its place says how much went. Nothing is copied and every file is readable at
any moment. Called from the writer thread of ``rank_logs`` alone: a shared disk may hold it up for minutes.
"""

from __future__ import annotations

import os
from pathlib import Path


def log_parts(path: Path) -> list[Path]:
    """The files of a log that are there, in the order in which to read them."""
    parts = [path, path.with_name(path.name + ".tail.1"), path.with_name(path.name + ".tail")]
    return [part for part in parts if part.exists()]


class CappedLog:
    """One log; OSError comes through, and a later write tries again."""

    def __init__(self, path: Path, head_max_bytes: int, tail_max_bytes: int) -> None:
        self._path = path
        self._head_max_bytes = head_max_bytes
        self._segment_max_bytes = max(tail_max_bytes // 2, 1)
        self._tail = path.with_name(path.name + ".tail")
        self._old_tail = path.with_name(path.name + ".tail.1")
        self._fd = -1
        self._size_bytes = 0
        self._in_tail = False
        self._dropped_bytes = 0

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        if self._fd < 0:
            self._open(self._tail if self._in_tail else self._path)
        limit_bytes = self._segment_max_bytes if self._in_tail else self._head_max_bytes
        if self._size_bytes and self._size_bytes + len(data) > limit_bytes:
            self._turn()
        self._append(data)

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size_bytes = os.fstat(self._fd).st_size

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self._size_bytes += written
            view = view[written:]

    def _turn(self) -> None:
        """Begin the next file."""
        if not self._in_tail:
            self._append(f"[gangrun] this file is full; the newest lines are in {self._tail.name}\n".encode())
        self.close()
        if self._in_tail:
            if self._old_tail.exists():
                self._dropped_bytes += self._old_tail.stat().st_size
            self._tail.replace(self._old_tail)
        self._in_tail = True
        self._open(self._tail)
        if self._dropped_bytes:
            note = f"[gangrun] {self._dropped_bytes} bytes were dropped between the head of this log and its tail\n"
            self._append(note.encode())

    def close(self) -> None:
        """Close the file; a write opens it again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
