"""``gangrun prune``: remove run directories of runs that are over. Checkpoints are never touched.

What is removed: logs, journal, keys of a run that has ended, or that nobody has held for long. A run whose checkpoints
lie inside its run directory is kept, whatever is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry, remove_run
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths
from gangrun.cli.options import TIME, asks, json_option, runs_dir_option
from gangrun.display.text import clean, echo_json, size_words, table, width
from gangrun.display.times import ago_words
from gangrun.errors import DONE, UNKNOWN, UserError
from gangrun.runs.liveness import Liveness, liveness_of
from gangrun.runs.locate import entries_of, find, index_of
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import wall_now

OLDER_THAN_S = 14 * 86400.0
ABANDONED_FOR_S = 14 * 86400.0
UNKNOWN_OWNER_FOR_S = 30 * 86400.0  # held from another host, which cannot be asked from here


@dataclass(frozen=True, slots=True)
class Verdict:
    """One run, whether it goes, and why."""

    run: str
    name: str
    path: Path
    goes: bool
    why: str
    size_bytes: int = 0


@click.command("prune")
@click.argument("runs", nargs=-1, metavar="[RUN...]")
@click.option("--older-than", type=TIME, help="Remove runs that ended longer ago than TIME (default 14d).")
@click.option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the N newest runs (default 0).")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@runs_dir_option
def prune(
    runs: tuple[str, ...],
    older_than: float | None,
    keep: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    runs_dir: str | None,
) -> int:
    """Remove run directories of runs that are over: logs, journal and keys. Checkpoints are never touched.

    With RUN only those, however new; without, all that ended more than --older-than ago. A run that is alive, or may
    be, is never removed.
    """
    age_s = older_than if older_than is not None else 0.0 if runs else OLDER_THAN_S
    verdicts = _named(runs, runs_dir, age_s) if runs else _old(runs_dir, age_s, keep)
    going = [one for one in verdicts if one.goes]
    if not as_json:
        _list(verdicts, named=bool(runs))
    if going and not dry_run:
        _ask(len(going), yes=yes)
        _remove(going, runs_dir)
    if not dry_run:
        _sweep_memory()
    if as_json:
        echo_json(_as_json(verdicts, dry_run=dry_run))
    elif going and not dry_run:
        click.echo(f"removed {len(going)} run{'' if len(going) == 1 else 's'}")
    refused = bool(runs) and len(going) < len(verdicts)
    return UNKNOWN if refused else DONE


def _named(tokens: tuple[str, ...], runs_dir: str | None, age_s: float) -> list[Verdict]:
    """What the user named; a name that fits nothing stops all before anything is removed."""
    paths = dict.fromkeys(find(token, runs_dir, steering=True) for token in tokens)
    return [_judge(one, one.root.name, "", age_s) for one in paths]


def _old(runs_dir: str | None, age_s: float, keep: int) -> list[Verdict]:
    entries: tuple[IndexEntry, ...] = entries_of(runs_dir)
    return [_judge(RunPaths(Path(entry.path)), entry.run, entry.name, age_s) for entry in entries[keep:]]


def _judge(paths: RunPaths, run: str, name: str, age_s: float) -> Verdict:
    try:
        reading = read(paths, slurm=True)
    except (UserError, OSError) as error:
        words = error.message if isinstance(error, UserError) else str(error)
        return Verdict(
            run, name, paths.root, goes=False, why=f"it cannot be read, so nobody knows whether it is over: {words}"
        )
    goes, why = _is_over(reading, wall_now(), age_s)
    if goes and _holds_checkpoints(reading):
        goes, why = False, "its checkpoints lie in its run directory"
    size_bytes = _size_bytes(paths.root) if goes else 0
    return Verdict(run, reading.spec.name, paths.root, goes, why, size_bytes)


def _is_over(reading: RunSnapshot, now: float, age_s: float) -> tuple[bool, str]:
    last = reading.last_sign() or reading.spec.created_wall
    quiet_s, when = max(0.0, now - last), ago_words(last, now)  # a clock that was set back must not make it negative
    match liveness_of(reading, now):
        case Liveness.ENDED:
            word = reading.state.phase.value if reading.state is not None else ""
            return quiet_s >= age_s, f"{word}, {when}" if quiet_s >= age_s else f"{word}, only {when}"
        case Liveness.ALIVE:
            return False, "it is running"
        case Liveness.QUEUED:
            return False, "a job of it waits in the queue"
        case Liveness.ABANDONED:
            whose, bound_s = "abandoned", ABANDONED_FOR_S
        case _:
            whose, bound_s = "held on another host", UNKNOWN_OWNER_FOR_S
    if quiet_s < max(age_s, bound_s):
        return False, f"it has not ended ({whose}, last sign {when})"
    return True, f"abandoned, last sign {when}"


def _holds_checkpoints(reading: RunSnapshot) -> bool:
    """Anything of the user's that would go with the directory: the one place where checkpoints could be lost."""
    root = reading.paths.root.resolve()
    named = [reading.spec.checkpoint.directory]
    if reading.state is not None and reading.state.checkpoint is not None:
        named.append(reading.state.checkpoint.path)
    for directory in named:
        if directory and (Path(directory).resolve() == root or root in Path(directory).resolve().parents):
            return True
    return False


def _size_bytes(root: Path) -> int:
    total = 0
    for path in root.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total


def _list(verdicts: list[Verdict], *, named: bool) -> None:
    going = [one for one in verdicts if one.goes]
    rows = [(clean(one.run), clean(one.name), size_words(one.size_bytes), clean(one.why)) for one in going]
    if rows:
        click.echo("\n".join(table(("run", "name", "size", "why"), rows, width(), "")))
    else:
        click.echo("nothing to remove")
    kept = [one for one in verdicts if not one.goes]
    for one in kept if named else []:
        click.echo(f"kept {clean(one.run)}: {clean(one.why)}")
    if kept and not named:
        click.echo(f"kept {len(kept)} that are newer, not over, or cannot be read")


def _ask(count: int, *, yes: bool) -> None:
    if yes:
        return
    if not asks():
        raise UserError("usage", "nothing was removed: there is nobody here to ask", "-y removes without asking")
    click.confirm(f"Remove {count} run director{'y' if count == 1 else 'ies'}?", abort=True, err=True)


def _remove(going: list[Verdict], runs_dir: str | None) -> None:
    disk, index = Disk(), index_of(runs_dir)
    for one in going:
        try:
            remove_run(disk, one.path)
        except RunDirError as error:
            raise UserError("run directory", error.message, error.hint) from error
        index.remove(one.run)
    index.forget_stale()


def _sweep_memory() -> None:
    """What runs whose processes were all killed at once left in this machine's memory."""
    from gangrun.agent.ranks.environment import shared_memory_root, sweep

    root = shared_memory_root()
    if swept := sweep(root):
        click.echo(f"removed from {root} what was left there by {', '.join(map(clean, swept))}", err=True)


def _as_json(verdicts: list[Verdict], *, dry_run: bool) -> dict[str, Any]:
    def listed(*, goes: bool) -> list[dict[str, Any]]:
        return [
            {"run": one.run, "name": one.name, "path": str(one.path), "why": one.why, "size_bytes": one.size_bytes}
            for one in verdicts
            if one.goes is goes
        ]

    return {"schema": SCHEMA, "dry_run": dry_run, "removed": listed(goes=True), "kept": listed(goes=False)}
