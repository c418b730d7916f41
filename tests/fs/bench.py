"""What the tests of this folder stand on: clocks, disks that break at a chosen operation, and real forked processes."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, create_run
from gangrun.wire import record as wire_record
from gangrun.wire.record import Act, Claim, Inherited, Record
from tests.waiting import until

NOBODY = 65534


class RealClock:
    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()


@dataclass
class HandClock:
    """Time that only ``wait`` and the test move."""

    at: float = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1.7e9 + self.at

    def wait(self, seconds: float) -> None:
        self.at += seconds


@dataclass
class TriggerDisk(Disk):
    """Calls ``act`` at the ``k``-th operation, before or after it; counts all of them."""

    k: int = -1
    when: str = "before"
    act: Callable[[], None] = lambda: None
    count: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)  # operations with an "after": what is looked for and missing has none
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, op: str, path: Path) -> None:
        with self._lock:
            index = self.count
            self.count += 1
            self.log.append((op, path.name))
        if index == self.k and self.when == "before":
            self.act()

    def after(self, op: str, path: Path) -> None:
        self.ended.add(self.count - 1)
        if self.when == "after" and self.count - 1 == self.k:
            self.act()


class NoLinkDisk(Disk):
    """A file system without link(2)."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def new_run(base: Path, disk: Disk | None = None) -> RunPaths:
    return create_run(disk or Disk(), base / "runs", 1.7e9, os.urandom)


def claim_of(term: int, paths: RunPaths, node: str = "n1", pid: int = 0) -> Claim:
    return Claim(term, paths.run, "job", node, pid or os.getpid(), 7, "tcp://127.0.0.1:1", "key", 1.7e9)


def snapshot(term: int, carried: Inherited | None = None) -> Record:
    event = {} if carried is None else wire_record.builtins(carried)
    return Record(1, term, 0, 0.0, 0.0, "Snapshot", event, reason="first")


def note(term: int, n: int) -> Record:
    return Record(1, term, n, float(n), 0.0, "ProgressMarked", event={"attempt": 0, "step": n}, reason=f"step {n}")


def start(term: int, n: int, act: int, attempt: int = 0) -> Record:
    action = Act("StartGang", {"attempt": attempt}, act)
    return Record(1, term, n, float(n), 0.0, "ResumeChosen", reason=f"start {act}", actions=(action,))


@dataclass
class Child:
    """A forked process that reports lines through a pipe."""

    pid: int
    fd: int

    def wait(self, deadline_s: float = 20.0, stops: bool = False) -> str:
        """``killed``, ``stopped`` or ``exit N``; kills it at the deadline."""

        def ended() -> str:
            pid, status = os.waitpid(self.pid, os.WNOHANG | (os.WUNTRACED if stops else 0))
            if not pid:
                return ""
            if os.WIFSTOPPED(status):
                return "stopped"
            return "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"

        try:
            return until(ended, deadline_s, f"process {self.pid} ends")
        except AssertionError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def lines(self) -> list[str]:
        """All it said; only after it ended."""
        chunks = []
        while chunk := os.read(self.fd, 65536):
            chunks.append(chunk)
        os.close(self.fd)
        return b"".join(chunks).decode().splitlines()


def fork(work: Callable[[Callable[[str], None]], None], uid: int | None = None) -> Child:
    """Run ``work(say)`` in a real process; exit 0, or 1 with the traceback as its last lines."""
    out, inn = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(out)
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work(lambda line: void(os.write(inn, line.encode() + b"\n")))
            code = 0
        except BaseException:  # noqa: BLE001
            os.write(inn, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(inn)
    return Child(pid, out)


def void(_: object) -> None:
    return None


def as_uid(uid: int | None, work: Callable[[], None]) -> None:
    """Run a test's body under another uid, in a process of its own."""
    child = fork(lambda _say: work(), uid)
    result = child.wait(100.0)
    said = "\n".join(child.lines())
    assert result == "exit 0", said


@contextmanager
def ground(uid: int | None) -> Iterator[Path]:
    """A directory that ``uid`` owns and reaches (pytest's own are root's)."""
    with tempfile.TemporaryDirectory(prefix="fs test ") as name:
        base = Path(name) / "it's"
        base.mkdir()
        if uid is not None:
            os.chown(name, uid, uid)
            os.chown(base, uid, uid)
        yield base


def uids() -> list[int | None]:
    """As whom to run: as root seals go by removal, as anybody else by mode."""
    return [None, NOBODY] if os.geteuid() == 0 else [None]
