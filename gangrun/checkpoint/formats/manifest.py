"""Judges a checkpoint of gangrun's own by its manifest: every file, its size and every chunk's CRC32.

The manifest binds all bytes to one save of one step, torch's ``.metadata`` among them: a shard of another step, a file
that was renamed or a directory that was given another step's name is seen here, which plain DCP cannot see.

Saves share files that did not change (hard links). What is damaged in one checkpoint is then damaged in all of them, so
a reason names the others. Inodes tell which they are: that costs nothing until a file is damaged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from gangrun.checkpoint.formats import dcp
from gangrun.checkpoint.formats.dcp import BadFile, FileMark, Judgement, judged, mark_of, opened, read_through, told
from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.formats.torch_zip import Damaged, Source
from gangrun.checkpoint.verification import Means, Tick, Turn, Verification, VerifyAll
from gangrun.core.checkpoints.resume import shown
from gangrun.core.model import Level
from gangrun.wire.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, FileRow, Manifest, ManifestError, decode

NO_CTIME = 0
_CHUNKS_AT_ONCE_COUNT = 4


def read_manifest(directory: str) -> Manifest:
    """The manifest of a checkpoint; ``ManifestError``, ``BadFile`` or ``UnreadableFile`` in words."""
    if mark_of(directory, MANIFEST_NAME)[0] > MANIFEST_MAX_BYTES:
        raise ManifestError(f"{MANIFEST_NAME} is larger than {MANIFEST_MAX_BYTES} bytes")
    return decode(dcp.content_of(directory, MANIFEST_NAME))


@judged
def screen(directory: str, step: int) -> Judgement:
    """Structure only: the manifest is whole and of this step, every file is there and as long as it says."""
    return _screen(directory, step)[0]


@judged
def verify(
    directory: str, step: int, tick: Tick | None = None, threads_count: int = 4, verify_all: VerifyAll | None = None
) -> Judgement:
    """Structure and every byte. ``verify_all`` has others read too; it does what ``verify_share`` does."""
    screened, manifest = _screen(directory, step)
    work = verification_by(directory, manifest)
    return read_through(screened, work, mark_kept, tick, threads_count, verify_all)


def mark_kept(directory: str, path: str) -> FileMark:
    """A file's identity without the time that changes when another checkpoint links to it, or one that did goes."""
    size, mtime_ns, _, inode = mark_of(directory, path)
    return size, mtime_ns, NO_CTIME, inode


def _screen(directory: str, step: int) -> tuple[Judgement, Manifest]:
    marks = [(MANIFEST_NAME, mark_kept(directory, MANIFEST_NAME))]
    manifest = read_manifest(directory)
    if manifest.step != step:
        raise BadFile(f"its manifest says that it is step {manifest.step}")
    if all(row.path != METADATA_NAME for row in manifest.files):
        raise BadFile(f"{MANIFEST_NAME} does not list {METADATA_NAME}")
    for row in manifest.files:
        mark = mark_kept(directory, row.path)
        if mark[0] != row.size:
            short = " (truncated)" if mark[0] < row.size else ""
            said = f"{shown(row.path)} is {mark[0]} bytes long and must be {row.size}{short}"
            raise BadFile(said + shared_words(directory, row.path))
        marks.append((row.path, mark))
    count = len(manifest.files)
    return Judgement(Level.COMPLETE, "", False, tuple(marks), manifest.nonce, count, manifest.data_bytes), manifest


def verification_of(directory: str, save: str) -> Verification:
    """What to read of the save of that name, in any format; ``BadFile`` where another one is there.

    Also raises what says that nobody can tell what is there.
    """
    own = not save.startswith(dcp.SEEN_PREFIX)
    verification = verification_by(directory, read_manifest(directory)) if own else dcp.verification_of(directory)
    if verification.save != save:
        raise BadFile("another save is there")
    return verification


def verification_by(directory: str, manifest: Manifest) -> Verification:
    """What to read; its save is known by the nonce."""
    turns = [
        Turn(
            min(chunks.stop * manifest.chunk_bytes, row.size) - chunks.start * manifest.chunk_bytes,
            partial(_verify_piece, directory, row, chunks, manifest.chunk_bytes),
        )
        for row, chunks in _turns(manifest)
    ]
    return Verification(directory, manifest.nonce, manifest.data_bytes, turns)


def _turns(manifest: Manifest) -> Sequence[tuple[FileRow, range]]:
    return [
        (row, range(first, min(first + _CHUNKS_AT_ONCE_COUNT, count)))
        for row in manifest.files
        for count in [-(-row.size // manifest.chunk_bytes)]
        for first in range(0, count, _CHUNKS_AT_ONCE_COUNT)
    ]


def _verify_piece(directory: str, row: FileRow, chunks: range, chunk_bytes: int, means: Means) -> Sequence[str]:
    source = Source(means.tick, means.mapped)
    with opened(directory, row.path) as source.descriptor, told(row.path):
        for chunk in chunks:
            if means.stop.is_set():
                break
            offset = chunk * chunk_bytes
            try:
                found = source.crc(offset, min(chunk_bytes, row.size - offset))
            except Damaged as damage:
                raise Damaged(f"{shown(row.path)} is damaged: {damage}") from None
            if found != row.crc_of(chunk):
                said = f"{shown(row.path)} is damaged: the checksum of its bytes from {offset} on is wrong"
                raise Damaged(said + shared_words(directory, row.path))
    return ()


def also_in(directory: str, path: str) -> tuple[str, ...]:
    """Names of the directories beside ``directory`` that hold its file ``path`` too, in order; none where unknown."""
    try:
        known = os.lstat(os.path.join(directory, path))
        if known.st_nlink < 2:
            return ()
        with os.scandir(os.path.dirname(os.path.abspath(directory))) as found:
            beside = [one for one in found if one.name[:1] != "." and one.is_dir(follow_symlinks=False)]
    except OSError:
        return ()
    own = os.path.basename(os.path.abspath(directory))
    others = [one.name for one in beside if one.name != own and _holds(one.path, known)]
    return tuple(sorted(others, key=lambda name: (len(name), name)))


def shared_words(directory: str, path: str) -> str:
    """What follows the sentence that says what is wrong with the file; "" where it is nobody else's."""
    others = also_in(directory, path)
    return f"; the same file is in {', '.join(others)} too" if others else ""


def _holds(directory: str, known: os.stat_result) -> bool:
    try:
        with os.scandir(directory) as inside:
            return any(
                one.inode() == known.st_ino and one.stat(follow_symlinks=False).st_dev == known.st_dev for one in inside
            )
    except OSError:
        return False
