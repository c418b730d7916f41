"""What may be left on a node that counts as empty: invariant I16, and what stands in for it.

A node is known to be empty by its own word, by law 1's time, or by the fragment rule. Time proves nothing of a machine
whose clock stood while it was paused: what it still holds, or forks on waking under a lease that by its own clock goes
on, is kept harmless by seals and by the ranks that it lacks (I2 to I4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangrun.wire.record import Record

if TYPE_CHECKING:
    from gangrun.sim.body.gang import SimRank
    from gangrun.sim.body.node import SimNode
    from gangrun.sim.invariants.checker import Checker


class Emptiness:
    """One per world."""

    def __init__(self, checker: Checker) -> None:
        """No attempt has been stopped yet."""
        self._checker = checker
        self._world = checker.world
        self._stopped_through = -1
        self._slept_through: dict[str, int] = {}  # node -> newest attempt that went down while it was stopped itself
        self._harmless: dict[str, int] = {}  # node -> newest attempt of which it may hold ranks that can do nothing

    def presumed(self, record: Record) -> None:
        """A record says that all ranks of an attempt are gone."""
        attempt = int(record.event["attempt"])
        self._stopped_through = max(self._stopped_through, attempt)
        presumed = dict(record.event.get("presumed", ()))
        job = self._world.disk.claims[record.term][1].job
        for node in self._world.nodes:
            asleep = self._world.clocks_stopped(node)
            known = max(self._harmless.get(node.name, -1), self._slept_through.get(node.name, -1) if asleep else -1)
            left = [rank for rank in node.ranks if rank.alive and known < rank.of[1] <= attempt and not rank.stuck]
            if left and node.job == job and node.name not in presumed:
                self._checker.broken("I16", f"attempt {attempt} counts as stopped, {left[0].name} lives")
        for name, rule in presumed.items():
            held_by = self._world.node_named(name)
            assert held_by is not None
            if "fragment" in rule:
                self._harmless[name] = attempt
                self._fragment(held_by, attempt)
                continue
            if self._world.clocks_stopped(held_by):
                self._slept_through[name] = attempt
                self._checker.witness.orphans(held_by, attempt)
                continue
            names = [rank.name for rank in held_by.ranks if rank.alive and rank.of[1] <= attempt and not rank.stuck]
            if names:
                self._checker.broken("I16", f"{name} was presumed empty ({rule}) and holds {', '.join(names)}")

    def forked(self, node: SimNode, rank: SimRank) -> None:
        """A rank is born: may there still be any of its attempt?"""
        attempt = rank.of[1]
        if attempt > self._stopped_through:
            return
        if attempt <= self._harmless.get(node.name, -1):
            self._fragment(node, attempt)
        elif attempt > self._slept_through.get(node.name, -1) or not self._lease_stood(node):
            through = self._stopped_through
            self._checker.broken("I16", f"{rank.name} starts after all ranks of attempt {through} were known as gone")

    def _lease_stood(self, node: SimNode) -> bool:
        """Would the node's lease be over if its clock had not stood?"""
        clock = node.clock
        return clock.boot(self._world.timeline.now) + clock.stood_s >= node.warden.deadline

    def _fragment(self, node: SimNode, attempt: int) -> None:
        """Presumed harmless: what it still holds can neither step nor save."""
        world = self._world
        held = {rank.rank for rank in node.ranks if rank.alive and rank.of[1] == attempt}
        gang = next((gang for gang in world.gangs if gang.members and gang.name[1] == attempt), None)
        if not held or gang is None:
            return
        size = world.setup.replica_ranks_count
        if any(all(first + i in held for i in range(size)) for first in range(0, gang.world_size - size + 1, size)):
            what = f"{node.name} still holds {sorted(held)} of attempt {attempt}, which can step alone"
            self._checker.broken("I2", what)
        if gang.whole:
            self._checker.broken("I2", f"attempt {attempt} counts as stopped and has all its ranks")
        if 0 in held and world.setup.script.foreign:
            self._checker.broken("I4", f"{node.name} still holds rank 0 of attempt {attempt}, which saves by itself")
