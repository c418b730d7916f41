"""Which node makes the network slow: pairs, pairs anew, and what follows from both.

A bad pair accuses two nodes. So each node meets two others, along a ring; only a node whose pairs were all bad is a
suspect, and only one that is bad with a partner known to be good is named. Where no pair was good nobody is named: then
it is not a node. A bad pair of two nodes that each had a good one is a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]
ALL_MEET_COUNT = 4


@dataclass(frozen=True, slots=True)
class Meeting:
    """What two nodes measured between them; ``error``: why they did not."""

    pair: Pair
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A node that is slow or broken, and by what that is known."""

    node: str
    sentence: str
    broken: bool  # no answer at all, with anybody


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Who is named, who could not be told apart, and one sentence of sum."""

    named: tuple[Named, ...]
    doubtful: tuple[str, ...]
    sentence: str
    links: tuple[Pair, ...] = ()  # bad pairs of nodes that are good with others


def rounds_of_few(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """As ``rounds_of``, and of four nodes each meets each of the others, in three rounds."""
    if len(nodes) != ALL_MEET_COUNT:
        return rounds_of(nodes)
    a, b, c, d = nodes
    return (((a, b), (c, d)), ((b, c), (d, a)), ((a, c), (b, d)))


def rounds_of(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """Rounds of disjoint pairs so that every node meets two others: two rounds, or three where the number is odd."""
    count = len(nodes)
    if count < 2:
        return ()
    if count == 2:
        return (((nodes[0], nodes[1]),),)
    ring = [(nodes[i], nodes[(i + 1) % count]) for i in range(count)]
    if count % 2 == 0:
        return (tuple(ring[0::2]), tuple(ring[1::2]))
    return (tuple(ring[0 : count - 1 : 2]), tuple(ring[1:count:2]), (ring[count - 1],))


def typical(meetings: Iterable[Meeting]) -> float:
    """The bytes a second that a good pair reaches here: the worst of the best quarter, as most may be bad."""
    speeds = sorted((one.bytes_per_s for one in meetings if not one.error), reverse=True)
    return speeds[len(speeds) // 4] if speeds else 0.0


def is_bad(meeting: Meeting, usual: float, share: float) -> bool:
    """Nothing measured, or far below what others reach."""
    return bool(meeting.error) or meeting.bytes_per_s < share * usual


def suspects_of(meetings: Sequence[Meeting], usual: float, share: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(nodes whose pairs were all bad, nodes that had a good pair)."""
    good = {node for one in meetings if not is_bad(one, usual, share) for node in one.pair}
    met = dict.fromkeys(node for one in meetings for node in one.pair)
    return tuple(node for node in met if node not in good), tuple(node for node in met if node in good)


def confirming(meetings: Sequence[Meeting], share: float) -> tuple[tuple[Pair, ...], ...]:
    """Rounds in which each suspect meets a node that is known to be good, if possible one that it did not meet."""
    suspects, good = suspects_of(meetings, typical(meetings), share)
    if not good:
        return ()
    met = {frozenset(one.pair) for one in meetings}
    already = {node for node in suspects if any(set(one.pair) & set(good) and node in one.pair for one in meetings)}
    left, rounds = [node for node in suspects if node not in already], []
    while left:
        free, now = list(good), []
        for node in list(left):
            partner = next((one for one in free if frozenset((node, one)) not in met), free[0] if free else None)
            if partner is None:
                break
            free.remove(partner)
            left.remove(node)
            now.append((node, partner))
        rounds.append(tuple(now))
    return tuple(rounds)


def conclusion(first: Sequence[Meeting], share: float, again: Sequence[Meeting] = ()) -> Conclusion:
    """Who is named. A node is only blamed by a bad meeting with one that met somebody well.

    What is usual is told by the ``first`` meetings: in those ``again`` one of the two is a suspect each time.
    """
    if not first:
        return Conclusion((), (), "one node has nobody to meet")
    usual, meetings = typical(first), [*first, *again]
    suspects, good = suspects_of(meetings, usual, share)
    told = f"{len(suspects) + len(good)} nodes, {len(meetings)} pairs"
    if usual:
        told += f", {speed_words(usual)} between good ones"
    named, doubtful = [], []
    for node in suspects:
        mine = [one for one in meetings if node in one.pair]
        if any(_other(one, node) in good for one in mine):
            named.append(_named(node, mine, usual))
        else:
            doubtful.append(node)
    if not suspects:
        links = tuple(one.pair for one in meetings if is_bad(one, usual, share))
        bad = f", but {' and '.join('-'.join(pair) for pair in links)} did not" if links else ""
        return Conclusion((), (), f"{told}: every node had a good pair{bad}", links)
    if not good:
        whose = "the two nodes or what lies between them" if len(suspects) == 2 else "the network rather than a node"
        return Conclusion((), tuple(doubtful), f"{told}: no pair was good, so it is {whose}; nobody is named")
    words = ", ".join(one.node for one in named) or "nobody is named"
    return Conclusion(tuple(named), tuple(doubtful), f"{told}: {words}")


def _named(node: str, meetings: Sequence[Meeting], usual: float) -> Named:
    told = [f"with {_other(one, node)} {one.error or speed_words(one.bytes_per_s)}" for one in meetings]
    broken = all(one.error for one in meetings)
    how = "does not get through" if broken else "is slow"
    beside = f"; other pairs reach {speed_words(usual)}" if usual else ""
    return Named(node, f"the network of {node} {how}: {', '.join(told)}{beside}", broken)


def _other(meeting: Meeting, node: str) -> str:
    return meeting.pair[1] if meeting.pair[0] == node else meeting.pair[0]


def speed_words(bytes_per_s: float) -> str:
    """``9.4 Gb/s``, as links are sold."""
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.3g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mb/s"
