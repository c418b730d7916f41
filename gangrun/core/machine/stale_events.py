"""The one filter before the table.

An event that is a duplicate, of another attempt, or of an incarnation that has been replaced is *ignored*: journalled,
acked, and without effect. What passes is legal or not by the table in ``lifecycle``.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    DeadlinePassed,
    FirstStepSeen,
    FlushDue,
    GangStarted,
    GangStartFailed,
    GangStopped,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    StacksTaken,
    Stamped,
    StopTimedOut,
    TermTaken,
)
from gangrun.core.model import RunState

_OF_AN_ATTEMPT = (
    RankExited,
    RankFinished,
    FirstStepSeen,
    ProgressMarked,
    ProgressStalled,
    StacksTaken,
    GangStarted,
    GangStartFailed,
    GangStopped,
    StopTimedOut,
    FlushDue,
)


def stale(state: RunState, stamped: Stamped) -> str:
    """Why the event must not reach the table; "" when it may."""
    origin, event = stamped.origin, stamped.event
    if origin is not None:
        if origin.job != state.job and state.job:
            return f"from job {origin.job}, while the run is in job {state.job}"
        incarnation, newest = state.marks.get(origin.node, ("", -1))
        if incarnation == origin.incarnation and origin.seq <= newest:
            return f"said before: event {origin.seq} of {origin.node}"
        node = state.nodes.get(origin.node)
        joins = isinstance(event, AgentJoined | AgentRejoined)
        if not joins and node is not None and node.incarnation != origin.incarnation:
            return f"from an agent on {origin.node} that has been replaced"
    if isinstance(event, _OF_AN_ATTEMPT) and event.attempt != state.attempt:
        return f"of attempt {event.attempt}, while attempt {state.attempt} is the newest"
    if isinstance(event, DeadlinePassed):
        due = state.deadlines.get(event.name)
        if due is None or due.generation != event.generation:
            return f"a timer ({event.name}) that was set for something already over"
    if isinstance(event, TermTaken) and event.term <= state.term:
        return f"term {event.term} is not newer than term {state.term}"
    return ""


def mark(state: RunState, stamped: Stamped) -> RunState:
    """The state that knows this event by its number, so that it counts once."""
    origin = stamped.origin
    if origin is None:
        return state
    incarnation, newest = state.marks.get(origin.node, ("", -1))
    node = state.nodes.get(origin.node)
    if node is not None and incarnation == node.incarnation != origin.incarnation:
        return state  # a late word of one that was replaced must not make its successor's events new again
    seq = max(newest, origin.seq) if incarnation == origin.incarnation else origin.seq
    if (incarnation, newest) == (origin.incarnation, seq):
        return state
    return replace(state, marks={**state.marks, origin.node: (origin.incarnation, seq)})
