"""A run that is watched: what ``status --watch`` draws, look after look.

Each look reads what the journal gained. Of the past it keeps what a screen can show.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from enum import Enum

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import read_ranks
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import Phase, RunState
from gangrun.core.nodes.standing import active
from gangrun.core.nodeset import natural_sort
from gangrun.runs.follow import Follower, JournalReplay
from gangrun.runs.history import TrainingHistory
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import Status, status_of
from gangrun.runs.timeline import timeline_of
from gangrun.runs.times import wall_now

VALUES_MAX = 600  # of step times and losses
DECISIONS_MAX = 500


class RankKind(Enum):
    """How a rank is, or the node that has none."""

    ENDED = "ended"
    SPARE = "spare"
    RUNNING = "running"
    WAITING = "waiting"  # its process sleeps, as while it waits for another rank; or all ranks start or stop
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeSquares:
    """One node and its ranks; a spare and a lost node have one square."""

    node: str
    ranks: tuple[RankKind, ...]


@dataclass(frozen=True, slots=True)
class WatchedLook:
    """What is known at one look."""

    status: Status
    nodes: tuple[NodeSquares, ...] = ()
    step_times_s: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    decisions: tuple[tuple[float, str], ...] = ()  # when and what, oldest first


def squares_of(reading: RunSnapshot) -> tuple[NodeSquares, ...]:
    """Every rank of the newest attempt by node, then spares, then lost nodes."""
    state = reading.state
    if state is None:
        return ()
    gone = {name for name, node in state.roster.nodes.items() if node.away}
    gone |= active(state.health.excluded, state.updated_at).keys() & state.roster.nodes.keys()
    found = _placed(reading, state, gone)
    rest = [node for node in natural_sort(state.roster.nodes) if node not in found]
    for node in sorted(rest, key=lambda one: one in gone):
        found[node] = [RankKind.LOST if node in gone else RankKind.SPARE]
    return tuple(NodeSquares(node, tuple(kinds)) for node, kinds in found.items())


def _placed(reading: RunSnapshot, state: RunState, gone: set[str]) -> dict[str, list[RankKind]]:
    placement, found = state.attempt.placement, dict[str, list[RankKind]]()
    if placement is None:
        return found
    noted = read_ranks(Disk(), reading.paths)
    rows = noted.nodes.values() if noted is not None and noted.attempt == state.attempt.number else ()
    words = {rank: word for row in rows for rank, _, word, _ in row}
    fell = {one.rank for one in state.attempt.evidence.exits}
    for seat in placement.seats:
        kinds = found.setdefault(seat.slot.node, [])
        for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count):
            if reading.ended or rank in state.attempt.finished:
                kinds.append(RankKind.ENDED)
            elif seat.slot.node in gone or rank in fell:
                kinds.append(RankKind.LOST)
            else:
                runs = state.phase is Phase.RUNNING and words.get(rank, "R") == "R"
                kinds.append(RankKind.RUNNING if runs else RankKind.WAITING)
    return found


@dataclass(slots=True)
class WatchedRun:
    """Looks at one run again and again; the journal is read once, and then only what it gained."""

    paths: RunPaths
    follower: Follower
    _journal: JournalReplay = field(init=False)
    _history: TrainingHistory = field(default_factory=TrainingHistory)
    _decisions: list[tuple[float, str]] = field(default_factory=list)
    _paces: list[float] = field(default_factory=list)
    _losses: list[float] = field(default_factory=list)
    _step: int | None = None

    def __post_init__(self) -> None:
        self._journal = JournalReplay(self.paths, Disk())

    def look(self) -> WatchedLook:
        """The run as it is now."""
        reading = self.follower.look()
        status = status_of(reading, wall_now())
        with contextlib.suppress(OSError):  # what cannot be read now comes with the next look
            self._read_on()
        if status.step is not None and status.step != self._step:
            self._step = status.step
            self._paces += [1 / status.steps_per_s] if status.steps_per_s else []
            self._losses += [float(status.loss)] if isinstance(status.loss, int | float) else []
        for kept in (self._paces, self._losses):
            del kept[:-VALUES_MAX]
        return WatchedLook(status, squares_of(reading), tuple(self._paces), tuple(self._losses), tuple(self._decisions))

    def _read_on(self) -> None:
        fresh = self._journal.poll()
        known = len(self._history.samples)
        self._history.read(fresh)
        if not self._paces and not self._losses:  # later ones are looked at as they come, which is more often
            self._paces += [one.step_s for one in self._history.paces()]
            self._losses += [one.loss for one in self._history.samples[known:] if one.loss is not None]
        self._history.samples = self._history.samples[-1:]
        for entry in timeline_of(fresh):
            if entry.matters and entry.record.reason:
                self._decisions.append((entry.record.wall, entry.record.reason))
        del self._decisions[:-DECISIONS_MAX]
