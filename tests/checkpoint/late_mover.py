"""A checkpoint room in a process of its own, that can be stopped in the middle of moving a directory:

    python -m tests.checkpoint.late_mover DIRECTORY ATTEMPT EVENT NAME STOPPED GO

Before the first system call ``EVENT`` (as Python's audit hooks call it) on a path that ends in ``NAME`` it makes the
file ``STOPPED`` and waits for the file ``GO``. It writes out what the room says. The product knows nothing of this.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gangrun.checkpoint.scan import StorageUnreadable
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.core.checkpoints.resume import ResumeRequest
from tests.waiting import until


def main(directory: str, attempt: str, event: str, name: str, stopped: Path, go: Path) -> None:
    def stop(what: str, arguments: tuple[object, ...]) -> None:
        if what == event and os.path.basename(str(arguments[0])) == name and not stopped.exists():
            stopped.touch()
            until(go.exists, 30, "the word to go on")

    sys.addaudithook(stop)
    try:
        found = CheckpointRoom(directory).choose_and_set_aside(ResumeRequest(), attempt)
    except StorageUnreadable as trouble:
        sys.stdout.write(str(trouble))
    else:
        sys.stdout.write(f"moved {[move.step for move in found.moved]}")


if __name__ == "__main__":
    directory, attempt, event, name, stopped, go = sys.argv[1:]
    main(directory, attempt, event, name, Path(stopped), Path(go))
