"""The heart: ``step(state, event, now, policy) -> Decision``.

Theory of operation
-------------------
A run is always in one phase. ``TABLE`` has a row for each phase and an entry for each (phase, event):

- ``On(handler, (phases))``: the handler decides. It returns the state after, the actions to perform, and one sentence
  for a person at 3 a.m. The phases are those that may follow; a handler that is listed without phases never leaves its
  phase. The tests and the simulator check each step against this list, and ``docs/lifecycle.md`` is drawn from it.
- ``Late(reason)``: the event can happen and means nothing any more. It is journalled as ignored.
- ``Refusal(reason)``: the event cannot happen. It is journalled as refused and changes nothing.

The way of an event: ``stale`` drops duplicates and events of another attempt, job or incarnation. ``stopping`` turns an
agent's "I was told to end" into a wait for the scheduler's answer. Then the table. ``total_time`` counts how long all
ranks run. ``race`` drops a comparison of two nodes that something else comes into. A decision that ends the job passes
``flush_to_disk.first``, which may hold it in WAITING until the newest step in memory is on disk. ``refills.follow``
adds what is asked of the scheduler because nodes are missing, or are not any more. Whatever becomes of an event, its
number is remembered, so that it counts once and can be acknowledged.

The phases: PENDING waits for nodes, CHECKING for their answers. STARTING seals older attempts, chooses the checkpoint
and launches. RUNNING ends by STOPPING only. STOPPING ends when every rank is proven gone, and only then concludes
(``choose``): start again, wait, ask for another job, or end. Every phase but PENDING and RUNNING has a deadline.
Nothing but STARTING starts ranks.

This module does not know in which world it runs: a scheduler, one box, or the simulator. Handlers live in ``starting``,
``running``, ``stopping``, ``waiting`` and, where one handler serves all phases, ``node_events``.
``succession`` deals with new terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangrun.core import events as e
from gangrun.core.actions import Decision
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.machine import node_events, refills, running, starting, stopping, succession, total_time, waiting
from gangrun.core.machine.transitions import WHY, ignored, refused, stay, with_deadline, without_deadline
from gangrun.core.model import TERMINAL, Outcome, Phase, RunState
from gangrun.core.nodes import planned_replacement, race
from gangrun.core.policy import Policy
from gangrun.core.versions import with_entries

Handler = Callable[[RunState, Any, float, Policy], Decision]


@dataclass(frozen=True, slots=True)
class On:
    """A handler, and the phases to which it may lead."""

    handler: Handler
    to: tuple[Phase, ...] = ()


class Refusal(str):
    """A reason, in the table's place of a handler: this pair cannot happen."""

    __slots__ = ()


class Late(str):
    """A reason, in the table's place of a handler: this pair can happen and means nothing any more."""

    __slots__ = ()


def _store_stalled(state: RunState, event: e.StoreStalled, now: float, policy: Policy) -> Decision:
    del policy
    what = "ranks train on, but " if state.phase is Phase.RUNNING else ""
    silent = f"the run directory has not answered for {now - event.since:.0f} s"
    reason = f"{silent}: {what}nothing is started or excluded until it does"
    if state.phase is Phase.RUNNING and state.attempt.evidence.hang is not None:
        state = running.no_hang(state)  # ranks may wait for the same disk
    return stay(state, reason, loud=_tells(state), store_stalled_since=event.since)


def _store_back(state: RunState, event: e.StoreBack, now: float, policy: Policy) -> Decision:
    del now, policy
    if state.phase is Phase.STARTING:  # what was asked for could not even begin
        for name, due in without_deadline(state, WHY).timers.deadlines.items():
            state = with_deadline(state, name, due.at + event.stalled_s)
    reason = f"the run directory answers again after {event.stalled_s:.0f} s"
    return stay(state, reason, loud=_tells(state), store_stalled_since=None)


def _tells(state: RunState) -> bool:
    """May a passing trouble be what people read? Not if the reason says why the run ended, or why it is stopped."""
    return state.phase is not Phase.STOPPING and state.phase not in TERMINAL


Row = Mapping[type[Any], "On | Refusal | Late"]

_STOPS = (Phase.STOPPING,)
_TRIES = (
    Phase.CHECKING,
    Phase.STARTING,
    Phase.WAITING,
    Phase.FAILED,
    Phase.TIME_UP,
)  # checks, an attempt, a wait; FAILED: too few nodes
_ENDS = (
    Phase.PENDING,
    Phase.WAITING,
    Phase.FAILED,
    Phase.CANCELLED,
    Phase.TIME_UP,
)  # no rank lives: the job ends at once, or after a last wait
_TAKEN = (Phase.PENDING, *_TRIES, Phase.CANCELLED)  # by a new supervisor

