"""STARTING to STOPPING, after the launch: what ranks do, and whether the gang makes progress.

Most of what happens here needs no stop (rung 0). What does need one only *stops* and keeps the evidence: conclusions
are drawn in ``recovery`` once every rank is down, when the late reports are in. While ranks are being stopped the same
events are evidence and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gangrun.core.actions import Decision, SaveGang, TakeStacks
from gangrun.core.events import (
    AlertSeen,
    AnomalySeen,
    CheckpointSeen,
    DeadlinePassed,
    FirstStepSeen,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    SaveAnswered,
    SaveRequested,
    SelfCheckFailed,
    StacksTaken,
)
from gangrun.core.evidence import AnomalyStop, Divergence, Evidence, Hang, RankExit
from gangrun.core.machine import total_time
from gangrun.core.machine.completion import completion, crashed_after_its_end, with_last_figures
from gangrun.core.machine.node_events import observed
from gangrun.core.machine.transitions import (
    at_log_step,
    at_step,
    ignored,
    may_hold_ranks,
    refused,
    stay,
    stop_all,
    stop_or_note,
    with_deadline,
    with_evidence,
    without_deadline,
)
from gangrun.core.model import After, OnAnomaly, OnDataChange, Phase, RunState
from gangrun.core.nodes import growth, planned_replacement
from gangrun.core.policy import Policy
from gangrun.core.recovery import alerts, anomalies, blame_hang, budget, error_rules, move, self_checks
from gangrun.core.recovery.blame import is_victim
from gangrun.core.text import counted, known_step, listed, one_line, step_words

NOT_LAUNCHED = "no rank has been launched yet"
TEXTS_MAX_COUNT = 32  # so many ranks of one failure have their text in the journal
TEXTS_LOOKED_MAX_COUNT = 4 * TEXTS_MAX_COUNT
MESSAGE_MAX_CHARS = 200
DOUBT_S = 2.0  # a signal reaches ranks before the supervisor hears that a node was told to end
ROWS_MAX_COUNT = 64  # that ranks showed which we stopped: thousands may each write something else


def how_it_ended(died: RankExit) -> str:
    """A rank's end in a few words."""
    if died.oom_kill:
        return "killed because its cgroup reached its memory limit"
    if died.error is not None:
        message = died.error.message.splitlines()[0] if died.error.message else ""
        return f"{died.error.kind}: {message}" if message else died.error.kind.rpartition(".")[2]
    return f"signal {died.signal}" if died.signal is not None else f"exit code {died.code}"


def abridged(state: RunState, event: RankExited) -> RankExited:
    """The end of a rank without its text, once that many ranks have told theirs: thousands of them fall together.

    The rank that fell before all others keeps it, however late its word comes. All have it in their own reports too.
    """
    died, error, evidence = error_rules.marked(event.exit), event.exit.error, state.attempt.evidence
    told = [one for one in evidence.exits[:TEXTS_LOOKED_MAX_COUNT] if _has_text(one)]
    stale = event.attempt != state.attempt.number
    if died.by_us:  # thousands of ranks have written the same
        died = replace(died, shown=tuple(_news_of(died, evidence)))
    if not stale and (len(told) < TEXTS_MAX_COUNT or _fell_first(died, evidence)):
        return replace(event, exit=died)
    if error is not None:
        known = any(one.error is not None and one.error.signature == error.signature for one in told)
        message = "" if known and error.signature else one_line(error.message)[:MESSAGE_MAX_CHARS]
        error = replace(error, message=message, traceback="", chain=())
    return replace(event, exit=replace(died, error=error, tail=()))


def _news_of(died: RankExit, evidence: Evidence) -> Iterator[str]:
    """What it had written that fewer than two nodes are known to show."""
    room_count = ROWS_MAX_COUNT - len(evidence.shown)
    for entry in died.shown:
        nodes = evidence.shown.get(entry.removesuffix(error_rules.LAST), ())
        room_count -= not nodes
        if died.node not in nodes and len(nodes) < 2 and (nodes or room_count >= 0):
            yield entry


def _has_text(died: RankExit) -> bool:
    return bool(died.tail) or (died.error is not None and bool(died.error.traceback))


def _fell_first(died: RankExit, evidence: Evidence) -> bool:
    """Is it the first that failed of itself?"""
    if is_victim(died):
        return False
    return all(is_victim(other) or (died.fell_at, died.rank) < (other.fell_at, other.rank) for other in evidence.exits)


