"""How each fault is done to a world. ``faults`` names them; nothing here decides anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from gangrun.sim.body.gang import SimRank
from gangrun.sim.engine.network import Trouble
from gangrun.sim.faults.kinds import HOLDER, Fault, Kind

if TYPE_CHECKING:
    from gangrun.sim.body.node import SimNode
    from gangrun.sim.world import World


def injure(world: World, fault: Fault) -> None:
    """Do it, to whoever is there now; what is not there cannot be hurt."""
    node = _node(world, fault)
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


def _node(world: World, fault: Fault) -> SimNode | None:
    if fault.node is None:
        return None
    if fault.node == HOLDER:
        holder = world.holder()
        return None if holder is None else holder.node
    return world.nodes[fault.node % len(world.nodes)]


def _rank(world: World, number: int) -> SimRank | None:
    for gang in reversed(world.gangs):
        rank = gang.members.get(number % gang.world_size)
        if rank is not None and rank.alive:
            return rank
    return None


# ---- processes and nodes ------------------------------------------------------------------------------------------


def _kill_supervisor(world: World, node: SimNode, fault: Fault) -> None:
    if fault.kind is Kind.UPGRADE_SUPERVISOR:
        world.upgraded = True
    if node.supervisor is not None:
        node.supervisor.kill()


def _pause_supervisor(world: World, node: SimNode, fault: Fault) -> None:
    if node.supervisor is not None and node.supervisor.alive:
        world.unpark_all()
        node.supervisor.pause(fault.for_s)


def _kill_agent(world: World, node: SimNode, fault: Fault) -> None:
    del world, fault
    agent = node.agent
    if agent is not None and agent.alive:
        agent.kill()
        for rank in list(node.ranks):
            node.kill_rank(rank, 9)  # their death signal
        node.warden.agent_died("signal SIGKILL")


def _pause_agent(world: World, node: SimNode, fault: Fault) -> None:
    del world
    if node.agent is not None:
        node.agent.pause(fault.for_s)


def _kill_warden(world: World, node: SimNode, fault: Fault) -> None:
    """Agent and supervisor have its death signal, ranks have the agent's; the job's task on the node is over."""
    del world, fault
    if node.warden.alive and node.job:
        node.leave()


def _pause_warden(world: World, node: SimNode, fault: Fault) -> None:
    del world
    node.warden.slept(node.clock.boot(node.timeline.now))
    node.warden.pause(fault.for_s)
    node.stopped_until = max(node.stopped_until, node.timeline.now + fault.for_s)


def _kill_node(world: World, node: SimNode, fault: Fault) -> None:
    if not node.up:
        return
    node.kill()
    if fault.kind is Kind.REBOOT_NODE:
        world.timeline.after(fault.for_s, node.restart)


def _pause_node(world: World, node: SimNode, fault: Fault) -> None:
    if node.up:
        machine = fault.kind is Kind.PAUSE_NODE
        if node.supervisor is not None and node.supervisor.alive:
            world.unpark_all()
        node.pause(fault.for_s, machine=machine)


def _slow_kill(world: World, node: SimNode, fault: Fault) -> None:
    node.kill_takes_s = (
        min(fault.amount, world.setup.policy.timing.kill_within_s * 0.9) if fault.amount < 1 else fault.amount
    )
    world.timeline.after(fault.for_s, lambda: setattr(node, "kill_takes_s", 0.0))


def _sick(world: World, node: SimNode, fault: Fault) -> None:
    if fault.kind is Kind.SICK:
        world.sick.add(node.name)
    if node.agent is not None:
        node.agent.finds(fatal=fault.kind is Kind.SICK)


def _drift(world: World, node: SimNode, fault: Fault) -> None:
    node.clock.change_rate(world.timeline.now, 1.0 + fault.amount)
    node.warden.replan()
    if node.agent is not None:
        node.agent.perform([])
    if node.supervisor is not None and node.supervisor.alive:
        node.supervisor.plan()


def _wall_jump(world: World, node: SimNode, fault: Fault) -> None:
    del world
    node.clock.wall_offset_s += fault.amount


# ---- ranks --------------------------------------------------------------------------------------------------------


def _kill_rank(world: World, rank: SimRank, fault: Fault) -> None:
    rank.oom = fault.kind is Kind.OOM_RANK
    world.nodes[rank.host.index].kill_rank(rank, 9)


def _exit_rank(world: World, rank: SimRank, fault: Fault) -> None:
    del world
    code = 0 if fault.kind is Kind.FINISH_RANK else int(fault.amount) or 1
    rank.host.rank_ended(rank, code, None, error=None)


def _pause_rank(world: World, rank: SimRank, fault: Fault) -> None:
    if fault.kind is Kind.STUCK_RANK:
        rank.stuck_until = max(rank.stuck_until, world.timeline.now + fault.for_s)
    else:
        rank.pause(fault.for_s)
    if rank.gang is not None:
        rank.gang.update()
        world.timeline.after(fault.for_s, rank.gang.update)


def _hang(world: World, rank: SimRank, fault: Fault) -> None:
    del world, fault
    if rank.gang is not None:
        rank.gang.hung = True
        rank.gang.update()


# ---- network, storage, scheduler, people --------------------------------------------------------------------------


def _trouble(world: World, fault: Fault) -> None:
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


def _storage(world: World, fault: Fault) -> None:
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
    if fault.kind in {Kind.FS_TORN_TAIL, Kind.FS_LATE_WRITE} and node is not None and node.supervisor is not None:
        node.supervisor.kill()


def _slurm(world: World, fault: Fault) -> None:
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
        case _:
            _to_jobs(world, fault)


def _to_jobs(world: World, fault: Fault) -> None:
    for job in world.scheduler.running():
        match fault.kind:
            case Kind.SLURM_TWICE:
                world.scheduler.sbatch(job.seq, ())
            case Kind.SLURM_SUSPEND:
                world.unpark_all()
                for node in job.nodes:
                    node.pause(fault.for_s, machine=False)
            case Kind.SLURM_REQUEUE:
                world.scheduler.requeue(job)
            case Kind.BATCH_LOST:
                world.scheduler.kill(job)
            case Kind.SCANCEL:
                world.scheduler.scancel(job)
            case _:
                raise AssertionError(fault.kind)


def _flip_journal(world: World, fault: Fault) -> None:
    lines = world.disk.journals.get(max(world.disk.journals, default=0), [])
    if lines:
        lines[max(0, len(lines) - int(fault.amount))].torn = True
        world.checker.journal_damaged = True


def _damage(world: World, fault: Fault) -> None:
    del fault
    world.checkpoint_fs.damage()


def _cancel(world: World, fault: Fault) -> None:
    del fault
    world.cancel()


_NODE: dict[Kind, Callable[[World, SimNode, Fault], None]] = {
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
    Kind.SICK: _sick,
    Kind.POOR: _sick,
    Kind.DRIFT: _drift,
    Kind.WALL_JUMP: _wall_jump,
}
_RANK: dict[Kind, Callable[[World, SimRank, Fault], None]] = {
    Kind.KILL_RANK: _kill_rank,
    Kind.OOM_RANK: _kill_rank,
    Kind.EXIT_RANK: _exit_rank,
    Kind.FINISH_RANK: _exit_rank,
    Kind.PAUSE_RANK: _pause_rank,
    Kind.STUCK_RANK: _pause_rank,
    Kind.HANG: _hang,
}
_NETWORK = (Kind.CUT, Kind.CUT_TO, Kind.CUT_FROM, Kind.CUT_HALF, Kind.DELAY, Kind.DUPLICATE, Kind.REORDER, Kind.LOSE)
_STORAGE = (
    Kind.FS_STALL,
    Kind.FS_FULL,
    Kind.FS_READ_ONLY,
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
    Kind.SLURM_REQUEUE,
    Kind.BATCH_LOST,
    Kind.SCANCEL,
)
_WORLD: dict[Kind, Callable[[World, Fault], None]] = {
    **dict.fromkeys(_NETWORK, _trouble),
    **dict.fromkeys(_STORAGE, _storage),
    **dict.fromkeys(_SLURM, _slurm),
    Kind.FLIP_JOURNAL: _flip_journal,
    Kind.FLIP_CHECKPOINT: _damage,
    Kind.TEAR_CHECKPOINT: _damage,
    Kind.CANCEL: _cancel,
}
FOREVER_S = math.inf
