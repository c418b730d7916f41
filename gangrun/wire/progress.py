"""The progress slot: one small mmap'd file per rank, in node-local memory.

The training script writes it without a system call, the agent reads it on every beat and leaves requests in it. No
torch, no clock and no path of a shared disk may enter; who creates the file where is the agent's business.

Layout, version 1: 256 bytes and the ring, native byte order (both ends are on one machine), every field 8 bytes and
stored whole. A page of an older agent has no ring, and a script that does not know of it leaves it empty.

    word  writer  field
       0  agent   magic + version         b"GRSLOT" + u16
       1  agent   rank                    i64
       2  script  owner                   i64  pid of the process that reports; 0: none yet
       3  script  seq                     i64  odd while a record is being written; writes count = seq // 2
       4  script  step                    i64  -1: none yet
       5  script  phase                   i64  TrainingPhase
       6  script  at                      i64  ns of CLOCK_MONOTONIC
       7  script  loss                    f64  the NaN with bits ``NEVER_REPORTED``: none yet; another NaN is a loss
       8  script  grad_norm               f64  likewise
       9  script  first_step              i64  the first step reported; -1: none yet
      10  script  reports                 i64  so many reports of a loss or gradient norm, of this rank in this attempt
      11  script  not_finite              i64  so many of them with a loss that is NaN or infinite
      12  script  not_finite_step         i64  step of the newest of those
      16  agent   requests                i64  generation << 8 | StepRequest bits; one word, so never half of one
      17  agent   save_step               i64  the request counts from this step on, which all ranks share; -1: at once
      24  script  saves_on_stop           i64  1: the script reads requests to save, so it will save when asked
      25  script  handled                 i64  newest generation of requests that the script is done with
      26  script  kept                    i64  1 + the newest step that is whole in the nodes' memory; 0: none
      27  script  kept_losses             i64  so many nodes may be lost, and it still is
      28  script  saved                   i64  1 + the step that was saved for request ``handled``; 0: none
      29  script  total_steps             i64  steps of the whole run; 0: not known
      30  script  tokens                  i64  tokens trained on, over the whole run; 0: not known
      31  script  findings                i64  so often it wrote what its own checks found into the file beside the slot
  from 32  script  ring                    the newest 256 reports: step i64, loss f64, gradient norm f64
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

VERSION = 1
SIZE_BYTES = 256
RING_COUNT = 256  # a power of two; so many steps between two looks of the agent are seen one by one
MAGIC = int.from_bytes(struct.pack("=6sH", b"GRSLOT", VERSION), "little", signed=True)
(W_MAGIC, W_RANK, W_OWNER, W_SEQ, W_STEP, W_PHASE, W_AT, W_LOSS, W_GRAD_NORM, W_FIRST_STEP) = range(10)
W_REPORTS, W_NOT_FINITE, W_NOT_FINITE_STEP = range(10, 13)
W_REQUESTS = 16
W_SAVE_STEP = 17
W_SAVES_ON_STOP = 24
W_HANDLED = 25
W_KEPT = 26
W_KEPT_LOSSES = 27
W_SAVED = 28
W_TOTAL_STEPS = 29
W_TOKENS = 30
W_FINDINGS = 31
W_RING, W_REPORT = 32, 3  # where it begins, and words of one report
FULL_BYTES = SIZE_BYTES + RING_COUNT * W_REPORT * 8
NEVER_REPORTED = 0x7FF8_0000_6E6F_6E65  # as a float it is a NaN that no arithmetic makes
GENERATION_SHIFT = 8
READS_MAX_COUNT = 64
HOLD_MAX_S = 5.0  # so long a rank waits for the step that all save


class SlotError(ValueError):
    """Not a slot, or of another version; the message says which."""


class TrainingPhase(IntEnum):
    """What the script says it is doing; ``core.recovery.hang`` knows the numbers of two."""

    UNKNOWN = 0
    STARTUP = 1
    TRAIN = 2
    EVAL = 3
    CHECKPOINT = 4


class StepRequest(IntFlag):
    """What the agent asks of the script."""

    NOTHING = 0
    CHECKPOINT_NOW = 1
    STOP_AFTER_STEP = 2
    STOP = 4  # the grace runs
    HOLD = 8  # wait for the next request, ``HOLD_MAX_S`` at most


@dataclass(frozen=True, slots=True)
class SlotReading:
    """What a slot says. ``torn``: the writer stands in the middle of a record, so the fields may be of two."""

    rank: int
    owner_pid: int
    writes_count: int
    step: int
    phase: int
    at_ns: int
    loss: float | None  # None: never reported; NaN is a loss
    grad_norm: float | None
    saves_on_stop: bool
    handled_generation: int
    first_step: int = -1
    kept_step: int = -1
    kept_losses_count: int = 0
    saved_step: int = -1
    total_steps: int = -1
    tokens_count: int = -1
    findings_count: int = 0
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What the script said of one step; None: it did not say it."""

    step: int
    loss: float | None
    grad_norm: float | None


