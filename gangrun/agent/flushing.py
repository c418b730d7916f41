"""While ranks train on: the newest step in this node's memory is written to the disk, off their path (room: agent).

From the question to the end of the writing one connection to the keeper has the steps pinned, so that ranks may save on
meanwhile. There is one flush at a time: the next question of any kind ends the one before, wherever it is. Each command
is an errand in a thread of its own. Next: ``rescue``, which does the same for ranks that died.
"""

from __future__ import annotations

import os
import threading

import msgspec

from gangrun.agent.facts import DiskUsed
from gangrun.agent.rescue import holdings, rescue
from gangrun.checkpoint.kept import Kept, StepName
from gangrun.checkpoint.rescue import bring
from gangrun.wire.messages import Rescue

NICENESS = 10  # ranks come first


class Flushing:
    """All that is asked of one node's memory, in turn."""

    def __init__(self, keeper: str) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._pinned: Kept | None = None
        self._given_up = threading.Event()  # by whoever writes now

    def answer(self, command: Rescue) -> DiskUsed:
        """One command; what goes wrong is the answer's ``why``."""
        if command.into and command.pin:
            return self._written(command)
        if command.into:
            return rescue(self._keeper, command)
        with self._lock:
            self._given_up.set()
            self._given_up = threading.Event()
            self._let_go()
            return self._held(command) if command.pin else rescue(self._keeper, command)

    def _let_go(self) -> None:
        if self._pinned is not None:
            self._pinned.close()
        self._pinned = None

    def _held(self, command: Rescue) -> DiskUsed:
        try:
            kept = self._pinned = Kept(self._keeper)
            kept.pin(command.attempt)
            steps = [msgspec.to_builtins(one) for one in holdings(kept, command.attempt)]
        except OSError as error:
            self._let_go()
            return DiskUsed(command, True, error.strerror or str(error), {"steps": []})
        return DiskUsed(command, True, data={"steps": steps})

    def _written(self, command: Rescue) -> DiskUsed:
        with self._lock:
            kept, given_up, self._pinned = self._pinned, self._given_up, None
        if kept is None:
            return DiskUsed(command, False, "what was asked for is not pinned any more")
        try:
            name, written = StepName(command.attempt, command.step, command.nonce), 0
            kept.pin(command.attempt, name)
            if command.files:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # of this thread alone
                written = bring(kept, name, command.files, command.into, given_up.is_set)
            return DiskUsed(command, True, data={"bytes": written})
        except OSError as error:
            return DiskUsed(command, False, error.strerror or str(error))
        finally:
            kept.close()
