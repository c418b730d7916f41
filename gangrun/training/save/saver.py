"""Writes snapshots in the background, all ranks together, and commits them.

One thread and one process group of its own per process, so that nothing here ever waits for training or training for
it, except by back-pressure: ``free_buffer``. Each save ends alike on all ranks: committed, or failed with one
sentence. On rank 0 the same thread then lets old checkpoints go (``Retention``) and, under gangrun, writes the status
of saves for people (``SaveStatus``).

One Checkpointer of a process at a time saves to a directory: a second one would sweep away what the first is writing. A
Checkpointer that was dropped without ``close()`` writes what it has begun, in the background; the next one waits.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gangrun.checkpoint.commit import Staging, write_whole
from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.scan import Identity, StorageUnreadable, list_steps, step_pattern
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.resume import Kind
from gangrun.core.checkpoints.retention import CommittedStep, Keep, for_a_rollback, to_prune
from gangrun.core.policy import Policy
from gangrun.planning.cadence import Cadence
from gangrun.ports import Clock
from gangrun.training import step as progress
from gangrun.training.memory.saving import MemorySaving
from gangrun.training.metadata_file import describe
from gangrun.training.ranks import RankGroup
from gangrun.training.save.delta import Delta, WrittenPart
from gangrun.training.save.replicas import Comparison, Copies
from gangrun.training.save.snapshot import HostBuffer, Snapshot
from gangrun.wire.saves import ATTEMPTS_MAX_COUNT, NAME, SIZE_BYTES, SavesTold, decode, encode

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
    copies: tuple[Copies, ...] | None = None  # checksums of what other ranks hold too


class Saver:
    """The background of one rank. ``keeping`` is called on rank 0's thread after each commit, and now and then after a
    save to memory.
    """

    def __init__(
        self, ranks: RankGroup, staging: Staging, clock: Clock, delta: Delta, keeping: Retention,
        memory: MemorySaving | None = None, status: SaveStatus | None = None, comparison: Comparison | None = None,
    ) -> None:  # fmt: skip
        self._ranks, self._staging, self._clock = ranks, staging, clock
        self._delta, self._keeping, self._memory = delta, keeping, memory
        self._looked_at = clock.now()
        self._status, self._comparison = status, comparison
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
            if self._status is not None and not save.in_memory:
                self._status.ended(save.step, save.failure, save.persist_s)
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
        kept = self._memory.written(save.step, save.snapshot, self._ranks)
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
        replicas = "" if self._comparison is None else self._comparison.of(save.step, save.copies)
        if self._ranks.rank == 0:
            failure = self._finished(save, path, nonce, parts, replicas)
        failure = self._ranks.from_first(failure)
        if not failure:
            self._delta.committed(save.step, save.snapshot)
        if not failure and self._ranks.rank == 0:
            with contextlib.suppress(OSError):  # a checkpoint that could not be pruned now is pruned after the next
                self._keeping.after_commit(save.step, self._staging)
        return failure

    def _finished(self, save: Save, path: str, nonce: str, parts: list[WrittenPart], replicas: str) -> str:
        failures = [f"rank {rank}: {part.failure}" for rank, part in enumerate(parts) if part.failure]
        if failures:
            self._staging.abandon(path)
            return f"step {save.step} was not saved: {failures[0]}"
        try:
            staging = self._staging
            metadata, manifest = describe(
                staging, save.step, nonce, save.snapshot.plan, parts, world_size=self._ranks.world_size,
                wall=self._clock.wall(), replicas=replicas,
            )  # fmt: skip
            write_whole(os.path.join(path, METADATA_NAME), metadata)
            if self._given_up.is_set():
                staging.abandon(path)
                return f"step {save.step} was not saved: it was given up"
            staging.commit(path, os.path.join(staging.directory, f"step-{save.step}"), manifest)
        except OSError as error:
            self._staging.abandon(path)
            return f"step {save.step} was not saved: {error.strerror or error}"
        return ""


class Retention:
    """What this process knows: which steps it wrote itself, and which one it came from."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._resumed_step: int | None = None
        self._written: set[int] = set()
        self._in_memory: set[int] = set()

    def resumed_from(self, step: int) -> None:
        """This one may be needed again."""
        self._resumed_step = step

    def after_commit(self, step: int, staging: Staging) -> None:
        """Prune what may go now. OSError where something would not; it is tried again after the next commit."""
        self._written.add(step)
        self._prune(staging)

    def after_keep(self, step: int, staging: Staging) -> None:
        """The same after a save to memory, as gangrun may have brought those before it to the disk."""
        self._in_memory.add(step)
        self._prune(staging)

    def _prune(self, staging: Staging) -> None:
        if not self._keep.newest_count:
            return
        try:
            found = [one for one in list_steps(staging.directory, step_pattern()) if one.kind is Kind.GANGRUN]
            on_disk = {one.step for one in found}
            self._written |= self._in_memory & on_disk
            self._in_memory = {step for step in self._in_memory if step > max(on_disk, default=-1)}
            if len(found) <= self._keep.newest_count:
                return
            identities = {one.path: Identity.of(one.path) for one in found}
            judged = {one.path: one for one in CheckpointRoom(staging.directory).survey(Depth.STRUCTURE)}
        except StorageUnreadable:
            return
        held = [
            CommittedStep(
                one.step, judged[one.path].valid or (one.step in self._written and judged[one.path].level is not None)
            )
            for one in found
            if one.path in judged
        ]
        needed = for_a_rollback(held, self._resumed_step, self._written, Policy().poison_after_steps)
        going = to_prune(held, self._keep, needed)
        for one in found:
            if one.step in going:
                with contextlib.suppress(StorageUnreadable):  # another save took the name; the next prune judges it
                    staging.prune(one.path, identities[one.path])


