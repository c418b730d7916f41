"""All that is asked of this node's memory, in turn: what it holds, and to write it to the disk.

From a question for a flush to the end of its writing one connection to the keeper has the steps pinned, so that ranks
may save on meanwhile. Each command is an errand in a thread of its own, and what is written is written for the newest
question: the next one of any kind ends it, wherever it is, as does a start of ranks, and the word that nobody waits for
it. Commands are numbered, so it does not matter which thread comes first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import msgspec

from gangrun.agent.brain.facts import DiskUsed
from gangrun.agent.recover_from_memory import holdings, rescue
from gangrun.checkpoint.memory_tier.keeper_client import Kept, StepName
from gangrun.checkpoint.memory_tier.recover_from_memory import GIVEN_UP, bring
from gangrun.wire.messages import Rescue

NICENESS = 10  # ranks come first


class Flushing:
    """One node's."""

    def __init__(self, keeper: str) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._pinned: Kept | None = None
        self._newest = (-1, -1)  # command that ended all before it: its term, and its number there

    def give_up(self, act: tuple[int, int]) -> None:
        """Nobody waits any more for what was asked before this command."""
        self._begins(act)

    def answer(self, command: Rescue) -> DiskUsed:
        """One command; what goes wrong is the answer's ``why``."""
        if command.into and command.step >= 0:
            return self._written(command) if command.pin else rescue(self._keeper, command, self._ended(command))
        if not self._begins(command.act):
            return DiskUsed(command, False, GIVEN_UP)
        if command.into:
            return DiskUsed(command, True)  # nothing is wanted any more
        return self._held(command) if command.pin else rescue(self._keeper, command)

    def _ended(self, command: Rescue) -> Callable[[], bool]:
        return lambda: self._newest > command.act

    def _begins(self, act: tuple[int, int]) -> bool:
        """False where it was ended already. The keeper may take its time, so nobody asks it under the lock."""
        with self._lock:
            if act < self._newest:
                return False
            self._newest = act
            before, self._pinned = self._pinned, None
        if before is not None:
            before.close()
        return True

    def _held(self, command: Rescue) -> DiskUsed:
        kept = None
        try:
            kept = Kept(self._keeper)
            kept.pin(command.attempt)
            steps = [msgspec.to_builtins(one) for one in holdings(kept, command.attempt)]
        except OSError as error:
            if kept is not None:
                kept.close()
            return DiskUsed(command, True, error.strerror or str(error), {"steps": []})
        with self._lock:
            ended = self._newest > command.act
            if not ended:
                kept, self._pinned = self._pinned, kept
        if kept is not None:
            kept.close()
        return DiskUsed(command, False, GIVEN_UP) if ended else DiskUsed(command, True, data={"steps": steps})

    def _written(self, command: Rescue) -> DiskUsed:
        with self._lock:
            if command.act < self._newest:
                return DiskUsed(command, False, GIVEN_UP)
            kept, self._pinned = self._pinned, None
        if kept is None:
            return DiskUsed(command, False, "what was asked for is not pinned any more")
        try:
            name, written = StepName(command.attempt, command.step, command.nonce), 0
            kept.pin(command.attempt, name)
            if command.files:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # of this thread alone
                written = bring(kept, name, command.files, command.into, self._ended(command))
            return DiskUsed(command, True, data={"bytes": written})
        except OSError as error:
            return DiskUsed(command, False, error.strerror or str(error))
        finally:
            kept.close()
