"""Brings a step that is in the memory of nodes to the disk, and makes a checkpoint of it.

Each node writes its files into one staging directory of the attempt that made them; whoever holds the term then looks
whether all are there and renames it out, before that attempt is sealed. So a rescue that comes too late finds its
staging sealed, like any late commit. Bytes are proven when the resume point is chosen.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable

from gangrun.checkpoint.commit import bears, sync_directory
from gangrun.checkpoint.formats.own import screen
from gangrun.checkpoint.memory_tier.keeper_client import Kept, NotKept, StepName
from gangrun.checkpoint.scan import MACHINE_FOLDER
from gangrun.wire.manifest import MANIFEST_NAME, is_inside

_PIECE_BYTES = 64 * 1024 * 1024
GIVEN_UP = "it was given up for something newer"
SYNC_BYTES = 512 * 1024 * 1024  # no more waits for the disk at once, since nobody hears in that time that it is over


def staging_of(directory: str, run: str) -> Callable[[int, int], str]:
    """Where steps of an attempt are brought to, by the term that asks and the attempt; sealed with the attempt."""
    base = os.path.join(directory, MACHINE_FOLDER, run.replace("/", "_"))
    return lambda term, attempt: os.path.join(base, str(term), f"{attempt}-memory")


def open_staging(path: str) -> str:
    """Before anybody writes there: who writes never makes it, so once it was sealed nothing comes any more."""
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
        for left in os.listdir(path):
            shutil.rmtree(os.path.join(path, left), ignore_errors=True)  # of one that was given up
    except OSError as error:
        return error.strerror or str(error)
    return ""


def bring(
    kept: Kept, name: StepName, files: Iterable[str], into: str, given_up: Callable[[], bool] = lambda: False
) -> int:
    """Write these files durably; the bytes written. OSError where memory or disk will not, or who asked will not."""
    with contextlib.suppress(FileExistsError):  # another node was faster
        os.mkdir(into, mode=0o755)
    written = 0
    for file in files:
        if not is_inside(file) or "/" in file:
            raise NotKept(f"{file!r} is no file of a checkpoint")
        with kept.opened(name, file) as source:
            written += _copied(source, os.path.join(into, file), given_up)
    sync_directory(into)
    return written


def _copied(source: int, path: str, given_up: Callable[[], bool]) -> int:
    size, at = os.fstat(source).st_size, 0
    partial = partial_name(path)
    target = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        while at < size:
            if given_up():
                raise NotKept(GIVEN_UP)
            count = os.sendfile(target, source, at, min(_PIECE_BYTES, size - at))
            if count == 0:
                raise NotKept(f"{os.path.basename(path)} ends at {at} of {size} bytes")
            at += count
            if at % SYNC_BYTES < count:
                os.fdatasync(target)
        os.fsync(target)
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    finally:
        os.close(target)
    return at


def partial_name(path: str) -> str:
    """Nobody else's: who was given up may still write the same file, here or on another node."""
    return f"{path}.{secrets.token_hex(8)}.partial"


def adopt(path: str, directory: str, step: int, nonce: str) -> str:
    """Make ``path`` the checkpoint of ``step``; "" or why not. Nothing that stands is ever replaced."""
    target = os.path.join(directory, f"step-{step}")
    if bears(target, nonce):
        return ""
    if os.path.lexists(target):
        return f"step {step} stands on disk already"
    judged = screen(path, step)
    if judged.level is None or judged.nonce != nonce:
        return judged.why or "it is another save"
    extra = set(os.listdir(path)) - {MANIFEST_NAME, *(name for name, _ in judged.marks)}
    try:
        for name in extra:
            os.unlink(os.path.join(path, name))  # what an agent left half written when it died
        os.rename(path, target)
    except OSError as error:
        if not bears(target, nonce):
            return f"it could not be committed: {error.strerror or error}"
    sync_directory(directory)
    return ""


def discard(path: str, *, more: bool = False) -> None:
    """What was brought, or half, and will be no checkpoint; and the attempt's staging where that is empty, unless there
    is ``more`` to be brought: who brings it does not make that.
    """
    shutil.rmtree(path, ignore_errors=True)
    if not more:
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(path))
