"""Which checkpoint a run would begin with, and whose it is.

Nothing is verified here: the run itself reads the bytes before its ranks start. ``gangrun checkpoints`` says more.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_spec
from gangrun.checkpoint.scan import StorageUnreadable, list_steps, step_pattern
from gangrun.display.text import clean
from gangrun.display.times import ago_words
from gangrun.wire.spec import RunSpec, SpecError

RUNS_MAX_COUNT = 100  # newest runs that are asked whether they save there


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The newest committed checkpoint, as its directory shows it."""

    step: int
    path: str
    changed: float
    run: str  # of the run that most likely wrote it, "" if none is known
    name: str
    user: str

    def words(self, now: float) -> str:
        """One sentence."""
        whose = f"run {self.run} ({self.name})" if self.run else f"user {self.user}"
        return clean(f"step {self.step}, saved {ago_words(self.changed, now)} by {whose}: {self.path}")


def resume_words(spec: RunSpec, point: ResumePoint | None, now: float) -> str:
    """What the first attempt begins with, for people."""
    if spec.resume == "none":
        return "nothing, as --resume none asks"
    if spec.resume != "auto":
        return clean(f"{spec.resume}, as --resume asks")
    if not spec.checkpoint.directory:
        return "nothing: no --checkpoint-dir is given"
    if point is None:
        return clean(f"nothing: no checkpoint in {spec.checkpoint.directory} yet")
    return point.words(now)


def resume_point(spec: RunSpec, known: Iterable[IndexEntry]) -> ResumePoint | None:
    """Where ``auto`` would begin; None: at the beginning. ``StorageUnreadable`` where nobody can tell."""
    if spec.resume != "auto" or not spec.checkpoint.directory:
        return None
    found = list_steps(spec.checkpoint.directory, step_pattern(spec.checkpoint.pattern))
    newest = next((one for one in found if one.committed and not one.unreadable), None)
    if newest is None:
        return None
    try:
        facts = os.stat(newest.path)
    except OSError as error:
        raise StorageUnreadable(f"{newest.path} cannot be looked at: {error.strerror}") from error
    run, name = _author(spec, islice(known, RUNS_MAX_COUNT), facts.st_mtime)
    return ResumePoint(newest.step, newest.path, facts.st_mtime, run, name, _user(facts.st_uid))


def _author(spec: RunSpec, known: Iterable[IndexEntry], changed: float) -> tuple[str, str]:
    """The newest run that saves there and existed by then; its id and name."""
    disk = Disk()
    for entry in known:
        if entry.run == spec.run or entry.created_wall > changed:
            continue
        try:
            other = read_spec(disk, RunPaths(Path(entry.path)))
        except (RunDirError, SpecError):
            continue
        if other.checkpoint.directory == spec.checkpoint.directory:
            return other.run, other.name
    return "", ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
