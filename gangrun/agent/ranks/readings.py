"""What is seen of a rank from outside, for beats and the hang watch.

A few reads of /proc and of mapped memory per rank and beat: no scan, no system call that can hang. Counters only grow
within an attempt.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from gangrun.node.processes import Proc, read_proc
from gangrun.wire.messages import Reading
from gangrun.wire.progress import SlotReading

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TREE_MAX_COUNT = 64


def reading(rank: int, pid: int, slot: SlotReading, output_bytes: int, *, wrapped: bool) -> Reading:
    """One sample. ``wrapped``: a command of its own (a shell, a container), whose children do the work."""
    proc = read_proc(pid)
    procs = [] if proc is None else _tree(proc) if wrapped else [proc]
    return Reading(
        rank=rank,
        step=slot.step,
        phase=slot.phase,
        slot_writes_count=slot.writes_count,
        output_bytes=output_bytes,
        cpu_s=sum(one.cpu_ticks for one in procs) / TICKS_PER_S,
        state=_state(procs) if procs else "X",
        first_step=slot.first_step,
        kept_step=slot.kept_step,
        kept_losses_count=slot.kept_losses_count,
        loss=slot.loss if math.isfinite(slot.loss) else None,
    )


def _children(pid: int) -> list[int]:
    """Pids of the children that its main thread has; [] where the kernel does not list them."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def new_children(pid: int, seen: Mapping[int, Proc]) -> dict[int, Proc]:
    """Children not seen before: workers that end with their rank must be known while they live."""
    return {proc.pid: proc for proc in map(read_proc, set(_children(pid)) - set(seen)) if proc is not None}


def _state(procs: list[Proc]) -> str:
    """The state of the one that matters: stuck before stopped before running before asleep."""
    states = {proc.state for proc in procs}
    return next((state for state in "DTtR" if state in states), procs[0].state)


def _tree(root: Proc) -> list[Proc]:
    """The process and those below it, bounded; only the root where the kernel does not list children."""
    found = [root]
    todo = [root.pid]
    while todo and len(found) < TREE_MAX_COUNT:
        children = _children(todo.pop())
        todo += children
        found += [proc for proc in map(read_proc, children) if proc is not None]
    return found
