"""What must hold of every state, and of every two in a row.

The simulator checks these after each event, and so may a nervous operator. Only what a state alone can show is here;
what needs the whole world (two gangs, leases, files) is checked in ``sim``. Names as in protocol section 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gangrun.core.model import TERMINAL, Phase, Placement, RunState, StartStage
from gangrun.core.nodes import placement, quarantine
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget

_BOUNDED = frozenset({Phase.CHECKING, Phase.STARTING, Phase.STOPPING, Phase.WAITING})
_NEVER_DECREASING = ("seq", "term", "attempt", "best_step", "observed_step", "generation", "updated_at")


def check(previous: RunState | None, current: RunState, policy: Policy) -> tuple[str, ...]:
    """Sentences about what is broken; empty when all holds. ``previous`` None: there was none."""
    broken = [*_shape_of(current), *_placement(current.placement), *_budget(current, policy)]
    if previous is not None:
        broken += [
            *_monotonic(previous, current),
            *_exclusions(previous, current, policy),
            *_starting(previous, current),
        ]
    return tuple(broken)


def _shape_of(state: RunState) -> Iterator[str]:
    phase = state.phase
    if phase in TERMINAL and state.deadlines:
        yield f"{phase.value} is the end but has deadlines: {', '.join(sorted(state.deadlines))}"
    if phase in _BOUNDED and not state.deadlines:
        yield f"I14: {phase.value} has no deadline and could last for ever"
    if (phase is Phase.STARTING) is not (state.stage is not None):
        yield f"{phase.value} with stage {state.stage.value if state.stage else 'none'}"
    if (phase is Phase.STOPPING) is not (state.after is not None):
        yield f"{phase.value} with after {state.after.value if state.after else 'none'}"
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
    for name in _NEVER_DECREASING:
        before, after = getattr(previous, name), getattr(current, name)
        if after < before:
            yield f"I10: {name} went back from {before} to {after}"
    if current.budget.total_count < previous.budget.total_count:
        yield f"I10: the count of restarts went back from {previous.budget.total_count} to {current.budget.total_count}"


def _exclusions(previous: RunState, current: RunState, policy: Policy) -> Iterator[str]:
    now = current.updated_at
    if not set(current.excluded) - set(previous.excluded):
        return
    since = [entry.since for entry in quarantine.active(current.excluded, now).values()]
    recent = sum(at > now - quarantine.HOUR_S for at in since)
    cap = quarantine.cap_count(len(current.nodes), policy)
    if recent > cap:
        yield f"I9: {recent} nodes excluded within an hour, the cap is {cap}"


def _starting(previous: RunState, current: RunState) -> Iterator[str]:
    """What holds at the moment at which ranks are being launched."""
    launching = current.stage is StartStage.LAUNCHING
    if not launching or (previous.stage is StartStage.LAUNCHING and previous.attempt == current.attempt):
        return
    if current.placement is None:
        yield f"I9: attempt {current.attempt} is being launched without a placement"
        return
    excluded = quarantine.active(current.excluded, current.updated_at)
    for name in current.placement.nodes:
        node = current.nodes.get(name)
        why = placement.unusable_because(node, excluded, current.shape) if node is not None else "not in this job"
        if why:
            yield f"I9: attempt {current.attempt} is being launched on {name}, which is {why}"
    if previous.attempt == current.attempt and any(
        record.number == current.attempt and record.nodes for record in previous.attempts
    ):
        yield f"I10: attempt {current.attempt} is being launched twice"
