"""One standby for each rank of this node: an interpreter that has imported the rank's modules and waits to become it.

How one lives: ranks write down which installed modules they import (``node/boot_standby.py``). Once that has been quiet
for some seconds, a standby is started for each rank, one after the other, so that imports take one core at most. It
says that it is ready, and waits on a socket. A launch hands it the command line and the environment of the new rank.

A node that holds no ranks learns from another one (``SharedImports``), so that a spare is as warm as the rest.

All is done in the agent's main thread: a standby gets SIGKILL when the thread that forked it ends. A standby is a
descendant of the warden, which kills it with the ranks when the lease ends. It is no rank: what looks for leftovers of
an attempt spares ``pids``. From ``take`` on it is a rank and nothing else.

Nothing here can fail a launch: without a standby that suits, ``take`` returns None and the rank starts cold.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import msgspec

from gangrun.agent.ranks.environment import TAG, is_set_at_launch
from gangrun.node.boot_signals import SIGNALS_FILE, STACK_FILE
from gangrun.node.boot_standby import FDS, MESSAGE_MAX_BYTES, READY, REFUSED
from gangrun.node.processes import Proc, is_alive, read_proc

TEND_EVERY_S = 0.5  # they are heard and replaced
QUIET_S = 10.0  # a script that has imported nothing new for this long has begun to train; one library may take 5 s
QUIETER_S = 30.0  # what was imported later is worth a new standby only once that is over
WARM_WITHIN_S = 300.0  # one whose imports take longer hangs
FREE_MIN_SHARE = 0.10  # of the node's memory, or of the job's limit: with less free there are no standbys
MEMORY_EVERY_S = 5.0
AGAIN_AFTER_S, AGAIN_AFTER_MAX_S = 1.0, 300.0  # standbys that die are replaced ever more slowly
CLOSE_WITHIN_S = 0.5
LIST_MAX_BYTES = 16 * 1024 * 1024
FETCH_EVERY_S = 10.0
ImportList = list[tuple[str, str, dict[str, str]]]  # of one rank: module, file of its package, variables changed before


class Child(Protocol):
    """What is needed of a ``Popen``."""

    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its code if it has ended."""

    def wait(self) -> int:
        """Block until it ends; its code, negative for a signal."""

    def kill(self) -> None:
        """SIGKILL."""


Spawn = Callable[[list[str], Mapping[str, str], tuple[int, ...]], Child]


@dataclass(frozen=True, slots=True)
class WarmRank:
    """A rank that is to have a standby: a live one, or one that may come to this node."""

    argv: list[str]
    environment: Mapping[str, str]
    imports: Path | None  # where it writes down what it imports; None: it does not live
    tag: str


@dataclass(slots=True)
class _Standby:
    child: Child
    proc: Proc
    link: socket.socket
    environment: Mapping[str, str]
    modules_count: int
    started_at: float
    ready: bool = False
    memory_bytes: int = 0  # as it was when it got ready: it does nothing since


@dataclass(slots=True)
class _Learnt:
    """What one rank imports, and how it went with its standbys."""

    source: Path = Path()
    read_bytes: int = 0
    modules: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    usable_count: int | None = None  # a standby refused the one after these
    changed_at: float = 0.0
    failures_count: int = 0
    again_at: float = 0.0

    def usable(self) -> ImportList:
        """As a standby is told."""
        return [(name, *rest) for name, rest in self.modules.items()][: self.usable_count]

    def read(self, source: Path, now: float) -> None:
        """Take in whole lines that the rank has written since."""
        if source != self.source:
            self.source, self.read_bytes, self.changed_at = source, 0, now
        try:
            with source.open("rb") as file:
                file.seek(self.read_bytes)
                data = file.read(LIST_MAX_BYTES)
        except OSError:
            return  # it has imported nothing yet
        data = data[: data.rfind(b"\n") + 1]
        self.read_bytes += len(data)
        for line in data.splitlines():
            try:
                name, origin, variables = json.loads(line)
            except ValueError:
                continue  # the script has hit our file: without this line it is only slower
            if name not in self.modules:
                self.modules[name] = (origin, variables)
                self.changed_at = now


