"""The file systems that a job stands on: space, inodes, read-only, mounted, and whether they answer.

A file server that stands still holds a process that asks it in the kernel, where no signal reaches. So each directory
is looked at by a child of its own (``entry.health_probe``), as names are. One
that does not come back is unknown here: if all nodes say so at once it is the file server, and only who sees them all
can tell. Mounts are read without touching the file systems, so a dead server cannot hold that.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace

from gangrun.health.framework.bounds import Bound, BoundMeasure, Breaks, Rows
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
    Severity,
    Value,
    comparable,
)  # fmt: skip
from gangrun.health.framework.readings import text_of
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings

NAME, MOUNTS_NAME, NODE = "storage", "mounts", "node"
CHILD_WITHIN_S = 20.0
FAMILY_WITHIN_S = 120.0
DIRECTORIES_MAX_COUNT = 5
NOT_YET = "the directory is not there yet"
NOT_THERE = os.strerror(errno.ENOENT)
FS = CheckSubject(
    Scope.FS,
    CauseClass.EITHER,
    Needs.ADMIN,
    why_not=lambda look, name: look.facts.why_missing(name) or "no file system could be asked",
)


# ---- directories -----------------------------------------------------------------------------------------------------


def read(around: HealthSurroundings) -> NodeFacts:
    """One child for each directory, one after the other."""
    values: dict[str, dict[str, Value]] = {}
    missing: dict[str, dict[str, str]] = {}
    for directory in around.directories[:DIRECTORIES_MAX_COUNT]:
        said = around.probes.ask("directory", (directory,), CHILD_WITHIN_S)
        is_later = directory in around.made_later and said.get(directory, "broken") == NOT_THERE
        if said.absent or is_later:
            missing[directory] = dict.fromkeys(("probe_s", "used_share"), said.absent or NOT_YET)
            continue
        values.setdefault(directory, {}).update(said.values.get(directory, {}))
        missing.setdefault(directory, {}).update(said.missing.get(directory, {}))
    return NodeFacts(values, missing, "" if around.directories else "no directory was named")


def _slow(limit: str, severity: Severity) -> Bound:
    says, means = "time to write, sync and read back 4 KiB", "If it is so on all nodes, it is the file server"
    return Bound("probe_s", limit, severity, says, means)


def _full(limit: str, severity: Severity, breaks: Breaks) -> Bound:
    return Bound("used_share", limit, severity, "used share of the file system", "{free_bytes} are left", breaks=breaks)


ANSWERS = (
    Bound("broken", 0, FAIL, "the directory cannot be written", measure=BoundMeasure.WORD),
    Bound("write_error", 0, FAIL, "the directory cannot be written", measure=BoundMeasure.WORD),
    _slow("probe_fail_s", FAIL),
    _slow("probe_warn_s", WARN),
)
SPACE = (_full("disk_used_fail", FAIL, Breaks.AT_LEAST), _full("disk_used_warn", WARN, Breaks.ABOVE))
INODES = Bound("inodes_free", "inodes_free_min", FAIL, "number of files that can still be made", breaks=Breaks.BELOW)
WRITABLE = Bound("read_only", 1, FAIL, "the file system is mounted read-only", "The kernel does that when a disk fails",
                 BoundMeasure.FLAG, Breaks.EQUAL)  # fmt: skip

# ---- mounts ----------------------------------------------------------------------------------------------------------

SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "weka", "wekafs", "fuse.juicefs", "glusterfs", "9p")
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs")
LUSTRE_PLACE = "lustre"
LUSTRE = ("sys/fs/lustre/health_check", "proc/fs/lustre/health_check")
MOUNTINFO_MAX_BYTES = 1 << 20
MOUNTS_MAX_COUNT = 512
_OCTAL = re.compile(r"\\([0-7]{3})")


def read_mounts(around: HealthSurroundings) -> NodeFacts:
    """A place for each mount of a disk or a file server, and ``node`` for Lustre's own word."""
    text = text_of(around.root / "proc/self/mountinfo", MOUNTINFO_MAX_BYTES)
    values: dict[str, dict[str, Value]] = {NODE: {}}
    missing = {} if text else {NODE: {"mounted": "/proc/self/mountinfo does not say"}}
    for line in text.splitlines():
        words = line.split()
        if "-" not in words[6:]:
            continue
        after = words[words.index("-", 6) + 1 :]
        if len(after) < 3 or not after[0].startswith((*SHARED, *LOCAL)) or len(values) > MOUNTS_MAX_COUNT:
            continue
        place = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), words[4])
        # the mount was asked for read-write, and the file system under it is read-only: the kernel did that
        turned = words[3] == "/" and "rw" in words[5].split(",") and "ro" in after[2].split(",")
        shared = int(after[0].startswith(SHARED))
        values[place] = {"mounted": after[0], "turned_read_only": int(turned), "shared": shared}
    lustre = next((said for path in LUSTRE if (said := text_of(around.root / path))), "")
    if lustre:
        values[LUSTRE_PLACE] = {"lustre": lustre.splitlines()[0]}
    return NodeFacts(values, missing)


