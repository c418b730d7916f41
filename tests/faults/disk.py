"""Disks that fail while a real process works on them: ``PausableDisk`` stalls, fills up or turns read-only,
``FatalDisk`` kills or stops its process at its k-th change of the file system.

``PausableDisk`` is steered by method calls, or from another process by a control file of one line:

    run                 all works (also: no file, empty file)
    stall               every operation blocks until the line changes
    stall write         only operations that change something block
    fail ENOSPC         operations that change something fail with this errno; reading works
    fail EIO all        reading fails too
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from gangrun.adapters.fs.disk import Disk

LOOKING = frozenset({"lstat", "stat_fresh", "names", "read", "free_bytes", "size", "open_append"})
POLL_S = 0.02


class ControlError(ValueError):
    """A control line that means nothing."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How the disk behaves now."""

    stalled: bool = False
    error: int = 0
    looking_too: bool = False


RUN = Condition()


def parse(line: str) -> Condition:
    """The condition that a control line asks for."""
    match line.split():
        case [] | ["run"]:
            return RUN
        case ["stall"] | ["stall", "all"]:
            return Condition(stalled=True, looking_too=True)
        case ["stall", "write"]:
            return Condition(stalled=True)
        case ["fail", name, *rest] if name in errno.errorcode.values() and rest in ([], ["all"]):
            return Condition(error=int(getattr(errno, name)), looking_too=bool(rest))
    raise ControlError(f"{line!r} is not one of: run, stall [write], fail ERRNO [all]")


class PausableDisk(Disk):
    """A real disk under a condition; ``control`` is the file that other processes steer it by."""

    def __init__(self, control: Path | None = None, only_under: Path | None = None) -> None:
        """``only_under``: leave paths elsewhere alone."""
        self._control = control
        self._only_under = only_under
        self._condition = RUN
        self._changed = threading.Condition()
        self.waiting_count = 0  # operations blocked now
        self.refused_count = 0

    def pause(self, looking_too: bool = True) -> None:
        """Block operations from now on."""
        self._set(Condition(stalled=True, looking_too=looking_too))

    def fail(self, error: int, looking_too: bool = False) -> None:
        """Let operations fail with this errno from now on."""
        self._set(Condition(error=error, looking_too=looking_too))

    def resume(self) -> None:
        """All works again, and what was blocked goes on."""
        self._set(RUN)

    def _set(self, condition: Condition) -> None:
        with self._changed:
            self._condition = condition
            self._changed.notify_all()

    def _now(self) -> Condition:
        if self._condition is not RUN or self._control is None:
            return self._condition
        try:
            return parse(self._control.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return RUN

    def before(self, op: str, path: Path) -> None:
        """Block, fail or let through."""
        if self._only_under is not None and not path.is_relative_to(self._only_under):
            return
        with self._changed:
            self.waiting_count += 1
            try:
                while (now := self._now()).stalled and (now.looking_too or op not in LOOKING):
                    self._changed.wait(POLL_S)
            finally:
                self.waiting_count -= 1
        if now.error and (now.looking_too or op not in LOOKING):
            self.refused_count += 1
            raise OSError(now.error, os.strerror(now.error), str(path))


def say(control: Path, line: str) -> None:
    """Steer another process's disk: the whole line at once."""
    parse(line)
    temporary = control.with_name(f".{control.name}.tmp")
    temporary.write_text(line + "\n", encoding="utf-8")
    os.replace(temporary, control)


SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FatalDisk(Disk):
    """A real disk with one deadly position.

    The control file says ``kill 17`` or ``stop 17``; before and after each operation that changes something count as
    one position each. The process that gets there takes the file away first, so that it happens once, whatever other
    processes are started with the same file.
    """

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


class FreezableDisk:
    """A file system of its own at ``folder``, for root: frozen, whoever writes there waits, deaf even to SIGKILL."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._frozen = folder, False
        image = folder.with_suffix(".image")
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(32 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        found = subprocess.run(["losetup", "--find", "--show", image], check=True, capture_output=True, text=True)
        self.device = found.stdout.strip()
        subprocess.run(["mount", self.device, folder], check=True)

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True)
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            subprocess.run(["fsfreeze", "--unfreeze", self.folder], check=True)

    def close(self) -> None:
        self.thaw()
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        subprocess.run(["losetup", "--detach", self.device], check=True)
