"""One Checkpointer of this process at a time saves to a directory.

A second one would sweep away what the first is writing. One that was dropped without ``close()`` writes what it has
begun, in the background; who comes next waits for that.
"""

from __future__ import annotations

import weakref

from gangrun.training import step as progress
from gangrun.training.save.saver import Saver

WAIT_S = 30.0
_SAVERS: weakref.WeakValueDictionary[str, Saver] = weakref.WeakValueDictionary()  # the newest of each directory


def taken(directory: str, owner: object, saver: Saver) -> None:
    """``owner`` saves there by ``saver`` until that is closed, or the owner is gone."""
    _SAVERS[directory] = saver
    weakref.finalize(owner, saver.release).atexit = False  # what is under way at the process's end is waited for


def refused(directory: str) -> ValueError | None:
    """Why nobody else can save there now; waits for what is only being finished."""
    before = _SAVERS.get(directory)
    if before is None:
        return None
    if not before.released:
        return ValueError(
            f"another Checkpointer of this process saves to {directory}: close() it first, or give this one another "
            "directory"
        )
    with progress.saving():
        if before.ended(WAIT_S):
            return None
    return ValueError(
        f"an earlier Checkpointer of this process still writes to {directory}, and has not come to its end for "
        f"{WAIT_S:.0f} s: give this one another directory"
    )
