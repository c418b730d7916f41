"""How often nodes fail, of what, for how long; how long each part of a recovery takes; and one drawn trace of failures.

The numbers come from publications, which each table names. What no publication says is called assumed. A trace depends
on its seed and on the table alone, not on the policy, so that all policies meet the same failures.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

DAY_S = 86400.0
HOUR_S = 3600.0
MS = 1000


class FailureKind(Enum):
    """What the run sees of a failure; the values are what a file of failures says."""

    DEVICE = "device"  # a device is lost: its rank cannot go on, the agent reports it, the node needs a repair
    WEAK = "weak"  # a device is about to be lost: the ranks can still save, the node needs a repair
    NODE = "node"  # the node falls silent, and needs a repair
    OUTAGE = "outage"  # several nodes fall silent together, and are back after a while
    RANK = "rank"  # a process fails, and its node is innocent
    HANG = "hang"  # no rank makes progress, and no process has failed
    STORAGE = "storage"  # the shared file system does not answer for a while


TAKES_NODE = frozenset({FailureKind.DEVICE, FailureKind.WEAK, FailureKind.NODE, FailureKind.OUTAGE})


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One row of a table. ``lasts_s``: the mean time until the node, the switch or the storage is back."""

    cause: str
    kind: FailureKind
    per_1000_node_days: float = 0.0
    per_day: float = 0.0  # of storage: for the whole cluster
    lasts_s: float = DAY_S
    nodes_count: int = 1  # that one outage takes


@dataclass(frozen=True, slots=True)
class RecoverySeconds:
    """What each part of a recovery takes, without what the core decides to wait for.

    Two sums are medians that ``benchmarks/lost_node.py`` measured on a small cluster with a script that imports no
    torch: a silent node costs 3.1 s until the next step, a node without a spare 10.0 s. How they divide is assumed, and
    so are the times to notice a device and a hang. A real script has its own imports, loading and first step.
    """

    notice_rank: float = 0.05
    notice_device: float = 1.0
    notice_node: float = 2.0
    notice_hang: float = 30.0  # docs/hangs.md: from 10 s to a minute, by what the ranks do
    stop: float = 0.5
    choose: float = 0.1  # the checkpoint: sealing, verifying, choosing
    start: float = 0.3
    first_step: float = 0.2  # after all ranks run: imports, loading, compiling
    preflight: float = 1.0  # of nodes that are new in the job
    submit: float = 1.0  # until the scheduler has the next job
    join: float = 4.9  # from the allocation until all agents have joined


@dataclass(frozen=True, slots=True)
class FailureTable:
    """All that is known of a cluster's failures. ``source``: who says so."""

    name: str
    source: str
    causes: tuple[FailureCause, ...]
    queue_wait_s: float = 1800.0  # mean, until the scheduler gives the next job its nodes
    free_nodes_share: float = 0.05  # of the nodes of the run: more that the scheduler can give
    lemon_share: float = 0.0  # of the nodes ...
    lemon_factor: float = 1.0  # ... fail so many times as often as the others; the mean rate stays
    recovery: RecoverySeconds = field(default_factory=RecoverySeconds)

    def per_day(self, nodes_count: int) -> float:
        """How many failures a day stop a run of so many nodes. Storage stops none, and an outage counts once."""
        return sum(one.per_1000_node_days for one in self.causes) / 1000 * nodes_count

    def mtbf_s(self, nodes_count: int) -> float:
        """Mean time between the failures that stop a run of so many nodes; infinite if nothing fails."""
        per_day = self.per_day(nodes_count)
        return DAY_S / per_day if per_day else float("inf")


@dataclass(frozen=True, slots=True)
class Strike:
    """One failure of a trace: when, which node, of what, and until when that lasts."""

    at_ms: int
    node: int
    cause: FailureCause
    lasts_ms: int


def strikes_of(table: FailureTable, nodes_count: int, span_ms: int, seed: str) -> list[Strike]:
    """One trace over all nodes of the cluster, in order of time. Failures come independently, at constant rates."""
    rng = random.Random(f"failures {seed}")
    lemons = set(rng.sample(range(nodes_count), round(table.lemon_share * nodes_count)))
    weights = [table.lemon_factor if node in lemons else 1.0 for node in range(nodes_count)]
    bounds, nodes = list(accumulate(weights)), range(nodes_count)
    found: list[Strike] = []
    for cause in table.causes:
        per_day = cause.per_1000_node_days / 1000 * nodes_count + cause.per_day
        at_s = rng.expovariate(per_day / DAY_S) if per_day else float("inf")
        while at_s * MS < span_ms:
            node = rng.choices(nodes, cum_weights=bounds)[0]
            lasts_ms = max(1, round(rng.expovariate(1 / cause.lasts_s) * MS))
            found.append(Strike(int(at_s * MS), node, cause, lasts_ms))
            at_s += rng.expovariate(per_day / DAY_S)
    return sorted(found, key=lambda one: one.at_ms)


