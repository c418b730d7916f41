"""What warden, agent and supervisor say to people, without ever waiting for a file system.

In a job their words go into a log in the run directory, which may stand still for minutes: whoever wrote there
himself would not kill, nor acknowledge, until it answers again. So their standard output and error are one pipe that
never blocks, and one process per node, the log writer, reads it. That process alone waits for the disk, where no signal
may reach it; nobody waits for that process. What the pipe does not take is dropped, counted, and said afterwards.
Lines for the people in front of the run's launcher begin with a mark, and go to the launcher: it hears the node through
srun. So do lines that the log refuses.

Nothing of gangrun may enter: the warden imports it by path.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINE_MAX_BYTES = 4096  # PIPE_BUF: so much goes into a pipe whole, or not at all
PIPE_BYTES = 1 << 20  # what may wait for a disk; a user may have a few of this size
OUTPUT, LOSS = "[>] ", "[-] "  # begin a rank's line that the disk refused, and a count of what it refused
URGENT = "!] "  # after the name of the process that speaks
TOLD_WITHIN_S = 1.0
TOLD_MAX_BYTES = 1000  # srun breaks longer lines
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

    def __init__(self, not_its: tuple[int, ...] = (), launcher_fd: int = -1) -> None:
        """``start`` it only while this process has one thread: it forks. ``not_its``: files that it must not keep."""
        self.pid = 0
        self._not_its = not_its
        self._launcher_fd = launcher_fd
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
            _copy(self._read, self._log, self._launcher_fd)
        finally:
            os._exit(0)

    def finish(self) -> None:
        """Nothing more is said: once all others have gone too the writer ends."""
        null = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(null, fd)


class _Launcher:
    """The pipe to srun, which may stand still for ever: after one wait in vain nobody waits until it takes a line."""

    def __init__(self, fd: int) -> None:
        self._fd, self._wait_s, self._lost_count = fd, TOLD_WITHIN_S, 0

    def tell(self, line: bytes) -> None:
        """One line; lost, and counted, if the launcher does not take it."""
        if self._fd < 0:
            return
        note = b"[gangrun] %d lines were lost here: the launcher did not take them\n" % self._lost_count
        data = (note if self._lost_count else b"") + line.rstrip(b"\n")[:TOLD_MAX_BYTES] + b"\n"
        try:
            if not select.select((), (self._fd,), (), self._wait_s)[1]:
                raise BlockingIOError
            os.write(self._fd, data)  # less than PIPE_BUF, and nobody else writes: it never waits
        except OSError:
            self._wait_s, self._lost_count = 0.0, self._lost_count + 1
        else:
            self._wait_s, self._lost_count = TOLD_WITHIN_S, 0


def _copy(words: int, log: int, launcher_fd: int) -> None:
    launcher, lost_bytes, why = _Launcher(launcher_fd), 0, ""
    for data in _whole_lines(words):
        kept = data
        if launcher_fd >= 0:
            lines = data.splitlines(keepends=True)
            for line in lines:
                if _is_told(line):
                    launcher.tell(line)
            kept = b"".join([line for line in lines if not line.startswith(_ONLY_TOLD)])
        note = f"[gangrun] {lost_bytes} bytes were lost here: {why}\n" if lost_bytes and kept else ""
        view = memoryview(note.encode() + kept)
        try:
            while view:
                view = view[os.write(log, view) :]
            lost_bytes = 0 if kept else lost_bytes
        except OSError as error:  # full, read-only, stale: the words that follow say how much is missing
            lost_bytes, why = lost_bytes + len(kept), error.strerror or str(error)
            for line in kept.splitlines():
                if not _is_told(line):
                    launcher.tell(line)


_ONLY_TOLD = (OUTPUT.encode(), LOSS.encode())


def _is_told(line: bytes) -> bool:
    return line.startswith(_ONLY_TOLD) or (line.startswith(b"[") and URGENT.encode() in line.split(b" ", 1)[0] + b" ")


def _whole_lines(words: int) -> Iterator[bytes]:
    """What waits in the pipe, not cut within a line, until its last writer is gone."""
    rest = b""
    while data := os.read(words, 1 << 16):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            yield whole + newline
        elif len(rest) > PIPE_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest
