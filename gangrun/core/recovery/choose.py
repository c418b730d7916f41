"""Which rung comes next.

Called when all ranks are down, or when a start cannot go on: weigh the evidence (``blame``), charge the budget
(``budget``), leave guilty nodes out (``quarantine``), and take the cheapest rung that will work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangrun.core.actions import CheckNodes, Decision, EndJob, SealAttempts, SubmitSuccessor
from gangrun.core.checkpoints import poison
from gangrun.core.evidence import Evidence, NodeFinding
from gangrun.core.machine import total_time
from gangrun.core.machine.transitions import close_attempt, enter, finish, is_unlaunched
from gangrun.core.model import AttemptRecord, Cause, Failure, Phase, RunState, Slot, StartStage, Underway, Verdict
from gangrun.core.nodes import device_test, network_test, placement, quarantine, refilling, roster, standing
from gangrun.core.nodes.standing import Use
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import anomalies, blame, budget, move
from gangrun.core.text import listed, one_line
from gangrun.core.versions import Ranks


def judge(state: RunState, now: float, policy: Policy) -> Decision:
    """All ranks are down: conclude whose fault it was, then choose the rung. Who only observes ends the run with what
    it died of, and tells whom that would leave out and what would come next.
    """
    judged = _weigh(state, now, policy)
    decision = _conclude(judged, now, replace(policy, observe=False))
    if not policy.observe:
        return decision
    reason = decision.reason
    if decision.state.phase is not Phase.FAILED:
        reason = f"{reason}; observing only, so gangrun does nothing"
    failure = decision.state.ending.failure or judged.verdict.failure
    return finish(
        replace(judged.state, health=replace(judged.state.health, excluded=state.health.excluded)),
        Phase.FAILED,
        now,
        reason,
        failure,
    )


def unobserved(state: RunState, now: float, policy: Policy) -> str:
    """What would be concluded and done if all ranks were down now and nobody only observed."""
    return judge(state, now, replace(policy, observe=False)).reason


@dataclass(frozen=True, slots=True)
class _Judged:
    state: RunState
    verdict: Verdict
    ruling: budget.Ruling
    sentence: str


def _weigh(state: RunState, now: float, policy: Policy) -> _Judged:
    verdict = blame.judge(
        replace(state.attempt.evidence, findings=standing.recent(state.attempt.evidence.findings, now)),
        attempt=state.attempt.number,
        attempt_step=state.attempt.step,
        placement=state.attempt.placement,
        sightings=state.budget.sightings,
        suspicion=standing.unfaded(state.health, now),
        nodes_count=len(state.roster.nodes),
        policy=policy,
        load=poison.load_of(state),
        finished=state.attempt.finished,
        stopped=state.attempt.stopped,
        moved=state.health.move,
        addresses=roster.named_by(state),
        losable=_losable(state),
    )
    loaded_step = state.attempt.resume.step if state.attempt.resume else -1
    charged, ruling = budget.charge(
        state.budget, verdict, state.attempt.number, state.attempt.step, policy, state.run, loaded_step
    )
    state, meets = network_test.begun(state, verdict, now, policy) if ruling.allowed else (state, "")
    accused = device_test.accused(state, verdict, now, policy)
    guilty = [name for name in _guilty(state, verdict, now, policy) if name not in accused]
    fatal = [found for found in state.attempt.evidence.findings if found.fatal]
    without = _without_slots(state, verdict, fatal)
    state, guilty = without.state, [name for name in guilty if name not in without.spared]
    if verdict.final or not ruling.allowed:  # the run ends: nobody is excluded but for what was measured
        measured = {found.node for found in fatal}
        accused, guilty = (), [name for name in guilty if name in measured]
    silent = state.attempt.evidence.silent if verdict.cause is Cause.NODE_SILENT else ()
    state, left_out = quarantine.leave_out(state, guilty, verdict.sentence, now, policy, fatal, tuple(silent))
    state = replace(
        state,
        budget=charged,
        health=replace(
            state.health,
            suspicion=standing.suspect(standing.unfaded(state.health, now), verdict),
            suspected_at={**state.health.suspected_at, **dict.fromkeys(verdict.suspects, now)},
        ),
        attempts=close_attempt(state, now, verdict.cause.value, verdict.sentence),
    )
    state = move.settled(state, verdict, guilty)
    state, moves = move.begun(state, verdict, now) if ruling.allowed else (state, "")
    taken = listed([one_line(state.roster.nodes[name].taken) for name in verdict.blamed if _is_taken(state, name)])
    sentence = "; ".join(
        filter(None, (verdict.sentence, left_out, without.told, taken and f"not excluded, as {taken}"))
    )
    state = device_test.begun(state, accused, f"attempt {state.attempt.number}: {verdict.cause.value}")
    return _Judged(state, verdict, ruling, sentence + moves + device_test.told(state, accused, now) + meets)


@dataclass(frozen=True, slots=True)
class _WithoutSlots:
    """The state in which ranks get none of the slots that broke, the nodes that can be used so, and it in words."""

    state: RunState
    spared: frozenset[str]
    told: str


def _losable(state: RunState) -> frozenset[int]:
    """Ranks that ended of themselves, and whose nodes can do without their slots."""
    placed = state.attempt.placement
    own = [died.rank for died in state.attempt.evidence.exits if not died.by_us]
    if placed is None or not any(node.slots_count > state.shape.slots_needed for node in state.roster.nodes.values()):
        return frozenset()
    slots = {rank: placement.slot_of_rank(placed, rank) for rank in own}
    return frozenset(rank for rank, slot in slots.items() if slot is not None and roster.can_lose(state, slot))


def _without_slots(state: RunState, verdict: Verdict, fatal: list[NodeFinding]) -> _WithoutSlots:
    """Leave out broken slots where what broke is no more than that, instead of their nodes."""
    evidence, before, placed = state.attempt.evidence, state, state.attempt.placement
    slots = [(Slot(one.node, one.slot), one.place, one.sentence) for one in fatal if one.slot >= 0]
    slot = placement.slot_of_rank(placed, verdict.broken_rank) if placed is not None else None
    if slot is not None:
        slots.append((slot, f"the GPU of rank {verdict.broken_rank}", verdict.sentence))
    for slot, name, why in slots:
        state = roster.without_slot(state, slot, name, why)
    gone = evidence.silent if len(state.roster.nodes) > 1 else ()  # of the only node the agent is silent, and no more
    whole = {*gone, *(one.node for one in fatal if one.slot < 0)}
    spared = frozenset(slot.node for slot, _, _ in slots) - whole
    new = [
        one.name
        for name in spared
        for one in state.roster.nodes[name].broken_slots
        if one not in before.roster.nodes[name].broken_slots
    ]
    return _WithoutSlots(state, spared, f"{listed(new)} gets no rank any more" if new else "")


def _conclude(judged: _Judged, now: float, policy: Policy) -> Decision:
    state, verdict, ruling, sentence = judged.state, judged.verdict, judged.ruling, judged.sentence
    if verdict.final or not ruling.allowed:
        why, failure = (
            (sentence, verdict.failure) if verdict.final else (f"{sentence}; {ruling.sentence}", Failure.BUDGET)
        )
        state, also = poison.cleared(state, verdict.signature)
        return finish(state, Phase.FAILED, now, f"{why}{also}", failure)
    if verdict.cause is Cause.POISONED:
        state = poison.condemn(state, verdict, blame.traceback_told(state.attempt.evidence), policy)
    if (stop := state.attempt.evidence.anomaly) is not None and not stop.is_final:
        state = anomalies.roll_back(state, stop, policy)
    return _climb(state, verdict, sentence, ruling.backoff_s, now, policy)


def leave_behind(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Nobody can prove that all ranks are gone, so nothing may start here. The next job may, on other nodes and after
    the leases; without a scheduler the run ends.
    """
    if not policy.can_requeue or policy.observe:
        return finish(state, Phase.FAILED, now, reason, Failure.NODE)
    bad = [found.node for found in state.attempt.evidence.findings if found.fatal]
    bad += (silent := [name for name in state.attempt.evidence.silent if not _is_taken(state, name)])
    unheard = set(silent) - {found.node for found in state.attempt.evidence.findings if found.fatal}
    state, left_out = quarantine.leave_out(state, bad, reason, now, policy, silent=unheard)
    return requeue(state, now, policy, f"{reason}; {left_out}" if left_out else reason)


