"""The run clock: what ``step`` sees as ``now``, and what every table here is kept in.

At a term's start it is the wall clock, or the last recorded instant if that is later; from there on it follows
CLOCK_BOOTTIME, so a wall clock that jumps changes nothing until the next term, and it never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunClock:
    """Seconds of the run from seconds of CLOCK_BOOTTIME, and back."""

    run_start: float
    boot_start: float

    @staticmethod
    def starting(last_recorded: float, wall: float, boot: float) -> RunClock:
        """The clock of a term that starts now."""
        return RunClock(max(last_recorded, wall), boot)

    def at(self, boot: float) -> float:
        """The run's time at that CLOCK_BOOTTIME."""
        return self.run_start + (boot - self.boot_start)

    def boot(self, at: float) -> float:
        """The CLOCK_BOOTTIME at that time of the run."""
        return self.boot_start + (at - self.run_start)
