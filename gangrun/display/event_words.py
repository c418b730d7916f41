"""What was seen and what was done, in a person's words.

What was *concluded* is not said here: that sentence is the core's own, and is printed as it stands. Every event and
every action has its words; a new one without them does not type-check.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangrun.core import actions as act
from gangrun.core import events as ev
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.evidence import AlertKind, RankExit, RankObservation, RankStack
from gangrun.core.model import CheckpointRef, Inventory
from gangrun.core.nodeset import fold
from gangrun.core.recovery import self_checks
from gangrun.core.text import counted, listed, one_line, step_words
from gangrun.runs import failures
from gangrun.runs.failures import RANK_STATES

_DEADLINES = {
    "join": "nodes to join",
    "check": "the checks",
    "seal": "sealing older attempts",
    "choose": "choosing a checkpoint",
    "start": "all ranks to start",
    "stop": "all ranks to stop",
    "stacks": "the stacks",
    "finish": "the other ranks to finish",
    "backoff": "the pause",
    "nodes": "nodes to come back",
    "submit": "the scheduler's answer",
    "bring": "writing the newest in-memory step to the disk",
}
_ALERTS = {
    AlertKind.SLOW_RANK: "slower than its peers",
    AlertKind.SLOWER: "slower than before",
    AlertKind.MEMORY: "memory that grows towards the node's limit",
    AlertKind.SHARED_MEMORY: "shared memory (/dev/shm) that fills up",
    AlertKind.FILES: "open files that grow towards the limit",
    AlertKind.THREADS: "threads that grow towards the limit",
    AlertKind.SLOW_GPU: "a GPU that slows all ranks down",
    AlertKind.IDLE_GPU: "a GPU that has little to do",
    AlertKind.GPU_MEMORY: "GPU memory that fills up",
}


def ranks_words(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-2,5``."""
    known = sorted(set(ranks))
    if len(known) == 1:
        return f"rank {known[0]}"
    return "ranks " + fold(str(rank) for rank in known).strip("[]")


def exit_words(died: RankExit) -> str:
    """How one rank ended, with its own words."""
    how = f"ended with exit code {died.code}" if died.signal is None else failures.signal_words(died)
    if died.oom_kill:
        how += ", because its cgroup reached its memory limit"
    if died.by_us and not failures.is_stopped(died):
        how += ", after gangrun had begun to stop the ranks"
    if died.error is not None:
        how += f": {one_line(f'{died.error.kind}: {died.error.message}')}"
    return how


def seen(event: ev.Event, at: float) -> str:
    """What happened; ``at`` is when, on the run clock."""
    match event:
        case (
            ev.AgentJoined()
            | ev.AgentRejoined()
            | ev.TermTaken()
            | ev.ResumeRequested()
            | ev.CancelRequested()
            | ev.SaveRequested()
            | ev.DrainRequested()
        ):
            return _of_people_and_processes(event)
        case ev.NodeSilent() | ev.NodeLost() | ev.NodeHeard() | ev.NodeAbsent() | ev.NodeChecked() | ev.FindingRaised():
            return _of_nodes(event, at)
        case ev.AttemptSealed() | ev.ResumeChosen() | ev.NoneValid() | ev.CheckpointSeen():
            return _of_checkpoints(event)
        case ev.StepBrought() | ev.StepHeld():
            return flush_to_disk.sentence(event)
        case ev.SaveAnswered():
            return f"the ranks did not save: {event.why}" if event.why else f"the ranks saved step {event.step}"
        case ev.FlushDue():
            return f"step {event.step} is only in memory, and is to be written to disk"
        case ev.GangStarted() | ev.GangStartFailed() | ev.GangStopped() | ev.StopTimedOut():
            return _of_the_gang(event)
        case ev.RankExited() | ev.RankFinished():
            return _of_ranks(event)
        case ev.FirstStepSeen() | ev.ProgressMarked() | ev.ProgressStalled() | ev.StacksTaken() | ev.AlertSeen():
            return _of_progress(event)
        case ev.AnomalySeen() | ev.SelfCheckFailed() | ev.StepsTimed():
            return _of_numbers(event)
        case (
            ev.Notice()
            | ev.ActDone()
            | ev.ActFailed()
            | ev.ActUnknown()
            | ev.RefillQueued()
            | ev.RefillUnknown()
            | ev.RefillEnded()
        ):
            return _of_the_scheduler(event)
        case ev.DeadlinePassed(name=name):
            return f"the time limit for {_DEADLINES.get(name, name)} has passed"
        case ev.StoreStalled(since=since):
            return f"the run directory has not answered for {max(0.0, at - since):.0f} s"
        case ev.StoreBack(stalled_s=stalled_s):
            return f"the run directory answered after {stalled_s:.0f} s"


