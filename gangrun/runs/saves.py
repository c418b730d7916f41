"""How a run's saves go, as its checkpointer tells.

That file system need not be the run directory's and may stand still: it gets little time, and then nothing is known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from gangrun.display.text import clean
from gangrun.display.times import ago_words
from gangrun.runs.snapshot import patience
from gangrun.wire.saves import NAME, SIZE_BYTES, SavesTold, decode

_WITHIN_S = 10.0
_silent: set[str] = set()  # asked once and did not answer: a hundred runs may save there


def read_saves(directory: str, run: str) -> SavesTold | None:
    """The newest news; None where there is none, or where the directory does not answer."""
    if not directory or directory in _silent:
        return None
    found: list[SavesTold | None] = []
    path = os.path.join(directory, ".gangrun", run.replace("/", "_"), NAME)
    reader = threading.Thread(target=lambda: found.append(_read(path)), name="saves", daemon=True)
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


def as_json(told: SavesTold | None) -> dict[str, Any] | None:
    """As ``status --json`` has it."""
    if told is None:
        return None
    failed = {"step": told.failed_step, "at": told.at, "why": told.failed_why, "in_a_row": told.failures_count}
    return {
        "attempt": told.attempt,
        "interval_s": told.interval_s,
        "interval_reason": told.interval_reason,
        "saved_step": told.saved_step if told.saved_step >= 0 else None,
        "saved_at": told.saved_at or None,
        "persist_s": told.persist_s or None,
        "failed": failed if told.failures_count else None,
    }


def failure_words(saves: Mapping[str, Any] | None, now: float) -> str:
    """What to warn of; "" while saves succeed."""
    if saves is None or saves["failed"] is None:
        return ""
    failed = saves["failed"]
    row = f" ({failed['in_a_row']} saves in a row failed)" if failed["in_a_row"] > 1 else ""
    return f"the newest save failed {ago_words(failed['at'], now)}: {clean(failed['why'])}{row}"


def interval_words(saves: Mapping[str, Any]) -> str:
    """How often is saved, and why."""
    return clean(saves["interval_reason"])
