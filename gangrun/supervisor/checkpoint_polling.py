"""When the checkpoint directory is looked into, and when nodes are to write down what their memory holds.

Looked into is it now and then while ranks train; every second while all wait for a save, which ends as soon as that is
there. A flush is due when nothing new has come to the disk for so long, whoever writes there, and memory has something.
"""

from __future__ import annotations

from gangrun.core.events import Event, FlushDue
from gangrun.core.model import Phase, RunState
from gangrun.ports import Checkpoints
from gangrun.supervisor.facts import Facts
from gangrun.supervisor.progress import Progress

NEVER = float("inf")
SAVING_EVERY_S = 1.0


class Looks:
    """One supervisor's; without looks or flushes where the facts say that there is no directory or no memory."""

    def __init__(self, checkpoints: Checkpoints, facts: Facts, state: RunState, now: float, progress: Progress) -> None:
        self._checkpoints, self._every_s, self._progress = checkpoints, facts.looks_every_s, progress
        self._flush_every_s = facts.flush_every_s
        self._at = now
        self._flush_at = now + self._flush_every_s
        if state.saving:
            self._await_save(now)

    def follow(self, before: RunState, state: RunState, now: float) -> None:
        """Keep in step with the state."""
        if state.phase is Phase.RUNNING and (before.phase is not Phase.RUNNING or state.attempt != before.attempt):
            self._at = now + self._every_s
            self._flush_at = now + self._flush_every_s
        if state.disk_step > before.disk_step:
            self._flush_at = now + self._flush_every_s
        if state.saving and not before.saving:
            self._await_save(now)

    def _await_save(self, now: float) -> None:
        if self._every_s > 0:
            self._checkpoints.await_save()
            self._at = now + min(self._every_s, SAVING_EVERY_S)

    def due(self, state: RunState) -> float:
        """When to look next, or to have something written down."""
        looks = self._every_s > 0 and (state.saving or state.phase is Phase.RUNNING)
        return min(self._at if looks else NEVER, self._flush_due(state))

    def _flush_due(self, state: RunState) -> float:
        train = state.phase is Phase.RUNNING and state.store_stalled_since is None
        return self._flush_at if self._flush_every_s > 0 and train else NEVER

    def look(self, state: RunState, now: float) -> list[Event]:
        """Look, if it is time to; what is to be written down."""
        if self._every_s > 0 and (state.saving or state.phase is Phase.RUNNING) and now >= self._at:
            self._at = now + (min(self._every_s, SAVING_EVERY_S) if state.saving else self._every_s)
            self._checkpoints.look(state.disk_step)
        if now < self._flush_due(state):
            return []
        step = self._progress.kept_step
        if step <= state.disk_step:
            self._flush_at = now + min(self._flush_every_s, SAVING_EVERY_S)  # as soon as there is one
            return []
        self._flush_at = now + self._flush_every_s
        return [FlushDue(state.attempt, step)]