@dataclass(frozen=True, slots=True)
class Reports:
    """What the script said since the last look; ``missed_step``: of a NaN loss that the ring lost, else -1."""

    count: int
    entries: tuple[Report, ...] = ()
    missed_step: int = -1


class Words:
    """A slot's memory as words; ``ints`` and ``floats`` are two views of the same bytes."""

    def __init__(self, fd: int) -> None:
        size_bytes = os.fstat(fd).st_size
        if size_bytes < SIZE_BYTES:
            raise SlotError(f"a progress slot has {SIZE_BYTES} bytes, this file has {size_bytes}")
        self.has_ring = size_bytes >= FULL_BYTES
        self._map = mmap.mmap(fd, FULL_BYTES if self.has_ring else SIZE_BYTES)
        self.ints = memoryview(self._map).cast("q")
        self.floats = memoryview(self._map).cast("d")

    def check(self) -> None:
        """Raise ``SlotError`` if this is not a slot of our version."""
        if self.ints[W_MAGIC] != MAGIC:
            raise SlotError(
                f"not a progress slot of version {VERSION} (first word {self.ints[W_MAGIC] & (2**64 - 1):#x})"
            )

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """The script's: put a loss, a gradient norm or both into the ring."""
        if not self.has_ring:
            return
        ints, floats = self.ints, self.floats
        count = ints[W_REPORTS]
        at = W_RING + count % RING_COUNT * W_REPORT
        ints[at] = step
        ints[at + 1] = ints[at + 2] = NEVER_REPORTED
        if loss is not None:
            floats[at + 1] = loss
            if loss - loss != 0.0:
                ints[W_NOT_FINITE_STEP] = step
                ints[W_NOT_FINITE] += 1
        if grad_norm is not None:
            floats[at + 2] = grad_norm
        ints[W_REPORTS] = count + 1

    def close(self) -> None:
        """Give the memory back."""
        self.ints.release()
        self.floats.release()
        self._map.close()


