"""A rank that fell first twice on one node, and the experiment that tells the node from the code.

A rank may fall first because of its node, or because of its code or data: both look the same as long as it stays where
it is. So it is moved to another node once: to a free one, else it changes places with the ranks of another node of the
gang. If it falls there too, the code or the data is at fault and the first node is innocent. If another rank falls
first on the first node, the node is at fault. If the gang comes past the step, the node that it left is excluded,
unless a test of its devices came out clean, a single rank of it fell only once, or such a failure often passes by
itself. Connections that fail on the same node twice, and not elsewhere, are that node's.

If the rank falls like this later, on another node, that node is taken back: it was the code after all. A node
that is still in the gang stays. Storage and networks are shared: if the rank falls there too, both nodes
are innocent, and the run goes on within its budget.

``blame`` asks ``compared``, ``choose`` begins a move, ``placement`` seats it, and ``running`` tells of progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gangrun.core.model import Cause, Cure, Failure, Move, Placement, RunState, Verdict
from gangrun.core.nodes import quarantine, standing
from gangrun.core.nodes.placement import is_moved, node_of_rank, ranks_of_node
from gangrun.core.nodes.standing import Use
from gangrun.core.policy import Policy


def compared(
    verdict: Verdict, moved: Move | None, placement: Placement | None, suspicion: Mapping[str, int]
) -> Verdict | None:
    """What the newest failure tells after a move; None if it tells nothing of it, or the suspicion has faded."""
    if moved is None or placement is None or verdict.rank < 0 or not is_moved(moved, placement):
        return None
    here = node_of_rank(placement, moved.rank)
    if verdict.signature != moved.signature or not (moved.excluded or moved.node in suspicion):
        return None  # another failure says nothing about the first one
    if verdict.suspects == (moved.node,):
        often = " twice" if moved.times > 1 else ""
        sentence = (
            f"{verdict.sentence}; rank {moved.rank} fell first on {moved.node}{often}, now runs on {here} and did not"
            f" fall: {moved.node} is at fault"
        )
        is_device = verdict.cure is Cure.TEST and verdict.cause is Cause.RANK_ERROR
        cause = Cause.HARDWARE if is_device else verdict.cause
        return replace(verdict, cause=cause, failure=Failure.NODE, blamed=(moved.node,), sentence=sentence)
    if verdict.suspects != (here,) or verdict.rank not in ranks_of_node(placement, here):
        return None
    if _is_shared(verdict):
        sentence = (
            f"{verdict.sentence}, as on {moved.node} before: the rank falls on either node, and both are innocent"
        )
        return replace(verdict, suspects=(), rank=-1, moves=False, sentence=sentence, cleared=(moved.node, here))
    is_storage = verdict.failure is Failure.STORAGE
    whose = "storage that the nodes share is" if is_storage else "its code or its data is"
    sentence = (
        f"{verdict.sentence}, as on {moved.node} before: the rank falls on either node, so {whose} at fault and"
        f" {moved.node} is innocent"
    )
    failure, cleared = (Failure.STORAGE if is_storage else Failure.SCRIPT), (moved.node, here)
    cause = cause_of_same(verdict)
    return Verdict(cause, failure, (), (), verdict.signature, sentence, final=True, cleared=cleared)


def cause_of_same(verdict: Verdict) -> Cause:
    """What the same failure once more is called: what was taken for a device's is the code's, as another shows it."""
    was_device = verdict.cause is Cause.HARDWARE and verdict.cure is Cure.TEST
    return Cause.RANK_ERROR if was_device else Cause.SAME_AGAIN


def _is_shared(verdict: Verdict) -> bool:
    """May all nodes share what failed? What another node shows too is not the code's then."""
    return verdict.cure is Cure.WAIT or verdict.cause is Cause.NETWORK


