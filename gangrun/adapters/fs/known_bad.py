"""The file of nodes that a user's runs found broken (room: adapters/fs, touches the disk).

One file for all runs of a user, changed by processes on several hosts: read, change, replace under a lock where the
file system has locks. It is a hint: one that is torn, of a newer version or cannot be read counts as empty.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.core.known_bad import KnownBad, found

NAME = "known-bad-nodes.json"
SCHEMA = 1


class _File(msgspec.Struct, frozen=True):
    v: int
    nodes: tuple[KnownBad, ...] = ()


class KnownBadFile:
    """``folder``: where the user's state lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._disk = Disk()

    def read(self) -> Mapping[str, KnownBad]:
        """What is known, by node."""
        try:
            file = msgspec.json.decode(self._disk.read(self.path), type=_File)
        except (OSError, msgspec.MsgspecError):
            return {}
        return {one.node: one for one in file.nodes} if file.v == SCHEMA else {}

    def add(self, reasons: Mapping[str, str], run: str, now: float) -> None:
        """Nodes that ``run`` leaves out since their hardware failed. ``OSError`` where it cannot be written."""

        def change(known: Mapping[str, KnownBad]) -> Mapping[str, KnownBad]:
            for node, reason in reasons.items():
                known = found(known, node, reason, run, now)
            return known

        self._change(change)

    def clear(self, nodes: Iterable[str]) -> None:
        """Forget these. ``OSError`` where it cannot be written."""
        gone = set(nodes)
        self._change(lambda known: {node: one for node, one in known.items() if node not in gone})

    def _change(self, change: Callable[[Mapping[str, KnownBad]], Mapping[str, KnownBad]]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                pass  # no locks here: two writers at once may lose one node, which the next run will find again
            data = msgspec.json.encode(_File(SCHEMA, tuple(change(self.read()).values())))
            part = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
            self._disk.replace(self.path, data + b"\n", part)
        finally:
            os.close(lock)
