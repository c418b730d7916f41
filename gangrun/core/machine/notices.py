"""What an agent's "I was told to end" means.

A signal does not say why. Where a scheduler can be asked, an agent's word only begins a wait for its answer, which is a
``Notice`` without an origin; no answer in time means: stop. The wait goes on through whatever happens meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision
from gangrun.core.events import DeadlinePassed, Event, Notice, NoticeKind
from gangrun.core.machine.transitions import WHY, ignored, stay, with_deadline, without_deadline
from gangrun.core.model import TERMINAL, RunState

ANSWER_SHARE = 0.5  # of the time until the nodes go; the rest is for the stop


def told_to_end(state: RunState, event: Notice, node: str, now: float) -> Decision:
    """An agent was told to end, and the scheduler is being asked why."""
    if state.phase in TERMINAL or WHY in state.deadlines:
        return ignored(state, f"{node} was told to end too; the scheduler is being asked why")
    state = with_deadline(state, WHY, now + ANSWER_SHARE * event.grace_s)
    return stay(state, f"{node} was told to end; asking the scheduler why", gone_at=now + event.grace_s)


def meant(state: RunState, event: Event, now: float) -> tuple[RunState, Event]:
    """The event as its handler is to see it: an answer ends the wait, and so does that none came."""
    if isinstance(event, Notice):
        gone_at: float | None = now + event.grace_s
        if event.kind is NoticeKind.UNKNOWN:  # nobody has said that the nodes go: only sooner than was thought
            gone_at = None if state.gone_at is None else min(state.gone_at, now + event.grace_s)
        return replace(without_deadline(state, WHY), gone_at=gone_at), event
    if isinstance(event, DeadlinePassed) and event.name == WHY:
        left_s = max(0.0, state.gone_at - now) if state.gone_at is not None else 0.0
        return without_deadline(state, WHY), Notice(NoticeKind.UNKNOWN, left_s)
    return state, event
