"""PENDING, CHECKING and STARTING: from nobody there to all ranks alive.

An attempt starts in three stages: staging of older attempts is *sealed*, the resume point is *chosen*, the gang is
*launched*. Nodes are picked last, at the launch, so that a node lost meanwhile costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gangrun.core.actions import ChooseResume, Decision, EndJob, SealAttempts, StartGang
from gangrun.core.checkpoints import flush_to_disk, poison
from gangrun.core.events import (
    ActFailed,
    AttemptSealed,
    DeadlinePassed,
    GangStarted,
    GangStartFailed,
    NoneValid,
    ResumeChosen,
    StepHeld,
)
from gangrun.core.evidence import Evidence
from gangrun.core.machine.transitions import enter, finish, ignored, stay, stop_all, with_deadline
from gangrun.core.model import (
    After,
    CheckpointRef,
    Failure,
    HeldStep,
    Level,
    Phase,
    RunState,
    Savers,
    StartStage,
    Underway,
)
from gangrun.core.nodes import absences, device_test, placement, quarantine, roster
from gangrun.core.nodeset import NAMED_MAX_COUNT, fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import anomalies, budget, choose
from gangrun.core.text import counted, step_words


def count_heads(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """PENDING: one agent more."""
    here, wanted = len(state.roster.nodes), state.shape.nodes_count
    if here >= wanted:
        why = f"all {wanted} nodes are here" if wanted > 1 else f"{next(iter(state.roster.nodes))} is here"
        return choose.begin_checks(state, now, policy, why)
    if absences.nobody_else_comes(state.roster):
        return with_those_who_came(state, now, policy)
    return stay(state, f"{reason} ({here} of {wanted} nodes)", loud=True)


def with_those_who_came(state: RunState, now: float, policy: Policy, within: str = "") -> Decision:
    """PENDING: nobody else comes, or not in time: start with the nodes that came, if they are enough."""
    here, shape = len(state.roster.nodes), state.shape
    names = f" ({fold(state.roster.nodes)})" if here else ""
    count = max(shape.nodes_count, len(state.roster.expected))
    reason = f"{here} of {count} nodes joined{within}{names}{absences.told(state.roster)}"
    if here >= max(1, shape.nodes_min_count):
        return choose.begin_checks(state, now, policy, reason)
    return absences.too_few(state, now, policy, reason)


def check_late_node(state: RunState, name: str, now: float, policy: Policy) -> Decision:
    """CHECKING: one more node, or one that came back: it is asked too."""
    asked = device_test.ask(state, (name,), policy) if state.roster.nodes[name].checked is None else ()
    if any(one.tests for one in asked):
        due = max(state.timers.deadlines["check"].at, now + device_test.within_s(asked, policy))
        state = with_deadline(state, "check", due)
    return stay(state, f"{name} joined while nodes are being checked", *asked)


def when_checked(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """CHECKING: the last answer starts the gang."""
    waiting_count = device_test.awaited_count(state, now)
    if waiting_count:
        # Who they are is found out only if they are named: it is said once per answer.
        few = waiting_count <= NAMED_MAX_COUNT
        rest = fold(device_test.awaited(state, now)) if few else counted(waiting_count, "node")
        return stay(state, f"{reason}; waiting for {rest}", loud=True)
    return choose.begin_attempt(state, now, policy, reason)


def check_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """CHECKING: a checker that does not answer is unknown, which excludes nobody."""
    del event
    asked = device_test.ask(state, roster.unchecked(state), policy)
    late = device_test.overdue(state, now, policy)
    state, waiting = late.state, device_test.awaited(late.state, now)
    unknown = (
        f"no answer from the checks on {fold(waiting)} in {device_test.within_s(asked, policy):g} s,"
        " which does not count against a node"
    )
    why = "; ".join(filter(None, (late.sentence, unknown if waiting else "")))
    return choose.begin_attempt(state, now, policy, why)


def join_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """PENDING: start with those who came, if they are enough; a job that only ends is told so again."""
    if state.ending.leaving:
        reason = "the run goes on in another job, and this one has not ended yet"
        again = with_deadline(state, event.name, now + policy.join_within_s)
        return stay(again, reason, EndJob(Phase.PENDING, 0, reason), loud=True)
    return with_those_who_came(state, now, policy, f" within {policy.join_within_s:g} s")


def sealed(state: RunState, event: AttemptSealed, now: float, policy: Policy) -> Decision:
    """STARTING: nothing older can be committed any more, so the choice will stand."""
    if state.underway.stage is not StartStage.SEALING or event.attempt != state.attempt.number:
        return ignored(state, f"attempt {event.attempt} is not being sealed")
    saved, number = state.checkpoints, state.attempt.number
    reason = f"older attempts are sealed; looking for the checkpoint that attempt {number} resumes from"
    if saved.held is None:  # what is in memory only may still have to be brought
        saved = replace(saved, brought_attempt=max(saved.brought_attempt, number - 1))
    return enter(
        state,
        Phase.STARTING,
        reason,
        ChooseResume(number, saved.resume_request, saved.best_step, poison.to_set_aside(state), saved.cleared),
        deadlines={"choose": now + policy.choose_within_s},
        underway=Underway(stage=StartStage.CHOOSING),
        checkpoints=saved,
    )


def step_held(state: RunState, event: StepHeld, now: float, policy: Policy) -> Decision:
    """STARTING: the newest step need not go through the disk if the ranks come to be on these nodes."""
    del now, policy
    if state.underway.stage is not StartStage.SEALING or event.attempt != state.attempt.number:
        return ignored(state, f"attempt {event.attempt} is not being sealed")
    held = replace(state.checkpoints, held=HeldStep(event.save, event.nodes))
    return stay(replace(state, checkpoints=held), flush_to_disk.sentence(event))


def _through_disk(state: RunState, now: float, policy: Policy, why: str) -> Decision:
    """The step in memory cannot be loaded there: another attempt, before which it is written to the disk."""
    held = state.checkpoints.held
    assert held is not None
    reason = f"step {held.save.step} is written to disk from memory first ({why})"
    return choose.begin_attempt(state, now, policy, reason, through_disk=True)


def _without_it(state: RunState, nodes: Collection[str]) -> str:
    """Why ranks on these nodes cannot load the step in memory; "" if they can."""
    held = state.checkpoints.held
    assert held is not None
    missing = sorted(set(held.nodes).difference(nodes, held.save.lacking)) if held.save.is_shared else ()
    if missing:
        return f"{fold(missing)} {'has' if len(missing) == 1 else 'have'} a part of it, and will have no ranks"
    others = sorted(set(nodes).difference(held.nodes))
    return f"not in the memory of {fold(others)}, where ranks will be" if others else ""


def _resume_point(state: RunState, on_disk: CheckpointRef | None) -> CheckpointRef | None:
    """What is on disk, or what is newer in memory."""
    held = state.checkpoints.held
    if held is None or (on_disk is not None and on_disk.step >= held.save.step):
        return on_disk
    return CheckpointRef(held.save.step, "", Level.COMPLETE, Savers.CHECKPOINTER, held.save)


def resume_chosen(state: RunState, event: ResumeChosen, now: float, policy: Policy) -> Decision:
    """STARTING: pick the nodes and launch."""
    if state.underway.stage is not StartStage.CHOOSING or event.attempt != state.attempt.number:
        return ignored(state, f"attempt {event.attempt} is not choosing")
    weighed = quarantine.weigh(state, now, policy)
    if weighed.look_again:
        return choose.look_again(weighed.state, now, policy, weighed.sentence)
    state = weighed.state
    placed = placement.place_now(state, now)
    if isinstance(placed, placement.NotEnough):
        return choose.too_few_nodes(state, now, policy, "; ".join(filter(None, (weighed.sentence, placed.why))))
    on_disk, chosen, reason = event.checkpoint, _resume_point(state, event.checkpoint), event.reason
    memory = chosen.memory if chosen else None
    if memory is not None:
        without = _without_it(state, placed.nodes)
        if without:
            return _through_disk(state, now, policy, without)
        origin = f"resuming from step {memory.step}, which {flush_to_disk.who_have(memory, placed.nodes)} in memory"
        reason = f"{origin} (without it: {reason})"
    record = replace(
        state.attempts[-1], nodes=placed.nodes, started=now, resumed_from_step=chosen.step if chosen else None,
        memory=memory,
    )  # fmt: skip
    ranks = "1 rank" if placed.world_size == 1 else f"{placed.world_size} ranks"
    full_size = state.shape.nodes_count * state.shape.slots_per_node * state.shape.ranks_per_slot
    ranks += f" (of {full_size})" if placed.world_size < full_size else ""
    reason = f"attempt {state.attempt.number}: {ranks} on {fold(placed.nodes)}; {reason}"
    return enter(
        state,
        Phase.STARTING,
        reason,
        StartGang(state.attempt.number, placed, chosen, anomalies.skips(state, chosen.step if chosen else -1)),
        deadlines={"start": now + 2 * policy.start_within_s},
        underway=Underway(stage=StartStage.LAUNCHING),
        attempt=replace(state.attempt, placement=placed, resume=chosen),
        checkpoints=replace(
            poison.set_aside(state),
            resume_request="auto",  # what the request put out of use is remembered where checkpoints are judged
            newest=on_disk or state.checkpoints.newest,
            savers=chosen.savers if chosen and chosen.savers else state.checkpoints.savers,
            best_step=max(state.checkpoints.best_step, on_disk.step if on_disk else -1),
            held=None,
        ),
        budget=budget.reach(state.budget, on_disk.step if on_disk else -1, state.checkpoints.best_step),
        attempts=(*state.attempts[:-1], record),
        roster=replace(state.roster, waited_for_nodes=False, refill_until=0.0),
        tries_count=0,
    )


def none_valid(state: RunState, event: NoneValid, now: float, policy: Policy) -> Decision:
    """STARTING: never from zero when something was committed; storage that cannot be read may come back."""
    if state.underway.stage is StartStage.LAUNCHING or event.attempt != state.attempt.number:
        return ignored(state, f"attempt {event.attempt} is not choosing")
    if event.storage:
        return choose.storage_trouble(state, now, policy, event.reason)
    if state.checkpoints.held is not None:
        return _through_disk(state, now, policy, event.reason)
    condemned = poison.to_set_aside(state)
    if condemned is not None:  # nothing was moved
        state = replace(state, checkpoints=replace(state.checkpoints, condemned=None))
        state, also = poison.cleared(state, condemned.signature)
        reason = f"{poison.told(condemned)}; no other checkpoint can be used instead: {event.reason}{also}"
        return finish(state, Phase.FAILED, now, reason, Failure.SCRIPT)
    return finish(state, Phase.FAILED, now, event.reason, Failure.STORAGE)


def act_failed(state: RunState, event: ActFailed, now: float, policy: Policy) -> Decision:
    """STARTING: sealing or choosing was refused by the file system."""
    if state.underway.stage is StartStage.LAUNCHING or event.what not in {SealAttempts.__name__, ChooseResume.__name__}:
        return ignored(state, f"{event.what} failed, but gangrun no longer waits for it: {event.why}")
    return choose.storage_trouble(state, now, policy, f"{event.what} failed: {event.why}")


def start_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """STARTING: whichever stage it is, it took too long."""
    if event.name in {"seal", "choose"}:
        what = "sealing older attempts" if event.name == "seal" else "choosing a checkpoint"
        return choose.storage_trouble(state, now, policy, f"{what} took over {policy.choose_within_s:g} s")
    within_s = 2 * policy.start_within_s
    if state.store_stalled_since is not None:
        reason = "ranks may not be started before the run directory answers; waiting for it"
        return stay(with_deadline(state, event.name, now + within_s), reason, loud=True)
    why = f"not all ranks started within {within_s:g} s"
    return stop_all(state, now, policy, After.JUDGE, why, Evidence(start_failed=("", why)))


def gang_started(state: RunState, event: GangStarted, now: float, policy: Policy) -> Decision:
    """STARTING: all ranks live. Nodes that came, or came back, after the checks are checked now."""
    del now
    if state.underway.stage is not StartStage.LAUNCHING:
        return ignored(state, f"attempt {event.attempt} is not being launched")
    assert state.attempt.placement is not None
    origin = f" from {step_words(state.attempt.resume.step)}" if state.attempt.resume else ""  # the script may know one
    world_size = state.attempt.placement.world_size
    ranks = "1 rank runs" if world_size == 1 else f"all {world_size} ranks run"
    spares = device_test.ask_spares(state, policy)
    return enter(state, Phase.RUNNING, f"attempt {state.attempt.number}: {ranks}{origin}", *spares)


def start_failed(state: RunState, event: GangStartFailed, now: float, policy: Policy) -> Decision:
    """STARTING: some node refused; others may have launched."""
    if state.underway.stage is not StartStage.LAUNCHING:
        return ignored(state, f"attempt {event.attempt} is not being launched")
    where = f"on {event.node}" if event.node else "somewhere"
    reason = f"attempt {event.attempt} could not start {where}: {event.why}"
    if event.retry_free:
        return stop_all(state, now, policy, After.AGAIN, reason, Evidence())
    return stop_all(state, now, policy, After.JUDGE, reason, Evidence(start_failed=(event.node, event.why)))
