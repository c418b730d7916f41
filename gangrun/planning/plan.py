"""What a training will cost on machines that fail: failures, spares, checkpoints, time and money, policy by policy.

Theory of operation: failures come at random at a constant rate that grows with the number of nodes. A failure costs the
training since the last usable checkpoint, and the recovery. Saves are made in the background, so a checkpoint is usable
only once it is written: that time counts as part of the recovery. If a failure takes a node and no spare is left, the
run waits for another node. The same failure rate, interval and share as ``cadence`` are used throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gangrun.planning.cadence import Cadence, cadence, mean_lost_s, useful_share

DAY_S = 86400.0
REPAIR_S = DAY_S  # until a node that failed is back, if nobody says
STAGING_BYTES_PER_S = 10e9  # of one GPU's part of the state into host memory
STALL_MIN_S = 0.1
NODE_WRITE_BYTES_PER_S, WRITE_BYTES_PER_S = 2e9, 50e9  # of one node, of a shared file system
BY_HAND_S = 1800.0  # until a person, or the queue, has restarted a job
NOTICING_BY_HAND_S = 600.0  # the default time limit of a collective: until then a hang looks like slow training
# bytes for each parameter: the weights, with the fp32 copy that mixed precision trains
WEIGHTS_BYTES = {"fp32": 4, "mixed": 2 + 4, "bf16": 2}
# numbers that the optimizer keeps for each parameter, each as wide as the weights that it trains
OPTIMIZER_NUMBERS = {
    "adamw": 2.0,
    "adamw8bit": 2.0,
    "lion": 1.0,
    "muon": 1.0,
    "momentum": 1.0,
    "adafactor": 0.0,
    "sgd": 0.0,
}


def checkpoint_bytes(parameters_count: float, optimizer: str, precision: str) -> float:
    """The size of a checkpoint with weights and optimizer. ``KeyError`` for names that the tables do not have."""
    wide = 1 if optimizer == "adamw8bit" else 2 if precision == "bf16" else 4
    return parameters_count * (WEIGHTS_BYTES[precision] + OPTIMIZER_NUMBERS[optimizer] * wide)


def mtbf_at(part_mtbf_s: float, parts_count: int) -> float:
    """Mean time between failures of a job of so many equal parts, each of which fails by itself."""
    return part_mtbf_s / max(1, parts_count)


def no_failure(duration_s: float, mtbf_s: float) -> float:
    """The probability that nothing fails for so long."""
    return math.exp(-duration_s / mtbf_s)


def spares_needed(nodes_count: int, node_mtbf_s: float, repair_s: float, confidence: float = 0.99) -> int:
    """The fewest spares with which enough nodes work, with this probability at any moment.

    Each node is away for ``repair_s`` after a failure, so the number of those that are away is binomial. The answer is
    never above the number of nodes: with so many away no number of spares is a plan.
    """
    away = repair_s / (node_mtbf_s + repair_s)
    for spares_count in range(nodes_count):
        if _at_most(spares_count, nodes_count + spares_count, away) >= confidence:
            return spares_count
    return nodes_count


def _at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of the binomial distribution, by logarithms: neither factor may vanish with thousands of nodes."""
    if p <= 0:
        return 1.0
    logs = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(min(k, n) + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is to be trained, on what, and how fast it recovers. Times in seconds."""

    gpus_count: int
    gpus_per_node: int
    mtbf_s: float  # between failures of the whole job
    train_s: float  # training that would be needed if nothing failed and nothing were saved
    state_bytes: float
    stall_s: float  # training stands still for each save
    persist_s: float  # until a save is written
    noticing_s: float
    restart_s: float  # from the stop of the ranks to the first new step
    by_hand_s: float  # the same, if a person or a queue has to restart the job
    repair_s: float  # a node that failed is back after this
    node_wait_s: float  # for another node, if no spare is left
    gpu_hour_price: float
    spares_count: int | None = None  # None: as many as are needed
    confidence: float = 0.99
    interval_s: float | None = None  # one more interval to compare

    @property
    def nodes_count(self) -> int:
        """Nodes that train."""
        return -(-self.gpus_count // self.gpus_per_node)

    @property
    def node_mtbf_s(self) -> float:
        """Of one node: every failure of the job is taken for a node's."""
        return self.mtbf_s * self.nodes_count


@dataclass(frozen=True, slots=True)
class PolicyForecast:
    """What one way to save and to recover makes of the scenario."""

    name: str
    interval_s: float
    recovery_s: float  # noticing, restart, what was saved but not yet written, waits for nodes
    lost_per_failure_s: float  # training that is done again, and the recovery
    useful_share: float  # of the time; 0: the training would never end
    finish_s: float | None
    failures_count: float | None
    downtime_gpu_h: float | None  # of all that is not useful training, with the spares' share
    downtime_cost: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer of ``gangrun plan``."""

    scenario: Scenario
    best: Cadence
    failures_count: float  # while it would train if nothing failed
    no_failure_day: float  # probability
    no_failure_run: float
    spares_count: int
    spares_needed_count: int
    gpus_cost_per_h: float
    policies: tuple[PolicyForecast, ...]


def usual_stall_s(state_bytes: float, gpus_count: int) -> float:
    """How long a save in the background stops the training: each GPU copies its part into host memory."""
    return max(STALL_MIN_S, state_bytes / max(1, gpus_count) / STAGING_BYTES_PER_S)


def usual_write_bytes_per_s(nodes_count: int) -> float:
    """What all nodes together write to, and read from, a shared file system, if nobody measured it."""
    return min(WRITE_BYTES_PER_S, nodes_count * NODE_WRITE_BYTES_PER_S)


def forecast(given: Scenario) -> Forecast:
    """Everything that can be said before the training starts."""
    best = cadence(given.stall_s, given.persist_s, given.mtbf_s)
    needed = spares_needed(given.nodes_count, given.node_mtbf_s, given.repair_s, given.confidence)
    spares = needed if given.spares_count is None else given.spares_count
    recovery_s = given.noticing_s + given.restart_s
    by_hand_s = NOTICING_BY_HAND_S + given.by_hand_s
    ways = [("by hand, every hour", 3600.0, by_hand_s, 0)]
    ways += [
        (f"gangrun, every {word}", at_s, recovery_s, spares) for word, at_s in (("hour", 3600.0), ("15 min", 900.0))
    ]
    if given.interval_s is not None:
        ways.append(("gangrun, --interval", given.interval_s, recovery_s, spares))
    if spares:
        ways.append(("gangrun, best, no spares", best.interval_s, recovery_s, 0))
    ways.append(("gangrun, best", best.interval_s, recovery_s, spares))
    return Forecast(
        scenario=given,
        best=best,
        failures_count=given.train_s / given.mtbf_s,
        no_failure_day=no_failure(DAY_S, given.mtbf_s),
        no_failure_run=no_failure(given.train_s, given.mtbf_s),
        spares_count=spares,
        spares_needed_count=needed,
        gpus_cost_per_h=given.gpus_count * given.gpu_hour_price,
        policies=tuple(_policy(given, *way) for way in ways),
    )


def _policy(given: Scenario, name: str, interval_s: float, recovery_s: float, spares_count: int) -> PolicyForecast:
    away = given.repair_s / (given.node_mtbf_s + given.repair_s)
    # the one that just failed is away; no spare is left if as many as there are spares were away already
    short = 1 - _at_most(spares_count - 1, given.nodes_count + spares_count - 1, away) if spares_count else 1.0
    recovery_s += given.persist_s + short * given.node_wait_s
    share = useful_share(interval_s, given.stall_s, recovery_s, given.mtbf_s)
    lost_s = mean_lost_s(interval_s + given.stall_s, given.mtbf_s) + recovery_s
    finish_s = given.train_s / share if share > 1e-6 else None
    gpus_count = given.gpus_count + spares_count * given.gpus_per_node
    down_h = None if finish_s is None else (finish_s - given.train_s) * gpus_count / 3600
    return PolicyForecast(
        name=name,
        interval_s=interval_s,
        recovery_s=recovery_s,
        lost_per_failure_s=lost_s,
        useful_share=share,
        finish_s=finish_s,
        failures_count=None if finish_s is None else finish_s / given.mtbf_s,
        downtime_gpu_h=down_h,
        downtime_cost=None if down_h is None else down_h * given.gpu_hour_price,
        cost=None if finish_s is None else finish_s * gpus_count / 3600 * given.gpu_hour_price,
    )
