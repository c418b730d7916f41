"""When the checkpoint directory is looked into (room: supervisor; pure, time is handed in).

Now and then while ranks train; every second while all wait for a save, which ends as soon as that is there.
Next: ``loop``.
"""

from __future__ import annotations

from gangrun.core.model import Phase, RunState
from gangrun.ports import Checkpoints

NEVER = float("inf")
SAVING_EVERY_S = 1.0


class Looks:
    """One supervisor's; ``every_s`` 0: there is no directory to look into."""

    def __init__(self, checkpoints: Checkpoints, every_s: float, state: RunState, now: float) -> None:
        self._checkpoints, self._every_s = checkpoints, every_s
        self._at = now
        if state.saving:
            self._await_save(now)

    def follow(self, before: RunState, state: RunState, now: float) -> None:
        """Keep in step with the state."""
        if state.phase is Phase.RUNNING and (before.phase is not Phase.RUNNING or state.attempt != before.attempt):
            self._at = now + self._every_s
        if state.saving and not before.saving:
            self._await_save(now)

    def _await_save(self, now: float) -> None:
        if self._every_s > 0:
            self._checkpoints.await_save()
            self._at = now + min(self._every_s, SAVING_EVERY_S)

    def due(self, state: RunState) -> float:
        """When to look next."""
        return self._at if self._every_s > 0 and (state.saving or state.phase is Phase.RUNNING) else NEVER

    def look(self, state: RunState, now: float) -> None:
        """Look, if it is time to."""
        if now >= self.due(state):
            self._at = now + (min(self._every_s, SAVING_EVERY_S) if state.saving else self._every_s)
            self._checkpoints.look(state.best_step)
