"""What a plain torch DCP ``.metadata`` says, read as data: never unpickled, torch never imported.

Gives every entry of the checkpoint (file, offset, length, tensor or bytes) and what the tensors must look like, after
checking that the description itself is whole: every chunk stored once, every tensor covered, no path leading outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gangrun.checkpoint.formats.inert_pickle import GlobalName, Inert, Pairs, PickleRefused, read
from gangrun.core.checkpoints.resume import shown

METADATA_NAME = ".metadata"
METADATA_MAX_BYTES = 128 * 1024 * 1024

_META = "torch.distributed.checkpoint.metadata."
_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16, "int64": 8, "int32": 4,
    "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
_OTHER_TYPES = (
    "complex32", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits8", "float4_e2m1fn_x2",
    "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7",
    "int1", "int2", "int3", "int4", "int5", "int6", "int7",
)  # fmt: skip
ALLOWED = frozenset(
    [
        *(_META + name for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties")),
        *(_META + name for name in ("ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.distributed.checkpoint.filesystem._StoragePrefix",
        "torch.Size",
        "torch.serialization._get_layout",
        *(f"torch.{name}" for name in (*_ITEM_BYTES, *_OTHER_TYPES)),
        "collections.OrderedDict",
        *(f"pathlib.{name}" for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")),
        *(f"pathlib._local.{name}" for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")),
        # some Python 3.11 releases pickle an enum's member as getattr(Enum, name); here it is a name like the others
        "builtins.getattr",
    ]
)


class MetadataRefused(Exception):
    """The ``.metadata`` cannot be relied on; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored piece: a tensor's chunk, or an object's bytes."""

    fqn: str
    path: str  # relative to the checkpoint's directory, proven to stay inside it
    offset: int
    length: int
    transformed: bool  # written through an extension (compression, encryption): its bytes are not torch's
    tensor: bool
    payload_bytes: int | None  # what the tensor's data must at least measure; None where that is not known


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """One checkpoint's description. ``entries`` are sorted by file and offset."""

    entries: tuple[Entry, ...]
    save_id: str | None


@dataclass(frozen=True, slots=True)
class _Tensor:
    item_bytes: int | None
    chunks: dict[tuple[int, ...], tuple[int, ...]]  # offsets -> sizes


def parse_metadata(data: bytes) -> DcpMetadata:
    """Read the content of a ``.metadata`` file; raises ``MetadataRefused`` and nothing else."""
    if len(data) > METADATA_MAX_BYTES:
        raise MetadataRefused(f".metadata is larger than {METADATA_MAX_BYTES} bytes")
    if not data:
        raise MetadataRefused(".metadata is empty (torn)")
    try:
        root = read(data, ALLOWED)
    except PickleRefused as refusal:
        raise MetadataRefused(f".metadata refused: {refusal}") from None
    fields = _state(root, "Metadata")
    described = _described(fields.field("state_dict_metadata"))
    entries = sorted(_entries(fields.field("storage_data"), described), key=lambda e: (e.path, e.offset, e.length))
    _demand_all_stored(described, entries)
    return DcpMetadata(tuple(entries), _save_id(fields.field("storage_meta")))


def _described(value: object) -> dict[str, _Tensor | None]:
    """Name -> tensor, or None for an object stored as bytes."""
    if not isinstance(value, Pairs):
        raise MetadataRefused(".metadata does not list what the checkpoint holds")
    described: dict[str, _Tensor | None] = {}
    for name, item in value.pairs:
        if not isinstance(name, str) or not isinstance(item, Inert) or name in described:
            raise MetadataRefused(".metadata lists its content in an unknown way")
        if item.name == _META + "BytesStorageMetadata":
            described[name] = None
        else:
            described[name] = _tensor(name, _state(item, "TensorStorageMetadata"))
    return described


def _tensor(name: str, fields: Pairs) -> _Tensor:
    size = _shape(fields.field("size"), name)
    chunks: dict[tuple[int, ...], tuple[int, ...]] = {}
    listed = fields.field("chunks")
    if not isinstance(listed, list):
        raise MetadataRefused(f".metadata lists no chunks of {shown(name)}")
    covered = 0
    for chunk in listed:
        state = _state(chunk, "ChunkStorageMetadata")
        offsets, sizes = _shape(state.field("offsets"), name), _shape(state.field("sizes"), name)
        if not len(offsets) == len(sizes) == len(size) or offsets in chunks:
            raise MetadataRefused(f".metadata describes the chunks of {shown(name)} inconsistently")
        if any(o + s > whole for o, s, whole in zip(offsets, sizes, size, strict=True)):
            raise MetadataRefused(f".metadata puts a chunk of {shown(name)} outside the tensor")
        chunks[offsets] = sizes
        covered += math.prod(sizes)
    if covered != math.prod(size):
        raise MetadataRefused(f".metadata covers {covered} of {math.prod(size)} elements of {shown(name)}")
    return _Tensor(_item_bytes(fields.field("properties")), chunks)


