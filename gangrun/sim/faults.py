"""What can go wrong, when, and to whom.

A ``FaultPlan`` is an immutable list of ``Fault``; ``FaultPlan.random`` draws one from a seed, ``fail_at`` writes one by
hand, and ``|`` puts two together. ``injure`` does one of them to a world.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from gangrun.core.events import DrainRequested, Stamped
from gangrun.core.evidence import ErrorReport
from gangrun.sim.body.gang import SimRank
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.rank_failures import ALL, BUGS, ERROR_TEXTS, MACHINE, OPEN, REMARKS, LastingFailure
from gangrun.sim.cluster import Cluster
from gangrun.sim.engine.network import Trouble
from gangrun.sim.engine.process import SimProcess

HOLDER = -1  # as a node: wherever the newest supervisor is when the fault comes


class Kind(Enum):
    """The vocabulary. ``for_s`` is how long, ``amount`` how much; what has neither is over at once, but for what makes
    ranks fail with a text: without ``for_s`` it stays.
    """

    KILL_SUPERVISOR = "kill supervisor"
    PAUSE_SUPERVISOR = "pause supervisor"
    PAUSE_AT_MOVE = "the next supervisor that sets checkpoints aside stops after judging them, until for_s is over"
    UPGRADE_SUPERVISOR = "kill supervisor, the next one has another policy"
    KILL_AGENT = "kill agent"
    PAUSE_AGENT = "pause agent"
    KILL_WARDEN = "kill warden"
    PAUSE_WARDEN = "pause warden"
    KILL_SRUN = "kill srun, the next one follows for_s later"
    KILL_RANK = "kill rank"
    PAUSE_RANK = "pause rank"
    EXIT_RANK = "rank exits with amount"
    FALL_RANKS = "all ranks exit with an error whose text has amount characters"
    FINISH_RANK = "rank exits 0 while the others go on"
    OOM_RANK = "rank killed for memory"
    STUCK_RANK = "rank in D state: no kill takes for that long"
    SLOW_KILL = "kills on the node take amount seconds"
    FAIL_ON_NODE = "ranks on the node fail with text, amount seconds after the start of each gang that has the node"
    FAIL_RANK = "the rank fails with text wherever it runs, amount seconds after the start of each gang"
    FAIL_ALL = "all ranks fail with text at once, amount seconds after the start of each gang"
    REMARK = "ranks on the node, or on all, write text as healthy ranks do, and go on"
    HANG = "one rank waits for ever"
    SLOW_RANK = "the rank takes amount times as long for its own work; if it has a GPU, that is throttled"
    SLOW_NODE = "all ranks of the node take amount times as long for their own work, in each gang that has the node"
    HEAVY_RANK = "the rank takes amount times as long for its own work wherever it runs, as its data is larger"
    CORRUPT_RANK = "the rank's weights are amount from now on, those of all others 0, until the gang ends"
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
    BREAK_SLOT = "a check finds slot number amount of the node broken, now and each time that it is asked"
    BAD_NIC = "the node's ranks reach no rank on other nodes, and neither does its network test; heartbeats get through"
    BAD_LINK = "as that, between the node and the next one only"
    POOR = "a check on the node finds its hardware poor"
    DRIFT = "the node's clock runs at 1 + amount"
    WALL_JUMP = "the node's wall clock jumps by amount"
    FS_STALL = "file system stands still for the node, or for all"
    FS_FULL = "no space left"
    FS_READ_ONLY = "read-only file system"
    FS_SLOW = "each file operation of the node, or of all, takes amount seconds more"
    FS_ERROR = "every file operation fails, reading too"
    FS_STALE = "the node sees an old listing"
    FS_LOST_REPLY = "the next operation succeeds and says EIO"
    FS_TORN_TAIL = "a kill leaves half a line"
    FS_LATE_WRITE = "a dead client's write arrives for_s later"
    FS_NO_MODES = "modes in the checkpoint directory bind nobody"
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
    SLURM_GIVES_UP = "the job is requeued under its id; its nodes live on until Slurm reaches them again, after for_s"
    NODE_TAKEN = "Slurm counts a good node as DOWN: it kills what runs there and takes the node out of the job"
    STEP_LOST = "for srun all nodes have left, and what runs on them lives on"
    REFILLS_WAIT = "no node is free for a refill for that long"
    REFILLS_SCANCELLED = "scancel of all refills"
    BATCH_LOST = "the batch host is lost"
    SCANCEL = "scancel without our knowledge"
    CANCEL = "gangrun cancel"
    DRAIN = "gangrun drain, of the node"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. ``node`` is an index, ``HOLDER``, or None for all; ``rank`` counts within the run."""

    at_s: float
    kind: Kind
    node: int | None = HOLDER
    rank: int = 0
    for_s: float = 0.0
    amount: float = 0.0
    text: str = ""  # a name in ``rank_failures``

    def __str__(self) -> str:
        """For the failure message."""
        where = {None: "all nodes", HOLDER: "the supervisor's node"}.get(self.node, f"node {self.node}")
        more = f", rank {self.rank}" if "rank" in self.kind.value else ""
        more += f", text {self.text!r}" if self.text else ""
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
        text: str = "",
    ) -> FaultPlan:
        """This plan with one more fault."""
        return self | FaultPlan((Fault(at_s, kind, node, rank, for_s, amount, text),))

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
        if seed % 7 == 0:  # they alone change nothing, so they come on top
            faults.append(Fault(0.0, Kind.FS_NO_MODES, None))
            faults.append(Fault(faults[0].at_s, Kind.PAUSE_AT_MOVE, for_s=rng.choice(LONG)))
        return FaultPlan(tuple(sorted(faults, key=lambda fault: fault.at_s)))

    @staticmethod
    def random_failures(seed: int, nodes_count: int, ranks_count: int, within_s: float = 40.0) -> FaultPlan:
        """Ranks that fail with error texts, for one reason or two, and every third time among other faults."""
        rng = random.Random(f"rank failures {seed}")
        plan = _failing(rng, nodes_count, ranks_count)
        if rng.random() < 0.25:
            plan |= _failing(rng, nodes_count, ranks_count)
        if rng.random() < 0.33:
            plan |= FaultPlan((_draw(rng, rng.uniform(0.0, within_s), nodes_count, ranks_count),))
        return plan


