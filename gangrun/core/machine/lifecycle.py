"""The heart: ``step(state, event, now, policy) -> Decision``.

Two rules. Everything that moves a run from one phase to another is reached from ``TABLE`` below. And this file does
not know in which world it is: Slurm, one box, or a world made of numbers.

How it works: the filter drops what is stale; the table names the handler of (phase, event) or the reason why that pair
cannot happen; the handler returns the state after, what to do, and one sentence for a person at 3 a.m. A refused event
changes nothing. Handlers live by phase in ``starting``, ``running`` and ``stopping``; ``recovery`` chooses the rung
after a failure, ``succession`` deals with new terms. The diagram in ``docs/lifecycle.md`` is drawn from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gangrun.core.actions import Decision
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.events import (
    ActDone,
    ActFailed,
    ActUnknown,
    AgentJoined,
    AgentRejoined,
    AttemptSealed,
    CancelRequested,
    CheckpointSeen,
    DeadlinePassed,
    Event,
    FindingRaised,
    FirstStepSeen,
    FlushDue,
    GangStarted,
    GangStartFailed,
    GangStopped,
    NodeAbsent,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    ResumeChosen,
    ResumeRequested,
    StacksTaken,
    Stamped,
    StepBrought,
    StopTimedOut,
    StoreBack,
    StoreStalled,
    TermTaken,
)
from gangrun.core.machine import running, starting, stopping, succession
from gangrun.core.machine.transitions import WHY, ignored, refused, stay, with_deadline, without_deadline
from gangrun.core.model import TERMINAL, Outcome, Phase, RunState
from gangrun.core.nodes import absences
from gangrun.core.policy import Policy

Handler = Callable[[RunState, Any, float, Policy], Decision]


class Refusal(str):
    """A reason, in the table's place of a handler: this pair cannot happen."""

    __slots__ = ()


class Late(str):
    """A reason, in the table's place of a handler: this pair can happen and means nothing any more."""

    __slots__ = ()


def _store_stalled(state: RunState, event: StoreStalled, now: float, policy: Policy) -> Decision:
    del policy
    what = "ranks train on, but " if state.phase is Phase.RUNNING else ""
    silent = f"the run directory has not answered for {now - event.since:.0f} s"
    reason = f"{silent}: {what}nothing is started or excluded until it does"
    if state.phase is Phase.RUNNING and state.evidence.hang is not None:
        state = running.no_hang(state)  # ranks may wait for the same disk
    return stay(state, reason, loud=_tells(state), store_stalled_since=event.since)


def _store_back(state: RunState, event: StoreBack, now: float, policy: Policy) -> Decision:
    del now, policy
    if state.phase is Phase.STARTING:  # what was asked for could not even begin
        for name, due in without_deadline(state, WHY).deadlines.items():
            state = with_deadline(state, name, due.at + event.stalled_s)
    reason = f"the run directory answers again after {event.stalled_s:.0f} s"
    return stay(state, reason, loud=_tells(state), store_stalled_since=None)


def _tells(state: RunState) -> bool:
    """May a passing trouble be what people read? Not where the reason says why the run ended, or why it is stopped."""
    return state.phase is not Phase.STOPPING and state.phase not in TERMINAL


def _cancel_early(state: RunState, event: CancelRequested, now: float, policy: Policy) -> Decision:
    return starting.cancel(state, event.by, now, policy)


def _cancel_running(state: RunState, event: CancelRequested, now: float, policy: Policy) -> Decision:
    return running.cancel(state, event.by, now, policy)


def _cancel_stopping(state: RunState, event: CancelRequested, now: float, policy: Policy) -> Decision:
    return stopping.cancel(state, event.by, now, policy)


Row = Mapping[type[Any], "Handler | Refusal | Late"]

_EVERYWHERE: Row = {
    StoreStalled: _store_stalled,
    StoreBack: _store_back,
    TermTaken: succession.term_taken,
    NodeHeard: stopping.heard_node,
    NodeAbsent: absences.noted,
    CheckpointSeen: running.checkpoint_seen,
    StepBrought: flush_to_disk.brought,
    FlushDue: Late("no rank trains on"),
    ResumeRequested: Refusal("the run has not ended: cancel it first, or let it go on"),
    ActDone: Late("an act was done that nobody waits for"),
    ActFailed: Late("an act failed that nobody waits for"),
    ActUnknown: Late("an act that nobody waits for may or may not have happened"),
}
_NO_RANKS: Row = {
    RankExited: Refusal("no rank of this attempt was started"),
    RankFinished: Refusal("no rank of this attempt was started"),
    FirstStepSeen: Refusal("no rank of this attempt was started"),
    ProgressMarked: Refusal("no rank of this attempt was started"),
    ProgressStalled: Refusal("no rank of this attempt was started"),
    StacksTaken: Refusal("no rank of this attempt was started"),
    GangStarted: Refusal("no gang is being started"),
    GangStartFailed: Refusal("no gang is being started"),
    GangStopped: Refusal("no gang is being stopped"),
    StopTimedOut: Refusal("no gang is being stopped"),
}
_NO_CHOICE: Row = {
    AttemptSealed: Late("nothing is being sealed now"),
    ResumeChosen: Late("no resume point is being chosen now"),
    NoneValid: Late("no resume point is being chosen now"),
}
_ENDED: Row = {kind: Late("the run has ended") for kind in Event.__args__}

