"""``torch.save`` archives without ``torch.save``: all but a tensor's bytes is the same each time.

A DCP shard is one small zip archive per tensor. torch itself makes the first one of each type and shape; of it the
bytes before and after the data are kept, and later saves set only the data and its CRC32. So what is written is what
torch writes, any torch reads it, and the writer's thread copies nothing and holds no lock of the interpreter. Next:
``shard_file``, which writes them one after the other.
"""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass

import torch

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
