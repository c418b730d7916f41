"""Nodes that meet in pairs, because ranks lost each other's connection and nothing else says why.

The text of the failure asks for it (``Cure.MEET`` in ``failure_texts``), and no rank, node or device is known to have
failed first. The nodes that others name come first, then those whose ranks lost a peer, then references. All of them
are idle meanwhile, so the next attempt waits, for at most ``WITHIN_S``. Only a failed test counts against a node: one
that gets through to nobody, while its partners get through to others. A pair that fails alone is a link: of its two
nodes the one that others named goes, if the gang can do without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangrun.core.events import NodeChecked
from gangrun.core.model import Cause, Cure, NetworkTest, RunState, Verdict
from gangrun.core.nodes import meetings, placement, quarantine, roster, standing
from gangrun.core.nodes.meetings import Meeting, Pair
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.recovery import error_rules
from gangrun.core.recovery.failure_texts import Rule
from gangrun.core.text import listed, one_line

NODES_MAX_COUNT = 32  # the rest of a larger gang is not tested
ROUND_S = 8.0
WITHIN_S = 3 * ROUND_S


def begun(state: RunState, verdict: Verdict, now: float, policy: Policy) -> tuple[RunState, str]:
    """The state in which nodes are to meet, and the words for it; the same state if nothing points at a connection."""
    evidence, placed = state.attempt.evidence, state.attempt.placement
    lost = [died for died in evidence.exits if not died.by_us and _asks(error_rules.rule_of(died))]
    is_open = verdict.cause in {Cause.VICTIMS_ONLY, Cause.HANG} and not verdict.final and evidence.hang is None
    if not (policy.test_suspects and lost and is_open and placed is not None):
        return state, ""
    stand = standing.standings(state, now)
    told = [died.node for died in sorted(lost, key=lambda died: (died.fell_at, died.rank))]
    order = dict.fromkeys((*verdict.suspects, *told, *placed.nodes, *natural_sort(state.roster.nodes)))
    usable = [name for name in order if name in stand and stand[name].usable]
    references_count = max(0, meetings.ALL_MEET_COUNT - len(placed.nodes))
    spares = [name for name in usable if name not in placed.nodes][:references_count]
    nodes = tuple([*(name for name in usable if name in placed.nodes), *spares][:NODES_MAX_COUNT])
    if len(nodes) == 1:
        return state, ""
    state = roster.with_nodes(state, {name: replace(state.roster.nodes[name], checked=None) for name in nodes})
    state = replace(state, health=replace(state.health, network=NetworkTest(nodes)))
    return state, f"; the network between {fold(natural_sort(nodes))} is tested first"


def _asks(rule: Rule | None) -> bool:
    return rule is not None and rule.few is Cure.MEET


def unanswered(state: RunState) -> tuple[str, ...]:
    """Nodes that are here and have not said whom they met."""
    test = state.health.network
    return () if test is None else tuple(name for name in test.nodes if name not in test.met)


def rounds(state: RunState, names: Iterable[str]) -> tuple[tuple[Pair, ...], ...]:
    """The pairs that meet, if one of these nodes has still to."""
    test, left = state.health.network, set(unanswered(state))
    return meetings.rounds_of_few(test.nodes) if test is not None and left & set(names) else ()


def heard(state: RunState, event: NodeChecked) -> RunState:
    """The state with what one node says of its meetings."""
    test = state.health.network
    if test is None or event.node not in test.nodes:
        return state
    test = replace(test, met={**test.met, event.node: event.met})
    return replace(state, health=replace(state.health, network=test))


def concluded(state: RunState, now: float, policy: Policy) -> tuple[RunState, str]:
    """The state after the test, and the sentence that tells its outcome; the same state if there was none."""
    test = state.health.network
    if test is None:
        return state, ""
    state = replace(state, health=replace(state.health, network=None))
    held = _held(test)
    if not held:
        return state, "the network test could not be made, which does not count against a node"
    found = meetings.conclusion(held, share=0.0)
    if found.links:
        return _link(state, test, found, now, policy)
    guilty = [one.node for one in found.named]
    if not guilty:
        return state, f"the network test: {found.sentence}"
    reason = "; ".join(one.sentence for one in found.named)
    return _left_out(state, guilty, f"the network test failed: {reason}", now, policy)


def _held(test: NetworkTest) -> list[Meeting]:
    """Each pair that both nodes speak of. A pair failed if both say so: one alone may have had no partner in time."""
    said = {(name, one.partner): one.error for name, all_met in test.met.items() for one in all_met}
    pairs = [pair for one in meetings.rounds_of_few(test.nodes) for pair in one]
    both = [(pair, [said[pair], said[pair[::-1]]]) for pair in pairs if pair in said and pair[::-1] in said]
    return [Meeting(pair, error=f"failed ({one_line(errors[0])})" if all(errors) else "") for pair, errors in both]


def _link(
    state: RunState, test: NetworkTest, found: meetings.Conclusion, now: float, policy: Policy
) -> tuple[RunState, str]:
    ends = {name for pair in found.links for name in pair}
    shared = [name for name in test.nodes if all(name in pair for pair in found.links)]
    told = listed([f"{a} and {b}" for a, b in found.links])
    sentence = f"the network test failed between {told} only: {found.sentence}"
    guilty = shared[:1]  # those that others named stand first
    if not guilty:
        return state, f"{sentence}; {fold(natural_sort(ends))} are suspected"
    return _left_out(state, guilty, sentence, now, policy)


def _left_out(state: RunState, names: list[str], reason: str, now: float, policy: Policy) -> tuple[RunState, str]:
    """Excluded if the gang can do without them."""
    if policy.observe or not (policy.can_requeue or placement.can_do_without(state, names, now)):
        return state, f"{reason}; no other node can take the place of {fold(names)}"
    state, told = quarantine.leave_out(state, names, reason, now, policy)
    return state, f"{reason}; {told}"
