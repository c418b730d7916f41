"""A node's counters as they were at the last look, kept in the run's directory for the next one.

So that what rose while nobody looked (between attempts and jobs, after a checker that died) is seen to have risen, and
in what time. One small file a node, written when a look was asked for, when something was found, and every ten minutes.
The shared file system may stand still, so both reading and writing are a thread's. What cannot be read, makes no sense
or is of another boot is no baseline; what cannot be written is written the next time.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gangrun.adapters.fs.disk import Disk
from gangrun.health.framework.readings import plain_reading, reading_from

if TYPE_CHECKING:
    from gangrun.health.framework.check import Reading

EVERY_S = 600.0
READ_WITHIN_S = 3.0
FILE_MAX_BYTES = 2_000_000
SCHEMA = 1

Readings = tuple["Reading", ...]


class Kept:
    """``path``: the node's file; ``boot_id``: of the boot that counts; where nobody says it nothing is kept."""

    def __init__(self, path: Path, boot_id: str, now: Callable[[], float], disk: Disk | None = None) -> None:
        self._path, self._boot_id, self._now = path, boot_id, now
        self._disk = disk or Disk()
        self._written_at = now()
        self._found: queue.SimpleQueue[Readings] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[Readings] = queue.SimpleQueue()
        if boot_id:
            threading.Thread(target=self._work, name="kept-counters", daemon=True).start()

    def readings(self, within_s: float = READ_WITHIN_S) -> Readings:
        """What was kept in this boot; nothing where the file system does not answer in time."""
        if not self._boot_id:
            return ()
        try:
            return self._found.get(timeout=within_s)
        except queue.Empty:
            return ()

    def keep(self, readings: Callable[[], Readings], *, at_once: bool) -> None:
        """Have these written now, or where it is time to; returns at once."""
        now = self._now()
        if self._boot_id and (at_once or now - self._written_at >= EVERY_S):
            self._written_at = now
            self._to_write.put(readings())

    def _work(self) -> None:
        self._found.put(read(self._disk, self._path, self._boot_id))
        while True:
            newest = self._to_write.get()
            while not self._to_write.empty():
                newest = self._to_write.get()
            try:
                self._write(newest)
            except OSError:
                continue

    def _write(self, readings: Readings) -> None:
        plain = {"v": SCHEMA, "readings": [plain_reading(one) for one in readings]}
        if not self._disk.is_dir(self._path.parent):
            os.makedirs(self._path.parent, mode=0o700, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._disk.replace(self._path, json.dumps(plain).encode("ascii") + b"\n", part)


def read(disk: Disk, path: Path, boot_id: str) -> Readings:
    """The readings of this boot in a file that may be anything."""
    try:
        plain = json.loads(disk.read(path, limit=FILE_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return ()
    if not isinstance(plain, dict) or plain.get("v") != SCHEMA or not isinstance(plain.get("readings"), list):
        return ()
    found = [reading_from(one) for one in plain["readings"]]
    return tuple(one for one in found if one is not None and one.boot_id == boot_id)
