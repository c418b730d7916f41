"""Writes this rank's part of a save, and of that only what changed since the last commit.

A file whose tensors are byte for byte what they were is linked to the last commit's (a hard link: nothing can dangle,
whichever goes first). A digest of each tensor decides, compared with what was written; a flag never does. After
``full_every`` checkpoints a file is written anew, so that damage to it reaches no more than those. Where links fail it
is written as well.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.distributed.checkpoint.metadata import MetadataIndex

from gangrun.core.checkpoints.retention import Keep
from gangrun.training.save.plan import Grouping, PlannedFile
from gangrun.training.save.shard_file import ShardFile, TensorPiece
from gangrun.training.save.snapshot import Snapshot
from gangrun.wire.manifest import FileRow

try:  # chance is all there is to guard against, and 128 bits do that, as fast as memory is read
    from xxhash import xxh3_128_digest as digest_of
except ImportError:  # pragma: no cover - every platform we test on has it; SHA-256 takes ten times as long
    from hashlib import sha256

    def digest_of(data: memoryview) -> bytes:  # type: ignore[misc]  # as xxhash types it
        """What tells bytes apart."""
        return sha256(data).digest()


FULL_EVERY = 10
_UNDURABLE_COUNT = 16  # open files
_NEVER_HERE = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)  # not of one file: of the file system


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one rank wrote: its files' rows, and where its objects stand; or why it could not."""

    rows: tuple[FileRow, ...] = ()
    objects: tuple[tuple[str, MetadataIndex, int, int], ...] = ()  # file, index, offset, length
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _Held:
    """A file of a commit that a later one may link to. ``uses_count``: how many checkpoints it is in."""

    row: FileRow
    mark: tuple[int, int, int, int]
    digests: tuple[bytes, ...]
    uses_count: int = 1


def full_every(keep: Keep, asked: int | None) -> int:
    """How many checkpoints may share a file: among those kept one shares nothing with the newest, unless asked for."""
    if asked is not None:
        if asked < 1:
            raise ValueError(f"full_every is how many checkpoints may share a file, 1 or more, not {asked}")
        return asked
    return min(FULL_EVERY, keep.newest_count - 1) if keep.newest_count else FULL_EVERY


class Delta:
    """What this rank's last commit holds. Used by one thread."""

    def __init__(self, directory: str, full_every_count: int, grouping: Grouping) -> None:
        self._directory, self._full_every, self._grouping = directory, full_every_count, grouping
        self._may_link = full_every_count > 1
        self._commit = ""  # its directory's name
        self._held: dict[object, _Held] = {}
        self._written: dict[object, _Held] = {}
        self._undurable: deque[ShardFile] = deque()
        self._anew: list[tuple[object, FileRow, tuple[bytes, ...]]] = []
        self._crcs: dict[MetadataIndex, int] = {}
        self._still: set[MetadataIndex] = set()
        self._new: set[MetadataIndex] = set()

    def write(self, path: str, snapshot: Snapshot) -> WrittenPart:
        """Write or link this rank's files into ``path``. What went wrong is in the answer."""
        self._written, self._still, self._new, self._anew = {}, set(), set(), []
        rows: list[FileRow] = []
        objects: tuple[tuple[str, MetadataIndex, int, int], ...] = ()
        try:
            for number, (file, mine, given) in enumerate(snapshot.contents()):
                if number:
                    rows.append(self._still_file(path, file, mine))
                elif mine or given:
                    shard = self._begun(path, file.name)
                    self._write_tensors(shard, file, mine)
                    objects = tuple((file.name, index, shard.write_bytes(data), len(data)) for index, data in given)
                    rows.append(shard.written())
            for shard in self._undurable:
                shard.close()
            for key, row, digests in self._anew:
                self._written[key] = _Held(row, _mark(os.path.join(path, row.path)), digests)
        except OSError as error:
            return WrittenPart(failure=f"{error.strerror or error}")
        finally:
            while self._undurable:
                self._undurable.pop().abort()
        return WrittenPart(tuple(rows), objects)

    def committed(self, step: int, snapshot: Snapshot) -> None:
        """What was written last has become the checkpoint of ``step``."""
        self._commit, self._held = f"step-{step}", self._written
        if self._may_link:
            sized = [(place.index, place.template.data_bytes) for place in snapshot.plan.tensors]
            self._grouping.seen(sized, self._new, self._still)

    def _still_file(self, path: str, file: PlannedFile, pieces: Sequence[TensorPiece]) -> FileRow:
        key = tuple((place.index, place.dtype, place.shape) for place in file.tensors)
        held = self._held.get(key) if self._may_link else None
        digests = _digests(pieces, held.digests) if held is not None else []
        if held is not None and tuple(digests) == held.digests and held.uses_count < self._full_every:
            linked = self._linked(held, path, file.name)
            if linked is not None:
                self._written[key] = linked
                return linked.row
        shard = self._begun(path, file.name)
        self._write_tensors(shard, file, pieces)
        row = shard.written()
        if self._may_link:
            digests += [digest_of(piece.data) for piece in pieces[len(digests) :]]
            self._anew.append((key, row, tuple(digests)))
        return row

    def _begun(self, path: str, name: str) -> ShardFile:
        """A new file. It is made durable after others were written, so that the disk never waits for the processor."""
        if len(self._undurable) >= _UNDURABLE_COUNT:
            self._undurable[0].close()
            self._undurable.popleft()
        self._undurable.append(ShardFile(path, name))
        return self._undurable[-1]

    def _write_tensors(self, shard: ShardFile, file: PlannedFile, pieces: Sequence[TensorPiece]) -> None:
        for place, piece in zip(file.tensors, pieces, strict=True):
            crc = shard.write_tensor(piece)
            self._new.add(place.index)
            if self._crcs.get(place.index) == crc:
                self._still.add(place.index)
            self._crcs[place.index] = crc

    def _linked(self, held: _Held, path: str, name: str) -> _Held | None:
        """The last commit's file under its new name; None where that could not be, or is another file by now."""
        source, target = os.path.join(self._directory, self._commit, held.row.path), os.path.join(path, name)
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            self._may_link = error.errno not in _NEVER_HERE
            return None
        if _mark(target) != held.mark:
            os.unlink(target)
            return None
        row = FileRow(name, held.row.size, held.row.crcs, f"{self._commit}/{held.row.path}")
        return replace(held, row=row, uses_count=held.uses_count + 1)


def _digests(pieces: Sequence[TensorPiece], known: Sequence[bytes]) -> list[bytes]:
    """Up to the first that differs from what is known."""
    found: list[bytes] = []
    for piece, expected in zip(pieces, known, strict=True):
        found.append(digest_of(piece.data))
        if found[-1] != expected:
            break
    return found


def _mark(path: str) -> tuple[int, int, int, int]:
    """Which file this is, and that nobody wrote to it since. A link changes the time of its last change only."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