_STORE: Row = {e.StoreStalled: On(_store_stalled), e.StoreBack: On(_store_back)}
_EVERYWHERE: Row = {
    **_STORE,
    e.TermTaken: On(succession.term_taken, _TAKEN),
    e.AgentJoined: On(node_events.joined),
    e.AgentRejoined: On(node_events.joined),
    e.NodeSilent: On(node_events.silent),
    e.NodeHeard: On(node_events.heard),
    e.NodeLost: On(node_events.lost),
    e.NodeAbsent: On(node_events.absent),
    e.NodeChecked: On(node_events.checked),
    e.FindingRaised: On(node_events.finding),
    e.CheckpointSeen: On(running.checkpoint_seen),
    e.StepBrought: On(flush_to_disk.brought),
    e.FlushDue: Late("no rank trains on"),
    e.SaveRequested: Refusal("no rank trains now"),
    e.DrainRequested: On(planned_replacement.drain_requested),
    e.SaveAnswered: Late("no rank trains on"),
    e.CancelRequested: On(stopping.cancel_requested, (Phase.WAITING, Phase.CANCELLED)),
    e.Notice: On(stopping.notice, _ENDS),
    e.ResumeRequested: On(stopping.resume_requested, (Phase.PENDING,)),
    e.ActDone: Late("an act was done that nobody waits for"),
    e.ActFailed: Late("an action failed whose result is no longer needed"),
    e.ActUnknown: Late("an act that nobody waits for may or may not have happened"),
    e.RefillQueued: On(refills.queued),
    e.RefillUnknown: On(refills.unknown),
    e.RefillEnded: On(refills.ended),
}
_OF_RANKS = (
    *(e.RankExited, e.RankFinished, e.FirstStepSeen, e.ProgressMarked, e.ProgressStalled, e.StacksTaken),
    *(e.AnomalySeen, e.SelfCheckFailed, e.AlertSeen, e.StepsTimed),
    *(e.GangStarted, e.GangStartFailed, e.GangStopped, e.StopTimedOut),
)
_NO_RANKS: Row = {kind: Refusal("no rank of this attempt was started") for kind in _OF_RANKS}
_NO_STOP: Row = {kind: Refusal("no gang is being stopped") for kind in (e.GangStopped, e.StopTimedOut)}
_NO_CHOICE: Row = {
    e.StepHeld: Late("nothing is being sealed now"),
    e.AttemptSealed: Late("nothing is being sealed now"),
    e.ResumeChosen: Late("no resume point is being chosen now"),
    e.NoneValid: Late("no resume point is being chosen now"),
}
_ENDED: Row = {
    **{kind: Late("the run has ended") for kind in e.Event.__args__},
    **_STORE,
    e.TermTaken: On(succession.term_taken),
    e.ResumeRequested: On(stopping.resume_requested, (Phase.PENDING,)),
}

