"""Nodes that still work and are to be left: at the next checkpoint another node takes their place.

A person drains a node: it gets no rank any more, and the ranks that it has are asked to save and then move off it, to a
free node, to fewer nodes, or to the next job. The rest is about suspects, which are replaced if a better node is free;
by policy, nodes whose ranks are slower than their peers are too.

Pure, like all of core. Poor hardware is no reason to break off a step. What only an administrator's hand cures, what a
GPU itself asks for, and two signs against one GPU are reason enough to let a healthy spare take the node's place once a
checkpoint is there. Nobody is left out for it: the node stays, as the last that is taken. No restart is charged for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gangrun.core.actions import Decision, SaveGang
from gangrun.core.events import DrainRequested
from gangrun.core.evidence import Alert, Evidence, NodeFinding, traits_of
from gangrun.core.machine.transitions import close_attempt, may_hold_ranks, refused, stay, stop_all
from gangrun.core.model import After, Exclusion, Node, Outcome, Phase, Placement, RunState, StepTime
from gangrun.core.nodes import device_test, placement, quarantine, race, roster, standing
from gangrun.core.nodes.race import MOVED
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import alerts, choose
from gangrun.core.text import NAMES_COUNT, counted, one_line

CURES = frozenset({"reset", "reboot", "rma"})  # the hardware does not get well by itself
A_GPU = re.compile(
    r"gpu \d+"
)  # and none of its links: they count what comes and goes, and what befalls their other end
SLOW_MAX_COUNT = 1  # nodes that are replaced within an hour because their ranks are slow
GROWN = "grown"  # the same, of one that was stopped only to go on with more nodes: no cap counts it


def noted(state: RunState, found: NodeFinding, now: float, policy: Policy) -> RunState:
    """The state that knows of poor hardware, and whether its node is to be relieved. What many nodes show at once is
    no node's own.
    """
    why = _due_because(state, found, now)
    state = roster.found_poor(state, found, why)
    shared = _shown_at_once(state, found, now, policy) & set(state.roster.nodes)
    return roster.with_nodes(state, {name: replace(state.roster.nodes[name], due="") for name in shared})


def drain_requested(state: RunState, event: DrainRequested, now: float, policy: Policy) -> Decision:
    """A person wants a node left. It is excluded at once; its ranks move off it at the next checkpoint."""
    name, before = event.node, state.attempt.placement
    if name not in state.roster.nodes:
        here = fold(state.roster.nodes) or "no node"
        return refused(state, f"{name} cannot be drained: it is not in this job, which has {here}")
    out = standing.active(state.health.excluded, now)
    if name in out and not roster.in_gang(state, name):
        return stay(state, f"{event.by} drains {name}, which is excluded already ({one_line(out[name].reason)})")
    if policy.observe:
        return refused(state, f"{name} is not drained, because this run only observes")
    if not policy.can_requeue and not placement.can_do_without(state, [name], now):
        return refused(state, f"{name} cannot be drained: no other node can take its place")
    entry = Exclusion(f"drained by {event.by}", now, now + policy.exclusion_s, drained_by=event.by)
    health = replace(state.health, excluded={**state.health.excluded, name: entry})
    state, told = replace(state, health=health), f"{event.by} drains {name}"
    if before is None or not before.holds(name) or not may_hold_ranks(state):
        return stay(state, f"{told}: it gets no rank any more", loud=True)
    if state.phase is not Phase.RUNNING:
        return stay(state, f"{told}: its ranks move at the next checkpoint or restart", loud=True)
    plan = _plan(state, before, now, policy)
    how = f"; {plan.why_not}" if plan.why_not else f"; its ranks move at the next checkpoint: {_whither(plan)}"
    save = SaveGang(state.attempt.number, event.key)
    return stay(state, f"{told}{how}; asking all ranks to save now", save, loud=True)


def _due_because(state: RunState, found: NodeFinding, now: float) -> str:
    if not found.poor:
        return ""
    if found.needs in CURES or traits_of(found.check).asks_for_itself:
        return found.sentence
    if not A_GPU.fullmatch(found.place):
        return ""
    sign = _sign(found)
    others = [
        other.sentence
        for other in standing.recent(state.attempt.evidence.findings, now)
        if other.poor and (other.node, other.place) == (found.node, found.place) and _sign(other) != sign
    ]
    return f"{found.sentence}, and {others[-1]}" if others else ""


def _sign(found: NodeFinding) -> str:
    return traits_of(found.check).same_sign or found.check


def _shown_at_once(state: RunState, found: NodeFinding, now: float, policy: Policy) -> frozenset[str]:
    same = [
        other
        for other in standing.recent(state.attempt.evidence.findings, now)
        if other.poor and other.check == found.check
    ]
    shared = standing.shared_by_check([*same, found], len(state.roster.nodes), policy) if found.poor else {}
    return frozenset(shared.get(found.check, ()))


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who goes, who comes, and why nobody does."""

    leaving: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()
    why_not: str = ""
    requeues: bool = False  # too few nodes are left in this job


