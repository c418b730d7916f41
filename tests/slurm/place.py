"""Where a test cluster lives: one folder that no living cluster uses, kept by a lock; and what the machine must have.

The lock goes with the process that holds it, so a folder without one belongs to nobody and is removed by the next.
"""

from __future__ import annotations

import fcntl
import functools
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import IO

from tests.slurm import reach

PLACES = tuple(Path(f"/tmp/gangrun-cluster-{number}") for number in range(8))
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "tc", "nsenter", "unshare", "setpriv")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_UID = 64700


@functools.cache
def missing() -> tuple[str, ...]:
    """What this machine lacks for a cluster: programs, or the right to make namespaces, as in a plain container."""
    absent = tuple(program for program in PROGRAMS if shutil.which(program, path=PATH) is None)
    if not absent:
        tried = subprocess.run(
            ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "true"],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        absent = (f"namespaces ({tried.stderr.strip()})",) if tried.returncode else ()
    return absent


def lock_of(place: Path) -> tuple[IO[str] | None, str]:
    """The place's lock, if it is free; otherwise what its holder wrote into it."""
    while True:
        lock = place.with_suffix(".lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            with lock:
                return None, lock.read().strip()
        try:
            if os.fstat(lock.fileno()).st_ino == place.with_suffix(".lock").stat().st_ino:
                return lock, ""
        except FileNotFoundError:
            pass
        lock.close()  # its last holder removed the file while it was opened here


def take_place() -> tuple[Path, IO[str]]:
    """A place of one's own. What dead clusters left in this one and the others is removed."""
    taken: tuple[Path, IO[str]] | None = None
    owners = []
    for place in PLACES:
        lock, owner = lock_of(place)
        if lock is None:
            owners.append(owner)
        elif taken is None and emptied(place):
            lock.truncate(0)
            lock.write(f"pid {os.getpid()} in {reach.ROOT}")
            lock.flush()
            taken = place, lock
        else:
            leave_place(place, lock)
    if taken is None:
        raise AssertionError(f"no more than {len(PLACES)} test clusters fit here; they belong to: {'; '.join(owners)}")
    return taken


def emptied(place: Path) -> bool:
    """Remove the folder, and what a killed test left mounted in it. False if something of it cannot be removed."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mounted in sorted((point for point in mounts if Path(point).is_relative_to(place)), reverse=True):
        subprocess.run(["umount", "--lazy", mounted], timeout=100, check=False)
    shutil.rmtree(place, ignore_errors=True)
    return not place.exists()


def leave_place(place: Path, lock: IO[str]) -> None:
    """Nothing of it stays."""
    emptied(place)
    Path(lock.name).unlink(missing_ok=True)
    lock.close()


def free_uid() -> int:
    """A number that no user of this machine has."""
    used = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(FIRST_UID, FIRST_UID + 100) if uid not in used)