def rank_exited(state: RunState, event: RankExited, now: float, policy: Policy) -> Decision:
    """One rank fell, so all must stop; in STOPPING it is one more report for the verdict."""
    died = event.exit
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    if any(other.rank == died.rank for other in state.attempt.evidence.exits):
        return ignored(state, f"rank {died.rank} is already known to have ended")
    if crashed_after_its_end(state, died, policy):
        told = died.log_reach, died.log_step, died.total_steps, died.loss
        ended = RankFinished(
            event.attempt, died.rank, died.node, died.at, died.step, *told, died.anomalies, died.checks
        )
        crashed_count = state.attempt.crashed_count + 1
        return rank_finished(
            replace(state, attempt=replace(state.attempt, crashed_count=crashed_count)), ended, now, policy
        )
    state = with_last_figures(state, died.rank, died.step, died.log_step, died.total_steps, died.loss)
    state = anomalies.with_last_words(state, died.rank, died.node, died.anomalies, died.at)
    state = self_checks.with_last_words(state, died.checks, died.at, policy)
    when = " while ranks were starting" if state.phase is Phase.STARTING else ""
    reason = f"rank {died.rank} on {died.node} ended{when} ({how_it_ended(died)})"
    if died.by_us and state.phase is Phase.STOPPING:
        return stay(_with_stopped(state, died), reason)
    evidence = replace(state.attempt.evidence, exits=(*state.attempt.evidence.exits, died))
    since_s = min(max(0.0, now - died.fell_at), policy.settle_s)
    return stop_or_note(state, now, policy, reason, evidence, policy.settle_s - since_s, peer_gone=True)


def _with_stopped(state: RunState, died: RankExit) -> RunState:
    """Of a rank that we stopped only what it had written counts, and few bytes of that: there are thousands."""
    if not died.mark:  # its agent did not look
        return state
    attempt, known = state.attempt, state.attempt.evidence.shown
    words = [entry.removesuffix(error_rules.LAST) for entry in _news_of(died, attempt.evidence)]
    if words:
        shown = {**known, **{row: (*known.get(row, ()), died.node) for row in words}}
        attempt = replace(attempt, evidence=replace(attempt.evidence, shown=shown))
    return replace(state, attempt=replace(attempt, stopped=attempt.stopped.added(died.rank)))


def rank_finished(state: RunState, event: RankFinished, now: float, policy: Policy) -> Decision:
    """The last rank ends the run if its goal is reached. After an early one the hang watch goes on, since a last save
    may take long.

    In STOPPING it proves nothing: a script that is asked to stop may well end with 0.
    """
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    state = with_last_figures(state, event.rank, event.step, event.log_step, event.total_steps, event.loss)
    state = anomalies.with_last_words(state, event.rank, event.node, event.anomalies, event.at)
    state = self_checks.with_last_words(state, event.checks, event.at, policy)
    if event.log_reach > state.attempt.reach:
        state = replace(state, attempt=replace(state.attempt, reach=event.log_reach))
    finished = state.attempt.finished.added(event.rank)
    if state.phase is Phase.STOPPING:  # perhaps of an attempt that only the nodes know, whose placement nobody does
        return stay(
            state,
            f"rank {event.rank} finished while all ranks were being stopped",
            attempt=replace(state.attempt, finished=finished),
        )
    assert state.attempt.placement is not None
    world_size = state.attempt.placement.world_size
    if len(finished) >= world_size:
        state = replace(state, attempt=replace(state.attempt, finished=finished))
        if state.phase is Phase.RUNNING and completion(state, policy).doubtful:
            state = with_deadline(state, "doubt", now + DOUBT_S)
            return stay(state, f"rank {event.rank} finished as the last one; listening whether a node was told to end")
        return all_finished(state, now, policy)
    if state.phase is Phase.RUNNING and "finish" not in state.timers.deadlines:
        state = with_deadline(state, "finish", now + policy.finish_grace_s)
    return stay(
        state,
        f"rank {event.rank} finished ({len(finished)} of {world_size})",
        attempt=replace(state.attempt, finished=finished),
    )


