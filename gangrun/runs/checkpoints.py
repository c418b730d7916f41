"""The checkpoints of a run or of a directory: which are valid, and which one would be resumed from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gangrun.adapters.fs.run_dir import MACHINE_DIR
from gangrun.checkpoint.records import RequestRecord, load_record
from gangrun.checkpoint.scan import DEFAULT_PATTERN, BadPattern, Naming, StorageUnreadable, is_checkpoint, naming_of
from gangrun.checkpoint.store import CheckpointRoom, Depth, VerifyProgress
from gangrun.checkpoint.validator_verdict import Validator
from gangrun.config import environment
from gangrun.config.layers import layered, usual_files
from gangrun.core.checkpoints.resume import Candidate, Chosen, Kind, ResumeRequest, choose
from gangrun.core.text import step_or_none
from gangrun.errors import UNKNOWN, UserError
from gangrun.runs.locate import find
from gangrun.runs.snapshot import patience, read
from gangrun.runs.status import SCHEMA, memory_step
from gangrun.wire.spec import CheckpointSpec

COPIES_MAX_COUNT = 99  # that are looked for beside a file which no run names


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
    file: str = ""  # in it, the one that is overwritten with each save
    copies_count: int = COPIES_MAX_COUNT
    framework: str = ""

    @property
    def naming(self) -> Naming:
        """How its checkpoints are named; raises ``BadPattern``."""
        asked = CheckpointSpec(
            pattern=self.pattern, file=self.file, copies_count=self.copies_count, framework=self.framework
        )
        return naming_of(asked)


class ResumeCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that a run would resume from. ``step`` is null where a file tells none."""

    step: int | None
    path: str
    level: str


class ListedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint; what it does not show is null."""

    step: int | None
    level: str | None
    valid: bool | None  # None: whole by its structure, and its bytes are not verified yet
    why_not: str
    kind: str
    committed: bool
    tier: str
    size_bytes: int | None
    shared_bytes: int | None  # in files that another checkpoint holds too
    changed: float | None  # when the newest file in it was written
    path: str


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """What ``checkpoints`` shows of a directory, newest first; ``resume_from`` is null if a run would begin anew."""

    schema: int = SCHEMA
    directory: str
    run: str | None
    verified: bool
    memory_step: int | None
    resume_from: ResumeCandidate | None
    reason: str
    checkpoints: tuple[ListedCheckpoint, ...]

    @property
    def newest_is_valid(self) -> bool:
        """Is the newest committed checkpoint valid?"""
        return next((bool(one.valid) for one in self.checkpoints if one.committed), False)


def surveyed(
    place: CheckpointPlace,
    progress: Callable[[VerifyProgress], None] | None,
    validator: Validator | None,
    *,
    verify: bool,
) -> CheckpointList:
    """Look at every checkpoint there; to ``verify`` is to read all bytes that are not known to be whole."""
    try:
        with patience(place.directory):
            room = CheckpointRoom(
                place.directory, place.naming, run_directory=place.run_directory or None,
                progress=progress,
                validator=validator,
            )  # fmt: skip
            found = room.survey(Depth.ALL if verify else Depth.STRUCTURE)
        record = load_record(place.run_directory) if place.run_directory else RequestRecord()
    except BadPattern as error:
        raise UserError("usage", str(error)) from error
    except StorageUnreadable as error:
        raise UserError("storage", str(error), "check that the file system responds", UNKNOWN) from error
    hopeful = [replace(one, valid=True) if _is_unread(one) else one for one in found]
    choice = choose(
        hopeful, ResumeRequest(), journal_best_step=place.best_step, ignored=record.ignored, unjudged=room.unjudged()
    )
    ref = choice.checkpoint if isinstance(choice, Chosen) else None
    chosen = None if ref is None else ResumeCandidate(step=step_or_none(ref.step), path=ref.path, level=ref.level.value)
    return CheckpointList(
        directory=place.directory, run=place.run or None, verified=verify, memory_step=place.memory_step,
        resume_from=chosen, reason=choice.reason, checkpoints=tuple(map(_listed, found)),
    )  # fmt: skip


def _is_unread(one: Candidate) -> bool:
    """Whole by its structure, with bytes that are not verified yet: a run verifies them before it resumes."""
    return one.committed and one.level is not None and not one.judged and not one.valid


def place_of(
    where: str | None, pattern: str | None, validator: str | None, runs_dir: str | None, framework: str | None = None
) -> CheckpointPlace:
    """The directory that ``where`` means, or that of the run that it means."""
    place = _directory(where, pattern) or _of_run(where, pattern, runs_dir)
    if framework is not None:
        place = replace(place, framework=layered({"framework": framework}, {}, ())["framework"].value)
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
            raise UserError(
                "no checkpoints",
                f"{where} is itself a checkpoint",
                f"list the directory that holds it: gangrun checkpoints {above}",
            )
        return CheckpointPlace(os.path.abspath(where), pattern or DEFAULT_PATTERN)
    if where is not None and os.path.isfile(where):
        folder, name = os.path.split(os.path.abspath(where))
        return CheckpointPlace(folder, DEFAULT_PATTERN, file=name)
    return None


def _of_run(where: str | None, pattern: str | None, runs_dir: str | None) -> CheckpointPlace:
    try:
        reading = read(find(where, runs_dir))
    except UserError as error:
        if error.kind != "no such run" or where is None:
            raise
        words = f"{where} is neither a directory nor a run"
        raise UserError(error.kind, words, error.hint, error.code) from error
    asked = reading.spec.checkpoint
    if not asked.directory:
        hint = "name the directory: gangrun checkpoints DIR (the run was started without --checkpoint-dir)"
        raise UserError("no checkpoints", f"{reading.spec.run} has no checkpoint directory", hint)
    state = reading.state
    best, in_memory = (state.checkpoints.best_step, memory_step(reading, state)) if state else (-1, None)
    return CheckpointPlace(
        asked.directory, pattern or asked.pattern, reading.spec.run, str(reading.paths.root), best, in_memory,
        asked.validator, asked.validator_within_s, reading.spec.working_directory, asked.file, asked.copies_count,
        asked.framework,
    )  # fmt: skip


def _is_checkpoint_directory(where: str) -> bool:
    """A directory that is no run's; a bare word may be a run's name, so a directory here must not hide a run."""
    try:
        path = Path(where)
        is_run = (path / MACHINE_DIR / "spec.json").exists()
        return bool(where) and path.is_dir() and not is_run
    except (OSError, ValueError):
        return False


def _listed(one: Candidate) -> ListedCheckpoint:
    size_bytes: int | None = None
    shared_bytes: int | None = None
    changed: float | None = None
    try:
        if one.kind is Kind.FILE or not os.path.isdir(one.path):
            facts = [os.lstat(one.path)]
        else:
            with os.scandir(one.path) as entries:
                facts = [entry.stat(follow_symlinks=False) for entry in entries if entry.is_file(follow_symlinks=False)]
        changed = max((fact.st_mtime for fact in facts), default=os.lstat(one.path).st_mtime)
        size_bytes = sum(fact.st_size for fact in facts)
        shared_bytes = sum(fact.st_size for fact in facts if fact.st_nlink > 1)
    except OSError:
        pass  # it was removed just now, or may not be read
    return ListedCheckpoint(
        step=step_or_none(one.step), level=one.level.value if one.level else None,
        valid=None if _is_unread(one) else one.valid, why_not=one.why_not, kind=one.kind.value,
        committed=one.committed, tier="disk", size_bytes=size_bytes, shared_bytes=shared_bytes, changed=changed,
        path=one.path,
    )  # fmt: skip