LOSES_EVERY_S = 5.0
NCCL_LOST = "NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"

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
    Kind.WALL_JUMP: (2, (0.0,), (-21600.0, 21600.0)),
    Kind.FS_STALL: (4, (3.0, 20.0, 20.0), (0.0,)),
    Kind.FS_FULL: (2, (3.0, 20.0), (0.0,)),
    Kind.FS_READ_ONLY: (2, (3.0, 20.0), (0.0,)),
    Kind.FS_ERROR: (2, (0.6, 3.0, 20.0), (0.0,)),
    Kind.FS_SLOW: (3, LONG, (0.02, 0.2, 1.0)),
    Kind.FS_STALE: (2, (60.0,), (0.0,)),
    Kind.FS_LOST_REPLY: (3, (0.0,), (0.0,)),
    Kind.FS_TORN_TAIL: (2, (0.0,), (0.0,)),
    Kind.FS_LATE_WRITE: (2, (2.0, 15.0), (0.0,)),
    Kind.FLIP_CHECKPOINT: (2, (0.0,), (0.0,)),
    Kind.TEAR_CHECKPOINT: (2, (0.0,), (0.0,)),
    Kind.SLURM_GIVES_UP: (2, (20.0, 60.0, 150.0), (0.0,)),
    Kind.CANCEL: (1, (0.0,), (0.0,)),
}
# For which every node that is up can still be asked what is in its memory, and write it.
MISSES_NO_MEMORY = frozenset(
    {
        Kind.KILL_RANK, Kind.EXIT_RANK, Kind.OOM_RANK, Kind.FINISH_RANK, Kind.STUCK_RANK, Kind.HANG, Kind.POOR,
        Kind.KILL_SUPERVISOR, Kind.KILL_AGENT, Kind.KILL_NODE, Kind.WALL_JUMP, Kind.DRIFT, Kind.FS_NO_MODES,
    }
)  # fmt: skip
EVERYWHERE = frozenset({Kind.FS_STALL, Kind.FS_FULL, Kind.FS_READ_ONLY, Kind.FS_SLOW, Kind.FS_ERROR})
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