def _item_bytes(properties: object) -> int | None:
    """Bytes per element; None for types whose storage gangrun cannot predict."""
    state = properties.state if isinstance(properties, Inert) else None
    if isinstance(state, tuple) and state and isinstance(state[0], GlobalName):
        return _ITEM_BYTES.get(state[0].name.removeprefix("torch."))
    raise MetadataRefused(".metadata gives no element type for a tensor")


def _entries(value: object, described: dict[str, _Tensor | None]) -> Iterator[Entry]:
    if not isinstance(value, Pairs):
        raise MetadataRefused(".metadata does not say where the data is stored")
    for key, info in value.pairs:
        index = _state(key, "MetadataIndex")
        if not isinstance(info, Inert) or not isinstance(info.state, Pairs):
            raise MetadataRefused(".metadata does not say where the data is stored")
        name = index.field("fqn")
        if not isinstance(name, str) or name not in described:
            raise MetadataRefused(f".metadata stores {shown(str(name))}, which it does not describe")
        place = info.state
        offset, length = _natural(place.field("offset")), _natural(place.field("length"))
        tensor = described[name]
        payload = None if tensor is None else _payload(name, tensor, index.field("offset"))
        transforms = place.field("transform_descriptors")
        path = _inside(place.field("relative_path"))
        yield Entry(name, path, offset, length, bool(transforms), tensor is not None, payload)


def _payload(name: str, tensor: _Tensor, offset: object) -> int | None:
    """Bytes of the chunk stored under this offset; each chunk is taken out once so that none is stored twice."""
    sizes = tensor.chunks.pop(_shape(offset, name), None)
    if sizes is None:
        raise MetadataRefused(f".metadata stores a chunk of {shown(name)} twice or that is none of its chunks")
    return None if tensor.item_bytes is None else tensor.item_bytes * math.prod(sizes)


def _demand_all_stored(described: dict[str, _Tensor | None], entries: list[Entry]) -> None:
    """DCP commits ``.metadata`` without the entries of a writer thread that failed: a load finds nothing there."""
    stored = {entry.fqn for entry in entries}
    lost = [name for name, tensor in described.items() if (tensor.chunks if tensor else name not in stored)]
    if lost:
        raise MetadataRefused(f"{len(lost)} of {len(described)} items were never stored, {shown(lost[0])} for one")
    before: Entry | None = None
    for entry in entries:
        if before is not None and before.path == entry.path and before.offset + before.length > entry.offset:
            raise MetadataRefused(f"{shown(before.fqn)} and {shown(entry.fqn)} overlap in {shown(entry.path)}")
        before = entry


def _state(value: object, kind: str) -> Pairs:
    if isinstance(value, Inert) and value.name == _META + kind and isinstance(value.state, Pairs):
        return value.state
    raise MetadataRefused(f".metadata is not what torch.distributed.checkpoint writes: no {kind} where one must be")


def _shape(value: object, name: str) -> tuple[int, ...]:
    if isinstance(value, tuple) and len(value) <= 64 and all(type(n) is int and 0 <= n < 1 << 62 for n in value):
        return value
    raise MetadataRefused(f".metadata gives {shown(name)} an impossible shape")


def _natural(value: object) -> int:
    if type(value) is int and 0 <= value < 1 << 62:
        return value
    raise MetadataRefused(".metadata gives an impossible offset or length")


def _inside(value: object) -> str:
    """A relative path that cannot leave the directory, whatever follows links are a matter for whoever opens it."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise MetadataRefused(".metadata names no file for a piece of data")
    parts = value.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise MetadataRefused(f".metadata points outside its directory: {shown(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise MetadataRefused(".metadata names a file that cannot be one") from None
    return value


def _save_id(value: object) -> str | None:
    fields = value.state if isinstance(value, Inert) else None
    save_id = fields.field("save_id") if isinstance(fields, Pairs) else None
    return save_id if isinstance(save_id, str) and len(save_id) <= 200 else None