def all_finished(state: RunState, now: float, policy: Policy) -> Decision:
    """The end of the run, if that can be."""
    end = completion(state, policy)
    if (found := state.attempt.evidence.divergence) is not None and end.finished:
        reason = f"all ranks finished, but {self_checks.past_words(found)}"
        return stop_all(state, now, policy, After.JUDGE, reason, state.attempt.evidence)
    if end.finished:
        return stop_all(state, now, policy, After.SUCCEED, end.sentence)
    evidence = replace(state.attempt.evidence, unfinished=end.sentence)
    return stop_all(state, now, policy, After.JUDGE, end.sentence, evidence)


def deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """RUNNING has four timers: stacks that do not come, ranks that finish long before the others, all ranks that
    finished before the script's own goal, and the run's total time.
    """
    handlers = {"stacks": stacks_deadline, "doubt": all_finished, total_time.TIMER: total_time_is_up}
    return handlers.get(event.name, finish_deadline)(state, now, policy)


def total_time_is_up(state: RunState, now: float, policy: Policy) -> Decision:
    """All ranks save and stop, and the run ends; if all of them have ended, they have stopped already."""
    if "doubt" in state.timers.deadlines:
        return all_finished(state, now, policy)
    if policy.observe:
        reason = f"{total_time.words(policy)}; observing only, so gangrun stops nothing"
        return stay(without_deadline(state, total_time.TIMER), reason, loud=True)
    reason = f"{total_time.words(policy)}: ranks are asked to save, then all stop, and the run ends"
    return stop_all(state, now, policy, After.TIME_UP, reason, checkpoint_first=True)


def finish_deadline(state: RunState, now: float, policy: Policy) -> Decision:
    """Say who is still at it; whether they are stuck is for the hang watch."""
    del now
    assert state.attempt.placement is not None
    left = [f"rank {rank}" for rank in range(state.attempt.placement.world_size) if rank not in state.attempt.finished]
    done = f"{blame_hang.ended_words(state.attempt.finished)}, the first over {policy.finish_grace_s:g} s ago"
    verb = "still runs; it will hang if it needs" if len(left) == 1 else "still run; they will hang if they need"
    reason = f"{done}; {listed(left)} {verb} a rank that has ended"
    return stay(without_deadline(state, "finish"), reason, loud=True)


def first_step(state: RunState, event: FirstStepSeen, now: float, policy: Policy) -> Decision:
    """A script that was told to resume and began again would write over what it had."""
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    resumed = known_step(state.attempt.resume.step) if state.attempt.resume else -1
    counts_all = not event.printed or 0 < event.total_steps == policy.total_steps  # else perhaps this attempt's only
    if event.step < resumed and not counts_all:
        words = f"the first step printed is {event.step}, but the script was told to resume from step {resumed}"
        doubt = "it counts anew in each attempt, or it started over; --total-steps lets gangrun tell"
        return stay(state, f"{words}: {doubt}", loud=True)
    if event.written and event.step < resumed <= state.attempts[-1].first_told:
        return ignored(state, f"it wrote step {event.step} to a file, but resumed: its first step is told")
    if event.step < resumed:
        first = "the first step that it wrote to a file" if event.written else "its first step"
        reason = f"the script started over: {first} is {event.step}, but it was told to resume from step {resumed}"
        evidence = replace(state.attempt.evidence, started_over=(event.step, resumed))
        if policy.observe:
            told = observed(state, evidence, reason, now, policy)
            state = with_evidence(told.state, state.attempt.evidence)
            return replace(told, state=state if event.printed or event.written else at_step(state, event.step))
        return stop_all(state, now, policy, After.JUDGE, reason, evidence)
    state = state if event.printed or event.written else at_step(state, event.step)
    newest = state.attempts[-1]
    if not event.written:
        state = replace(state, attempts=(*state.attempts[:-1], replace(newest, first_told=event.step)))
    state = replace(state, attempt=replace(state.attempt, ready_s=now - newest.started))
    return stay(state, f"first step of attempt {state.attempt.number}: {event.step}")


def progress(state: RunState, event: ProgressMarked, now: float, policy: Policy) -> Decision:
    """Steps go on, past those at which a rank fell that was moved. Where no checkpoint is known, failures at lower
    steps are forgotten too.
    """
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    if event.total_steps > state.attempt.total_steps:
        state = replace(state, attempt=replace(state.attempt, total_steps=event.total_steps))
    if event.printed:
        return stay(at_log_step(state, event.step), f"step {event.step} was printed or written to a file")
    reason, was_told = f"step {event.step}", False
    if state.phase is Phase.RUNNING and state.attempt.evidence.hang is not None and event.step > state.attempt.step:
        was_told = "stacks" not in state.timers.deadlines  # who only observes has said that it hangs
        state, reason = no_hang(state), f"step {event.step} was reported, so the ranks do not hang"
    state = at_step(state, event.step)
    passed = state.checkpoints.best_step < 0
    kept = budget.forget(state.budget, state.checkpoints.observed_step) if passed else state.budget
    state, moved = move.passed(replace(state, budget=kept), now, policy)
    return stay(state, reason + moved, loud=was_told or bool(moved))