def _of_people_and_processes(
    event: ev.AgentJoined
    | ev.AgentRejoined
    | ev.TermTaken
    | ev.ResumeRequested
    | ev.CancelRequested
    | ev.SaveRequested
    | ev.DrainRequested,
) -> str:
    match event:
        case ev.AgentJoined():
            return f"the agent of {event.node} connected ({counted(event.slots_count, 'slot')})"
        case ev.AgentRejoined():
            return f"a new agent on {event.node} connected{': ' + event.why if event.why else ''}"
        case ev.TermTaken():
            held = _inventories(event.inventories)
            number = event.job.partition("r")[0]  # of whichever stay of it
            there = f" in job {number}" if number.isdecimal() else ""
            return f"supervisor #{event.term} has its term{there}{'; ' + held if held else ''}"
        case ev.ResumeRequested():
            return f"{event.by} resumed the run (from: {event.resume_request})"
        case ev.CancelRequested():
            return f"{event.by} cancelled the run"
        case ev.SaveRequested():
            return f"{event.by} asked for a checkpoint"
        case ev.DrainRequested():
            return f"{event.by} drains {event.node}"


def _inventories(inventories: Iterable[Inventory]) -> str:
    with_ranks = [held for held in inventories if held.ranks]
    if not with_ranks:
        return ""
    ranks_count = sum(len(held.ranks) for held in with_ranks)
    return f"{counted(ranks_count, 'rank')} alive on {fold(held.node for held in with_ranks)}"


def _of_nodes(
    event: ev.NodeSilent | ev.NodeLost | ev.NodeHeard | ev.NodeAbsent | ev.NodeChecked | ev.FindingRaised, at: float
) -> str:
    match event:
        case ev.NodeSilent():
            return f"no heartbeat from {event.node} for {max(0.0, at - event.since):.0f} s"
        case ev.NodeLost():
            return f"{event.node} is lost, no heartbeat for {max(0.0, at - event.since):.0f} s: {event.why}"
        case ev.NodeHeard():
            return f"{event.node} sends heartbeats again"
        case ev.NodeAbsent(taken=True):
            return event.why or f"the scheduler took {event.node} out of the job"
        case ev.NodeAbsent():
            whose = "the scheduler started nothing on" if event.scheduler else "no agent connected from"
            return f"{whose} {event.node}: {event.why}"
        case ev.NodeChecked():
            how = ", with a device test" if event.tested else ""
            lost = [one.partner for one in event.met if one.error]
            reached = f"does not reach {fold(lost)}" if lost else f"reaches {fold(one.partner for one in event.met)}"
            how += f"; it {reached} over the network" if event.met else ""
            return f"the checks of {event.node} {'passed' if event.ok else 'failed: ' + event.reason}{how}"
        case ev.FindingRaised(finding=found):
            return f"check {found.check} on {found.node}: {found.sentence}"


