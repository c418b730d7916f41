"""The files of the checkpoint that ranks load, also where no node has all of them: of a step in the nodes' memory.

Then each node has its own ranks' files, and copies of another node's; one that took a lost node's place has nothing.
Ranks tell each other which bytes they will read and which files their nodes have. What tells where the tensors stand is
sent first, to nodes that lack it. The ranks of a node ask for what it lacks only once, a file each. Who has a file
sends it, piece by piece and in an order that is the same for all ranks: of all transfers that are not over, both ends
of the first one are at it, so nobody waits in a circle. Each piece bears its checksum. What comes lies in memory of the
rank that asked, at the place where it stands in the file, and all ranks of the node read it there.

A rank that fails goes on to the last transfer, and in the end all of them learn of it: nothing has reached the model.
One that fails before that, as its model is another one, says so in place of what it wants.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.formats.torch_zip import crc32
from gangrun.training import environment
from gangrun.training.ranks import RankGroup
from gangrun.training.save.snapshot import bytes_of
from gangrun.training.state import CheckpointError

PIECE_BYTES = 16 * 1024 * 1024
ON_THEIR_WAY_COUNT = 4  # pieces that a rank sends or takes at a time
_CRC_BYTES = 4


class ByteRange(NamedTuple):
    """Bytes of a file, the last one excepted."""

    file: str
    begins: int
    ends: int


class Transfer(NamedTuple):
    """Which rank sends what to which."""

    source: int
    taker: int
    piece: ByteRange


class CheckpointFiles:
    """The files of a directory that has all of them."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __enter__(self) -> CheckpointFiles:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Nothing is read any more."""

    def bring(self, wanted: Iterable[ByteRange]) -> None:
        """See to it that these can be read. All ranks call it."""

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """A descriptor to read; OSError."""
        descriptor = os.open(os.path.join(self.directory, name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def files_of(directory: str, ranks: RankGroup) -> CheckpointFiles:
    """How this attempt reads the checkpoint that it resumes from. All ranks call it."""
    return SharedFiles(directory, ranks) if environment.resume_is_shared() else CheckpointFiles(directory)


class SharedFiles(CheckpointFiles):
    """The files that all nodes have together."""

    def __init__(self, directory: str, ranks: RankGroup) -> None:
        """Learn which node has what."""
        super().__init__(directory)
        self._ranks = ranks
        self._brought: dict[str, int] = {}  # file -> descriptor of what was asked for of it
        self._asked = False
        node = f"{os.uname().nodename}:{directory}"
        here, failure = _files_in(directory) if environment.local_rank() == 0 else ({}, "")
        told = ranks.from_first(ranks.to_first((failure, node, here)))
        _demand_whole([why for why, _, _ in told])
        self._nodes = [name for _, name, _ in told]
        self._files: dict[str, frozenset[str]] = {}
        for _, name, files in told:
            self._files[name] = self._files.get(name, frozenset()).union(files)
        self._node = node
        self._metadata_bytes = max(files.get(METADATA_NAME, 0) for _, _, files in told)

    def __enter__(self) -> SharedFiles:  # noqa: PYI034 - Self is of Python 3.11
        if self._metadata_bytes and any(METADATA_NAME not in files for files in self._files.values()):
            try:
                self.bring([ByteRange(METADATA_NAME, 0, self._metadata_bytes)])
            except BaseException:
                self._close()
                raise
            self._asked = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """What was brought is needed no more. Others wait for what this rank wants, even if it failed before."""
        if isinstance(error, Exception) and not self._asked:
            with contextlib.suppress(RuntimeError):  # another rank is gone: what went wrong here is what has to be seen
                self._wanted(str(error) or type(error).__name__, [])
        self._close()

    def _close(self) -> None:
        for descriptor in self._brought.values():
            os.close(descriptor)
        self._brought = {}

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """As it is on this node, or what was brought of it."""
        if name in self._brought:
            yield self._brought[name]
            return
        with super().opened(name) as descriptor:
            yield descriptor

    def bring(self, wanted: Iterable[ByteRange]) -> None:
        """Raises ``CheckpointError`` on all ranks alike."""
        lacking = merged(one for one in wanted if one.file not in self._files[self._node])
        asked = self._wanted("", lacking)
        _demand_whole([why for why, _ in asked])
        transfers = transfers_of(self._nodes, self._files, [wanted for _, wanted in asked])
        taken = _Taken(t.piece for t in transfers if t.taker == self._ranks.rank)
        try:
            failure = _Exchange(self, self._ranks, taken).run(transfers)
            shown = self._agreed(failure, taken.shown())
            self._agreed(self._open(one for node, files in shown if node == self._node for one in files.items()))
        finally:
            taken.close()

    def _wanted(self, failure: str, lacking: list[ByteRange]) -> Sequence[tuple[str, list[ByteRange]]]:
        """By each rank, or why it wants nothing."""
        self._asked = True
        return self._ranks.from_first(self._ranks.to_first((failure, lacking)))

    def _open(self, shown: Iterable[tuple[str, str]]) -> str:
        try:
            for name, path in shown:
                self._brought[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return f"what another rank of its node was sent cannot be read: {error.strerror}"
        return ""

    def _agreed(self, failure: str, told: Mapping[str, str] | None = None) -> Sequence[tuple[str, Mapping[str, str]]]:
        """What each rank tells, with its node."""
        everybody = self._ranks.from_first(self._ranks.to_first((failure, told or {})))
        _demand_whole([why for why, _ in everybody])
        return [(self._nodes[rank], files) for rank, (_, files) in enumerate(everybody)]


def _files_in(directory: str) -> tuple[dict[str, int], str]:
    """The files in a directory with their sizes, and why these are not known (or "")."""
    try:
        return {name: os.path.getsize(os.path.join(directory, name)) for name in sorted(os.listdir(directory))}, ""
    except OSError as error:
        return {}, f"{directory} cannot be read: {error.strerror}"


def _demand_whole(failures: Sequence[str]) -> None:
    """Of each rank; "" where nothing failed."""
    for rank, why in enumerate(failures):
        if why:
            raise CheckpointError(f"the step cannot be loaded from the nodes' memory: rank {rank}: {why}")


def merged(wanted: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes, each once and in order."""
    found: list[ByteRange] = []
    for one in sorted(wanted):
        if found and found[-1].file == one.file and one.begins <= found[-1].ends:
            found[-1] = found[-1]._replace(ends=max(found[-1].ends, one.ends))
        else:
            found.append(one)
    return found


def transfers_of(
    nodes: Sequence[str], files: Mapping[str, frozenset[str]], asked: Sequence[Iterable[ByteRange]]
) -> list[Transfer]:
    """In the order in which all ranks go through them. ``nodes``: of each rank. ``asked``: by each rank, of files that
    its node lacks. ``CheckpointError`` if no node has a file.
    """
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks.setdefault(node, []).append(rank)
    sent = [0] * len(nodes)  # bytes
    taken = [0] * len(nodes)
    queues: list[list[Transfer]] = [[] for _ in nodes]  # of each taker
    for number, there in enumerate(ranks.values()):
        takers: dict[str, int] = {}
        lacking = merged(wanted for rank in there for wanted in asked[rank])
        first = len(lacking) * number // len(ranks)  # else all nodes would begin with those who have the first file
        for one in (*lacking[first:], *lacking[:first]):
            sources = [rank for other, others in ranks.items() if one.file in files[other] for rank in others]
            if not sources:
                raise CheckpointError(f"{one.file} is in the memory of no node that has ranks")
            if one.file not in takers:
                takers[one.file] = min(there, key=lambda rank: taken[rank])
            taker = takers[one.file]
            for begins in range(one.begins, one.ends, PIECE_BYTES):
                piece = one._replace(begins=begins, ends=min(one.ends, begins + PIECE_BYTES))
                source = min(sources, key=lambda rank: sent[rank])
                sent[source] += piece.ends - piece.begins
                taken[taker] += piece.ends - piece.begins
                queues[taker].append(Transfer(source, taker, piece))
    numbered = sorted((n, taker, transfer) for taker, queue in enumerate(queues) for n, transfer in enumerate(queue))
    return [transfer for _, _, transfer in numbered]


class _Taken:
    """The files of which this rank is sent something, in its memory."""

    def __init__(self, pieces: Iterable[ByteRange]) -> None:
        self.failure = ""
        self._descriptors: dict[str, int] = {}
        try:
            for piece in pieces:
                if piece.file not in self._descriptors:
                    self._descriptors[piece.file] = os.memfd_create("gangrun-resume", os.MFD_CLOEXEC)
        except OSError as error:
            self.failure = error.strerror or str(error)

    def write(self, piece: ByteRange, data: memoryview) -> None:
        """Where it stands in the file; OSError."""
        at = 0
        while at < len(data):
            at += os.pwrite(self._descriptors[piece.file], data[at:], piece.begins + at)

    def shown(self) -> dict[str, str]:
        """Where other processes of this user on this node open them."""
        return {name: f"/proc/{os.getpid()}/fd/{descriptor}" for name, descriptor in self._descriptors.items()}

    def close(self) -> None:
        """Who opened one still has it."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)


class _Exchange:
    """One rank's part."""

    def __init__(self, files: CheckpointFiles, ranks: RankGroup, taken: _Taken) -> None:
        self._files, self._ranks, self._taken = files, ranks, taken
        self._failure = taken.failure

    def run(self, transfers: Iterable[Transfer]) -> str:
        """To the last one; "" or what went wrong here."""
        on_their_way: deque[tuple[Any, Transfer, torch.Tensor]] = deque()
        for number, transfer in enumerate(transfers):
            if self._ranks.rank not in (transfer.source, transfer.taker):
                continue
            if len(on_their_way) == ON_THEIR_WAY_COUNT:
                self._end(*on_their_way.popleft())
            on_their_way.append(self._begun(number, transfer))
        while on_their_way:
            self._end(*on_their_way.popleft())
        return self._failure

    def _begun(self, number: int, transfer: Transfer) -> tuple[Any, Transfer, torch.Tensor]:
        _, begins, ends = transfer.piece
        buffer = torch.empty(ends - begins + _CRC_BYTES, dtype=torch.uint8)
        if transfer.taker == self._ranks.rank:
            return dist.irecv(buffer, transfer.source, self._ranks.group, number), transfer, buffer
        data = bytes_of(buffer)
        whole = self._read(transfer.piece, data[:-_CRC_BYTES])
        crc = crc32(data[:-_CRC_BYTES], 0) ^ (not whole)  # a piece that could not be read is refused there
        data[-_CRC_BYTES:] = crc.to_bytes(_CRC_BYTES, "little")
        return dist.isend(buffer, transfer.taker, self._ranks.group, number), transfer, buffer

    def _read(self, piece: ByteRange, room: memoryview) -> bool:
        try:
            with self._files.opened(piece.file) as descriptor:
                at = 0
                while at < len(room) and (count := os.preadv(descriptor, [room[at:]], piece.begins + at)):
                    at += count
        except OSError as error:
            self._failure = f"{piece.file} cannot be read: {error.strerror}"
            return False
        if at < len(room):
            self._failure = f"{piece.file} ends before byte {piece.ends}"
        return at == len(room)

    def _end(self, job: Any, transfer: Transfer, buffer: torch.Tensor) -> None:
        job.wait()
        if transfer.taker != self._ranks.rank or self._failure:
            return
        data = bytes_of(buffer)
        if crc32(data[:-_CRC_BYTES], 0) != int.from_bytes(data[-_CRC_BYTES:], "little"):
            self._failure = f"a piece of {transfer.piece.file} came damaged from rank {transfer.source}"
            return
        try:
            self._taken.write(transfer.piece, data[:-_CRC_BYTES])
        except OSError as error:
            self._failure = f"no room for {transfer.piece.file}: {error.strerror}"