TABLE: Mapping[Phase, Row] = {
    Phase.PENDING: {
        **_EVERYWHERE,
        **_NO_RANKS,
        **_NO_CHOICE,
        e.AgentJoined: On(node_events.joined, _TRIES),
        e.AgentRejoined: On(node_events.joined, _TRIES),
        e.NodeAbsent: On(node_events.absent, _TRIES),
        e.NodeChecked: Late("nodes are not being checked now"),
        e.DeadlinePassed: On(starting.join_deadline, _TRIES),
    },
    Phase.CHECKING: {
        **_EVERYWHERE,
        **_NO_RANKS,
        **_NO_CHOICE,
        e.NodeLost: On(node_events.lost, _TRIES),
        e.NodeChecked: On(node_events.checked, _TRIES),
        e.FindingRaised: On(node_events.finding, _TRIES),
        e.DeadlinePassed: On(starting.check_deadline, _TRIES),
    },
    Phase.STARTING: {
        **_EVERYWHERE,
        **_NO_STOP,
        e.TermTaken: On(succession.term_taken, (*_TAKEN, Phase.RUNNING, Phase.STOPPING)),
        e.AgentRejoined: On(node_events.joined, _STOPS),
        e.NodeLost: On(node_events.lost, _STOPS),
        e.FindingRaised: On(node_events.finding, _STOPS),
        e.StepHeld: On(starting.step_held),
        e.AttemptSealed: On(starting.sealed),
        e.ResumeChosen: On(starting.resume_chosen, (Phase.WAITING, Phase.FAILED)),
        e.NoneValid: On(starting.none_valid, (Phase.WAITING, Phase.FAILED)),
        e.GangStarted: On(starting.gang_started, (Phase.RUNNING,)),
        e.GangStartFailed: On(starting.start_failed, _STOPS),
        e.RankExited: On(running.rank_exited, _STOPS),
        e.RankFinished: On(running.rank_finished, _STOPS),
        e.FirstStepSeen: On(running.first_step, _STOPS),
        e.ProgressMarked: On(running.progress),
        e.AnomalySeen: On(running.anomaly_seen),
        e.SelfCheckFailed: On(running.self_check_failed),
        e.AlertSeen: On(running.alert_seen),
        e.StepsTimed: Late("ranks are still starting"),
        e.ProgressStalled: Late("ranks are still starting"),
        e.StacksTaken: Late("nobody asked for stacks in this attempt"),
        e.CancelRequested: On(stopping.cancel_requested, (Phase.WAITING, Phase.STOPPING, Phase.CANCELLED)),
        e.Notice: On(stopping.notice, (*_ENDS, Phase.STOPPING)),
        e.DeadlinePassed: On(starting.start_deadline, (Phase.WAITING, Phase.FAILED, Phase.STOPPING)),
        e.ActFailed: On(starting.act_failed, (Phase.WAITING, Phase.FAILED)),
    },
    Phase.RUNNING: {
        **_EVERYWHERE,
        **_NO_STOP,
        **_NO_CHOICE,
        e.TermTaken: On(succession.term_taken, (Phase.PENDING, Phase.STOPPING)),
        e.AgentRejoined: On(node_events.joined, _STOPS),
        e.NodeLost: On(node_events.lost, _STOPS),
        e.FindingRaised: On(node_events.finding, _STOPS),
        e.GangStarted: Late("all ranks are known to run"),
        e.GangStartFailed: Refusal("all ranks were reported as started"),
        e.RankExited: On(running.rank_exited, _STOPS),
        e.RankFinished: On(running.rank_finished, _STOPS),
        e.FirstStepSeen: On(running.first_step, _STOPS),
        e.FlushDue: On(flush_to_disk.flush),
        e.SaveRequested: On(running.save_requested),
        e.SaveAnswered: On(running.save_answered),
        e.ProgressMarked: On(running.progress),
        e.AnomalySeen: On(running.anomaly_seen, _STOPS),
        e.SelfCheckFailed: On(running.self_check_failed, _STOPS),
        e.AlertSeen: On(running.alert_seen),
        e.StepsTimed: On(race.timed),
        e.ProgressStalled: On(running.stalled),
        e.StacksTaken: On(running.stacks_taken, _STOPS),
        e.CheckpointSeen: On(running.checkpoint_reached, _STOPS),
        e.CancelRequested: On(stopping.cancel_requested, _STOPS),
        e.Notice: On(stopping.notice, _STOPS),
        e.DeadlinePassed: On(running.deadline, _STOPS),
    },
    Phase.STOPPING: {
        **_EVERYWHERE,
        **{kind: Late("all ranks are being stopped") for kind in _OF_RANKS},
        **_NO_CHOICE,
        e.TermTaken: On(
            succession.term_taken,
            (Phase.PENDING, Phase.WAITING, Phase.SUCCEEDED, Phase.CANCELLED, Phase.TIME_UP),
        ),
        e.RankExited: On(running.rank_exited),
        e.RankFinished: On(running.rank_finished),
        e.ProgressMarked: On(running.progress),
        e.AnomalySeen: On(running.anomaly_seen),
        e.SelfCheckFailed: On(running.self_check_failed),
        e.AlertSeen: On(running.alert_seen),
        e.StacksTaken: On(running.stacks_taken),
        e.CheckpointSeen: On(stopping.checkpoint_seen),
        e.GangStopped: On(stopping.gang_stopped, (*_TAKEN, Phase.SUCCEEDED)),
        e.StopTimedOut: On(stopping.stop_timed_out),
        e.CancelRequested: On(stopping.cancel_requested),
        e.Notice: On(stopping.notice),
        e.DeadlinePassed: On(stopping.stop_deadline, (*_ENDS, Phase.SUCCEEDED)),
    },
    Phase.WAITING: {
        **_EVERYWHERE,
        **{kind: Late("all ranks are down") for kind in _OF_RANKS},
        **_NO_CHOICE,
        e.TermTaken: On(succession.term_taken, (*_TAKEN, Phase.STOPPING)),
        e.AgentJoined: On(node_events.joined, _TRIES),
        e.AgentRejoined: On(node_events.joined, _TRIES),
        e.NodeHeard: On(node_events.heard, _TRIES),
        e.NodeAbsent: On(node_events.absent, _TRIES),
        e.StepBrought: On(flush_to_disk.brought, _ENDS),
        e.DeadlinePassed: On(waiting.deadline, _TAKEN),
        e.RefillEnded: On(refills.ended, _TRIES),
        e.ActDone: On(waiting.submitted, (Phase.PENDING,)),
        e.ActFailed: On(waiting.not_submitted, (Phase.FAILED,)),
        e.ActUnknown: On(waiting.not_submitted, (Phase.FAILED,)),
    },
    Phase.SUCCEEDED: _ENDED,
    Phase.FAILED: _ENDED,
    Phase.CANCELLED: _ENDED,
    Phase.TIME_UP: _ENDED,
}


