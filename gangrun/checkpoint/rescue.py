"""Room: checkpoint. Brings a step that is in the memory of nodes to the disk, and makes a checkpoint of it.

Each node writes its files into one staging directory of the attempt that made them; whoever holds the term then looks
whether all are there and renames it out, before that attempt is sealed. So a rescue that comes too late finds its
staging sealed, like any late commit. Bytes are proven when the resume point is chosen. Next: ``kept``, ``commit``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from gangrun.checkpoint.commit import bears, sync_directory
from gangrun.checkpoint.kept import Kept, NotKept, StepName
from gangrun.checkpoint.manifest_verify import screen
from gangrun.checkpoint.scan import MACHINE_FOLDER
from gangrun.wire.manifest import MANIFEST_NAME, is_inside

_PIECE_BYTES = 64 * 1024 * 1024


def staging_of(directory: str, run: str) -> Callable[[int, int], str]:
    """Where steps of an attempt are brought to, by the term that asks and the attempt; sealed with the attempt."""
    base = os.path.join(directory, MACHINE_FOLDER, run.replace("/", "_"))
    return lambda term, attempt: os.path.join(base, str(term), f"{attempt}-memory")


def bring(kept: Kept, name: StepName, files: Iterable[str], into: str) -> int:
    """Write these files durably; the bytes written. OSError where memory or disk will not."""
    os.makedirs(into, mode=0o755, exist_ok=True)
    written = 0
    for file in files:
        if not is_inside(file) or "/" in file:
            raise NotKept(f"{file!r} is no file of a checkpoint")
        with kept.opened(name, file) as source:
            written += _copied(source, os.path.join(into, file))
    sync_directory(into)
    return written


def _copied(source: int, path: str) -> int:
    size, at = os.fstat(source).st_size, 0
    partial = f"{path}.{os.getpid()}.partial"
    target = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        while at < size:
            count = os.sendfile(target, source, at, min(_PIECE_BYTES, size - at))
            if count == 0:
                raise NotKept(f"{os.path.basename(path)} ends at {at} of {size} bytes")
            at += count
        os.fsync(target)
    finally:
        os.close(target)
    os.rename(partial, path)
    return at


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