class Standbys:
    """All standbys of this node."""

    def __init__(
        self, node: str, spawn: Spawn, now: Callable[[], float], say: Callable[[str], None], root: Path = Path("/")
    ) -> None:
        self.pids: tuple[int, ...] = ()  # read by other threads: replaced, never changed
        self._node, self._spawn, self._now, self._say, self._root = node, spawn, now, say, root
        self._standbys: dict[int, _Standby] = {}  # by local rank
        self._dying: list[_Standby] = []
        self._learnt: dict[int, _Learnt] = {}
        self._told: list[tuple[int, int | None]] = []
        self._memory_at, self._is_tight = float("-inf"), False

    def sizes_bytes(self) -> dict[int, int]:
        """Memory that no other process shares with it, by local rank; ready ones only."""
        return {local_rank: one.memory_bytes for local_rank, one in self._standbys.items() if one.ready}

    def tend(self, wanted: Mapping[int, WarmRank]) -> None:
        """Hear them, replace what is dead or stale, start what is missing. ``wanted``: live ranks by local rank."""
        now = self._now()
        self._reap()
        for local_rank, one in list(self._standbys.items()):
            self._hear(local_rank, one, now)
        for local_rank, rank in wanted.items():
            learnt = self._learnt.setdefault(local_rank, _Learnt())
            if rank.imports is not None:
                learnt.read(rank.imports, now)
        if self._is_memory_tight(now):
            self._drop(list(self._standbys))
            return
        self._drop([local_rank for local_rank in self._standbys if self._is_outgrown(local_rank, now)])
        if all(one.ready for one in self._standbys.values()):
            missing = [n for n in wanted if n not in self._standbys and self._may_start(n, now)]
            for one_at_a_time in missing[:1]:
                self._start(one_at_a_time, wanted[one_at_a_time], now)

    def news(self) -> list[ImportList]:
        """What each rank here imports, by local rank: once all are done with it, and only if it is new; [] else."""
        now, each = self._now(), [self._learnt[n] for n in sorted(self._learnt)]
        extent = [(len(one.modules), one.usable_count) for one in each]
        if extent == self._told or not all(one.usable() and now - one.changed_at >= QUIET_S for one in each):
            return []
        self._told = extent
        return [one.usable() for one in each]

    def teach(self, lists: list[ImportList]) -> None:
        """What ranks import elsewhere. Standbys that have imported anything else are dropped."""
        self._drop(list(self._standbys))
        named = [{name: (origin, was) for name, origin, was in modules} for modules in lists]
        self._learnt = {local_rank: _Learnt(modules=modules) for local_rank, modules in enumerate(named)}

    def take(self, local_rank: int, argv: list[str], environment: Mapping[str, str], directory: str) -> Child | None:
        """The process that becomes this rank; None if it must start cold."""
        one = self._standbys.get(local_rank)
        if one is None:
            return None
        names = {*environment, *one.environment}
        changed = {name for name in names if environment.get(name) != one.environment.get(name)}
        now = read_proc(one.proc.pid)
        can_run = now is not None and is_alive(now) and now.state not in "TtD"
        self._hear(local_rank, one, self._now())
        if not (one.ready and can_run and all(map(is_set_at_launch, changed))):
            self._drop([local_rank])
            return None
        del self._standbys[local_rank]
        self._note_pids()  # before it may run a line of the script: who looks for ranks must find it
        wish = {"argv": argv, "environment": dict(environment), "directory": directory}
        try:
            with one.link, _in_memory(json.dumps(wish).encode()) as fd:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
                one.link.sendmsg([b"go"], [rights])
        except OSError:
            self._standbys[local_rank] = one
            self._drop([local_rank])
            return None
        return one.child

    def close(self) -> None:
        """Kill all, and collect those that end at once."""
        self._drop(list(self._standbys))
        until, pause = self._now() + CLOSE_WITHIN_S, threading.Event()
        while self._dying and self._now() < until:
            pause.wait(0.002)
            self._reap()

    # ---- each one ----------------------------------------------------------------------------------------------------

    def _start(self, local_rank: int, rank: WarmRank, now: float) -> None:
        modules = self._learnt[local_rank].usable()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, _in_memory(json.dumps(modules).encode()) as fd:
                fds = (theirs.fileno(), fd)
                environment = {
                    **rank.environment, STACK_FILE: os.devnull, SIGNALS_FILE: os.devnull, TAG: rank.tag,
                    FDS: ",".join(map(str, fds)),
                }  # fmt: skip
                child = self._spawn(rank.argv, environment, fds)
        except OSError:
            ours.close()
            self._failed(local_rank)
            return
        proc = read_proc(child.pid)
        assert proc is not None, "a child that nobody has waited for is in the table"
        self._standbys[local_rank] = _Standby(child, proc, ours, rank.environment, len(modules), now)
        self._note_pids()

    def _hear(self, local_rank: int, one: _Standby, now: float) -> None:
        try:
            word = one.link.recv(MESSAGE_MAX_BYTES)
        except BlockingIOError:
            if not one.ready and now - one.started_at > WARM_WITHIN_S:
                self._failed(local_rank)
                self._drop([local_rank])
            return
        except OSError:
            word = b""
        if word.startswith(READY):
            one.ready, one.memory_bytes = True, _private_bytes(one.proc.pid)
            self._learnt[local_rank].failures_count = 0
            return
        if word.startswith(REFUSED):
            self._learnt[local_rank].usable_count = int(word.split()[1])
        else:  # it is gone
            self._failed(local_rank)
        self._drop([local_rank])

    def _is_outgrown(self, local_rank: int, now: float) -> bool:
        learnt = self._learnt[local_rank]
        known_count = len(learnt.usable())
        return known_count > self._standbys[local_rank].modules_count and now - learnt.changed_at > QUIETER_S

    def _may_start(self, local_rank: int, now: float) -> bool:
        learnt = self._learnt[local_rank]
        return bool(learnt.usable()) and now >= learnt.again_at and now - learnt.changed_at >= QUIET_S

    def _failed(self, local_rank: int) -> None:
        learnt = self._learnt[local_rank]
        learnt.again_at = self._now() + min(AGAIN_AFTER_S * 4.0**learnt.failures_count, AGAIN_AFTER_MAX_S)
        learnt.failures_count = min(learnt.failures_count + 1, 10)

    def _drop(self, local_ranks: list[int]) -> None:
        for local_rank in local_ranks:
            one = self._standbys.pop(local_rank, None)
            if one is not None:
                one.link.close()
                one.child.kill()
                for pipe in (one.child.stdout, one.child.stderr):
                    if pipe is not None:
                        pipe.close()
                self._dying.append(one)
        self._reap()

    def _reap(self) -> None:
        self._dying = [one for one in self._dying if one.child.poll() is None]
        self._note_pids()

    def _note_pids(self) -> None:
        self.pids = tuple(one.proc.pid for one in (*self._standbys.values(), *self._dying))

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _is_memory_tight(self, now: float) -> bool:
        if now - self._memory_at < MEMORY_EVERY_S:
            return self._is_tight
        self._memory_at = now
        share = free_memory_share(self._root)
        was_tight, self._is_tight = self._is_tight, share < FREE_MIN_SHARE * (2.0 if self._is_tight else 1.0)
        if self._is_tight and not was_tight:
            self._say(
                f"{share:.0%} of the memory on {self._node} is free: no standby is kept, and a restart imports all"
                f" modules again, until {2 * FREE_MIN_SHARE:.0%} are free"
            )
        return self._is_tight


