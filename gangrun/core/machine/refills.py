"""Refills: asked for when nodes are missing, dropped when they are not wanted (rung 4).

``follow`` looks at what any other decision came to, and adds the acts. So there is one place that compares how many
refills there are with how many are wanted, whatever made a node go or come. A refill stands in ``roster.refills`` as
long as it is wanted: its own batch script reads that, and leaves when it is not there. Scancel only makes it sooner.
``EndJob`` ends all refills of its job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangrun.core.actions import Action, CancelRefill, Decision, EndJob, SubmitRefill
from gangrun.core.events import CancelRequested, Notice, RefillEnded, RefillQueued, RefillUnknown, Stamped
from gangrun.core.machine.transitions import ignored, stay
from gangrun.core.model import Outcome, Phase, Refill, RefillStage, RunState
from gangrun.core.nodes import refilling, roster
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.recovery import choose
from gangrun.core.text import counted, listed, one_line

_COUNTS_IN = frozenset({Phase.STARTING, Phase.RUNNING, Phase.WAITING})  # elsewhere nodes are coming or being judged


def of_another_job(state: RunState, stamped: Stamped) -> str:
    """Why a word does not concern this job: the scheduler ends a refill, whose agent was told so. "" where it does."""
    origin = stamped.origin
    node = state.roster.nodes.get(origin.node) if origin is not None else None
    if node is None or not node.refill or not isinstance(stamped.event, Notice | CancelRequested):
        return ""
    return f"refill {node.refill} on {node.name} was told to end, which does not concern this job"


def follow(before: RunState, decision: Decision, now: float, policy: Policy) -> Decision:
    """The decision with what is asked of the scheduler for it."""
    state = decision.state
    if decision.outcome is not Outcome.APPLIED or (policy.refill_wait_s is None and not before.roster.refills):
        return decision
    if any(isinstance(action, EndJob) for action in decision.actions):
        return replace(decision, state=_with(state, ()))  # it ends all of them
    if before.job != state.job:
        return _dropped(decision, state.roster.refills, "their job is over")
    if before.term != state.term:
        return replace(decision, actions=(*decision.actions, *_asked_again(state, now)))
    changed = before.roster is not state.roster or before.health.excluded is not state.health.excluded
    try_again = refilling.has_failed_often(state) and not refilling.given_up(state, now)
    if state.phase not in _COUNTS_IN or not (changed or try_again or before.phase is not state.phase):
        return decision
    return _counted(before, decision, now, policy)


def _counted(before: RunState, decision: Decision, now: float, policy: Policy) -> Decision:
    """As many refills as are wanted."""
    there = set(refilling.held(decision.state, now))
    gone = [one for one in decision.state.roster.refills if one.node and one.node not in there]
    if gone:
        of_no_use = [one for one in gone if not _is_good(decision.state, one)]
        failed = replace(decision, state=_failed(decision.state, len(of_no_use), now))
        decision = _dropped(failed, tuple(gone), "their nodes are lost or not to be used")
        there = set(refilling.held(decision.state, now))
    state = decision.state
    if any(_is_good(state, one) and not _is_good(before, one) for one in state.roster.refills):
        state = _with(state, state.roster.refills, refill_failures_count=0)
        decision = replace(decision, state=state)
    wanted_count, open_ones = refilling.wanted_count(state, policy, len(there)), refilling.on_their_way(state)
    if len(open_ones) > wanted_count:
        return _dropped(decision, open_ones[wanted_count:], "no node is missing that they could bring")
    new_count = 0 if refilling.given_up(state, now) else wanted_count - len(open_ones)
    if refilling.has_failed_often(state):
        new_count = min(new_count, 1)
    if not new_count:
        return decision
    first = state.roster.refills_count + 1
    new = tuple(Refill(number, now) for number in range(first, first + new_count))
    numbers = listed([str(one.number) for one in new])
    told = f"asking the scheduler for {counted(new_count, 'more node')} (refill {numbers})"
    state = _with(state, (*state.roster.refills, *new), refills_count=first + new_count - 1)
    return _told(decision, state, told, tuple(_ask(state, one, now) for one in new))


def _is_good(state: RunState, one: Refill) -> bool:
    """Has its node passed its checks?"""
    node = state.roster.nodes.get(one.node)
    return node is not None and node.checked is True


def _failed(state: RunState, count: int, now: float) -> RunState:
    """So many more brought nothing."""
    if not count:
        return state
    count += state.roster.refill_failures_count
    return _with(state, state.roster.refills, refill_failures_count=count, refill_failed_at=now)


def _told(decision: Decision, state: RunState, words: str, acts: tuple[Action, ...]) -> Decision:
    """The decision with more words and acts. Where people read its reason as the run's, they read these too."""
    reason = f"{decision.reason}; {words}"
    if decision.state.reason == decision.reason:
        state = replace(state, reason=reason)
    return replace(decision, state=state, actions=(*decision.actions, *acts), reason=reason)