class _FollowedInts:
    """The requests of a slot, and for all else words of this process alone."""

    def __init__(self, shared: memoryview) -> None:
        self._shared, self._own = shared, [0] * (SIZE_BYTES // 8)
        self._own[W_STEP] = self._own[W_FIRST_STEP] = -1

    def __getitem__(self, word: int) -> int:
        return self._shared[word] if word in (W_REQUESTS, W_SAVE_STEP) else self._own[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._own[word] = value


class FollowerWords(Words):
    """The slot of another rank, for a rank that only hears what is asked."""

    def __init__(self, words: Words) -> None:
        self._map = words._map  # noqa: SLF001 - the same memory, held open
        self._shared = words.ints
        self.has_ring = False
        self.ints = _FollowedInts(words.ints)  # type: ignore[assignment]  # as far as a script needs it
        self.floats = [0.0] * (SIZE_BYTES // 8)  # type: ignore[assignment]

    def close(self) -> None:
        """Nothing of its own to give back."""


class ProgressPage:
    """The agent's end."""

    def __init__(self, path: str, rank: int) -> None:
        """Create the file; OSError where there is no room for it."""
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, FULL_BYTES)  # a full tmpfs must fail here, not as SIGBUS at a write
            self._words = Words(fd)
        finally:
            os.close(fd)
        ints = self._words.ints
        ints[W_RANK], ints[W_STEP], ints[W_FIRST_STEP] = rank, -1, -1
        ints[W_LOSS] = ints[W_GRAD_NORM] = NEVER_REPORTED
        ints[W_MAGIC] = MAGIC
        self.generation = 0  # of the newest request
        self._seen_count = self._not_finite_count = 0  # of reports, as of the last look

    def read(self) -> SlotReading:
        """A consistent record; never blocks, even if the writer is stopped in the middle of one."""
        before = self._once()
        for _ in range(READS_MAX_COUNT):
            after = self._once()
            if after == before and not after[W_SEQ] & 1:
                return self._reading(after, torn=False)
            before = after
        return self._reading(before, torn=True)

    def _once(self) -> tuple[int, ...]:
        return tuple(self._words.ints[: W_FINDINGS + 1])

    @staticmethod
    def _reading(words: tuple[int, ...], *, torn: bool) -> SlotReading:
        return SlotReading(
            rank=words[W_RANK],
            owner_pid=words[W_OWNER],
            writes_count=words[W_SEQ] // 2,
            step=words[W_STEP],
            phase=words[W_PHASE],
            at_ns=words[W_AT],
            loss=_number(words[W_LOSS]),
            grad_norm=_number(words[W_GRAD_NORM]),
            saves_on_stop=bool(words[W_SAVES_ON_STOP]),
            handled_generation=words[W_HANDLED],
            first_step=words[W_FIRST_STEP],
            kept_step=words[W_KEPT] - 1,
            kept_losses_count=words[W_KEPT_LOSSES],
            saved_step=words[W_SAVED] - 1,
            total_steps=words[W_TOTAL_STEPS] or -1,
            tokens_count=words[W_TOKENS] or -1,
            findings_count=words[W_FINDINGS],
            torn=torn,
        )

    def reports(self) -> Reports:
        """What the script said of its loss and gradient norm since this was last asked, oldest first."""
        ints = self._words.ints
        count, not_finite_count = ints[W_REPORTS], ints[W_NOT_FINITE]
        if count == self._seen_count:
            return Reports(count)
        first = max(self._seen_count, count - RING_COUNT)
        read = [(number, self._report(number)) for number in range(first, count)]
        oldest = ints[W_REPORTS] - RING_COUNT + 1  # what is older may have been overwritten while it was read
        first = max(first, oldest) if oldest > 1 else first
        entries = tuple(report for number, report in read if number >= first)
        seen = sum(one.loss is not None and not math.isfinite(one.loss) for one in entries)
        missed = first > self._seen_count and not_finite_count - self._not_finite_count > seen
        self._seen_count, self._not_finite_count = count, not_finite_count
        return Reports(count, entries, ints[W_NOT_FINITE_STEP] if missed else -1)

    def _report(self, number: int) -> Report:
        ints, at = self._words.ints, W_RING + number % RING_COUNT * W_REPORT
        return Report(ints[at], _number(ints[at + 1]), _number(ints[at + 2]))

    def ask(self, what: StepRequest, save_step: int = -1) -> int:
        """Leave a request that counts from ``save_step`` on, replacing the one before; its generation."""
        self.generation += 1
        self._words.ints[W_SAVE_STEP] = save_step
        self._words.ints[W_REQUESTS] = self.generation << GENERATION_SHIFT | int(what)
        return self.generation

    def add(self, what: StepRequest) -> int:
        """Ask for more with the newest request; a script that was told of it is not told again. Its generation."""
        self._words.ints[W_REQUESTS] |= int(what)
        return self.generation

    @property
    def save_asked(self) -> int:
        """The step that the newest request wants saved; -1: it wants none."""
        ints = self._words.ints
        return ints[W_SAVE_STEP] if ints[W_REQUESTS] & StepRequest.CHECKPOINT_NOW else -1

    def close(self, *, remove: bool = True) -> None:
        """Give the memory back; a script that still has it mapped is not disturbed."""
        self._words.close()
        if remove:
            Path(self.path).unlink(missing_ok=True)


def _number(word: int) -> float | None:
    """The float that a word holds; None if the script never wrote one."""
    number: float = struct.unpack("=d", struct.pack("=q", word))[0]
    return None if word == NEVER_REPORTED else number


FINDINGS_MAX_BYTES = 65_536


def write_findings(slot_path: str, words: Words, findings: bytes) -> None:
    """The script's: ``evidence.SelfChecks`` as JSON. OSError if there is no room for the file."""
    path = Path(f"{slot_path}.findings")
    written = path.with_suffix(".new")
    written.write_bytes(findings)
    written.replace(path)
    words.ints[W_FINDINGS] += 1


def read_findings(slot_path: str) -> bytes:
    """The agent's; b"" if there are none."""
    try:
        with Path(f"{slot_path}.findings").open("rb") as file:
            return file.read(FINDINGS_MAX_BYTES)
    except OSError:
        return b""


def attach(path: str) -> Words:
    """The script's end; OSError or ``SlotError`` where there is none."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        words = Words(fd)
    finally:
        os.close(fd)
    words.check()
    return words