def _failing(rng: random.Random, nodes_count: int, ranks_count: int) -> FaultPlan:
    """One reason for which ranks fail, and what others write beside it."""
    plan, node, rank = FaultPlan(), rng.randrange(nodes_count), rng.randrange(ranks_count)
    kind = rng.choice((Kind.FAIL_ON_NODE, Kind.FAIL_RANK, Kind.FAIL_ALL))
    at_s, amount = rng.choice((0.0, 0.0, rng.uniform(5.0, 30.0))), rng.choice((0.5, 3.5, 5.5, 12.5))
    for_s = rng.choice((0.0, 0.0, 40.0))
    texts = {Kind.FAIL_ON_NODE: (*MACHINE, *OPEN), Kind.FAIL_RANK: (*OPEN, *BUGS), Kind.FAIL_ALL: tuple(ERROR_TEXTS)}
    if kind is Kind.FAIL_ON_NODE:
        rank = rng.choice((ALL, 0, 1))
    plan = plan.fail_at(at_s, kind, node=node, rank=rank, for_s=for_s, amount=amount, text=rng.choice(texts[kind]))
    for _ in range(rng.choice((0, 1, 2))):
        where = rng.choice((None, rng.randrange(nodes_count)))
        plan = plan.fail_at(0.0, Kind.REMARK, node=where, text=rng.choice(tuple(REMARKS)))
    return plan


# ---- how each fault is done to a world -------------------------------------------------------------------------------


def injure(world: Cluster, fault: Fault) -> None:
    """Do it, to whoever is there now; what is not there cannot be hurt."""
    node = _node(world, fault)
    world.at_fault |= _whose(world, node, fault)
    if fault.kind in _WORLD:
        _WORLD[fault.kind](world, fault)
    elif node is not None and fault.kind in _NODE:
        if node.agent is not None:
            node.agent.unpark()
        _NODE[fault.kind](world, node, fault)
    elif fault.kind in _RANK:
        rank = _rank(world, fault.rank)
        if rank is not None:
            _RANK[fault.kind](world, rank, fault)


def _whose(world: Cluster, node: SimNode | None, fault: Fault) -> set[str]:
    """The nodes that have a fault of their own from now on, as far as anybody can tell."""
    if fault.kind in _NOBODYS:
        return set()
    if fault.kind in _RANK:
        rank = _rank(world, fault.rank)
        return set() if rank is None else {rank.host.name}
    if fault.kind in _NODE or fault.kind is Kind.FAIL_ON_NODE or (node is not None and fault.kind is not Kind.CUT_HALF):
        return set() if node is None else {node.name}
    return {one.name for one in world.nodes}


def _node(world: Cluster, fault: Fault) -> SimNode | None:
    if fault.node is None:
        return None
    if fault.node == HOLDER:
        holder = world.holder()
        return None if holder is None else holder.node
    return world.nodes[fault.node % len(world.nodes)]


def _rank(world: Cluster, number: int) -> SimRank | None:
    for gang in reversed(world.gangs):
        rank = gang.members.get(number % gang.world_size)
        if rank is not None and rank.alive:
            return rank
    return None


# ---- processes and nodes ------------------------------------------------------------------------------------------


def _kill_supervisor(world: Cluster, node: SimNode, fault: Fault) -> None:
    if fault.kind is Kind.UPGRADE_SUPERVISOR:
        world.upgraded = True
    if node.supervisor is not None:
        node.supervisor.kill()


def _pause_supervisor(world: Cluster, node: SimNode, fault: Fault) -> None:
    if node.supervisor is not None and node.supervisor.alive:
        world.unpark_all()
        node.supervisor.pause(fault.for_s)


def _kill_agent(world: Cluster, node: SimNode, fault: Fault) -> None:
    del world, fault
    agent = node.agent
    if agent is not None and agent.alive:
        agent.kill()
        for rank in list(node.ranks):
            node.kill_rank(rank, 9)  # their death signal
        node.warden.agent_died("signal SIGKILL")


def _pause_agent(world: Cluster, node: SimNode, fault: Fault) -> None:
    del world
    if node.agent is not None:
        node.agent.pause(fault.for_s)


def _kill_warden(world: Cluster, node: SimNode, fault: Fault) -> None:
    del world, fault
    if node.warden.alive and node.job:
        node.kill_warden()


