"""Writes one rank's file of a checkpoint: ``torch.save`` archives one after the other, hashed while they pass.

A DCP shard is one small zip archive per tensor. torch itself makes the first one of each type and shape; of it the
bytes before and after the data are kept, and later saves set only the data and its CRC32. So what is written is what
torch writes, any torch reads it, and the writer's thread copies nothing and holds no lock of the interpreter.

CRC32s of two kinds are taken in one go while a piece is in the processor's cache: of each tensor's data, as its archive
wants it, and of each chunk of the file, for the manifest. The disk is set to work on what was written at once, not
only when the file is made durable.
"""

from __future__ import annotations

import ctypes
import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from gangrun.checkpoint.formats.torch_zip import crc32
from gangrun.wire.manifest import CHUNK_BYTES, FileRow, crcs_text

_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_CRC_IN_CENTRAL = 16
_DESCRIPTOR = b"PK\x07\x08"


class UnknownArchive(RuntimeError):
    """This torch writes archives in another way than every torch we know."""


@dataclass(frozen=True, slots=True)
class Template:
    """One tensor's archive without its data. ``crc_at``: where in ``after`` the data's CRC32 stands, twice."""

    before: bytes
    after: bytes
    crc_at: tuple[int, ...]
    data_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole archive."""
        return len(self.before) + self.data_bytes + len(self.after)

    def closing(self, crc: int) -> bytes:
        """What follows the data, if this is its CRC32."""
        after = bytearray(self.after)
        for at in self.crc_at:
            struct.pack_into("<L", after, at, crc)
        return bytes(after)


class Templates:
    """Templates by type and shape; there are few of them in a model."""

    def __init__(self) -> None:
        self._known: dict[tuple[torch.dtype, tuple[int, ...]], Template] = {}

    def of(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Template:
        """The template for a contiguous tensor of this type and shape."""
        found = self._known.get((dtype, shape))
        if found is None:
            found = self._known[dtype, shape] = make_template(torch.zeros(shape, dtype=dtype))
        return found


def make_template(tensor: torch.Tensor) -> Template:
    """Have torch write this tensor, and keep what is not its data. ``UnknownArchive`` if it cannot be taken apart."""
    stream = io.BytesIO()
    torch.save(tensor, stream)
    whole = stream.getbuffer()
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return Template(bytes(whole), b"", (), 0)
    with zipfile.ZipFile(stream) as archive:
        members = [one for one in archive.infolist() if one.filename.endswith("/data/0")]
        central_at = archive.start_dir
    if len(members) != 1 or members[0].file_size != size or members[0].compress_type != zipfile.ZIP_STORED:
        raise UnknownArchive(f"torch {torch.__version__} writes a tensor in an unknown way; please report this")
    local = _LOCAL.unpack_from(whole, members[0].header_offset)
    start = members[0].header_offset + _LOCAL.size + local[9] + local[10]
    end = start + size
    if bytes(whole[end : end + 4]) != _DESCRIPTOR:
        raise UnknownArchive(f"torch {torch.__version__} puts a tensor's checksum in an unknown place")
    crcs = (4, _central_crc_at(whole, central_at, members[0].orig_filename.encode()) - end)
    return Template(bytes(whole[:start]), bytes(whole[end:]), crcs, size)


def _central_crc_at(whole: memoryview, at: int, name: bytes) -> int:
    while bytes(whole[at : at + 4]) == b"PK\x01\x02":
        fields = _CENTRAL.unpack_from(whole, at)
        names, extras, comments = fields[10], fields[11], fields[12]
        if bytes(whole[at + _CENTRAL.size : at + _CENTRAL.size + names]) == name:
            return at + _CRC_IN_CENTRAL
        at += _CENTRAL.size + names + extras + comments
    raise UnknownArchive(f"torch {torch.__version__} lists a tensor's data in an unknown way")


_PIECE_BYTES = 1024 * 1024
_GATHERED_BYTES = 8 * 1024 * 1024
_GATHERED_COUNT = 256  # a call of writev takes at most 1024
_WRITE_OUT = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """One tensor of the file: its archive's frame and its bytes in the host's buffer."""

    template: Template
    data: memoryview


class ShardFile:
    """One new file; ``row`` is its line in the manifest once it is closed and durable."""

    def __init__(self, directory: str, name: str, descriptor: int = -1) -> None:
        """``descriptor``: an open file that is written and closed instead of a new one."""
        self._name = name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = descriptor if descriptor >= 0 else os.open(os.path.join(directory, name), flags, 0o644)
        self._waiting: list[memoryview | bytes] = []
        self._waiting_bytes = 0
        self._crcs: list[int] = []
        self._crc = 0
        self._out_bytes = 0
        self.size = 0

    def write_tensor(self, piece: TensorPiece) -> int:
        """One tensor's archive; returns the CRC32 of its data."""
        crc = 0
        self._take(piece.template.before)
        if piece.template.data_bytes:
            for part in _parts(piece.data):
                crc = crc32(part, crc)
                self._take(part)
            self._take(piece.template.closing(crc))
        return crc

    def write_bytes(self, data: bytes) -> int:
        """Bytes as they are; returns where they begin."""
        offset = self.size
        for part in _parts(memoryview(data)):
            self._take(part)
        return offset

    def written(self) -> FileRow:
        """All of it has been given: its line in the manifest, which holds once the file is closed."""
        self._flush()
        crcs = [*self._crcs, self._crc] if self.size % CHUNK_BYTES else self._crcs
        return FileRow(self._name, self.size, crcs_text(crcs))

    def close(self) -> FileRow:
        """Make it durable."""
        try:
            row = self.written()
            os.fsync(self._descriptor)
        finally:
            self.abort()
        return row

    def abort(self) -> None:
        """Let go of the file as it is, once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _take(self, data: memoryview | bytes) -> None:
        at, length = 0, len(data)
        while at < length:
            room = CHUNK_BYTES - self.size % CHUNK_BYTES
            part = data[at : at + room] if at or room < length else data
            self._crc = crc32(part, self._crc)
            self.size += len(part)
            at += len(part)
            if self.size % CHUNK_BYTES == 0:
                self._crcs.append(self._crc)
                self._crc = 0
        self._waiting.append(data)
        self._waiting_bytes += length
        if self._waiting_bytes >= _GATHERED_BYTES or len(self._waiting) >= _GATHERED_COUNT:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        while waiting:
            written = os.writev(self._descriptor, waiting)
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.pop(0))
            if written:
                waiting[0] = memoryview(waiting[0])[written:]
        _write_out(self._descriptor, self._out_bytes, self.size - self._out_bytes, _WRITE_OUT)
        self._out_bytes = self.size


def _found_write_out() -> Callable[[int, int, int, int], object]:
    """Linux's ``sync_file_range``. What it cannot do, and what fails in it, is left to ``fsync``, which tells."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):  # another system, or another C library
        return lambda descriptor, offset, length, flags: None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_write_out = _found_write_out()


def _parts(data: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(data), _PIECE_BYTES):
        yield data[at : at + _PIECE_BYTES]


def row_of(name: str, data: bytes) -> FileRow:
    """The manifest's line for a small file written whole."""
    return FileRow(name, len(data), crcs_text(list(_crcs_of(data))))


def _crcs_of(data: bytes) -> Iterable[int]:
    for at in range(0, len(data), CHUNK_BYTES):
        yield crc32(data[at : at + CHUNK_BYTES], 0)
