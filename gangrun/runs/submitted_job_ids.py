"""The numbers that sbatch gave the jobs of a run.

A job that never began leaves nothing else, and Slurm forgets it after MinJobAge.
"""

from __future__ import annotations

import os
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths

NUMBER_BYTES_MAX = 64


def _path(paths: RunPaths, seq: int) -> Path:
    return paths.batch_scripts / f"job-{seq}.number"


def note(paths: RunPaths, seq: int, job: str) -> None:
    """Job ``job`` was submitted for place ``seq``; of several the last."""
    path = _path(paths, seq)
    try:
        Disk().replace(path, job.encode(), path.with_name(f".{path.name}.{os.getpid()}.tmp"))
    except OSError:
        return  # it runs all the same


def noted(paths: RunPaths, seq: int, before: float) -> str:
    """The job for place ``seq`` as it was submitted before that wall time; "" where none is known."""
    path, disk = _path(paths, seq), Disk()
    try:
        early = disk.lstat(path).st_mtime < before
        return disk.read(path, limit=NUMBER_BYTES_MAX).decode("ascii", "replace") if early else ""
    except OSError:
        return ""
