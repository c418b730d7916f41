"""How events mark nodes, whatever the phase.

Each function takes an event about a node and returns the state as it is afterwards. What the marks come to is for
``standing``, and what that means for the gang for the handlers of the phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gangrun.core.events import AgentJoined, AgentRejoined, NodeChecked, NodeLost, NodeSilent
from gangrun.core.evidence import NodeFinding
from gangrun.core.model import BrokenSlot, Exclusion, Node, RunState, Slot
from gangrun.core.nodes.quarantine import comes_back
from gangrun.core.text import one_line
from gangrun.core.versions import count, with_entries

LEFT_OUT = "excluded until it"


def _cure(entry: Exclusion) -> str:
    cure = "was heard again" if entry.silent else "had booted" + (", or been reset" if entry.shows_reset else "")
    return f"{LEFT_OUT} {cure} ({one_line(entry.reason)})"


def joined(state: RunState, event: AgentJoined | AgentRejoined) -> RunState:
    """The roster with this agent in it; the same boot of the same node keeps the preflight it has passed. One that was
    excluded until it had booted, and has, or until it was heard, is on trial.
    """
    old = state.roster.nodes.get(event.node)
    same_boot = old is not None and old.boot_id == event.boot_id
    entry = state.health.excluded.get(event.node)
    back = _cure(entry) if entry and comes_back(entry, event.boot_id) else ""
    kept = old if same_boot and not (back and entry and entry.silent) else None  # who was silent proves itself anew
    node = Node(
        name=event.node,
        incarnation=event.incarnation,
        boot_id=event.boot_id,
        slots_count=event.slots_count,
        checked=True if kept is not None and kept.checked is True else None,
        poor=old.poor if same_boot and old is not None else "",
        due=old.due if same_boot and old is not None else "",
        slow=old.slow if same_boot and old is not None else "",
        trial=back if kept is None else kept.trial,
        addresses=event.addresses,
        refill=event.refill,
        broken_slots=old.broken_slots if same_boot and old is not None else (),
    )
    return with_nodes(state, {event.node: node})


def named_by(state: RunState) -> dict[str, str]:
    """Address -> node. What several nodes have, as that of a container's bridge, names none of them."""
    pairs = [(address, node.name) for node in state.roster.nodes.values() for address in node.addresses]
    counts = Counter(address for address, _ in pairs)
    return {address: name for address, name in pairs if counts[address] == 1}


def silent(state: RunState, event: NodeSilent) -> RunState:
    """The roster with the node under suspicion."""
    return _with(state, event.node, silent_since=event.since)


def lost(state: RunState, event: NodeLost) -> RunState:
    """The roster with the node counted as gone."""
    return _with(state, event.node, silent_since=event.since, lost=True)


def heard(state: RunState, name: str) -> RunState:
    """The roster with the node back. One that was excluded because it was silent is on trial."""
    node, entry = state.roster.nodes.get(name), state.health.excluded.get(name)
    was_away = node is not None and node.away
    if was_away and node is not None and entry is not None and entry.silent and comes_back(entry, node.boot_id):
        return _with(state, name, silent_since=None, lost=False, checked=None, trial=_cure(entry))
    return _with(state, name, silent_since=None, lost=False)


def checked(state: RunState, event: NodeChecked) -> RunState:
    """The roster with the outcome of one preflight."""
    tested = event.tested if event.ok else ""
    for slot in event.broken:
        state = without_slot(state, Slot(event.node, slot.index), slot.name, slot.reason)
    return _with(state, event.node, checked=event.ok, check_reason=event.reason, trial="", tested=tested)


def checks_told(event: NodeChecked) -> str:
    """One preflight in words."""
    if not event.ok:
        return f"failed its checks: {event.reason}"
    tested = f", and its devices work: {event.tested}" if event.tested else ""
    broken = [f"{slot.name} gets no rank ({one_line(slot.reason)})" for slot in event.broken]
    but = "; ".join(filter(None, [*broken, event.reason]))
    return f"passed its checks{tested}{', but ' if but else ''}{but}"


def in_use(state: RunState, found: NodeFinding) -> bool:
    """Does a rank hold what it is about, which is its node or one slot of it?"""
    placed = state.attempt.placement
    return found.slot < 0 or placed is None or any(seat.slot == Slot(found.node, found.slot) for seat in placed.seats)


def can_lose(state: RunState, slot: Slot) -> bool:
    """Would its node have enough slots without it?"""
    node = state.roster.nodes.get(slot.node)
    return node is not None and len(set(node.whole_slots) - {slot.index}) >= state.shape.slots_needed > 0


def without_slot(state: RunState, slot: Slot, name: str, reason: str) -> RunState:
    """The roster in which no rank gets this slot any more."""
    node = state.roster.nodes.get(slot.node)
    if node is None or any(one.index == slot.index for one in node.broken_slots):
        return state
    return _with(state, slot.node, broken_slots=(*node.broken_slots, BrokenSlot(slot.index, name, reason)))


def found_bad(state: RunState, found: NodeFinding) -> RunState:
    """The roster with a node that is not to be used: what was measured on it outweighs any check that it passed. If it
    was measured on one slot, only that is not to be used.
    """
    if found.slot >= 0:
        return without_slot(state, Slot(found.node, found.slot), found.place, found.sentence)
    return _with(state, found.node, checked=False, check_reason=found.sentence, found=found, trial="")


def found_poor(state: RunState, found: NodeFinding, due: str) -> RunState:
    """A node that is used last, if that was found; ``due``: why another is to take its place, if one is."""
    if not found.poor:
        return state
    return _with(state, found.node, poor=found.sentence, **({"due": due} if due else {}))


def found_slow(state: RunState, name: str, why: str) -> RunState:
    """The roster with a node whose ranks are slower than their peers; "": they are not."""
    return _with(state, name, slow=why)


def _is_unchecked(node: Node) -> bool:
    return node.checked is None and not node.lost


def unchecked(state: RunState) -> tuple[str, ...]:
    """Nodes that are here and have not proved themselves."""
    return tuple([name for name, node in state.roster.nodes.items() if _is_unchecked(node)])


def unchecked_count(state: RunState) -> int:
    """How many those are: asked at each answer, so nobody goes through all nodes for it."""
    return count(state.roster.nodes, _is_unchecked)


def in_gang(state: RunState, name: str) -> bool:
    """Does the current placement use this node?"""
    return state.attempt.placement is not None and state.attempt.placement.holds(name)


def with_nodes(state: RunState, changed: Mapping[str, Node]) -> RunState:
    """The state with these nodes as they are now."""
    nodes = with_entries(state.roster.nodes, changed)
    return replace(state, roster=replace(state.roster, nodes=nodes)) if changed else state


def _with(state: RunState, name: str, **changes: object) -> RunState:
    node = state.roster.nodes.get(name)
    return state if node is None else with_nodes(state, {name: replace(node, **changes)})  # type: ignore[arg-type]
