"""The wardens of one box, one per local host.

Each is a child in a session of its own, so that a terminal's Ctrl-C reaches only us, and holds the end of a pipe: when
this process dies, however it dies, the pipe breaks and every warden kills what it has. As a subreaper this process also
inherits what a killed warden leaves behind, and sweeps it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gangrun.node import processes, warden

KEPT_MAX_COUNT = 1000  # pieces of words that wait for the disk
StartsWarden = Callable[[], subprocess.Popen[bytes]]
OnHost = Callable[[str, StartsWarden], subprocess.Popen[bytes]]


def in_place(node: str, start: StartsWarden) -> subprocess.Popen[bytes]:
    """All hosts have the namespaces of this process."""
    del node
    return start()


@dataclass(frozen=True, slots=True)
class Exit:
    """A warden that ended; ``code`` is negative for a signal."""

    node: str
    code: int


@dataclass(slots=True)
class LocalHosts:
    """Starts, watches and signals the wardens. ``specs``: node -> the warden's spec without its life line."""

    python: str
    specs: Mapping[str, Mapping[str, object]]
    environment: Mapping[str, str]
    logs: Mapping[str, Path]
    hear: Callable[[str], bool] = lambda line: True  # each line they say; whether to keep it. Called from threads
    spared: tuple[int, ...] = ()  # other children of this process
    on_host: OnHost = in_place  # has each warden started in the namespaces of its host
    _pumps: list[threading.Thread] = field(default_factory=list)
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _life_read: int = -1
    _life_write: int = -1

    def open(self) -> None:
        """Become the parent of last resort and make the life line."""
        processes.become_subreaper()
        self._life_read, self._life_write = os.pipe()

    def start(self, node: str, previous_died: str = "") -> None:
        """Start the warden of one host; ``previous_died``: how the agent before ended, if there was one."""
        spec = {**self.specs[node], "life_fd": self._life_read, "previous_died": previous_died}
        words_read, words_write = os.pipe()
        os.set_blocking(words_write, False)  # whoever speaks must not wait for us, nor for our disk

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                warden.argv(self.python, spec),
                stdin=subprocess.DEVNULL,
                stdout=words_write,
                stderr=words_write,
                env=dict(self.environment),
                pass_fds=(self._life_read,),
                start_new_session=True,
            )

        try:
            self._children[node] = self.on_host(node, start)
        finally:
            os.close(words_write)
        pump = threading.Thread(target=self._pump, args=(words_read, self.logs[node]), name="words", daemon=True)
        self._pumps.append(pump)
        pump.start()

    def _pump(self, words: int, log: Path) -> None:
        """Until nobody is left to speak. What is said is heard at once; keeping it may wait for the disk, elsewhere."""
        kept: queue.Queue[bytes] = queue.Queue(KEPT_MAX_COUNT)
        keeper = threading.Thread(target=_keep, args=(kept, log), name="kept words", daemon=True)
        keeper.start()
        rest = b""
        with os.fdopen(words, "rb", buffering=0) as pipe:
            while data := pipe.read(65536):
                *lines, rest = (rest + data).split(b"\n")
                keep = [line + b"\n" for line in lines if self.hear(line.decode("utf-8", "replace"))]
                with contextlib.suppress(queue.Full):  # the disk stands still for long: these words are lost
                    if keep:
                        kept.put_nowait(b"".join(keep))
        if rest:
            kept.put(rest)
        kept.put(b"")
        keeper.join()

    def ended(self) -> list[Exit]:
        """Wardens that ended since the last call; what they left behind is swept first."""
        found = [Exit(node, code) for node, child in self._children.items() if (code := child.poll()) is not None]
        for gone in found:
            del self._children[gone.node]
        if found:
            self.sweep()
        return found

    def running(self) -> tuple[str, ...]:
        """Hosts whose warden lives."""
        return tuple(self._children)

    def signal(self, signum: int = signal.SIGTERM) -> None:
        """Tell every warden."""
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signum)

    def sweep(self) -> list[str]:
        """Kill processes below us that belong to no living warden; returns what would not die."""
        mine = os.getpid()
        keep = [*self.spared, *(child.pid for child in self._children.values())]
        left = processes.kill_until_none(
            lambda: processes.descendants([mine], processes.process_table(), keep), 5.0, self._reap_orphans
        )
        return [str(proc) for proc in left]

    def _reap_orphans(self) -> None:
        known = {*self.spared, *(child.pid for child in self._children.values())}
        for proc in list(processes.process_table().values()):
            if proc.parent == os.getpid() and proc.pid not in known and proc.state == "Z":
                try:
                    os.waitpid(proc.pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def close(self) -> None:
        """Break the life line; whatever still lives dies by it."""
        for fd in (self._life_read, self._life_write):
            if fd >= 0:
                os.close(fd)
        self._life_read = self._life_write = -1

    def drain(self, within_s: float) -> None:
        """Let the last words of those who have gone be kept."""
        for pump in self._pumps:
            pump.join(within_s)


def _keep(words: queue.Queue[bytes], log: Path) -> None:
    while data := words.get():
        with contextlib.suppress(OSError):  # full or read-only: these words are lost
            _append(log, data)


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
