"""Looking at a run again and again: only what the journal gained is read each time.

For ``status --watch``, ``wait``, ``cancel``, ``logs -f`` and ``gangrun run``: the journal of a month is not read anew
every second. The scheduler is asked now and then, before the journal is read, so that the journal's word is newer.
"""

from __future__ import annotations

from collections.abc import Callable

from gangrun.adapters.fs.disk import REFUSED, Disk
from gangrun.adapters.fs.journal import JournalFollower
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import RunState
from gangrun.runs.job_queue import Queue
from gangrun.runs.snapshot import (
    UNREPLAYABLE,
    RunSnapshot,
    ask_scheduler,
    concerns_scheduler,
    patience,
    snapshot_of,
    spec_of,
    unreplayable,
    with_queue,
)
from gangrun.runs.times import steady_now, wall_now
from gangrun.wire.record import Record, advance, state_of

ASK_EVERY_S = 10.0
ANEW_AFTER_S = 2.0
UNREADABLE_FOR_S = 60.0  # an EIO or ESTALE mostly passes
QUIET_AFTER_S = 15.0  # a supervisor that lives writes every 5 s


class JournalReplay:
    """The journal of one run: its new records at each ``poll``, and the state after them, which any thread may ask."""

    def __init__(self, paths: RunPaths, disk: Disk, *, newest_only: bool = False) -> None:
        self._paths, self._disk = paths, disk
        self._journal = JournalFollower(paths, disk, newest_only=newest_only)
        self._plain: dict[str, object] | None = None
        self._built: tuple[dict[str, object] | None, RunState | None] = (None, None)

    def poll(self) -> list[Record]:
        """The records since the last call."""
        fresh = self._journal.poll()
        self._plain = advance(self._plain, fresh)
        return fresh

    def state(self) -> RunState | None:
        """The whole state; None before the first snapshot."""
        plain = self._plain
        if self._built[0] is not plain:
            self._built = (plain, None if plain is None else state_of(plain))
        return self._built[1]

    def notes(self) -> tuple[str, ...]:
        """What could not be read."""
        return self._journal.notes(final=True)

    def is_there(self) -> bool:
        """Does the run directory exist? Without it no supervisor can ever begin."""
        try:
            self._disk.lstat(self._paths.machine)
        except FileNotFoundError:
            return False
        return True


class Follower:
    """One run, looked at as often as you like.

    ``curious``: about its jobs too while a supervisor writes; ``scheduler=False``: the caller asks it. ``now`` says
    how long the run directory has been unreadable.
    """

    def __init__(
        self, paths: RunPaths, *, curious: bool = False, scheduler: bool = True, now: Callable[[], float] = steady_now
    ) -> None:
        self._now = now
        self._good: RunSnapshot | None = None
        self._failing_since: float | None = None
        self._paths, self._curious, self._scheduler = paths, curious, scheduler
        self._spec = spec_of(paths, Disk())
        self._journal = JournalReplay(paths, Disk(), newest_only=True)
        self._kept: dict[str, Record] = {}
        self._queue: Queue | None = None
        self._known: tuple[Record, ...] = ()  # the newest record when it was asked
        self._asked_at = self._ask_at = 0.0

    def look(self) -> RunSnapshot:
        """The run as it is now, or as it was if its directory has been unreadable for less than a minute.

        ``OSError``: at the first look, or for longer. Of its records only those that a status needs are kept.
        """
        try:
            self._good, self._failing_since = self._look(), None
        except REFUSED:
            raise
        except OSError:
            since = self._failing_since = self._now() if self._failing_since is None else self._failing_since
            if self._good is None or self._now() >= since + UNREADABLE_FOR_S:
                raise
            self._journal = JournalReplay(self._paths, Disk(), newest_only=True)  # the old one may have lost records
        return self._good

    def _look(self) -> RunSnapshot:
        run = self._read()
        if not self._scheduler or not concerns_scheduler(run):
            return run
        if self._queue is not None and run.records[-1:] != self._known:
            self._queue = None  # the journal knows more by now
            self._ask_at = min(self._ask_at, self._asked_at + ANEW_AFTER_S)
        if steady_now() >= self._ask_at and (self._curious or _is_quiet(run)):
            self._queue = ask_scheduler(run)
            self._asked_at = steady_now()
            self._ask_at = self._asked_at + ASK_EVERY_S
            run = self._read()
            self._known = run.records[-1:]
        return run if self._queue is None else with_queue(run, self._queue)

    def _read(self) -> RunSnapshot:
        with patience(str(self._paths.root)):
            try:
                for record in self._journal.poll():
                    self._kept["newest"] = record
                    if record.kind in ("Snapshot", "CheckpointSeen"):
                        self._kept[record.kind] = record
                state = self._journal.state()
            except UNREPLAYABLE as error:
                raise unreplayable(self._spec, error) from error
            records = tuple(sorted(self._kept.values(), key=lambda record: (record.term, record.n)))
            return snapshot_of(self._paths, self._spec, state, records, self._journal.notes())


def _is_quiet(run: RunSnapshot) -> bool:
    """Does no supervisor write, so that only the scheduler can know what becomes of the run?"""
    last = run.last_sign()
    return run.state is None or run.state.ending.leaving or last is None or wall_now() - last > QUIET_AFTER_S
