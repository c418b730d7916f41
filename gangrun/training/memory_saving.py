"""Puts a save into the memory of the nodes instead of onto the disk, all ranks together (room: training).

Each rank's files go into sealed memory that its node's keeper holds and that outlives it. A manifest, the same on every
node, is put there once all ranks have all of theirs, and only when every node has that may older steps go: so at any
moment some step is whole. gangrun brings it to the disk when ranks have died. Next: ``checkpoint/kept.py`` for the
keeper, ``saver`` for the thread that calls this.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from collections.abc import Callable

import torch

from gangrun.checkpoint.commit import Staging
from gangrun.checkpoint.kept import Kept, NotKept, StepName
from gangrun.training import environment
from gangrun.training.clock import Clock
from gangrun.training.delta import Part
from gangrun.training.memory_copy import Copying, distance
from gangrun.training.ranks import Ranks
from gangrun.training.shard_file import ShardFile, row_of
from gangrun.training.snapshot import Snapshot
from gangrun.wire.manifest import MANIFEST_NAME, FileRow, Manifest, encode

METADATA_NAME = ".metadata"
Describe = Callable[[list[Part], str], bytes]


def kept_of(ranks: Ranks, directory: str) -> Kept | None:
    """This node's keeper, if every rank has one and gangrun brings what is there to this directory."""
    name, known = environment.memory_keeper(), environment.checkpoint_directory()
    kept = None
    if name and known and os.path.realpath(known) == os.path.realpath(directory):
        try:
            kept = Kept(name)
        except NotKept as error:
            warnings.warn(f"checkpoints are not kept in memory: {error.strerror or error}", stacklevel=4)
    if ranks.largest(int(kept is None))[0]:
        if kept is not None:
            kept.close()
        return None
    return kept


class MemorySaving:
    """One rank's part in saves to memory; used by the saver's thread."""

    def __init__(self, kept: Kept, staging: Staging, clock: Clock) -> None:
        self._kept, self._staging, self._clock = kept, staging, clock

    def written(self, step: int, snapshot: Snapshot, ranks: Ranks, describe: Describe) -> str:
        """Keep it; one sentence on all ranks, "" once every node has its part. ``describe`` makes ``.metadata``."""
        name = StepName(self._staging.attempt, step, ranks.from_first(secrets.token_hex(16)))
        mine = self._put(name, snapshot)
        parts = ranks.to_first(mine)
        failure, metadata, manifest = "", b"", b""
        if ranks.rank == 0:
            failure = next((f"rank {rank}: {part.failure}" for rank, part in enumerate(parts) if part.failure), "")
            if not failure:
                metadata = describe(parts, name.nonce)
                manifest = self._manifest(name, [row for part in parts for row in part.rows], metadata, ranks)
        failure, metadata, manifest = ranks.from_first((failure, metadata, manifest))
        uncopied = ""
        if not failure:
            uncopied = self._copied(name, mine, ranks)
            troubles = ranks.to_first(self._put_small(name, metadata, manifest))
            failure = ranks.from_first(next(filter(None, troubles), ""))
        if failure:
            with contextlib.suppress(NotKept):
                self._kept.abandon(name)
            return f"steps are not kept in memory, only on disk: {failure}"
        self._kept.whole(name)
        return f"steps in memory have no copy on another node: {uncopied}" if uncopied else ""

    def _copied(self, name: StepName, mine: Part, ranks: Ranks) -> str:
        """Each node's part to another node; "" where all have it, or where there is no other."""
        distance_count = distance(ranks.world_size, environment.local_world_size())
        if not distance_count:
            return ""
        troubles = ranks.to_first(Copying(self._kept, ranks, distance_count).copy(name, mine.rows))
        return ranks.from_first(next((f"rank {n}: {why}" for n, why in enumerate(troubles) if why), ""))

    def close(self) -> None:
        """Let go of the keeper; what was kept stays there."""
        self._kept.close()

    def _put(self, name: StepName, snapshot: Snapshot) -> Part:
        """This rank's files. A rank that has nothing to keep has none."""
        rows: list[FileRow] = []
        placed: list[tuple[str, object, int, int]] = []
        pieces = iter(snapshot.pieces)
        try:
            for number, file in enumerate(snapshot.plan.files):
                tensors = [next(pieces) for _ in file.tensors]
                objects = list(zip(snapshot.plan.objects, snapshot.objects, strict=True)) if number == 0 else []
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
            return Part(failure=str(error.strerror or error))
        return Part(tuple(rows), tuple(placed))

    def _manifest(self, name: StepName, rows: list[FileRow], metadata: bytes, ranks: Ranks) -> bytes:
        staging = self._staging
        return encode(
            Manifest(
                step=name.step, nonce=name.nonce, run=staging.run, term=staging.term, attempt=staging.attempt,
                world_size=ranks.world_size, made_by=f"torch {torch.__version__}", written_wall=self._clock.wall(),
                files=(*rows, row_of(METADATA_NAME, metadata)),
            )
        )  # fmt: skip

    def _put_small(self, name: StepName, metadata: bytes, manifest: bytes) -> str:
        """One rank of each node puts what all nodes have; the manifest last, since it says that all is there."""
        if environment.local_rank() != 0:
            return ""
        try:
            self._kept.put(name, METADATA_NAME, metadata)
            self._kept.put(name, MANIFEST_NAME, manifest)
        except OSError as error:
            return str(error.strerror or error)
        return ""
