"""What happens to nodes, one handler per event for all phases.

Each handler first brings the roster up to date. What follows depends on two questions: does the node hold ranks that
may live (``_holds_ranks``), and which phase waits for nodes. PENDING counts heads, CHECKING waits for answers, WAITING
may wait for nodes to come back. If a node that holds ranks is lost, all ranks stop; in STOPPING that is one more piece
of evidence.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core import events
from gangrun.core.actions import Decision, ProbeNode, SaveGang
from gangrun.core.evidence import Evidence, NodeFinding, traits_of
from gangrun.core.machine import refills, starting, waiting
from gangrun.core.machine.transitions import ignored, may_hold_ranks, stay, stop_all, stop_or_note, with_evidence
from gangrun.core.model import After, Phase, RunState
from gangrun.core.nodes import (
    absences,
    device_test,
    growth,
    history,
    network_test,
    planned_replacement,
    refilling,
    roster,
    standing,
)
from gangrun.core.policy import Policy
from gangrun.core.recovery import alerts, choose
from gangrun.core.text import finding_told

FINDINGS_MAX_COUNT = 32
_GANG_UP = frozenset({Phase.RUNNING, Phase.STOPPING})
# The driver has taken the GPU from every program on it: memory lost, off the bus, its own processors halted.
LOST_XIDS = frozenset({46, 48, 62, 79, 95, 119, 120, 140, 158, 167})


def _holds_ranks(state: RunState, node: str) -> bool:
    return may_hold_ranks(state) and roster.in_gang(state, node)


def joined(state: RunState, event: events.AgentJoined | events.AgentRejoined, now: float, policy: Policy) -> Decision:
    """An agent came, or a new one took its place: then the ranks of the old one are dead."""
    if state.ending.leaving:
        return ignored(state, f"{event.node} joined, but this job ends: the run continues in another job")
    why_not = refilling.unwanted(state, event.refill, event.node, state.roster.expected) if event.refill else ""
    if why_not:
        return ignored(state, f"{event.node} wants to join, but {why_not}")
    before, was = state.roster.nodes.get(event.node), state
    state = refills.joined(roster.joined(state, event), event.refill, event.node)
    reason = f"{event.node} joined{f' as refill {event.refill}' if event.refill else ''}"
    if isinstance(event, events.AgentRejoined):
        reason = f"the agent on {event.node} was restarted{': ' + event.why if event.why else ''}"
        if _holds_ranks(state, event.node):
            evidence = state.attempt.evidence
            died = replace(evidence, agents_died=(*evidence.agents_died, event.node))
            since = evidence.silent.get(event.node, now)
            if before is not None and before.boot_id == event.boot_id and now - since < policy.timing.fence_after_s:
                # The node never was away: nobody spoke there until the agent had a successor.
                died = replace(died, silent={name: at for name, at in evidence.silent.items() if name != event.node})
            return stop_or_note(state, now, policy, f"{reason}; its ranks died with it", died, peer_gone=True)
        reason += "; it held no ranks" if state.phase in _GANG_UP else ""
    match state.phase:
        case Phase.PENDING:
            return starting.count_heads(state, now, policy, reason)
        case Phase.CHECKING:
            return starting.check_late_node(state, event.node, now, policy)
        case Phase.WAITING:
            return waiting.go_on_if_enough(state, now, policy, reason)
        case Phase.RUNNING if state.roster.nodes[event.node].checked is None:
            # A spare that comes late is checked at once, so that no restart has to wait for it.
            return stay(state, reason, *device_test.ask(state, (event.node,), policy))
        case Phase.RUNNING:
            return growth.announced(was, stay(state, reason), now, policy)
        case _:
            return stay(state, reason)


def absent(state: RunState, event: events.NodeAbsent, now: float, policy: Policy) -> Decision:
    """The launcher knows that no agent comes from a node. In PENDING and in a wait for nodes the last one decides."""
    decision = absences.noted(state, event)
    after = decision.state
    if after is state:
        return decision
    if state.phase is Phase.PENDING and not state.ending.leaving and absences.nobody_else_comes(after.roster):
        return starting.with_those_who_came(after, now, policy)
    if "nodes" in state.timers.deadlines and choose.still_joining(state, now):
        away = any(node.away for node in after.roster.nodes.values())
        if not away and not choose.still_joining(after, now):
            return choose.begin_checks(after, now, policy, decision.reason)
    return decision


def silent(state: RunState, event: events.NodeSilent, now: float, policy: Policy) -> Decision:
    """A suspect, not a reason to stop: in RUNNING other nodes are asked whether they reach the node."""
    del policy
    if event.node not in state.roster.nodes:
        return ignored(state, f"{event.node} is not in this job")
    state = roster.silent(state, event)
    reason = f"{event.node} has been silent for {now - event.since:.0f} s"
    loud = state.phase is Phase.RUNNING and roster.in_gang(state, event.node)
    if state.phase is not Phase.RUNNING or len(state.roster.nodes) < 2:
        return stay(state, reason, loud=loud)
    return stay(state, f"{reason}; asking other nodes whether they reach it", ProbeNode(event.node), loud=loud)


def heard(state: RunState, event: events.NodeHeard, now: float, policy: Policy) -> Decision:
    """The node was only slow. In RUNNING people have read that it was silent, so they read this too."""
    was_away = event.node in state.roster.nodes and state.roster.nodes[event.node].silent_since is not None
    loud = state.phase is Phase.RUNNING and was_away and roster.in_gang(state, event.node)
    was, state = state, roster.heard(state, event.node)
    reason = f"{event.node} sends heartbeats again"
    if state.phase is Phase.WAITING:
        return waiting.go_on_if_enough(state, now, policy, reason)
    if state.phase is Phase.RUNNING and (asked := device_test.ask_spares(state, policy, event.node)):
        return stay(state, f"{reason}; it is checked before it is used again", *asked, loud=loud)
    return growth.announced(was, stay(state, reason, loud=loud), now, policy)


def lost(state: RunState, event: events.NodeLost, now: float, policy: Policy) -> Decision:
    """A node is gone. One that holds no ranks costs nothing."""
    holds = _holds_ranks(state, event.node)
    state = roster.lost(state, event)
    reason = f"{event.node} is lost: {event.why}"
    if holds:  # in STOPPING: that its ranks are gone is for ``GangStopped`` to prove
        evidence = replace(state.attempt.evidence, silent={**state.attempt.evidence.silent, event.node: event.since})
        return stop_or_note(state, now, policy, reason, evidence, peer_gone=True)
    if state.phase is Phase.CHECKING:
        return starting.when_checked(state, now, policy, reason)
    return stay(state, f"{reason}; it holds no ranks" if state.phase in _GANG_UP else reason)


def checked(state: RunState, event: events.NodeChecked, now: float, policy: Policy) -> Decision:
    """An answer to the checks. A node that is known to be bad stays so, whatever it passes."""
    node, was = state.roster.nodes.get(event.node), state
    if node is None:
        return ignored(state, f"{event.node} is not in this job")
    if event.ok and node.checked is False:
        return ignored(state, f"{event.node} passed its checks, but it stays unused: {node.check_reason}")
    if node.trial:
        done = device_test.answered(state, event, now, policy)
        state, reason = done.state, done.sentence
    elif state.phase is Phase.STARTING:  # its answer was waited for, and it counts as unknown by now
        return ignored(state, "nodes are not being checked now")
    else:
        state, reason = roster.checked(state, event), f"{event.node} {roster.checks_told(event)}"
    state = network_test.heard(state, event)
    if state.phase is Phase.CHECKING:
        return starting.when_checked(state, now, policy, reason)
    return growth.announced(was, stay(state, reason), now, policy)


def finding(state: RunState, event: events.FindingRaised, now: float, policy: Policy) -> Decision:
    """A check measured something.

    Fatal to a node that holds ranks: all ranks stop, with a save first if it may succeed. Fatal to another node: the
    node is not used any more. Anything else is ridden out; poor hardware is evidence of what happens soon after.
    """
    state, found = history.heard(state, event.finding, now)
    sentence = finding_told(found)
    if not found.fatal or found.node not in state.roster.nodes:
        return _ride_out(state, found, sentence, now, policy)
    if policy.observe and state.phase not in _GANG_UP:
        return stay(state, f"{sentence}; observing only, so {found.node} is used all the same")
    if not _holds_ranks(state, found.node) or not roster.in_use(state, found):
        state = roster.found_bad(state, found)
        if state.phase is Phase.CHECKING:
            return starting.when_checked(state, now, policy, sentence)
        return stay(state, f"{sentence}; it holds no ranks" if state.phase in _GANG_UP else sentence)
    known = any(
        one.fatal and (one.node, one.check) == (found.node, found.check) for one in state.attempt.evidence.findings
    )
    evidence = replace(state.attempt.evidence, findings=(*state.attempt.evidence.findings, found))
    if policy.observe and state.phase is Phase.RUNNING:
        return stay(state, sentence) if known else observed(state, evidence, sentence, now, policy)
    if state.phase is Phase.STARTING or state.underway.after in {After.AGAIN, After.MOVE}:
        state = roster.found_bad(state, found)  # nobody judges before the next attempt, and then it is weighed again
    if state.phase is not Phase.RUNNING:
        return stop_or_note(state, now, policy, sentence, evidence)
    save = can_save(found)
    at_once = "all ranks stop at once, because ranks on this node cannot save"
    how = "the ranks save first, because the GPU still works" if save else at_once
    return stop_all(state, now, policy, After.JUDGE, f"{sentence}; {how}", evidence, checkpoint_first=save)


def _ride_out(state: RunState, found: NodeFinding, sentence: str, now: float, policy: Policy) -> Decision:
    evidence, state = state.attempt.evidence, alerts.with_finding(state, found)
    if found.poor and state.phase in _GANG_UP:
        kept = (*standing.recent(evidence.findings, now), found)[-FINDINGS_MAX_COUNT:]
        evidence = replace(evidence, findings=kept)
    told = with_evidence(planned_replacement.noted(state, found, now, policy), evidence)
    what = planned_replacement.foreseen(told, found.node, now, policy) if state.phase is Phase.RUNNING else ""
    if planned_replacement.is_new(state, told, found.node, now, policy):
        save = SaveGang(state.attempt.number, "")
        return stay(told, f"{sentence}{what}, which all ranks are asked for now", save, loud=True)
    return stay(told, f"{sentence}{what}", loud=bool(what))


def can_save(found: NodeFinding) -> bool:
    """May a save that all ranks take part in succeed after this finding?

    Hardware that is about to be lost still computes. A GPU that is gone computes nothing more: its ranks hang or fall,
    and the other ranks would wait for them until the time for saving is over.
    """
    return not traits_of(found.check).is_lost and (found.report is None or found.report.number not in LOST_XIDS)


def observed(state: RunState, evidence: Evidence, reason: str, now: float, policy: Policy) -> Decision:
    """Observing only: say what would stop all ranks, and what would follow. The evidence bears on what happens next."""
    would = choose.unobserved(with_evidence(state, evidence), now, policy)
    told = f"{reason}; observing only, so training goes on; else all ranks would be stopped: {would}"
    return stay(with_evidence(state, evidence), told, loud=True)