def _of_checkpoints(event: ev.AttemptSealed | ev.ResumeChosen | ev.NoneValid | ev.CheckpointSeen) -> str:
    match event:
        case ev.AttemptSealed():
            return f"staging of all attempts before {event.attempt} is sealed"
        case ev.ResumeChosen():
            chosen = event.checkpoint
            none = "no checkpoint on disk is resumed from"
            return none if chosen is None else f"a checkpoint: {_checkpoint(chosen)}"
        case ev.NoneValid():
            return "the checkpoints could not be read" if event.storage else "no checkpoint may be resumed from"
        case ev.CheckpointSeen():
            return f"a newer checkpoint: {_checkpoint(event.checkpoint)}"


def _checkpoint(ref: CheckpointRef) -> str:
    return f"{step_words(ref.step)}, {ref.level.value}, {ref.path}"


def _of_the_gang(event: ev.GangStarted | ev.GangStartFailed | ev.GangStopped | ev.StopTimedOut) -> str:
    match event:
        case ev.GangStarted():
            return f"every node has launched its ranks of attempt {event.attempt}"
        case ev.GangStartFailed():
            innocent = " (no node is at fault)" if event.retry_free else ""
            return f"{event.node or 'a node'} could not start its ranks{innocent}: {event.why}"
        case ev.GangStopped():
            presumed = "".join(f"; {node} is not waited for: {rule}" for node, rule in event.presumed)
            left = f"; left behind: {', '.join(event.leftovers)}" if event.leftovers else ""
            return f"all ranks of attempt {event.attempt} have ended{presumed}{left}"
        case ev.StopTimedOut():
            return f"{event.node} cannot end {', '.join(event.processes)}"


def _of_ranks(event: ev.RankExited | ev.RankFinished) -> str:
    match event:
        case ev.RankExited(exit=died):
            return f"rank {died.rank} on {died.node}: {exit_words(died)}"
        case ev.RankFinished():
            return f"rank {event.rank} on {event.node} ended with exit code 0"


def _of_progress(
    event: ev.FirstStepSeen | ev.ProgressMarked | ev.ProgressStalled | ev.StacksTaken | ev.AlertSeen,
) -> str:
    match event:
        case ev.FirstStepSeen() | ev.ProgressMarked():
            printed = isinstance(event, ev.ProgressMarked) and event.printed
            return f"step {event.step} was {'printed' if printed else 'reported'}"
        case ev.ProgressStalled():
            where = _observations(event.observations)
            return f"no sign of progress for {event.stalled_s:.0f} s (limit {event.limit_s:.0f} s){where}"
        case ev.StacksTaken():
            return f"stacks of the ranks: {_stacks(event.stacks)}"
        case ev.AlertSeen(alert=alert):
            where = f"rank {alert.rank} on {alert.node}" if alert.rank >= 0 else alert.node or "all ranks"
            return f"{where}: {_ALERTS[alert.kind]}{', but no more' if event.is_over else ''}"


def _of_numbers(event: ev.AnomalySeen | ev.SelfCheckFailed | ev.StepsTimed) -> str:
    match event:
        case ev.StepsTimed():
            return f"a step took {event.step_s:.3g} s, the median of {event.steps_count} steps"
        case ev.AnomalySeen(anomaly=found):
            return f"rank {event.rank} on {event.node} reported a {found.what} of {found.value} at step {found.step}"
        case ev.SelfCheckFailed(checks=checks):
            copies = self_checks.past_words(checks.divergence) if checks.divergence is not None else ""
            data = self_checks.change_words(checks.data) if checks.data is not None else ""
            return "; ".join(filter(None, (copies, data))) or "no check failed"


def _observations(observations: Iterable[RankObservation]) -> str:
    groups: dict[tuple[int, str], list[int]] = {}
    for one in observations:
        groups.setdefault((one.step, one.state), []).append(one.rank)
    told = []
    for (step, state), ranks in groups.items():
        at_step = f" at step {step}" if step >= 0 else ""
        told.append(f"{ranks_words(ranks)}{at_step} {RANK_STATES.get(state, state)}")
    return f"; {', '.join(told)}" if told else ""


