"""Nodes of a job whose agents never came.

The job's launcher may know why: the scheduler could start nothing there, or what it started could not run. Once every
missing node is accounted for nobody is waited for. Such a node is left out of the next job, unless many, or all, say
the same: then it is what was asked for that cannot work, and another job would cost a queue and end the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gangrun.core.actions import Decision
from gangrun.core.events import NodeAbsent
from gangrun.core.machine.transitions import finish, ignored, stay
from gangrun.core.model import Absence, Failure, Phase, Roster, RunState
from gangrun.core.nodes import quarantine, standing
from gangrun.core.nodes.roster import with_nodes
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.recovery import choose
from gangrun.core.text import listed, one_line

UNKNOWN = "the reason is not known"
UNREACHED_S = 1800.0  # of a node that only the scheduler does not reach: by then it does not hand that node out itself
_NUMBER = re.compile(r"[0-9]+")


def noted(state: RunState, event: NodeAbsent) -> Decision:
    """In any phase: what is known of a node that is not here."""
    node, why = state.roster.nodes.get(event.node), one_line(event.why)
    if node is not None and (not event.taken or node.taken):
        return ignored(state, f"{event.node} has joined, so its own heartbeats decide ({why})")
    if node is not None:
        state = with_nodes(state, {event.node: replace(node, taken=event.why)})
        return stay(state, why if node.away else f"{why}; its agent answers, so {event.node} is used all the same")
    absence = Absence(event.why, event.scheduler, event.taken)
    if state.roster.absent.get(event.node) == absence:
        return ignored(state, f"it is already known that {event.node} will not join")
    roster = replace(state.roster, absent={**state.roster.absent, event.node: absence})
    return stay(state, f"{event.node} will not join: {why}", roster=roster)


def missing(roster: Roster) -> tuple[str, ...]:
    """Nodes that should be here and are not."""
    return tuple(natural_sort(name for name in {*roster.expected, *roster.absent} if name not in roster.nodes))


def nobody_else_comes(roster: Roster) -> bool:
    """Is every node of the job here, or known not to come?"""
    return bool(roster.expected) and all(name in roster.nodes or name in roster.absent for name in roster.expected)


def told(roster: Roster) -> str:
    """Who is missing and what is known of that, in words; "" where nobody is."""
    words = [f"{fold(names)} did not join: {why}" for why, names in _by_cause(roster, missing(roster)).items()]
    return f"; {listed(words)}" if words else ""


def _lone(state: RunState) -> str:
    """The only node that joined, if the others are missing for an unknown reason: it may be cut off; else ""."""
    nodes, absent = state.roster.nodes, state.roster.absent
    unknown = [name for name in missing(state.roster) if name not in absent]
    lone = len(nodes) == 1 and state.shape.nodes_count > 1 and (unknown or not absent)
    return next(iter(nodes)) if lone else ""


def too_few(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Not enough nodes came: the next job without them, or the end where another would not come farther.

    Whoever is alone for the second time, as others would have had to come to it, is left out itself.
    """
    lone = _lone(state)
    if lone and policy.can_requeue:
        if standing.unfaded(state.health, now).get(lone):
            why = "no other node joined it in two jobs"
            state, left_out = quarantine.leave_out(state, (lone,), why, now, policy)
            return choose.too_few_nodes(state, now, policy, f"{reason}; {why}: {left_out}")
        health = state.health
        once, at = {**health.suspicion, lone: 1}, {**health.suspected_at, lone: now}
        state = replace(state, health=replace(health, suspicion=once, suspected_at=at))
    names = missing(state.roster)
    if not names:
        return choose.too_few_nodes(state, now, policy, reason)
    count = len({*state.roster.expected, *state.roster.absent})
    for why, those in _by_cause(state.roster, names).items():
        absence = state.roster.absent.get(those[0])
        everywhere = len(those) == count and (count > 1 or (absence is not None and not absence.scheduler))
        many = standing.are_many(len(those), count, policy)
        if absence is not None and not absence.taken and (everywhere or many):
            failure = Failure.SCHEDULER if absence.scheduler else Failure.SCRIPT
            who = "no node could start" if everywhere else f"{len(those)} of {count} nodes could not start"
            return finish(state, Phase.FAILED, now, f"{who}: {why}", failure)
        if everywhere or many or not policy.can_requeue or (absence is not None and absence.taken):
            continue  # of a cause that nobody knows, and many have, no node is guilty; nor is one that was taken
        brief = absence is not None and absence.scheduler
        bounded = replace(policy, exclusion_s=min(policy.exclusion_s, UNREACHED_S)) if brief else policy
        state, left_out = quarantine.leave_out(state, those, f"did not join: {why}", now, bounded)
        reason += f"; {left_out}"
    return choose.too_few_nodes(state, now, policy, reason)


def _by_cause(roster: Roster, names: Iterable[str]) -> dict[str, list[str]]:
    """The first one's own words -> all nodes that say the same but for numbers and names."""
    words: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for name in names:
        absence = roster.absent.get(name)
        why = UNKNOWN if absence is None else one_line(absence.why)
        plain = _NUMBER.sub("N", why.replace(name, "<node>"))
        groups.setdefault(words.setdefault(plain, why), []).append(name)
    return groups
