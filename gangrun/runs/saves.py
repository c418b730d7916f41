"""How a run's saves go, as its checkpointer tells.

That file system need not be the run directory's and may stand still: it gets little time, and then nothing is known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

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


T = TypeVar("T")
CLOCKS_DIFFER_S = 30.0  # between this host, the hosts of the run and the file server
_WITHIN_S = 10.0
_silent: set[str] = set()  # asked once and did not answer: a hundred runs may save there


def read_saves(directory: str, run: str) -> SavesTold | None:
    """The newest news; None where there is none, or where the directory does not answer."""
    path = os.path.join(directory, ".gangrun", run.replace("/", "_"), NAME)
    return _in_time(directory, lambda: _read(path))


def newest_on_disk(asked: CheckpointSpec, began: float, ended: float) -> tuple[int, str, float] | None:
    """Step, path and time of the newest committed checkpoint that was written between these times, if there is one.

    No two runs save to one directory at once, so a run that has ended wrote it. A supervisor looks every half minute
    and need not have seen the last one.
    """
    from gangrun.checkpoint import scan  # not for a live run

    def look() -> tuple[int, str, float] | None:
        try:
            for one in scan.steps_newest_first(asked.directory, scan.naming_of(asked)):
                at = os.stat(one.path).st_mtime
                if one.committed and not one.unreadable and began - CLOCKS_DIFFER_S <= at <= ended + CLOCKS_DIFFER_S:
                    return one.step, one.path, at
        except (OSError, scan.StorageUnreadable, scan.BadPattern):
            pass  # then what the journal says is all that is known
        return None

    return _in_time(asked.directory, look)


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