def _plan(state: RunState, before: Placement, now: float, policy: Policy) -> _Plan:
    """What a restart now would change, with nodes that have proven themselves and nothing against them."""
    good = proven(state, before)
    prefer = placement.going_back(state, before)
    placed = placement.place(good, standing.active(state.health.excluded, now), state.shape, prefer)
    drained = _drained(state, before, now)
    if drained and policy.can_requeue and not isinstance(placed, Placement):
        return _Plan(drained, requeues=True)
    after = placed.nodes if isinstance(placed, Placement) else ()
    leaving = tuple(name for name in before.nodes if name not in after)
    marked = [state.roster.nodes[name] for name in leaving]
    if not drained and not any(node.due or node.slow for node in marked):
        return _Plan(why_not="no healthy node is free to take its place")
    gone = [node.name for node in marked if not node.is_doubtful and node.name not in drained]
    if gone:
        return _Plan(why_not=f"{fold(gone)} cannot be used either, and it is not known yet for how long")
    coming = tuple(name for name in after if name not in before.nodes)
    if drained or race.goes_back(state, leaving, coming):
        return _Plan(leaving, coming)
    cap = quarantine.cap_count(len(state.roster.nodes), policy) if any(node.due for node in marked) else SLOW_MAX_COUNT
    moves = [one for one in state.attempts if one.outcome == MOVED and (one.ended or 0.0) > now - quarantine.HOUR_S]
    if len(moves) >= cap:
        return _Plan(
            why_not=f"at most {counted(cap, 'such replacement')} {'is' if cap == 1 else 'are'} allowed within an hour"
        )
    return _Plan(leaving, coming)


def proven(state: RunState, before: Placement) -> Mapping[str, Node]:
    """The nodes that hold ranks, and of the others those that passed their checks and show nothing poor."""
    nodes = state.roster.nodes.items()
    return {name: node for name, node in nodes if before.holds(name) or (node.checked and not node.is_doubtful)}


def _drained(state: RunState, before: Placement, now: float) -> tuple[str, ...]:
    """Nodes of the gang that a person wants left."""
    out = standing.active(state.health.excluded, now)
    return tuple(name for name in before.nodes if name in out and out[name].drained_by)


def _whither(plan: _Plan) -> str:
    """Where the ranks go, in words."""
    if plan.requeues:
        return "to the next job, as too few nodes are left in this one"
    instead = f"{fold(plan.coming)} takes the place of {fold(plan.leaving)}"
    return instead if plan.coming else "the gang continues with fewer nodes"


def foreseen(state: RunState, name: str, now: float, policy: Policy) -> str:
    """What will become of a node of the gang of which this was just heard, in words; "" where nothing does."""
    if state.attempt.placement is None or not state.attempt.placement.holds(name) or not policy.move_suspects:
        return ""
    if not state.roster.nodes[name].due:
        return ""
    plan = _plan(state, state.attempt.placement, now, policy)
    if plan.why_not:
        return f"; it stays in use: {plan.why_not}"
    what = f"replaced by {fold(plan.coming)} at the next checkpoint"
    return f"; observing only, so it stays in use; else it would be {what}" if policy.observe else f"; it is {what}"


def slow(state: RunState, alert: Alert, why: str, now: float, policy: Policy) -> tuple[RunState, str, bool]:
    """A rank is slower than its peers, and the user wants its node left. The node is set aside, and excluded from
    nothing. Returns the state, what becomes of it in words, and whether all ranks are to be asked to save for it.
    """
    placed = state.attempt.placement
    wanted = policy.moves_slow_ranks and state.phase is Phase.RUNNING and not policy.observe
    if not wanted or placed is None or not placed.holds(alert.node):
        return state, "", False
    if alert.others_count >= len(placement.ranks_of_node(placed, alert.node)):
        return state, f"; {alert.node} stays in use: more ranks are slow than it has", False
    if stays := race.why_stays(state, placed, alert):
        return state, f"; {alert.node} stays in use: {stays}", False
    was_known = bool(state.roster.nodes[alert.node].slow)
    state = roster.found_slow(state, alert.node, why)
    plan = _plan(state, placed, now, policy)
    if plan.why_not:
        return state, f"; {alert.node} stays in use: {plan.why_not}", False
    asks = "" if was_known else ", which all ranks are asked for now"
    return state, f"; {_whither(plan)} at the next checkpoint{asks}", not was_known