def _pause_warden(world: Cluster, node: SimNode, fault: Fault) -> None:
    del world
    node.warden.slept(node.clock.boot(node.timeline.now))
    node.warden.pause(fault.for_s)
    node.stopped_until = max(node.stopped_until, node.timeline.now + fault.for_s)


def _kill_node(world: Cluster, node: SimNode, fault: Fault) -> None:
    if not node.up:
        return
    node.kill()
    if fault.kind is Kind.REBOOT_NODE:
        world.timeline.after(fault.for_s, node.restart)


def _pause_node(world: Cluster, node: SimNode, fault: Fault) -> None:
    if node.up:
        machine = fault.kind is Kind.PAUSE_NODE
        if node.supervisor is not None and node.supervisor.alive:
            world.unpark_all()
        node.pause(fault.for_s, machine=machine)


def _slow_kill(world: Cluster, node: SimNode, fault: Fault) -> None:
    node.kill_takes_s = (
        min(fault.amount, world.setup.policy.timing.kill_within_s * 0.9) if fault.amount < 1 else fault.amount
    )
    world.timeline.after(fault.for_s, lambda: setattr(node, "kill_takes_s", 0.0))


def _sick(world: Cluster, node: SimNode, fault: Fault) -> None:
    if fault.kind is Kind.SICK:
        world.sick.add(node.name)
    slot = int(fault.amount) if fault.kind is Kind.BREAK_SLOT else -1
    if slot >= 0:
        world.broken_slots.setdefault(node.name, set()).add(slot)
    if node.agent is not None:
        node.agent.finds(fatal=fault.kind is not Kind.POOR, slot=slot)


def _bad_link(world: Cluster, node: SimNode, fault: Fault) -> None:
    """All ranks whose gang needs the link say that they lost a peer, now and in each later gang."""
    other = world.nodes[(world.nodes.index(node) + 1) % len(world.nodes)].name
    link = frozenset({node.name} if fault.kind is Kind.BAD_NIC else {node.name, other})
    world.bad_links.add(link)
    error = ErrorReport(
        "torch.distributed.DistBackendError", NCCL_LOST, "DistBackendError@train.py:17", NCCL_LOST, True
    )

    def lose() -> None:
        if link not in world.bad_links:
            return  # somebody has put it right
        for gang in world.gangs:
            members = [one for _, one in sorted(gang.members.items()) if one.alive]
            hosts = {one.host.name for one in members}
            if gang.stepping and link <= hosts and len(hosts) > 1:
                for member in members:
                    member.host.rank_ended(member, 1, None, error=error)
        world.timeline.after(LOSES_EVERY_S, lose)

    lose()


def _take(world: Cluster, node: SimNode, fault: Fault) -> None:
    del fault
    world.scheduler.take(node)


def _drift(world: Cluster, node: SimNode, fault: Fault) -> None:
    node.clock.change_rate(world.timeline.now, 1.0 + fault.amount)
    node.warden.replan()
    if node.agent is not None:
        node.agent.perform([])
    if node.supervisor is not None and node.supervisor.alive:
        node.supervisor.plan()


def _wall_jump(world: Cluster, node: SimNode, fault: Fault) -> None:
    del world
    node.clock.wall_offset_s += fault.amount


# ---- ranks --------------------------------------------------------------------------------------------------------


def _kill_rank(world: Cluster, rank: SimRank, fault: Fault) -> None:
    rank.oom = fault.kind is Kind.OOM_RANK
    world.nodes[rank.host.index].kill_rank(rank, 9)


def _exit_rank(world: Cluster, rank: SimRank, fault: Fault) -> None:
    del world
    code = 0 if fault.kind is Kind.FINISH_RANK else int(fault.amount) or 1
    rank.host.rank_ended(rank, code, None, error=None)


def _fall_ranks(world: Cluster, rank: SimRank, fault: Fault) -> None:
    """As ranks of a gang do whose collectives time out: all within a moment, each with a traceback of its own."""
    del world
    text = "x" * int(fault.amount)
    error = ErrorReport("torch.distributed.DistBackendError", text[:999], "DistBackendError@train.py:17", text, True)
    members = {} if rank.gang is None else rank.gang.members
    for member in [one for _, one in sorted(members.items()) if one.alive]:
        member.host.rank_ended(member, 1, None, error=error)


