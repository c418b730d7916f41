"""Makes files of a step again that nobody holds any more, from what others brought to the disk.

By the record of parity and by nothing else. Whatever is made has the checksums that the record tells, or is not there;
the manifest's are proven later, with all other files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack

from gangrun.checkpoint.commit import sync_directory
from gangrun.checkpoint.memory_tier.recover_from_memory import GIVEN_UP, SYNC_BYTES, partial_name
from gangrun.checkpoint.parity.code import CannotRebuild, GivenUp, rebuild
from gangrun.checkpoint.parity.places import PIECE_BYTES, Place, Span
from gangrun.wire.protection import Code, File, Protection


def make_again(record: Protection, names: Collection[str], into: str, ended: Callable[[], bool] = lambda: False) -> int:
    """Write these files durably beside the others; the bytes written. OSError, ``CannotRebuild`` or ``GivenUp`` (since
    it is ``ended``, which is asked before each piece): none of them.
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
            held: dict[int, Place] = {}
            wanted: dict[int, Place] = {}
            for shard, member in enumerate(stripe.members):
                if member in outputs:
                    wanted[shard] = outputs[member].cut(*self._code.piece(number, member))
                elif (row := rows[member]) is not None:
                    held[shard] = row.cut(*self._code.piece(number, member))
            for shard, name in enumerate(stripe.parity, len(stripe.members)):
                if (descriptor := self._opened(stack, name)) >= 0:
                    held[shard] = descriptor
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

    def _row(self, stack: ExitStack, files: tuple[File, ...]) -> Span | None:
        """The bytes of one member, one file after the other; None where one is not here."""
        descriptors = [self._opened(stack, file.name) for file in files]
        if -1 in descriptors:
            return None
        return Span(tuple((fd, 0, file.size) for fd, file in zip(descriptors, files, strict=True)))

    def _new(self, stack: ExitStack, files: tuple[File, ...]) -> Span:
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
