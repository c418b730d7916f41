"""What must hold of every state, and of every two in a row.

The simulator checks these after each event, and so may a nervous operator. Only what a state alone can show is here;
what needs the whole world (two gangs, leases, files) is checked in ``sim``. Names as in protocol section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from gangrun.core.model import TERMINAL, Phase, Placement, RunState, StartStage
from gangrun.core.nodes import quarantine, refilling, standing
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget

_BOUNDED = frozenset({Phase.CHECKING, Phase.STARTING, Phase.STOPPING, Phase.WAITING})
_NEVER_DECREASING: Mapping[str, Callable[[RunState], float]] = {
    "seq": lambda state: state.seq,
    "term": lambda state: state.term,
    "attempt": lambda state: state.attempt.number,
    "best_step": lambda state: state.checkpoints.best_step,
    "observed_step": lambda state: state.checkpoints.observed_step,
    "generation": lambda state: state.timers.generation,
    "updated_at": lambda state: state.updated_at,
    "refills_count": lambda state: state.roster.refills_count,
}


def check(previous: RunState | None, current: RunState, policy: Policy) -> tuple[str, ...]:
    """Sentences about what is broken; empty when all holds. ``previous`` None: there was none."""
    broken = [*_shape_of(current), *_placement(current.attempt.placement), *_budget(current, policy)]
    if previous is not None:
        broken += [
            *_monotonic(previous, current),
            *_exclusions(previous, current, policy),
            *_starting(previous, current),
            *_refills(previous, current),
            *_total_time(previous, current, policy),
        ]
    return tuple(broken)


def _shape_of(state: RunState) -> Iterator[str]:
    phase = state.phase
    if phase in TERMINAL and state.timers.deadlines:
        yield f"{phase.value} is the end but has deadlines: {', '.join(sorted(state.timers.deadlines))}"
    if phase in _BOUNDED and not state.timers.deadlines:
        yield f"I14: {phase.value} has no deadline and could last for ever"
    if (phase is Phase.STARTING) is not (state.underway.stage is not None):
        yield f"{phase.value} with stage {state.underway.stage.value if state.underway.stage else 'none'}"
    if (phase is Phase.STOPPING) is not (state.underway.after is not None):
        yield f"{phase.value} with after {state.underway.after.value if state.underway.after else 'none'}"
    open_attempts = [record.number for record in state.attempts[:-1] if record.ended is None]
    if open_attempts:
        yield f"attempts {open_attempts} never ended although later ones began"
    numbers = [record.number for record in state.attempts]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield f"I10: attempt numbers do not rise: {numbers}"


def _placement(placed: Placement | None) -> Iterator[str]:
    if placed is None:
        return
    ranks = [rank for seat in placed.seats for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count)]
    if ranks != list(range(placed.world_size)):
        yield f"the placement does not hold ranks 0 to {placed.world_size - 1} once each and in order: {ranks[:20]}"
    slots = [seat.slot for seat in placed.seats]
    if len(set(slots)) != len(slots):
        yield "a slot holds two seats"
    by_seat = [seat.slot.node for seat in placed.seats]
    runs = [name for index, name in enumerate(by_seat) if index == 0 or by_seat[index - 1] != name]
    if len(set(runs)) != len(runs):
        yield f"the ranks of a node are not contiguous: {runs[:20]}"


def _budget(state: RunState, policy: Policy) -> Iterator[str]:
    total = budget.spent_count(state.budget)
    if total > budget.TOTAL_FACTOR * policy.restarts_max_count:
        yield f"{total} restarts since the last progress are more than the budget"


def _monotonic(previous: RunState, current: RunState) -> Iterator[str]:
    if previous.run != current.run:
        yield f"run {previous.run} became {current.run}"
    for name, value_of in _NEVER_DECREASING.items():
        before, after = value_of(previous), value_of(current)
        if after < before:
            yield f"I10: {name} went back from {before} to {after}"
    if current.budget.total_count < previous.budget.total_count:
        yield f"I10: the count of restarts went back from {previous.budget.total_count} to {current.budget.total_count}"


def _exclusions(previous: RunState, current: RunState, policy: Policy) -> Iterator[str]:
    now = current.updated_at
    if not set(current.health.excluded) - set(previous.health.excluded):
        return
    out = standing.active(current.health.excluded, now).values()
    since = [entry.since for entry in out if not entry.drained_by]
    recent = sum(at > now - quarantine.HOUR_S for at in since)
    cap = quarantine.cap_count(len(current.roster.nodes), policy)
    if recent > cap:
        yield f"I9: {recent} nodes excluded within an hour, the cap is {cap}"


def _refills(previous: RunState, current: RunState) -> Iterator[str]:
    """No more are asked for than nodes are missing."""
    if current.roster.refills_count <= previous.roster.refills_count:
        return
    held_count = len(refilling.held(current, current.updated_at))
    count, missing_count = len(refilling.on_their_way(current)), refilling.missing_count(current, held_count)
    if count > missing_count:
        yield f"I7: {count} refills are on their way, and {missing_count} nodes are missing"


def _total_time(previous: RunState, current: RunState, policy: Policy) -> Iterator[str]:
    """Once all of the run's training time is used, no job is asked for and no attempt is begun."""
    if not policy.total_time_s or current.training.trained_s < policy.total_time_s:
        return
    if current.underway.submitting and not previous.underway.submitting:
        yield "I7: a job is asked for although the run's total time is used"
    if current.phase is Phase.STARTING and previous.phase is not Phase.STARTING:
        yield f"I7: attempt {current.attempt.number} begins although the run's total time is used"


def _starting(previous: RunState, current: RunState) -> Iterator[str]:
    """What holds at the moment at which ranks are being launched."""
    launching = current.underway.stage is StartStage.LAUNCHING
    if not launching or (
        previous.underway.stage is StartStage.LAUNCHING and previous.attempt.number == current.attempt.number
    ):
        return
    if current.attempt.placement is None:
        yield f"I9: attempt {current.attempt.number} is being launched without a placement"
        return
    for seat in current.attempt.placement.seats:
        node = current.roster.nodes.get(seat.slot.node)
        if node is not None and any(one.index == seat.slot.index for one in node.broken_slots):
            yield f"I9: attempt {current.attempt.number} is being launched on slot {seat.slot.index}, which is broken"
    excluded = standing.active(current.health.excluded, current.updated_at)
    for name in current.attempt.placement.nodes:
        node = current.roster.nodes.get(name)
        if node is None:
            yield f"I9: attempt {current.attempt.number} is being launched on {name}, which is not in this job"
        elif not (stands := standing.standing_of(node, excluded, current.shape)).usable:
            yield f"I9: attempt {current.attempt.number} is being launched on {name}, which is {stands.why}"
    if previous.attempt.number == current.attempt.number and any(
        record.number == current.attempt.number and record.nodes for record in previous.attempts
    ):
        yield f"I10: attempt {current.attempt.number} is being launched twice"
