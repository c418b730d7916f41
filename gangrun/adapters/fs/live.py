"""The holder's counter file: sign of life and newest figures for ``status``.

Nothing durable may depend on it: it is overwritten in place, never fsynced, and may be lost or half old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import terms_seen
from gangrun.adapters.fs.run_dir import RunPaths

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


def live_of(disk: Disk, paths: RunPaths, term: int) -> Mapping[str, Any]:
    """The newest figures of the run's supervisor; empty where there are none."""
    for number in (term, max(terms_seen(disk, paths), default=term)):
        found = read_counter(disk, paths, number)
        if found is not None:
            return found.live
    return {}