TABLE: Mapping[Phase, Row] = {
    Phase.PENDING: {
        **_EVERYWHERE,
        **_NO_RANKS,
        **_NO_CHOICE,
        AgentJoined: starting.agent_joined,
        AgentRejoined: starting.agent_joined,
        NodeSilent: stopping.quiet_node,
        NodeLost: stopping.quiet_node,
        NodeAbsent: starting.node_absent,
        NodeChecked: Late("nodes are not being checked now"),
        FindingRaised: starting.finding,
        CancelRequested: _cancel_early,
        Notice: stopping.waiting_notice,
        DeadlinePassed: starting.join_deadline,
    },
    Phase.CHECKING: {
        **_EVERYWHERE,
        **_NO_RANKS,
        **_NO_CHOICE,
        AgentJoined: starting.late_agent,
        AgentRejoined: starting.late_agent,
        NodeSilent: stopping.quiet_node,
        NodeLost: starting.lost_while_checking,
        NodeChecked: starting.node_checked,
        FindingRaised: starting.finding,
        CancelRequested: _cancel_early,
        Notice: stopping.waiting_notice,
        DeadlinePassed: starting.check_deadline,
    },
    Phase.STARTING: {
        **_EVERYWHERE,
        AgentJoined: stopping.waiting_agent,
        AgentRejoined: starting.agent_rejoined,
        NodeSilent: stopping.quiet_node,
        NodeLost: starting.node_lost,
        NodeChecked: starting.late_answer,
        FindingRaised: starting.finding,
        AttemptSealed: starting.sealed,
        ResumeChosen: starting.resume_chosen,
        NoneValid: starting.none_valid,
        GangStarted: starting.gang_started,
        GangStartFailed: starting.start_failed,
        RankExited: starting.rank_exited,
        RankFinished: starting.rank_finished,
        FirstStepSeen: starting.first_step,
        ProgressMarked: starting.progress,
        ProgressStalled: Late("ranks are still starting"),
        StacksTaken: Late("nobody asked for stacks in this attempt"),
        GangStopped: Refusal("no gang is being stopped"),
        StopTimedOut: Refusal("no gang is being stopped"),
        CancelRequested: _cancel_early,
        Notice: starting.notice,
        DeadlinePassed: starting.start_deadline,
        ActFailed: starting.act_failed,
    },
    Phase.RUNNING: {
        **_EVERYWHERE,
        **_NO_CHOICE,
        AgentJoined: running.agent_joined,
        AgentRejoined: running.agent_rejoined,
        NodeSilent: running.node_silent,
        NodeHeard: running.node_heard,
        NodeLost: running.node_lost,
        NodeChecked: running.node_checked,
        FindingRaised: running.finding,
        GangStarted: Late("all ranks are known to run"),
        GangStartFailed: Refusal("all ranks were reported as started"),
        RankExited: running.rank_exited,
        RankFinished: running.rank_finished,
        FirstStepSeen: running.first_step,
        FlushDue: flush_to_disk.flush,
        ProgressMarked: running.progress,
        ProgressStalled: running.stalled,
        StacksTaken: running.stacks_taken,
        GangStopped: Refusal("nobody asked for a stop"),
        StopTimedOut: Refusal("nobody asked for a stop"),
        CancelRequested: _cancel_running,
        Notice: running.notice,
        CheckpointSeen: running.checkpoint_reached,
        DeadlinePassed: running.deadline,
    },
    Phase.STOPPING: {
        **_EVERYWHERE,
        **_NO_CHOICE,
        AgentJoined: stopping.waiting_agent,
        AgentRejoined: stopping.agent_rejoined,
        NodeSilent: stopping.quiet_node,
        NodeLost: stopping.node_lost,
        NodeChecked: running.node_checked,
        FindingRaised: stopping.finding,
        GangStarted: Late("all ranks are being stopped"),
        GangStartFailed: Late("all ranks are being stopped"),
        RankExited: stopping.rank_exited,
        RankFinished: stopping.rank_finished,
        FirstStepSeen: Late("all ranks are being stopped"),
        ProgressMarked: running.progress,
        ProgressStalled: Late("all ranks are being stopped"),
        StacksTaken: stopping.stacks_taken,
        CheckpointSeen: stopping.checkpoint_seen,
        GangStopped: stopping.gang_stopped,
        StopTimedOut: stopping.stop_timed_out,
        CancelRequested: _cancel_stopping,
        Notice: stopping.notice,
        DeadlinePassed: stopping.stop_deadline,
    },
    Phase.WAITING: {
        **_EVERYWHERE,
        **{kind: Late("all ranks are down") for kind in _NO_RANKS},
        **_NO_CHOICE,
        AgentJoined: stopping.waiting_agent,
        AgentRejoined: stopping.waiting_agent,
        NodeSilent: stopping.quiet_node,
        NodeLost: stopping.quiet_node,
        NodeHeard: stopping.heard_in_waiting,
        NodeAbsent: stopping.absent_in_waiting,
        NodeChecked: running.node_checked,
        FindingRaised: starting.finding,
        CancelRequested: _cancel_early,
        Notice: stopping.waiting_notice,
        DeadlinePassed: stopping.wait_deadline,
        ActDone: stopping.submitted,
        ActFailed: stopping.not_submitted,
        ActUnknown: stopping.maybe_submitted,
    },
    **{
        phase: {
            **_ENDED,
            TermTaken: succession.term_taken,
            ResumeRequested: succession.resume_requested,
            StoreStalled: _store_stalled,
            StoreBack: _store_back,
        }
        for phase in sorted(TERMINAL, key=lambda phase: phase.value)
    },
}


