"""Small files of the ranks of one attempt, in node-local memory (room: agent).

Nothing here may be on a shared disk: a rank that dies writes here, the agent reads it at once, and a file server that
stands still must delay neither. What is worth keeping goes into the run directory later. Next: ``rank_env`` names them
to the rank, ``rank_errors`` and ``stacks`` read them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank."""

    slot: Path  # progress, see wire/progress.py
    error: Path  # boot.py's account of the exception that ended it
    torchelastic_error: Path  # the same by torch's ``record`` decorator, where the script uses it
    stack: Path  # faulthandler's dumps on request
    signals: Path  # grows when TERM, USR1 or USR2 meets a script without a handler of its own
    orders: Path  # one byte for each signal that the agent sends to the rank: its number


class AttemptFiles:
    """The directory of one attempt on one node; created empty, mode 0700."""

    def __init__(self, root: Path, run: str, node: str, attempt: int) -> None:
        self.base = root / f"gangrun-{os.getuid()}" / run / node
        self.directory = self.base / str(attempt)
        # Somebody else's directory under our name would let them read and forge what ranks say.
        (root / f"gangrun-{os.getuid()}").mkdir(mode=0o700, exist_ok=True)
        if (root / f"gangrun-{os.getuid()}").stat().st_uid != os.getuid():
            raise PermissionError(f"{root / f'gangrun-{os.getuid()}'} belongs to another user: remove it")
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o700, parents=True)

    def of(self, rank: int) -> RankFiles:
        """The names of one rank's files; none is created here."""
        stem = self.directory / f"rank-{rank}"
        return RankFiles(
            slot=stem.with_suffix(".slot"),
            error=stem.with_suffix(".error.json"),
            torchelastic_error=stem.with_suffix(".torchelastic.json"),
            stack=stem.with_suffix(".stack"),
            signals=stem.with_suffix(".signals"),
            orders=stem.with_suffix(".orders"),
        )

    def remove(self) -> None:
        """Take the directory away, and its parents if nothing else is in them."""
        shutil.rmtree(self.directory, ignore_errors=True)
        for parent in (self.base, self.base.parent):
            try:
                parent.rmdir()
            except OSError:
                return