def _is_taken(state: RunState, name: str) -> bool:
    """Is it only silent, and did the scheduler take it out of the job? Then its word says why, and the scheduler hands
    the node out again when the node answers it. A node of which the reason is not known it is silent is excluded.
    """
    node = state.roster.nodes.get(name)
    found = any(one.fatal and one.node == name for one in state.attempt.evidence.findings)
    return node is not None and bool(node.taken) and name in state.attempt.evidence.silent and not found


def _guilty(state: RunState, verdict: Verdict, now: float, policy: Policy) -> tuple[str, ...]:
    """Whom to leave out. Nodes that may be innocent go only where the gang can do without them: a silent one may have
    been asleep, and one against which there is nothing but that ranks fell there first may be as good as any.
    """
    blamed = tuple(name for name in verdict.blamed if not _is_taken(state, name) and not _is_back(state, name))
    doubtful = blamed if verdict.cause is Cause.NODE_SILENT else blame.on_doubt_only(verdict, state.attempt.evidence)
    if not doubtful or policy.can_requeue:
        return blamed
    if placement.can_do_without(state, blamed, now):
        return blamed
    return tuple(name for name in blamed if name not in doubtful)


def _is_back(state: RunState, name: str) -> bool:
    """Was the node silent only, and is the same agent heard again? The way to it was broken, or the supervisor's."""
    evidence, node = state.attempt.evidence, state.roster.nodes.get(name)
    broken = any(finding.fatal and finding.node == name for finding in evidence.findings)
    here = node is not None and not node.lost and node.silent_since is None
    return here and not broken and name in evidence.silent and name not in evidence.agents_died


