"""What checks in the training script found: numbers that should be the same on several ranks (``--sdc-check``).

Theory of operation. Data-parallel ranks hold copies of the same weights, which the same arithmetic keeps equal to the
last bit. Ranks make a checksum of each tensor at each save, and rank 0 of the gang compares them (``vote``). A GPU or
memory that computes wrong without saying so makes one rank differ from all others, and for good: each step adds the
same update to different weights.

    3 copies or more, most of them equal     the ranks that differ are named, and their nodes are suspected
    2 copies                                 either may be right: both nodes are suspected, and none is blamed
    no majority, or over ``ODD_MAX_COUNT``   one device does not do this: the training is not deterministic, or these
                                             were never copies. It is told, and nothing is stopped

A gradient that is wrong before ranks add it up spoils all copies alike. So every N steps each rank also computes the
batch of its neighbour, in a ring of ranks of the same device and weights, and the gradients are compared
(``vote_of_ring``). A rank that differs from both its neighbours is odd. If only two neighbours differ, they are as two
copies. Anything else is no single device.

In the first two cases all checkpoints from the step after the last agreement on are condemned as soon as it is known,
so that no later attempt resumes from them, however this one ends. The checkpoint of an agreement stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gangrun.core.evidence import DataChange, Divergence, SeenDataChange, SeenDivergence, SelfChecks
from gangrun.core.model import Cause, Cure, Failure, Placement, Poisoned, RunState, Verdict
from gangrun.core.nodes.placement import node_of_rank
from gangrun.core.nodeset import natural_sort
from gangrun.core.policy import Policy
from gangrun.core.text import counted, listed, one_line

ODD_MAX_COUNT = 8
KEPT_MAX_COUNT = 32


def vote(
    checksums: Mapping[int, Sequence[int]], names: Sequence[str], *, step: int, agreed_step: int
) -> Divergence | None:
    """Compare what each rank has of the tensors ``names``; None: all of it is equal. Which ranks differ is decided over
    all tensors together.
    """
    classes: dict[tuple[int, ...], list[int]] = {}
    for rank, own in checksums.items():
        classes.setdefault(tuple(own), []).append(rank)
    if len(classes) < 2:
        return None
    first = [name for name, column in zip(names, zip(*classes, strict=True), strict=True) if len(set(column)) > 1]
    largest = max(classes.values(), key=len)
    copies_count, odd = len(checksums), tuple(sorted(set(checksums) - set(largest)))
    if copies_count == 2:
        odd = tuple(sorted(checksums))
    elif 2 * len(largest) <= copies_count or len(odd) > ODD_MAX_COUNT:
        odd = ()
    return Divergence(step, agreed_step, first[0], len(first), copies_count, len(largest), odd)


def vote_of_ring(
    ring: Sequence[int], differing: Sequence[int], names: Sequence[str], *, step: int, agreed_step: int
) -> Divergence | None:
    """Which ranks of a ring compute otherwise; None: all are equal. Each rank of ``ring`` computed its own batch and
    that of the rank before it. ``differing``: places in the ring whose batch the next rank found other numbers for.
    ``names``: the numbers that differ.
    """
    if not differing:
        return None
    count, wrong = len(ring), set(differing)
    if count == 2 or len(wrong) == 1:
        place = min(wrong)
        pair = tuple(sorted((ring[place], ring[(place + 1) % count])))
        return Divergence(step, agreed_step, names[0], len(names), 2, 1, pair, replayed=True)
    both = [ring[place] for place in range(count) if {place, (place - 1) % count} <= wrong]
    odd = tuple(sorted(both)) if 2 * len(both) < count and len(both) <= ODD_MAX_COUNT else ()
    return Divergence(step, agreed_step, names[0], len(names), count, count - len(both), odd, replayed=True)


# ---- what is known ---------------------------------------------------------------------------------------------------


def is_known(state: RunState, found: Divergence) -> bool:
    """Was it told in this attempt?"""
    number = state.attempt.number
    return any(one.attempt == number and one.divergence.step == found.step for one in state.divergences)


def noted(state: RunState, found: Divergence, at: float, policy: Policy) -> RunState:
    """The state that knows it. If it shows what is at fault it is evidence, and what was saved since is condemned."""
    number = state.attempt.number
    kept = (*state.divergences, SeenDivergence(number, found, at))[-KEPT_MAX_COUNT:]
    state = replace(state, divergences=kept)
    if not found.odd or state.attempt.evidence.divergence is not None:
        return state
    attempt = replace(state.attempt, evidence=replace(state.attempt.evidence, divergence=found))
    if policy.observe:
        return replace(state, attempt=attempt)
    why = f"it may hold the corrupted numbers that ranks of attempt {number} found at step {found.step}"
    bad = Poisoned(found.agreed_step + 1, "", "", number, why, told(state, found))
    return replace(state, attempt=attempt, checkpoints=replace(state.checkpoints, condemned=bad))


def with_last_words(state: RunState, checks: SelfChecks | None, at: float, policy: Policy) -> RunState:
    """The state that knows what a rank had found when it ended."""
    if checks is None:
        return state
    state, _ = with_change(state, checks.data, at)
    if checks.divergence is None or is_known(state, checks.divergence):
        return state
    return noted(state, checks.divergence, at, policy)


def with_change(state: RunState, change: DataChange | None, at: float) -> tuple[RunState, str]:
    """The state that knows of changed data, and the news; "" if there is none."""
    number = state.attempt.number
    if change is None or any((one.attempt, one.change) == (number, change) for one in state.data_changes):
        return state, ""
    kept = (*state.data_changes, SeenDataChange(number, change, at))[-KEPT_MAX_COUNT:]
    return replace(state, data_changes=kept), change_words(change)


def change_words(change: DataChange) -> str:
    """``the data changed since the checkpoint was saved: 3 of 256 samples differ (indices 4, 17, 90)``."""
    indices = "index" if change.changed_count == 1 else "indices"
    shown = listed([str(index) for index in change.samples])
    more = " and more" if change.changed_count > len(change.samples) else ""
    compared = counted(change.compared_count, "sample")
    return (
        f"the data changed since the checkpoint was saved: {change.changed_count} of {compared} differ"
        f" ({indices} {shown}{more})"
    )


# ---- what follows ----------------------------------------------------------------------------------------------------


def _where(found: Divergence, placement: Placement | None) -> dict[int, str]:
    """The node of each rank that differs, as far as it is known."""
    nodes = {rank: node_of_rank(placement, rank) for rank in found.odd} if placement is not None else {}
    return {rank: node for rank, node in nodes.items() if node}


def verdict(found: Divergence, placement: Placement | None) -> Verdict:
    """The nodes of ranks that differ are suspected: their devices are tested, and nobody is blamed for it at once."""
    suspects = tuple(natural_sort(set(_where(found, placement).values())))
    sentence = f"{_told(found, placement)}{_agreed(found)}"
    return Verdict(Cause.SILENT_CORRUPTION, Failure.NODE, (), suspects, "", sentence, cure=Cure.TEST)


def told(state: RunState, found: Divergence) -> str:
    """As news, with what it shows."""
    return _told(found, state.attempt.placement)


def _told(found: Divergence, placement: Placement | None) -> str:
    what = f"{counted(found.tensors_count, 'tensor')}, {one_line(found.name)} first"
    if found.replayed:
        return _told_of_replay(found, placement, what)
    if not found.odd:
        return (
            f"{counted(found.copies_count, 'rank')} hold copies of the same weights, and at step {found.step} at most"
            f" {found.agreeing_count} of them agree ({what}): no single device does this, so the training is not"
            " deterministic, or its ranks hold no copies"
        )
    who = _who(found, placement)
    if found.copies_count == 2:
        return (
            f"silent corruption: the weights of {who} differ at step {found.step} ({what}); of two copies either may"
            " be wrong, so both are suspected"
        )
    differs = "differ" if len(found.odd) > 1 else "differs"
    return (
        f"silent corruption: {who} {differs} at step {found.step} from {found.agreeing_count} of {found.copies_count}"
        f" ranks that hold the same weights ({what})"
    )


def _told_of_replay(found: Divergence, placement: Placement | None, what: str) -> str:
    if not found.odd:
        return (
            f"{counted(found.copies_count, 'rank')} computed each other's batches at step {found.step}, and several"
            f" came out differently ({what}): no single device does this, so the computation is not deterministic"
        )
    who = _who(found, placement)
    if found.copies_count == 2:
        return (
            f"silent corruption: {who} computed the same batch at step {found.step} and got different numbers ({what});"
            " either may be wrong, so both are suspected"
        )
    differs = "differ" if len(found.odd) > 1 else "differs"
    return f"silent corruption: {who} {differs} at step {found.step} from ranks that computed the same batches ({what})"


def _who(found: Divergence, placement: Placement | None) -> str:
    nodes = _where(found, placement)
    return _both([f"rank {rank} on {nodes[rank]}" if rank in nodes else f"rank {rank}" for rank in found.odd])


def _both(names: list[str]) -> str:
    return listed(names) if len(names) > 2 else " and ".join(names)


def _agreed(found: Divergence) -> str:
    if found.agreed_step < 0:
        return "; no checkpoint is known at which they agreed"
    return f"; they agreed at step {found.agreed_step}"


def past_words(found: Divergence) -> str:
    """As it was: ``the weights of rank 2 differed at step 40 from 2 of 3 ranks``."""
    if found.replayed:
        who = _both([f"rank {rank}" for rank in found.odd]) or "ranks without a majority"
        return f"{who} computed other numbers at step {found.step} than another rank for the same batch"
    if not found.odd:
        most = f"at most {found.agreeing_count} of {counted(found.copies_count, 'rank')} agreed"
        return f"ranks that should hold the same weights differed at step {found.step}: {most}"
    who = _both([f"rank {rank}" for rank in found.odd])
    if found.copies_count == 2:
        return f"the weights of {who} differed at step {found.step}"
    return (
        f"the weights of {who} differed at step {found.step} from {found.agreeing_count} of {found.copies_count} ranks"
    )
