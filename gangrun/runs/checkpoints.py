"""The checkpoints of a run or of a directory: which are valid, and which one would be resumed from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gangrun.adapters.fs.run_dir import MACHINE_DIR
from gangrun.checkpoint.records import RequestRecord, load_record
from gangrun.checkpoint.scan import DEFAULT_PATTERN, BadPattern, StorageUnreadable, is_checkpoint, step_pattern
from gangrun.checkpoint.store import CheckpointRoom, Depth, VerifyProgress
from gangrun.checkpoint.validator_verdict import Validator
from gangrun.config import environment
from gangrun.config.layers import layered, usual_files
from gangrun.core.checkpoints.resume import Candidate, Chosen, ResumeRequest, choose
from gangrun.core.model import CheckpointRef
from gangrun.errors import NO_SUCH_RUN, UNKNOWN, UserError
from gangrun.runs.locate import find
from gangrun.runs.snapshot import patience, read
from gangrun.runs.status import SCHEMA, memory_step

DISK = "disk"


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where to look, and what the run knows of it."""

    directory: str
    pattern: str
    run: str = ""
    run_directory: str = ""
    best_step: int = -1
    memory_step: int | None = None
    validator: tuple[str, ...] = ()
    validator_within_s: float = 600.0
    working_directory: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in a place, newest first; ``chosen`` is None if a run would begin from nothing, or not at all."""

    place: CheckpointPlace
    found: tuple[Candidate, ...]
    chosen: CheckpointRef | None
    reason: str
    verified: bool

    @property
    def newest_is_valid(self) -> bool:
        """Is the newest committed checkpoint valid?"""
        return next((one.valid for one in self.found if one.committed), False)


def surveyed(
    place: CheckpointPlace,
    progress: Callable[[VerifyProgress], None] | None,
    validator: Validator | None,
    *,
    verify: bool,
) -> Survey:
    """Look at every checkpoint there; to ``verify`` is to read all bytes that are not known to be whole."""
    try:
        with patience(place.directory):
            room = CheckpointRoom(
                place.directory, step_pattern(place.pattern), run_directory=place.run_directory or None,
                progress=progress,
                validator=validator,
            )  # fmt: skip
            found = room.survey(Depth.ALL if verify else Depth.STRUCTURE)
        record = load_record(place.run_directory) if place.run_directory else RequestRecord()
    except BadPattern as error:
        raise UserError("usage", str(error)) from error
    except StorageUnreadable as error:
        raise UserError("storage", str(error), "see whether the file system answers", UNKNOWN) from error
    hopeful = [replace(one, valid=True) if unread(one) else one for one in found]
    choice = choose(hopeful, ResumeRequest(), journal_best_step=place.best_step, ignored=record.ignored)
    chosen = choice.checkpoint if isinstance(choice, Chosen) else None
    return Survey(place, tuple(found), chosen, choice.reason, verify)


def unread(one: Candidate) -> bool:
    """Whole by its structure, and nobody has read its bytes yet: a run would, before it resumes from it."""
    return one.committed and one.level is not None and not one.judged and not one.valid


def place_of(where: str | None, pattern: str | None, validator: str | None, runs_dir: str | None) -> CheckpointPlace:
    """The directory that ``where`` means, or that of the run that it means."""
    place = _directory(where, pattern) or _of_run(where, pattern, runs_dir)
    if validator is None and place.run:
        return place  # else the flag's, else the one that is configured here
    flags = {} if validator is None else {"validator": validator}
    settings = layered(flags, environment.all_variables(), usual_files())
    argv, within_s = settings["validator"].value, settings["validator_timeout"].value
    return replace(place, validator=argv, validator_within_s=within_s, working_directory=None)


def _directory(where: str | None, pattern: str | None) -> CheckpointPlace | None:
    if where is not None and _is_checkpoint_directory(where):
        if is_checkpoint(where):
            above = os.path.dirname(os.path.abspath(where))
            raise UserError("no checkpoints", f"{where} is a checkpoint itself", f"gangrun checkpoints {above}")
        return CheckpointPlace(os.path.abspath(where), pattern or DEFAULT_PATTERN)
    if where is not None and os.sep in where and not os.path.exists(where):
        hint = "gangrun status --all lists the runs"
        raise UserError("no checkpoints", f"{where} is neither a directory nor a run", hint, NO_SUCH_RUN)
    return None


def _of_run(where: str | None, pattern: str | None, runs_dir: str | None) -> CheckpointPlace:
    reading = read(find(where, runs_dir))
    asked = reading.spec.checkpoint
    if not asked.directory:
        hint = "name the directory: gangrun checkpoints DIR (the run was started without --checkpoint-dir)"
        raise UserError("no checkpoints", f"{reading.spec.run} has no checkpoint directory that gangrun knows of", hint)
    state = reading.state
    best, in_memory = (state.best_step, memory_step(reading, state)) if state else (-1, None)
    return CheckpointPlace(
        asked.directory, pattern or asked.pattern, reading.spec.run, str(reading.paths.root), best, in_memory,
        asked.validator, asked.validator_within_s, reading.spec.working_directory,
    )  # fmt: skip


def _is_checkpoint_directory(where: str) -> bool:
    """A directory that is no run's; a bare word may be a run's name, so a directory here must not hide a run."""
    try:
        path = Path(where)
        is_run = (path / MACHINE_DIR / "spec.json").exists()
        return bool(where) and path.is_dir() and not is_run
    except (OSError, ValueError):
        return False


def as_json(survey: Survey) -> dict[str, Any]:
    """For ``gangrun checkpoints --json``."""
    place, chosen = survey.place, survey.chosen
    resume_from = chosen and {"step": chosen.step, "path": chosen.path, "level": chosen.level.value}
    return {
        "schema": SCHEMA,
        "directory": place.directory,
        "run": place.run or None,
        "verified": survey.verified,
        "memory_step": place.memory_step,
        "resume_from": resume_from,
        "reason": survey.reason,
        "checkpoints": [_one_as_json(one) for one in survey.found],
    }


def _one_as_json(one: Candidate) -> dict[str, Any]:
    found = measure(one.path)
    return {
        "step": one.step,
        "level": one.level.value if one.level else None,
        "valid": None if unread(one) else one.valid,
        "why_not": one.why_not,
        "kind": one.kind.value,
        "committed": one.committed,
        "tier": DISK,
        "size_bytes": found.size_bytes,
        "shared_bytes": found.shared_bytes,
        "changed": found.changed,
        "path": one.path,
    }


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """Of a checkpoint directory; None where it does not say. ``shared_bytes``: in files that others hold too."""

    size_bytes: int | None = None
    changed: float | None = None  # when the newest file in it was written
    shared_bytes: int | None = None


def measure(path: str) -> DirectoryFacts:
    """What its files' entries tell."""
    try:
        facts = [
            entry.stat(follow_symlinks=False) for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)
        ]
        own = os.lstat(path)
    except OSError:
        return DirectoryFacts()
    shared_bytes = sum(fact.st_size for fact in facts if fact.st_nlink > 1)
    changed = max((fact.st_mtime for fact in facts), default=own.st_mtime)
    return DirectoryFacts(sum(fact.st_size for fact in facts), changed, shared_bytes)