class SaveStatus:
    """The news of one attempt. ``plan`` says how often is saved, and why; ``stalled_s`` for how long in all."""

    def __init__(
        self, staging: Staging, clock: Clock, plan: Callable[[], Cadence], stalled_s: Callable[[], float]
    ) -> None:
        """Takes its place on the disk at once, and over what earlier attempts told."""
        self._path = os.path.join(staging.run_folder, NAME)
        self._clock, self._plan, self._stalled_s = clock, plan, stalled_s
        self._told = SavesTold(staging.attempt, 0.0, 0.0, "")
        self._before = tuple(one for one in self._stalled_before() if one[0] != staging.attempt)
        self._write()

    def ended(self, step: int, failure: str, persist_s: float) -> None:
        """One save was committed (``failure`` "") or failed."""
        if failure:
            self._write(failures_count=self._told.failures_count + 1, failed_step=step, failed_why=failure)
        else:
            self._write(
                failures_count=0, failed_step=-1, failed_why="", saved_step=step, saved_at=self._clock.wall(),
                persist_s=persist_s,
            )  # fmt: skip

    def _stalled_before(self) -> tuple[tuple[int, float], ...]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return ()
        try:
            told = decode(os.read(descriptor, SIZE_BYTES))
        except OSError:
            return ()
        finally:
            os.close(descriptor)
        return told.stalled if told is not None else ()

    def _write(self, **news: object) -> None:
        stalled = (*self._before, (self._told.attempt, round(self._stalled_s(), 2)))[-ATTEMPTS_MAX_COUNT:]
        plan, now = self._plan(), self._clock.wall()
        self._told = msgspec.structs.replace(
            self._told, at=now, interval_s=plan.interval_s, interval_reason=plan.reason, stalled=stalled, **news
        )
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with contextlib.suppress(OSError):  # what cannot be told is not told
            descriptor = os.open(self._path, flags, 0o644)
            try:
                os.pwrite(descriptor, encode(self._told), 0)
            finally:
                os.close(descriptor)


WAIT_S = 30.0
_SAVERS: weakref.WeakValueDictionary[str, Saver] = weakref.WeakValueDictionary()  # the newest of each directory


def take_directory(directory: str, owner: object, saver: Saver) -> None:
    """``owner`` saves there by ``saver`` until that is closed, or the owner is gone."""
    _SAVERS[directory] = saver
    weakref.finalize(owner, saver.release).atexit = False  # what is under way at the process's end is waited for


def refused_directory(directory: str) -> ValueError | None:
    """Why nobody else can save there now; waits for what is only being finished."""
    before = _SAVERS.get(directory)
    if before is None:
        return None
    if not before.released:
        return ValueError(
            f"another Checkpointer of this process saves to {directory}: close() it first, or give this one another "
            "directory"
        )
    with progress.phase("checkpoint"):
        if before.ended(WAIT_S):
            return None
    return ValueError(
        f"an earlier Checkpointer of this process still writes to {directory}, and has not come to its end for "
        f"{WAIT_S:.0f} s: give this one another directory"
    )