def next_phases(phase: Phase, kind: type[Any]) -> tuple[Phase, ...]:
    """The phases to which an event of this kind may lead from ``phase``, without ``phase`` itself."""
    entry = TABLE[phase][kind]
    return tuple(after for after in entry.to if after is not phase) if isinstance(entry, On) else ()


def follows(before: Phase, kind: type[Any], after: Phase) -> bool:
    """Is this step listed? The timer ``WHY`` stands for a notice that did not come."""
    kinds = (kind, e.Notice) if kind is e.DeadlinePassed else (kind,)
    return after is before or any(after in next_phases(before, one) for one in kinds)


def step(state: RunState, stamped: e.Stamped, now: float, policy: Policy) -> Decision:
    """Decide what one event means. ``now`` is the run clock in seconds, which never goes back.

    The event counts once whatever becomes of it: a known agent's event number is remembered even when it is ignored or
    refused, so that it can be acked.
    """
    event = stamped.event
    why_stale = stale(state, stamped)
    if why_stale:
        decision = ignored(state, why_stale)
    elif why_other := refills.of_another_job(state, stamped):
        decision = ignored(state, why_other)
    elif isinstance(event, e.Notice) and event.asking:
        decision = stopping.told_to_end(state, event, stamped.origin.node if stamped.origin else "an agent", now)
    else:
        seen, meant = stopping.as_meant(state, event, now)
        match TABLE[state.phase][type(meant)]:
            case On(handler):
                decision = total_time.counted(state, meant, handler(seen, meant, now, policy), now, policy)
                decision = race.followed_up(state, meant, decision)
                decision = flush_to_disk.first(state, decision, now, policy)
                decision = refills.follow(state, decision, now, policy)
            case Late() as why:
                decision = ignored(state, f"{type(meant).__name__} in {state.phase.value}: {why}")
            case why:
                decision = refused(state, f"{type(meant).__name__} in {state.phase.value}: {why}")
    marked = mark(decision.state, stamped)
    if decision.outcome is Outcome.APPLIED:
        marked = replace(marked, updated_at=max(now, marked.updated_at))
    return Decision(marked, decision.actions, decision.reason, decision.outcome)


_OF_AN_ATTEMPT = (*_OF_RANKS, e.FlushDue, e.SaveAnswered)


def stale(state: RunState, stamped: e.Stamped) -> str:
    """Why the event must not reach the table; "" when it may."""
    origin, event = stamped.origin, stamped.event
    if origin is not None:
        if origin.job != state.job and state.job:
            return f"from job {origin.job}, while the run is in job {state.job}"
        incarnation, newest = state.marks.get(origin.node, ("", -1))
        if incarnation == origin.incarnation and origin.seq <= newest:
            return f"said before: event {origin.seq} of {origin.node}"
        node = state.roster.nodes.get(origin.node)
        joins = isinstance(event, e.AgentJoined | e.AgentRejoined)
        if not joins and node is not None and node.incarnation != origin.incarnation:
            return f"from an agent on {origin.node} that has been replaced"
    if isinstance(event, _OF_AN_ATTEMPT) and event.attempt != state.attempt.number:
        return f"of attempt {event.attempt}, while attempt {state.attempt.number} is the newest"
    if isinstance(event, e.DeadlinePassed):
        due = state.timers.deadlines.get(event.name)
        if due is None or due.generation != event.generation:
            return f"a timer ({event.name}) that was set for something already over"
    if isinstance(event, e.TermTaken) and event.term <= state.term:
        return f"term {event.term} is not newer than term {state.term}"
    return ""


def mark(state: RunState, stamped: e.Stamped) -> RunState:
    """The state that knows this event by its number, so that it counts once."""
    origin = stamped.origin
    if origin is None:
        return state
    incarnation, newest = state.marks.get(origin.node, ("", -1))
    node = state.roster.nodes.get(origin.node)
    if node is not None and incarnation == node.incarnation != origin.incarnation:
        return state  # a late word of one that was replaced must not make its successor's events new again
    seq = max(newest, origin.seq) if incarnation == origin.incarnation else origin.seq
    if (incarnation, newest) == (origin.incarnation, seq):
        return state
    return replace(state, marks=with_entries(state.marks, {origin.node: (origin.incarnation, seq)}))
