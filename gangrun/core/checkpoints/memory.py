"""Which step that nodes hold in memory is whole, and who brings which file of it.

A step in memory is (attempt, step, nonce). Its manifest is put into memory only after every rank's shard was, so one
node's manifest says how many files there must be; the step is whole if the nodes that answer hold so many together, or
hold enough parity to make the rest again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gangrun.core.model import AttemptRecord, MemoryStep


@dataclass(frozen=True, slots=True)
class HeldStripe:
    """A piece of the files of each of these members, by place in the code, and parity, a file each.

    As many of all its shards as there are members give back the others.
    """

    members: tuple[int, ...]
    parity: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldCode:
    """The files of each member, and what was coded of them (``wire/protection.py``, without sizes and checksums)."""

    members: tuple[tuple[str, ...], ...]
    stripes: tuple[HeldStripe, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one node holds of one step. ``wanted_count``: files of the whole step, 0 where its manifest is not here.

    ``pieces``: parity. ``codes``: what it knows of the parity that it and others hold. ``is_sharable``: ranks that load
    it can send each other what their nodes lack.
    """

    step: int
    nonce: str
    files: tuple[str, ...]
    wanted_count: int = 0
    pieces: tuple[str, ...] = ()
    codes: tuple[HeldCode, ...] = ()
    is_sharable: bool = False

    @property
    def is_whole(self) -> bool:
        """Does this node alone have every file?"""
        return 0 < self.wanted_count == len(self.files)


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A step that can be brought to the disk: each file once, by one of the nodes that hold it.

    ``rebuild``: node -> files that nobody holds and that it makes again once all others, and the parity that is needed
    for it, are there.
    """

    step: int
    nonce: str
    files: Mapping[str, tuple[str, ...]]  # node -> its files, and its parity where that is needed
    rebuild: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def rebuilt_count(self) -> int:
        """Files that nobody holds."""
        return sum(map(len, self.rebuild.values()))


@dataclass(slots=True)
class _Found:
    """One save, as all nodes together have it."""

    files: dict[str, str] = field(default_factory=dict)  # name -> a node that holds it
    pieces: dict[str, str] = field(default_factory=dict)
    codes: dict[HeldCode, list[str]] = field(default_factory=dict)  # -> nodes that have its record
    wanted_count: int = 0


def newest_whole(held: Mapping[str, Sequence[Holding]], above_step: int) -> WholeStep | None:
    """The newest step above ``above_step`` that nodes hold, or can make again, to the last file; None: none is."""
    steps: dict[tuple[int, str], _Found] = {}
    for node, holdings in sorted(held.items()):
        for one in holdings:
            found = steps.setdefault((one.step, one.nonce), _Found())
            for name in one.files:
                found.files.setdefault(name, node)
            for name in one.pieces:
                found.pieces.setdefault(name, node)
            for code in one.codes:
                found.codes.setdefault(code, []).append(node)
            found.wanted_count = max(found.wanted_count, one.wanted_count)
    for key in sorted(steps, reverse=True):
        found = steps[key]
        if key[0] <= above_step or not found.wanted_count:
            continue
        rebuild, pieces = _made_again(found)
        if len(found.files) + sum(map(len, rebuild.values())) == found.wanted_count:
            by_node: dict[str, list[str]] = {}
            for name, node in sorted({**found.files, **pieces}.items()):
                by_node.setdefault(node, []).append(name)
            return WholeStep(*key, {node: tuple(names) for node, names in by_node.items()}, rebuild)
    return None


def _made_again(found: _Found) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Which node makes which of the missing files, and what parity is needed for that, by a holder."""
    rebuild: dict[str, tuple[str, ...]] = {}
    needed: dict[str, str] = {}
    for code, nodes in found.codes.items():
        missing = {n for n, names in enumerate(code.members) if any(name not in found.files for name in names)}
        if not missing:
            continue
        parity: list[str] = []
        for stripe in code.stripes:
            lost_count = len(missing.intersection(stripe.members))
            there = [name for name in stripe.parity if name in found.pieces]
            if len(there) < lost_count:
                break
            parity += there[:lost_count]
        else:
            needed.update((name, found.pieces[name]) for name in parity)
            node = min(nodes, key=lambda one: len(rebuild.get(one, ())))
            names = (name for n in sorted(missing) for name in code.members[n] if name not in found.files)
            rebuild[node] = (*rebuild.get(node, ()), *names)
    return rebuild, needed


@dataclass(frozen=True, slots=True)
class Offered:
    """Whose steps in memory may be resumed from: those of ``attempt``, and ``base``, the one that it began from.

    Whatever older attempts hold was passed over by the choice of this one.
    """

    attempt: int
    base: MemoryStep | None = None


def offered(attempts: Sequence[AttemptRecord], before: int) -> Offered | None:
    """By the newest attempt before ``before`` for which nodes were picked, so it chose where to begin."""
    newest = max((one for one in attempts if one.nodes and one.number < before), key=_number, default=None)
    return Offered(newest.number, newest.memory) if newest is not None else None


def _number(one: AttemptRecord) -> int:
    return one.number


def holders(held: Mapping[str, Sequence[Holding]], step: WholeStep) -> tuple[str, ...]:
    """The nodes that have every file of it."""
    return tuple(
        node
        for node, holdings in sorted(held.items())
        if any((one.step, one.nonce) == (step.step, step.nonce) and one.is_whole for one in holdings)
    )


def lacking_of(
    held: Mapping[str, Sequence[Holding]], step: WholeStep, nodes: Collection[str]
) -> tuple[str, ...] | None:
    """Those of these nodes that did not say that they have a part of it; None if the others do not have every file of
    it together, or if their ranks cannot send it.
    """
    theirs = {
        node: one
        for node in nodes
        for one in held.get(node, ())
        if (one.step, one.nonce) == (step.step, step.nonce) and one.wanted_count and one.is_sharable
    }
    files = {name for one in theirs.values() for name in one.files}
    if not theirs or any(len(files) != one.wanted_count for one in theirs.values()):
        return None
    return tuple(sorted(set(nodes).difference(theirs)))


HINDERED_MAX_COUNT = 2


def may_share(attempts: Iterable[AttemptRecord]) -> bool:
    """May ranks load a step that not each of their nodes has whole? Not if two attempts that shared a step ended before
    they made one, whatever hindered them.
    """
    hindered = [one for one in attempts if one.memory and one.memory.is_shared and one.ended and one.last_step < 0]
    return len(hindered) < HINDERED_MAX_COUNT


def with_fewer_copies(attempts: Sequence[AttemptRecord]) -> MemoryStep | None:
    """The step that the newest attempt began from, if it is in the memory of fewer nodes than saved it: some of these
    have no ranks any more, or came back with nothing.
    """
    newest = attempts[-1] if attempts else None
    if newest is None or newest.memory is None:
        return None
    saved_on = next((one.nodes for one in attempts if one.number == newest.memory.attempt), ())
    is_as_before = saved_on and set(saved_on) <= set(newest.nodes).difference(newest.memory.lacking)
    return None if is_as_before else newest.memory