def _ask(state: RunState, one: Refill, now: float) -> SubmitRefill:
    """On a node that is not, and never was, in this job: what was started there may live."""
    known = {*state.roster.nodes, *state.roster.expected, *state.roster.absent, *choose.left_out(state, now)}
    return SubmitRefill(one.number, state.seq, tuple(natural_sort(known)), "a node of this job is missing", one.job)


def _asked_again(state: RunState, now: float) -> tuple[Action, ...]:
    """By a new supervisor: whoever is known to be there is only watched."""
    return tuple(_ask(state, one, now) for one in state.roster.refills if one.job or not one.node)


def _dropped(decision: Decision, those: tuple[Refill, ...], why: str) -> Decision:
    """Without these: neither they nor the nodes that they brought are used in this job any more."""
    if not those:
        return decision
    state = decision.state
    kept = tuple(one for one in state.roster.refills if one not in those)
    told = f"refill {listed([str(one.number) for one in those])} is cancelled: {why}"
    state = _without_nodes(_with(state, kept), those, told)
    acts = tuple(CancelRefill(one.number, why) for one in those)
    return _told(decision, state, told, acts)


def _without_nodes(state: RunState, those: tuple[Refill, ...], why: str) -> RunState:
    nodes = state.roster.nodes
    brought = [nodes[one.node] for one in those if one.node in nodes]
    return roster.with_nodes(state, {one.name: replace(one, checked=False, check_reason=why) for one in brought})


def _with(state: RunState, refills: tuple[Refill, ...], **changes: Any) -> RunState:
    return replace(state, roster=replace(state.roster, refills=refills, **changes))


def _of(state: RunState, number: int) -> Refill | None:
    return next((one for one in state.roster.refills if one.number == number), None)


def _replaced(state: RunState, one: Refill) -> tuple[Refill, ...]:
    return tuple(one if other.number == one.number else other for other in state.roster.refills)


def queued(state: RunState, event: RefillQueued, now: float, policy: Policy) -> Decision:
    """The scheduler has it; why it waits may change."""
    del policy
    one = _of(state, event.number)
    if one is None:
        return ignored(state, f"refill {event.number} is job {event.job}, which nobody wants any more")
    is_here = one.stage is RefillStage.HERE
    stage, waits = (one.stage, "") if is_here else (RefillStage.QUEUED, event.waits)
    new = replace(one, stage=stage, job=event.job, waits=waits)
    if new == one:
        return ignored(state, f"refill {event.number} is known to be job {event.job}")
    why = f"waits in the queue ({one_line(event.waits)})" if event.waits else "has its node"
    reason = f"refill {event.number} is job {event.job}, which {why}"
    state = _with(state, _replaced(state, new))
    if refilling.is_waiting(state):
        names = fold(refilling.held(state, now))
        return stay(state, f"{names} wait up to {_left_s(state, now):.0f} s for {reason}", loud=True)
    return stay(state, reason)


def _left_s(state: RunState, now: float) -> float:
    return max(0.0, state.roster.refill_until - now)


def unknown(state: RunState, event: RefillUnknown, now: float, policy: Policy) -> Decision:
    """Ask again under the same number, so that what was made after all is found by its comment."""
    del policy
    one = _of(state, event.number)
    if one is None or one.stage is not RefillStage.ASKED:
        return ignored(state, f"refill {event.number} is not being asked for")
    reason = f"it is not known whether the scheduler took refill {event.number}: {event.why}; asking again"
    return stay(state, reason, _ask(state, one, now))


def ended(state: RunState, event: RefillEnded, now: float, policy: Policy) -> Decision:
    """It was refused, or it is over. What a person ended is not asked for again in this job."""
    one = _of(state, event.number)
    if one is None:
        return ignored(state, f"refill {event.number} is over, which nobody wanted any more")
    rest = tuple(other for other in state.roster.refills if other is not one)
    reason = f"refill {event.number} is over: {event.why}"
    state = _with(_failed(state, 1, now), rest, refills_off=state.roster.refills_off or event.cancelled)
    if node := state.roster.nodes.get(one.node):
        state = roster.with_nodes(state, {node.name: replace(node, taken=event.why)})
        state = _without_nodes(state, (one,), reason)
    return _go_on(stay(state, reason), now, policy)


def _go_on(decision: Decision, now: float, policy: Policy) -> Decision:
    """A job that held its nodes for a refill that does not come goes on as it would have without."""
    state = decision.state
    if not refilling.is_waiting(state) or refilling.on_their_way(state) or not refilling.given_up(state, now):
        return decision
    after = choose.begin_checks(state, now, policy, f"{decision.reason}; no refill comes")
    return replace(after, actions=(*decision.actions, *after.actions))


def joined(state: RunState, number: int, node: str) -> RunState:
    """The state that knows that a refill brought its node."""
    one = _of(state, number)
    if one is None:
        return state
    return _with(state, _replaced(state, replace(one, stage=RefillStage.HERE, node=node, waits="")))
