"""Looking at a run again and again: only what the journal gained is read each time.

For ``status --watch``, ``wait``, ``cancel`` and ``logs -f``: the journal of a month is not read anew every second, and
Slurm is asked now and then, before the journal is read, so that the journal's word is the newer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import JournalFollower
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import RunState
from gangrun.runs.snapshot import (
    UNREPLAYABLE,
    Reading,
    ask_slurm,
    concerns_slurm,
    patience,
    reading_of,
    spec_of,
    unreplayable,
    with_queue,
)
from gangrun.runs.times import steady_now, wall_now
from gangrun.wire.record import Record, apply, state_of

if TYPE_CHECKING:
    from gangrun.runs.queue import Queue

ASK_EVERY_S = 10.0
ANEW_AFTER_S = 2.0
QUIET_AFTER_S = 15.0  # a supervisor that lives writes every 5 s


class Follower:
    """One run, looked at as often as you like.

    ``curious``: about its jobs too while a supervisor writes; ``slurm=False``: whoever looks asks Slurm himself.
    """

    def __init__(self, paths: RunPaths, *, curious: bool = False, slurm: bool = True) -> None:
        self._paths, self._disk, self._curious, self._slurm = paths, Disk(), curious, slurm
        self._spec = spec_of(paths, self._disk)
        self._journal = JournalFollower(paths, self._disk, newest_only=True)
        self._plain: dict[str, object] | None = None
        self._state: RunState | None = None
        self._kept: dict[str, Record] = {}
        self._queue: Queue | None = None
        self._known: tuple[Record, ...] = ()  # the newest record when Slurm was asked
        self._asked_at = self._ask_at = 0.0

    def look(self) -> Reading:
        """The run as it is now. Of its records only those that a status needs are kept."""
        reading = self._read()
        if not self._slurm or not concerns_slurm(reading):
            return reading
        if self._queue is not None and reading.records[-1:] != self._known:
            self._queue = None  # the journal knows more by now
            self._ask_at = min(self._ask_at, self._asked_at + ANEW_AFTER_S)
        if steady_now() >= self._ask_at and (self._curious or _is_quiet(reading)):
            self._queue = ask_slurm(reading)
            self._asked_at = steady_now()
            self._ask_at = self._asked_at + ASK_EVERY_S
            reading = self._read()
            self._known = reading.records[-1:]
        return reading if self._queue is None else with_queue(reading, self._queue)

    def _read(self) -> Reading:
        with patience(str(self._paths.root)):
            fresh = self._journal.poll()
            try:
                self._feed(fresh)
            except UNREPLAYABLE as error:
                raise unreplayable(self._spec, error) from error
            records = tuple(sorted(self._kept.values(), key=lambda record: (record.term, record.n)))
            return reading_of(self._paths, self._spec, self._state, records, self._journal.notes(final=True))

    def _feed(self, fresh: list[Record]) -> None:
        for record in fresh:
            if record.kind == "Snapshot":
                self._plain = dict(record.patch)
            elif self._plain is not None and record.patch:
                self._plain = apply(self._plain, record.patch)
            for use in ("newest", record.kind if record.kind in ("Snapshot", "CheckpointSeen") else "newest"):
                self._kept[use] = record
        if fresh and self._plain is not None:
            self._state = state_of(self._plain)


def _is_quiet(reading: Reading) -> bool:
    """Does nobody write, so that only Slurm can know what becomes of the run?"""
    last = reading.last_sign()
    return reading.state is None or reading.state.leaving or last is None or wall_now() - last > QUIET_AFTER_S
