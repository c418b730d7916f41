"""Which file systems are mounted, and whether the kernel turned one read-only; Lustre's own word.

Nothing of a file system is touched, so a dead server cannot hold whoever reads this. ``storage`` touches them.
"""

from __future__ import annotations

import re

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
from gangrun.health.framework.files import text_of
from gangrun.health.framework.growth import comparable
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings

NAME, NODE = "mounts", "node"
SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "weka", "wekafs", "fuse.juicefs", "glusterfs", "9p")
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs")
LUSTRE = ("sys/fs/lustre/health_check", "proc/fs/lustre/health_check")
MOUNTINFO_MAX_BYTES = 1 << 20
MOUNTS_MAX_COUNT = 512
_OCTAL = re.compile(r"\\([0-7]{3})")


def read(around: Surroundings) -> Facts:
    """A place for each mount of a disk or a file server."""
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
        values[place] = {
            "mounted": after[0],
            "turned_read_only": int(turned),
            "shared": int(after[0].startswith(SHARED)),
        }
    lustre = next((said for path in LUSTRE if (said := text_of(around.root / path))), "")
    if lustre:
        values[NODE]["lustre"] = lustre.splitlines()[0]
    return Facts(values, missing)


def _finding(check: str, place: str, severity: Severity, sentence: str, new: Value, cause: CauseClass) -> Finding:
    return Finding(check, Scope.FS, place, severity, cause, Needs.ADMIN, Sticky.NO, Evidence(new), sentence)


def judge_mounts(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is everything still mounted that was, and as it was meant?"""
    del policy
    here = now.facts.places_with("mounted")
    if now.facts.why_missing("mounted"):
        return Outcome("-", "as before", unknown=now.facts.why_missing("mounted"))
    found = [
        _finding(
            "storage_mounts", place, Severity.FAIL,
            f"the kernel turned the file system of {place} read-only: its disk or server failed", "ro",
            CauseClass.HARDWARE,
        )
        for place in here
        if now.facts.number(place, "turned_read_only") == 1
    ]  # fmt: skip
    if before is not None and comparable(now, before):
        found += [
            _finding(
                "storage_mounts", place, Severity.WARN,
                f"{place} ({before.facts.get(place, 'mounted')}) was mounted and is not any more", "gone",
                CauseClass.EITHER,
            )
            for place in before.facts.places_with("mounted")
            if place not in here and before.facts.number(place, "shared") == 1
        ]  # fmt: skip
    return Outcome(f"{len(here)} mounted", "as before", tuple(found))


def judge_lustre(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """What does the Lustre client say of itself?"""
    del before, policy
    said = now.facts.get(NODE, "lustre")
    if said is None:
        return Outcome("-", "healthy", unknown="no Lustre here")
    if str(said) == "healthy":
        return Outcome("healthy", "healthy")
    sentence = f"Lustre says of itself: {said}; if all nodes say so, it is the file servers"
    found = _finding("storage_lustre", "lustre", Severity.FAIL, sentence, said, CauseClass.EITHER)
    return Outcome(str(said), "healthy", (found,))


FAMILY = Family(
    NAME,
    5.0,
    read,
    (
        Check("storage_mounts", NAME, "file systems stay mounted", judge_mounts, 60.0),
        Check("storage_lustre", NAME, "Lustre says it is healthy", judge_lustre, 60.0),
    ),
)
