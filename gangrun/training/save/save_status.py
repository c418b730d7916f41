"""Tells people of this run's saves, on rank 0's background thread.

Only under gangrun: elsewhere nobody would look. What cannot be told is not told; a save is never lost for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gangrun.checkpoint.commit import Staging
from gangrun.core.checkpoints.cadence import Cadence
from gangrun.training.clock import Clock
from gangrun.wire.saves import NAME, SavesTold, encode


class Telling:
    """The news of one attempt. ``plan`` says how often is saved, and why."""

    def __init__(self, staging: Staging, clock: Clock, plan: Callable[[], Cadence]) -> None:
        """Takes its place on the disk at once."""
        self._path = os.path.join(staging.run_folder, NAME)
        self._clock, self._plan, self._attempt = clock, plan, staging.attempt
        self._saved_step, self._saved_at, self._persist_s, self._failures_count = -1, 0.0, 0.0, 0
        self._write(-1, "")

    def ended(self, step: int, failure: str, persist_s: float) -> None:
        """One save was committed (``failure`` "") or failed."""
        if failure:
            self._failures_count += 1
        else:
            self._failures_count, self._saved_step = 0, step
            self._saved_at, self._persist_s = self._clock.wall(), persist_s
        self._write(step if failure else -1, failure)

    def _write(self, failed_step: int, why: str) -> None:
        plan = self._plan()
        told = SavesTold(
            self._attempt, self._clock.wall(), plan.interval_s, plan.reason, saved_step=self._saved_step,
            saved_at=self._saved_at, persist_s=self._persist_s, failures_count=self._failures_count,
            failed_step=failed_step, failed_why=why,
        )  # fmt: skip
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o644)
            try:
                os.pwrite(descriptor, encode(told), 0)
            finally:
                os.close(descriptor)
        except OSError:
            return
