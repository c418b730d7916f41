"""How a run's saves go, as its checkpointer tells.

That file system need not be the run directory's and may stand still: it gets little time, and then nothing is known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gangrun.core.evidence import StateFigures
from gangrun.runs.snapshot import patience
from gangrun.wire.saves import NAME, SIZE_BYTES, SavesTold, decode
from gangrun.wire.spec import CheckpointSpec


class FailedSave(msgspec.Struct, frozen=True, kw_only=True):
    """The newest save, if it failed; ``in_a_row``: how many failed since the last good one."""

    step: int
    at: float
    why: str
    in_a_row: int


class SavesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the run's ``gangrun.Checkpointer`` says that saving goes, as of the newest save that ended."""

    attempt: int
    interval_s: float
    interval_reason: str
    saved_step: int | None
    saved_at: float | None
    persist_s: float | None
    failed: FailedSave | None


if TYPE_CHECKING:
    from gangrun.checkpoint.scan import StepDirectory

T = TypeVar("T")
CLOCKS_DIFFER_S = 30.0  # between this host, the hosts of the run and the file server
_WITHIN_S = 10.0
_silent: set[str] = set()  # asked once and did not answer: a hundred runs may save there


def read_saves(directory: str, run: str) -> SavesTold | None:
    """The newest news; None where there is none, or where the directory does not answer."""
    path = os.path.join(directory, ".gangrun", run.replace("/", "_"), NAME)
    return _in_time(directory, lambda: _read(path))


def state_figures(directory: str, since_wall: float) -> StateFigures | None:
    """What a framework's own files there tell that were written since then."""
    from gangrun.checkpoint.state_files import StateFiles

    return _in_time(directory, lambda: StateFiles(directory).newest(since_wall))


class SavedOnDisk:
    """What checkpoint directories hold. Each is listed once, and each checkpoint's time is asked for once, however many
    runs saved there.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[str, str, str], list[tuple[int, os.DirEntry[str]]]] = {}
        self._times: dict[str, float] = {}

    def newest(self, asked: CheckpointSpec, began: float, ended: float) -> tuple[int, str, float] | None:
        """Step, path and time of the newest committed checkpoint that was written between these times, if there is one.

        No two runs save to one directory at once, so a run that has ended wrote it. A supervisor looks every half
        minute and need not have seen the last one.
        """
        from gangrun.checkpoint import scan  # not for a live run

        def look() -> tuple[int, str, float] | None:
            try:
                for one, at in self._written(asked, began - CLOCKS_DIFFER_S, ended + CLOCKS_DIFFER_S):
                    if one.committed and not one.unreadable:
                        return one.step, one.path, at
            except (OSError, scan.StorageUnreadable, scan.BadPattern):
                pass  # then what the journal says is all that is known
            return None

        return _in_time(asked.directory, look)

    def _written(self, asked: CheckpointSpec, since: float, until: float) -> Iterator[tuple[StepDirectory, float]]:
        """Checkpoints that changed last between these times, newest first; no other is looked into."""
        from gangrun.checkpoint import scan

        naming = scan.naming_of(asked)
        if isinstance(naming, scan.OneFile):
            for one in scan.steps_newest_first(asked.directory, naming):
                if since <= (at := os.stat(one.path).st_mtime) <= until:
                    yield one, at
            return
        key = asked.directory, asked.pattern, asked.framework
        if key not in self._named:
            self._named[key] = scan.named_newest_first(asked.directory, naming)
        for step, item in self._named[key]:
            if item.path not in self._times:
                self._times[item.path] = os.stat(item.path).st_mtime
            at = self._times[item.path]
            found = scan.look_at(step, item.path, naming, is_link=item.is_symlink()) if since <= at <= until else None
            if found is not None:
                yield found, at


def unjudged_on_disk(asked: CheckpointSpec) -> str:
    """What gangrun cannot judge in the checkpoint directory, in words; "" if nothing is there, or nobody can tell."""
    from gangrun.checkpoint import scan
    from gangrun.frameworks import layouts

    def look() -> str:
        try:
            return layouts.told(scan.strangers(asked.directory, scan.naming_of(asked)))
        except scan.BadPattern:
            return ""

    return _in_time(asked.directory, look) or ""


def nothing_in(directory: str) -> str:
    """Why no checkpoint can be in this directory, in words; "" if something is in it, or nobody can tell."""

    def look() -> str:
        try:
            with os.scandir(directory) as items:
                holds = any(not item.name.startswith(".") for item in items)
        except FileNotFoundError:
            return f"{directory} does not exist"
        except OSError as error:
            return f"{directory} cannot be listed ({error.strerror or error})"
        return "" if holds else f"{directory} is empty"

    return _in_time(directory, look) or ""


def _in_time(directory: str, look: Callable[[], T | None]) -> T | None:
    """What ``look`` finds there; None if the directory does not answer."""
    if not directory or directory in _silent:
        return None
    found: list[T | None] = []
    reader = threading.Thread(target=lambda: found.append(look()), name="saves", daemon=True)
    with patience(directory):
        reader.start()
        reader.join(_WITHIN_S)
    if not found:
        _silent.add(directory)
    return found[0] if found else None


def _read(path: str) -> SavesTold | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return decode(os.read(descriptor, SIZE_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def saves_status(directory: str, run: str) -> SavesStatus | None:
    """What the newest news tells; None if there is none."""
    told = read_saves(directory, run)
    if told is None:
        return None
    failed = FailedSave(step=told.failed_step, at=told.at, why=told.failed_why, in_a_row=told.failures_count)
    return SavesStatus(
        attempt=told.attempt,
        interval_s=told.interval_s,
        interval_reason=told.interval_reason,
        saved_step=told.saved_step if told.saved_step >= 0 else None,
        saved_at=told.saved_at or None,
        persist_s=told.persist_s or None,
        failed=failed if told.failures_count else None,
    )
