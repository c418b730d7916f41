"""The memory in which agent and warden share a lease, and when it kills.

Nothing of gangrun may enter: the warden imports it by path.
"""

from __future__ import annotations

import mmap

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "lease":
    from gangrun.node import processes
else:
    import processes  # by path, as the warden's

LEASE_SIZE_BYTES = 24  # struct "=QQQ": deadline, the agent's last write (both ns of CLOCK_BOOTTIME), flags
BEAT_ROUND_TRIP_S = 2.0


class Lease:
    """The memory that warden and agent share; each word is stored whole, so that no reader sees half of one."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, LEASE_SIZE_BYTES)
        self._words = memoryview(self._map).cast("Q")  # struct.pack_into would blank the bytes first

    @property
    def deadline_ns(self) -> int:
        """When all ranks must be dead; 0 means that the agent holds nothing."""
        return int(self._words[0])

    @property
    def written_ns(self) -> int:
        """The agent's newest sign of life; 0 before its first."""
        return int(self._words[1])

    def renew(self, deadline_ns: int) -> None:
        """(agent) Move the deadline; 0 only once no rank is left."""
        self._words[0] = deadline_ns
        self.touch()

    def touch(self) -> None:
        """(agent) Say that the loop turns."""
        self._words[1] = processes.boottime_ns()

    def clear(self) -> None:
        """(warden) As before an agent's first write."""
        self._words[0] = self._words[1] = 0


def must_kill(
    deadline_s: float, now_s: float, woke_s: float, lease_s: float, *, granted: bool
) -> tuple[bool, float, bool]:
    """(kill now, the deadline as it is then, whether that is a grace).

    After a gap of our own the whole machine may have been paused: the agent gets one beat round trip to renew, once per
    deadline, or a starved warden would never kill.
    """
    if now_s < deadline_s:
        return False, deadline_s, granted
    if now_s - woke_s > lease_s / 3 and not granted:
        return False, now_s + BEAT_ROUND_TRIP_S, True
    return True, deadline_s, granted
