"""Acts whose time has come, and who performs each.

An act is ready once its record and its ticket are durable, and is performed while this supervisor leads (law 3); an end
needs no majority.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gangrun.core.actions import (
    Action,
    BringSteps,
    CheckNodes,
    ChooseResume,
    EndJob,
    ProbeNode,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitSuccessor,
    TakeStacks,
)
from gangrun.core.model import RunState
from gangrun.ports import Checkpoints, Jobs

if TYPE_CHECKING:
    from gangrun.supervisor.loop import Loop


class Acting:
    """The acts of one term, each with its number, in the order in which they were decided."""

    def __init__(self, loop: Loop, checkpoints: Checkpoints, jobs: Jobs) -> None:
        """Nothing is ready yet."""
        self._loop, self._checkpoints, self._jobs = loop, checkpoints, jobs
        self.ready: deque[tuple[Action, int]] = deque()
        self.sealed: tuple[tuple[int, str], ...] = ()  # the commits that stood when older attempts were sealed

    def drain(self, state: RunState, now: float) -> bool:
        """Perform what is ready; was there anything? An end alone needs no majority: whoever comes later reads it, and
        the nodes may be gone already.
        """
        ready, performed = self.ready, False
        while ready and not isinstance(ready[0][0], EndJob) and isinstance(ready[-1][0], EndJob):
            ready.popleft()  # the end supersedes what could not be done before it
        while ready and (isinstance(ready[0][0], EndJob) or self._loop.leadership.holds(now)):
            action, n = ready.popleft()
            performed = True
            self._perform(action, n, state, now)
        return performed

    def _perform(self, action: Action, n: int, state: RunState, now: float) -> None:
        loop = self._loop
        match action:
            case StartGang() | StopGang() | TakeStacks() | CheckNodes():
                loop.roll_call.perform(action, state, now)
            case EndJob():
                self._checkpoints.put_back(action.put_back)
                loop.roll_call.perform(action, state, now)
                self._jobs.end((loop.term, n), action, () if loop.facts.alone else loop.silence.away)
            case SealAttempts() | BringSteps():
                loop.roll_call.rescue(action, state, self._checkpoints, now)
            case ChooseResume():
                self._checkpoints.choose(action, self.sealed)
            case ProbeNode():
                loop.silence.probe(action.node, state, now)
            case SubmitSuccessor():
                self._jobs.submit((loop.term, n), action)
