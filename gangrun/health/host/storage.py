"""The file systems that a job stands on: space, inodes, read-only, and whether they answer.

Each directory is looked at by a child of its own. One that does not come back is unknown here: when all nodes say so at
once it is the file server, and only whoever sees them all can tell.
"""

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
    Value,
)
from gangrun.health.framework.growth import span
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings
from gangrun.health.host import storage_probe

NAME = "storage"
CHILD_WITHIN_S = 20.0
FAMILY_WITHIN_S = 120.0
DIRECTORIES_MAX_COUNT = 5
NOT_YET = "the directory is not there yet"
PERCENT = 100


def read(around: Surroundings) -> Facts:
    """One child for each directory, one after the other."""
    values: dict[str, dict[str, Value]] = {}
    missing: dict[str, dict[str, str]] = {}
    for directory in around.directories[:DIRECTORIES_MAX_COUNT]:
        said = around.probes.ask("directory", (directory,), CHILD_WITHIN_S)
        if said.absent:
            missing[directory] = {"probe_s": said.absent, "used_share": said.absent}
            continue
        if directory in around.made_later and said.get(directory, "broken") == storage_probe.NOT_THERE:
            missing[directory] = {"probe_s": NOT_YET, "used_share": NOT_YET}
            continue
        values.setdefault(directory, {}).update(said.values.get(directory, {}))
        missing.setdefault(directory, {}).update(said.missing.get(directory, {}))
    return Facts(values, missing, "" if around.directories else "no directory was named")


def _finding(
    check: str, place: str, severity: Severity, sentence: str, evidence: Evidence, cause: CauseClass = CauseClass.EITHER
) -> Finding:
    return Finding(check, Scope.FS, place, severity, cause, Needs.ADMIN, Sticky.NO, evidence, sentence)


def judge_answers(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Can a small file be written, synced, renamed and read back, and how fast?"""
    del before
    found, slowest_s = [], -1.0
    for place, values in now.facts.values.items():
        broken = values.get("broken") or values.get("write_error")
        took_s = now.facts.number(place, "probe_s")
        if broken:
            sentence = f"{place} cannot be written: {broken}"
            found.append(_finding("storage_answers", place, Severity.FAIL, sentence, Evidence(broken)))
        elif took_s is not None:
            slowest_s = max(slowest_s, took_s)
            if took_s > policy.probe_warn_s:
                severity = Severity.FAIL if took_s > policy.probe_fail_s else Severity.WARN
                whose = "if it is so on all nodes, it is the file server"
                sentence = f"{place} took {span(took_s)} to write, sync and read back 4 KiB; {whose}"
                found.append(_finding("storage_answers", place, severity, sentence, Evidence(took_s)))
    limit = f"< {policy.probe_warn_s:g} s"
    why = now.facts.why_missing("probe_s")
    if slowest_s < 0:
        return Outcome("-", limit, tuple(found), why or "nothing was measured")
    silent_count = sum("probe_s" in names for names in now.facts.missing.values())
    shown = f"{slowest_s * 1000:.0f} ms" + (f", {silent_count} silent" if silent_count else "")
    return Outcome(shown, limit, tuple(found), why)


def judge_space(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is there room left?"""
    del before
    found, fullest = [], -1.0
    for place in now.facts.places_with("used_share"):
        used = now.facts.number(place, "used_share")
        if used is None:
            continue
        fullest = max(fullest, used)
        if used > policy.disk_used_warn:
            severity = Severity.FAIL if used >= policy.disk_used_fail else Severity.WARN
            free = (now.facts.number(place, "free_bytes") or 0.0) / 1e9
            sentence = f"the file system of {place} is {used * PERCENT:.0f} % full, {free:.1f} GB are left"
            found.append(_finding("storage_space", place, severity, sentence, Evidence(used)))
    limit = f"<= {policy.disk_used_warn * PERCENT:.0f} %, fail at {policy.disk_used_fail * PERCENT:.0f} %"
    if fullest < 0:
        return Outcome("-", limit, unknown=now.facts.why_missing("used_share") or "no file system could be asked")
    return Outcome(f"{fullest * PERCENT:.0f} % used", limit, tuple(found))


def judge_inodes(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Can files still be made?"""
    del before
    free = {place: now.facts.number(place, "inodes_free") for place in now.facts.places_with("inodes_free")}
    counted = {place: count for place, count in free.items() if count is not None}
    limit = f">= {policy.inodes_free_min}"
    if not counted:
        return Outcome("-", limit, unknown=now.facts.why_missing("inodes_free") or "no file system says")
    found = tuple(
        _finding(
            "storage_inodes", place, Severity.FAIL, f"{place} has room for {count:.0f} more files only", Evidence(count)
        )
        for place, count in counted.items()
        if count < policy.inodes_free_min
    )
    return Outcome(f"{min(counted.values()):.0f} free", limit, found)


def judge_writable(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did the kernel turn a file system read-only? It does so when a disk fails."""
    del before, policy
    places = now.facts.places_with("read_only")
    if not places:
        return Outcome("-", unknown="no file system could be asked")
    found = tuple(
        _finding(
            "storage_writable",
            place,
            Severity.FAIL,
            f"the file system of {place} is mounted read-only; the kernel does that when a disk fails",
            Evidence("read-only"),
        )
        for place in places
        if now.facts.get(place, "read_only") == 1
    )
    return Outcome(f"{len(places) - len(found)} of {len(places)}", "all", found)


FAMILY = Family(
    NAME,
    FAMILY_WITHIN_S,
    read,
    (
        Check("storage_answers", NAME, "a small file can be written, synced and read back", judge_answers, 300.0),
        Check("storage_space", NAME, "file systems have room", judge_space, 300.0),
        Check("storage_inodes", NAME, "more files can be made", judge_inodes, 300.0),
        Check("storage_writable", NAME, "no file system turned read-only", judge_writable, 300.0),
    ),
)