def not_slow(state: RunState, alert: Alert) -> RunState:
    """The alert is over: its node need not be left, unless another one on it is open."""
    others = [one.alert for one in alerts.open_ones(state) if one.alert.kind in alerts.OF_A_RANK]
    return state if any(one.node == alert.node for one in others) else roster.found_slow(state, alert.node, "")


def is_new(before: RunState, after: RunState, name: str, now: float, policy: Policy) -> bool:
    """Has it just become known that this node of the gang is to be replaced, and can it be?"""
    node, was, placed = after.roster.nodes.get(name), before.roster.nodes.get(name), after.attempt.placement
    if before.phase is not Phase.RUNNING or policy.observe or not policy.move_suspects or placed is None:
        return False
    is_due = node is not None and bool(node.due) and was is not None and not was.due
    return is_due and placed.holds(name) and not _plan(after, placed, now, policy).why_not


def is_busy(decision: Decision, now: float) -> bool:
    """RUNNING: is something else under way: a hang, a stalled disk, ranks that finish, nodes that are taken away? Or
    did nothing happen?
    """
    state = decision.state
    busy = "stacks" in state.timers.deadlines or state.store_stalled_since is not None or bool(state.attempt.finished)
    goes = state.ending.gone_at is not None and now < state.ending.gone_at
    return decision.outcome is not Outcome.APPLIED or busy or goes


def at_checkpoint(decision: Decision, step_time: StepTime | None, now: float, policy: Policy) -> Decision:
    """RUNNING, and a newer checkpoint is there: stop and let others take the place of those that are due.
    ``step_time`` is that of the newest steps.
    """
    state = decision.state
    if is_busy(decision, now) or policy.observe:
        return decision
    assert state.attempt.placement is not None  # all ranks are alive
    drained = _drained(state, state.attempt.placement, now)
    if not drained and not policy.move_suspects:
        return decision
    plan = _plan(state, state.attempt.placement, now, policy)
    if plan.why_not:
        return decision
    if drained:
        by = standing.active(state.health.excluded, now)[drained[0]].drained_by
        told = f"{by} drains {fold(drained)}: {_whither(plan)}"
        return stop_all(state, now, policy, After.MOVE, f"{decision.reason}; {told}")  # they were asked to save before
    marks = {name: state.roster.nodes[name] for name in plan.leaving}
    why = {name: one_line(node.due or node.slow or node.poor) for name, node in marks.items()}
    told = "; ".join(f"{name}: {why[name]}" for name in plan.leaving[:NAMES_COUNT])
    who = "suspects that still work" if len(plan.leaving) > 1 else "a suspect that still works"
    state, compared = race.begun(state, plan.leaving, plan.coming, step_time, policy)
    reason = (
        f"{decision.reason}; {fold(plan.coming)} takes the place of {fold(plan.leaving)}, {who}; the script is asked to"
        f" save first ({told}){compared}"
    )
    return stop_all(state, now, policy, After.MOVE, reason, checkpoint_first=True)


def moved(state: RunState, now: float, policy: Policy) -> Decision:
    """All ranks are down for a move. If something broke meanwhile, that is judged; else the gang starts again, free."""
    if _broke(state.attempt.evidence):
        return choose.judge(state, now, policy)
    placed, before = placement.place_now(state, now), state.attempt.placement
    where = f" on {fold(placed.nodes)}" if isinstance(placed, Placement) else ""
    grows = isinstance(placed, Placement) and before is not None and set(before.nodes) < set(placed.nodes)
    if before is not None and isinstance(placed, Placement) and policy.test_suspects:
        left = [name for name in before.nodes if name not in placed.nodes and state.roster.nodes[name].slow]
        for name in left:
            state = device_test.begun(state, (name,), one_line(state.roster.nodes[name].slow))
    closed = close_attempt(state, now, GROWN if grows else MOVED, state.reason)
    why = f"attempt {state.attempt.number} was stopped to {'use more nodes' if grows else 'replace nodes'}"
    why += f"; restarting{where}, which the restart budget does not count"
    return choose.begin_checks(replace(state, attempts=closed), now, policy, why)


def _broke(evidence: Evidence) -> bool:
    fatal = any(found.fatal for found in evidence.findings)
    return bool(fatal or evidence.exits or evidence.silent or evidence.agents_died)
