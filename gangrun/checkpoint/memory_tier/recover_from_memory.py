"""Writes a step from the memory of nodes to the disk, rebuilds what no node holds, and makes a checkpoint of it.

Each node writes its files into one staging directory of the attempt that saved them. The holder of the term then checks
that all are there and renames the directory out, before that attempt is sealed. So a recovery that comes too late finds
its staging sealed, like any late commit. Bytes are verified when the resume point is chosen.

Files that no node holds any more are rebuilt from the parity record and from nothing else: what is rebuilt has the
checksums of that record, or is not there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack

from gangrun.checkpoint.commit import bears
from gangrun.checkpoint.formats.manifest import screen
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName
from gangrun.checkpoint.parity.code import PIECE_BYTES, CannotRebuild, GivenUp, Span, rebuild
from gangrun.checkpoint.records import sync_directory
from gangrun.checkpoint.scan import MACHINE_FOLDER
from gangrun.wire.manifest import MANIFEST_NAME, is_inside
from gangrun.wire.protection import Code, CodedFile, Protection

_PIECE_BYTES = 64 * 1024 * 1024
GIVEN_UP = "gangrun stopped writing this step: a newer request replaced it"
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
    kept: KeeperClient, name: StepName, files: Iterable[str], into: str, given_up: Callable[[], bool] = lambda: False
) -> int:
    """Write these files durably; the bytes written. OSError where memory or disk will not, or who asked will not."""
    with contextlib.suppress(FileExistsError):  # another node was faster
        os.mkdir(into, mode=0o755)
    written = 0
    for file in files:
        if not is_inside(file) or "/" in file:
            raise KeeperRefused(f"{file!r} is no file of a checkpoint")
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
                raise KeeperRefused(GIVEN_UP)
            count = os.sendfile(target, source, at, min(_PIECE_BYTES, size - at))
            if count == 0:
                raise KeeperRefused(f"{os.path.basename(path)} ends at {at} of {size} bytes")
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
        return f"step {step} is on disk already"
    judged = screen(path, step)
    if judged.level is None or judged.nonce != nonce:
        return judged.why or "the files belong to another save of this step"
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


def rebuild_files(
    record: Protection, names: Collection[str], into: str, ended: Callable[[], bool] = lambda: False
) -> int:
    """Rebuild these files from parity, durably, beside the others; the bytes written. ``ended`` is asked before each
    piece. OSError, ``CannotRebuild`` or ``GivenUp``: none of the files is there.
    """
    missing = set(names)
    written = 0
    for code in record.codes:
        wanted = [n for n, files in enumerate(code.members) if missing & {file.name for file in files}]
        if wanted:
            written += _Making(code, wanted, into, ended).made(missing)
            missing -= {file.name for n in wanted for file in code.members[n]}
    if missing:
        raise CannotRebuild(f"nothing tells how {min(missing)!r} was coded")
    sync_directory(into)
    return written


class _Making:
    """The lost members of one code. Their files appear under their names once all of them are whole."""

    def __init__(self, code: Code, wanted: list[int], into: str, ended: Callable[[], bool]) -> None:
        self._code, self._wanted, self._into, self._ended = code, wanted, into, ended
        self._partial = {file: partial_name(os.path.join(into, file.name)) for n in wanted for file in code.members[n]}
        self._pieces_count = 0

    def made(self, names: Collection[str]) -> int:
        """``names``: those of them that are missing; what is there stays as it is."""
        try:
            with ExitStack() as stack:
                self._run(stack)
            for file, partial in self._partial.items():
                if file.name in names:
                    os.rename(partial, os.path.join(self._into, file.name))
        finally:
            for partial in self._partial.values():
                if os.path.exists(partial):
                    os.unlink(partial)
        return sum(file.size for file in self._partial if file.name in names)

    def _run(self, stack: ExitStack) -> None:
        rows = {n: self._row(stack, files) for n, files in enumerate(self._code.members) if n not in self._wanted}
        outputs = {n: self._new(stack, self._code.members[n]) for n in self._wanted}
        for number, stripe in enumerate(self._code.stripes):
            held: dict[int, Span] = {}
            wanted: dict[int, Span] = {}
            for shard, member in enumerate(stripe.members):
                if member in outputs:
                    wanted[shard] = outputs[member].cut(*self._code.piece(number, member))
                elif (row := rows[member]) is not None:
                    held[shard] = row.cut(*self._code.piece(number, member))
            for shard, name in enumerate(stripe.parity, len(stripe.members)):
                if (descriptor := self._opened(stack, name)) >= 0:
                    held[shard] = Span(((descriptor, 0, os.fstat(descriptor).st_size),))
            rebuild(stripe.layout, held, wanted, tick=lambda: self._tick(outputs))
        for row in outputs.values():
            for descriptor, _, _ in row.parts:
                os.fsync(descriptor)

    def _tick(self, outputs: Mapping[int, Span]) -> None:
        if self._ended():
            raise GivenUp(GIVEN_UP)
        self._pieces_count += 1
        if self._pieces_count % (SYNC_BYTES // PIECE_BYTES) == 0:
            for row in outputs.values():
                for descriptor, _, _ in row.parts:
                    os.fdatasync(descriptor)

    def _row(self, stack: ExitStack, files: tuple[CodedFile, ...]) -> Span | None:
        """The bytes of one member, one file after the other; None where one is not here."""
        descriptors = [self._opened(stack, file.name) for file in files]
        if -1 in descriptors:
            return None
        return Span(tuple((fd, 0, file.size) for fd, file in zip(descriptors, files, strict=True)))

    def _new(self, stack: ExitStack, files: tuple[CodedFile, ...]) -> Span:
        parts = []
        for file in files:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._partial[file], flags, 0o644)
            stack.callback(os.close, descriptor)
            os.truncate(descriptor, file.size)
            parts.append((descriptor, 0, file.size))
        return Span(tuple(parts))

    def _opened(self, stack: ExitStack, name: str) -> int:
        try:
            descriptor = os.open(os.path.join(self._into, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return -1  # nobody brought it, and it may not be needed
        stack.callback(os.close, descriptor)
        return descriptor
