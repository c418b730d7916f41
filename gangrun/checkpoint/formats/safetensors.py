"""Judges a directory of Hugging Face safetensors: *complete* at best, as they bear no checksums.

Seen are files that the index or their own names promise and that are not there, torn headers, tensors that do not fill
their file, and shards (as torch's sharded writer leaves them) that overlap, or do not cover their tensors from the
beginning. Not seen, because nothing in the format shows it: a changed byte of a tensor.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterable
from typing import Any

from gangrun.checkpoint.formats.dcp import BadFile, FileMark, Judgement, judged, mark_of, opened, told
from gangrun.core.checkpoints.resume import shown
from gangrun.core.model import Level
from gangrun.wire.manifest import is_inside

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

_SHARD_PREFIX = "shard-"  # by torch's sharded writer, which stores no element twice
_HEADER_MAX_BYTES = 100 * 1024 * 1024  # as the format's own reader
_COUNTED = re.compile(r"(.*?)(\d{5})-of-(\d{5})\.safetensors")
_ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
NO_CHECKSUMS = "safetensors carry no checksums"

Shards = dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]  # tensor -> (offsets, sizes) of its pieces


@judged
def verify(directory: str) -> Judgement:
    """Judge it; as only headers are read, this is as deep as it goes."""
    names = _listed(directory)
    files = [name for name in names if name.endswith(SUFFIX)]
    files += [name for name in _indexed(directory, names) if name not in files]
    _demand_counted(files)
    marks: list[tuple[str, FileMark]] = []
    pieces: Shards = {}
    for name in sorted(files):
        marks.append((name, mark_of(directory, name)))
        read_header(directory, name, marks[-1][1][0], pieces)
    _demand_covered(pieces, sharded=all(name.startswith(_SHARD_PREFIX) for name in files))
    size = sum(mark[0] for _, mark in marks)
    return Judgement(Level.COMPLETE, NO_CHECKSUMS, True, tuple(marks), None, len(pieces), size)


def _listed(directory: str) -> list[str]:
    with told(os.path.basename(directory)):
        return sorted(os.listdir(directory))


def _indexed(directory: str, names: Iterable[str]) -> list[str]:
    """The files that an index promises."""
    indexes = (promised(directory, name) for name in names if name.endswith(INDEX_SUFFIX))
    return list(dict.fromkeys(file for index in indexes for file in index.values()))


def promised(directory: str, name: str) -> dict[str, str]:
    """What an index of shards says: tensor -> the file that holds it, inside the directory."""
    mark_of(directory, name)
    with opened(directory, name) as descriptor, told(name):
        data = os.read(descriptor, _HEADER_MAX_BYTES)
    try:
        found = dict(json.loads(data)["weight_map"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadFile(f"{shown(name)} is torn or is no index") from None
    for file in found.values():
        if not isinstance(file, str) or not is_inside(file):
            raise BadFile(f"{shown(name)} points outside its directory")
    return found


def _demand_counted(files: Iterable[str]) -> None:
    """Names like ``model-00002-of-00003`` say how many there must be."""
    counted: dict[tuple[str, int], set[int]] = {}
    for name in files:
        match = _COUNTED.fullmatch(name)
        if match and not name.startswith(_SHARD_PREFIX):  # a shard's own number has no total; what it covers tells
            counted.setdefault((match.group(1), int(match.group(3))), set()).add(int(match.group(2)))
    for (stem, total), numbers in counted.items():
        absent = sorted(set(range(1, min(total, 100_000) + 1)) - numbers)
        if absent:
            raise BadFile(f"{shown(f'{stem}{absent[0]:05d}-of-{total:05d}{SUFFIX}')} is missing")


def read_header(directory: str, name: str, size: int, pieces: Shards) -> None:
    """One file's header: its tensors fill it from end to end."""
    with opened(directory, name) as descriptor, told(name):
        first = os.pread(descriptor, 8, 0)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else _HEADER_MAX_BYTES + 1
        data = os.pread(descriptor, length, 8) if length <= min(size, _HEADER_MAX_BYTES) else b""
    try:
        header: dict[str, Any] = json.loads(data)
        offsets_of = json.loads((header.pop("__metadata__", None) or {}).get("DCP_SHARDING_INFO", "{}"))
        spans = []
        for tensor, row in header.items():
            begin, end = row["data_offsets"]
            shape = tuple(int(n) for n in row["shape"])
            bits = _ITEM_BITS.get(row["dtype"])
            if bits is not None and end - begin != -(-math.prod(shape) * bits // 8):
                raise BadFile(f"{shown(tensor)} in {shown(name)} has not the bytes of its shape")
            spans.append((int(begin), int(end)))
            at = offsets_of.get(tensor, {}).get("saved_offsets", [0] * len(shape))
            pieces.setdefault(tensor, []).append((tuple(int(n) for n in at), shape))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadFile(f"{shown(name)} has no readable header (torn)") from None
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise BadFile(f"the tensors of {shown(name)} do not fill it")
        position = end
    if 8 + length + position != size:
        short = " (truncated)" if size < 8 + length + position else ""
        raise BadFile(f"{shown(name)} is {size} bytes long and must be {8 + length + position}{short}")


def _demand_covered(pieces: Shards, *, sharded: bool) -> None:
    """The shards of a tensor, together, are a block that begins at its first element, and hold nothing of it twice."""
    if not pieces:
        raise BadFile("it holds no tensors")
    for tensor, parts in pieces.items():
        if any(len(at) != len(shape) for at, shape in parts):
            raise BadFile(f"the shards of {shown(tensor)} do not fit together")
        ends = [max(at[i] + shape[i] for at, shape in parts) for i in range(len(parts[0][1]))]
        held = sum(math.prod(shape) for _, shape in parts)
        if held < math.prod(ends):
            raise BadFile(f"a shard of {shown(tensor)} is missing")
        if sharded and held > math.prod(ends):
            raise BadFile(
                f"the shards of {shown(tensor)} overlap: some are left over from a save with another number of ranks"
            )
