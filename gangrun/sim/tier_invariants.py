"""The invariants that lie between the disk and the memory of nodes: I4, I5 and I17 over both tiers.

An attempt begins from what is on disk, or from a step that only memory holds (its *base*). What newer attempts passed
over never comes back; a base stays until the disk, or a newer step that every node has, makes it needless.
"""

from __future__ import annotations

from collections.abc import Callable

from gangrun.core.model import RunState
from gangrun.sim.body.checkpoints import Name, Saved
from gangrun.sim.body.gang import SimGang
from gangrun.sim.body.memory import Key, key_of, newest_on
from gangrun.sim.body.node import SimNode
from gangrun.sim.cluster import Cluster
from gangrun.sim.faults import MISSES_NO_MEMORY, FaultPlan
from gangrun.wire.messages import Launch
from gangrun.wire.record import Record


class Tiers:
    """What attempts began from, and what may be resumed from beside the disk."""

    def __init__(self, world: Cluster, plan: Callable[[], FaultPlan], broken: Callable[[str, str], None]) -> None:
        """No attempt has begun. ``plan``: of faults, which may be armed later."""
        self._world, self._plan, self._broken = world, plan, broken
        self._held_from: dict[int, int] = {}  # attempt -> the step in memory that it was to begin from
        self._began_from: dict[int, Key] = {}  # attempt -> its base
        self._newest_started = -1

    def begins(self, command: Launch) -> None:
        """I5: an attempt that was to begin from memory does."""
        self._newest_started = max(self._newest_started, command.attempt)
        base = key_of(command.resume_memory)
        if base is not None:
            self._began_from[command.attempt] = base
        if command.resume_step < self._held_from.get(command.attempt, -1):
            self._broken("I5", f"attempt {command.attempt} begins from step {command.resume_step}, not from memory")

    def met(self, gang: SimGang) -> None:
        """I5: what an attempt begins from is in the memory of its nodes, to the last file."""
        base = self._began_from.get(gang.name[1])
        if base is None:
            return
        nodes = {rank.host.index for rank in gang.members.values()}
        files = {name for index in nodes for name in self._world.nodes[index].kept.steps.get(base, ())}
        if len(files) != self._world.memory.names[base[2]][1]:
            self._broken("I5", f"attempt {gang.name[1]} loads step {base[1]}, of which its nodes have only {files}")

    def committed(self, saved: Saved) -> None:
        """I4: what comes from memory is of the newest attempt, or its base."""
        began, of = self._newest_started, saved.name[1]
        base = self._began_from.get(began)
        if of < saved.staged_for and of < began and (base is None or saved.nonce != base[2]):
            self._broken("I4", f"step {saved.step} of attempt {of} was brought, which attempt {began} passed over")

    def chose(self, attempt: int, saved: Saved | None, chosen: set[Name], state: RunState | None) -> None:
        """I5 where nothing stood in the way of asking: no newer step is whole in the memory of nodes that are up."""
        newest, held = self._in_memory(chosen), state.checkpoints.held if state is not None else None
        if held is not None:
            self._held_from[attempt] = held.save.step
        if newest > max(saved.step if saved is not None else -1, self._held_from.get(attempt, -1)):
            self._broken("I5", f"attempt {attempt} resumes from {saved}, while step {newest} is whole in memory")

    def keeps_base(self, attempt: int) -> None:
        """I17: as ``attempt`` chooses, the base of the one before is somewhere, or every node had a newer step; unless
        a shard and its copy died with their nodes.
        """
        began, memory = self._newest_started, self._world.memory
        base = self._began_from.get(began)
        newer = any(key[0] == began for key in memory.protected)
        if base is None or newer or attempt <= began or self._may_be_missed():
            return
        up = [node for node in self._world.nodes if node.up]
        if any({id(node.kept) for node in up}.isdisjoint(map(id, pair)) for pair in memory.keepers[base]):
            return
        on_disk = any(saved.nonce == base[2] for saved in self._world.checkpoint_fs.saved.values())
        if not on_disk and newest_on(up, began, base, memory.names) < base[1]:
            self._broken("I17", f"attempt {began} began from step {base[1]} in memory, and it is gone")

    def takes_along(self, record: Record, chosen: set[Name]) -> None:
        """A job's end takes its memory along, so it may hold nothing that the disk has not."""
        newest = self._in_memory(chosen)
        back = [int(path.rpartition("-")[2]) for act in record.actions for path in act.args.get("put_back", ())]
        if newest > max([*self._world.checkpoint_fs.saved, *back], default=-1):
            self._broken("I5", f"the job ends ({record.reason}), and step {newest} is in its memory only")

    def released(self, node: SimNode, key: Key) -> None:
        """I17: a node lets a step in memory go."""
        later = {attempt for attempt, base in self._began_from.items() if base == key} | {key[0]}
        if not any(other[0] in later and other[1] > key[1] for other in self._world.memory.protected):
            self._broken("I17", f"{node.name} let step {key[1]} go before every node had a newer one")

    def _in_memory(self, chosen: set[Name]) -> int:
        """The newest step that may be resumed from, and that nodes have whole and could be asked for; -1: none."""
        world = self._world
        if not world.setup.script.memory_every_count or not chosen or self._may_be_missed():
            return -1
        attempt = max(attempt for _, attempt in chosen)
        if attempt in self._held_from:  # it chose a step in memory, and its ranks may not have begun
            attempt = max(self._newest_started, 0)
        up = [node for node in world.nodes if node.up]
        return newest_on(up, attempt, self._began_from.get(attempt), world.memory.names)

    def _may_be_missed(self) -> bool:
        """Was there a fault so far for which a node may not be asked, or may not write?"""
        now = self._world.timeline.now
        return any(fault.at_s <= now and fault.kind not in MISSES_NO_MEMORY for fault in self._plan())
