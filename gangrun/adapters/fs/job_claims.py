"""Claims by link(2): how any is made, and which process holds which place in the sequence of jobs.

A claim comes into the world whole, and one of many claimants gets it. After an error nobody knows whether the claim is
there: who holds the place is read, and a claim of our own process is ours, whatever the reply was. If nobody is seen to
hold the place the error goes to the caller, who asks again (``insist``) or tells a person: it never means that another
was first. Each batch script, and each local ``gangrun run``, claims ``jobs/<seq>.json`` before it starts anything; the
loser leaves. No scheduler is asked here: the caller says whether an owner is gone.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from gangrun.adapters.fs.disk import ABSENT, REFUSED, Disk
from gangrun.adapters.fs.run_dir import RunPaths

T = TypeVar("T")

UNREADABLE_VOID_AFTER_S = 5.0
INSIST_FIRST_S, INSIST_MAX_S = 0.25, 10.0
INSIST_WITHIN_S = 3600.0  # where the policy's ``waiting_max_s`` is not known
LINK_MISSING = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


def wait(seconds: float) -> None:
    """Sleep, for whoever looks again and again at start."""
    threading.Event().wait(seconds)


def insist(
    operation: Callable[[], T],
    say: Callable[[str], None],
    wait: Callable[[float], None] = wait,
    within_s: float = INSIST_WITHIN_S,
) -> T:
    """Ask until the file system gives an answer, first soon, then every 10 s; ``say`` hears each new reason once.

    What will never get better (``REFUSED``) is raised, and the last error after pauses of ``within_s`` in all: whoever
    gives up leaves a run that nobody else goes on with, and whoever never does holds its nodes for nothing.
    """
    asking = Asking(say, within_s)
    while True:
        try:
            return operation()
        except OSError as error:
            pause_s = asking.pause_s(error)
        wait(pause_s)


@dataclass(slots=True)
class Asking:
    """What is said of errors between two tries, and how long to wait: for ``insist``, and for who must not sleep."""

    say: Callable[[str], None]
    within_s: float = INSIST_WITHIN_S
    _said: str = ""
    _pause_s: float = INSIST_FIRST_S
    _waited_s: float = 0.0

    def pause_s(self, error: OSError) -> float:
        """Before the next try; ``error`` is raised if it never gets better, or the pauses so far are ``within_s``."""
        if isinstance(error, REFUSED) or self._waited_s >= self.within_s:
            raise error
        why = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if why != self._said:
            self.say(f"the run directory does not answer as it should ({why}): nothing is started, asking again")
            self._said = why
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, INSIST_MAX_S)
        self._waited_s += pause_s
        return pause_s


def temporary_tag(host: str, job: str, pid: int, start_ticks: int) -> str:
    """What tells one claimant's temporary name from any other's."""
    who = zlib.crc32(f"{host}\0{job}".encode("utf-8", "surrogateescape"))
    return f"{who:08x}-{pid}-{start_ticks}"


def link_whole(disk: Disk, temporary: Path, target: Path, data: bytes) -> None:
    """Written aside and linked to its name; where links are missing, made under its name at once. ``OSError``."""
    try:
        disk.discard((temporary,))
        disk.write_new(temporary, data)
        try:
            disk.link(temporary, target)
        except OSError as error:
            if error.errno not in LINK_MISSING:
                raise
            _write_at_once(disk, target, data)
        disk.fsync_dir(target.parent)
    finally:
        disk.discard((temporary,))


def _write_at_once(disk: Disk, target: Path, data: bytes) -> None:
    fd = disk.create(target)
    try:
        disk.write_all(fd, data, target)
        disk.fsync(fd, target)
    except OSError:
        disk.discard((target,))  # it was made by us, and a half-written claim would be in everybody's way
        raise
    finally:
        disk.close(fd)


_LOOK_EVERY_S = 0.05
_PLACE = re.compile(r"(?P<seq>[0-9]+)(?:\.(?P<generation>[0-9]+))?\.json")


class JobClaim(msgspec.Struct, frozen=True):
    """One process's hold of place ``seq``; ``restart`` is the scheduler's restart count of ``job``."""

    seq: int
    job: str
    restart: int
    host: str
    pid: int
    start_ticks: int
    launch: int = 0  # how often its step was started anew, in this stay
    v: int = 1

    @property
    def token(self) -> str:
        """What tells this stay of the job from any other: a requeued job has the same number and other processes."""
        return f"{self.job}r{self.restart}.{self.launch}" if self.restart or self.launch else self.job


def plain_job(token: str) -> str:
    """The scheduler's number of a job, of whichever stay."""
    return token.partition("r")[0]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The place is ours."""

    claim: JobClaim


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else has the place (``holder`` None: it cannot be read): leave, with this sentence."""

    holder: JobClaim | None
    why: str


