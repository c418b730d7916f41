"""A gang whose ranks are sampled once a second, for the tests of the hang watch (room: tests of core)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gangrun.core.policy import HangPolicy
from gangrun.core.recovery.hang import NEVER, HangWatch, Quiet, Stall

POLICY = HangPolicy()


@dataclass(frozen=True)
class Sample:
    rank: int
    step: int = -1
    phase: int = 0
    slot_writes_count: int = 0
    output_bytes: int = 0
    cpu_s: float = 0.0
    state: str = "S"


class Gang:
    """Ranks whose samples a test changes from second to second; two ranks to a node."""

    def __init__(self, ranks_count: int = 4, policy: HangPolicy = POLICY) -> None:
        self.now = 1000.0
        self.samples = [Sample(rank) for rank in range(ranks_count)]
        self.watch = HangWatch(policy, self.now)
        self.verdict: Stall | Quiet = Quiet(NEVER, 0.0)

    def second(self, change: Callable[[Sample], Sample] | None = None) -> Stall | Quiet:
        """One second passes."""
        self.now += 1.0
        if change is not None:
            self.samples = [change(sample) for sample in self.samples]
        for first in range(0, len(self.samples), 2):
            self.watch.observe(f"n{first // 2}", self.samples[first : first + 2], self.now)
        self.verdict = self.watch.judge(self.now)
        return self.verdict

    def seconds(self, count: int, change: Callable[[Sample], Sample] | None = None) -> Stall | None:
        """Seconds pass until one trips the watch."""
        for _ in range(count):
            if isinstance(self.second(change), Stall):
                assert isinstance(self.verdict, Stall)
                return self.verdict
        return None

    def train(self, steps_count: int, step_s: int = 1) -> None:
        """Healthy steps, busy."""
        for _ in range(steps_count):
            assert self.seconds(step_s - 1, busy) is None
            assert self.seconds(1, step) is None


def busy(sample: Sample) -> Sample:
    return replace(sample, cpu_s=sample.cpu_s + 0.9, state="R")


def idle(sample: Sample) -> Sample:
    return replace(sample, cpu_s=sample.cpu_s + 0.001, state="S")


def step(sample: Sample) -> Sample:
    return replace(busy(sample), step=sample.step + 1, slot_writes_count=sample.slot_writes_count + 1)


def talk(sample: Sample) -> Sample:
    return replace(busy(sample), output_bytes=sample.output_bytes + (40 if sample.rank == 0 else 0))