def begun(state: RunState, verdict: Verdict, now: float) -> tuple[RunState, str]:
    """The state in which the rank is to be moved, and the words for it; the same state if there is no other node."""
    placement = state.attempt.placement
    before = state.health.move
    under_way = before is not None and not before.excluded and placement is not None and is_moved(before, placement)
    if not verdict.moves or placement is None or under_way:
        return state, ""
    node = verdict.suspects[0]
    others = _others(state, node, now)
    if not others:
        return state, ""
    other, rank = others[0], verdict.rank
    fell = {one.rank for one in state.attempt.evidence.exits if one.node == node and not one.by_us}
    ranks, times = ranks_of_node(placement, node), state.health.suspicion.get(node, 1)
    step, is_whole = state.checkpoints.observed_step, 1 < len(ranks) == len(fell)
    decided = Move(
        rank,
        node,
        other,
        state.attempt.number,
        step,
        verdict.signature,
        times,
        of_connections=bool(fell) and verdict.cause in {Cause.VICTIMS_ONLY, Cause.NETWORK},
        is_whole_node=is_whole,
    )
    swaps = f", whose ranks move to {node}," if placement.holds(other) else ""
    whose = "what nodes share" if _is_shared(verdict) else "the code"
    words = f"; rank {rank} of {node} moves to {other}{swaps} to tell the node from {whose}"
    return replace(state, health=replace(state.health, move=decided)), words


def _others(state: RunState, node: str, now: float) -> list[str]:
    """Nodes to which the rank may go, the best first: healthy, free, and not suspected."""
    held = state.attempt.placement.nodes if state.attempt.placement is not None else ()
    suspicion = standing.unfaded(state.health, now)
    stand = {name: standing.use_of(one) for name, one in standing.standings(state, now).items()}
    usable = [name for name, use in stand.items() if name != node and use in standing.USABLE]
    return sorted(usable, key=lambda name: (stand[name] is not Use.AS_ANY, name in held, suspicion.get(name, 0), name))


def passed(state: RunState, now: float, policy: Policy) -> tuple[RunState, str]:
    """The gang came past the step at which the rank had fallen: the move has its outcome."""
    moved, placement = state.health.move, state.attempt.placement
    if moved is None or placement is None or not is_moved(moved, placement) or state.attempt.step <= moved.step:
        return state, ""
    if moved.excluded or placement.holds(moved.node):  # that node is still put to the test
        return state, ""
    health, kept = state.health, replace(state.health, move=replace(moved, excluded=True))
    if moved.node in standing.active(health.excluded, now):  # as its devices could not be tested
        return replace(state, health=kept), ""
    state = replace(state, health=replace(health, move=None))
    node = state.roster.nodes.get(moved.node)
    if node is None or node.tested or policy.observe:
        return state, ""
    past = f"came past step {moved.step}" if moved.step >= 0 else "made progress"
    who = f"rank {moved.rank} fell first on {moved.node}"
    often = " twice" if moved.times > 1 else ", with all its ranks" if moved.is_whole_node else ""
    reason = f"{who}{often}, and on {moved.other} it {past}"
    is_known = bool(moved.signature) or (moved.of_connections and moved.times > 1)
    passes = not is_known or (moved.times < 2 and not moved.is_whole_node)
    if passes:  # a failure that passes by itself looks the same
        return state, f"; {reason}: {moved.node} holds no rank now, and it stays in the job"
    state, told = quarantine.leave_out(state, [moved.node], reason, now, policy)
    return replace(state, health=replace(state.health, move=kept.move)), f"; {reason}: {told}"


def settled(state: RunState, verdict: Verdict, names: Iterable[str]) -> RunState:
    """The state without a move that a verdict answered, and without suspicion of whoever it cleared or excluded."""
    health, moved = state.health, state.health.move
    back = {name for name in verdict.cleared if name in health.excluded and not health.excluded[name].hardware}
    if back:  # it was for a failure that another node shows too
        kept = {name: entry for name, entry in health.excluded.items() if name not in back}
        state = replace(state, health=replace(health, excluded=kept))
    gone = {*verdict.cleared, *names}
    if moved is None or (moved.node not in gone and not verdict.final):
        return state
    suspicion = {name: count for name, count in state.health.suspicion.items() if name not in verdict.cleared}
    return replace(state, health=replace(state.health, move=None, suspicion=suspicion))
