"""What readings of the host mean. The reading: ``host``; names are asked by a child."""

from __future__ import annotations

from gangrun.health.framework.check import (
    CauseClass,
    Check,
    Evidence,
    Facts,
    Finding,
    Needs,
    Outcome,
    Reading,
    Scope,
    Severity,
    Sticky,
)
from gangrun.health.framework.growth import FIRST_LOOK, all_growths, growth, span
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings
from gangrun.health.host import readings
from gangrun.health.host.readings import NODE

PERCENT = 100
SHM = "/dev/shm"  # noqa: S108 - its name, for people
GB = 1e9
# bits of /proc/sys/kernel/tainted that tell of a fault: (bit, words, is it fatal once new)
TAINTS = ((4, "a machine check (MCE)", True), (7, "a kernel oops", True), (14, "a soft lockup", False))


def _finding(
    check: str,
    severity: Severity,
    sentence: str,
    evidence: Evidence,
    cause: CauseClass = CauseClass.EITHER,
    needs: Needs = Needs.ADMIN,
    place: str = NODE,
    sticky: Sticky = Sticky.NO,
) -> Finding:
    return Finding(check, Scope.NODE, place, severity, cause, needs, sticky, evidence, sentence)


def _unmeasured(now: Reading, name: str, limit: str = "") -> Outcome:
    return Outcome("-", limit, unknown=now.facts.why_missing(name) or "it was not measured")