def _pause_rank(world: Cluster, rank: SimRank, fault: Fault) -> None:
    if fault.kind is Kind.STUCK_RANK:
        rank.stuck_until = max(rank.stuck_until, world.timeline.now + fault.for_s)
    else:
        rank.pause(fault.for_s)
    if rank.gang is not None:
        rank.gang.update()
        world.timeline.after(fault.for_s, rank.gang.update)


def _fail(world: Cluster, fault: Fault) -> None:
    node = _node(world, fault) if fault.kind is Kind.FAIL_ON_NODE else None
    rank = None if fault.kind is Kind.FAIL_ALL else fault.rank
    until = world.timeline.now + (fault.for_s or math.inf)
    failure = LastingFailure(ERROR_TEXTS[fault.text], "" if node is None else node.name, rank, fault.amount, until)
    world.rank_failures.begin(failure, world.gangs)


def _remark(world: Cluster, fault: Fault) -> None:
    node = _node(world, fault)
    for one in world.nodes if node is None else [node]:
        world.rank_failures.remark(one.name, REMARKS[fault.text])


def _hang(world: Cluster, rank: SimRank, fault: Fault) -> None:
    del world, fault
    if rank.gang is not None:
        rank.gang.hung = True
        rank.gang.update()


def _slow_rank(world: Cluster, rank: SimRank, fault: Fault) -> None:
    gang = rank.gang
    if gang is None:
        return
    gang.slow_down(rank.rank, fault.amount)
    for node in world.nodes:
        node.unpark()
    if fault.for_s:
        world.timeline.after(fault.for_s, lambda: gang.slow_down(rank.rank, 1.0))


def _slow_node(world: Cluster, node: SimNode, fault: Fault) -> None:
    node.slowness = fault.amount
    _slow_now(world)


def _heavy_rank(world: Cluster, fault: Fault) -> None:
    world.heavy_ranks[fault.rank] = fault.amount
    _slow_now(world)


def _slow_now(world: Cluster) -> None:
    for gang in world.gangs:
        for rank in gang.members.values():
            world.slow_down(gang, rank)
    for node in world.nodes:
        node.unpark()


def _corrupt_rank(world: Cluster, rank: SimRank, fault: Fault) -> None:
    if rank.gang is not None:
        rank.gang.corrupted[rank.rank] = int(fault.amount)
    for node in world.nodes:
        node.unpark()


# ---- network, storage, scheduler, people --------------------------------------------------------------------------


def _trouble(world: Cluster, fault: Fault) -> None:
    node = _node(world, fault)
    here = None if node is None else frozenset({node.index})
    until = world.timeline.now + max(fault.for_s, 0.01)
    trouble = Trouble(until, here, None, cut=False)
    match fault.kind:
        case Kind.CUT:
            trouble = Trouble(until, None, None, across=here or frozenset())
        case Kind.CUT_TO:
            trouble = Trouble(until, None, here)
        case Kind.CUT_FROM:
            trouble = Trouble(until, here, None)
        case Kind.CUT_HALF:
            count = max(1, round(fault.amount * len(world.nodes)))
            first = 0 if node is None else node.index
            side = frozenset((first + i) % len(world.nodes) for i in range(count))
            trouble = Trouble(until, None, None, across=side)
        case Kind.DELAY:
            trouble.delay_s = fault.amount
        case Kind.DUPLICATE:
            trouble.twice = True
        case Kind.REORDER:
            trouble.shuffle = True
        case Kind.LOSE:
            trouble.lose_share = fault.amount
        case _:
            raise AssertionError(fault.kind)
    world.network.add(trouble)
    for gang in world.gangs:
        if gang.alive_count:
            gang.update()
            world.timeline.at(until, gang.update)


