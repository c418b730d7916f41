"""A batch job of a run: what its environment tells, and which of its nodes never came.

srun's words and a node's last ones reach the job's launcher only. It notes them in a file beside the job's claim, where
the supervisor reads them, so that the reason that people read says why a node is missing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import Failure
from gangrun.core.nodeset import unfold
from gangrun.runs.job_queue import stopped_note
from gangrun.wire import job_variables
from gangrun.wire.submission import Submission

LOOK_EVERY_S = 0.5
EXIT_CANCELLED = 130


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job that we are in, as its environment tells."""

    job: str
    restart: int
    nodes: tuple[str, ...]
    host: str  # this node's name in Slurm's words
    cpus_per_task: int | None


def allocation_of(variables: Mapping[str, str], host: str) -> Allocation:
    """``KeyError`` or ``NodesetError`` where this is no job's environment."""
    cpus = job_variables.cpus_per_rank(variables)
    return Allocation(
        job=variables["SLURM_JOB_ID"],
        restart=int(variables.get("SLURM_RESTART_COUNT") or 0),
        nodes=unfold(variables["SLURM_JOB_NODELIST"]),
        host=job_variables.node_name(variables, host),
        cpus_per_task=int(cpus) if cpus.isdecimal() else None,
    )


def srun_options(submission: Submission) -> tuple[str, ...]:
    """What the user asked of srun besides."""
    return tuple(f"--{key}" if value is None else f"--{key}={value}" for key, value in submission.srun)


def note_stopped(paths: RunPaths, disk: Disk, seq: int, why: str, cause: Failure) -> None:
    """Why the batch script of job ``seq`` ended: ``gangrun status`` tells it if no supervisor does."""
    target = paths.setup_failed(seq)
    with contextlib.suppress(OSError):
        disk.replace(target, stopped_note(why, cause).encode(), paths.temporary(target, "new"))


class Absent(msgspec.Struct, frozen=True):
    """One node, and why nobody joins from it."""

    node: str
    why: str
    scheduler: bool = False  # Slurm could start nothing there; else it was our command, or the user's, that failed


def absent_path(paths: RunPaths, job: str) -> Path:
    """Where the launcher of this stay of a job keeps its notes."""
    return paths.jobs / f"{job}.absent"


def note_absent(disk: Disk, paths: RunPaths, job: str, nodes: tuple[Absent, ...]) -> None:
    """All that are known, whole or not at all."""
    target = absent_path(paths, job)
    data = b"".join(msgspec.json.encode(node) + b"\n" for node in nodes)
    disk.replace(target, data, paths.temporary(target, "new"))


def absent_nodes(disk: Disk, paths: RunPaths, job: str) -> tuple[Absent, ...]:
    """What ``note_absent`` left; nothing where that cannot be read."""
    try:
        data = disk.read(absent_path(paths, job))
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
            for absent in absent_nodes(self._disk, self._paths, self._job):
                if absent.node not in known:
                    known.add(absent.node)
                    self._tell(absent)
            if self.over.wait(LOOK_EVERY_S):
                return