def judge_memory(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is there memory left?"""
    del before
    total, free = now.facts.number(NODE, "memory_bytes"), now.facts.number(NODE, "available_bytes")
    limit = f">= {policy.memory_available_share * PERCENT:.0f} % available"
    if total is None or free is None or total <= 0:
        return _unmeasured(now, "available_bytes", limit)
    shown = f"{free / GB:.1f} of {total / GB:.1f} GB available"
    if free / total >= policy.memory_available_share:
        return Outcome(shown, limit)
    sentence = f"only {free / GB:.1f} GB of memory are available of {total / GB:.1f} GB: ranks may be killed for it"
    return Outcome(shown, limit, (_finding("host_memory", Severity.WARN, sentence, Evidence(free)),))


def judge_memory_errors(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did memory modules lose bits since the last look?"""
    limit = f"0 new uncorrected, <= {policy.edac_corrected_per_min:g}/min corrected"
    if not now.facts.places_with("ue_count"):
        return _unmeasured(now, "ue_count", limit)
    lost, mended = all_growths(now, before, "ue_count"), all_growths(now, before, "ce_count")
    if not lost:
        return Outcome("-", limit, unknown=FIRST_LOOK)
    found = []
    for place, grown in lost:
        if grown.count > 0:
            sentence = f"{place} lost data: uncorrected memory errors went {grown.words}; a memory module is failing"
            found.append(_memory_error(Severity.FAIL, sentence, grown.evidence, place))
    for place, grown in mended:
        if grown.per_s * 60 > policy.edac_corrected_per_min:
            sentence = f"{place} corrects many errors: {grown.words}; a memory module may be failing"
            found.append(_memory_error(Severity.WARN, sentence, grown.evidence, place))
    return Outcome(f"{sum(g.count for _, g in lost):.0f} new uncorrected", limit, tuple(found))


def _memory_error(severity: Severity, sentence: str, evidence: Evidence, place: str) -> Finding:
    return _finding(
        "host_memory_errors", severity, sentence, evidence, CauseClass.HARDWARE, Needs.RMA, place, Sticky.BOOT
    )


def judge_shm(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is there shared memory, for NCCL and for data loaders?"""
    del before
    size, free = now.facts.number(NODE, "shm_bytes"), now.facts.number(NODE, "shm_free_bytes")
    limit = f">= {policy.shm_min_bytes / GB:g} GB, {policy.shm_free_share * PERCENT:.0f} % free"
    if size is None or free is None:
        return _unmeasured(now, "shm_bytes", limit)
    shown = f"{free / GB:.1f} of {size / GB:.1f} GB free"
    if size < policy.shm_min_bytes:
        sentence = f"{SHM} has {size / GB:.2f} GB only: NCCL and data loaders will fail there"
        return Outcome(
            shown, limit, (_finding("host_shm", Severity.FAIL, sentence, Evidence(size), CauseClass.CONFIG),)
        )
    if free < policy.shm_free_share * size:
        sentence = f"{SHM} is almost full, {free / GB:.2f} GB are free: remove what dead programs left there"
        return Outcome(shown, limit, (_finding("host_shm", Severity.WARN, sentence, Evidence(free)),))
    return Outcome(shown, limit)


def judge_load(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do more processes want to run than there are CPUs?"""
    del before
    load, cpus = now.facts.number(NODE, "load"), now.facts.number(NODE, "cpus") or 1.0
    bound = policy.load_per_cpu * cpus
    if load is None:
        return _unmeasured(now, "load", f"<= {bound:g}")
    shown = f"{load:.1f} on {cpus:.0f} CPUs"
    if load <= bound:
        return Outcome(shown, f"<= {bound:g}")
    sentence = f"the load was {load:.0f} over 5 minutes on {cpus:.0f} CPUs: something else works here too"
    return Outcome(shown, f"<= {bound:g}", (_finding("host_load", Severity.WARN, sentence, Evidence(load)),))


def judge_processes(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do processes hang in the kernel, look after look? Once is any disk at work."""
    waiting = now.facts.number(NODE, "waiting")
    limit = f"<= {policy.waiting_processes_max} stuck"
    if waiting is None:
        return _unmeasured(now, "waiting", limit)
    shown = f"{waiting:.0f} in state D"
    was = before.facts.number(NODE, "waiting") if before is not None else None
    if waiting <= policy.waiting_processes_max or was is None or was <= policy.waiting_processes_max or before is None:
        return Outcome(shown, limit)
    example = now.facts.get(NODE, "waiting_example") or "?"
    evidence = Evidence(waiting, was, now.at - before.at)
    sentence = (
        f"{waiting:.0f} processes wait in the kernel (state D), {was:.0f} {span(now.at - before.at)} ago: {example}"
    )
    return Outcome(shown, limit, (_finding("host_processes", Severity.WARN, sentence, evidence),))


def judge_clock(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does the kernel trust its clock?"""
    del before
    limit = f"error <= {policy.clock_error_warn_s:g} s"
    error_s, good = now.facts.number(NODE, "clock_error_s"), now.facts.number(NODE, "clock_synchronised")
    if error_s is None or good is None:
        return _unmeasured(now, "clock_error_s", limit)
    shown = f"{'synchronised' if good else 'free-running'}, error {error_s:.3g} s"
    if good and error_s <= policy.clock_error_warn_s:
        return Outcome(shown, limit)
    how = f"may be wrong by {error_s:.3g} s" if good else "is set by nobody (no NTP or PTP)"
    sentence = f"the clock {how}: times in logs will not fit those of other nodes"
    return Outcome(shown, limit, (_finding("host_clock", Severity.WARN, sentence, Evidence(error_s)),))


def judge_limits(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """May processes open enough files? Locked memory matters to RDMA only, and is told."""
    del before
    files, locked = now.facts.number(NODE, "files"), now.facts.number(NODE, "locked_bytes")
    limit = f">= {policy.files_min} files"
    if files is None:
        return _unmeasured(now, "files", limit)
    many = "any number of" if files < 0 else f"{files:.0f}"
    memory = "" if locked is None else f", {'all' if locked < 0 else f'{locked / GB:.2f} GB of'} memory lockable"
    shown = f"{many} files{memory}"
    if files < 0 or files >= policy.files_min:
        return Outcome(shown, limit)
    sentence = f"a process may open {files:.0f} files at most; data loaders need more: raise `ulimit -Hn`"
    cause = CauseClass.CONFIG
    return Outcome(shown, limit, (_finding("host_limits", Severity.WARN, sentence, Evidence(files), cause),))


ROOMS = (("tasks", "tasks_max", "processes and threads"), ("open_files", "open_files_max", "open files"))


def judge_room(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Can the node start more processes and open more files? Whoever leaks them stops everybody's."""
    del before
    limit = f"<= {policy.room_used_warn * 100:.0f} %, fail at {policy.room_used_fail * 100:.0f} %"
    used, found = {}, []
    for name, most, words in ROOMS:
        count, room = now.facts.number(NODE, name), now.facts.number(NODE, most)
        if count is None or not room:
            continue
        share = used[words] = count / room
        if share > policy.room_used_warn:
            severity = Severity.FAIL if share >= policy.room_used_fail else Severity.WARN
            sentence = f"the node has {count:.0f} {words} of the {room:.0f} that it may have: soon none can be added"
            found.append(_finding("host_room", severity, sentence, Evidence(count, room), CauseClass.CONFIG))
    if not used:
        return Outcome("-", limit, unknown="the kernel does not say how many processes there may be")
    return Outcome(", ".join(f"{share * 100:.0f} % of {words}" for words, share in used.items()), limit, tuple(found))


def judge_kernel(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did the kernel note a fault of the machine? Older notes are told, new ones count."""
    del policy
    new = now.facts.number(NODE, "tainted")
    if new is None:
        return _unmeasured(now, "tainted")
    grown = growth(now, before, NODE, "tainted")
    found, noted = [], []
    for bit, words, fatal in TAINTS:
        if not int(new) >> bit & 1:
            continue
        noted.append(words)
        fresh = grown is not None and not int(grown.old) >> bit & 1
        severity = Severity.FAIL if fresh and fatal else Severity.WARN
        when = f"in the last {span(grown.over_s)}" if fresh and grown is not None else "some time since the boot"
        evidence = grown.evidence if grown is not None else Evidence(new)
        sentence = f"the kernel noted {words} {when}"
        cause = CauseClass.HARDWARE if bit == 4 else CauseClass.EITHER
        found.append(_finding("host_kernel", severity, sentence, evidence, cause, Needs.REBOOT, sticky=Sticky.BOOT))
    return Outcome(", ".join(noted) or "no fault noted", "none", tuple(found))


def judge_oom(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did the kernel kill for want of memory? A program's doing, and it explains a rank's end."""
    del policy
    if now.facts.number(NODE, "oom_kills") is None:
        return _unmeasured(now, "oom_kills")
    grown = growth(now, before, NODE, "oom_kills")
    if grown is None:
        return Outcome("-", "0 new", unknown=FIRST_LOOK)
    if grown.count == 0:
        return Outcome("0 new", "0 new")
    sentence = f"the kernel killed {grown.count:.0f} processes for want of memory in {span(grown.over_s)}"
    found = _finding("host_oom", Severity.WARN, sentence, grown.evidence, CauseClass.APPLICATION, Needs.RESTART)
    return Outcome(f"{grown.count:.0f} new", "0 new", (found,))


def read_names(around: Surroundings) -> Facts:
    """A child asks the resolver, which may wait for a dead server."""
    return around.probes.ask("names", around.peers, NAMES_WITHIN_S)


def judge_names(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do this host's and its peers' names resolve, soon?"""
    del before
    limit = f"< {policy.names_within_s:g} s"
    slowest_s, found = 0.0, []
    for name in now.facts.values:
        took_s = now.facts.number(name, "resolve_s") or 0.0
        slowest_s = max(slowest_s, took_s)
        error = now.facts.get(name, "error")
        if error is not None:
            sentence = f"the name {name} does not resolve here: {error}"
            found.append(
                _finding("host_names", Severity.FAIL, sentence, Evidence(error), CauseClass.CONFIG, place=name)
            )
        elif took_s > policy.names_within_s:
            sentence = f"the name {name} took {span(took_s)} to resolve: a name server does not answer"
            found.append(_finding("host_names", Severity.WARN, sentence, Evidence(took_s), place=name))
    if not now.facts.values:
        return Outcome("-", limit, unknown="no name was asked for")
    return Outcome(f"{len(now.facts.values)} in {slowest_s * 1000:.0f} ms", limit, tuple(found))


NAMES_WITHIN_S = 10.0
FAMILY = Family(
    "host",
    5.0,
    readings.read,
    (
        Check("host_memory", "host", "memory is available", judge_memory, 300.0),
        Check("host_memory_errors", "host", "memory modules lose no bits", judge_memory_errors, 300.0),
        Check("host_shm", "host", f"{SHM} is there and has room", judge_shm, 300.0),
        Check("host_load", "host", "nobody else works here", judge_load, 300.0),
        Check("host_processes", "host", "no processes hang in the kernel", judge_processes, 300.0),
        Check("host_clock", "host", "the clock is kept right", judge_clock, 300.0),
        Check("host_limits", "host", "processes may open enough files", judge_limits, 300.0),
        Check("host_room", "host", "processes and files can be added", judge_room, 300.0),
        Check("host_kernel", "host", "the kernel noted no fault", judge_kernel, 300.0),
        Check("host_oom", "host", "nothing was killed for want of memory", judge_oom, 60.0),
    ),
    counters=frozenset({"ue_count", "ce_count", "tainted"}),
)
NAMES_FAMILY = Family(
    "names",
    NAMES_WITHIN_S + 2.0,
    read_names,
    (Check("host_names", "names", "names of this host and its peers resolve", judge_names, 300.0),),
)
