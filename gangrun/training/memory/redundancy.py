"""Copies or parity of each rank's files on other nodes, for the nodes' memory.

Copies: nodes stand in a ring, and a copy goes half way round, since neighbours tend to share a switch and a power
supply. One chunk is on its way in each direction at a time, over the saver's own group, and each is compared with its
checksum as it arrives.

Parity rotates, as RAID 6 does it with disks. A group of g nodes that may lose m has g stripes. Stripe number s has its
parity on the m nodes from the s-th on, round the group, and a piece of each of the g - m others. So a node's data are
cut into g - m pieces, one for each stripe of which it holds no parity; no node holds two shards of one stripe; and m
lost nodes take at most m shards of each stripe, which is what its code gives back. Each node holds m parity shards,
each as long as a piece: m / (g - m) of its data. Groups are dealt out like cards. All ranks work this out alike from
the same numbers; a rebuild reads the record (``wire/protection.py``) instead.

Of each group of nodes one rank of each node codes together. The holder of a stripe's parity is sent the pieces of all
its members, some pages at a time, and keeps their sum only. Both ends take checksums of what passed, and rank 0
compares them before it writes the record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from gangrun.checkpoint.formats.torch_zip import crc32
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName
from gangrun.checkpoint.parity.code import Span
from gangrun.checkpoint.parity.field import Row, parity_rows, sums_for
from gangrun.training.ranks import RankGroup
from gangrun.training.save.snapshot import bytes_of
from gangrun.wire import protection
from gangrun.wire.code_layout import CodeLayout, ShardSum
from gangrun.wire.manifest import CHUNK_BYTES, FileRow
from gangrun.wire.protection import Code, CodedFile, Protection, Stripe

PAGE_BYTES = 4096


def node_groups(nodes_count: int, data_count: int, parity_count: int) -> tuple[tuple[int, ...], ...]:
    """Nodes by number, each in one group: of ``data_count`` + ``parity_count`` at least, while there are so many."""
    count = max(1, nodes_count // (data_count + parity_count))
    return tuple(tuple(range(first, nodes_count, count)) for first in range(count))


def bearable(group_size: int, parity_count: int) -> int:
    """How many nodes of such a group may be lost: all but one at most."""
    return min(parity_count, group_size - 1)


def parity_members(group_size: int, parity_count: int, stripe: int) -> tuple[int, ...]:
    """Who holds the parity of this stripe, by place in the group: the first shard of it, the second, ..."""
    return tuple((stripe + shard) % group_size for shard in range(parity_count))


def data_members(group_size: int, parity_count: int, stripe: int) -> tuple[int, ...]:
    """Of whom this stripe holds a piece."""
    parity = parity_members(group_size, parity_count, stripe)
    return tuple(member for member in range(group_size) if member not in parity)


def piece_place(total_bytes: int, group_size: int, parity_count: int, member: int, stripe: int) -> tuple[int, int]:
    """Where the piece of this member's ``total_bytes`` that belongs to the stripe begins, and its length, perhaps 0."""
    own = [s for s in range(group_size) if member not in parity_members(group_size, parity_count, s)]
    length = -(-total_bytes // len(own))
    length = -(-length // PAGE_BYTES) * PAGE_BYTES
    begins = min(own.index(stripe) * length, total_bytes)
    return begins, min(length, total_bytes - begins)


_LENGTH_BYTES = 8
COPY_DAMAGED = "a copy came damaged"


def distance(world_size: int, local_world_size: int) -> int:
    """How many ranks further the copy goes; 0 where there is no other node."""
    nodes_count = world_size // local_world_size if local_world_size > 0 else 0
    return local_world_size * (nodes_count // 2) if world_size == nodes_count * local_world_size else 0


class Copying:
    """One rank's sending and receiving; both ends go on to the last chunk, whatever fails meanwhile."""

    def __init__(self, kept: KeeperClient, ranks: RankGroup, distance_count: int) -> None:
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
    def __init__(self, kept: KeeperClient, name: StepName, rows: tuple[FileRow, ...]) -> None:
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
                    raise KeeperRefused(f"{row.path} is shorter than it was")
        except OSError as error:
            self.failure = str(error.strerror or error)
        return part


class Taking:
    """The other's files, as they come."""

    def __init__(self, kept: KeeperClient, name: StepName, rows: list[FileRow]) -> None:
        self._chunks, self._kept, self._name = _chunks(rows), kept, name
        self._buffer = torch.empty(max((size for _, _, size in self._chunks), default=0), dtype=torch.uint8)
        self._fds: dict[str, int] = {}
        self._rows = rows
        self.chunks_count = len(self._chunks)
        self.failure = ""
        for row in rows:
            try:
                self._fds[row.path] = kept.new(name, row.path, row.size)
            except KeeperRefused as error:
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
            self.failure = f"{COPY_DAMAGED}: {row.path}"
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
                except KeeperRefused as error:
                    self.failure = str(error.strerror or error)
        return self.failure


ROUND_BYTES = 1024 * 1024  # of each piece that is on its way at a time
PARITY_DAMAGED = "a piece came damaged for parity"

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodingPlan:
    """Which ranks code together; those of one group of nodes stand beside each other. Empty: there is no other node."""

    codes: tuple[Members, ...]
    parity_count: int
    lanes_count: int

    @property
    def losses_count(self) -> int:
        """How many nodes may be lost, wherever they are."""
        return min((bearable(len(members), self.parity_count) for members in self.codes), default=0)


def plan_of(world_size: int, local_world_size: int, data_count: int, parity_count: int) -> CodingPlan:
    """For nodes with equally many ranks each."""
    nodes_count = world_size // local_world_size if local_world_size > 0 else 0
    if nodes_count < 2 or world_size != nodes_count * local_world_size:
        return CodingPlan((), parity_count, 0)
    return CodingPlan(
        tuple(
            tuple(node * local_world_size + lane for node in group)
            for group in node_groups(nodes_count, data_count, parity_count)
            for lane in range(local_world_size)
        ),
        parity_count,
        local_world_size,
    )


@dataclass(slots=True)
class Coded:
    """What one rank has to tell: checksums of its own pieces by stripe, and of what it keeps parity of."""

    failure: str = ""
    pieces: dict[int, int] = field(default_factory=dict)
    parity: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # (stripe, shard)


@dataclass(slots=True)
class _Out:
    """A piece of this rank's, and who wants it."""

    stripe: int
    begins: int
    size: int
    to: tuple[int, ...]
    buffer: torch.Tensor
    crc: int = 0


class _In:
    """A parity shard in the making."""

    def __init__(self, stripe: int, shard: int, members: Members, sizes: list[int], row: Row) -> None:
        self.stripe, self.shard, self.members, self.sizes = stripe, shard, members, sizes
        self.span = max(sizes)
        room = min(self.span, ROUND_BYTES)
        self.rooms = [torch.empty(room, dtype=torch.uint8) for _ in members]
        self.sum = torch.empty(room, dtype=torch.uint8)
        self.crcs = [0] * len(members)
        self.crc, self.descriptor = 0, -1
        self._sums, self._plain = sums_for([row]), set(row) == {1}

    def there(self, member: int, at: int) -> int:
        """How much of the member's piece comes in this round."""
        return max(0, min(ROUND_BYTES, self.sizes[member] - at))

    def add(self, at: int) -> memoryview:
        """What came in this round, summed up."""
        count = min(ROUND_BYTES, self.span - at)
        for number, room in enumerate(self.rooms):
            there = self.there(number, at)
            self.crcs[number] = crc32(bytes_of(room[:there]), self.crcs[number])
            room[there:count] = 0
        total = self.sum[:count]
        if self._plain:  # without the interpreter's lock, whatever is installed
            total.copy_(self.rooms[0][:count])
            for room in self.rooms[1:]:
                torch.bitwise_xor(total, room[:count], out=total)
        else:
            self._sums.fill([bytes_of(total)], [bytes_of(room[:count]) for room in self.rooms])
        data = bytes_of(total)
        self.crc = crc32(data, self.crc)
        return data


class Coding:
    """One rank's part in its code; all of its members go on to the last round, whatever fails meanwhile."""

    def __init__(self, kept: KeeperClient, ranks: RankGroup, number: int, members: Members, parity_count: int) -> None:
        self._kept, self._ranks, self._number, self._members = kept, ranks, number, members
        self._size = len(members)
        self._parity_count = bearable(self._size, parity_count)
        self._place = members.index(ranks.rank)
        self._failure = ""

    def code(self, name: StepName, files: Sequence[tuple[CodedFile, ...]]) -> Coded:
        """``files``: of all members in order; this rank's are in memory already."""
        totals = [sum(file.size for file in one) for one in files]
        outs, ins = self._outs(totals), self._ins(totals)
        with ExitStack() as stack:
            mine = self._own(stack, name, files[self._place])
            for one in ins:
                self._make_room(stack, name, one)
            for at in range(0, max([one.size for one in outs] + [one.span for one in ins], default=0), ROUND_BYTES):
                self._round(mine, outs, ins, at)
        if not self._failure:
            self._seal(name, ins)
        return Coded(
            self._failure,
            {one.stripe: one.crc for one in outs},
            {(one.stripe, one.shard): (one.crc, tuple(one.crcs)) for one in ins},
        )

    def _outs(self, totals: list[int]) -> list[_Out]:
        found = []
        for stripe in range(self._size):
            holders = parity_members(self._size, self._parity_count, stripe)
            if self._place not in holders:
                begins, size = piece_place(
                    totals[self._place], self._size, self._parity_count, self._place, stripe
                )  # fmt: skip
                room = torch.empty(min(size, ROUND_BYTES), dtype=torch.uint8)
                found.append(_Out(stripe, begins, size, tuple(self._members[n] for n in holders), room))
        return found

    def _ins(self, totals: list[int]) -> list[_In]:
        found = []
        for stripe in range(self._size):
            holders = parity_members(self._size, self._parity_count, stripe)
            if self._place in holders:
                data = data_members(self._size, self._parity_count, stripe)
                sizes = [piece_place(totals[n], self._size, self._parity_count, n, stripe)[1] for n in data]
                shard = holders.index(self._place)
                row = parity_rows(len(data), len(holders))[shard]
                found.append(_In(stripe, shard, tuple(self._members[n] for n in data), sizes, row))
        return found

    def _own(self, stack: ExitStack, name: StepName, files: tuple[CodedFile, ...]) -> Span:
        parts = []
        for file in files:
            try:
                parts.append((stack.enter_context(self._kept.opened(name, file.name)), 0, file.size))
            except KeeperRefused as error:
                self._failure = str(error.strerror or error)
        return Span(tuple(parts))

    def _make_room(self, stack: ExitStack, name: StepName, one: _In) -> None:
        try:
            file = protection.piece_name(self._number, one.stripe, one.shard)
            one.descriptor = self._kept.new(name, file, one.span)
            stack.callback(os.close, one.descriptor)
        except KeeperRefused as error:
            self._failure = str(error.strerror or error)

    def _round(self, mine: Span, outs: list[_Out], ins: list[_In], at: int) -> None:
        jobs = []
        for one in ins:
            for member, rank in enumerate(one.members):
                if there := one.there(member, at):
                    room = one.rooms[member][:there]
                    jobs.append(dist.irecv(room, rank, self._ranks.group, self._tag(one.stripe, one.shard)))
        for out in outs:
            there = min(ROUND_BYTES, out.size - at)
            if there <= 0:
                continue
            part = out.buffer[:there]
            if not mine.read(bytes_of(part), out.begins + at):  # sent all the same: others wait for it
                self._failure = "this rank's own files could not be read from memory"
            out.crc = crc32(bytes_of(part), out.crc)
            jobs += [
                dist.isend(part, rank, self._ranks.group, self._tag(out.stripe, shard))
                for shard, rank in enumerate(out.to)
            ]
        for job in jobs:
            if job is not None:
                job.wait()
        for one in ins:
            if at < one.span:
                self._write(one, one.add(at), at)

    def _tag(self, stripe: int, shard: int) -> int:
        return 1 + stripe * self._size + shard

    def _write(self, one: _In, data: memoryview, at: int) -> None:
        try:
            done = 0
            while not self._failure and done < len(data):
                done += os.pwrite(one.descriptor, data[done:], at + done)
        except OSError as error:
            self._failure = str(error.strerror or error)

    def _seal(self, name: StepName, ins: list[_In]) -> None:
        try:
            for one in ins:
                self._kept.done(name, protection.piece_name(self._number, one.stripe, one.shard))
        except KeeperRefused as error:
            self._failure = str(error.strerror or error)


def records_of(
    plan: CodingPlan, name: StepName, files: Sequence[tuple[CodedFile, ...]], coded: Sequence[Coded]
) -> tuple[list[bytes], str]:
    """Each rank's record, b"" where its group could not be coded, and "" or why one could not. Rank 0 alone."""
    records, trouble = [b""] * len(files), ""
    for first in range(0, len(plan.codes), plan.lanes_count):
        numbers = range(first, first + plan.lanes_count)
        codes = []
        for number in numbers:
            members = plan.codes[number]
            failed = next((f"rank {n}: {coded[n].failure}" for n in members if coded[n].failure), "")
            code = None if failed else _code(plan, number, files, coded)
            if code is None:
                trouble = trouble or failed or PARITY_DAMAGED
            else:
                codes.append(code)
        if len(codes) < len(numbers):
            continue
        losses_count = bearable(len(plan.codes[first]), plan.parity_count)
        record = protection.encode(
            Protection(step=name.step, nonce=name.nonce, losses_count=losses_count, codes=tuple(codes))
        )
        for rank in (rank for number in numbers for rank in plan.codes[number]):
            records[rank] = record
    return records, trouble


def _code(plan: CodingPlan, number: int, files: Sequence[tuple[CodedFile, ...]], coded: Sequence[Coded]) -> Code | None:
    """None where two ranks saw other bytes."""
    members = plan.codes[number]
    size, parity_count = len(members), bearable(len(members), plan.parity_count)
    totals = [sum(file.size for file in files[rank]) for rank in members]
    stripes = []
    for stripe in range(size):
        data = data_members(size, parity_count, stripe)
        holders = parity_members(size, parity_count, stripe)
        sent = tuple(coded[members[n]].pieces[stripe] for n in data)
        kept = [coded[members[n]].parity[stripe, shard] for shard, n in enumerate(holders)]
        if any(came != sent for _, came in kept):
            return None
        sizes = [piece_place(totals[n], size, parity_count, n, stripe)[1] for n in data]
        layout = CodeLayout(
            data=tuple(ShardSum(length, crc) for length, crc in zip(sizes, sent, strict=True)),
            parity=tuple(ShardSum(max(sizes), crc) for crc, _ in kept),
        )
        names = tuple(protection.piece_name(number, stripe, shard) for shard in range(parity_count))
        stripes.append(Stripe(data, names, layout))
    return Code(tuple(files[rank] for rank in members), tuple(stripes))
