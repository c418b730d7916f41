"""Is anything of an earlier attempt left on this node, and is there a port for the next one.

"Ours" is proven, never guessed: below our warden or our ranks, or marked by our tag in our own job; a shared-memory
file only if its name holds the pid of a dead process of ours, or if a process of ours had it mapped under one of the
names that NCCL gives. What is not provably ours is left alone.
"""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from gangrun.agent.ranks.environment import TAG
from gangrun.node.processes import Proc, descendants, is_alive, process_table, read_proc

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - named by torch and NCCL, not by us
PORT_FIRST, PORT_LAST = 20_000, 65_535
PORT_TRIES_COUNT = 200
_TORCH_FILE = re.compile(r"torch_(?P<pid>\d+)_")
_MAPPED = re.compile(rb"/dev/shm/((?:torch_\d+_|nccl-)\S+)$", re.MULTILINE)


class Family:
    """Knows which processes of this node are ranks, or come from ranks, of any attempt of this run."""

    def __init__(self, tag_prefix: str, job: str, warden_pid: int, spared: Callable[[], Collection[int]]) -> None:
        self._tag_prefix = tag_prefix.encode()
        self._job = job.encode()  # SLURM_JOB_ID: a job that a rank submitted carries our tag too, and must live
        self._warden_pid = warden_pid  # 0: there is none, orphans go to whoever takes them
        self._spared = spared

    def find(self, roots: Iterable[Proc]) -> list[Proc]:
        """All live processes of ours, the live ones of ``roots`` included."""
        table = process_table()
        live = {p.pid: p for root in roots if (p := table.get(root.pid)) and p.start_ticks == root.start_ticks}
        found = {pid: proc for pid, proc in live.items() if is_alive(proc)}
        found |= {proc.pid: proc for proc in descendants(live, table)}
        spared = {os.getpid(), *self._spared()}
        if self._warden_pid:
            found |= {proc.pid: proc for proc in descendants([self._warden_pid], table, spared)}
        tagged = [p for p in table.values() if p.pid not in found and p.pid not in spared and self._is_tagged(p)]
        found |= {proc.pid: proc for proc in tagged if is_alive(proc)}
        return list(found.values())

    def _is_tagged(self, proc: Proc) -> bool:
        try:
            with Path(f"/proc/{proc.pid}/environ").open("rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            return False
        if not any(variable.startswith(TAG.encode() + b"=" + self._tag_prefix) for variable in variables):
            return False
        job = next((v.partition(b"=")[2] for v in variables if v.startswith(b"SLURM_JOB_ID=")), b"")
        return job == self._job


def is_torch_cleaner(proc: Proc) -> bool:
    """Whether it is torch's manager of named shared memory, which cleans two seconds after its last client left."""
    return proc.name.startswith("torch_shm_manag")


def is_cleaner(proc: Proc) -> bool:
    """Whether it only waits for the others' end to unlink the shared memory they left, which it alone knows."""
    if is_torch_cleaner(proc):
        return True
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{proc.pid}/cmdline").read_bytes()
    except OSError:
        return False


def mapped_segments(procs: Iterable[Proc]) -> set[str]:
    """Names in /dev/shm of torch's or NCCL's kind that these processes have mapped."""
    names: set[str] = set()
    for proc in procs:
        try:
            maps = Path(f"/proc/{proc.pid}/maps").read_bytes()
        except OSError:
            continue
        names |= {os.fsdecode(name) for name in _MAPPED.findall(maps)}
    return names


def strange_segments(known_pids: Collection[int], since_wall: float) -> bool:
    """Whether torch's files lie there whose dead makers nobody saw, made since then: only torch's own cleaner, if it
    lives, can say whose they are.
    """
    for entry in SHARED_MEMORY.glob("torch_*"):
        match = _TORCH_FILE.match(entry.name)
        if not match or int(match["pid"]) in known_pids:
            continue
        try:
            status = entry.lstat()
        except OSError:
            continue
        maker = read_proc(int(match["pid"]))
        if status.st_uid == os.getuid() and status.st_ctime >= since_wall and not (maker and is_alive(maker)):
            return True
    return False


def remove_segments(dead_pids: Collection[int], seen: Collection[str]) -> list[str]:
    """Unlink what dead processes of ours left in /dev/shm; the names that could not be."""
    left: list[str] = []
    try:
        entries = list(SHARED_MEMORY.iterdir())
    except OSError:
        return left
    for entry in entries:
        match = _TORCH_FILE.match(entry.name)
        pid = int(match["pid"]) if match else 0
        if not (pid in dead_pids or (entry.name in seen and not pid)):
            continue
        owner = read_proc(pid) if pid else None
        if owner is not None and is_alive(owner):
            continue
        try:
            if entry.lstat().st_uid == os.getuid():
                entry.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{entry}: {error.strerror}")
    return left


def ephemeral_range() -> tuple[int, int]:
    """The ports that the kernel gives out by itself."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def port_is_free(port: int) -> bool:
    """Whether rank 0's store could listen there: bound as it binds, on every address."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in _NO_IPV6:
                continue
            return False
    return True


_NO_IPV6 = frozenset({97, 99})  # EAFNOSUPPORT, EADDRNOTAVAIL


def free_port(avoid: Collection[int], draw: random.Random) -> int:
    """A port outside the ephemeral range, where no outgoing connection can take it before rank 0 binds; 0 if none."""
    low, high = ephemeral_range()
    for _ in range(PORT_TRIES_COUNT):
        port = draw.randint(PORT_FIRST, PORT_LAST)
        if low <= port <= high or port in avoid:
            continue
        if port_is_free(port):
            return port
    return 0


def describe(procs: Iterable[Proc]) -> tuple[str, ...]:
    """In words, for people."""
    return tuple(sorted(str(proc) for proc in procs))


def job_of(environment: Mapping[str, str]) -> str:
    """The job that this node's ranks belong to, "" outside Slurm."""
    return environment.get("SLURM_JOB_ID", "")
