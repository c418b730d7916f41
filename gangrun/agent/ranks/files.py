"""Small files of the ranks of one attempt, in node-local memory.

Nothing here may be on a shared disk: a rank that dies writes here, the agent reads it at once, and a file server that
stands still must delay neither. What is worth keeping goes into the run directory later. An agent that dies with its
warden leaves its files behind; ``sweep`` finds those by the lock that nobody holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HELD = ".held"  # locked by whoever uses the directory that it lies in: no lock outlives its process
HOLD_TRIES_COUNT, HOLD_AGAIN_S = 50, 0.02
_SWEPT = ".swept-"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank."""

    slot: Path  # progress, see wire/progress.py
    error: Path  # node/boot.py's account of the exception that ended it
    torchelastic_error: Path  # the same by torch's ``record`` decorator, where the script uses it
    stack: Path  # faulthandler's dumps on request
    signals: Path  # grows when TERM, USR1 or USR2 meets a script without a handler of its own
    orders: Path  # one byte for each signal that the agent sends to the rank: its number


class AttemptFiles:
    """The directory of one attempt on one node; created empty, mode 0700."""

    def __init__(self, root: Path, run: str, node: str, attempt: int) -> None:
        top = top_of(root)
        self.base = top / run / node
        self.directory = self.base / str(attempt)
        # Somebody else's directory under our name would let them read and forge what ranks say.
        top.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(top):
            raise PermissionError(f"{top} belongs to another user: remove it")
        self._held = _hold(self.base)
        try:
            for left in _directories(self.base) if self._held >= 0 else (self.directory,):
                shutil.rmtree(left, ignore_errors=True)
            self.directory.mkdir(mode=0o700, parents=True)
        except OSError:
            self._let_go()
            raise

    def of(self, rank: int) -> RankFiles:
        """The names of one rank's files; none is created here."""
        stem = self.directory / f"rank-{rank}"
        return RankFiles(
            slot=stem.with_suffix(".slot"),
            error=stem.with_suffix(".error.json"),
            torchelastic_error=stem.with_suffix(".torchelastic.json"),
            stack=stem.with_suffix(".stack"),
            signals=stem.with_suffix(".signals"),
            orders=stem.with_suffix(".orders"),
        )

    def remove(self) -> None:
        """Take the directory away, and its parents if nothing else is in them."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self._held >= 0 and os.listdir(self.base) == [HELD]:
                (self.base / HELD).unlink()
            self.base.rmdir()
            self.base.parent.rmdir()
        self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


def top_of(root: Path) -> Path:
    """Where all small files of this user lie on this node."""
    return root / f"gangrun-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _hold(base: Path) -> int:
    """Lock ``base`` for as long as this process lives; -1 where another one has it, or locks do not work there."""
    for _ in range(HOLD_TRIES_COUNT):
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(base / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (FileNotFoundError, FileExistsError):  # it was there, and was swept meanwhile
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(fd, base / HELD):
                return fd
        except BlockingIOError:
            threading.Event().wait(HOLD_AGAIN_S)  # whoever sweeps has it for a moment only
        except OSError:
            os.close(fd)
            return -1
        os.close(fd)
    return -1


def _is_still(fd: int, path: Path) -> bool:
    """Is what was locked still what lies there?"""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def sweep(root: Path) -> list[str]:
    """Remove what agents of this user left here that are gone; the runs' ids. Whatever is not surely left stays."""
    top = top_of(root)
    try:
        if not _is_ours(top):
            return []
        for entry in top.glob(f"{_SWEPT}*"):  # of a sweeper that was killed
            shutil.rmtree(entry, ignore_errors=True)
        bases = [base for run in _directories(top) for base in _directories(run)]
    except OSError:
        return []
    return sorted({base.parent.name for base in bases if _sweep_one(top, base)})


def _directories(parent: Path) -> Iterator[Path]:
    with os.scandir(parent) as entries:
        yield from (Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False))


def _sweep_one(top: Path, base: Path) -> bool:
    try:
        fd = os.open(base / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # nobody says whose it is
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(fd, base / HELD):
            return False
        away = top / f"{_SWEPT}{secrets.token_hex(6)}"
        base.rename(away)  # at once and whole: who takes the name now gets an empty directory
    except OSError:
        return False
    finally:
        os.close(fd)
    shutil.rmtree(away, ignore_errors=True)
    with contextlib.suppress(OSError):
        base.parent.rmdir()
    return True
