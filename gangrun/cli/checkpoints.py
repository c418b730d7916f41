"""``gangrun checkpoints``: which checkpoints are valid, and why the others are not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from gangrun.adapters.fs.run_dir import MACHINE_DIR
from gangrun.adapters.local.validator import validator_of
from gangrun.checkpoint.records import RequestRecord, load_record
from gangrun.checkpoint.scan import DEFAULT_PATTERN, BadPattern, StorageUnreadable, is_checkpoint, step_pattern
from gangrun.checkpoint.store import CheckpointRoom, Depth, VerifyProgress
from gangrun.cli.options import json_option, runs_dir_option
from gangrun.config import environment
from gangrun.config.layers import layered, usual_files
from gangrun.core.checkpoints.resume import Candidate, Chosen, FromZero, Kind, NoneValid, ResumeRequest, choose
from gangrun.display.status_page import Look, look_now
from gangrun.display.text import clean, echo_json, size_words, styled, table, wrapped
from gangrun.display.times import ago_words
from gangrun.errors import DONE, NO_SUCH_RUN, RUN_FAILED, UNKNOWN, UserError
from gangrun.runs.locate import find
from gangrun.runs.snapshot import patience, read
from gangrun.runs.status import SCHEMA, memory_step

DISK, MEMORY = "disk", "memory"
IN_MEMORY_ONLY = "on the nodes themselves; brought to the disk when ranks or an agent die"
_HEAD = ("step", "valid", "level", "tier", "size", "shared", "changed", "directory", "why")


@dataclass(frozen=True, slots=True)
class Place:
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


@click.command("checkpoints")
@click.argument("where", required=False, metavar="[DIR|RUN]")
@click.option(
    "--verify", is_flag=True, help="Read every byte that is not known to be whole; exit 1 if the newest is not."
)
@click.option("--checkpoint-pattern", metavar="REGEX", help="Names of checkpoint directories; the group is the step.")
@click.option("--validator", metavar="COMMAND", help="With --verify: a command of yours judges too (0 valid, 1 not).")
@json_option
@runs_dir_option
def checkpoints(
    where: str | None,
    verify: bool,
    checkpoint_pattern: str | None,
    validator: str | None,
    as_json: bool,
    runs_dir: str | None,
) -> int:
    r"""Which checkpoints are there, newest first: valid or not, why not, and which one would be resumed from.

    DIR is a directory of checkpoints; RUN is a run, whose own directory is looked at. Without --verify no data is read:
    "complete" is what the structure shows, "verified" what was proven before and has not changed since.
    """
    place = _with_validator(_place(where, checkpoint_pattern, runs_dir), validator)
    try:
        pattern = step_pattern(place.pattern)
    except BadPattern as error:
        raise UserError("usage", str(error)) from error
    try:
        with patience(place.directory), _progress(shown=verify) as progress:
            room = CheckpointRoom(
                place.directory, pattern, run_directory=place.run_directory or None, progress=progress,
                validator=validator_of(
                    place.validator, place.validator_within_s, environment.all_variables(), place.working_directory
                ),
            )  # fmt: skip
            found = room.survey(Depth.ALL if verify else Depth.STRUCTURE)
        record = load_record(place.run_directory) if place.run_directory else RequestRecord()
    except StorageUnreadable as error:
        raise UserError("storage", str(error), "", UNKNOWN) from error
    hopeful = [replace(one, valid=True) if _unread(one) else one for one in found]
    choice = choose(hopeful, ResumeRequest(), journal_best_step=place.best_step, ignored=record.ignored)
    look = look_now()
    if as_json:
        echo_json(_as_json(place, found, choice, verify=verify))
    else:
        click.echo("\n".join(page(place, found, choice, look)))
    if not verify:
        return DONE
    newest = next((one for one in found if one.committed), None)
    return DONE if newest is not None and newest.valid else RUN_FAILED


def _unread(one: Candidate) -> bool:
    """Whole by its structure, and nobody has read its bytes yet: a run would, before it resumes from it."""
    return one.committed and one.level is not None and not one.judged and not one.valid


def _place(where: str | None, pattern: str | None, runs_dir: str | None) -> Place:
    if where is not None and _is_checkpoint_directory(where):
        if is_checkpoint(where):
            above = clean(os.path.dirname(os.path.abspath(where)))
            raise UserError("no checkpoints", f"{clean(where)} is a checkpoint itself", f"gangrun checkpoints {above}")
        return Place(os.path.abspath(where), pattern or DEFAULT_PATTERN)
    if where is not None and os.sep in where and not os.path.exists(where):
        raise UserError("no checkpoints", f"{where} is neither a directory nor a run", "", NO_SUCH_RUN)
    reading = read(find(where, runs_dir))
    asked = reading.spec.checkpoint
    if not asked.directory:
        hint = "name the directory: gangrun checkpoints DIR (the run was started without --checkpoint-dir)"
        raise UserError("no checkpoints", f"{reading.spec.run} has no checkpoint directory that gangrun knows of", hint)
    state = reading.state
    best, in_memory = (state.best_step, memory_step(reading, state)) if state else (-1, None)
    return Place(
        asked.directory, pattern or asked.pattern, reading.spec.run, str(reading.paths.root), best, in_memory,
        asked.validator, asked.validator_within_s, reading.spec.working_directory,
    )  # fmt: skip


def _with_validator(place: Place, validator: str | None) -> Place:
    """The flag's, else the run's, else the one that is configured here."""
    if validator is None and place.run:
        return place
    flags = {} if validator is None else {"validator": validator}
    found = layered(flags, environment.all_variables(), usual_files())
    argv, within_s = found["validator"].value, found["validator_timeout"].value
    return replace(place, validator=argv, validator_within_s=within_s, working_directory=None)


def _is_checkpoint_directory(where: str) -> bool:
    """A directory that is no run's; a bare word may be a run's name, so a directory here must not hide a run."""
    try:
        path = Path(where)
        is_run = (path / MACHINE_DIR / "spec.json").exists()
        return bool(where) and path.is_dir() and not is_run
    except (OSError, ValueError):
        return False


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[VerifyProgress], None] | None]:
    """A bar on a terminal that may have one; nothing elsewhere."""
    if not (shown and sys.stderr.isatty() and look_now().color):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("step {task.fields[step]}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def progress(one: VerifyProgress) -> None:
            if one.path not in tasks:
                tasks[one.path] = bars.add_task("", total=one.total_bytes, step=one.step)
            bars.update(tasks[one.path], completed=one.done_bytes)

        yield progress


def _as_json(place: Place, found: Sequence[Candidate], choice: object, *, verify: bool) -> dict[str, Any]:
    chosen = choice.checkpoint if isinstance(choice, Chosen) else None
    return {
        "schema": SCHEMA,
        "directory": place.directory,
        "run": place.run or None,
        "verified": verify,
        "memory_step": place.memory_step,
        "resume_from": None
        if chosen is None
        else {"step": chosen.step, "path": chosen.path, "level": chosen.level.value},
        "reason": choice.reason if isinstance(choice, Chosen | FromZero | NoneValid) else "",
        "checkpoints": [_one_as_json(one) for one in found],
    }


def _one_as_json(one: Candidate) -> dict[str, Any]:
    found = measure(one.path)
    return {
        "step": one.step,
        "level": one.level.value if one.level else None,
        "valid": None if _unread(one) else one.valid,
        "why_not": one.why_not,
        "kind": one.kind.value,
        "committed": one.committed,
        "tier": DISK,
        "size_bytes": found.size_bytes,
        "shared_bytes": found.shared_bytes,
        "changed": found.changed,
        "path": one.path,
    }


def page(place: Place, found: Sequence[Candidate], choice: object, look: Look) -> list[str]:
    """The table, and what would be resumed from."""
    lines = [f"{clean(place.directory)}{'  (of run ' + clean(place.run) + ')' if place.run else ''}"]
    rows = _rows(place.memory_step, found, look)
    if not rows:
        lines.append("  no checkpoints here")
    else:
        lines += ["", *table(_HEAD, rows, look.columns)]
        lines[2] = styled(lines[2], "dim", look.color)
    reason = choice.reason if isinstance(choice, Chosen | FromZero | NoneValid) else ""
    return [*lines, "", *wrapped(f"a run would go on like this: {clean(reason)}", look.columns, "  ")]


def _rows(memory_step: int | None, found: Sequence[Candidate], look: Look) -> list[tuple[str, ...]]:
    """What is on the disk, and before it what is in memory only: that is newer, or it would have been let go."""
    rows = [_row(one, look, DISK if one.step != memory_step else f"{DISK}, {MEMORY}") for one in found]
    if memory_step is not None and all(one.step != memory_step for one in found):
        rows.insert(0, (str(memory_step), "-", "-", MEMORY, "-", "-", "-", "-", IN_MEMORY_ONLY))
    return rows


def _row(one: Candidate, look: Look, tier: str) -> tuple[str, ...]:
    found = measure(one.path)
    return (
        str(one.step),
        _validity(one),
        one.level.value if one.level else ("?" if one.kind is Kind.UNKNOWN else "-"),
        tier,
        "?" if found.size_bytes is None else size_words(found.size_bytes),
        f"{100 * found.shared_bytes / found.size_bytes:.0f} %" if found.size_bytes and found.shared_bytes else "-",
        "?" if found.changed is None else ago_words(found.changed, look.now),
        clean(os.path.basename(one.path)),
        clean(one.why_not),
    )


def _validity(one: Candidate) -> str:
    if _unread(one):
        return "unread"
    return "yes" if one.valid else ("no" if one.committed else "unfinished")


@dataclass(frozen=True, slots=True)
class Measure:
    """Of a checkpoint directory; None where it does not say. ``shared_bytes``: in files that others hold too."""

    size_bytes: int | None = None
    changed: float | None = None  # when the newest file in it was written
    shared_bytes: int | None = None


def measure(path: str) -> Measure:
    """What its files' entries tell."""
    try:
        facts = [
            entry.stat(follow_symlinks=False) for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)
        ]
        own = os.lstat(path)
    except OSError:
        return Measure()
    shared_bytes = sum(fact.st_size for fact in facts if fact.st_nlink > 1)
    changed = max((fact.st_mtime for fact in facts), default=own.st_mtime)
    return Measure(sum(fact.st_size for fact in facts), changed, shared_bytes)