def _climb(state: RunState, verdict: Verdict, sentence: str, backoff_s: float, now: float, policy: Policy) -> Decision:
    before = state.attempt.placement
    if total_time.is_used(state, now, policy):
        return total_time.end(state, now, policy, sentence)
    nodes, prefer = device_test.in_prospect(state, now), placement.preferred(state)
    placed = placement.place(nodes, standing.active(state.health.excluded, now), state.shape, prefer=prefer)
    if isinstance(placed, placement.NotEnough):
        return too_few_nodes(state, now, policy, f"{sentence}; {placed.why}", verdict.failure)
    how = placement.how_restarted(before, placed)
    if backoff_s > 0:
        reason = f"{sentence}; {how} in {backoff_s:.0f} s"
        asked = device_test.ask(state, device_test.on_trial(state), policy)
        return enter(state, Phase.WAITING, reason, *asked, deadlines={"backoff": now + backoff_s})
    return begin_checks(state, now, policy, f"{sentence}; {how}")


def begin_checks(state: RunState, now: float, policy: Policy, why: str) -> Decision:
    """Ask every node that has not yet proven itself; none left: start. If the run's total time is used it ends."""
    if total_time.is_used(state, now, policy):
        return total_time.end(state, now, policy, why)
    asked = device_test.ask(state, roster.unchecked(state), policy)
    nodes = device_test.awaited(state, now)
    if not nodes:
        return also(begin_attempt(state, now, policy, why), asked)
    return enter(
        state,
        Phase.CHECKING,
        f"{why}; checking {fold(nodes)}{', with devices at work' if any(one.tests for one in asked) else ''}",
        *asked,
        deadlines={"check": now + device_test.within_s(device_test.ask(state, nodes, policy), policy)},
    )


def also(decision: Decision, asked: tuple[CheckNodes, ...]) -> Decision:
    """The same, and nodes on trial are tested beside it, where the job goes on."""
    goes_on = decision.state.phase in {Phase.STARTING, Phase.WAITING} and not decision.state.underway.submitting
    return replace(decision, actions=(*asked, *decision.actions)) if asked and goes_on else decision


