"""STOPPING, and the ends that somebody asks for.

All ranks go down and evidence comes in; once no rank lives, what was to follow does. A cancel, a notice of the
scheduler or a signal asks for an end, and a person may resume a run that has ended.

A signal does not say why. If a scheduler can be asked, an agent's "I was told to end" only begins a wait for the
scheduler's answer, which is a ``Notice`` without an origin. No answer in time means: stop. The wait goes on through all
phases (its timer is ``WHY``).
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision, StopGang
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.events import (
    CancelRequested,
    CheckpointSeen,
    DeadlinePassed,
    Event,
    GangStopped,
    Notice,
    NoticeKind,
    ResumeRequested,
    StopTimedOut,
)
from gangrun.core.evidence import NodeFinding
from gangrun.core.machine import running, total_time
from gangrun.core.machine.completion import completion, reached_goal
from gangrun.core.machine.transitions import (
    WHY,
    close_attempt,
    enter,
    fenced,
    finish,
    ignored,
    left_by_its_job,
    may_hold_ranks,
    refused,
    stay,
    stop_all,
    stop_bound_s,
    stop_gang,
    with_deadline,
    with_evidence,
    without_deadline,
)
from gangrun.core.model import TERMINAL, After, Budget, NodeHealth, Outcome, Phase, RunState, TrainingTime
from gangrun.core.nodes import planned_replacement, quarantine, roster
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import anomalies, budget, choose
from gangrun.core.text import time_words

ANSWER_SHARE = 0.5  # of the time until the nodes go; the rest is for the stop
_ENDS_THE_RUN = {NoticeKind.CANCEL: "the scheduler", NoticeKind.UNKNOWN: "a signal"}  # by whom it is cancelled
_LEFT_TIME = {After.CANCEL, After.TIME_UP, After.REQUEUE, After.RETURN, After.MOVE}  # no failure: a script could save
STOP_ROUNDS_MAX = 3
UNKILLABLE = "unkillable processes"
FREE_STARTS_MAX = 20


def checkpoint_seen(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """What all were told to save is there, whole: whoever trains on after saving is not waited for any longer."""
    decision = running.checkpoint_seen(state, event, now, policy)
    step = event.checkpoint.step
    told_to = state.underway.saving and event.told
    if decision.outcome is not Outcome.APPLIED or not told_to or step < state.attempt.step:
        return decision
    reason = f"{decision.reason}; this is the checkpoint that ranks were told to save, so all of them are stopped now"
    new = with_deadline(decision.state, "stop", now + stop_bound_s(policy, checkpoint_first=False))
    stop = stop_gang(new, now, policy, reason, checkpoint_first=False)
    return stay(new, reason, stop, underway=replace(new.underway, saving=False))


def gang_stopped(state: RunState, event: GangStopped, now: float, policy: Policy) -> Decision:
    """No rank lives: the next thing is due. What could not be cleaned away is said whatever that is."""
    state = _with_presumed(state, event)
    decision = _what_follows(replace(state, tries_count=0), now, policy)
    told = [f"left behind: {', '.join(event.leftovers)}"] if event.leftovers else []
    if event.overdue and state.underway.after in _LEFT_TIME:
        ranks = f"rank{'s' * (len(event.overdue) > 1)} {fold(map(str, event.overdue)).strip('[]')}"
        were = "were" if len(event.overdue) > 1 else "was"
        told.append(f"{ranks} did not end within {time_words(event.grace_s)} of SIGTERM and {were} killed")
    if event.saved_step >= 0 and state.underway.after in _LEFT_TIME:
        told.append(f"the script saved step {event.saved_step} first")
    if not told:
        return decision
    reason = f"{decision.reason} ({'; '.join(told)})"
    return replace(decision, reason=reason, state=replace(decision.state, reason=reason))


def _with_presumed(state: RunState, event: GangStopped) -> RunState:
    """A node that has not said a word until its lease was over is evidence, whoever else could be heard meanwhile."""
    here = {name: state.roster.nodes.get(name) for name, _ in event.presumed if roster.in_gang(state, name)}
    silent = {name: one.silent_since for name, one in here.items() if one is not None and one.silent_since is not None}
    if not silent or state.roster.alone:
        return state
    evidence = state.attempt.evidence
    return with_evidence(state, replace(evidence, silent={**silent, **evidence.silent}))


def _what_follows(state: RunState, now: float, policy: Policy) -> Decision:
    match state.underway.after:
        case After.SUCCEED:
            said, wrong = completion(without_deadline(state, WHY), policy).sentence, anomalies.summary(state)
            return finish(state, Phase.SUCCEEDED, now, f"{said}, but {wrong}" if wrong else said)
        case After.CANCEL:
            return finish(state, Phase.CANCELLED, now, f"cancelled by {state.ending.cancelled_by}")
        case After.TIME_UP if reached_goal(state, policy):
            return finish(state, Phase.SUCCEEDED, now, completion(without_deadline(state, WHY), policy).sentence)
        case After.TIME_UP:
            return total_time.end(state, now, policy)
        case After.REQUEUE:
            return choose.requeue(state, now, policy, state.reason)
        case After.RETURN:
            return choose.come_back(state, now, policy, state.reason)
        case After.AGAIN:
            return _start_again(state, now, policy)
        case After.MOVE:
            return planned_replacement.moved(state, now, policy)
        case _:
            return choose.judge(state, now, policy)


def _start_again(state: RunState, now: float, policy: Policy) -> Decision:
    """Free of charge, but not for ever: what was nobody's fault twenty times over is somebody's."""
    count = state.budget.used.get(budget.FREE_STARTS, 0) + 1
    if count > FREE_STARTS_MAX:
        evidence = replace(state.attempt.evidence, start_failed=("", f"{state.reason}, {FREE_STARTS_MAX} times over"))
        return choose.judge(with_evidence(state, evidence), now, policy)
    used = {**state.budget.used, budget.FREE_STARTS: count}
    closed = close_attempt(state, now, "not started", state.reason)
    again = replace(state, attempts=closed, budget=replace(state.budget, used=used))
    return choose.begin_attempt(again, now, policy, state.reason)


def stop_timed_out(state: RunState, event: StopTimedOut, now: float, policy: Policy) -> Decision:
    """Processes that not even SIGKILL ends: the kernel holds them, so the node is the suspect."""
    del policy
    sentence = f"{event.node} cannot end {', '.join(event.processes)}: the kernel holds them (D state)"
    if any((other.node, other.check) == (event.node, UNKILLABLE) for other in state.attempt.evidence.findings):
        return stay(state, sentence)
    found = NodeFinding(event.node, UNKILLABLE, True, sentence, now)
    evidence = replace(state.attempt.evidence, findings=(*state.attempt.evidence.findings, found))
    return stay(with_evidence(state, evidence), sentence, loud=True)


def stop_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """Ask again without grace; after some rounds end the run rather than risk a second gang."""
    del event
    rounds = state.tries_count + 1
    if rounds > STOP_ROUNDS_MAX:
        reason = f"gangrun cannot prove that all ranks of attempt {state.attempt.number} are gone: {state.reason}"
        names = state.attempt.placement.nodes if state.attempt.placement else ()
        unproven = fenced(state, names, now + stop_bound_s(policy, checkpoint_first=False), now)
        match state.underway.after:
            case After.CANCEL:
                return finish(unproven, Phase.CANCELLED, now, reason)
            case After.SUCCEED:
                return finish(unproven, Phase.SUCCEEDED, now, reason)
            case After.TIME_UP:
                return finish(unproven, Phase.TIME_UP, now, reason)
            case After.RETURN:
                return choose.come_back(unproven, now, policy, reason)
            case _:
                return choose.leave_behind(unproven, now, policy, reason)
    reason = f"ranks of attempt {state.attempt.number} may still live; ordering the stop again"
    reason += f" ({rounds} of {STOP_ROUNDS_MAX})"
    state = with_deadline(state, "stop", now + stop_bound_s(policy, checkpoint_first=False))
    stop = StopGang(state.attempt.number, 0.0, False, reason)
    return stay(state, reason, stop, tries_count=rounds, underway=replace(state.underway, saving=False))


# ---- asked to end ----------------------------------------------------------------------------------------------------


def cancel_requested(state: RunState, event: CancelRequested, now: float, policy: Policy) -> Decision:
    """Someone asked for the end."""
    return cancel(state, event.by, now, policy, at_once=event.now)


def cancel(state: RunState, by: str, now: float, policy: Policy, *, at_once: bool = False) -> Decision:
    """Stop in order, or ``at_once``. In RUNNING a script may save first; a second cancel ends every wait."""
    if state.underway.bringing is not None:
        return flush_to_disk.cancel(state, by, now, policy)
    if state.phase is Phase.STOPPING:
        return _cancel_stopping(state, by, at_once=at_once)
    state = replace(state, ending=replace(state.ending, cancelled_by=by))
    reason = f"cancelled by {by}"
    if not may_hold_ranks(state):
        return finish(state, Phase.CANCELLED, now, reason)
    save = state.phase is Phase.RUNNING and not at_once
    doing = "killing" if at_once else "stopping"
    decision = stop_all(state, now, policy, After.CANCEL, f"{reason}; {doing} all ranks", checkpoint_first=save)
    return _without_grace(decision) if at_once else decision


def _without_grace(decision: Decision) -> Decision:
    stops = tuple(replace(one, grace_s=0.0) if isinstance(one, StopGang) else one for one in decision.actions)
    return replace(decision, actions=stops)


def _cancel_stopping(state: RunState, by: str, *, at_once: bool) -> Decision:
    if state.underway.after is After.CANCEL:
        reason = f"cancelled again by {by}; killing all ranks"
        stop = StopGang(state.attempt.number, 0.0, False, reason)
        return stay(state, reason, stop, loud=True, underway=replace(state.underway, saving=False, hurried=True))
    if state.underway.after is After.SUCCEED:
        return ignored(state, f"cancelled by {by}, but all ranks have finished already")
    reason = f"cancelled by {by} while all ranks were being stopped"
    state = replace(state, ending=replace(state.ending, cancelled_by=by))
    kill = (StopGang(state.attempt.number, 0.0, False, reason),) if at_once else ()
    return stay(state, reason, *kill, loud=True, underway=replace(state.underway, after=After.CANCEL))


def notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """The scheduler takes the nodes: save, stop, and go on elsewhere unless the run was cancelled."""
    if state.underway.bringing is not None:
        return flush_to_disk.notice(state, event, now, policy)
    if state.phase is Phase.STOPPING:
        return _notice_stopping(state, event, now, policy)
    goes_on_elsewhere = state.underway.submitting or state.ending.leaving
    if event.kind is not NoticeKind.CANCEL and goes_on_elsewhere and not may_hold_ranks(state):
        return stay(state, f"{event.kind.value} while the next job is being asked for")
    if event.kind in _ENDS_THE_RUN:
        return cancel(state, _ENDS_THE_RUN[event.kind], now, policy)
    if may_hold_ranks(state):
        save = state.phase is Phase.RUNNING
        about = f" ({event.about})" if event.about else ""
        reason = f"{event.kind.value}{about}: {event.grace_s:.0f} s to {'save and ' if save else ''}stop"
        return stop_all(state, now, policy, _after_notice(event), reason, checkpoint_first=save)
    if event.kind is NoticeKind.REQUEUE:
        return choose.come_back(state, now, policy, event.kind.value)
    return choose.requeue(state, now, policy, event.kind.value)


def _notice_stopping(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """The nodes go while all ranks are stopped: what was to be restarted here is requeued."""
    reason = f"{event.kind.value} while all ranks were being stopped"
    ends = state.underway.after in {After.CANCEL, After.SUCCEED}
    if ends or (state.underway.after is After.TIME_UP and event.kind is not NoticeKind.CANCEL):
        # Every node's agent passes the same notice on: none hurries.
        return stay(state, reason)
    after = _after_notice(event)
    why_is_known = event.kind is NoticeKind.UNKNOWN and state.underway.after in {After.REQUEUE, After.RETURN}
    if why_is_known or (event.kind is not NoticeKind.CANCEL and state.underway.after is after):
        return stay(state, f"{reason}, which is known")  # what was said of it first tells more
    if event.kind in _ENDS_THE_RUN:
        return cancel(state, _ENDS_THE_RUN[event.kind], now, policy)
    return stay(state, reason, loud=True, underway=replace(state.underway, after=after))


def _after_notice(event: Notice) -> After:
    """Whether the run goes on in the same job, which comes back by itself, or in another."""
    return After.RETURN if event.kind is NoticeKind.REQUEUE else After.REQUEUE


def told_to_end(state: RunState, event: Notice, node: str, now: float) -> Decision:
    """An agent was told to end, and the scheduler is being asked why."""
    if state.phase in TERMINAL or WHY in state.timers.deadlines:
        return ignored(state, f"{node} received SIGTERM too; the scheduler has been asked for the reason")
    state = with_deadline(state, WHY, now + ANSWER_SHARE * event.grace_s)
    ending = replace(state.ending, gone_at=now + event.grace_s)
    return stay(state, f"{node} received SIGTERM; asking the scheduler for the reason", ending=ending)


def as_meant(state: RunState, event: Event, now: float) -> tuple[RunState, Event]:
    """The event as its handler is to see it: an answer ends the wait for it, and so does its deadline."""
    if isinstance(event, Notice):
        gone_at: float | None = now + event.grace_s
        if event.kind is NoticeKind.UNKNOWN:  # nobody has said that the nodes go: only sooner than was thought
            gone_at = None if state.ending.gone_at is None else min(state.ending.gone_at, now + event.grace_s)
        ending = replace(state.ending, gone_at=gone_at, measured_save_s=max(state.ending.measured_save_s, event.save_s))
        return replace(without_deadline(state, WHY), ending=ending), event
    if isinstance(event, DeadlinePassed) and event.name == WHY:
        left_s = max(0.0, state.ending.gone_at - now) if state.ending.gone_at is not None else 0.0
        return without_deadline(state, WHY), Notice(NoticeKind.UNKNOWN, left_s)
    return state, event


def resume_requested(state: RunState, event: ResumeRequested, now: float, policy: Policy) -> Decision:
    """A person takes the run up again, in another job: a fresh budget, and exclusions only as long as they last. The
    total time begins anew if it was used. A run
    that has not ended was abandoned by its job, as nobody may resume one that lives.
    """
    if state.phase not in TERMINAL and event.job == state.job:
        return refused(state, "the run has not ended: cancel it first, or let it go on")
    if state.phase not in TERMINAL and state.underway.after is After.SUCCEED:
        return refused(state, "all ranks had finished before their job ended: nothing is left to do")
    state = left_by_its_job(state, now, policy)
    return enter(
        state,
        Phase.PENDING,
        f"resumed by {event.by}; waiting for nodes",
        deadlines={"join": now + policy.join_within_s},
        ending=replace(state.ending, failure=None, cancelled_by=""),
        job=event.job,
        seq=max(state.seq, event.seq),
        budget=Budget(total_count=state.budget.total_count, mark=state.budget.mark),
        training=TrainingTime() if total_time.is_used(state, now, policy) else state.training,
        health=NodeHealth(excluded=quarantine.kept(state.health.excluded, now), reports=state.health.reports),
        checkpoints=replace(state.checkpoints, resume_request=event.resume_request),
    )
