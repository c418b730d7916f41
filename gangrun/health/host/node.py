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
from pathlib import Path

from gangrun.health.framework.bounds import Bound, BoundMeasure, counters
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    FindingEvidence,
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


# ---- judging the host ------------------------------------------------------------------------------------------------

HOST = CheckSubject(Scope.NODE, CauseClass.EITHER, Needs.ADMIN)


def judge_memory(look: CheckLook) -> CheckOutcome:
    """Is there memory left?"""
    total, free = look.number(NODE, "memory_bytes"), look.number(NODE, "available_bytes")
    limit = f">= {look.policy.memory_available_share * PERCENT:.0f} % available"
    if total is None or free is None or total <= 0:
        return _unmeasured(look, "available_bytes", limit)
    shown = f"{free / GB:.1f} of {total / GB:.1f} GB available"
    sentence = f"only {free / GB:.1f} GB of memory are available of {total / GB:.1f} GB: ranks may be killed for it"
    return _one(look, shown, limit, sentence if free / total < look.policy.memory_available_share else "", free)


def _unmeasured(look: CheckLook, name: str, limit: str = "") -> CheckOutcome:
    return CheckOutcome("-", limit, unknown=look.check.about.why_not(look, name))


def _one(
    look: CheckLook,
    shown: str,
    limit: str,
    sentence: str,
    new: Value | FindingEvidence,
    cause: CauseClass | None = None,
) -> CheckOutcome:
    """With a warning about the node, if there is a sentence."""
    return CheckOutcome(shown, limit, (look.found(WARN, NODE, sentence, new, cause=cause),) if sentence else ())


LOST = "{place} lost data: uncorrected memory errors went {words}; a memory module is failing"
MENDED = "{place} corrects many errors: {words}; a memory module may be failing"
MODULE = CheckSubject(Scope.NODE, CauseClass.HARDWARE, Needs.RMA, Sticky.BOOT)

judge_memory_errors = counters(
    Bound("ue_count", 0, FAIL, LOST, BoundMeasure.GROWTH),
    Bound("ce_count", "edac_corrected_per_min", WARN, MENDED, BoundMeasure.PER_S, per=60),
    limit=lambda policy: f"0 new uncorrected, <= {policy.edac_corrected_per_min:g}/min corrected",
    shown="{total:.0f} new uncorrected",
)


def judge_shm(look: CheckLook) -> CheckOutcome:
    """Is there shared memory, for NCCL and for data loaders?"""
    size, free = look.number(NODE, "shm_bytes"), look.number(NODE, "shm_free_bytes")
    policy = look.policy
    limit = f">= {policy.shm_min_bytes / GB:g} GB, {policy.shm_free_share * PERCENT:.0f} % free"
    if size is None or free is None:
        return _unmeasured(look, "shm_bytes", limit)
    shown = f"{free / GB:.1f} of {size / GB:.1f} GB free"
    if size < policy.shm_min_bytes:
        sentence = f"{SHM} has {size / GB:.2f} GB only: NCCL and data loaders will fail there"
        return CheckOutcome(shown, limit, (look.found(FAIL, NODE, sentence, size, cause=CauseClass.CONFIG),))
    sentence = f"{SHM} is almost full, {free / GB:.2f} GB are free: remove what dead programs left there"
    return _one(look, shown, limit, sentence if free < policy.shm_free_share * size else "", free)


def judge_load(look: CheckLook) -> CheckOutcome:
    """Do more processes want to run than there are CPUs?"""
    load, cpus = look.number(NODE, "load"), look.number(NODE, "cpus") or 1.0
    bound = look.policy.load_per_cpu * cpus
    if load is None:
        return _unmeasured(look, "load", f"<= {bound:g}")
    sentence = f"the load was {load:.0f} over 5 minutes on {cpus:.0f} CPUs: something else works here too"
    return _one(look, f"{load:.1f} on {cpus:.0f} CPUs", f"<= {bound:g}", sentence if load > bound else "", load)


def judge_processes(look: CheckLook) -> CheckOutcome:
    """Do processes hang in the kernel, look after look? Once is any disk at work."""
    waiting, most, before = look.number(NODE, "waiting"), look.policy.waiting_processes_max, look.before
    limit = f"<= {most} stuck"
    if waiting is None:
        return _unmeasured(look, "waiting", limit)
    shown = f"{waiting:.0f} in state D"
    was = before.facts.number(NODE, "waiting") if before is not None else None
    if waiting <= most or was is None or was <= most or before is None:
        return CheckOutcome(shown, limit)
    over_s, example = look.now.at - before.at, look.facts.get(NODE, "waiting_example") or "?"
    sentence = f"{waiting:.0f} processes wait in the kernel (state D), {was:.0f} {span(over_s)} ago: {example}"
    return _one(look, shown, limit, sentence, FindingEvidence(waiting, was, over_s))


