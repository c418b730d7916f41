"""How a node stands, and what is to be done of it.

Heartbeats, checks, findings, device tests, verdicts and exclusions each leave a mark: on the node of this job
(``Node``), or on what is remembered over jobs (``NodeHealth``). ``standing_of`` reads all marks of one node into one
value with its reason and its evidence, the weightiest first; ``use_of`` alone decides what follows from it. Placement,
device tests, planned replacement, exclusion and waiting ask these two. How a mark comes about is in ``roster``.

The same trouble on many nodes at once is that of a service that they share, not the nodes': ``are_many`` says how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from gangrun.core.evidence import NodeFinding
from gangrun.core.model import Exclusion, Node, NodeHealth, RunState, Shape, Verdict
from gangrun.core.nodeset import natural_sort
from gangrun.core.policy import Policy
from gangrun.core.text import counted, listed, one_line

SHARED_NODES_MIN_COUNT = 3  # on fewer nodes "a fifth of them" says nothing
EVIDENCE_WINDOW_S = 600.0  # a poor reading so long before a failure may have to do with it
SUSPICION_HALVES_S = 24 * 3600.0


class StandingKind(Enum):
    """The weightiest thing that is known of a node."""

    EXCLUDED = "excluded"  # for a time, over jobs
    AWAY = "away"  # silent or lost
    TAKEN = "taken"  # silent or lost, and out of the job for the scheduler
    BROKEN = "broken"  # a check or a finding says so, in this job
    UNDER_TEST = "under test"  # its devices are put to work before it is used again
    TOO_SMALL = "too small"
    TO_BE_REPLACED = "to be replaced"  # at the next checkpoint, if a better node is free
    SUSPECT = "suspect"  # its hardware is poor, and it works
    USABLE = "usable"


class Use(Enum):
    """What is to be done of a node; a gang takes them in this order."""

    AS_ANY = 0
    LAST = 1  # only where no other is free
    UNTIL_A_BETTER_ONE = 2  # last of all, and another takes its place at a checkpoint
    TEST = 3  # not before its devices have been put to work
    WAIT = 4  # it may come back
    NOT = 5


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """How a node stands, why in words, the finding that says so if one does, and until when if a time is set."""

    kind: StandingKind
    why: str = ""
    finding: NodeFinding | None = None
    until: float | None = None

    @property
    def usable(self) -> bool:
        """May a gang use it now?"""
        return use_of(self) in USABLE


_AS_ANY = NodeStanding(StandingKind.USABLE)  # of nearly all nodes, each time that thousands are judged


def standing_of(node: Node, excluded: Mapping[str, Exclusion], shape: Shape) -> NodeStanding:
    """How this node stands. ``excluded`` holds only what is in force (``active``). Not yet checked is usable."""
    out, found = excluded.get(node.name), node.found
    if out is not None:
        return NodeStanding(StandingKind.EXCLUDED, f"excluded ({one_line(out.reason)})", found, out.until)
    if node.away:
        if node.taken:
            return NodeStanding(StandingKind.TAKEN, f"lost ({one_line(node.taken)})", found)
        return NodeStanding(StandingKind.AWAY, "lost" if node.lost else "silent", found)
    if node.checked is False:
        return NodeStanding(StandingKind.BROKEN, f"failed its check ({one_line(node.check_reason)})", found)
    if node.trial:
        return NodeStanding(StandingKind.UNDER_TEST, f"under test ({one_line(node.trial)})")
    whole_count = len(node.whole_slots) if node.broken_slots else node.slots_count
    if whole_count < shape.slots_needed:
        broken = listed([f"{one.name} is left out ({one_line(one.reason)})" for one in node.broken_slots])
        what, more = ("GPU", f": {broken}") if broken else ("slot", "")
        why = f"has only {counted(whole_count, what)} of the {shape.slots_needed} needed{more}"
        return NodeStanding(StandingKind.TOO_SMALL, why)
    if node.due or node.slow:
        return NodeStanding(StandingKind.TO_BE_REPLACED, node.due or node.slow)
    return NodeStanding(StandingKind.SUSPECT, node.poor) if node.poor else _AS_ANY


_USES = {
    StandingKind.EXCLUDED: Use.NOT,
    StandingKind.AWAY: Use.WAIT,
    StandingKind.TAKEN: Use.NOT,  # nothing can be started there in this job
    StandingKind.BROKEN: Use.NOT,
    StandingKind.UNDER_TEST: Use.TEST,
    StandingKind.TOO_SMALL: Use.NOT,
    StandingKind.TO_BE_REPLACED: Use.UNTIL_A_BETTER_ONE,
    StandingKind.SUSPECT: Use.LAST,
    StandingKind.USABLE: Use.AS_ANY,
}
USABLE = frozenset({Use.AS_ANY, Use.LAST, Use.UNTIL_A_BETTER_ONE})


def use_of(standing: NodeStanding) -> Use:
    """What is to be done of a node that stands so."""
    return _USES[standing.kind]


def standings(state: RunState, now: float) -> Mapping[str, NodeStanding]:
    """How each node of this job stands."""
    out = active(state.health.excluded, now)
    return {name: standing_of(node, out, state.shape) for name, node in state.roster.nodes.items()}


def active(excluded: Mapping[str, Exclusion], now: float) -> Mapping[str, Exclusion]:
    """What is still in force; an exclusion ends at its ``until``."""
    return {name: entry for name, entry in excluded.items() if now < entry.until}


# ---- one node's, or a shared service's -------------------------------------------------------------------------------


def are_many(count: int, nodes_count: int, policy: Policy) -> bool:
    """Do so many nodes have the same trouble at once that a service they share is at fault, and none of them?"""
    return count >= SHARED_NODES_MIN_COUNT and count > policy.shared_fault_share * nodes_count


def shared_nodes(since: Mapping[str, float], nodes_count: int, policy: Policy) -> tuple[str, ...]:
    """Nodes hit by one cause together, within ten seconds, if they are many; else none."""
    in_time = sorted(since.items(), key=lambda item: (item[1], item[0]))
    best: tuple[str, ...] = ()
    start = 0
    for end, (_, at) in enumerate(in_time):
        while at - in_time[start][1] > policy.shared_fault_window_s:
            start += 1
        if end + 1 - start > len(best):
            best = tuple(name for name, _ in in_time[start : end + 1])
    return tuple(natural_sort(best)) if are_many(len(best), nodes_count, policy) else ()


def shared_by_check(findings: Iterable[NodeFinding], nodes_count: int, policy: Policy) -> dict[str, tuple[str, ...]]:
    """For each check that found the same on many nodes at once, those nodes."""
    by_check: dict[str, dict[str, float]] = {}
    for finding in findings:
        times = by_check.setdefault(finding.check, {})
        times[finding.node] = min(finding.at, times.get(finding.node, finding.at))
    shared = {check: shared_nodes(times, nodes_count, policy) for check, times in by_check.items()}
    return {check: nodes for check, nodes in shared.items() if nodes}


def recent(findings: tuple[NodeFinding, ...], now: float) -> tuple[NodeFinding, ...]:
    """What may bear on a failure now: what is fatal, and what was poor within the last minutes."""
    return tuple(finding for finding in findings if finding.fatal or now - finding.at <= EVIDENCE_WINDOW_S)


# ---- suspicion -------------------------------------------------------------------------------------------------------


def unfaded(health: NodeHealth, now: float) -> Mapping[str, int]:
    """The suspicion that still counts: it halves with each day, and less than a half is none."""
    return {
        name: count
        for name, count in health.suspicion.items()
        if count * 0.5 ** (max(0.0, now - health.suspected_at.get(name, now)) / SUSPICION_HALVES_S) >= 0.5
    }


def suspect(suspicion: Mapping[str, int], verdict: Verdict) -> Mapping[str, int]:
    """Suspicion after a verdict: one more for each suspect; a blamed node starts anew when it comes back."""
    after = dict(suspicion)
    for name in verdict.suspects:
        after[name] = after.get(name, 0) + 1
    for name in verdict.blamed:
        if name not in verdict.suspects:
            after.pop(name, None)
    return after