def _storage(world: Cluster, fault: Fault) -> None:
    node = _node(world, fault)
    until = world.timeline.now + fault.for_s
    for mount in [n.mount for n in world.nodes] if node is None else [node.mount]:
        match fault.kind:
            case Kind.FS_STALL:
                mount.stalled_until = max(mount.stalled_until, until)
            case Kind.FS_FULL:
                mount.full_until = max(mount.full_until, until)
            case Kind.FS_READ_ONLY:
                mount.read_only_until = max(mount.read_only_until, until)
            case Kind.FS_SLOW:
                mount.slow_until, mount.slow_by_s = until, fault.amount
            case Kind.FS_ERROR:
                mount.broken_until = max(mount.broken_until, until)
            case Kind.FS_STALE:
                mount.stale_since, mount.stale_until = world.timeline.now, world.timeline.now + min(fault.for_s, 60.0)
            case Kind.FS_LOST_REPLY:
                mount.lose_reply = True
            case Kind.FS_TORN_TAIL:
                mount.tear_next = True
            case Kind.FS_LATE_WRITE:
                mount.late_by_s = fault.for_s
            case _:
                raise AssertionError(fault.kind)
    if fault.kind is Kind.FS_ERROR:
        for supervisor in world.supervisors:
            supervisor.look_for_cancel()
    if fault.kind in {Kind.FS_TORN_TAIL, Kind.FS_LATE_WRITE} and node is not None and node.supervisor is not None:
        node.supervisor.kill()


def _slurm(world: Cluster, fault: Fault) -> None:
    moods, now = world.scheduler.moods, world.timeline.now
    until = now + fault.for_s
    match fault.kind:
        case Kind.SLURM_TIMEOUT:
            moods.times_out_count += 1
        case Kind.SLURM_REFUSED:
            moods.refuses_until = max(moods.refuses_until, until)
        case Kind.SLURM_STALE:
            moods.stale_until = max(moods.stale_until, until)
        case Kind.SLURM_DOWN:
            moods.down_until = max(moods.down_until, until)
        case Kind.SLURM_NEVER:
            moods.never_count += 1
        case Kind.SLURM_HELD:
            moods.held_until = max(moods.held_until, until)
        case Kind.REFILLS_WAIT:
            moods.no_refills_until = max(moods.no_refills_until, until)
        case Kind.REFILLS_SCANCELLED:
            world.scheduler.refills.cancel_all()
        case _:
            _to_jobs(world, fault)


def _to_jobs(world: Cluster, fault: Fault) -> None:
    for job in world.scheduler.running():
        match fault.kind:
            case Kind.SLURM_TWICE:
                world.scheduler.submit(job.seq, ())
            case Kind.SLURM_SUSPEND:
                world.unpark_all()
                for node in job.nodes:
                    node.pause(fault.for_s, machine=False)
            case Kind.KILL_SRUN:
                world.scheduler.srun_killed(job, fault.for_s)
            case Kind.SLURM_REQUEUE:
                world.scheduler.requeue(job)
            case Kind.SLURM_GIVES_UP:
                world.scheduler.give_up(job, fault.for_s)
            case Kind.STEP_LOST:
                world.scheduler.lose_step(job)
            case Kind.BATCH_LOST:
                world.scheduler.kill(job)
            case Kind.SCANCEL:
                world.scheduler.scancel(job)
            case _:
                raise AssertionError(fault.kind)


def _flip_journal(world: Cluster, fault: Fault) -> None:
    lines = world.disk.journals.get(max(world.disk.journals, default=0), [])
    if lines:
        lines[max(0, len(lines) - int(fault.amount))].torn = True
        world.journal_damaged = True


def _damage(world: Cluster, fault: Fault) -> None:
    del fault
    world.checkpoint_fs.damage()


def _no_modes(world: Cluster, fault: Fault) -> None:
    del fault
    world.checkpoint_fs.modes_bind = False


def _pause_at_move(world: Cluster, fault: Fault) -> None:
    unhurt, until = world.checkpoint_fs.before_move, world.timeline.now + fault.for_s

    def pause(process: SimProcess) -> None:
        world.checkpoint_fs.before_move = unhurt
        if until > world.timeline.now:
            world.unpark_all()
            process.pause(until - world.timeline.now)

    world.checkpoint_fs.before_move = pause


def _cancel(world: Cluster, fault: Fault) -> None:
    del fault
    world.cancel()


def _drain(world: Cluster, node: SimNode, fault: Fault) -> None:
    """Whoever decides is told; a supervisor that comes later reads it in the journal, or it was refused."""
    del fault
    for supervisor in world.supervisors:
        if supervisor.alive:
            supervisor.post(Stamped(DrainRequested(node.name, "gangrun drain", "k")))