def anomaly_seen(state: RunState, event: AnomalySeen, now: float, policy: Policy) -> Decision:
    """Somebody has to know at once; all ranks stop if the user asked for it."""
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    state, one = anomalies.noted(state, event.rank, event.node, event.anomaly, now)
    is_up = state.phase is Phase.RUNNING
    if is_up and anomalies.acts_on(one, policy):
        stop = anomalies.stop_for(state, one, policy)
        evidence = replace(state.attempt.evidence, anomaly=stop)
        if policy.observe:
            would = observed(state, evidence, anomalies.told(one), now, policy)
            return replace(would, state=with_evidence(would.state, state.attempt.evidence))
        save = policy.on_anomaly is OnAnomaly.CHECKPOINT
        return stop_all(state, now, policy, After.JUDGE, stop.sentence, evidence, checkpoint_first=save)
    others = f", and on {counted(event.ranks_count - 1, 'other rank')}" if event.ranks_count > 1 else ""
    return stay(state, f"{anomalies.told(one)}{others}; training goes on", loud=is_up)


def self_check_failed(state: RunState, event: SelfCheckFailed, now: float, policy: Policy) -> Decision:
    """A check in the script found something. Copies that differ stop all ranks, where they show what is at fault."""
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    state, changed = self_checks.with_change(state, event.checks.data, now)
    found = event.checks.divergence
    if found is not None and not self_checks.is_known(state, found):
        return _copies_differ(state, found, changed, now, policy)
    if not changed:
        return ignored(state, "nothing new")
    if state.phase is Phase.RUNNING and policy.data_checksums is OnDataChange.STOP:
        said = f"{changed}; all ranks stop, because of --data-checksums stop"
        stop = AnomalyStop(-1, said, is_final=True, is_data=True)
        return _stop_for_check(state, replace(state.attempt.evidence, anomaly=stop), changed, said, now, policy)
    return stay(state, f"{changed}; training goes on", loud=state.phase is Phase.RUNNING)


def _copies_differ(state: RunState, found: Divergence, changed: str, now: float, policy: Policy) -> Decision:
    told = "; ".join(filter(None, (self_checks.told(state, found), changed)))
    is_up, before = state.phase is Phase.RUNNING, state.attempt.evidence
    state = self_checks.noted(state, found, now, policy)
    evidence = state.attempt.evidence
    if evidence.divergence is None:
        return stay(state, f"{told}; training goes on, and nothing more is compared in this attempt", loud=is_up)
    if not is_up:
        return stay(state, told)
    reason = f"{told}; all ranks go back to the newest checkpoint at which they agreed"
    return _stop_for_check(with_evidence(state, before), evidence, told, reason, now, policy)


def _stop_for_check(
    state: RunState, evidence: Evidence, told: str, reason: str, now: float, policy: Policy
) -> Decision:
    if policy.observe:
        would = observed(state, evidence, told, now, policy)
        return replace(would, state=with_evidence(would.state, state.attempt.evidence))
    return stop_all(state, now, policy, After.JUDGE, reason, evidence)


def alert_seen(state: RunState, event: AlertSeen, now: float, policy: Policy) -> Decision:
    """Somebody should look. If the user wants it, a node with a slow rank is left at the next checkpoint."""
    if not may_hold_ranks(state):
        return refused(state, NOT_LAUNCHED)
    if event.is_over:
        state, over = alerts.ended(state, event.alert, now)
        if over is None:
            return ignored(state, "no such alert is open")
        return stay(planned_replacement.not_slow(state, event.alert), alerts.past_words(over))
    state, one = alerts.noted(state, event.alert, now)
    reason = f"{alerts.told(one)}{alerts.causes_told(state, one)}"
    what = ""
    if event.alert.kind in alerts.OF_A_RANK:
        state, what, saves = planned_replacement.slow(state, event.alert, alerts.told(one), now, policy)
        if saves:
            return stay(state, f"{reason}{what}", SaveGang(state.attempt.number, ""), loud=True)
    return stay(state, f"{reason}{what}", loud=state.phase is Phase.RUNNING)


