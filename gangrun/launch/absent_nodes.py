"""Nodes whose agents never came, as the launcher of a job saw it.

srun's words and a node's last ones reach the batch script only; the supervisor reads them from a file beside the job's
claim, so that the reason that people read says why a node is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths

LOOK_EVERY_S = 0.5


class Absent(msgspec.Struct, frozen=True):
    """One node, and why nobody joins from it."""

    node: str
    why: str
    scheduler: bool = False  # Slurm could start nothing there; else it was our command, or the user's, that failed


def path_of(paths: RunPaths, job: str) -> Path:
    """Where the launcher of this stay of a job keeps its notes."""
    return paths.jobs / f"{job}.absent"


def note(disk: Disk, paths: RunPaths, job: str, nodes: tuple[Absent, ...]) -> None:
    """All that are known, whole or not at all."""
    target = path_of(paths, job)
    data = b"".join(msgspec.json.encode(node) + b"\n" for node in nodes)
    disk.replace(target, data, paths.temporary(target, "new"))


def noted(disk: Disk, paths: RunPaths, job: str) -> tuple[Absent, ...]:
    """What ``note`` left; nothing where that cannot be read."""
    try:
        data = disk.read(path_of(paths, job))
        return tuple(msgspec.json.decode(line, type=Absent) for line in data.splitlines())
    except (OSError, msgspec.MsgspecError):
        return ()


class AbsentWatch(threading.Thread):
    """Tells of each node once."""

    def __init__(self, paths: RunPaths, disk: Disk, job: str, tell: Callable[[Absent], None]) -> None:
        super().__init__(name="absent-watch", daemon=True)
        self._paths, self._disk, self._job, self._tell = paths, disk, job, tell
        self.over = threading.Event()

    def run(self) -> None:
        """Until told to end."""
        known: set[str] = set()
        while True:
            for absent in noted(self._disk, self._paths, self._job):
                if absent.node not in known:
                    known.add(absent.node)
                    self._tell(absent)
            if self.over.wait(LOOK_EVERY_S):
                return
