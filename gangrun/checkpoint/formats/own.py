"""Judges a checkpoint of gangrun's own by its manifest: every file, its size and every chunk's CRC32.

The manifest binds all bytes to one save of one step, torch's ``.metadata`` among them: a shard of another step, a file
that was renamed or a directory that was given another step's name is seen here, which plain DCP cannot see.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gangrun.checkpoint.formats import dcp
from gangrun.checkpoint.formats.dcp import BadFile, FileMark, Judgement, UnreadableFile, mark_of, opened, told
from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.formats.torch_zip import BUFFER_BYTES, Damaged, Source
from gangrun.checkpoint.shared_files import shared_words
from gangrun.checkpoint.verification import Means, Proof, ProveAll, Tick, Turn, prove_share
from gangrun.core.checkpoints.resume import shown
from gangrun.core.model import Level
from gangrun.wire.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, FileRow, Manifest, ManifestError, decode

NO_CTIME = 0
_CHUNKS_AT_ONCE_COUNT = 4


def read_manifest(directory: str) -> Manifest:
    """The manifest of a checkpoint; ``ManifestError``, ``BadFile`` or ``UnreadableFile`` in words."""
    if mark_of(directory, MANIFEST_NAME)[0] > MANIFEST_MAX_BYTES:
        raise ManifestError(f"{MANIFEST_NAME} is larger than {MANIFEST_MAX_BYTES} bytes")
    with opened(directory, MANIFEST_NAME) as descriptor, told(MANIFEST_NAME):
        return decode(b"".join(iter(lambda: os.read(descriptor, BUFFER_BYTES), b"")))


def screen(directory: str, step: int) -> Judgement:
    """Structure only: the manifest is whole and of this step, every file is there and as long as it says."""
    try:
        return _screen(directory, step)[0]
    except (ManifestError, BadFile) as found:
        return Judgement(None, str(found))
    except UnreadableFile as found:
        return Judgement(None, str(found), unreadable=True)


def verify(
    directory: str, step: int, tick: Tick | None = None, threads_count: int = 4, prove_all: ProveAll | None = None
) -> Judgement:
    """Structure and every byte. ``prove_all`` has others read too; it does what ``prove_share`` does."""
    try:
        screened, manifest = _screen(directory, step)
        (prove_all or prove_share)(proof_by(directory, manifest), tick or (lambda count: None), threads_count)
        again = tuple((path, mark_kept(directory, path)) for path, _ in screened.marks)
    except (ManifestError, BadFile, Damaged) as found:
        return Judgement(None, str(found))
    except UnreadableFile as found:
        return Judgement(None, str(found), unreadable=True)
    if again != screened.marks:
        return Judgement(None, "it was written to while it was being read")
    return replace(screened, level=Level.VERIFIED, deep=True)


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


def proof_of(directory: str, save: str) -> Proof:
    """What to read of the save of that name, in any format; ``BadFile`` where another one is there.

    Also raises what says that nobody can tell what is there.
    """
    own = not save.startswith(dcp.SEEN_PREFIX)
    proof = proof_by(directory, read_manifest(directory)) if own else dcp.proof_of(directory)
    if proof.save != save:
        raise BadFile("another save is there")
    return proof


def proof_by(directory: str, manifest: Manifest) -> Proof:
    """What to read; its save is known by the nonce."""
    turns = [
        Turn(
            min(chunks.stop * manifest.chunk_bytes, row.size) - chunks.start * manifest.chunk_bytes,
            partial(_prove, directory, row, chunks, manifest.chunk_bytes),
        )
        for row, chunks in _turns(manifest)
    ]
    return Proof(directory, manifest.nonce, manifest.data_bytes, turns)


def _turns(manifest: Manifest) -> Sequence[tuple[FileRow, range]]:
    return [
        (row, range(first, min(first + _CHUNKS_AT_ONCE_COUNT, count)))
        for row in manifest.files
        for count in [-(-row.size // manifest.chunk_bytes)]
        for first in range(0, count, _CHUNKS_AT_ONCE_COUNT)
    ]


def _prove(directory: str, row: FileRow, chunks: range, chunk_bytes: int, means: Means) -> Sequence[str]:
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
