"""What warden, agent and supervisor say to people, without ever waiting for a file system.

In a job their words go into a log in the run directory, which may stand still for minutes: whoever wrote there
himself would not kill, nor acknowledge, until it answers again. So their standard output and error are one pipe that
never blocks, and one process per node, the log writer, reads it. That process alone waits for the disk, where no signal
may reach it; nobody waits for that process. What the pipe does not take is dropped, counted, and said afterwards.

Nothing of gangrun may enter: the warden imports it by path.
"""

from __future__ import annotations

import fcntl
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LINE_MAX_BYTES = 4096  # PIPE_BUF: so much goes into a pipe whole, or not at all
PIPE_BYTES = 1 << 20  # what may wait for a disk; a user may have a few of this size
DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Voice:
    """Standard error, a line at a time. ``write(fd, data)``: as ``os.write``, for a world without pipes."""

    def __init__(self, write: Callable[[int, bytes], int] = os.write) -> None:
        self.lost_count = 0  # lines since the last that was taken
        self._write = write

    def say(self, line: str) -> None:
        """One line; lost, and counted, if nobody can take it now."""
        note = f"[gangrun] {self.lost_count} lines were lost here: nobody could take them\n" if self.lost_count else ""
        data = f"{note}{line}".encode("utf-8", "backslashreplace")[: LINE_MAX_BYTES - 1] + b"\n"
        try:
            self._write(2, data)
        except OSError:
            self.lost_count += 1
        else:
            self.lost_count = 0


class LogWriter:
    """Makes standard output and error of this process, and of all that it starts, a pipe into what they were before."""

    def __init__(self, not_its: tuple[int, ...] = ()) -> None:
        """``start`` it only while this process has one thread: it forks. ``not_its``: files that it must not keep."""
        self.pid = 0
        self._not_its = not_its
        self._log = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
        self._read, write = os.pipe()
        try:
            fcntl.fcntl(write, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_BYTES)
        except OSError:
            pass  # the user's pipes are that large already: a smaller one does it
        os.set_blocking(write, False)
        for fd in (1, 2):
            os.dup2(write, fd)
        os.close(write)

    def start(self) -> None:
        """Have the pipe read by a process of its own, again if it was killed."""
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for signum in DEAF:
                signal.signal(signum, signal.SIG_IGN)
            for fd in self._not_its:
                os.close(fd)
            for fd in (1, 2):  # or it would wait for its own end
                os.dup2(self._log, fd)
            _copy(self._read, self._log)
        finally:
            os._exit(0)

    def finish(self) -> None:
        """Nothing more is said: once all others have gone too the writer ends."""
        null = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(null, fd)


def _copy(words: int, log: int) -> None:
    lost_bytes, why = 0, ""
    while data := os.read(words, 1 << 16):
        note = f"[gangrun] {lost_bytes} bytes were lost here: {why}\n" if lost_bytes else ""
        view = memoryview(note.encode() + data)
        try:
            while view:
                view = view[os.write(log, view) :]
            lost_bytes = 0
        except OSError as error:  # full, read-only, stale: the words that follow say how much is missing
            lost_bytes, why = lost_bytes + len(data), error.strerror or str(error)
