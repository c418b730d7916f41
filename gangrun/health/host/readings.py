"""The host around the GPUs: memory, processes, clock, limits, kernel.

Everything here is a small file or a system call that does not block. What may block, names and file systems, is asked
by children: ``names`` and ``storage``.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from gangrun.health.framework.check import Facts, Value
from gangrun.health.framework.files import number_in, text_of
from gangrun.health.framework.rounds import Surroundings

NODE = "node"
PROCESSES_MAX_COUNT = 50_000
MEMINFO_MAX_BYTES = 16384
STA_UNSYNC = 0x40
VMSTAT_MAX_BYTES = 65536


def read(around: Surroundings) -> Facts:
    """One place, ``node``, and one for each memory controller that counts its errors."""
    root = around.root
    values: dict[str, Value] = {}
    missing: dict[str, str] = {}
    _memory(root, values, missing)
    _processes(root, values, missing)
    _kernel(root, values, missing)
    _shm(root, values, missing)
    _limits(values)
    _clock(values, missing)
    controllers = _memory_controllers(root)
    if not controllers:
        missing["ue_count"] = "the kernel counts no memory errors here (no EDAC driver)"
    return Facts({NODE: values, **controllers}, {NODE: missing})


def _memory(root: Path, values: dict[str, Value], missing: dict[str, str]) -> None:
    sizes = {}
    for line in text_of(root / "proc/meminfo", MEMINFO_MAX_BYTES).splitlines():
        name, _, rest = line.partition(":")
        amount = rest.split()[:1]
        if amount and amount[0].isdigit():
            sizes[name] = int(amount[0]) * 1024
    if sizes.get("MemTotal") and "MemAvailable" in sizes:
        values["memory_bytes"] = sizes["MemTotal"]
        values["available_bytes"] = sizes["MemAvailable"]
    else:
        missing["available_bytes"] = "/proc/meminfo does not say"


def _processes(root: Path, values: dict[str, Value], missing: dict[str, str]) -> None:
    words = text_of(root / "proc/loadavg").split()
    try:
        values["load"] = float(words[1])
    except (IndexError, ValueError):
        missing["load"] = "/proc/loadavg does not say"
    values["cpus"] = len(os.sched_getaffinity(0)) if root == Path("/") else _cpus_online(root)
    waiting, zombies, example = 0, 0, ""
    try:
        numbers = [name for name in os.listdir(root / "proc") if name.isdigit()][:PROCESSES_MAX_COUNT]
    except OSError:
        missing["waiting"] = "/proc cannot be listed"
        return
    for number in numbers:
        stat = text_of(root / "proc" / number / "stat")
        name, _, rest = stat.rpartition(")")
        state = rest.strip()[:1]
        zombies += state == "Z"
        if state == "D":
            waiting += 1
            example = f"{name.partition('(')[2]} (pid {number})"
    values |= {"waiting": waiting, "zombies": zombies}
    if example:
        values["waiting_example"] = example


def _cpus_online(root: Path) -> int:
    count = 0
    for part in text_of(root / "sys/devices/system/cpu/online").split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            count += int(last or first) - int(first) + 1
    return max(1, count)


def _kernel(root: Path, values: dict[str, Value], missing: dict[str, str]) -> None:
    for name, path in (("tainted", "proc/sys/kernel/tainted"), ("uptime_s", "proc/uptime")):
        words = text_of(root / path).split()[:1]
        try:
            values[name] = float(words[0])
        except (IndexError, ValueError):
            missing[name] = f"/{path} does not say"
    _room(root, values)
    for line in text_of(root / "proc/vmstat", VMSTAT_MAX_BYTES).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.isdigit():
            values["oom_kills"] = int(number)


def _room(root: Path, values: dict[str, Value]) -> None:
    """How many tasks and open files there are on the whole node, and how many there may be."""
    tasks = text_of(root / "proc/loadavg").split()[3:4]
    now = tasks[0].partition("/")[2] if tasks else ""
    most = [number_in(root / "proc/sys/kernel" / name) for name in ("pid_max", "threads-max")]
    known = [one for one in most if one]
    if now.isdigit() and known:
        values |= {"tasks": int(now), "tasks_max": min(known)}
    files = text_of(root / "proc/sys/fs/file-nr").split()
    if len(files) == 3 and all(word.isdigit() for word in files) and int(files[2]):
        values |= {"open_files": int(files[0]), "open_files_max": int(files[2])}


def _memory_controllers(root: Path) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    try:
        paths = sorted((root / "sys/devices/system/edac/mc").glob("mc[0-9]*"))
    except OSError:
        return {}
    for path in paths:
        counts = {name: number_in(path / name) for name in ("ue_count", "ce_count")}
        kept: dict[str, Value] = {name: count for name, count in counts.items() if count is not None}
        if kept:
            found[f"memory controller {path.name}"] = kept
    return found


def _shm(root: Path, values: dict[str, Value], missing: dict[str, str]) -> None:
    try:
        room = os.statvfs(root / "dev/shm")
    except OSError as error:
        missing["shm_bytes"] = f"shared memory: {error.strerror}"
        return
    values["shm_bytes"] = room.f_blocks * room.f_frsize
    values["shm_free_bytes"] = room.f_bavail * room.f_frsize


def _limits(values: dict[str, Value]) -> None:
    """Of this process, and so of what it starts; -1: no limit."""
    for name, what in (("files", resource.RLIMIT_NOFILE), ("locked_bytes", resource.RLIMIT_MEMLOCK)):
        hard = resource.getrlimit(what)[1]
        values[name] = -1 if hard == resource.RLIM_INFINITY else hard


class _Timex(ctypes.Structure):
    """``struct timex`` of the kernel on 64-bit machines, as far as it is read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def _clock(values: dict[str, Value], missing: dict[str, str]) -> None:
    """What the kernel itself thinks of its clock; asking changes nothing (``modes`` 0) and needs no privilege."""
    asked = _Timex()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        answer = -1
    if answer < 0:
        missing["clock_error_s"] = "the kernel does not say how good its clock is"
        return
    values["clock_synchronised"] = int(not asked.status & STA_UNSYNC)
    values["clock_error_s"] = asked.maxerror / 1e6
