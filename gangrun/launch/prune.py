"""Removing run directories of runs that are over: logs, journal, keys. Checkpoints are never touched.

A run whose checkpoints lie inside its run directory is kept, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry, remove_run
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths
from gangrun.display.times import ago_words
from gangrun.errors import UserError
from gangrun.runs.liveness import RunLiveness, liveness_of
from gangrun.runs.locate import entries_of, find, index_of
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import wall_now

ABANDONED_FOR_S = 14 * 86400.0
UNKNOWN_OWNER_FOR_S = 30 * 86400.0  # held from another host, which cannot be asked from here


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """One run directory, and why it is removed or kept."""

    run: str
    name: str
    path: str
    why: str
    size_bytes: int = 0


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``prune --json`` prints; with ``dry_run`` nothing is removed."""

    schema: int = SCHEMA
    dry_run: bool
    removed: tuple[Removal, ...]
    kept: tuple[Removal, ...]


def candidates(tokens: tuple[str, ...], runs_dir: str | None, age_s: float, keep: int, *, dry_run: bool) -> PruneReport:
    """Each run that was named, or every known one but the ``keep`` newest, and whether it is to be removed.

    A name that fits no run stops all before anything is removed.
    """
    if tokens:
        named = dict.fromkeys(find(token, runs_dir, steering=True) for token in tokens)
        judged = [_judge(one, one.root.name, "", age_s) for one in named]
    else:
        entries: tuple[IndexEntry, ...] = entries_of(runs_dir)
        judged = [_judge(RunPaths(Path(entry.path)), entry.run, entry.name, age_s) for entry in entries[keep:]]
    removed, kept = (tuple(one for goes, one in judged if goes is wanted) for wanted in (True, False))
    return PruneReport(dry_run=dry_run, removed=removed, kept=kept)


def _judge(paths: RunPaths, run: str, name: str, age_s: float) -> tuple[bool, Removal]:
    """Whether it is to be removed, and why."""
    path = str(paths.root)
    try:
        reading = read(paths, scheduler=True)
    except (UserError, OSError) as error:
        words = error.message if isinstance(error, UserError) else str(error)
        why = f"it cannot be read, so it may not have ended: {words}"
        return False, Removal(run=run, name=name, path=path, why=why)
    goes, why = _is_over(reading, wall_now(), age_s)
    if goes and _holds_checkpoints(reading):
        goes, why = False, "its checkpoints lie in its run directory"
    size_bytes = _size_bytes(paths.root) if goes else 0
    return goes, Removal(run=run, name=reading.spec.name, path=path, why=why, size_bytes=size_bytes)


def _is_over(reading: RunSnapshot, now: float, age_s: float) -> tuple[bool, str]:
    last = reading.last_sign() or reading.spec.created_wall
    quiet_s, when = max(0.0, now - last), ago_words(last, now)  # a clock that was set back must not make it negative
    match liveness_of(reading, now):
        case RunLiveness.ENDED:
            word = reading.state.phase.value if reading.state is not None else ""
            return quiet_s >= age_s, f"{word}, {when}" if quiet_s >= age_s else f"{word}, only {when}"
        case RunLiveness.ALIVE:
            return False, "it is running"
        case RunLiveness.QUEUED:
            return False, "it has a job in the queue"
        case RunLiveness.ABANDONED:
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
    if reading.state is not None and reading.state.checkpoints.newest is not None:
        named.append(reading.state.checkpoints.newest.path)
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


def remove(going: Iterable[Removal], runs_dir: str | None) -> None:
    """Remove these run directories."""
    disk, index = Disk(), index_of(runs_dir)
    for one in going:
        try:
            remove_run(disk, Path(one.path))
        except RunDirError as error:
            raise UserError("run directory", error.message, error.hint) from error
        index.remove(one.run)
    index.forget_stale()


def sweep_memory() -> str:
    """Remove what killed runs left in this machine's memory; one sentence, or ""."""
    from gangrun.agent.ranks.environment import shared_memory_root, sweep

    root = shared_memory_root()
    swept = sweep(root)
    return f"removed from {root} the files left by {', '.join(swept)}" if swept else ""
