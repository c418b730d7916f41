"""Which step that nodes hold in memory is whole, and who brings which file of it (room: core, which only decides).

A step in memory is (attempt, step, nonce). Its manifest is put into memory only after every rank's shard was, so one
node's manifest says how many files there must be; the step is whole if the nodes that answer hold so many together.
Next: ``supervisor/rescue_call.py``, which asks the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """What one node holds of one step. ``wanted_count``: files of the whole step, 0 where its manifest is not here."""

    step: int
    nonce: str
    files: tuple[str, ...]
    wanted_count: int = 0


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A step that can be brought to the disk: each file once, by one of the nodes that hold it."""

    step: int
    nonce: str
    files: Mapping[str, tuple[str, ...]]  # node -> its files


def newest_whole(held: Mapping[str, Sequence[Holding]], above_step: int) -> WholeStep | None:
    """The newest step above ``above_step`` of which every file is held by some node; None if there is none."""
    steps: dict[tuple[int, str], dict[str, str]] = {}
    wanted: dict[tuple[int, str], int] = {}
    for node, holdings in sorted(held.items()):
        for one in holdings:
            key = one.step, one.nonce
            holders = steps.setdefault(key, {})
            for file in one.files:
                holders.setdefault(file, node)
            wanted[key] = max(wanted.get(key, 0), one.wanted_count)
    whole = [key for key, count in wanted.items() if key[0] > above_step and count and len(steps[key]) == count]
    if not whole:
        return None
    newest = max(whole)
    by_node: dict[str, list[str]] = {}
    for file, node in sorted(steps[newest].items()):
        by_node.setdefault(node, []).append(file)
    return WholeStep(*newest, {node: tuple(files) for node, files in by_node.items()})


def newest_chosen(attempts: Sequence[tuple[int, bool]], before: int) -> int:
    """Of (number, whether nodes were picked for it): the newest attempt before ``before`` that chose where to begin.

    Only its steps may be brought back: whatever older ones hold was passed over by that choice. -1: there is none.
    """
    return max((number for number, picked in attempts if picked and number < before), default=-1)
