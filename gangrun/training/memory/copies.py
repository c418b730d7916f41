"""Passes a copy of each rank's files to a rank of another node, for that node's memory.

Nodes stand in a ring, and a copy goes half way round: neighbours tend to share a switch and a power supply. One chunk
is on its way in each direction at a time, over the saver's own group, and each is compared with its checksum as it
arrives.
"""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist

from gangrun.checkpoint.formats.torch_zip import crc32
from gangrun.checkpoint.memory_tier.keeper_client import Kept, NotKept, StepName
from gangrun.training.ranks import Ranks
from gangrun.training.save.snapshot import bytes_of
from gangrun.wire.manifest import CHUNK_BYTES, FileRow

_LENGTH_BYTES = 8
DAMAGED = "a copy came damaged"


def distance(world_size: int, local_world_size: int) -> int:
    """How many ranks further the copy goes; 0 where there is no other node."""
    nodes_count = world_size // local_world_size if local_world_size > 0 else 0
    return local_world_size * (nodes_count // 2) if world_size == nodes_count * local_world_size else 0


class Copying:
    """One rank's sending and receiving; both ends go on to the last chunk, whatever fails meanwhile."""

    def __init__(self, kept: Kept, ranks: Ranks, distance_count: int) -> None:
        self._kept, self._ranks = kept, ranks
        self._to = (ranks.rank + distance_count) % ranks.world_size
        self._from = (ranks.rank - distance_count) % ranks.world_size

    def copy(self, name: StepName, rows: tuple[FileRow, ...]) -> str:
        """Give these files and take the other's; "" or why the other's could not be kept here."""
        told = json.dumps([[row.path, row.size, row.crcs] for row in rows]).encode()
        length = self._swap(len(told).to_bytes(_LENGTH_BYTES, "little"), _LENGTH_BYTES)
        theirs = [FileRow(*one) for one in json.loads(self._swap(told, int.from_bytes(length, "little")))]
        sending, taking = _Sending(self._kept, name, rows), Taking(self._kept, name, theirs)
        for number in range(max(sending.chunks_count, taking.chunks_count)):
            jobs = []
            if number < sending.chunks_count:
                jobs.append(dist.P2POp(dist.isend, sending.chunk(number), self._to, self._ranks.group))
            if number < taking.chunks_count:
                jobs.append(dist.P2POp(dist.irecv, taking.room(number), self._from, self._ranks.group))
            for job in dist.batch_isend_irecv(jobs):
                job.wait()
            if number < taking.chunks_count:
                taking.took(number)
        sending.close()
        return sending.failure or taking.close()

    def _swap(self, data: bytes, wanted: int) -> bytes:
        room = torch.empty(wanted, dtype=torch.uint8)
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        jobs = [
            dist.P2POp(dist.isend, mine, self._to, self._ranks.group),
            dist.P2POp(dist.irecv, room, self._from, self._ranks.group),
        ]
        for job in dist.batch_isend_irecv(jobs):
            job.wait()
        return bytes(bytes_of(room))


def _chunks(rows: tuple[FileRow, ...] | list[FileRow]) -> list[tuple[FileRow, int, int]]:
    """(file, chunk, bytes), one after the other."""
    return [
        (row, at // CHUNK_BYTES, min(CHUNK_BYTES, row.size - at))
        for row in rows
        for at in range(0, row.size, CHUNK_BYTES)
    ]


class _Sending:
    def __init__(self, kept: Kept, name: StepName, rows: tuple[FileRow, ...]) -> None:
        self._chunks, self._kept, self._name = _chunks(rows), kept, name
        self._buffer = torch.empty(max((size for _, _, size in self._chunks), default=0), dtype=torch.uint8)
        self.chunks_count = len(self._chunks)
        self.failure = ""

    def chunk(self, number: int) -> torch.Tensor:
        """The bytes; whatever where they could not be read, which the other end sees by the checksum."""
        row, chunk, size = self._chunks[number]
        part = self._buffer[:size]
        try:
            with self._kept.opened(self._name, row.path) as fd:
                if os.preadv(fd, [bytes_of(part)], chunk * CHUNK_BYTES) != size:
                    raise NotKept(f"{row.path} is shorter than it was")
        except OSError as error:
            self.failure = str(error.strerror or error)
        return part

    def close(self) -> None:
        """Let go."""
        self._buffer = torch.empty(0, dtype=torch.uint8)


class Taking:
    """The other's files, as they come."""

    def __init__(self, kept: Kept, name: StepName, rows: list[FileRow]) -> None:
        self._chunks, self._kept, self._name = _chunks(rows), kept, name
        self._buffer = torch.empty(max((size for _, _, size in self._chunks), default=0), dtype=torch.uint8)
        self._fds: dict[str, int] = {}
        self._rows = rows
        self.chunks_count = len(self._chunks)
        self.failure = ""
        for row in rows:
            try:
                self._fds[row.path] = kept.new(name, row.path, row.size)
            except NotKept as error:
                self.failure = str(error.strerror or error)
                break

    def room(self, number: int) -> torch.Tensor:
        """Where the next chunk goes."""
        return self._buffer[: self._chunks[number][2]]

    def took(self, number: int) -> None:
        """It has come."""
        row, chunk, size = self._chunks[number]
        if self.failure:
            return
        part = bytes_of(self._buffer[:size])
        if crc32(part, 0) != row.crc_of(chunk):
            self.failure = f"{DAMAGED}: {row.path}"
            return
        try:
            at = 0
            while at < size:
                at += os.pwrite(self._fds[row.path], part[at:], chunk * CHUNK_BYTES + at)
        except OSError as error:
            self.failure = str(error.strerror or error)

    def close(self) -> str:
        """Seal what came whole; "" or what went wrong."""
        for row in self._rows:
            fd = self._fds.pop(row.path, -1)
            if fd >= 0:
                os.close(fd)
                try:
                    if not self.failure:
                        self._kept.done(self._name, row.path)
                except NotKept as error:
                    self.failure = str(error.strerror or error)
        return self.failure
