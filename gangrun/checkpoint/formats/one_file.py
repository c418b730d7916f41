"""Judges one file by what its kind can tell, and never unpickles: what frameworks and scripts leave beside each other.

Archives of torch.save carry a CRC32 of each member, so all of their data is verified. safetensors, an index of shards
and other JSON carry none: they are complete if their structure is, and a changed byte of a tensor stays unseen. A
pickle has neither checksums nor a length, so nothing in it tells a torn one: it is unknown, and never called torn. A
file that is being written shows as torn, or as changed while it was read; look again later.
"""

from __future__ import annotations

import json
import os

from gangrun.checkpoint.formats.dcp import (
    BadFile,
    FileMark,
    Judgement,
    UnknownFormat,
    content_of,
    judged,
    mark_of,
    opened,
    told,
)
from gangrun.checkpoint.formats.safetensors import INDEX_SUFFIX, NO_CHECKSUMS, SUFFIX, Shards, promised, read_header
from gangrun.checkpoint.formats.torch_zip import Compressed, Damaged, Source, looks_like_archive, verify_archive
from gangrun.checkpoint.verification import Tick
from gangrun.core.checkpoints.resume import shown
from gangrun.core.model import Level

JSON_INDEX_SUFFIX = ".index.json"
_UNCHECKED = "torch.save wrote it without checksums"
_JSON_MAX_BYTES = 100 * 1024 * 1024
_START_BYTES = 4096
_ARCHIVE = b"PK\x03\x04"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_TORCH_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # of torch.save before 1.6

Finding = tuple[Level, str]  # and why it is not verified


def judge_file(path: str, tick: Tick = lambda count: None) -> Judgement:
    """Read one file, and the shards that it names, as deeply as their formats allow; symbolic links are not followed.

    ``level`` is None for a torn file, for one that cannot be read (``unreadable``), and for one whose format tells
    nothing (``unknown``); ``why`` names the file, the place and what is wrong. ``tick`` hears of the bytes read.
    """
    return _judge(os.path.dirname(path) or ".", os.path.basename(path), tick)


def screen_file(path: str) -> Judgement:
    """Look at its structure only: an archive's data is not read."""
    return _judge(os.path.dirname(path) or ".", os.path.basename(path), None)


@judged
def _judge(directory: str, name: str, tick: Tick | None) -> Judgement:
    marks = {name: mark_of(directory, name)}
    level, why = _read(directory, name, marks, {}, tick)
    if any(mark_of(directory, file) != before for file, before in marks.items()):
        raise BadFile(f"{shown(name)} was written to while it was being read")
    size, (own_size, mtime_ns, *_) = sum(mark[0] for mark in marks.values()), marks[name]
    deep = tick is not None or bool(why)  # what has no checksums is read as far as it can be
    save = f"{mtime_ns}-{own_size}"  # a copy of it keeps them
    return Judgement(level, why, deep, tuple(marks.items()), save, len(marks), size)


def _read(directory: str, name: str, marks: dict[str, FileMark], held: Shards, tick: Tick | None) -> Finding:
    size = marks[name][0]
    if not size:
        raise BadFile(f"{shown(name)} is empty (torn)")
    if name.endswith(JSON_INDEX_SUFFIX):
        return _index(directory, name, marks, tick)
    if name.endswith(SUFFIX):
        read_header(directory, name, size, held)
        return Level.COMPLETE, NO_CHECKSUMS
    if name.endswith(".json"):
        _json(directory, name, size)
        return Level.COMPLETE, "JSON carries no checksum"
    return _archive(directory, name, size, tick)


def _archive(directory: str, name: str, size: int, tick: Tick | None) -> Finding:
    source = Source(tick or (lambda count: None))
    with opened(directory, name) as source.descriptor, told(name):
        try:
            start = source.at(0, min(size, _START_BYTES))
            if looks_like_archive(source, 0, size) or _ARCHIVE.startswith(start[:4]):
                if not verify_archive(source, 0, size, read_data=tick is not None).checksummed:
                    return Level.COMPLETE, "torch.save wrote it without checksums"
                return Level.COMPLETE if tick is None else Level.VERIFIED, ""
        except Compressed as why:
            raise UnknownFormat(f"{shown(name)} cannot be judged: {why}") from None
        except Damaged as damage:
            raise Damaged(f"{shown(name)} ({size} bytes) is torn or damaged: {damage}") from None
    if start.startswith(_PICKLES):
        whose = "torch.save before 1.6 wrote it, as a pickle" if start.startswith(_TORCH_MAGIC) else "it is a pickle"
        raise UnknownFormat(f"{shown(name)} cannot be judged: {whose}, which has no checksum and no length")
    if not start.strip(b"\0"):
        raise Damaged(f"{shown(name)} is damaged: its first {len(start)} bytes are zeros")
    raise UnknownFormat(f"{shown(name)} cannot be judged: gangrun does not know its format")


def _index(directory: str, name: str, marks: dict[str, FileMark], tick: Tick | None) -> Finding:
    """Each shard that it names is there, whole, and holds the tensors that the index finds in it."""
    tensors_of: dict[str, list[str]] = {}
    for tensor, file in promised(directory, name).items():
        tensors_of.setdefault(file, []).append(tensor)
    for file, tensors in sorted(tensors_of.items()):
        marks[file] = mark_of(directory, file)
        held: Shards = {}
        _read(directory, file, marks, held, tick)
        absent = next((tensor for tensor in tensors if tensor not in held), None)
        if absent is not None and file.endswith(SUFFIX):
            raise BadFile(f"{shown(file)} does not hold {shown(absent)}, which {shown(name)} finds in it")
    return Level.COMPLETE, NO_CHECKSUMS if name.endswith(INDEX_SUFFIX) else "an index carries no checksum"


def _json(directory: str, name: str, size: int) -> None:
    if size > _JSON_MAX_BYTES:
        raise UnknownFormat(f"{shown(name)} cannot be judged: {size} bytes are too many for JSON")
    try:
        json.loads(content_of(directory, name))
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{shown(name)} ({size} bytes) is torn, or no JSON: {error}") from None
