"""Looking at a run again and again (room: cli; reads, never writes): only what the journal gained is read each time.

For ``status --watch``, ``wait``, ``cancel`` and ``logs -f``: the journal of a month is not read anew every second.
"""

from __future__ import annotations

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import JournalFollower
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.cli.reading import UNREPLAYABLE, Reading, patience, reading_of, spec_of, unreplayable
from gangrun.core.model import RunState
from gangrun.wire.record import Record, apply, state_of


class Follower:
    """One run, looked at as often as you like."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths, self._disk = paths, Disk()
        self._spec = spec_of(paths, self._disk)
        self._journal = JournalFollower(paths, self._disk, newest_only=True)
        self._plain: dict[str, object] | None = None
        self._state: RunState | None = None
        self._kept: dict[str, Record] = {}

    def look(self) -> Reading:
        """The run as it is now. Of its records only those that a status needs are kept."""
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