def begin_attempt(state: RunState, now: float, policy: Policy, why: str, *, through_disk: bool = False) -> Decision:
    """Open the next attempt, or reuse the number of one that was never launched.

    ``through_disk``: even if the newest step is whole in the memory of the nodes that will have ranks. A step that was
    not brought for that reason can be brought only before an attempt with a number of its own: into staging that the
    one before has not sealed.
    """
    if total_time.is_used(state, now, policy):
        return total_time.end(state, now, policy, why)
    if device_test.needed(state, now):  # some were not when this attempt was begun
        return begin_checks(state, now, policy, why)
    held = _fence_holds(state, now)
    if held:
        return enter(state, Phase.WAITING, f"{why}; {held}", deadlines={"backoff": state.fence.until})
    state, met = network_test.concluded(state, now, policy)
    state, back = quarantine.reviewed(state, now, policy)
    weighed = quarantine.weigh(state, now, policy)
    why = "; ".join(filter(None, (why, met, back, weighed.sentence)))
    if weighed.look_again:
        return look_again(weighed.state, now, policy, why)
    state = weighed.state
    placed = placement.place_now(state, now)
    if isinstance(placed, placement.NotEnough):
        late = still_joining(state, now)
        if (
            late
            and placed.have + len(late) >= placed.want
            and not (state.roster.alone or state.roster.waited_for_nodes)
        ):
            reason = f"{why}; {placed.why}; waiting up to {policy.join_within_s:g} s for {fold(late)} to join"
            return _wait_for_nodes(state, reason, now + policy.join_within_s)
        return too_few_nodes(state, now, policy, f"{why}; {placed.why}")
    attempts, number = state.attempts, state.attempt.number
    if not is_unlaunched(state) or state.checkpoints.held is not None or _is_sealed_off(state, policy):
        number += 1
        closed = close_attempt(state, now, "not started", why)
        attempts = (*closed, AttemptRecord(number=number, job=state.job, nodes=(), started=now))
    return enter(
        state,
        Phase.STARTING,
        f"{why}; starting attempt {number}",
        SealAttempts(number, placed.nodes if _may_load_memory(state, policy) and not through_disk else ()),
        deadlines={"seal": now + policy.choose_within_s},
        underway=Underway(stage=StartStage.SEALING),
        attempt=replace(
            state.attempt,
            number=number,
            evidence=Evidence(),
            finished=Ranks(),
            step=-1,
            printed_step=-1,
            reach=-1,
            ready_s=0.0,
        ),
        attempts=attempts,
        checkpoints=replace(
            state.checkpoints, steps_told=state.checkpoints.steps_told or state.attempt.step >= 0, held=None
        ),
    )


def _is_sealed_off(state: RunState, policy: Policy) -> bool:
    """Has this attempt sealed the staging into which a step in memory would be brought before it?"""
    return policy.keeps_memory and state.checkpoints.brought_attempt >= max(0, state.attempt.number - 1)


def _may_load_memory(state: RunState, policy: Policy) -> bool:
    """Nobody says what to resume from, and nothing is set aside."""
    return policy.keeps_memory and state.checkpoints.resume_request == "auto" and poison.to_set_aside(state) is None


