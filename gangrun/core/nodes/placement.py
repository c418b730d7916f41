"""Which slot holds which ranks.

The unit is a slot: a node under a scheduler, a GPU (or a rank's place) on one box. Deterministic: the same roster gives
the same placement, in natural order of node names. Called by ``lifecycle`` before each attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gangrun.core.model import Exclusion, Move, Node, Placement, RunState, Seat, Shape, Slot
from gangrun.core.nodes.standing import NodeStanding, active, standing_of, use_of
from gangrun.core.nodeset import fold, named, natural_sort
from gangrun.core.text import counted


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
    """Choose nodes for all ranks in the order of ``Use``; of equals those of ``prefer``, so that spares stay spares.

    ``excluded`` holds only what is in force now (``standing.active``). Fewer than ``nodes_count`` but at least
    ``nodes_min_count`` usable nodes give a smaller world. Nodes that would make its size no multiple of
    ``world_multiple`` stay spares.
    """
    stand = {name: standing_of(node, excluded, shape) for name, node in nodes.items()}
    usable = natural_sort(name for name, one in stand.items() if one.usable)
    if len(usable) < shape.nodes_min_count:
        return NotEnough(len(usable), shape.nodes_min_count, _why(stand, shape, len(usable)))
    before = prefer.nodes if prefer is not None else ()
    seat = {name: index for index, name in enumerate(before)}
    best = sorted(usable, key=lambda name: (use_of(stand[name]).value, seat.get(name, len(seat))))
    most = min(shape.nodes_count, len(usable))
    for count in range(most, shape.nodes_min_count - 1, -1):
        placed = _seated_anew(best[:count], before, shape, nodes)
        if placed.world_size and not placed.world_size % shape.world_multiple:
            return placed
    multiple = f"their ranks are never a multiple of {shape.world_multiple} (--world-multiple-of)"
    return NotEnough(len(usable), shape.nodes_count, f"{counted(len(usable), 'node')} usable, but {multiple}")


def _seated_anew(best: Collection[str], before: tuple[str, ...], shape: Shape, nodes: Mapping[str, Node]) -> Placement:
    if len(before) != len(best):
        return _fitting(seated(natural_sort(best), shape, nodes), shape)
    # Whoever stays keeps its ranks, so what its memory holds is still its own; a newcomer sits where one left.
    stays, had = set(best), set(before)
    spare = iter([name for name in best if name not in had])
    return _fitting(seated([name if name in stays else next(spare) for name in before], shape, nodes), shape)


def _fitting(placed: Placement, shape: Shape) -> Placement:
    """On one box slots are left over instead of nodes."""
    left_over = placed.world_size % shape.world_multiple
    if not left_over or not shape.slots_min_per_node or len(placed.nodes) > 1:
        return placed
    return Placement(placed.seats[:-left_over], placed.world_size - left_over)


def place_now(state: RunState, now: float, *, anew: bool = False) -> Placement | NotEnough:
    """The nodes of this job, those of the last attempt first; ``anew``: whoever had ranks before."""
    out = active(state.health.excluded, now)
    return place(state.roster.nodes, out, state.shape, None if anew else preferred(state))


def preferred(state: RunState) -> Placement | None:
    """Who had ranks before, after the move that was decided: so the next gang is seated."""
    before, move = state.attempt.placement, state.health.move
    if before is None:
        return None
    if move is None or is_moved(move, before):
        return going_back(state, before)
    return _changed_places(state, before, {move.node: move.other, move.other: move.node})


def going_back(state: RunState, before: Placement) -> Placement:
    """This placement with ranks that were slower on another node back where they had been."""
    back = state.race.back
    if back is None or before.holds(back.node):
        return before
    return _changed_places(state, before, {back.other: back.node})


def _changed_places(state: RunState, before: Placement, seats: Mapping[str, str]) -> Placement:
    return seated([seats.get(name, name) for name in before.nodes], state.shape, state.roster.nodes)


def is_moved(move: Move, placement: Placement) -> bool:
    """Does that rank run on another node than the one on which it fell?"""
    return node_of_rank(placement, move.rank) != move.node


def slot_of_rank(placement: Placement, rank: int) -> Slot | None:
    """The slot that holds a rank; None if none does."""
    return next((seat.slot for seat in placement.seats if rank in seat.ranks), None)


def node_of_rank(placement: Placement, rank: int) -> str:
    """The node that holds a rank; "" if none does."""
    slot = slot_of_rank(placement, rank)
    return slot.node if slot is not None else ""


def seated(names: Collection[str], shape: Shape, nodes: Mapping[str, Node] = MappingProxyType({})) -> Placement:
    """Give ranks to nodes in this order, and there to the first slots that are whole."""
    seats = []
    rank = 0
    for name in names:
        node = nodes.get(name)
        slots = node.whole_slots[: shape.slots_per_node] if node and node.broken_slots else range(shape.slots_per_node)
        for index in slots:
            seats.append(Seat(Slot(name, index), rank, shape.ranks_per_slot))
            rank += shape.ranks_per_slot
    return Placement(tuple(seats), rank)


def can_do_without(state: RunState, names: Collection[str], now: float) -> bool:
    """Would the gang still find a place if these nodes were left out?"""
    rest = {name: node for name, node in state.roster.nodes.items() if name not in names}
    return isinstance(place(rest, active(state.health.excluded, now), state.shape), Placement)


def how_restarted(before: Placement | None, after: Placement) -> str:
    """The way from one placement to the next, in words."""
    if before is not None and after.nodes == before.nodes and after.seats != before.seats:
        count = before.world_size - after.world_size
        return f"restarting in place with {counted(count, 'rank')} less" if count > 0 else "restarting in place"
    if before is None or set(after.nodes) == set(before.nodes):
        return (
            "restarting in place" if before is None or after.nodes == before.nodes else "restarting on the same nodes"
        )
    size = len(after.nodes) - len(before.nodes)
    how = " smaller," if size < 0 else " larger," if size > 0 else ""
    return f"restarting{how} on {fold(after.nodes)}"


def ranks_of_node(placement: Placement, node: str) -> range:
    """The ranks of one node, contiguous by construction; empty when it holds none."""
    seats = [seat for seat in placement.seats if seat.slot.node == node]
    if not seats:
        return range(0)
    return range(seats[0].first_rank, seats[-1].first_rank + seats[-1].ranks_count)


def _why(stand: Mapping[str, NodeStanding], shape: Shape, have: int) -> str:
    reasons: dict[str, list[str]] = {}
    for name in natural_sort(stand):
        if not stand[name].usable:
            reasons.setdefault(stand[name].why, []).append(name)
    told = [f"{named(names)} {reason}" for reason, names in reasons.items()]
    missing = shape.nodes_count - len(stand)
    if missing > 0:
        told.append(f"{counted(missing, 'node')} not here")
    return f"{counted(have, 'node')} usable, {shape.nodes_min_count} needed: {'; '.join(told)}"
