"""Proves one ``torch.save`` archive inside a larger file by the CRC32s it carries.

Knows exactly the archives torch writes: stored members only, no comment, zip64 records throughout. Bytes are read with
``preadv`` into a buffer that is used again, or by a child that maps them: a mapping in this process would kill it by
SIGBUS when the storage fails or the file shrinks underneath.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32 as zlib_crc32

from gangrun.checkpoint.mapped_crc import ASK_MAX_BYTES, Lane

try:  # 29 GB/s a core instead of 4; the answer is the same
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover - every platform we test on has it
    crc32 = zlib_crc32

__all__ = [
    "BUFFER_BYTES",
    "ArchiveReading",
    "Compressed",
    "Damaged",
    "Source",
    "crc32",
    "data_place",
    "looks_like_archive",
    "verify_archive",
]

BUFFER_BYTES = 1024 * 1024  # stays in the cache between the read and the checksum
_HOT_BYTES = 256 * 1024  # of fresh memory less stays there

_DIRECTORY_MAX_BYTES = 64 * 1024 * 1024  # a directory entry is some 80 bytes, one per storage

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_TORCH_FLAGS = 0x0808  # data descriptor, utf-8 name
_FOLDER_BIT = 0x10  # torch reads such a member as empty and leaves the tensor as it finds it, without a word
_DEFLATED, _TORCHSCRIPT = 8, b"/code/"
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF


class Damaged(Exception):
    """The archive is not as it was written; the message says where it shows."""


class Compressed(Damaged):
    """It holds TorchScript, whose code torch compresses: no archive of tensors, and not read here."""


@dataclass(frozen=True, slots=True)
class ArchiveReading:
    """What was found in a whole archive. ``checksummed`` False: written with CRC32 off, so nothing is verified."""

    checksummed: bool
    storages: tuple[int, ...]  # sizes of the tensor storages in it


@dataclass(frozen=True, slots=True)
class _Member:
    name: bytes
    crc: int
    size: int
    header_at: int


class Source:
    """Reads of one open file through one buffer; not shared between threads."""

    __slots__ = ("_mapped", "_view", "descriptor", "tick")

    def __init__(self, tick: Callable[[int], None] = lambda count: None, mapped: Lane | None = None) -> None:
        self.descriptor = -1
        self._mapped = mapped
        self._view = memoryview(b"")
        self.tick = tick  # called with the count of bytes verified since the last call

    def at(self, offset: int, length: int) -> bytes:
        """Exactly these bytes; ``Damaged`` where the file ends before."""
        pieces = []
        while length:
            piece = os.pread(self.descriptor, length, offset)
            if not piece:
                raise Damaged("the file ends in the middle of it")
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def crc(self, offset: int, length: int) -> int:
        """CRC32 of these bytes of the file."""
        value = 0
        while length and self._mapped is not None:
            count = min(length, ASK_MAX_BYTES)
            found = self._mapped.crc(self.descriptor, offset, count, value)
            if found is None:
                value = self._read(offset, count, value)
            else:
                value = found
                self.tick(count)
            offset += count
            length -= count
        return self._read(offset, length, value)

    def _read(self, offset: int, length: int, value: int) -> int:
        if not self._view:
            self._view = memoryview(bytearray(BUFFER_BYTES))
        while length:
            count = os.preadv(self.descriptor, [self._view[: min(length, BUFFER_BYTES)]], offset)
            if count == 0:
                raise Damaged("the file ends in the middle of it")
            value = crc32(self._view[:count], value)
            offset += count
            length -= count
            self.tick(count)
        return value

    def into(self, memory: memoryview, offset: int) -> int:
        """Fill the memory with the bytes from ``offset`` on; their CRC32, taken while they are still in the cache."""
        value = at = 0
        while at < len(memory):
            count = os.preadv(self.descriptor, [memory[at : at + _HOT_BYTES]], offset + at)
            if count == 0:
                raise Damaged("the file ends in the middle of it")
            value = crc32(memory[at : at + count], value)
            at += count
        return value


def looks_like_archive(source: Source, offset: int, length: int) -> bool:
    """Whether either end of these bytes is an archive's: of a damaged one at least one end usually is."""
    if length < _END.size:
        return False
    return source.at(offset, 4) == b"PK\x03\x04" or source.at(offset + length - _END.size, 4) == b"PK\x05\x06"


def verify_archive(source: Source, offset: int, length: int, *, read_data: bool = True) -> ArchiveReading:
    """Check every member of the archive at these bytes; ``Damaged`` says what does not hold. Unless ``read_data``,
    only where they lie.
    """
    members, data_end = _central_directory(source, offset, length)
    if not any(member.name.endswith(b"/data.pkl") for member in members):
        raise Damaged("its archive holds no data.pkl")
    if len({member.name for member in members}) != len(members):
        raise Damaged("its archive holds a name twice")
    checksummed = any(member.crc for member in members if member.size)
    position = 0
    for member in sorted(members, key=lambda m: m.header_at):
        start = _data_start(source, offset, member, data_end)
        if member.header_at < position or start + member.size > data_end:
            raise Damaged(f"member {_name(member)} of its archive lies outside its place")
        position = start + member.size
        if read_data and checksummed and source.crc(offset + start, member.size) != member.crc:
            raise Damaged(f"checksum of {_name(member)} is wrong")
    return ArchiveReading(checksummed, tuple(m.size for m in members if b"/data/" in m.name))


