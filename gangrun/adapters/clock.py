"""The only reader of clocks outside the islands. Everyone else is handed a ``Clock``."""

from __future__ import annotations

import time


class SystemClock:
    """``ports.Clock`` of this host."""

    def now(self) -> float:
        """CLOCK_BOOTTIME in seconds: goes on during suspend, is the same for all processes of the host."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Seconds since the epoch; may jump."""
        return time.time()
