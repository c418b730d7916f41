"""Puts a save into the memory of the nodes instead of onto the disk, all ranks together.

Each rank's files go into sealed memory that its node's keeper holds and that outlives it. Copies on another node, or
parity on several, follow. A manifest, the same on every node, is put there once all ranks have all of theirs, and only
when every node has that may older steps go: so at any moment some step is whole. gangrun brings it to the disk when
ranks have died.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from typing import NamedTuple

from gangrun.checkpoint.commit import Staging
from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName
from gangrun.ports import Clock
from gangrun.training import environment
from gangrun.training.memory.redundancy import Coded, Coding, Copying, distance, plan_of, records_of
from gangrun.training.metadata_file import describe
from gangrun.training.ranks import RankGroup
from gangrun.training.save.delta import WrittenPart
from gangrun.training.save.shard_file import ShardFile
from gangrun.training.save.snapshot import Snapshot
from gangrun.wire.manifest import MANIFEST_NAME, FileRow, encode
from gangrun.wire.protection import RECORD_NAME, CodedFile


class MemorySaveResult(NamedTuple):
    """Of one save to memory, the same on all ranks.

    ``failure``: why it is not kept, "" where it is. ``warning``: why it survives less than was asked for.
    ``losses_count``: so many nodes may be lost, whichever they are.
    """

    failure: str = ""
    warning: str = ""
    losses_count: int = 0


class _Guarded(NamedTuple):
    warning: str
    losses_count: int
    record: bytes = b""


def keeper_of(ranks: RankGroup, directory: str) -> KeeperClient | None:
    """This node's keeper, if every rank has one and gangrun brings what is there to this directory."""
    name, known = environment.memory_keeper(), environment.checkpoint_directory()
    kept = None
    if name and known and os.path.realpath(known) == os.path.realpath(directory):
        try:
            kept = KeeperClient(name)
        except KeeperRefused as error:
            warnings.warn(f"checkpoints are saved to disk only, not to memory: {error.strerror or error}", stacklevel=4)
    if ranks.largest(int(kept is None))[0]:
        if kept is not None:
            kept.close()
        return None
    return kept


