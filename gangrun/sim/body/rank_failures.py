"""Ranks that fail with an error text: of one node, of one rank wherever it runs, or all at once.

A ``LastingFailure`` strikes every gang, as a sick device or a bug does, until it is over. A rank writes its error first
and ends a little later, as destructors take their time. What SIGTERM ends before has written nothing. ``ERROR_TEXTS``
has real texts that rows of ``core.recovery.failure_texts`` match, and ends without a text: an exit code, a signal.
``REMARKS`` are lines that healthy ranks write, and that such rows match too.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

from gangrun.core.evidence import ErrorReport
from gangrun.sim.body.gang import SimGang, SimRank, WrittenError
from gangrun.sim.engine.clock import Timeline

APART_S = 0.2  # ranks that fail of the same write it within so long, less than ``policy.settle_s``
DESTRUCTORS_S = 0.3
AGAIN_S = 1.0
ALL = -1  # as the rank of a node: all of them


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What a rank writes when it fails, and how its process ends."""

    kind: str = ""  # of the exception; "": there is none
    message: str = ""
    line: str = ""  # on stderr, where there is no exception
    code: int | None = 1
    signal: int | None = None

    def words(self, at: float) -> WrittenError:
        """As its rank writes them at that time of its node's clock; an exit without a text has none."""
        if not self.kind:
            return WrittenError((self.line,), None, at) if self.line else WrittenError((), None, 0.0)
        said = f"{self.kind}: {self.message}"
        traceback = f'Traceback (most recent call last):\n  File "train.py", line 17\n{said}'
        return WrittenError((), ErrorReport(self.kind, self.message, f"{self.kind}@train.py:17", traceback), at)


def _raised(kind: str, message: str) -> ErrorText:
    return ErrorText(kind, message)


