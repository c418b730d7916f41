"""What a plain torch DCP ``.metadata`` says, read as data: never unpickled, torch never imported.

Gives every entry of the checkpoint (file, offset, length, tensor or bytes) and what the tensors must look like, after
checking that the description itself is whole: every chunk stored once, every tensor covered, no path leading outside.

The pickle is read by an interpreter of our own, which can execute nothing. ``pickle.Unpickler`` with a filtered
``find_class`` would still hash what it is told to hash and size its memo by what it reads, so a small hostile file
could hang it, exhaust memory or overflow the C stack. Here dictionaries stay lists of pairs, nothing is hashed or
called, and every global is only its name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import TypeVar

from gangrun.core.checkpoints.resume import shown

T = TypeVar("T")
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
class StoredPiece:
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

    entries: tuple[StoredPiece, ...]
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


def _entries(value: object, described: dict[str, _Tensor | None]) -> Iterator[StoredPiece]:
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
        yield StoredPiece(name, path, offset, length, bool(transforms), tensor is not None, payload)


def _payload(name: str, tensor: _Tensor, offset: object) -> int | None:
    """Bytes of the chunk stored under this offset; each chunk is taken out once so that none is stored twice."""
    sizes = tensor.chunks.pop(_shape(offset, name), None)
    if sizes is None:
        raise MetadataRefused(f".metadata stores a chunk of {shown(name)} twice or that is none of its chunks")
    return None if tensor.item_bytes is None else tensor.item_bytes * math.prod(sizes)


def _demand_all_stored(described: dict[str, _Tensor | None], entries: list[StoredPiece]) -> None:
    """DCP commits ``.metadata`` without the entries of a writer thread that failed: a load finds nothing there."""
    stored = {entry.fqn for entry in entries}
    lost = [name for name, tensor in described.items() if (tensor.chunks if tensor else name not in stored)]
    if lost:
        raise MetadataRefused(f"{len(lost)} of {len(described)} items were never stored, for example {shown(lost[0])}")
    before: StoredPiece | None = None
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


# One byte of these makes an object of a hundred: honest files hold one in 20 bytes, a memory bomb little else.
_ONE_BYTE_OBJECTS = (b"}", b"]", b"\x8f", b"\x85")
_BYTES_PER_OBJECT = 6
_OBJECTS_FLOOR_COUNT = 4096
_LONG_MAX_BYTES = 16  # no offset or length needs more


class PickleRefused(Exception):
    """The pickle is torn, hostile or of a kind that is never read here; the message says which."""


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A class or function the pickle refers to, by name only."""

    name: str


class Pairs:
    """A dictionary of the pickle: its pairs in order, nothing hashed."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []

    def field(self, name: str) -> object:
        """The value under a string key, or None."""
        return next((value for key, value in self.pairs if isinstance(key, str) and key == name), None)


class Inert:
    """An object the pickle would have built: what was to be called, with what, and its state."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: object) -> None:
        self.name = name
        self.args = args
        self.state: object = None


class _Mark:
    __slots__ = ()


_MARK = _Mark()


class _Machine:
    """One reading of one pickle."""

    __slots__ = ("allowed", "data", "global_names", "memo", "position", "stack", "versions")

    def __init__(self, data: bytes, allowed: Container[str], versions: Container[int]) -> None:
        self.data = data
        self.allowed, self.versions = allowed, versions
        self.position = 0
        self.stack: list[object] = []
        self.memo: list[object] = []
        self.global_names: dict[str, GlobalName] = {}

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise PickleRefused("it ends in the middle (torn)")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def pop(self) -> object:
        value = self.stack.pop()
        if value is _MARK:
            raise PickleRefused("its operations do not fit together")
        return value

    def pop_to_mark(self) -> list[object]:
        stack = self.stack
        index = len(stack) - 1
        while stack[index] is not _MARK:
            index -= 1
            if index < 0:
                raise PickleRefused("its operations do not fit together")
        items = stack[index + 1 :]
        del stack[index:]
        return items


def read(data: bytes, allowed: Container[str], versions: Container[int] = (4, 5)) -> object:
    """The pickle's value made of plain numbers, strings, lists, tuples, ``Pairs``, ``Inert`` and ``GlobalName``.

    Raises ``PickleRefused`` for anything else, for globals whose ``module.name`` is not in ``allowed`` by name.
    ``versions``: protocols of pickle that may be written; C++ code of torch writes 2.
    """
    if sum(map(data.count, _ONE_BYTE_OBJECTS)) > _OBJECTS_FLOOR_COUNT + len(data) // _BYTES_PER_OBJECT:
        raise PickleRefused("it builds more objects than a file of its size can need")
    machine = _Machine(data, allowed, versions)
    try:
        return _run(machine)
    except (IndexError, UnicodeDecodeError, struct.error):
        raise PickleRefused(f"its operations do not fit together near byte {machine.position}") from None
    except MemoryError:
        raise PickleRefused("it needs more memory than there is") from None