def _stacks(stacks: Iterable[RankStack]) -> str:
    groups: dict[str, list[int]] = {}
    for one in stacks:
        groups.setdefault(one.frame, []).append(one.rank)
    return "; ".join(f"{ranks_words(ranks)} in {frame}" for frame, ranks in groups.items()) or "no rank answered"


_OfTheScheduler = (
    ev.Notice | ev.ActDone | ev.ActFailed | ev.ActUnknown | ev.RefillQueued | ev.RefillUnknown | ev.RefillEnded
)


def _of_the_scheduler(event: _OfTheScheduler) -> str:
    match event:
        case ev.Notice(asking=True):
            return "an agent received SIGTERM; asking the scheduler for the reason"
        case ev.Notice():
            return f"notice: {event.kind.value}, {event.grace_s:.0f} s left"
        case ev.ActDone():
            return f"{event.what} was done"
        case ev.ActFailed():
            return f"{event.what} failed: {event.why}"
        case ev.ActUnknown():
            return f"it is not known whether {event.what} was done: {event.why}"
        case ev.RefillQueued():
            waits = f"waits in the queue ({event.waits})" if event.waits else "has its node"
            return f"refill {event.number} is job {event.job}, which {waits}"
        case ev.RefillUnknown():
            return f"it is not known whether the scheduler took refill {event.number}: {event.why}"
        case ev.RefillEnded():
            return f"refill {event.number} is over: {event.why}"


def done(action: act.Action) -> str:
    """What was asked of the world."""
    match action:
        case act.CheckNodes(nodes=nodes):
            at_work = ", with a device test" if action.tests else ""
            at_work += ", with a network test" if action.rounds else ""
            return f"started the checks of {fold(nodes)}{at_work}"
        case act.SealAttempts():
            return f"sealed staging of all attempts before {action.attempt}"
        case act.ChooseResume():
            known = f", known best: {step_words(action.best_step)}" if action.best_step >= 0 else ""
            back = f"put back {listed(action.put_back)} and " if action.put_back else ""
            later = " and later" if action.condemned and not action.condemned.signature else ""
            without = f" without {step_words(action.condemned.step)}{later}" if action.condemned else ""
            return f"{back}looked for the checkpoint to resume from ({action.request}{known}){without}"
        case act.StartGang(placement=placed, resume=resume):
            origin = f" from {step_words(resume.step)}" if resume else ""
            origin += " in memory" if resume and resume.memory else ""
            left_out = sum(count for _, count in action.skip_batches)
            without = f", without {left_out} global batches" if left_out else ""
            return f"started {counted(placed.world_size, 'rank')} on {fold(placed.nodes)}{origin}{without}"
        case act.StopGang():
            save = ", a checkpoint first if the script can" if action.checkpoint_first else ""
            grace = f"{action.grace_s:g} s" if action.grace_s else "no"
            return f"stopped all ranks ({grace} grace{save})"
        case act.TakeStacks():
            return "took the stacks of all ranks"
        case act.SaveGang():
            return "asked all ranks to save and to train on"
        case act.ProbeNode():
            return f"asked other nodes whether they reach {action.node}"
        case act.BringSteps():
            above = f" above step {action.above_step}" if action.above_step >= 0 else ""
            return f"asked {fold(action.nodes)} for the newest step in memory{above}"
        case act.SubmitSuccessor():
            without = f" without {fold(action.exclude)}" if action.exclude else ""
            curable = fold(node for node, _ in action.if_booted)
            unless = f" ({curable} if it has not booted since)" if curable else ""
            return f"asked the scheduler for job {action.seq} of this run{without}{unless}"
        case act.SubmitRefill():
            if action.job:
                return f"looked for refill {action.number} (job {action.job})"
            return f"asked the scheduler for one more node for job {action.seq} of this run (refill {action.number})"
        case act.CancelRefill():
            return f"cancelled refill {action.number}: {action.reason}"
        case act.EndJob():
            back = f", and put back {listed(action.put_back)}" if action.put_back else ""
            return f"ended this job as {action.phase.value} (exit code {action.exit_code}){back}"
