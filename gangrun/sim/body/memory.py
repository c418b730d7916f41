"""The memory tier, in numbers: what keepers hold, how ranks put a step there, and what is really whole.

A save goes as ``training/memory/saving.py`` does it: each rank's file and its copy half way round, then the manifest on
every node, then, once every rank knows that all have it, older steps go. Between any two of these somebody may die.
What agents and supervisors make of it is the real thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gangrun.core.checkpoints.memory import Holding
from gangrun.core.model import MemoryStep
from gangrun.sim.body.checkpoints import Name
from gangrun.sim.body.gang import SimGang, SimRank
from gangrun.sim.engine.clock import Timeline
from gangrun.wire.messages import Recover

MANIFEST = "manifest"
PUT_S, TOLD_S, HALF_S = 0.1, 0.3, 0.05  # until the manifest is put, until all know it; half of all are later by so much

Key = tuple[int, int, str]  # attempt, step, nonce


class SimKept:
    """What one node's keeper holds; gone with its warden."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.steps: dict[Key, set[str]] = {}
        self._floor = -1
        self._base: tuple[int, Key | None] = -1, None
        self._pinned: set[Key] = set()
        self._needless: set[Key] = set()

    def put(self, key: Key, file: str) -> None:
        """One more file, unless its attempt is over."""
        if key[0] >= self._floor:
            self._forget(key[0])
            self.steps.setdefault(key, set()).add(file)

    def whole(self, key: Key) -> list[Key]:
        """Every node has its part: what is older goes, and is named."""
        if key not in self.steps:
            return []
        older = [other for other in self.steps if other < key]
        self._needless.update(older)
        self._sweep()
        return older

    def begins_from(self, attempt: int, base: Key) -> set[str]:
        """The files of the step that the attempt begins from, which stays until one of its own is whole."""
        self._base = attempt, base
        return self.steps.get(base, set())

    def held(self, attempt: int, base: Key | None = None, *, pin: bool = False) -> list[tuple[Key, set[str]]]:
        """All there is of it, and what it began from; of older ones nothing else is left."""
        if base is not None:
            self._base = attempt, base
        self._forget(attempt)
        found = {key: files for key, files in self.steps.items() if key[0] == attempt or key == base}
        self._pinned = set(found) if pin else set()
        self._sweep()
        return list(found.items())

    def let_go(self) -> None:
        """What was pinned is on disk, or is not wanted."""
        self._pinned = set()
        self._sweep()

    def _forget(self, attempt: int) -> None:
        self._floor = max(self._floor, attempt)
        kept = self._base_of(self._floor)
        self._needless.update(key for key in self.steps if key[0] < self._floor and key != kept)
        self._sweep()

    def _base_of(self, attempt: int) -> Key | None:
        return self._base[1] if self._base[0] == attempt else None

    def _sweep(self) -> None:
        for key in self._needless - self._pinned:
            self.steps.pop(key, None)
            self._needless.discard(key)


class Keeps(Protocol):
    """A node with its keeper."""

    name: str
    ranks: list[SimRank]

    @property
    def kept(self) -> SimKept:
        """What its keeper holds."""


class MemoryTier:
    """All saves to memory of a world, and what one who sees everything knows of them."""

    def __init__(self, timeline: Timeline) -> None:
        """Nobody has saved yet."""
        self.timeline = timeline
        self.names: dict[str, tuple[Name, int]] = {}  # nonce -> whose it is, files of the whole step
        self.protected: set[Key] = set()  # every node had all that it has to have
        self.keepers: dict[Key, list[tuple[SimKept, SimKept]]] = {}  # of each shard, and of its copy
        self.on_release: Callable[[Any, Key], None] = lambda node, key: None
        self._manifests: dict[Key, int] = {}
        self._nonces = 0

    def save(self, gang: SimGang, step: int, node_of: Callable[[SimRank], Keeps]) -> None:
        """All ranks begin; each goes on as long as it lives."""
        ranks: dict[str, list[SimRank]] = {}
        for _, rank in sorted(gang.members.items()):
            ranks.setdefault(rank.host.name, []).append(rank)
        nodes = [node_of(there[0]) for there in ranks.values()]
        self._nonces += 1
        key = (gang.name[1], step, f"m{self._nonces}")
        self.names[key[2]] = gang.name, len(nodes) + 1
        for i, node in enumerate(nodes):
            pair = node.kept, nodes[(i + len(nodes) // 2) % len(nodes)].kept
            self.keepers.setdefault(key, []).append(pair)
            for kept in pair:
                kept.put(key, f"shard {i}")
        halves = nodes[::2], nodes[1::2]
        for late, half in enumerate(halves):
            self.timeline.after(PUT_S + late * HALF_S, lambda half=half: self._sign(gang, key, half, len(nodes)))  # type: ignore[misc]
            self.timeline.after(TOLD_S + late * HALF_S, lambda half=half: self._tell(gang, key, half))  # type: ignore[misc]

    def _sign(self, gang: SimGang, key: Key, nodes: Iterable[Keeps], nodes_count: int) -> None:
        """The manifest, where ranks still live."""
        for node in nodes:
            if self.lives_on(gang, node):
                node.kept.put(key, MANIFEST)
                self._manifests[key] = self._manifests.get(key, 0) + 1
                self.signed(key, node)
        if self._manifests.get(key) == nodes_count:
            self.protected.add(key)

    def signed(self, key: Key, node: Keeps) -> None:
        """A node has the manifest; that alone lets nothing go."""

    def _tell(self, gang: SimGang, key: Key, nodes: Iterable[Keeps]) -> None:
        """Each rank has heard of all others that they have it."""
        if key not in self.protected:
            return
        gang.kept_step = max(gang.kept_step, key[1])
        for node in nodes:
            if self.lives_on(gang, node):
                self.release(key, node)

    def release(self, key: Key, node: Keeps) -> None:
        """Older steps go from this node."""
        for older in node.kept.whole(key):
            self.on_release(node, older)

    @staticmethod
    def lives_on(gang: SimGang, node: Keeps) -> bool:
        """Does this gang still have ranks there?"""
        return any(rank.alive and rank.gang is gang for rank in node.ranks)


def key_of(step: MemoryStep | None) -> Key | None:
    """As keepers name it."""
    return (step.attempt, step.step, step.nonce) if step is not None else None


def holdings(kept: SimKept, asked: Recover, names: dict[str, tuple[Name, int]]) -> list[Holding]:
    """As an agent answers."""
    return [
        Holding(key[1], key[2], tuple(sorted(files)), names[key[2]][1] if MANIFEST in files else 0, is_sharable=True)
        for key, files in kept.held(asked.attempt, key_of(asked.base), pin=asked.pin)
    ]


def newest_on(nodes: Iterable[Keeps], attempt: int, base: Key | None, names: dict[str, tuple[Name, int]]) -> int:
    """The newest step of the attempt, or that it began from, of which every file is in the memory of one of these
    nodes; -1: none.
    """
    there: dict[Key, set[str]] = {}
    for node in nodes:
        for key, files in node.kept.steps.items():
            if key[0] == attempt or key == base:
                there.setdefault(key, set()).update(files)
    return max((key[1] for key, files in there.items() if len(files) == names[key[2]][1]), default=-1)
