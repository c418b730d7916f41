"""Which slot holds which ranks.

The unit is a slot: a node under a scheduler, a GPU (or a rank's place) on one box. Deterministic: the same roster gives
the same placement, in natural order of node names. Called by ``lifecycle`` before each attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gangrun.core.model import Exclusion, Node, Placement, Seat, Shape, Slot
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.text import counted, one_line


@dataclass(frozen=True, slots=True)
class NotEnough:
    """Too few usable nodes, and a sentence that says which are missing and why."""

    have: int
    want: int
    why: str


def place(
    nodes: Mapping[str, Node],
    excluded: Mapping[str, Exclusion],
    shape: Shape,
    prefer: Placement | None = None,
) -> Placement | NotEnough:
    """Choose nodes for all ranks: those of ``prefer`` first, so that spares stay spares; poor ones last, and of these
    such as are due to be relieved last of all.

    ``excluded`` holds only what is in force now (``quarantine.active``). Fewer than ``nodes_count`` but at least
    ``nodes_min_count`` usable nodes give a smaller world.
    """
    usable = natural_sort(name for name, node in nodes.items() if not unusable_because(node, excluded, shape))
    if len(usable) < shape.nodes_min_count:
        return NotEnough(len(usable), shape.nodes_min_count, _why(nodes, excluded, shape, len(usable)))
    count = min(shape.nodes_count, len(usable))
    before = prefer.nodes if prefer is not None else ()
    seat = {name: index for index, name in enumerate(before)}
    against = {name: bool(nodes[name].poor) + bool(nodes[name].due) for name in usable}
    best = sorted(usable, key=lambda name: (against[name], seat.get(name, len(seat))))[:count]
    if len(before) == count:
        # Whoever stays keeps its ranks, so what its memory holds is still its own; a newcomer sits where one left.
        spare = iter([name for name in best if name not in seat])
        stays = set(best)
        chosen = [name if name in stays else next(spare) for name in before]
    else:
        chosen = natural_sort(best)
    return seated(chosen, shape)


def seated(names: Collection[str], shape: Shape) -> Placement:
    """Give ranks to nodes in this order."""
    seats = []
    rank = 0
    for name in names:
        for index in range(shape.slots_per_node):
            seats.append(Seat(Slot(name, index), rank, shape.ranks_per_slot))
            rank += shape.ranks_per_slot
    return Placement(tuple(seats), rank)


def unusable_because(node: Node, excluded: Mapping[str, Exclusion], shape: Shape) -> str:
    """Why the gang may not use this node now; "" when it may. Not yet checked counts as usable."""
    if node.name in excluded:
        return f"excluded ({one_line(excluded[node.name].reason)})"
    if node.lost:
        return "lost"
    if node.silent_since is not None:
        return "silent"
    if node.checked is False:
        return f"failed its check ({one_line(node.check_reason)})"
    if node.trial:
        return f"on trial ({one_line(node.trial)})"
    if node.slots_count < shape.slots_per_node:
        return f"has only {counted(node.slots_count, 'slot')} of the {shape.slots_per_node} needed"
    return ""


def can_do_without(
    nodes: Mapping[str, Node], excluded: Mapping[str, Exclusion], shape: Shape, names: Collection[str]
) -> bool:
    """Would the gang still find a place if these nodes were left out?"""
    rest = {name: node for name, node in nodes.items() if name not in names}
    return isinstance(place(rest, excluded, shape), Placement)


def how_restarted(before: Placement | None, after: Placement) -> str:
    """The way from one placement to the next, in words."""
    if before is None or set(after.nodes) == set(before.nodes):
        return "restarting in place"
    smaller = " smaller," if len(after.nodes) < len(before.nodes) else ""
    return f"restarting{smaller} on {fold(after.nodes)}"


def ranks_of_node(placement: Placement, node: str) -> range:
    """The ranks of one node, contiguous by construction; empty when it holds none."""
    seats = [seat for seat in placement.seats if seat.slot.node == node]
    if not seats:
        return range(0)
    return range(seats[0].first_rank, seats[-1].first_rank + seats[-1].ranks_count)


def _why(nodes: Mapping[str, Node], excluded: Mapping[str, Exclusion], shape: Shape, have: int) -> str:
    reasons: dict[str, list[str]] = {}
    for name in natural_sort(nodes):
        reason = unusable_because(nodes[name], excluded, shape)
        if reason:
            reasons.setdefault(reason, []).append(name)
    told = [f"{fold(names)} {reason}" for reason, names in reasons.items()]
    missing = shape.nodes_count - len(nodes)
    if missing > 0:
        told.append(f"{counted(missing, 'node')} not here")
    return f"{counted(have, 'node')} usable, {shape.nodes_min_count} needed: {'; '.join(told)}"
