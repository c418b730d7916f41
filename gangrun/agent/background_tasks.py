"""What may take long: each task runs in a thread of its own, so that the loop never waits for a disk.

At most one task of a kind runs; its answer, a fact, is taken by the loop. A task that never comes back (a file server
that stands still) costs a sleeping thread and nothing else.

``MemoryTasks`` say what of a gang's state is in this node's memory and bring it to the disk. They ask the keeper that
the warden started, which outlives ranks and agents: an agent that was just born knows as much as the one that died.
From a question for a flush to the end of its writing one connection to the keeper has the steps pinned, so that ranks
may save on meanwhile. What is written is written for the newest question: the next one of any kind ends it, as does a
start of ranks. Commands are numbered, so it does not matter which thread comes first.

``VerifyTask`` reads and compares this node's share of a checkpoint that is to be resumed from. No ranks train
meanwhile, but an agent beats: its threads have a lower priority. One share is read at a time: the next question ends
the one before, as does a start of ranks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gangrun.agent.brain.facts import DiskTaskDone, Fact
from gangrun.checkpoint.formats.dcp import BadFile, UnreadableFile
from gangrun.checkpoint.formats.dcp_metadata import MetadataRefused
from gangrun.checkpoint.formats.manifest import verification_of
from gangrun.checkpoint.formats.torch_zip import Damaged
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName
from gangrun.checkpoint.memory_tier.recover_from_memory import GIVEN_UP, bring, rebuild_files
from gangrun.checkpoint.parity.code import CannotRebuild, GivenUp
from gangrun.checkpoint.verification import verify_share
from gangrun.core.checkpoints.memory import HeldCode, HeldStripe, Holding
from gangrun.core.model import MemoryStep
from gangrun.wire import protection as wire_protection
from gangrun.wire.code_layout import LayoutRefused
from gangrun.wire.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, ManifestError, decode
from gangrun.wire.messages import MemoryAnswer, Recover, VerifyShare
from gangrun.wire.protection import PIECES_PREFIX, RECORD_NAME, Protection, ProtectionRefused


class BackgroundTasks:
    """Questions on their way, and answers that wait."""

    def __init__(self) -> None:
        self._answers: deque[tuple[str, Fact]] = deque()
        self._out: set[str] = set()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable when ``take`` has something."""
        return self._bell

    def ask(self, kind: str, question: Callable[[], Fact], failed: Callable[[Exception], Fact]) -> None:
        """Ask, unless one of this kind is still out; ``failed`` turns an exception into a fact."""
        if kind in self._out:
            return
        self._out.add(kind)

        def go() -> None:
            try:
                fact = question()
            except Exception as error:  # noqa: BLE001 - a thread's main: whatever went wrong, the loop must hear of it
                fact = failed(error)
            self._answers.append((kind, fact))
            os.eventfd_write(self._bell, 1)

        threading.Thread(target=go, name=kind, daemon=True).start()

    def take(self) -> list[Fact]:
        """Everything that came back."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return []
        taken: list[Fact] = []
        while self._answers:
            kind, fact = self._answers.popleft()
            self._out.discard(kind)
            taken.append(fact)
        return taken


def recover(keeper: str, command: Recover, ended: Callable[[], bool] = lambda: False) -> DiskTaskDone:
    """Answer one command; what goes wrong is the answer's ``why``. ``ended``: nobody waits for it any more."""
    try:
        kept = KeeperClient(keeper)
    except KeeperRefused as error:
        return DiskTaskDone(command, not command.into, str(error))
    try:
        if not command.into:
            return DiskTaskDone(command, True, answer=MemoryAnswer(holdings(kept, command.attempt, command.base)))
        name = StepName(command.attempt, command.step, command.nonce)
        if command.rebuild:
            rebuild_files(_record(kept, name), command.rebuild, command.into, ended)
        else:
            bring(kept, name, command.files, command.into, ended)
        return DiskTaskDone(command, True)
    except OSError as error:
        return DiskTaskDone(command, False, error.strerror or str(error))
    except (CannotRebuild, GivenUp, LayoutRefused, ProtectionRefused) as error:
        return DiskTaskDone(command, False, str(error))
    finally:
        kept.close()


def holdings(kept: KeeperClient, attempt: int, base: MemoryStep | None = None) -> tuple[Holding, ...]:
    """What this node holds of this attempt, and of the step that it began from. A manifest is put there last, so where
    one is, every shard is somewhere.
    """
    name = _name_of(base) if base is not None else None
    return tuple(_holding(kept, attempt, name, step) for step in kept.held(attempt, name))


def _name_of(step: MemoryStep) -> StepName:
    return StepName(step.attempt, step.step, step.nonce)


def _holding(kept: KeeperClient, attempt: int, base: StepName | None, found: Any) -> Holding:
    step, nonce, sizes = int(found["step"]), str(found["nonce"]), dict(found["files"])
    name = base if base is not None and base.nonce == nonce else StepName(attempt, step, nonce)
    wanted, is_sharable = 0, False
    if 0 < sizes.get(MANIFEST_NAME, 0) <= MANIFEST_MAX_BYTES:
        try:
            manifest = decode(_read(kept, name, MANIFEST_NAME))
            wanted, is_sharable = len(manifest.files) + 1, manifest.is_sharable
        except ManifestError:
            wanted = 0
    codes: tuple[HeldCode, ...] = ()
    if RECORD_NAME in sizes:
        try:
            codes = tuple(map(_named, _record(kept, name).codes))
        except ProtectionRefused:
            codes = ()
    pieces = {file for file in sizes if file.startswith(PIECES_PREFIX)}
    files, parity = tuple(sorted({*sizes} - pieces)), tuple(sorted(pieces - {RECORD_NAME}))
    return Holding(step, nonce, files, wanted, parity, codes, is_sharable)


