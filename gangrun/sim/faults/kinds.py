"""What can go wrong, when, and to whom.

A ``FaultPlan`` is an immutable list of ``Fault``; ``FaultPlan.random`` draws one from a seed, ``fail_at`` writes one by
hand, and ``|`` puts two together. Where to go next: ``injury`` does to the world what is said here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

HOLDER = -1  # as a node: wherever the newest supervisor is when the fault comes


class Kind(Enum):
    """The vocabulary. ``for_s`` is how long, ``amount`` how much; what has neither is over at once."""

    KILL_SUPERVISOR = "kill supervisor"
    PAUSE_SUPERVISOR = "pause supervisor"
    UPGRADE_SUPERVISOR = "kill supervisor, the next one has another policy"
    KILL_AGENT = "kill agent"
    PAUSE_AGENT = "pause agent"
    KILL_WARDEN = "kill warden"
    PAUSE_WARDEN = "pause warden"
    KILL_RANK = "kill rank"
    PAUSE_RANK = "pause rank"
    EXIT_RANK = "rank exits with amount"
    FINISH_RANK = "rank exits 0 while the others go on"
    OOM_RANK = "rank killed for memory"
    STUCK_RANK = "rank in D state: no kill takes for that long"
    SLOW_KILL = "kills on the node take amount seconds"
    HANG = "one rank waits for ever"
    KILL_NODE = "node lost for good"
    REBOOT_NODE = "node reboots, back after for_s"
    PAUSE_NODE = "virtual machine paused, its clock stands"
    SUSPEND_NODE = "all processes of the node stopped, its clock goes on"
    CUT = "node hears nobody, nobody hears it"
    CUT_TO = "node hears nobody"
    CUT_FROM = "nobody hears node"
    CUT_HALF = "amount of all nodes cut off from the rest"
    DELAY = "messages of the node take amount seconds more"
    DUPLICATE = "messages of the node come twice"
    REORDER = "messages of the node come out of order"
    LOSE = "amount of the node's messages are lost"
    SICK = "a check on the node finds it broken, now and each time that it is asked"
    POOR = "a check on the node finds its hardware poor"
    DRIFT = "the node's clock runs at 1 + amount"
    WALL_JUMP = "the node's wall clock jumps by amount"
    FS_STALL = "file system stands still for the node, or for all"
    FS_FULL = "no space left"
    FS_READ_ONLY = "read-only file system"
    FS_STALE = "the node sees an old listing"
    FS_LOST_REPLY = "the next operation succeeds and says EIO"
    FS_TORN_TAIL = "a kill leaves half a line"
    FS_LATE_WRITE = "a dead client's write arrives for_s later"
    FLIP_JOURNAL = "a bit of one of the journal's last records flips, amount records before the end"
    FLIP_CHECKPOINT = "a bit of the newest checkpoint flips"
    TEAR_CHECKPOINT = "the newest checkpoint loses its end"
    SLURM_TIMEOUT = "sbatch succeeds and times out"
    SLURM_REFUSED = "sbatch is refused for that long"
    SLURM_STALE = "squeue shows what was"
    SLURM_DOWN = "squeue does not answer"
    SLURM_TWICE = "a job starts twice"
    SLURM_NEVER = "the next job never starts"
    SLURM_HELD = "the next job is held for that long"
    SLURM_SUSPEND = "scontrol suspend and resume"
    SLURM_REQUEUE = "the job is requeued under its id"
    BATCH_LOST = "the batch host is lost"
    SCANCEL = "scancel without our knowledge"
    CANCEL = "gangrun cancel"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. ``node`` is an index, ``HOLDER``, or None for all; ``rank`` counts within the run."""

    at_s: float
    kind: Kind
    node: int | None = HOLDER
    rank: int = 0
    for_s: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        """For the failure message."""
        where = {None: "all nodes", HOLDER: "the supervisor's node"}.get(self.node, f"node {self.node}")
        more = f", rank {self.rank}" if "rank" in self.kind.value else ""
        return f"{self.at_s:.3f} s: {self.kind.value} ({where}{more}, for {self.for_s:g} s, amount {self.amount:g})"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of one world, in order of time."""

    faults: tuple[Fault, ...] = ()

    def fail_at(
        self,
        at_s: float,
        kind: Kind,
        *,
        node: int | None = HOLDER,
        rank: int = 0,
        for_s: float = 0.0,
        amount: float = 0.0,
    ) -> FaultPlan:
        """This plan with one more fault."""
        return self | FaultPlan((Fault(at_s, kind, node, rank, for_s, amount),))

    def __or__(self, other: FaultPlan) -> FaultPlan:
        """Both plans together."""
        return FaultPlan(tuple(sorted(self.faults + other.faults, key=lambda fault: fault.at_s)))

    def __iter__(self) -> Iterator[Fault]:
        """In order of time."""
        return iter(self.faults)

    @property
    def over_at_s(self) -> float:
        """When the last of them has ended."""
        return max((fault.at_s + fault.for_s for fault in self.faults), default=0.0)

    def shifted(self, by_s: float) -> FaultPlan:
        """The same, that much later."""
        return FaultPlan(tuple(replace(fault, at_s=fault.at_s + by_s) for fault in self.faults))

    @staticmethod
    def random(seed: int, nodes_count: int, ranks_count: int, within_s: float = 60.0) -> FaultPlan:
        """One to three faults, some of them close together, since it is pairs that break protocols."""
        rng = random.Random(f"faults {seed}")
        count = rng.choice((1, 1, 1, 1, 2, 2, 2, 3))
        at_s = rng.uniform(0.0, within_s)
        faults = []
        for _ in range(count):
            faults.append(_draw(rng, at_s, nodes_count, ranks_count))
            close = rng.random() < 0.6
            at_s = at_s + rng.expovariate(1 / 3.0) if close else rng.uniform(0.0, within_s)
        return FaultPlan(tuple(sorted(faults, key=lambda fault: fault.at_s)))


SHORT = (0.05, 0.5, 2.0, 4.0, 6.0, 12.0)
LONG = (6.0, 12.0, 20.0, 31.0, 40.0)

# kind -> (weight, durations, amounts)
WEIGHTS: dict[Kind, tuple[int, tuple[float, ...], tuple[float, ...]]] = {
    Kind.KILL_SUPERVISOR: (8, (0.0,), (0.0,)),
    Kind.PAUSE_SUPERVISOR: (8, SHORT + LONG, (0.0,)),
    Kind.UPGRADE_SUPERVISOR: (2, (0.0,), (0.0,)),
    Kind.KILL_AGENT: (5, (0.0,), (0.0,)),
    Kind.PAUSE_AGENT: (5, SHORT + LONG, (0.0,)),
    Kind.KILL_WARDEN: (3, (0.0,), (0.0,)),
    Kind.PAUSE_WARDEN: (3, SHORT + LONG, (0.0,)),
    Kind.KILL_RANK: (8, (0.0,), (0.0,)),
    Kind.PAUSE_RANK: (2, LONG, (0.0,)),
    Kind.EXIT_RANK: (4, (0.0,), (1.0, 9.0)),
    Kind.FINISH_RANK: (1, (0.0,), (0.0,)),
    Kind.OOM_RANK: (1, (0.0,), (0.0,)),
    Kind.STUCK_RANK: (2, (5.0, 20.0), (0.0,)),
    Kind.SLOW_KILL: (2, (30.0,), (0.5, 3.0)),
    Kind.HANG: (2, (0.0,), (0.0,)),
    Kind.KILL_NODE: (5, (0.0,), (0.0,)),
    Kind.REBOOT_NODE: (3, (8.0, 40.0), (0.0,)),
    Kind.PAUSE_NODE: (5, SHORT + LONG, (0.0,)),
    Kind.SUSPEND_NODE: (4, SHORT + LONG, (0.0,)),
    Kind.CUT: (6, SHORT + LONG, (0.0,)),
    Kind.CUT_TO: (3, SHORT + LONG, (0.0,)),
    Kind.CUT_FROM: (3, SHORT + LONG, (0.0,)),
    Kind.CUT_HALF: (4, (*SHORT, 20.0), (0.2, 0.4, 0.6)),
    Kind.DELAY: (2, LONG, (0.2, 1.5, 4.0)),
    Kind.DUPLICATE: (2, LONG, (0.0,)),
    Kind.REORDER: (2, LONG, (0.0,)),
    Kind.LOSE: (2, LONG, (0.1, 0.5)),
    Kind.DRIFT: (2, (0.0,), (-0.01, 0.01)),
    Kind.WALL_JUMP: (2, (0.0,), (-3600.0, 3600.0)),
    Kind.FS_STALL: (4, (3.0, 20.0, 20.0), (0.0,)),
    Kind.FS_FULL: (2, (3.0, 20.0), (0.0,)),
    Kind.FS_READ_ONLY: (2, (3.0, 20.0), (0.0,)),
    Kind.FS_STALE: (2, (60.0,), (0.0,)),
    Kind.FS_LOST_REPLY: (3, (0.0,), (0.0,)),
    Kind.FS_TORN_TAIL: (2, (0.0,), (0.0,)),
    Kind.FS_LATE_WRITE: (2, (2.0, 15.0), (0.0,)),
    Kind.FLIP_CHECKPOINT: (2, (0.0,), (0.0,)),
    Kind.TEAR_CHECKPOINT: (2, (0.0,), (0.0,)),
    Kind.CANCEL: (1, (0.0,), (0.0,)),
}
# For which every node that is up can still be asked what is in its memory, and write it.
MISSES_NO_MEMORY = frozenset(
    {
        Kind.KILL_RANK, Kind.EXIT_RANK, Kind.OOM_RANK, Kind.FINISH_RANK, Kind.STUCK_RANK, Kind.HANG, Kind.POOR,
        Kind.KILL_SUPERVISOR, Kind.KILL_AGENT, Kind.KILL_NODE, Kind.WALL_JUMP, Kind.DRIFT,
    }
)  # fmt: skip
EVERYWHERE = frozenset({Kind.FS_STALL, Kind.FS_FULL, Kind.FS_READ_ONLY})
_KINDS = tuple(WEIGHTS)
_CUMULATED = tuple(sum(WEIGHTS[kind][0] for kind in _KINDS[: i + 1]) for i in range(len(_KINDS)))


def _draw(rng: random.Random, at_s: float, nodes_count: int, ranks_count: int) -> Fault:
    kind = rng.choices(_KINDS, cum_weights=_CUMULATED)[0]
    _, durations, amounts = WEIGHTS[kind]
    node: int | None = rng.randrange(nodes_count)
    if rng.random() < 0.35:
        node = HOLDER
    elif kind in EVERYWHERE and rng.random() < 0.7:
        node = None
    return Fault(at_s, kind, node, rng.randrange(ranks_count), rng.choice(durations), rng.choice(amounts))