def _run(m: _Machine) -> object:
    """The loop. The commonest operations stand inline: a large checkpoint has tens of millions of them."""
    data, stack, memo, table = m.data, m.stack, m.memo, _TABLE
    position = 0
    while True:
        opcode = data[position]
        position += 1
        if opcode == 0x94:  # MEMOIZE
            memo.append(stack[-1])
        elif opcode == 0x68:  # BINGET
            stack.append(memo[data[position]])
            position += 1
        elif opcode == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[position : position + 4], "little")])
            position += 4
        elif opcode == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif opcode == 0x28:  # MARK
            stack.append(_MARK)
        elif opcode == 0x4B:  # BININT1
            stack.append(data[position])
            position += 1
        elif opcode == 0x7D:  # EMPTY_DICT
            stack.append(Pairs())
        elif opcode == 0x4D:  # BININT2
            stack.append(data[position] | data[position + 1] << 8)
            position += 2
        elif opcode == 0x2E:  # STOP
            value = m.pop()
            if stack:
                raise PickleRefused("its operations do not fit together")
            return value
        else:
            operation = table[opcode]
            if operation is None:
                raise PickleRefused(f"it uses pickle operation {opcode:#04x}, which no checkpoint needs")
            m.position = position
            operation(m)
            position = m.position


def _proto(m: _Machine) -> None:
    version = m.number(1)
    if version not in m.versions:
        raise PickleRefused(f"it is written in pickle protocol {version}; torch writes 4 or 5")


def _frame(m: _Machine) -> None:
    if m.number(8) > len(m.data) - m.position:
        raise PickleRefused("it ends in the middle (torn)")


def _put(width: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        if m.number(width) != len(m.memo):
            raise PickleRefused("its operations do not fit together")
        m.memo.append(m.stack[-1])

    return operation


def _text(width: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        m.stack.append(m.take(m.number(width)).decode("utf-8", "surrogatepass"))

    return operation


def _raw(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(width)))


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _signed(m: _Machine) -> None:
    m.stack.append(int.from_bytes(m.take(4), "little", signed=True))


def _long(m: _Machine) -> None:
    width = m.number(1)
    if width > _LONG_MAX_BYTES:
        raise PickleRefused(f"it holds a number of {width} bytes")
    m.stack.append(int.from_bytes(m.take(width), "little", signed=True))


def _float(m: _Machine) -> None:
    m.stack.append(struct.unpack(">d", m.take(8))[0])


def _tuple1(m: _Machine) -> None:
    m.stack[-1] = (m.stack[-1],)


def _tuple2(m: _Machine) -> None:
    second = m.stack.pop()
    m.stack[-1] = (m.stack[-1], second)


def _tuple3(m: _Machine) -> None:
    third, second = m.stack.pop(), m.stack.pop()
    m.stack[-1] = (m.stack[-1], second, third)


def _global(m: _Machine) -> None:
    attribute, module = m.pop(), m.pop()
    if not isinstance(attribute, str) or not isinstance(module, str):
        raise PickleRefused("its operations do not fit together")
    name = f"{module}.{attribute}"
    known = m.global_names.get(name)
    if known is None:
        if name not in m.allowed:
            raise PickleRefused(
                f"it refers to {shown(name)}, which no plain checkpoint needs and which loading would run"
            )
        known = m.global_names[name] = GlobalName(name)
    m.stack.append(known)


def _build_new(m: _Machine) -> None:
    stack = m.stack
    args, target = stack.pop(), stack.pop()
    if not isinstance(target, GlobalName) or not isinstance(args, tuple):
        raise PickleRefused("its operations do not fit together")
    if target.name == "torch.Size" and len(args) == 1:
        m.stack.append(args[0])  # a shape reads as the tuple it is
    elif target.name == "collections.OrderedDict" and not args:
        m.stack.append(Pairs())
    else:
        m.stack.append(Inert(target.name, args))


def _set_state(m: _Machine) -> None:
    state = m.stack.pop()
    _top(m, Inert).state = state


def _append(m: _Machine) -> None:
    value = m.pop()
    _top(m, list).append(value)


def _appends(m: _Machine) -> None:
    values = m.pop_to_mark()
    _top(m, list).extend(values)


def _set_items(m: _Machine) -> None:
    values = m.pop_to_mark()
    if len(values) % 2:
        raise PickleRefused("its operations do not fit together")
    _top(m, Pairs).pairs.extend(zip(values[::2], values[1::2], strict=True))


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    _top(m, Pairs).pairs.append((key, value))


def _top(m: _Machine, kind: type[T]) -> T:
    """What the operation changes: the newest value, which must be of this kind."""
    target = m.stack[-1]
    if not isinstance(target, kind):
        raise PickleRefused("its operations do not fit together")
    return target


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _proto,
    0x95: _frame,
    0x71: _put(1),
    0x72: _put(4),
    0x8C: _text(1),
    0x58: _text(4),
    0x8D: _text(8),
    0x43: _raw(1),
    0x42: _raw(4),
    0x8E: _raw(8),
    0x4E: _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    0x4A: _signed,
    0x8A: _long,
    0x47: _float,
    0x85: _tuple1,
    0x86: _tuple2,
    0x87: _tuple3,
    0x74: lambda m: m.stack.append(tuple(m.pop_to_mark())),
    0x5D: lambda m: m.stack.append([]),
    0x8F: lambda m: m.stack.append([]),  # EMPTY_SET
    0x90: _appends,  # ADDITEMS
    0x91: lambda m: m.stack.append(tuple(m.pop_to_mark())),  # FROZENSET
    0x61: _append,
    0x65: _appends,
    0x73: _set_item,
    0x75: _set_items,
    0x93: _global,
    0x52: _build_new,  # REDUCE
    0x81: _build_new,  # NEWOBJ
    0x62: _set_state,
}
_TABLE: tuple[Callable[[_Machine], None] | None, ...] = tuple(_OPERATIONS.get(code) for code in range(256))