def look_again(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """What many nodes show at once is waited for, and looked at once more."""
    return enter(state, Phase.WAITING, reason, deadlines={"backoff": now + policy.shared_fault_wait_s})


def _fence_holds(state: RunState, now: float) -> str:
    """Why no gang may start yet: nodes of an earlier job that nobody can ask. "" when it may."""
    if now >= state.fence.until:
        return ""
    unasked = tuple(name for name in state.fence.nodes if name not in state.roster.nodes)
    if not unasked:
        return ""
    return f"waiting {state.fence.until - now:.0f} s until the leases of {fold(unasked)} of the earlier job are over"


def too_few_nodes(
    state: RunState, now: float, policy: Policy, reason: str, failure: Failure = Failure.NODE
) -> Decision:
    """Wait once for nodes that may come back, if many went at once (a shared service) or there is nobody else to ask;
    then rung 5 where there is a scheduler, else rung 6.
    """
    until = refilling.waits_until(state, now, policy)
    if until > now:
        reason = f"{reason}; holding {fold(refilling.held(state, now))} up to {until - now:.0f} s for a refill"
        roster = replace(state.roster, refill_until=until)
        return enter(state, Phase.WAITING, reason, deadlines={"nodes": until}, roster=roster)
    away = [name for name, one in standing.standings(state, now).items() if standing.use_of(one) is Use.WAIT]
    shared = standing.are_many(len(away), len(state.roster.nodes), policy)
    can_ask = policy.can_requeue and not policy.observe
    if away and not state.roster.alone and (shared or not can_ask) and not state.roster.waited_for_nodes:
        wait_s = max(policy.join_within_s, 2 * policy.timing.fence_after_s, policy.shared_fault_wait_s if shared else 0)
        reason = f"{reason}; waiting up to {wait_s:.0f} s for {fold(away)} to come back"
        return _wait_for_nodes(state, reason, now + wait_s)
    if can_ask:
        return requeue(state, now, policy, reason)
    return finish(state, Phase.FAILED, now, reason, failure)


def _wait_for_nodes(state: RunState, reason: str, until: float) -> Decision:
    return enter(
        state, Phase.WAITING, reason, deadlines={"nodes": until}, roster=replace(state.roster, waited_for_nodes=True)
    )


def still_joining(state: RunState, now: float) -> tuple[str, ...]:
    """Nodes of this job whose agents may only be slow, as no attempt of this job has begun yet."""
    if any(record.job == state.job for record in state.attempts):
        return ()
    gone = {*state.roster.nodes, *state.roster.absent, *left_out(state, now)}
    return tuple(name for name in state.roster.expected if name not in gone)


def requeue(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Ask for the next job of the run without the excluded nodes; without a scheduler the run ends here."""
    if not policy.can_requeue:
        return finish(state, Phase.FAILED, now, f"{reason}; no scheduler to ask for other nodes", Failure.SCHEDULER)
    if policy.observe:
        why = f"{reason}; observing only, so no other job is asked for"
        return finish(state, Phase.FAILED, now, why, Failure.SCHEDULER)
    if total_time.is_used(state, now, policy):
        return total_time.end(state, now, policy, reason)
    had_count = state.seq + 1
    if policy.jobs_max_count and had_count >= policy.jobs_max_count:
        why = f"{reason}; no other job is asked for: this was job {had_count} of {policy.jobs_max_count} (--max-jobs)"
        return finish(state, Phase.FAILED, now, why, Failure.BUDGET)
    charged, ruling = budget.charge_job(state.budget, policy)
    if not ruling.allowed:
        return finish(state, Phase.FAILED, now, f"{reason}; {ruling.sentence}", Failure.BUDGET)
    weighed = quarantine.weigh(state, now, policy)
    if weighed.sentence and not weighed.look_again:  # spares that were found broken while others trained
        state, reason = weighed.state, f"{reason}; {weighed.sentence}"
    closed = close_attempt(state, now, "requeued", reason)
    return ask_for_job(replace(state, attempts=closed, budget=charged), now, policy, reason)


def ask_for_job(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Have the next job of this run submitted."""
    exclude = left_out(state, now)
    without = f" without {fold(exclude)}" if exclude else ""
    return enter(
        state,
        Phase.WAITING,
        f"{reason}; asking the scheduler for the next job of this run{without}",
        successor(state, now, reason),
        deadlines={"submit": now + policy.waiting_max_s},
        underway=Underway(submitting=True),
        roster=replace(state.roster, waited_for_nodes=False),
        tries_count=1,
    )


def come_back(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """The scheduler has put this very job back into the queue: nobody is asked for another."""
    back = f"{reason}; this job ends and comes back by itself"
    return leave(replace(state, attempts=close_attempt(state, now, "requeued", reason)), now, policy, back)


def leave(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """All that is left for this job is to end."""
    return enter(
        state,
        Phase.PENDING,
        reason,
        EndJob(Phase.PENDING, 0, reason),
        deadlines={"join": now + policy.waiting_max_s},
        roster=replace(state.roster, nodes={}),
        ending=replace(state.ending, leaving=True),
    )


def successor(state: RunState, now: float, reason: str) -> SubmitSuccessor:
    """The next job as it is asked for now."""
    return SubmitSuccessor(
        state.seq + 1, left_out(state, now), reason, quarantine.if_booted(state.health.excluded, now)
    )


def left_out(state: RunState, now: float) -> tuple[str, ...]:
    """The nodes that the next job must do without: only as long as each exclusion lasts."""
    return tuple(sorted(standing.active(state.health.excluded, now)))


def storage_trouble(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Checkpoints cannot be read or sealed now: try again with growing pauses, then stop; never start from zero."""
    tries = state.tries_count + 1
    wait_s = min(policy.backoff_max_s, policy.backoff_first_s * 2 ** (tries - 1))
    waited_s = sum(min(policy.backoff_max_s, policy.backoff_first_s * 2**earlier) for earlier in range(tries - 1))
    if waited_s >= policy.waiting_max_s:
        return finish(state, Phase.FAILED, now, f"{reason}; given up after {tries - 1} tries", Failure.STORAGE)
    return enter(
        state,
        Phase.WAITING,
        f"{reason}; trying again in {wait_s:.0f} s",
        deadlines={"backoff": now + wait_s},
        tries_count=tries,
    )