class SharedImports:
    """What ranks import, told from node to node by a file in the run directory.

    Whoever reads or writes it is a thread of its own, as a file server may stand still. The file is a hint: what is
    damaged or missing leaves a spare cold, and what does not suit a node is found out there when it is imported.
    """

    def __init__(self, path: Path) -> None:
        self.lists: list[ImportList] = []  # by local rank, as they were read last
        self._path = path
        self._busy = False
        self._fetch_at, self._seen = float("-inf"), (0, 0)

    def publish(self, lists: list[ImportList]) -> None:
        """Tell the others."""
        self._go(lambda: self._write(lists))

    def fetch(self, now: float) -> None:
        """Look what others told; ``lists`` has it some time later."""
        if now >= self._fetch_at:
            self._fetch_at = now + FETCH_EVERY_S
            self._go(self._read)

    def _go(self, what: Callable[[], None]) -> None:
        if self._busy:
            return

        def run() -> None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                what()
            self._busy = False

        self._busy = True
        threading.Thread(target=run, name="imports", daemon=True).start()

    def _write(self, lists: list[ImportList]) -> None:
        new = self._path.with_name(f"{self._path.name}.new-{os.getpid()}")
        try:
            new.write_bytes(msgspec.json.encode(lists))
            new.replace(self._path)
        except OSError:  # a full disk: what is half written helps nobody
            new.unlink(missing_ok=True)

    def _read(self) -> None:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self._seen:
                self.lists = msgspec.json.decode(file.read(LIST_MAX_BYTES), type=list[ImportList])
                self._seen = stamp


def free_memory_share(root: Path = Path("/")) -> float:
    """Free share of this node's memory, or of a cgroup's limit on the way to it, whichever is less; 1.0 if unknown."""
    return min([*_free_shares(root), 1.0])


def _free_shares(root: Path) -> Iterator[float]:
    known = _fields(root / "proc/meminfo")
    if known.get("MemTotal:"):
        yield known.get("MemAvailable:", 0) / known["MemTotal:"]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    inside = next((Path(line[3:].lstrip("/")) for line in lines if line.startswith("0::")), None)
    if inside is None:
        return
    for folder in (inside, *inside.parents):
        group = root / "sys/fs/cgroup" / folder
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit and used is not None:
            yield (limit - used + _fields(group / "memory.stat").get("inactive_file", 0)) / limit


def _fields(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _private_bytes(pid: int) -> int:
    known = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return 1024 * (known.get("Private_Clean:", 0) + known.get("Private_Dirty:", 0))


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    """The descriptor of a file without a name that holds ``data``."""
    fd = os.memfd_create("gangrun-standby", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