def data_place(source: Source, offset: int, length: int) -> tuple[int, int] | None:
    """Where in the file the only storage of the archive at these bytes lies, and its CRC32; None if there are more."""
    members, data_end = _central_directory(source, offset, length)
    storages = [member for member in members if b"/data/" in member.name]
    if len(storages) != 1:
        return None
    return offset + _data_start(source, offset, storages[0], data_end), storages[0].crc


def _central_directory(source: Source, offset: int, length: int) -> tuple[list[_Member], int]:
    """The members and where their data must end, both relative to the archive's start."""
    if length < _END.size:
        raise Damaged("it is too short for an archive")
    end_at = length - _END.size
    magic, disk, first_disk, here, count, size, start, comment = _END.unpack(source.at(offset + end_at, _END.size))
    if magic != b"PK\x05\x06" or disk or first_disk or here != count or comment:
        raise Damaged("the end of its archive is not there")
    directory_end = end_at
    locator_at = end_at - _END64_LOCATOR.size
    if locator_at >= 0:
        magic, disk, end64_at, disks = _END64_LOCATOR.unpack(source.at(offset + locator_at, _END64_LOCATOR.size))
        if magic == b"PK\x06\x07":
            directory_end, long = end64_at, _end64(source, offset, end64_at, locator_at)
            for short, full, whole in (
                (count, long[0], _FULL_16),
                (size, long[1], _FULL_32),
                (start, long[2], _FULL_32),
            ):
                if short not in (full, whole):
                    raise Damaged("the end of its archive contradicts itself")
            if disk or disks != 1:
                raise Damaged("the end of its archive is damaged")
            count, size, start = long
        elif count == _FULL_16 or _FULL_32 in (size, start):
            raise Damaged("the end of its archive is damaged")
    if start + size != directory_end or not count * _CENTRAL.size <= size <= _DIRECTORY_MAX_BYTES:
        raise Damaged("the directory of its archive is damaged")
    return _members(source.at(offset + start, size), count), start


def _end64(source: Source, offset: int, end64_at: int, locator_at: int) -> tuple[int, int, int]:
    if end64_at + _END64.size != locator_at:
        raise Damaged("the end of its archive is damaged")
    found = _END64.unpack(source.at(offset + end64_at, _END64.size))
    magic, record_size, _, _, disk, first_disk, here, count, size, start = found
    if magic != b"PK\x06\x06" or record_size != _END64.size - 12 or disk or first_disk or here != count:
        raise Damaged("the end of its archive is damaged")
    return count, size, start


def _members(directory: bytes, count: int) -> list[_Member]:
    members, position = [], 0
    for _ in range(count):
        if position + _CENTRAL.size > len(directory):
            raise Damaged("the directory of its archive is damaged")
        found = _CENTRAL.unpack_from(directory, position)
        magic, _, _, flags, method, _, _, crc, packed, size, names, extras, comments, disk, _, kind, header_at = found
        name_at = position + _CENTRAL.size
        position = name_at + names + extras + comments
        if method == _DEFLATED and _TORCHSCRIPT in directory[name_at : name_at + names]:
            raise Compressed("it is TorchScript, whose code is compressed")
        if magic != b"PK\x01\x02" or method or flags & ~_TORCH_FLAGS or disk or position > len(directory):
            raise Damaged("the directory of its archive is damaged")
        if kind & _FOLDER_BIT:
            raise Damaged("the directory of its archive calls a member a folder")
        extra = directory[name_at + names : name_at + names + extras]
        size, packed, header_at = _full_numbers(extra, size, packed, header_at)
        if size != packed:
            raise Damaged("the directory of its archive is damaged")
        members.append(_Member(directory[name_at : name_at + names], crc, size, header_at))
    if position != len(directory):
        raise Damaged("the directory of its archive is damaged")
    return members


def _full_numbers(extra: bytes, *short: int) -> list[int]:
    """Replace each number that did not fit 32 bits by its place in the zip64 field."""
    if _FULL_32 not in short:
        return list(short)
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + size]
        position += 4 + size
        if kind == 1:
            longs = iter(struct.unpack_from(f"<{len(body) // 8}Q", body))
            numbers = [next(longs, -1) if number == _FULL_32 else number for number in short]
            if -1 not in numbers:
                return numbers
    raise Damaged("the directory of its archive is damaged")


def _data_start(source: Source, offset: int, member: _Member, data_end: int) -> int:
    """Where the member's bytes begin; its own header must name it as the directory does."""
    after = member.header_at + _LOCAL.size
    if after + len(member.name) > data_end:
        raise Damaged(f"member {_name(member)} of its archive lies outside its place")
    header = source.at(offset + member.header_at, _LOCAL.size + len(member.name))
    magic, _, flags, method, _, _, _, _, _, names, extras = _LOCAL.unpack_from(header)
    extras_bytes: int = extras
    if magic != b"PK\x03\x04" or method or flags & ~_TORCH_FLAGS or header[_LOCAL.size :] != member.name:
        raise Damaged(f"header of {_name(member)} is damaged")
    if names != len(member.name):
        raise Damaged(f"header of {_name(member)} is damaged")
    return after + len(member.name) + extras_bytes


def _name(member: _Member) -> str:
    return ascii(member.name.decode("utf-8", "replace")[:100])