def judge_clock(look: CheckLook) -> CheckOutcome:
    """Does the kernel trust its clock?"""
    most_s = look.policy.clock_error_warn_s
    limit = f"error <= {most_s:g} s"
    error_s, good = look.number(NODE, "clock_error_s"), look.number(NODE, "clock_synchronised")
    if error_s is None or good is None:
        return _unmeasured(look, "clock_error_s", limit)
    shown = f"{'synchronised' if good else 'free-running'}, error {error_s:.3g} s"
    how = f"may be wrong by {error_s:.3g} s" if good else "is set by nobody (no NTP or PTP)"
    sentence = f"the clock {how}: times in logs will not fit those of other nodes"
    return _one(look, shown, limit, "" if good and error_s <= most_s else sentence, error_s)


def judge_limits(look: CheckLook) -> CheckOutcome:
    """May processes open enough files? Locked memory matters to RDMA only, and is told."""
    files, locked = look.number(NODE, "files"), look.number(NODE, "locked_bytes")
    limit = f">= {look.policy.files_min} files"
    if files is None:
        return _unmeasured(look, "files", limit)
    many = "any number of" if files < 0 else f"{files:.0f}"
    memory = "" if locked is None else f", {'all' if locked < 0 else f'{locked / GB:.2f} GB of'} memory lockable"
    sentence = f"a process may open {files:.0f} files at most; data loaders need more: raise `ulimit -Hn`"
    is_few = 0 <= files < look.policy.files_min
    return _one(look, f"{many} files{memory}", limit, sentence if is_few else "", files, CauseClass.CONFIG)


ROOMS = (("tasks", "tasks_max", "processes and threads"), ("open_files", "open_files_max", "open files"))


def judge_room(look: CheckLook) -> CheckOutcome:
    """Can the node start more processes and open more files? Who leaks them stops everybody's."""
    policy = look.policy
    limit = f"<= {policy.room_used_warn * 100:.0f} %, fail at {policy.room_used_fail * 100:.0f} %"
    used, found = {}, []
    for name, most, words in ROOMS:
        count, room = look.number(NODE, name), look.number(NODE, most)
        if count is None or not room:
            continue
        share = used[words] = count / room
        if share > policy.room_used_warn:
            severity = FAIL if share >= policy.room_used_fail else WARN
            sentence = f"the node has {count:.0f} {words} of the {room:.0f} that it may have: soon none can be added"
            found.append(look.found(severity, NODE, sentence, count, room, cause=CauseClass.CONFIG))
    if not used:
        return CheckOutcome("-", limit, unknown="the kernel does not say how many processes there may be")
    shown = ", ".join(f"{share * 100:.0f} % of {words}" for words, share in used.items())
    return CheckOutcome(shown, limit, tuple(found))


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
        return _unmeasured(look, "tainted")
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


KILLED = "the kernel killed {count:.0f} processes for want of memory in {over}"
judge_oom = counters(  # a program's doing, and it explains a rank's end
    Bound("oom_kills", 0, WARN, KILLED, BoundMeasure.GROWTH), limit="0 new", shown="{total:.0f} new"
)


# ---- names -----------------------------------------------------------------------------------------------------------

NAMES_WITHIN_S = 10.0


def read_names(around: HealthSurroundings) -> NodeFacts:
    """A child asks the resolver, which may wait for a dead server."""
    return around.probes.ask("names", around.peers, NAMES_WITHIN_S)


def judge_names(look: CheckLook) -> CheckOutcome:
    """Do this host's and its peers' names resolve, soon?"""
    limit, slowest_s, found = f"< {look.policy.names_within_s:g} s", 0.0, []
    for name in look.facts.values:
        took_s, error = look.number(name, "resolve_s") or 0.0, look.facts.get(name, "error")
        slowest_s = max(slowest_s, took_s)
        if error is not None:
            sentence = f"the name {name} does not resolve here: {error}"
            found.append(look.found(FAIL, name, sentence, error, cause=CauseClass.CONFIG))
        elif took_s > look.policy.names_within_s:
            sentence = f"the name {name} took {span(took_s)} to resolve: a name server does not answer"
            found.append(look.found(WARN, name, sentence, took_s))
    if not look.facts.values:
        return CheckOutcome("-", limit, unknown="no name was asked for")
    return CheckOutcome(f"{len(look.facts.values)} in {slowest_s * 1000:.0f} ms", limit, tuple(found))


