"""XID events as they come, on a thread of their own. What came before it watches is lost for good.

So it is opened before ranks start, and stays open over restarts. The driver may hang in any call: nobody waits for this
thread but ``opened``, and that under a deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gangrun.ports import Clock

WAIT_MS = 1000
ERRORS_MAX_COUNT = 5  # in a row: then the driver is not asked any more
XID, DOUBLE_BIT, UNAVAILABLE, RECOVERY = 0x8, 0x2, 0x4000, 0x8000
XID_OF_TYPE = {DOUBLE_BIT: 48, UNAVAILABLE: 79, RECOVERY: 154}  # what other types of event say in the XIDs' language


class GpuEvents(Protocol):
    """The driver's events (``adapters.nvml`` has the real one)."""

    def open(self) -> Mapping[str, str]:
        """Begin; why not, by GPU. ``OSError``: not at all."""

    def wait(self, within_ms: int) -> tuple[str, int, int] | None:
        """(UUID, type, number), or None in time. ``OSError``: the driver is not well."""

    def close(self) -> None:
        """Let go."""


class XidWatch(threading.Thread):
    """Calls ``post(uuid, xid, at)`` from its own thread for each event that tells of a fault."""

    def __init__(self, events: GpuEvents, post: Callable[[str, int, float], None], clock: Clock) -> None:
        super().__init__(name="xid-watch", daemon=True)
        self.trouble = ""  # why there is no watch, or no full one
        self._events = events
        self._post = post
        self._clock = clock
        self._ready = threading.Event()
        self._over = threading.Event()

    def opened(self, within_s: float) -> bool:
        """Wait until events are being watched, or cannot be; False: the driver has not answered yet."""
        return self._ready.wait(within_s)

    def close(self) -> None:
        """End after the wait in progress; nobody joins a thread that a driver may hold."""
        self._over.set()

    def run(self) -> None:
        """The thread's life."""
        try:
            refused = self._events.open()
        except Exception as error:  # noqa: BLE001 - without a watch a run goes on; whatever it was, that is all it costs
            self.trouble = f"GPU events are not watched: {error}"
            return
        finally:
            self._ready.set()
        self.trouble = "; ".join(f"{place}: {why}" for place, why in refused.items())
        try:
            self._watch()
        finally:
            self._events.close()

    def _watch(self) -> None:
        errors_count, why = 0, ""
        while not self._over.is_set() and errors_count < ERRORS_MAX_COUNT:
            try:
                event = self._events.wait(WAIT_MS)
                errors_count = 0
            except OSError as error:
                errors_count, why = errors_count + 1, str(error)
                self._over.wait(WAIT_MS / 1000)
                continue
            xid = None if event is None else xid_of(event[1], event[2])
            if event is not None and xid is not None:
                self._post(event[0], xid, self._clock.now())
        if errors_count:
            self.trouble = f"GPU events are no longer watched: {why}"


def xid_of(event_type: int, number: int) -> int | None:
    """The XID that an event stands for; None where it tells of no fault."""
    return number if event_type == XID else XID_OF_TYPE.get(event_type)