def judge_mounts(look: CheckLook) -> CheckOutcome:
    """Is everything still mounted that was, and as it was meant?"""
    here, before = look.facts.places_with("mounted"), look.before
    if why := look.facts.why_missing("mounted"):
        return CheckOutcome("-", "as before", unknown=why)
    turned = "read-only: its disk or server failed"
    found = [
        look.found(
            FAIL, place, f"the kernel turned the file system of {place} {turned}", "ro", cause=CauseClass.HARDWARE
        )
        for place in here
        if look.number(place, "turned_read_only") == 1
    ]
    if before is not None and comparable(look.now, before):
        found += [
            look.found(
                WARN, place, f"{place} ({before.facts.get(place, 'mounted')}) was mounted and is not any more", "gone"
            )
            for place in before.facts.places_with("mounted")
            if place not in here and before.facts.number(place, "shared") == 1
        ]
    return CheckOutcome(f"{len(here)} mounted", "as before", tuple(found))


LUSTRE_FS = replace(FS, why_not=lambda look, name: "no Lustre here")
LUSTRE_SAYS = Bound("lustre", 0, FAIL, "Lustre says of itself", "If all nodes say so, it is the file servers",
                    BoundMeasure.WORD, good="healthy")  # fmt: skip
FAMILY = CheckFamily(
    NAME,
    FAMILY_WITHIN_S,
    read,
    (
        Check("storage_answers", NAME, "a small file can be written, synced and read back",
              Rows(ANSWERS, lambda p: f"< {p.probe_warn_s:g} s", "{most} at most", of="probe_s", whole=True),
              300.0, FS),
        Check("storage_space", NAME, "file systems have room",
              Rows(SPACE, lambda p: f"<= {p.disk_used_warn * 100:.0f} %, fail at {p.disk_used_fail * 100:.0f} %",
                   "{most} used"), 300.0, FS),
        Check("storage_inodes", NAME, "more files can be made",
              Rows((INODES,), lambda p: f">= {p.inodes_free_min}", "{least} free"), 300.0, FS),
        Check("storage_writable", NAME, "no file system turned read-only",
              Rows((WRITABLE,), "all", "{good} of {count}"), 300.0, FS),
    ),
)  # fmt: skip
MOUNTS_FAMILY = CheckFamily(
    MOUNTS_NAME,
    5.0,
    read_mounts,
    (
        Check("storage_mounts", MOUNTS_NAME, "file systems stay mounted", judge_mounts, 60.0, FS),
        Check("storage_lustre", MOUNTS_NAME, "Lustre says it is healthy",
              Rows((LUSTRE_SAYS,), "healthy", "{lustre}"), 60.0, LUSTRE_FS),
    ),
)  # fmt: skip
