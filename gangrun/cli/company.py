"""Two runs that save to one directory at once would resume from each other's steps (room: cli; reads, never writes).

Known are the runs in this user's index. Asked for by ``run`` and ``resume``, which start at once; a run that waits in a
queue may well be meant to go on from what this one saves, and so may this one from the other's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_spec
from gangrun.cli.errors import UserError
from gangrun.cli.reading import Reading, patience, read
from gangrun.cli.resume_point import RUNS_MAX_COUNT
from gangrun.cli.terminal import clean
from gangrun.wire.spec import RunSpec, SpecError

SIGN_WITHIN_S = 30.0  # a supervisor that lives writes every 5 s


def refuse_company(spec: RunSpec, known: Iterable[IndexEntry], now: float) -> None:
    """An error where another run that shows signs of life saves to this one's directory."""
    if not spec.checkpoint.directory:
        return
    directory = os.path.realpath(spec.checkpoint.directory)
    for entry in islice(known, RUNS_MAX_COUNT):
        other = None if entry.run == spec.run else _saving_to(directory, RunPaths(Path(entry.path)))
        if other is not None and _lives(other, now):
            words = f"run {other.spec.run} ({other.spec.name}) saves to {directory}, and has not ended"
            hint = f"wait for it, end it (gangrun cancel {other.spec.run}), or give another --checkpoint-dir"
            raise UserError("busy", clean(words), clean(hint))


def _saving_to(directory: str, paths: RunPaths) -> Reading | None:
    try:
        with patience(str(paths.root)):
            place = read_spec(Disk(), paths).checkpoint.directory
            return read(paths) if place and os.path.realpath(place) == directory else None
    except (OSError, RunDirError, SpecError, UserError):
        return None  # gone, or not to be read: it says nothing of whether it lives


def _lives(other: Reading, now: float) -> bool:
    if other.ended or other.owner_alive is False:
        return False
    begun = other.spec.created_wall if other.spec.world == "local" else 0.0
    return now - max(other.last_sign() or 0.0, begun) <= SIGN_WITHIN_S