@dataclass(slots=True)
class JobClaims:
    """Claims under ``.gangrun/jobs``. Generations of a place (``<seq>.<g>.json``) let a requeued job re-claim it."""

    paths: RunPaths
    disk: Disk = field(default_factory=Disk)
    wait: Callable[[float], None] = wait

    def claim(self, wish: JobClaim) -> Claimed | Taken:
        """Take the place: free, held by the same job with lower counts, or ours already.

        ``OSError``: nobody is known to hold it, so it may be ours by now; ask again with the same wish.
        """
        generation = 0
        while True:
            while self.disk.exists(self.paths.job(wish.seq, generation)):
                generation += 1
            if generation > 0:
                holder = self._read_patiently(wish.seq, generation - 1)
                if holder == wish:
                    self.disk.fsync_dir(self.paths.jobs)
                    return Claimed(wish)
                if why := _refusal(wish, holder):
                    return Taken(holder, why)
            try:
                self._link(wish, generation)
            except OSError:
                # Another was first, or only the reply to our own link was lost: whoever is seen to hold it has it.
                if not self.disk.exists(self.paths.job(wish.seq, generation)):
                    raise
                continue
            return Claimed(wish)

    def holder(self, seq: int) -> JobClaim | None:
        """The newest claim of ``seq`` that makes sense. ``OSError``: not known."""
        generation = 0
        found: JobClaim | None = None
        while self.disk.exists(self.paths.job(seq, generation)):
            found = self._read_patiently(seq, generation) or found
            generation += 1
        return found

    def all(self) -> tuple[JobClaim, ...]:
        """Every stay of every job that makes sense, oldest first. ``OSError``: not known."""
        places = (_PLACE.fullmatch(name) for name in self._names())
        keys = sorted((int(found["seq"]), int(found["generation"] or 0)) for found in places if found)
        return tuple(claim for key in keys if (claim := self._read(*key)) is not None)

    def highest(self) -> int:
        """The highest place seen claimed; -1: none seen. A lower bound, no proof. ``OSError``: not known."""
        seen = (int(name[:-5]) for name in self._names() if name.endswith(".json") and name[:-5].isdecimal())
        highest = max(seen, default=-1)
        while self.disk.exists(self.paths.job(highest + 1)):
            highest += 1
        return highest

    def _names(self) -> tuple[str, ...]:
        try:
            return self.disk.names(self.paths.jobs)
        except ABSENT:
            return ()

    def claim_next(self, make: Callable[[int], JobClaim], owner_gone: Callable[[JobClaim], bool]) -> Claimed | Taken:
        """Take the place after the highest one, if the owner of that one is gone (or there is none)."""
        highest = self.highest()
        if highest >= 0:
            holder = self.holder(highest)
            if holder is not None and not owner_gone(holder):
                return Taken(holder, _words(holder))
        return self.claim(make(highest + 1))

    def _read_patiently(self, seq: int, generation: int) -> JobClaim | None:
        """Where link is missing a claim may be half-written for a moment; after 5 s it is void."""
        for _ in range(int(UNREADABLE_VOID_AFTER_S / _LOOK_EVERY_S)):
            if (found := self._read(seq, generation)) is not None:
                return found
            self.wait(_LOOK_EVERY_S)
        return None

    def _read(self, seq: int, generation: int) -> JobClaim | None:
        try:
            return msgspec.json.decode(self.disk.read(self.paths.job(seq, generation)), type=JobClaim)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _link(self, wish: JobClaim, generation: int) -> None:
        target = self.paths.job(wish.seq, generation)
        tag = temporary_tag(wish.host, wish.job, wish.pid, wish.start_ticks)
        link_whole(self.disk, self.paths.temporary(target, tag), target, msgspec.json.encode(wish) + b"\n")


def _refusal(wish: JobClaim, holder: JobClaim | None) -> str:
    if holder is None:
        return f"place {wish.seq} is claimed by a file that cannot be read"
    if holder.job != wish.job:
        return _words(holder)
    if (holder.restart, holder.launch) >= (wish.restart, wish.launch):
        return f"job {wish.job} (restart {holder.restart}) already runs this: {_words(holder)}"
    return ""


def _words(holder: JobClaim) -> str:
    return f"place {holder.seq} is held by job {holder.job} (process {holder.pid} on {holder.host})"


# ---- the numbers that the scheduler gave the jobs: a job that never began leaves no other trace ----

ID_BYTES_MAX = 64


def note_job_id(paths: RunPaths, seq: int, job: str) -> None:
    """Job ``job`` was submitted for place ``seq``; of several the last."""
    path = _id_path(paths, seq)
    try:
        Disk().replace(path, job.encode(), path.with_name(f".{path.name}.{os.getpid()}.tmp"))
    except OSError:
        return  # it runs all the same


def noted_job_id(paths: RunPaths, seq: int, before: float) -> str:
    """The job that was submitted for place ``seq`` before that wall time; "" if none is known."""
    path, disk = _id_path(paths, seq), Disk()
    try:
        early = disk.lstat(path).st_mtime < before
        return disk.read(path, limit=ID_BYTES_MAX).decode("ascii", "replace") if early else ""
    except OSError:
        return ""


def _id_path(paths: RunPaths, seq: int) -> Path:
    return paths.batch_scripts / f"job-{seq}.number"
