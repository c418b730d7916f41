"""The file of nodes that a user's runs found broken.

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
from gangrun.core.evidence import Reported
from gangrun.core.nodes.history import KnownBad, joined, keyed, with_bad_node

NAME = "known-bad-nodes.json"
SCHEMA = 1


class _File(msgspec.Struct, frozen=True):
    v: int
    nodes: tuple[KnownBad, ...] = ()
    reports: tuple[Reported, ...] = ()


_DECODER = msgspec.json.Decoder(_File)  # made here, as by one thread: see ``wire.record``


class KnownBadFile:
    """``folder``: where the user's state lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._disk = Disk()

    def read(self) -> Mapping[str, KnownBad]:
        """What is known, by node."""
        return {one.node: one for one in self._all().nodes}

    def reports(self) -> tuple[Reported, ...]:
        """What drivers of GPUs reported lately."""
        return self._all().reports

    def add(self, reasons: Mapping[str, str], run: str, now: float) -> None:
        """Nodes that ``run`` leaves out since their hardware failed. ``OSError`` where it cannot be written."""
        self.note(reasons, (), (), run, now)

    def note(
        self, broken: Mapping[str, str], back: Iterable[str], reported: Iterable[Reported], run: str, now: float
    ) -> None:
        """What ``run`` learnt: nodes that are broken and why, those that are well again, what drivers reported."""
        well = frozenset(back)

        def change(old: _File) -> _File:
            known: Mapping[str, KnownBad] = {one.node: one for one in old.nodes if one.node not in well}
            for node, reason in broken.items():
                known = with_bad_node(known, node, reason, run, now)
            return _File(SCHEMA, tuple(known.values()), tuple(joined(keyed(old.reports), reported, now).values()))

        self._change(change)

    def clear(self, nodes: Iterable[str]) -> None:
        """Forget these. ``OSError`` where it cannot be written."""
        gone = set(nodes)

        def change(old: _File) -> _File:
            left = tuple(one for one in old.nodes if one.node not in gone)
            return _File(SCHEMA, left, tuple(one for one in old.reports if one.node not in gone))

        self._change(change)

    def _all(self) -> _File:
        try:
            file = _DECODER.decode(self._disk.read(self.path))
        except (OSError, msgspec.MsgspecError):
            return _File(SCHEMA)
        return file if file.v == SCHEMA else _File(SCHEMA)

    def _change(self, change: Callable[[_File], _File]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                pass  # no locks here: two writers at once may lose one node, which the next run will find again
            data = msgspec.json.encode(change(self._all()))
            part = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
            self._disk.replace(self.path, data + b"\n", part)
        finally:
            os.close(lock)
