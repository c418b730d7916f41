"""The host around the GPUs: memory, processes, clock, limits, kernel, PCIe errors, names.

Everything here is a small file or a system call that does not block. What may block, names and file systems, is asked
by children. PCIe errors are those that the kernel counts (AER) of GPUs, network and storage cards and the bridges above
them. Pressure is the time in which the host stood still for want of something (PSI), if the kernel has it.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangrun.health.framework.bounds import Bound, BoundMeasure, Breaks, Limit, Rows, ShareOf
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Needs,
    NodeFacts,
    Scope,
    Sticky,
    Value,
    growth,
    span,
)  # fmt: skip
from gangrun.health.framework.readings import folders_in, number_in, text_of
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings

NODE = "node"
PROCESSES_MAX_COUNT = 50_000
MEMINFO_MAX_BYTES = 16384
STA_UNSYNC = 0x40
VMSTAT_MAX_BYTES = 65536
PERCENT = 100
SHM = "/dev/shm"  # noqa: S108 - its name, for people
GB = 1e9


# ---- reading the host ------------------------------------------------------------------------------------------------


def read(around: HealthSurroundings) -> NodeFacts:
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
    return NodeFacts({NODE: values, **controllers}, {NODE: missing})


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
    _read_room(root, values)
    for line in text_of(root / "proc/vmstat", VMSTAT_MAX_BYTES).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.isdigit():
            values["oom_kills"] = int(number)


def _read_room(root: Path, values: dict[str, Value]) -> None:
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


# ---- judging the host ------------------------------------------------------------------------------------------------

UNMEASURED = "it was not measured"
ROOM_UNKNOWN = "the kernel does not say how many processes there may be"
HOST = CheckSubject(Scope.NODE, CauseClass.EITHER, Needs.ADMIN)
RESOLVED = replace(
    HOST,
    places=lambda look, name: tuple(look.facts.values) if name else (),
    why_not=lambda look, name: "no name was asked for",
)


def _of_host(name: str, limit: Limit, says: str, means: str, breaks: Breaks = Breaks.ABOVE, **more: Any) -> Bound:
    return Bound(name, limit, more.pop("severity", WARN), says, means, breaks=breaks, **more)


MEMORY = _of_host("available_bytes", ShareOf("memory_bytes", "memory_available_share"), "available memory",
                  "The kernel may kill ranks for it", Breaks.BELOW)  # fmt: skip
MODULE = CheckSubject(Scope.NODE, CauseClass.HARDWARE, Needs.RMA, Sticky.BOOT)
MEMORY_ERRORS = (
    Bound("ue_count", 0, FAIL, "uncorrected memory errors", "Data was lost: a memory module is failing",
          BoundMeasure.GROWTH),
    Bound("ce_count", "edac_corrected_per_min", WARN, "corrected memory errors",
          "A memory module may be failing", BoundMeasure.RATE, per_s=60.0),
)  # fmt: skip
SHARED_MEMORY = (
    _of_host("shm_bytes", "shm_min_bytes", f"size of {SHM}", "NCCL and data loaders will fail there", Breaks.BELOW,
             severity=FAIL, cause=CauseClass.CONFIG),
    _of_host("shm_free_bytes", ShareOf("shm_bytes", "shm_free_share"), f"free space in {SHM}",
             "Remove what dead programs left there", Breaks.BELOW),
)  # fmt: skip
LOAD = _of_host("load", ShareOf("cpus", "load_per_cpu"), "load over 5 minutes on {cpus} CPUs",
                "Something else works on this node, too")  # fmt: skip
PROCESSES = _of_host(  # once is any disk at work
    "waiting", "waiting_processes_max", "number of processes that wait in the kernel (state D)",
    "One of them is {waiting_example}", twice=True,
)  # fmt: skip
FOREIGN_TIMES = "Times in logs will not fit those of other nodes"
CLOCK = (
    _of_host("clock_synchronised", 1, "nothing sets the clock (no NTP or PTP)", FOREIGN_TIMES, Breaks.BELOW,
             measure=BoundMeasure.FLAG),
    _of_host("clock_error_s", "clock_error_warn_s", "possible error of the clock", FOREIGN_TIMES),
)  # fmt: skip
FILES = _of_host(
    "files", "files_min", "number of files that a process may open", "Data loaders need more: raise `ulimit -Hn`",
    Breaks.BELOW, where=lambda now, place: (now.facts.number(place, "files") or 0.0) >= 0, cause=CauseClass.CONFIG,
)  # fmt: skip


def judge_limits(look: CheckLook) -> CheckOutcome:
    """May processes open enough files? Locked memory matters to RDMA only, and is told."""
    files, locked = look.number(NODE, "files"), look.number(NODE, "locked_bytes")
    many = "any number of" if files is not None and files < 0 else "{files}"
    memory = "" if locked is None else f", {'all' if locked < 0 else f'{locked / GB:.2f} GB of'} memory lockable"
    return Rows((FILES,), lambda p: f">= {p.files_min} files", f"{many} files{memory}", of="files")(look)


def _room(name: str, words: str) -> tuple[Bound, Bound]:
    means = "Soon none can be added: find the program that leaks them"
    says = f"number of {words} on this node"
    return (
        _of_host(name, ShareOf(f"{name}_max", "room_used_fail"), says, means, Breaks.AT_LEAST, severity=FAIL,
                 cause=CauseClass.CONFIG),
        _of_host(name, ShareOf(f"{name}_max", "room_used_warn"), says, means, cause=CauseClass.CONFIG),
    )  # fmt: skip


ROOM = (*_room("tasks", "processes and threads"), *_room("open_files", "open files"))
ROOM_USED = "{used} of what the kernel allows"

# bits of /proc/sys/kernel/tainted that tell of a fault: (bit, words, is it fatal once new, whose it is)
TAINTS = (
    (4, "a machine check (MCE)", True, CauseClass.HARDWARE),
    (7, "a kernel oops", True, CauseClass.EITHER),
    (14, "a soft lockup", False, CauseClass.EITHER),
)


def judge_kernel(look: CheckLook) -> CheckOutcome:
    """Did the kernel note a fault of the machine? Older notes are told, new ones count."""
    new, grown = look.number(NODE, "tainted"), growth(look.now, look.before, NODE, "tainted")
    if new is None:
        return look.unknown("", "tainted")
    found, noted = [], []
    for bit, words, fatal, cause in TAINTS:
        if int(new) >> bit & 1:
            noted.append(words)
            fresh = grown if grown is not None and not int(grown.old) >> bit & 1 else None
            when = f"in the last {span(fresh.over_s)}" if fresh else "some time since the boot"
            evidence = grown.evidence if grown is not None else new
            severity = FAIL if fresh and fatal else WARN
            found.append(look.found(severity, NODE, f"the kernel noted {words} {when}", evidence, cause=cause))
    return CheckOutcome(", ".join(noted) or "no fault noted", "none", tuple(found))


OOM_KILLS = Bound(  # a program's doing, and it explains a rank's end
    "oom_kills", 0, WARN, "processes killed by the kernel for want of memory", measure=BoundMeasure.GROWTH
)


# ---- names -----------------------------------------------------------------------------------------------------------

NAMES_WITHIN_S = 10.0


def read_names(around: HealthSurroundings) -> NodeFacts:
    """A child asks the resolver, which may wait for a dead server."""
    return around.probes.ask("names", around.peers, NAMES_WITHIN_S)


NAMES = (
    Bound("error", 0, FAIL, "the name does not resolve here", measure=BoundMeasure.WORD, cause=CauseClass.CONFIG),
    Bound("resolve_s", "names_within_s", WARN, "time to resolve the name", "A name server does not answer"),
)


# ---- the bus, and pressure -------------------------------------------------------------------------------------------

CLASSES = ("0x01", "0x02", "0x03", "0x0604")  # storage, network, display, bridge to PCIe
COUNTERS = (("fatal", "TOTAL_ERR_FATAL"), ("nonfatal", "TOTAL_ERR_NONFATAL"))
DEVICES_MAX_COUNT = 512
AER_MAX_BYTES = 2048
WAITED = {"memory": "memory", "io": "disks or file servers"}  # kinds of pressure
STAT_MAX_BYTES = 1 << 18
STEAL, TICKS_PER_S = 8, os.sysconf("SC_CLK_TCK")  # field of a line of /proc/stat, behind the CPU's name
STOLEN_SHARE = 0.1
_FULL = re.compile(r"^full avg10=\S+ avg60=(\d{1,3}(?:\.\d+)?)", re.MULTILINE)


def read_bus(around: HealthSurroundings) -> NodeFacts:
    """A place for each device that counts its errors, and ``node`` for pressure."""
    values: dict[str, dict[str, Value]] = {NODE: {}}
    missing: dict[str, dict[str, str]] = {NODE: {}}
    devices = folders_in(around.root / "sys/bus/pci/devices")
    for device in [one for one in devices if text_of(one / "class").startswith(CLASSES)][:DEVICES_MAX_COUNT]:
        counts: dict[str, Value] = {}
        for name, total in COUNTERS:
            text = text_of(device / f"aer_dev_{name}", AER_MAX_BYTES)
            if match := re.search(rf"^{total} (\d{{1,18}})$", text, re.MULTILINE):
                counts[name] = int(match[1])
        if counts:
            values[f"pci {device.name}"] = counts
    if len(values) == 1:
        missing[NODE]["fatal"] = "the kernel counts no PCIe errors here, or users may not read them"
    for what in WAITED:
        if match := _FULL.search(text_of(around.root / "proc/pressure" / what)):
            values[NODE][f"{what}_wait_share"] = float(match[1]) / 100
        else:
            missing[NODE][f"{what}_wait_share"] = "the kernel does not measure pressure (PSI)"
    if (stolen_ns := _stolen_ns(text_of(around.root / "proc/stat", STAT_MAX_BYTES))) is not None:
        values[NODE]["stolen_ns"] = stolen_ns
    else:
        missing[NODE]["stolen_ns"] = "/proc/stat does not say"
    return NodeFacts(values, missing)


def _stolen_ns(stat: str) -> int | None:
    """CPU time that the hypervisor gave to other machines, as a mean of all CPUs."""
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    cpus_count = sum(words[0] != "cpu" for words in lines)
    ticks = next((words[STEAL] for words in lines if words[0] == "cpu" and len(words) > STEAL), "")
    return int(ticks) * 10**9 // TICKS_PER_S // cpus_count if ticks.isdigit() and cpus_count else None


BUS = CheckSubject(
    Scope.NODE,
    CauseClass.HARDWARE,
    Needs.ADMIN,
    Sticky.BOOT,
    why_not=lambda look, name: look.facts.why_missing(name) or "no device counts them",
)
PCIE_ERRORS = (  # what the bus mended itself is left to replays
    Bound("fatal", 0, FAIL, "fatal PCIe errors", measure=BoundMeasure.GROWTH, needs=Needs.REBOOT),
    Bound("nonfatal", 0, WARN, "nonfatal PCIe errors", measure=BoundMeasure.GROWTH),
)
PRESSURE = tuple(
    Bound(f"{what}_wait_share", "pressure_share", WARN,
          f"time of the last minute in which all processes waited for {words}", "Ranks are slowed down",
          needs=Needs.NONE)
    for what, words in WAITED.items()
)  # fmt: skip
STOLEN = Bound(
    "stolen_ns", STOLEN_SHARE, WARN, "the hypervisor gave the CPUs to other machines", "Ranks are slowed down",
    BoundMeasure.SHARE_OF_TIME, needs=Needs.NONE,
)  # fmt: skip
KERNEL = CheckSubject(Scope.NODE, CauseClass.EITHER, Needs.REBOOT, Sticky.BOOT)
OOM = CheckSubject(Scope.NODE, CauseClass.APPLICATION, Needs.RESTART)
FAMILY = CheckFamily(
    "host",
    5.0,
    read,
    (
        Check("host_memory", "host", "memory is available",
              Rows((MEMORY,), lambda p: f">= {p.memory_available_share * PERCENT:.0f} % available",
                   "{available_bytes} of {memory_bytes} available", nobody=UNMEASURED), 300.0, HOST),
        Check("host_memory_errors", "host", "memory modules lose no bits",
              Rows(MEMORY_ERRORS, lambda p: f"0 new uncorrected, <= {p.edac_corrected_per_min:g}/min corrected",
                   "{total} new uncorrected", each=True), 300.0, MODULE),
        Check("host_shm", "host", f"{SHM} is there and has room",
              Rows(SHARED_MEMORY, lambda p: f">= {p.shm_min_bytes / GB:g} GB, {p.shm_free_share * PERCENT:.0f} % free",
                   "{shm_free_bytes} of {shm_bytes} free"), 300.0, HOST),
        Check("host_load", "host", "nobody else works here",
              Rows((LOAD,), lambda p: f"<= {p.load_per_cpu:g} for each CPU", "{load} on {cpus} CPUs"), 300.0, HOST),
        Check("host_processes", "host", "no processes hang in the kernel",
              Rows((PROCESSES,), lambda p: f"<= {p.waiting_processes_max} stuck", "{waiting} in state D"), 300.0, HOST),
        Check("host_clock", "host", "the clock is kept right",
              Rows(CLOCK, lambda p: f"error <= {p.clock_error_warn_s:g} s", "error {most}", of="clock_error_s"),
              300.0, HOST),
        Check("host_limits", "host", "processes may open enough files", judge_limits, 300.0, HOST),
        Check("host_room", "host", "processes and files can be added",
              Rows(ROOM, lambda p: f"<= {p.room_used_warn * 100:.0f} %, fail at {p.room_used_fail * 100:.0f} %",
                   ROOM_USED, each=True, nobody=ROOM_UNKNOWN), 300.0, HOST),
        Check("host_kernel", "host", "the kernel noted no fault", judge_kernel, 300.0, KERNEL),
        Check("host_oom", "host", "nothing was killed for want of memory",
              Rows((OOM_KILLS,), "0 new", "{total} new"), 60.0, OOM),
    ),
    counters=frozenset({"ue_count", "ce_count", "tainted"}),
)  # fmt: skip
BUS_FAMILY = CheckFamily(
    "bus",
    5.0,
    read_bus,
    (
        Check("host_pcie_errors", "bus", "the PCIe bus loses nothing",
              Rows(PCIE_ERRORS, "0 new fatal or nonfatal", "{bad} of {compared} counters", each=True), 60.0, BUS),
        Check("host_pressure", "bus", "the host does not stand still",
              Rows(PRESSURE, lambda p: f"<= {p.pressure_share * 100:.0f} % of a minute",
                   "memory {memory_wait_share}, io {io_wait_share}", each=True), 60.0, HOST),
        Check("host_steal", "bus", "the CPUs are this machine's own",
              Rows((STOLEN,), f"<= {STOLEN_SHARE * PERCENT:.0f} % of the time", "{most}"), 60.0, HOST),
    ),
    counters=frozenset({*(name for name, _ in COUNTERS), "stolen_ns"}),
)  # fmt: skip
NAMES_FAMILY = CheckFamily(
    "names",
    NAMES_WITHIN_S + 2.0,
    read_names,
    (
        Check("host_names", "names", "names of this host and its peers resolve",
              Rows(NAMES, lambda p: f"< {p.names_within_s:g} s", "{count} in {most}", of="resolve_s"), 300.0, RESOLVED),
    ),
)  # fmt: skip