class MemorySaving:
    """One rank's part in saves to memory; used by the saver's thread."""

    def __init__(self, kept: KeeperClient, staging: Staging, clock: Clock) -> None:
        self._kept, self._staging, self._clock = kept, staging, clock
        self._parity = environment.memory_parity()
        self.loads = False  # what the script resumes from goes through the Checkpointer

    def written(self, step: int, snapshot: Snapshot, ranks: RankGroup) -> MemorySaveResult:
        """Keep it, until every node has its part."""
        name = StepName(self._staging.attempt, step, ranks.from_first(secrets.token_hex(16)))
        with contextlib.suppress(KeeperRefused):  # whatever is put says so too
            self._kept.again()
        mine = self._put(name, snapshot)
        parts = ranks.to_first(mine)
        failure, metadata, manifest = "", b"", b""
        files: list[tuple[CodedFile, ...]] = []  # of each rank
        if ranks.rank == 0:
            failure = next((f"rank {rank}: {part.failure}" for rank, part in enumerate(parts) if part.failure), "")
            if not failure:
                metadata, described = describe(
                    self._staging, step, name.nonce, snapshot.plan, parts, world_size=ranks.world_size,
                    wall=self._clock.wall(), is_sharable=self.loads,
                )  # fmt: skip
                manifest = encode(described)
                if self._parity is not None:
                    files = [tuple(CodedFile(row.path, row.size) for row in part.rows) for part in parts]
        failure, metadata, manifest, files = ranks.from_first((failure, metadata, manifest, files))
        guarded = _Guarded("", 0)
        if not failure:
            guarded = self._copied(name, mine, ranks) if self._parity is None else self._coded(name, files, ranks)
            troubles = ranks.to_first(self._put_small(name, metadata, manifest, guarded.record))
            failure = ranks.from_first(next(filter(None, troubles), ""))
        if failure:
            with contextlib.suppress(KeeperRefused):
                self._kept.again()  # what is sealed outlives a connection, and takes the next save's room
                self._kept.abandon(name)
            return MemorySaveResult(f"checkpoints are saved to disk only, not to memory: {failure}")
        self._kept.again()
        self._kept.whole(name)
        return MemorySaveResult("", guarded.warning, guarded.losses_count)

    def _copied(self, name: StepName, mine: WrittenPart, ranks: RankGroup) -> _Guarded:
        """Each node's part to another node, where there is one."""
        distance_count = distance(ranks.world_size, environment.local_world_size())
        if not distance_count:
            return _Guarded("", 0)
        troubles = ranks.to_first(Copying(self._kept, ranks, distance_count).copy(name, mine.rows))
        trouble = ranks.from_first(next((f"rank {n}: {why}" for n, why in enumerate(troubles) if why), ""))
        return _Guarded(
            f"checkpoints in memory have no copy on another node: {trouble}" if trouble else "", int(not trouble)
        )

    def _coded(self, name: StepName, files: list[tuple[CodedFile, ...]], ranks: RankGroup) -> _Guarded:
        """Parity of each group of nodes on other nodes of it."""
        assert self._parity is not None
        data_count, parity_count = self._parity
        plan = plan_of(ranks.world_size, environment.local_world_size(), data_count, parity_count)
        coded = Coded()
        for number, members in enumerate(plan.codes):
            if ranks.rank in members:
                coding = Coding(self._kept, ranks, number, members, parity_count)
                coded = coding.code(name, [files[rank] for rank in members])
        records, warning, losses_count = [b""] * ranks.world_size, "", plan.losses_count
        told = ranks.to_first(coded)
        if ranks.rank == 0:
            records, trouble = records_of(plan, name, files, told)
            if trouble:
                warning, losses_count = f"checkpoints in memory are not protected by parity: {trouble}", 0
            elif losses_count < parity_count:
                warning = (
                    f"steps in memory survive the loss of {losses_count} of the nodes that this attempt has, "
                    f"and {parity_count} were asked for"
                )
        warning, losses_count = ranks.from_first((warning, losses_count))
        return _Guarded(warning, losses_count, ranks.each_its_own(records))

    def close(self) -> None:
        """Let go of the keeper; what was kept stays there."""
        self._kept.close()

    def _put(self, name: StepName, snapshot: Snapshot) -> WrittenPart:
        """This rank's files. A rank that has nothing to keep has none."""
        rows: list[FileRow] = []
        placed: list[tuple[str, object, int, int]] = []
        try:
            for file, tensors, objects in snapshot.contents():
                if not tensors and not objects:
                    continue
                size = sum(piece.template.size for piece in tensors) + sum(len(data) for _, data in objects)
                shard = ShardFile("", file.name, self._kept.new(name, file.name, size))
                try:
                    for piece in tensors:
                        shard.write_tensor(piece)
                    placed += [(file.name, index, shard.write_bytes(data), len(data)) for index, data in objects]
                except BaseException:
                    shard.abort()
                    raise
                rows.append(shard.close())
                self._kept.done(name, file.name)
        except OSError as error:
            return WrittenPart(failure=str(error.strerror or error))
        return WrittenPart(tuple(rows), tuple(placed))

    def _put_small(self, name: StepName, metadata: bytes, manifest: bytes, record: bytes) -> str:
        """One rank of each node puts what all nodes have; the manifest last, since it says that all is there."""
        if environment.local_rank() != 0:
            return ""
        try:
            self._kept.again()  # without copies, or parity, it is kept all the same
            self._kept.put(name, METADATA_NAME, metadata)
            if record:
                self._kept.put(name, RECORD_NAME, record)
            self._kept.put(name, MANIFEST_NAME, manifest)
        except OSError as error:
            return str(error.strerror or error)
        return ""
