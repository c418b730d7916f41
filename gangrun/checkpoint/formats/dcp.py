"""Judges one plain DCP directory: *complete* by its structure, *verified* by every checksum in it.

What cannot be seen from outside, because nothing in the format binds it: a shard that another step of the same run left
whole and with the same layout, and a renamed entry in ``.metadata`` (it carries no checksum of its own).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from hashlib import blake2b
from itertools import groupby
from typing import ParamSpec

from gangrun.checkpoint.formats.dcp_metadata import (
    METADATA_MAX_BYTES,
    METADATA_NAME,
    DcpMetadata,
    MetadataRefused,
    StoredPiece,
    parse_metadata,
)
from gangrun.checkpoint.formats.torch_zip import BUFFER_BYTES, Damaged, Source, looks_like_archive, verify_archive
from gangrun.checkpoint.verification import Means, Tick, Turn, Verification, VerifyAll, verify_share
from gangrun.core.checkpoints.resume import shown
from gangrun.core.model import Level
from gangrun.wire.manifest import MANIFEST_NAME, SAVE_ID_PREFIX, ManifestError

P = ParamSpec("P")
FileMark = tuple[int, int, int, int]  # size, mtime_ns, ctime_ns, inode: a file that keeps them was not written since

SEEN_PREFIX = "seen-"  # of the name of a save that is told by how its files look; no nonce of gangrun's begins so

_BATCH_BYTES = 64 * 1024 * 1024
_MISSING = (errno.ENOENT, errno.ENOTDIR)


class BadFile(Exception):
    """A file of the checkpoint is missing or not a file; the message says which."""


class UnreadableFile(Exception):
    """The storage refused to show a file: nothing is known about its content."""


class UnknownFormat(Exception):
    """Nothing in a file's format tells whether it is whole; the message says why."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of a directory. ``level`` None: not even whole; ``why`` says what is wrong, or why not verified."""

    level: Level | None
    why: str = ""
    deep: bool = False  # the bytes were read too, as far as they carry checksums
    marks: tuple[tuple[str, FileMark], ...] = ()  # every file that counts, by relative path
    save_id: str | None = None
    entry_count: int = 0
    data_bytes: int = 0
    unreadable: bool = False
    unknown: bool = False  # nothing in its format tells whether it is whole

    @property
    def nonce(self) -> str | None:
        """Tells this save from another one into the same directory; None where nothing is known."""
        if self.save_id or not self.marks:
            return self.save_id
        _, mtime_ns, _, inode = self.marks[0][1]  # .metadata comes first
        return f"{inode}-{mtime_ns}"

    @property
    def valid(self) -> bool:
        """May be resumed from: read in full, and whole as far as its format can tell."""
        return self.deep and self.level is not None


def judged(look: Callable[P, Judgement]) -> Callable[P, Judgement]:
    """Make a judgement of what ``look`` raises about a directory."""

    @wraps(look)
    def judge(*args: P.args, **kwargs: P.kwargs) -> Judgement:
        try:
            return look(*args, **kwargs)
        except (MetadataRefused, ManifestError, BadFile, Damaged) as found:
            return Judgement(None, str(found))
        except UnreadableFile as found:
            return Judgement(None, str(found), unreadable=True)
        except UnknownFormat as found:
            return Judgement(None, str(found), unknown=True)

    return judge


@judged
def screen(directory: str) -> Judgement:
    """Structure only: ``.metadata`` makes sense, every file is there and long enough. Reads no data."""
    return _screen(directory)[0]


@judged
def verify(
    directory: str, tick: Tick | None = None, threads_count: int = 4, verify_all: VerifyAll | None = None
) -> Judgement:
    """Structure and every byte. ``verify_all`` has others read too; it does what ``verify_share`` does."""
    screened, metadata = _screen(directory)
    work = _verification(directory, screened, metadata)
    return read_through(screened, work, mark_of, tick, threads_count, verify_all)


def read_through(
    screened: Judgement, work: Verification, mark: Callable[[str, str], FileMark],
    tick: Tick | None, threads_count: int, verify_all: VerifyAll | None,
) -> Judgement:  # fmt: skip
    """What is known of a directory once all of it was read; raises damage. ``mark``: a file's identity."""
    unverified = (verify_all or verify_share)(work, tick or (lambda count: None), threads_count)
    if any(mark(work.directory, path) != before for path, before in screened.marks):
        raise BadFile("it was written to while it was being read")
    if unverified:
        return replace(screened, why=_unverified_words(unverified, screened.entry_count), deep=True)
    return replace(screened, level=Level.VERIFIED, deep=True)


def keys_of(directory: str) -> frozenset[str]:
    """The first words of the keys that it holds; none if its ``.metadata`` cannot be read."""
    try:
        metadata = parse_metadata(content_of(directory, METADATA_NAME))
    except (MetadataRefused, BadFile, UnreadableFile):
        return frozenset()
    return frozenset(entry.fqn.partition(".")[0] for entry in metadata.entries)


def verification_of(directory: str) -> Verification:
    """What to read of whatever is there now; raises what says that it is not whole, or cannot be seen."""
    return _verification(directory, *_screen(directory))


