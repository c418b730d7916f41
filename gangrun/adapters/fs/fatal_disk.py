"""A disk under which a process is killed, or stopped, at its k-th change of the file system.

For tests and drills: nothing in production calls it. The control file says ``kill 17`` or ``stop 17``; before and after
each operation that changes something count as one position each. Whoever gets there takes the file away first, so that
it happens once, whoever else is started with the same file.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.stall import LOOKING, ControlError

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FatalDisk(Disk):
    """A real disk with one deadly position."""

    def __init__(self, control: Path) -> None:
        """Reads the control file once; without one nothing happens."""
        self._control = control
        self._lock = threading.Lock()
        self._left_count = 0
        self._signal = signal.SIGKILL
        try:
            words = control.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return
        if len(words) != 2 or words[0] not in SIGNALS or not words[1].isdecimal():
            raise ControlError(f"{words} is not one of: kill K, stop K")
        self._signal, self._left_count = SIGNALS[words[0]], int(words[1])

    def before(self, op: str, path: Path) -> None:
        """One position."""
        del path
        self._pass(op)

    def after(self, op: str, path: Path) -> None:
        """One more."""
        del path
        self._pass(op)

    def _pass(self, op: str) -> None:
        if op in LOOKING:
            return
        with self._lock:
            self._left_count -= 1
            if self._left_count != 0:
                return
        try:
            os.unlink(self._control)
        except FileNotFoundError:
            return  # another process got there first
        os.kill(os.getpid(), self._signal)