def _record(kept: KeeperClient, name: StepName) -> Protection:
    return wire_protection.decode(_read(kept, name, RECORD_NAME))


def _named(code: wire_protection.Code) -> HeldCode:
    return HeldCode(
        tuple(tuple(file.name for file in files) for files in code.members),
        tuple(HeldStripe(stripe.members, stripe.parity) for stripe in code.stripes),
    )


def _read(kept: KeeperClient, name: StepName, file: str) -> bytes:
    with kept.opened(name, file) as fd:
        return os.pread(fd, os.fstat(fd).st_size, 0)


NICENESS = 10  # ranks come first
PATHS_WITHIN_S = 5.0


class MemoryTasks:
    """One node's."""

    def __init__(self, keeper: str) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._pinned: KeeperClient | None = None
        self._newest = (-1, -1)  # command that ended all before it: its term, and its number there

    def give_up(self, act: tuple[int, int]) -> None:
        """Nobody waits any more for what was asked before this command."""
        self._begins(act)

    def answer(self, command: Recover) -> DiskTaskDone:
        """One command; what goes wrong is the answer's ``why``."""
        if command.into and command.step >= 0:
            return self._written(command) if command.pin else recover(self._keeper, command, self._ended(command))
        if not self._begins(command.act):
            return DiskTaskDone(command, False, GIVEN_UP)
        if command.into:
            return DiskTaskDone(command, True)  # nothing is wanted any more
        return self._held(command) if command.pin else recover(self._keeper, command)

    def paths(self, step: MemoryStep, attempt: int) -> Mapping[str, str]:
        """The files of the step that this attempt begins from, by name, and where ranks read them; OSError. The loop
        waits for it.
        """
        kept = KeeperClient(self._keeper, PATHS_WITHIN_S)
        try:
            found = kept.paths(attempt, _name_of(step))
        finally:
            kept.close()
        if MANIFEST_NAME not in found:
            raise KeeperRefused(f"step {step.step} is not in this node's memory any more")
        return found

    def _ended(self, command: Recover) -> Callable[[], bool]:
        return lambda: self._newest > command.act

    def _begins(self, act: tuple[int, int]) -> bool:
        """False where it was ended already. The keeper may take its time, so nobody asks it under the lock."""
        with self._lock:
            if act < self._newest:
                return False
            self._newest = act
            before, self._pinned = self._pinned, None
        if before is not None:
            before.close()
        return True

    def _held(self, command: Recover) -> DiskTaskDone:
        kept = None
        try:
            kept = KeeperClient(self._keeper)
            kept.pin(command.attempt, _name_of(command.base) if command.base is not None else None)
            steps = holdings(kept, command.attempt, command.base)
        except OSError as error:
            if kept is not None:
                kept.close()
            return DiskTaskDone(command, True, error.strerror or str(error))
        with self._lock:
            ended = self._newest > command.act
            if not ended:
                kept, self._pinned = self._pinned, kept
        if kept is not None:
            kept.close()
        return (
            DiskTaskDone(command, False, GIVEN_UP) if ended else DiskTaskDone(command, True, answer=MemoryAnswer(steps))
        )

    def _written(self, command: Recover) -> DiskTaskDone:
        with self._lock:
            if command.act < self._newest:
                return DiskTaskDone(command, False, GIVEN_UP)
            kept, self._pinned = self._pinned, None
        if kept is None:
            return DiskTaskDone(command, False, "what was asked for is not pinned any more")
        try:
            name = StepName(command.attempt, command.step, command.nonce)
            kept.pin_one(name)
            if command.files:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # of this thread alone
                bring(kept, name, command.files, command.into, self._ended(command))
            return DiskTaskDone(command, True)
        except OSError as error:
            return DiskTaskDone(command, False, error.strerror or str(error))
        finally:
            kept.close()


THREADS_COUNT = 4


class VerifyTask:
    """All shares that one node is asked for, in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = threading.Event()  # by whoever reads now

    def give_up(self) -> None:
        """Whatever is being read, nobody waits for it."""
        with self._lock:
            self._given_up.set()

    def answer(self, command: VerifyShare) -> DiskTaskDone:
        """One command; what goes wrong is the answer's ``why``."""
        with self._lock:
            self._given_up.set()
            given_up = self._given_up = threading.Event()
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # of this thread and those it starts

        def tick(_: int) -> None:
            if given_up.is_set():
                raise GivenUp("it was given up for what was asked next")

        try:
            work = verification_of(command.directory, command.nonce)
            unverified = verify_share(work, tick, THREADS_COUNT, command.share, command.readers_count)
        except (ManifestError, MetadataRefused, BadFile, Damaged, UnreadableFile, GivenUp) as found:
            return DiskTaskDone(command, False, str(found))
        why = f"{len(unverified)} pieces of its share cannot be checked" if unverified else ""
        return DiskTaskDone(command, not why, why)
