"""Writes snapshots in the background, all ranks together, and commits them.

One thread and one process group of its own per process, so that nothing here ever waits for training or training for
it, except by back-pressure: ``free_buffer``. Each save ends alike on all ranks: committed, or failed with one
sentence.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gangrun.checkpoint.commit import Staging, write_whole
from gangrun.training.clock import Clock
from gangrun.training.memory.saving import MemorySaving
from gangrun.training.metadata_file import dump_metadata
from gangrun.training.ranks import Ranks
from gangrun.training.save.delta import Delta, Part
from gangrun.training.save.retention import Keeping
from gangrun.training.save.shard_file import row_of
from gangrun.training.save.snapshot import HostBuffer, Snapshot
from gangrun.wire.manifest import SAVE_ID_PREFIX, Manifest

METADATA_NAME = ".metadata"
BUFFERS_COUNT = 2
LOOK_EVERY_S = 10.0  # through the checkpoint directory, where saves go to memory


@dataclass(slots=True)
class Save:
    """One save on its way. ``failure`` "" once ``done`` is set: it was committed."""

    step: int
    snapshot: Snapshot
    buffer: HostBuffer
    done: threading.Event = field(default_factory=threading.Event)
    failure: str = ""
    persist_s: float = 0.0
    in_memory: bool = False
    warning: str = ""  # it is kept, and survives less than was asked for
    losses_count: int = 0  # nodes that may be lost without it


class Saver:
    """The background of one rank. ``keeping`` is called on rank 0's thread after each commit, and now and then after a
    save to memory.
    """

    def __init__(
        self, ranks: Ranks, staging: Staging, clock: Clock, delta: Delta, keeping: Keeping,
        memory: MemorySaving | None = None, told: Callable[[int, str, float], None] | None = None,
    ) -> None:  # fmt: skip
        self._ranks, self._staging, self._clock = ranks, staging, clock
        self._delta, self._keeping, self._memory = delta, keeping, memory
        self._looked_at = clock.now()
        self._told = told
        # the one used last comes first: while saves do not overlap the second never takes any memory
        self._buffers: queue.LifoQueue[HostBuffer] = queue.LifoQueue()
        for _ in range(BUFFERS_COUNT):
            self._buffers.put(HostBuffer())
        self._saves: queue.SimpleQueue[Save | None] = queue.SimpleQueue()  # a finalizer may put into it at any moment
        self._given_up = threading.Event()
        self.released = False  # nobody gives it another save
        self._thread = threading.Thread(target=self._main, name="gangrun-saver", daemon=True)
        self._thread.start()

    def free_buffer(self) -> HostBuffer:
        """A buffer that nobody writes from any more; waits for one."""
        return self._buffers.get()

    def give_back(self, buffer: HostBuffer) -> None:
        """A buffer that was not used after all."""
        self._buffers.put(buffer)

    @property
    def behind(self) -> bool:
        """Whether no buffer is free: saves come faster than they can be written."""
        return self._buffers.empty()

    def write(self, save: Save) -> None:
        """Write this one after those before it."""
        self._saves.put(save)

    def release(self) -> None:
        """End by itself after what is under way; waits for nothing."""
        self.released = True
        self._saves.put(None)

    def ended(self, within_s: float | None) -> bool:
        """Whether it has come to its end by then."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def close(self, within_s: float | None = None) -> bool:
        """Finish what is under way; False if that took too long: what is not committed by then never will be."""
        self.release()
        if not self.ended(within_s):
            self._given_up.set()
            return False
        if self._memory is not None:
            self._memory.close()
        return True

    def _main(self) -> None:
        while (save := self._saves.get()) is not None:
            began = self._clock.now()
            try:
                save.failure = self._kept(save) if save.in_memory else self._written(save)
            except Exception as error:  # noqa: BLE001 - a peer's death must not end this thread: the next save says it
                save.failure = f"step {save.step} was not saved: {type(error).__name__}: {error}"
            save.persist_s = self._clock.now() - began
            self._buffers.put(save.buffer)
            if self._told is not None and not save.in_memory:
                self._told(save.step, save.failure, save.persist_s)
            save.done.set()
            if save.in_memory and not save.failure and self._ranks.rank == 0:
                self._look(save.step)

    def _look(self, step: int) -> None:
        """Steps come to the disk from memory too, and then older ones may go."""
        if self._clock.now() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = self._clock.now()
            with contextlib.suppress(OSError):
                self._keeping.after_keep(step, self._staging)

    def _kept(self, save: Save) -> str:
        assert self._memory is not None, "only who has a keeper saves to it"
        kept = self._memory.written(
            save.step,
            save.snapshot,
            self._ranks,
            lambda parts, nonce: dump_metadata(_metadata(save.snapshot, parts, nonce)),
        )
        save.warning, save.losses_count = kept.warning, kept.losses_count
        return kept.failure

    def _written(self, save: Save) -> str:
        """Write, gather, commit; the same sentence on all ranks, "" when committed."""
        nonce = secrets.token_hex(16)
        path, failure = "", ""
        if self._ranks.rank == 0:
            try:
                path = self._staging.begin(save.step, nonce)
            except OSError as error:
                failure = f"step {save.step} was not saved: {error.strerror} ({error.filename})"
        path, nonce, failure = self._ranks.from_first((path, nonce, failure))
        if failure:
            return failure
        parts = self._ranks.to_first(self._delta.write(path, save.snapshot))
        if self._ranks.rank == 0:
            failure = self._finished(save, path, nonce, parts)
        failure = self._ranks.from_first(failure)
        if not failure:
            self._delta.committed(save.step, save.snapshot)
        if not failure and self._ranks.rank == 0:
            with contextlib.suppress(OSError):  # a checkpoint that could not be pruned now is pruned after the next
                self._keeping.after_commit(save.step, self._staging)
        return failure

    def _finished(self, save: Save, path: str, nonce: str, parts: list[Part]) -> str:
        failures = [f"rank {rank}: {part.failure}" for rank, part in enumerate(parts) if part.failure]
        if failures:
            self._staging.abandon(path)
            return f"step {save.step} was not saved: {failures[0]}"
        try:
            rows = [row for part in parts for row in part.rows]
            metadata = dump_metadata(_metadata(save.snapshot, parts, nonce))
            write_whole(os.path.join(path, METADATA_NAME), metadata)
            rows.append(row_of(METADATA_NAME, metadata))
            staging = self._staging
            manifest = Manifest(
                step=save.step, nonce=nonce, run=staging.run, term=staging.term, attempt=staging.attempt,
                world_size=self._ranks.world_size, made_by=f"torch {torch.__version__}",
                written_wall=self._clock.wall(), files=tuple(rows),
            )  # fmt: skip
            if self._given_up.is_set():
                staging.abandon(path)
                return f"step {save.step} was not saved: it was given up"
            staging.commit(path, os.path.join(staging.directory, f"step-{save.step}"), manifest)
        except OSError as error:
            self._staging.abandon(path)
            return f"step {save.step} was not saved: {error.strerror or error}"
        return ""


def _metadata(snapshot: Snapshot, parts: list[Part], nonce: str) -> Metadata:
    """Torch's description of the whole checkpoint, complete with where everything is stored."""
    plan = snapshot.plan
    assert plan.metadata is not None, "rank 0 has the plan of all"
    storage = {index: _StorageInfo(name, at, length) for name, index, at, length in plan.all_places}
    for part in parts:
        for name, index, at, length in part.objects:
            storage[index] = _StorageInfo(name, at, length)
    planned = plan.metadata
    meta = StorageMeta(save_id=SAVE_ID_PREFIX + nonce)
    return Metadata(planned.state_dict_metadata, planned.planner_data, storage, meta)
