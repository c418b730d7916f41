"""Step, goal and loss that a framework writes into files of its own, for scripts that neither report nor print them.

Only files that have changed since ``note`` count: what an earlier attempt, or another run, left there is no progress.
Nothing is trusted further than a number: the files are a script's, and may be written at this moment.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from gangrun.core.evidence import StateFigures
from gangrun.frameworks.framework import AUTO, frameworks_of

TAIL_MAX_BYTES = 64 * 1024
WHOLE_MAX_BYTES = 4 * 1024 * 1024  # trainer_state.json grows with the history of its log
FILES_MAX_COUNT = 256


class StateFiles:
    """Those around one checkpoint directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known: dict[str, int] = {}

    def note(self) -> None:
        """What is there now does not count."""
        self._known = dict(self._there())

    def newest(self, since_wall: float = 0.0) -> StateFigures | None:
        """Of the file that changed last, and not before ``since_wall``; None if none tells anything."""
        changed = [(at, path) for path, at in self._there() if self._known.get(path) != at and at >= since_wall * 1e9]
        for _, path in sorted(changed, reverse=True):
            figures = self._read(path)
            if figures is not None:
                return figures
        return None

    def _there(self) -> Iterator[tuple[str, int]]:
        """Each with the time of its last change, by the file server."""
        count = 0
        for framework in frameworks_of(AUTO):
            for pattern in framework.state_files:
                for path in glob.iglob(os.path.join(glob.escape(self._directory), pattern)):
                    count += 1
                    if count > FILES_MAX_COUNT:
                        return
                    try:
                        yield path, os.stat(path).st_mtime_ns
                    except OSError:
                        continue

    def _read(self, path: str) -> StateFigures | None:
        name = os.path.basename(path)
        framework = next(
            one for one in frameworks_of(AUTO) if any(os.path.basename(p) == name for p in one.state_files)
        )
        try:
            with open(path, "rb") as file:
                head = file.read(WHOLE_MAX_BYTES)
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes > len(head):
                    first = head.partition(b"\n")[0]
                    file.seek(-TAIL_MAX_BYTES, os.SEEK_END)
                    head = first + b"\n" + file.read().partition(b"\n")[2]
        except OSError:
            return None
        return framework.figures_of_state(head) if framework.figures_of_state is not None else None