def _of(kind: FailureKind, lasts_s: float, rates: Mapping[str, float]) -> tuple[FailureCause, ...]:
    return tuple(FailureCause(cause, kind, rate, lasts_s=lasts_s) for cause, rate in rates.items())


def _counted(kind: FailureKind, counts: Mapping[str, int]) -> tuple[FailureCause, ...]:
    """Counts of the 54 days of Llama 3 on 2,048 nodes, as rates."""
    return _of(kind, DAY_S, {cause: 1000 * count / (54 * 2048) for cause, count in counts.items()})


LLAMA3 = FailureTable(
    name="llama3",
    source="The Llama 3 Herd of Models, arXiv 2407.21783, table 5: 419 unexpected interruptions of 16,384 GPUs in 54"
    " days. Assumed: which kind each cause is, a repair of 24 hours, a queue wait of 1 minute on a cluster of its own",
    causes=(
        *_counted(
            FailureKind.DEVICE, {"GPU": 148, "GPU HBM3 memory": 72, "GPU SRAM": 19, "GPU system processor": 17}
        ),
        *_counted(FailureKind.WEAK, {"thermal interface, sensor": 6}),
        *_counted(
            FailureKind.NODE,
            {
                "network switch or cable": 35, "unplanned host maintenance": 32, "network card": 7, "SSD": 3,
                "power supply": 3, "chassis": 2, "IO board": 2, "CPU": 2, "system memory": 2,
            },
        ),
        *_counted(FailureKind.RANK, {"software bug": 54, "silent data corruption": 6, "dependency": 2}),
        *_counted(FailureKind.HANG, {"NCCL watchdog": 7}),
    ),
    queue_wait_s=60.0,
)  # fmt: skip

_OUTAGES = (  # per 1,000 nodes: a leaf switch in 30 days, storage in 14 days
    FailureCause("leaf switch", FailureKind.OUTAGE, 1 / 30, lasts_s=0.5 * HOUR_S, nodes_count=16),
    FailureCause("shared file system", FailureKind.STORAGE, per_day=1 / 14, lasts_s=600.0),
)
_RSC_RATE = 6.5  # per 1,000 node-days

RSC = FailureTable(
    name="rsc",
    source="Kokolis et al., Revisiting Reliability, arXiv 2410.21680: RSC-1, 6.5 failures per 1,000 node-days, 1.2 %"
    " lemon nodes. Assumed: the shares of the causes, lemons that fail 30 times as often, a leaf switch of 16 nodes in"
    " 30 days per 1,000 nodes, storage that stalls for 10 minutes in 14 days, repairs of 30 minutes to 3 days, a queue"
    " wait of 30 minutes",
    causes=(
        *_of(FailureKind.DEVICE, 3 * DAY_S, {"GPU": 0.45 * _RSC_RATE}),
        *_of(FailureKind.DEVICE, HOUR_S, {"GPU memory": 0.2 * _RSC_RATE}),
        *_of(FailureKind.RANK, HOUR_S, {"software": 0.135 * _RSC_RATE}),
        *_of(FailureKind.NODE, 0.5 * HOUR_S, {"network": 0.09 * _RSC_RATE, "host": 0.08 * _RSC_RATE}),
        *_of(FailureKind.HANG, HOUR_S, {"hang": 0.03 * _RSC_RATE}),
        *_of(FailureKind.WEAK, DAY_S, {"slow node": 0.015 * _RSC_RATE}),
        *_OUTAGES,
    ),
    lemon_share=0.012,
    lemon_factor=30.0,
)

DELTA = FailureTable(
    name="delta",
    source="Cui et al., Characterizing GPU Resilience, arXiv 2503.11901: the H100 nodes of Delta, per 1,000 days of"
    " eight GPUs, without what is mostly user code (MMU faults), repairs of 2.2 hours. Assumed: outages as for rsc, a"
    " queue wait of 30 minutes",
    causes=(
        *_of(
            FailureKind.DEVICE,
            2.2 * HOUR_S,
            {
                "GPU system processor": 0.27, "double-bit memory error": 1.5, "row remapping failed": 0.72,
                "uncontained memory error": 1.7,
            },
        ),
        *_of(FailureKind.RANK, HOUR_S, {"contained memory error": 1.3}),
        *_of(FailureKind.NODE, 2.2 * HOUR_S, {"node lock-up": 0.81}),
        *_OUTAGES,
    ),
)  # fmt: skip

TABLES = {table.name: table for table in (LLAMA3, RSC, DELTA)}