_NODE: dict[Kind, Callable[[Cluster, SimNode, Fault], None]] = {
    Kind.KILL_SUPERVISOR: _kill_supervisor,
    Kind.UPGRADE_SUPERVISOR: _kill_supervisor,
    Kind.PAUSE_SUPERVISOR: _pause_supervisor,
    Kind.KILL_AGENT: _kill_agent,
    Kind.PAUSE_AGENT: _pause_agent,
    Kind.KILL_WARDEN: _kill_warden,
    Kind.PAUSE_WARDEN: _pause_warden,
    Kind.KILL_NODE: _kill_node,
    Kind.REBOOT_NODE: _kill_node,
    Kind.PAUSE_NODE: _pause_node,
    Kind.SUSPEND_NODE: _pause_node,
    Kind.SLOW_KILL: _slow_kill,
    Kind.NODE_TAKEN: _take,
    Kind.SICK: _sick,
    Kind.POOR: _sick,
    Kind.BREAK_SLOT: _sick,
    Kind.DRAIN: _drain,
    Kind.BAD_NIC: _bad_link,
    Kind.BAD_LINK: _bad_link,
    Kind.DRIFT: _drift,
    Kind.WALL_JUMP: _wall_jump,
    Kind.SLOW_NODE: _slow_node,
}
_RANK: dict[Kind, Callable[[Cluster, SimRank, Fault], None]] = {
    Kind.KILL_RANK: _kill_rank,
    Kind.OOM_RANK: _kill_rank,
    Kind.EXIT_RANK: _exit_rank,
    Kind.FALL_RANKS: _fall_ranks,
    Kind.FINISH_RANK: _exit_rank,
    Kind.PAUSE_RANK: _pause_rank,
    Kind.STUCK_RANK: _pause_rank,
    Kind.HANG: _hang,
    Kind.SLOW_RANK: _slow_rank,
    Kind.CORRUPT_RANK: _corrupt_rank,
}
_NOBODYS = frozenset(
    {Kind.REMARK, Kind.FAIL_RANK, Kind.FAIL_ALL, Kind.HEAVY_RANK, Kind.FS_NO_MODES, Kind.PAUSE_AT_MOVE}
)
_NETWORK = (Kind.CUT, Kind.CUT_TO, Kind.CUT_FROM, Kind.CUT_HALF, Kind.DELAY, Kind.DUPLICATE, Kind.REORDER, Kind.LOSE)
_STORAGE = (
    Kind.FS_STALL,
    Kind.FS_FULL,
    Kind.FS_READ_ONLY,
    Kind.FS_SLOW,
    Kind.FS_ERROR,
    Kind.FS_STALE,
    Kind.FS_LOST_REPLY,
    Kind.FS_TORN_TAIL,
    Kind.FS_LATE_WRITE,
)
_SLURM = (
    Kind.SLURM_TIMEOUT,
    Kind.SLURM_REFUSED,
    Kind.SLURM_STALE,
    Kind.SLURM_DOWN,
    Kind.SLURM_TWICE,
    Kind.SLURM_NEVER,
    Kind.SLURM_HELD,
    Kind.SLURM_SUSPEND,
    Kind.KILL_SRUN,
    Kind.SLURM_REQUEUE,
    Kind.SLURM_GIVES_UP,
    Kind.STEP_LOST,
    Kind.REFILLS_WAIT,
    Kind.REFILLS_SCANCELLED,
    Kind.BATCH_LOST,
    Kind.SCANCEL,
)
_WORLD: dict[Kind, Callable[[Cluster, Fault], None]] = {
    **dict.fromkeys(_NETWORK, _trouble),
    **dict.fromkeys(_STORAGE, _storage),
    **dict.fromkeys(_SLURM, _slurm),
    Kind.FS_NO_MODES: _no_modes,
    Kind.PAUSE_AT_MOVE: _pause_at_move,
    Kind.FLIP_JOURNAL: _flip_journal,
    Kind.FLIP_CHECKPOINT: _damage,
    Kind.TEAR_CHECKPOINT: _damage,
    Kind.CANCEL: _cancel,
    Kind.REMARK: _remark,
    Kind.FAIL_ON_NODE: _fail,
    Kind.FAIL_RANK: _fail,
    Kind.FAIL_ALL: _fail,
    Kind.HEAVY_RANK: _heavy_rank,
}
