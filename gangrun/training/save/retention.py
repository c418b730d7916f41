"""Lets old checkpoints go, on rank 0's background thread after each commit.

Which ones is decided in ``core.retention``. Only gangrun's own go, and nothing that a rollback may need.
"""

from __future__ import annotations

from gangrun.checkpoint.commit import Staging
from gangrun.checkpoint.scan import StorageUnreadable, list_steps, step_pattern
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.resume import Kind
from gangrun.core.checkpoints.retention import Held, Keep, for_a_rollback, to_prune
from gangrun.core.policy import Policy


class Keeping:
    """What this process knows: which steps it wrote itself, and which one it came from."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._resumed_step: int | None = None
        self._written: set[int] = set()
        self._in_memory: set[int] = set()

    def resumed_from(self, step: int) -> None:
        """This one may be needed again."""
        self._resumed_step = step

    def after_commit(self, step: int, staging: Staging) -> None:
        """Prune what may go now. OSError where something would not; it is tried again after the next commit."""
        self._written.add(step)
        self._prune(staging)

    def after_keep(self, step: int, staging: Staging) -> None:
        """The same after a save to memory, as gangrun may have brought those before it to the disk."""
        self._in_memory.add(step)
        self._prune(staging)

    def _prune(self, staging: Staging) -> None:
        if not self._keep.newest_count:
            return
        try:
            found = [one for one in list_steps(staging.directory, step_pattern()) if one.kind is Kind.GANGRUN]
            on_disk = {one.step for one in found}
            self._written |= self._in_memory & on_disk
            self._in_memory = {step for step in self._in_memory if step > max(on_disk, default=-1)}
            if len(found) <= self._keep.newest_count:
                return
            judged = {one.path: one for one in CheckpointRoom(staging.directory).survey(Depth.STRUCTURE)}
        except StorageUnreadable:
            return
        held = [
            Held(one.step, judged[one.path].valid or (one.step in self._written and judged[one.path].level is not None))
            for one in found
            if one.path in judged
        ]
        needed = for_a_rollback(held, self._resumed_step, self._written, Policy().poison_after_steps)
        going = to_prune(held, self._keep, needed)
        for one in found:
            if one.step in going:
                staging.prune(one.path)