def mark_of(directory: str, path: str) -> FileMark:
    """Identity of one regular file inside; symbolic links are not followed, at no component."""
    parts = path.split("/")
    at = directory
    with told(path):
        for part in parts[:-1]:
            at = os.path.join(at, part)
            if not stat.S_ISDIR(os.lstat(at).st_mode):
                raise BadFile(f"{shown(part)} is not a directory of its own (symbolic links are not followed)")
        found = os.lstat(os.path.join(at, parts[-1]))
    if stat.S_ISLNK(found.st_mode):
        raise BadFile(f"{shown(path)} is a symbolic link, which is not followed")
    if not stat.S_ISREG(found.st_mode):
        raise BadFile(f"{shown(path)} is not a regular file")
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turn what the operating system says about a file into words."""
    try:
        yield
    except OSError as error:
        if error.errno in _MISSING:
            raise BadFile(f"{shown(path)} is missing") from None
        if error.errno == errno.ENAMETOOLONG:
            raise BadFile(f"{shown(path)} cannot be a file: its name is too long") from None
        if error.errno == errno.ELOOP:
            raise BadFile(f"{shown(path)} is a symbolic link, which is not followed") from None
        raise UnreadableFile(f"{shown(path)} cannot be read ({os.strerror(error.errno or 0)})") from None


def _screen(directory: str) -> tuple[Judgement, DcpMetadata]:
    """Judge the structure, which a save of gangrun's that lost its manifest does not pass."""
    mark = mark_of(directory, METADATA_NAME)
    if mark[0] > METADATA_MAX_BYTES:
        raise MetadataRefused(f".metadata is larger than {METADATA_MAX_BYTES} bytes")
    metadata = parse_metadata(content_of(directory, METADATA_NAME))
    if (metadata.save_id or "").startswith(SAVE_ID_PREFIX):
        raise BadFile(f"{MANIFEST_NAME} is missing, which was written with it")
    marks = [(METADATA_NAME, mark)]
    for path, entries in groupby(metadata.entries, key=lambda e: e.path):
        mark = mark_of(directory, path)
        needed = max(entry.offset + entry.length for entry in entries)
        if mark[0] < needed:
            raise BadFile(f"{shown(path)} is {mark[0]} bytes long and must be {needed} (truncated)")
        marks.append((path, mark))
    data_bytes = sum(entry.length for entry in metadata.entries)
    judged = Judgement(Level.COMPLETE, "", False, tuple(marks), metadata.save_id, len(metadata.entries), data_bytes)
    return judged, metadata


@contextmanager
def opened(directory: str, path: str) -> Iterator[int]:
    """A descriptor of one regular file inside, for reading; what the system says against it, in words."""
    with told(path):
        # O_NONBLOCK: should a pipe have taken the file's place, opening it must not wait for a writer
        descriptor = os.open(os.path.join(directory, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def content_of(directory: str, path: str) -> bytes:
    """All of one file."""
    with opened(directory, path) as descriptor, told(path):
        return b"".join(iter(lambda: os.read(descriptor, BUFFER_BYTES), b""))


def _verification(directory: str, screened: Judgement, metadata: DcpMetadata) -> Verification:
    """Nothing in the format binds a shard to its save, so all files as they stand name it: when each was written, not
    its inode, as some file systems number theirs on each node anew.
    """
    files = [(path, size, mtime_ns) for path, (size, mtime_ns, _, _) in screened.marks]
    name = blake2b(repr((screened.save_id, files)).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
    turns = [
        Turn(sum(entry.length for entry in batch), partial(_verify_batch, directory, batch))
        for batch in _batches(metadata.entries)
    ]
    return Verification(directory, SEEN_PREFIX + name, screened.data_bytes, turns)


def _batches(entries: tuple[StoredPiece, ...]) -> Iterator[list[StoredPiece]]:
    """Neighbours in one file, enough of them to be worth a thread's turn."""
    batch: list[StoredPiece] = []
    size = 0
    for entry in entries:
        if batch and (entry.path != batch[0].path or size + entry.length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.length
    if batch:
        yield batch


def _verify_batch(directory: str, batch: list[StoredPiece], means: Means) -> list[str]:
    source = Source(means.tick, means.mapped)
    unverified = []
    path = batch[0].path
    with opened(directory, path) as source.descriptor, told(path):
        for entry in batch:
            if means.stop.is_set():
                break
            try:
                why = _verify_piece(source, entry)
            except Damaged as damage:
                raise Damaged(f"{shown(entry.fqn)} in {shown(path)} is damaged: {damage}") from None
            if why:
                unverified.append(why)
    return unverified


def _verify_piece(source: Source, entry: StoredPiece) -> str:
    """Empty when the entry's checksums hold, else why nothing is verified; ``Damaged`` when they do not hold."""
    if entry.transformed:
        return "written through an extension"
    if not entry.tensor and not looks_like_archive(source, entry.offset, entry.length):
        # A planner may store an object's bytes in a form of its own. Zeros are no such form: that is a lost extent.
        if entry.length and _all_zero(source, entry):
            raise Damaged("it is all zeros")
        return "not written by torch.save"
    reading = verify_archive(source, entry.offset, entry.length)
    # a subclass may store several smaller pieces, so only a single storage tells
    if entry.payload_bytes is not None and len(reading.storages) == 1 and reading.storages[0] < entry.payload_bytes:
        raise Damaged(f"it holds {reading.storages[0]} bytes of data and must hold {entry.payload_bytes}")
    return "" if reading.checksummed else "written without checksums"


def _all_zero(source: Source, entry: StoredPiece) -> bool:
    offset, left = entry.offset, entry.length
    while left:
        piece = source.at(offset, min(left, BUFFER_BYTES))
        if piece.strip(b"\0"):
            return False
        offset, left = offset + len(piece), left - len(piece)
    return True


def _unverified_words(unverified: Sequence[str], total: int) -> str:
    kinds = sorted(set(unverified))
    return f"{len(unverified)} of {total} pieces cannot be checked: {', '.join(kinds)}"