# On one node only it is that node's.
MACHINE = {
    "ecc": _raised("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered"),
    "lost": _raised("pynvml.NVMLError_GpuIsLost", "GPU is lost"),
    "driver": _raised("RuntimeError", "CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    "missing": _raised("RuntimeError", "No CUDA GPUs are available"),
    "ordinal": _raised("RuntimeError", "CUDA error: invalid device ordinal"),
    "fabric": _raised("RuntimeError", "CUDA error: system not yet initialized"),
    "memlock": _raised("RuntimeError", "ibv_reg_mr failed: Cannot allocate memory, check max locked memory"),
    "local disk": _raised("OSError", "[Errno 28] No space left on device: '/tmp/torch_extensions/lock'"),
    "no tmpdir": _raised("FileNotFoundError", "[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']"),
    "mount gone": _raised("OSError", "[Errno 107] Transport endpoint is not connected: '/data/shard-3.bin'"),
    "ecc line": ErrorText(line="  what():  CUDA error: uncorrectable ECC error encountered", code=None, signal=6),
    "lost line": ErrorText(line="terminating: GPU is lost. Reboot the system to recover this GPU"),
}
# On one node twice it may be that node's as well as the code's.
OPEN = {
    "exit 17": ErrorText(code=17),
    "segv": ErrorText(code=None, signal=11),
    "runtime error": _raised("RuntimeError", "the state of the optimizer is inconsistent"),
    "illegal access": _raised("RuntimeError", "CUDA error: an illegal memory access was encountered"),
}
BUGS = {
    "value error": _raised("ValueError", "loss is nan at sample 1042"),
    "key error": _raised("KeyError", "'labels'"),
    "device assert": _raised("RuntimeError", "CUDA error: device-side assert triggered"),
    "gpu memory": _raised("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
}
PASSING = {
    "hub": _raised("requests.exceptions.HTTPError", "503 Server Error: Service Unavailable for url: https://hub"),
    "port": _raised("RuntimeError", "The server socket has failed to listen: Address already in use"),
    "storage": _raised("OSError", "[Errno 5] Input/output error: '/shared/data/shard-3.bin'"),
}
ERROR_TEXTS = {**MACHINE, **OPEN, **BUGS, **PASSING}
REMARKS = {
    "no gpu": "CUDA is not available, using CPU",
    "tf": "cuda_driver.cc:152] failed call to cuInit: UNKNOWN ERROR (303)",
    "memlock": "max locked memory       (kbytes, -l) unlimited",
    "ecc": "health: 0 uncorrectable ECC errors, 0 page retirement pending, nvlink fatal errors: 0",
    "nvml": "wandb: WARNING Failed to initialize NVML: Driver/library version mismatch, GPU metrics are off",
}


@dataclass(frozen=True, slots=True)
class LastingFailure:
    """What makes ranks fail in every gang: on ``node``, or ``rank`` wherever it runs, or without both all of them."""

    text: ErrorText
    node: str = ""
    rank: int | None = None  # of a node: so many after its first, or ``ALL``
    after_s: float = 0.0  # a gang is whole for so long before
    until: float = 0.0

    def fallers(self, gang: SimGang) -> list[SimRank]:
        """Whoever of the gang fails of it."""
        members = [member for _, member in sorted(gang.members.items())]
        if not self.node:
            return members if self.rank is None else [members[self.rank % len(members)]]
        here = [member for member in members if member.host.name == self.node]
        return here if self.rank in (None, ALL) or not here else [here[(self.rank or 0) % len(here)]]


class RankFailures:
    """All of them in one world."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        """None yet."""
        self._timeline = timeline
        self._rng = rng
        self._failures: list[LastingFailure] = []
        self.undecided: set[str] = set()  # nodes of which nobody outside can tell whether the failure was theirs
        self._fell_on: defaultdict[LastingFailure, set[str]] = defaultdict(set)
        self._remarks: defaultdict[str, list[str]] = defaultdict(list)

    def __bool__(self) -> bool:
        """Has anything been written?"""
        return bool(self._failures or self._remarks)

    def remark(self, node: str, line: str) -> None:
        """All ranks on this node have written this line from now on."""
        self._remarks[node].append(line)

    def remarks(self, node: str) -> tuple[str, ...]:
        """What ranks on this node have written, besides their errors."""
        return tuple(self._remarks.get(node, ()))

    def _has_own_remark(self, node: str) -> bool:
        """Has it a line that stands on no other node?"""
        others = {line for other, lines in self._remarks.items() if other != node for line in lines}
        return any(line not in others for line in self._remarks.get(node, ()))

    def begin(self, failure: LastingFailure, gangs: list[SimGang]) -> None:
        """From now on, in each gang. One that has been whole for long enough fails at once."""
        self._failures.append(failure)
        for gang in gangs:
            if gang.whole:
                self._expect(failure, gang)

    def joined(self, gang: SimGang) -> None:
        """One more rank is up."""
        for failure in self._failures if gang.whole else ():
            self._expect(failure, gang)

    def _expect(self, failure: LastingFailure, gang: SimGang) -> None:
        self._timeline.at(gang.whole_since + failure.after_s, lambda: self._strike(failure, gang))

    def _strike(self, failure: LastingFailure, gang: SimGang) -> None:
        if not gang.whole or self._timeline.now > failure.until:
            return
        if not gang.stepping and not gang.starting:  # it waits, so nobody comes to the place where it fails
            self._timeline.after(AGAIN_S, lambda: self._strike(failure, gang))
            return
        fallers = failure.fallers(gang)
        nodes = {rank.host.name for rank in fallers}
        fell_before = self._fell_on[failure] - nodes
        if any(rank.failing for rank in fallers):
            self.undecided |= {member.host.name for member in gang.members.values()}  # two at once: each rank tells one
        if failure.text in OPEN.values() and len(nodes) == 1 and not fell_before:
            self.undecided |= {name for name in nodes if self._has_own_remark(name)}
        self._fell_on[failure] |= nodes
        for rank in fallers:
            rank.failing = True
            write_s = self._rng.uniform(0.0, APART_S) if len(fallers) > 1 else 0.0
            self._timeline.after(write_s, lambda rank=rank: rank.when_awake(lambda: self._write(failure.text, rank)))  # type: ignore[misc]

    def _write(self, text: ErrorText, rank: SimRank) -> None:
        if rank.alive and not rank.stuck and rank.words is None:
            rank.words = text.words(rank.host.clock.boot(self._timeline.now))
            end_s = self._rng.uniform(0.0, DESTRUCTORS_S) if rank.words.at else 0.0
            self._timeline.after(end_s, lambda: rank.when_awake(lambda: self._end(text, rank)))

    @staticmethod
    def _end(text: ErrorText, rank: SimRank) -> None:
        rank.host.rank_ended(rank, text.code, text.signal, error=None)
