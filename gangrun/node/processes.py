"""The process table: who is below whom, and killing until none is left.

Shared by the warden, which imports it by path, and by the agent and the launcher. Nothing of gangrun and nothing heavy
may enter. A process is (pid, start_ticks): a number alone may be another one's by the time it is killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a megabyte that a warden does not have to spend
    from collections.abc import Callable, Collection, Mapping

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ECHO_S = 3.0


def boottime_ns() -> int:
    """Nanoseconds of CLOCK_BOOTTIME: runs on during suspend, never jumps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_s() -> float:
    """Seconds since the epoch; may jump."""
    return time.time()


def host_name() -> str:
    """This host's name without its domain."""
    return os.uname().nodename.split(".")[0] or "localhost"  # socket would cost a viewer a twentieth of its start


class Proc:
    """One line of the process table; (pid, start_ticks) is never used twice."""

    __slots__ = (
        "cpu_ticks", "group", "name", "parent", "pid", "resident_pages", "start_ticks", "state", "threads_count",
    )  # fmt: skip

    def __init__(self, pid: int, stat: bytes) -> None:
        name, _, rest = stat.partition(b"(")[2].rpartition(b")")  # a name may hold spaces and brackets
        part = rest.split()
        self.pid, self.name = pid, name.decode("utf-8", "backslashreplace")
        self.state, self.parent, self.group = part[0].decode(), int(part[1]), int(part[2])
        self.cpu_ticks, self.start_ticks = int(part[11]) + int(part[12]), int(part[19])
        self.threads_count = int(part[17])
        self.resident_pages = int(part[21])

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state})"


def read_proc(pid: int) -> Proc | None:
    """The process, or None if there is none (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Proc(pid, file.read())
    except (OSError, ValueError, IndexError):
        return None


def has_ended(pid: int, start_ticks: int) -> bool:
    """Whether that process of this host is gone, whoever has its number now."""
    proc = read_proc(pid)
    return proc is None or proc.start_ticks != start_ticks or not is_alive(proc)


def blank_arguments(words: Collection[str]) -> None:
    """Overwrite these words where the kernel shows the arguments of this process to every user of the host."""
    try:
        with open("/proc/self/stat", "rb") as file:
            part = file.read().rpartition(b")")[2].split()
        begins, ends = int(part[45]), int(part[46])  # arg_start and arg_end of proc(5); 0 where they are hidden
    except (OSError, ValueError, IndexError):
        return
    if not 0 < begins < ends:
        return
    shown = ctypes.string_at(begins, ends - begins)
    for word in filter(None, map(os.fsencode, words)):
        at = shown.find(word)
        while at >= 0:
            ctypes.memset(begins + at, ord("*"), len(word))
            at = shown.find(word, at + len(word))


def process_table() -> dict[int, Proc]:
    """All processes that we may see, by pid."""
    found = (read_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def is_alive(proc: Proc) -> bool:
    """Whether anything of it still runs: a Z whose other threads run on is alive."""
    if proc.state not in "ZX":
        return True
    try:
        return len(os.listdir(f"/proc/{proc.pid}/task")) > 1
    except OSError:
        return False


def descendants(roots: Collection[int], table: Mapping[int, Proc], spared_trees: Collection[int] = ()) -> list[Proc]:
    """All live processes below ``roots``, without the roots; a spared tree is left out with all below it."""
    children: dict[int, list[Proc]] = {}
    for proc in table.values():
        children.setdefault(proc.parent, []).append(proc)
    found: list[Proc] = []
    todo = list(roots)
    while todo:
        for proc in children.get(todo.pop(), ()):
            if proc.pid not in spared_trees:
                todo.append(proc.pid)
                found.append(proc)
    return [proc for proc in found if is_alive(proc)]


def kill(proc: Proc, signum: int = signal.SIGKILL) -> bool:
    """Signal exactly this process, never one that was given its number since; False if it is gone."""
    try:
        fd = os.pidfd_open(proc.pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # kernel < 5.3, or a sandbox: as near as one can get
            return _kill_by_number(proc, signum)
        return False
    try:
        now = read_proc(proc.pid)
        if now is None or now.start_ticks != proc.start_ticks:
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _kill_by_number(proc: Proc, signum: int) -> bool:
    now = read_proc(proc.pid)
    if now is None or now.start_ticks != proc.start_ticks:
        return False
    try:
        os.kill(proc.pid, signum)
    except OSError:
        return False
    return True


def kill_until_none(
    find: Callable[[], list[Proc]],
    within_s: float,
    between: Callable[[], None],
    pause: Callable[[float], object] = time.sleep,
) -> list[Proc]:
    """SIGKILL what ``find`` finds until it finds nothing; what is left after ``within_s`` is the answer.

    ``pause``: waits between two rounds, at most so many seconds.
    """
    give_up_ns = boottime_ns() + int(within_s * 1e9)
    pause_s = 0.002
    while True:
        between()
        left = find()
        if not left or boottime_ns() > give_up_ns:
            return left
        for proc in left:
            kill(proc)
        pause(pause_s)
        pause_s = min(2 * pause_s, 0.05)


class Askings:
    """Signals that ask a process to end, each as often as somebody meant it: a scheduler may send one by two ways (to
    the step's processes, and through srun), so the same number within seconds is an echo. A busy node hears it late,
    and a second asking kills what may be saving; whoever means it asks once more. SIGHUP comes of a closed terminal or
    session, and adds nothing to an asking.
    """

    def __init__(self, now_ns: Callable[[], int] = boottime_ns) -> None:
        self.signals: list[int] = []
        self._now_ns = now_ns
        self._taken_ns: dict[int, int] = {}

    def note(self, number: int, _frame: object = None) -> None:
        """A signal's handler."""
        now_ns = self._now_ns()
        if number == signal.SIGHUP and self.signals:
            return
        if number not in self._taken_ns or now_ns > self._taken_ns[number] + ECHO_S * 1e9:
            self._taken_ns[number] = now_ns
            self.signals.append(number)


def prctl(option: int, value: int) -> None:
    """The system call; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def become_subreaper() -> None:
    """From now on orphans below this process become its children, not init's."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