def checkpoint_seen(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """A newer valid checkpoint is the progress that refills the budget."""
    del now, policy
    seen = event.checkpoint
    if seen.step <= state.checkpoints.disk_step:
        return ignored(
            state,
            f"the checkpoint of {step_words(seen.step)} is not newer than {step_words(state.checkpoints.disk_step)}",
        )
    return stay(
        state,
        f"checkpoint of {step_words(seen.step)} is {seen.level.value}",
        checkpoints=replace(
            state.checkpoints,
            newest=seen,
            savers=seen.savers or state.checkpoints.savers,
            best_step=max(state.checkpoints.best_step, seen.step),
            observed_step=max(state.checkpoints.observed_step, known_step(seen.step)),
        ),
        budget=budget.reach(state.budget, seen.step, state.checkpoints.best_step),
    )


def checkpoint_reached(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """RUNNING: the same, and the moment at which the least is lost by a move: to other nodes, or to more."""
    decision = checkpoint_seen(state, event, now, policy)
    decision = planned_replacement.at_checkpoint(decision, event.step_time, now, policy)
    return growth.at_checkpoint(decision, now, policy, event.job_left_s)


def save_requested(state: RunState, event: SaveRequested, now: float, policy: Policy) -> Decision:
    """A person wants a checkpoint now."""
    del now, policy
    reason = f"{event.by} asked for a checkpoint; asking all ranks to save and to train on"
    return stay(state, reason, SaveGang(state.attempt.number, event.key))


def save_answered(state: RunState, event: SaveAnswered, now: float, policy: Policy) -> Decision:
    """What became of that; the checkpoint itself is seen in its directory."""
    del now, policy
    if event.why:
        return stay(state, f"no checkpoint was saved on request: {event.why}")
    return stay(state, f"all ranks that read requests saved when asked, at step {event.step}")


def stalled(state: RunState, event: ProgressStalled, now: float, policy: Policy) -> Decision:
    """No progress: see where every rank stands before anything is killed."""
    if state.store_stalled_since is not None:
        return ignored(state, "the run directory does not answer, and the ranks may wait only for it")
    if "stacks" in state.timers.deadlines:
        return ignored(state, "the stacks for this stall are already being taken")
    hang = Hang(event.stalled_s, event.limit_s, event.observations)
    reason = f"no progress for {event.stalled_s:.0f} s (limit {event.limit_s:.0f} s); taking the stacks of all ranks"
    state = with_deadline(state, "stacks", now + policy.stacks_within_s)
    state = with_evidence(state, replace(state.attempt.evidence, hang=hang))
    return stay(state, reason, TakeStacks(state.attempt.number), loud=True)


def stacks_taken(state: RunState, event: StacksTaken, now: float, policy: Policy) -> Decision:
    """With the stacks in hand the hang can be judged: stop."""
    hang, stopping = state.attempt.evidence.hang, state.phase is Phase.STOPPING
    if hang is None or ("stacks" not in state.timers.deadlines and not stopping):
        return ignored(state, "nobody asked for stacks in this attempt")
    evidence = replace(state.attempt.evidence, hang=replace(hang, stacks=event.stacks))
    if stopping:  # a rank fell by itself meanwhile
        return stay(with_evidence(state, evidence), "the stacks of the ranks have arrived")
    return _stop_hung(state, evidence, hang, now, policy)


def stacks_deadline(state: RunState, now: float, policy: Policy) -> Decision:
    """No stacks are evidence too."""
    hang = state.attempt.evidence.hang
    assert hang is not None  # the timer goes with it
    return _stop_hung(state, state.attempt.evidence, hang, now, policy)


def no_hang(state: RunState) -> RunState:
    """The state in which nobody suspects a hang any more."""
    return with_evidence(without_deadline(state, "stacks"), replace(state.attempt.evidence, hang=None))


def _stop_hung(state: RunState, evidence: Evidence, hang: Hang, now: float, policy: Policy) -> Decision:
    reason = f"hung: no progress for {hang.stalled_s:.0f} s (limit {hang.limit_s:.0f} s)"
    if policy.observe:
        return observed(without_deadline(state, "stacks"), evidence, reason, now, policy)
    return stop_all(state, now, policy, After.JUDGE, f"{reason}; stopping all ranks", evidence)