# ---- the bus, and pressure -------------------------------------------------------------------------------------------

CLASSES = ("0x01", "0x02", "0x03", "0x0604")  # storage, network, display, bridge to PCIe
COUNTERS = (("fatal", "TOTAL_ERR_FATAL"), ("nonfatal", "TOTAL_ERR_NONFATAL"))
DEVICES_MAX_COUNT = 512
AER_MAX_BYTES = 2048
WAITED = {"memory": "memory", "io": "disks or file servers"}
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
            values[NODE][what] = float(match[1]) / 100
        else:
            missing[NODE][what] = "the kernel does not measure pressure (PSI)"
    return NodeFacts(values, missing)


BUS = CheckSubject(
    Scope.NODE,
    CauseClass.HARDWARE,
    Needs.ADMIN,
    Sticky.BOOT,
    why_not=lambda look, name: look.facts.why_missing(name) or "no device counts them",
)
judge_pcie_errors = counters(  # what the bus mended itself is left to replays
    Bound("fatal", 0, FAIL, "{place}: fatal PCIe errors went {words}", BoundMeasure.GROWTH, needs=Needs.REBOOT),
    Bound("nonfatal", 0, WARN, "{place}: nonfatal PCIe errors went {words}", BoundMeasure.GROWTH),
    limit="0 new fatal or nonfatal",
)


def judge_pressure(look: CheckLook) -> CheckOutcome:
    """Did everything stand still for want of memory or disks, for much of the last minute?"""
    most = look.policy.pressure_share
    limit = f"<= {most * 100:.0f} % of a minute"
    shares = {what: share for what in WAITED if (share := look.number(NODE, what)) is not None}
    if not shares:
        return _unmeasured(look, "memory", limit)
    told = "% of the last minute, which slows ranks down"
    found = tuple(
        look.found(
            WARN, NODE, f"all processes waited for {WAITED[what]} {share * 100:.0f} {told}", share, needs=Needs.NONE
        )
        for what, share in shares.items()
        if share > most
    )
    return CheckOutcome(", ".join(f"{what} {share * 100:.0f} %" for what, share in shares.items()), limit, found)


KERNEL = CheckSubject(Scope.NODE, CauseClass.EITHER, Needs.REBOOT, Sticky.BOOT)
OOM = CheckSubject(Scope.NODE, CauseClass.APPLICATION, Needs.RESTART)
FAMILY = CheckFamily(
    "host",
    5.0,
    read,
    (
        Check("host_memory", "host", "memory is available", judge_memory, 300.0, HOST),
        Check("host_memory_errors", "host", "memory modules lose no bits", judge_memory_errors, 300.0, MODULE),
        Check("host_shm", "host", f"{SHM} is there and has room", judge_shm, 300.0, HOST),
        Check("host_load", "host", "nobody else works here", judge_load, 300.0, HOST),
        Check("host_processes", "host", "no processes hang in the kernel", judge_processes, 300.0, HOST),
        Check("host_clock", "host", "the clock is kept right", judge_clock, 300.0, HOST),
        Check("host_limits", "host", "processes may open enough files", judge_limits, 300.0, HOST),
        Check("host_room", "host", "processes and files can be added", judge_room, 300.0, HOST),
        Check("host_kernel", "host", "the kernel noted no fault", judge_kernel, 300.0, KERNEL),
        Check("host_oom", "host", "nothing was killed for want of memory", judge_oom, 60.0, OOM),
    ),
    counters=frozenset({"ue_count", "ce_count", "tainted"}),
)
BUS_FAMILY = CheckFamily(
    "bus",
    5.0,
    read_bus,
    (
        Check("host_pcie_errors", "bus", "the PCIe bus loses nothing", judge_pcie_errors, 60.0, BUS),
        Check("host_pressure", "bus", "the host does not stand still", judge_pressure, 60.0, HOST),
    ),
    counters=frozenset(name for name, _ in COUNTERS),
)
NAMES_FAMILY = CheckFamily(
    "names",
    NAMES_WITHIN_S + 2.0,
    read_names,
    (Check("host_names", "names", "names of this host and its peers resolve", judge_names, 300.0, HOST),),
)