# Which phase may follow which, and when: what the handlers above may do, checked after every step of the simulator and
# drawn in docs/lifecycle.md.
MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.PENDING: {
        Phase.CHECKING: "nodes have joined",
        Phase.STARTING: "nodes have joined and are known to be good",
        Phase.WAITING: "too few nodes, or leases of an earlier job run on",
        Phase.FAILED: "too few nodes came",
        Phase.CANCELLED: "cancelled",
    },
    Phase.CHECKING: {
        Phase.STARTING: "enough nodes passed",
        Phase.WAITING: "too few nodes passed",
        Phase.FAILED: "too few nodes passed",
        Phase.CANCELLED: "cancelled",
        Phase.PENDING: "another job took over",
    },
    Phase.STARTING: {
        Phase.RUNNING: "all ranks live",
        Phase.STOPPING: "a rank, node or agent fell",
        Phase.WAITING: "storage does not answer, or too few nodes",
        Phase.FAILED: "no valid checkpoint, or too few nodes",
        Phase.CANCELLED: "cancelled before the launch",
        Phase.PENDING: "another job took over",
    },
    Phase.RUNNING: {
        Phase.STOPPING: "all finished, something fell, hung or was cancelled, or a suspect is relieved",
        Phase.PENDING: "another job took over",
    },
    Phase.STOPPING: {
        Phase.STARTING: "restart at once",
        Phase.CHECKING: "restart with nodes not yet checked",
        Phase.WAITING: "restart after a pause, or requeue",
        Phase.SUCCEEDED: "all ranks finished",
        Phase.FAILED: "nothing would cure it, or the budget is spent",
        Phase.CANCELLED: "cancelled",
        Phase.PENDING: "another job took over",
    },
    Phase.WAITING: {
        Phase.STARTING: "the pause is over",
        Phase.CHECKING: "the pause is over, new nodes came",
        Phase.PENDING: "the next job is submitted, or took over",
        Phase.FAILED: "given up",
        Phase.STOPPING: "nodes know of a newer attempt",
        Phase.CANCELLED: "cancelled",
    },
    Phase.SUCCEEDED: {Phase.PENDING: "resumed by a person"},
    Phase.FAILED: {Phase.PENDING: "resumed by a person"},
    Phase.CANCELLED: {Phase.PENDING: "resumed by a person"},
}


def step(state: RunState, stamped: Stamped, now: float, policy: Policy) -> Decision:
    """Decide what one event means. ``now`` is the run clock in seconds, which never goes back.

    The event counts once whatever becomes of it: a known agent's event number is remembered even when it is ignored or
    refused, so that it can be acked.
    """
    event = stamped.event
    why_stale = stale(state, stamped)
    if why_stale:
        decision = ignored(state, why_stale)
    elif isinstance(event, Notice) and event.asking:
        decision = told_to_end(state, event, stamped.origin.node if stamped.origin else "an agent", now)
    else:
        seen, meant = as_meant(state, event, now)
        handler = TABLE[state.phase][type(meant)]
        if isinstance(handler, Late):
            decision = ignored(state, f"{type(meant).__name__} in {state.phase.value}: {handler}")
        elif isinstance(handler, Refusal):
            decision = refused(state, f"{type(meant).__name__} in {state.phase.value}: {handler}")
        else:
            decision = flush_to_disk.first(state, handler(seen, meant, now, policy), now, policy)
    marked = mark(decision.state, stamped)
    if decision.outcome is Outcome.APPLIED:
        marked = replace(marked, updated_at=max(now, marked.updated_at))
    return Decision(marked, decision.actions, decision.reason, decision.outcome)


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


ANSWER_SHARE = 0.5  # of the time until the nodes go; the rest is for the stop


def told_to_end(state: RunState, event: Notice, node: str, now: float) -> Decision:
    """An agent was told to end, and the scheduler is being asked why."""
    if state.phase in TERMINAL or WHY in state.deadlines:
        return ignored(state, f"{node} was told to end too; the scheduler is being asked why")
    state = with_deadline(state, WHY, now + ANSWER_SHARE * event.grace_s)
    return stay(state, f"{node} was told to end; asking the scheduler why", gone_at=now + event.grace_s)


def as_meant(state: RunState, event: Event, now: float) -> tuple[RunState, Event]:
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
