"""The kinds of drills: what each does, what it should lead to, and where an ordinary user can do it.

A kind that the simulated world knows too has the name of that fault beside it, so that both can be drilled and their
conclusions compared. What is concluded of a failure is a ``Cause`` of the core, or one of ``OTHER``: of what is no
failure of an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gangrun.core.model import Cause

PASSES_AFTER_S = 15.0
CLOCK_JUMP_S, LATENCY_S = 6 * 3600.0, 0.5
NEW_SUPERVISOR, STORAGE_STALLED, PASSED_OVER = "new supervisor", "storage stalled", "checkpoint passed over"
SLOW_RANK, OTHER_ALERT, BAD_LOSS, NODE_FOUND = "slow rank", "other alert", "bad loss", "node found broken"
DRAINED, CANCELLED, NOTICED, SUSPECTED, NOTHING = "drained", "cancelled", "preempted", "node suspected", "nothing"
OTHER = (
    NEW_SUPERVISOR, STORAGE_STALLED, PASSED_OVER, SLOW_RANK, OTHER_ALERT, BAD_LOSS, NODE_FOUND, DRAINED, CANCELLED,
    NOTICED, SUSPECTED, NOTHING,
)  # fmt: skip


class DrillKind(Enum):
    """The vocabulary of plans."""

    KILL_RANK = "kill-rank"
    STOP_RANK = "stop-rank"
    SEGFAULT_RANK = "segfault-rank"
    SLOW_RANK = "slow-rank"
    OOM_RANK = "oom-rank"
    NAN_LOSS = "nan-loss"
    KILL_AGENT = "kill-agent"
    KILL_WARDEN = "kill-warden"
    KILL_SUPERVISOR = "kill-supervisor"
    STOP_SUPERVISOR = "stop-supervisor"
    STOP_NODE = "stop-node"
    POWER_OFF = "power-off"
    FULL_DISK = "full-disk"
    READ_ONLY_DISK = "read-only-disk"
    STALLED_DISK = "stalled-disk"
    TORN_CHECKPOINT = "torn-checkpoint"
    FLIPPED_CHECKPOINT = "flipped-checkpoint"
    MIXED_CHECKPOINT = "mixed-checkpoint"
    XID = "xid"
    ECC = "ecc"
    IB_DOWN = "ib-down"
    CUT = "cut"
    CUT_ONE_WAY = "cut-one-way"
    LATENCY = "latency"
    SCANCEL = "scancel"
    DRAIN = "drain"
    PREEMPT = "preempt"
    CLOCK_JUMP = "clock-jump"


class DrillPlace(Enum):
    """Where a kind can be done."""

    ANYWHERE = "any run of yours"
    LOCAL = "--local"  # it needs what only a run of its own has: mounts, a network, a played driver, the sample script
    SCHEDULED = "a Slurm run of yours"


@dataclass(frozen=True, slots=True)
class DrillRow:
    """One kind. ``simulated``: the name of the same fault in ``sim.faults.Kind``, "" if there is none."""

    does: str
    leads_to: str
    conclusions: frozenset[str]  # which of them are right
    place: DrillPlace = DrillPlace.ANYWHERE
    names_node: bool = True  # a right conclusion also names the node
    restarts: bool = True  # all ranks are started again
    ends: bool = False  # it ends the run
    noticed_s: float | None = None  # if it takes longer than other kinds by design: a hang, a trend
    simulated: str = ""
    refusal: str = ""  # why it cannot be done elsewhere


def _any(*found: Cause | str) -> frozenset[str]:
    return frozenset(one if isinstance(one, str) else one.value for one in found)


_OWN_MOUNTS = "the file system of a run that others may use is not touched; --local has one of its own"
_PLAYED = "it needs a driver that is played, which only a run of --local has"
_OWN_NETWORK = "the networks of real nodes belong to others; --local has one of its own"
_PASSES = f", for {PASSES_AFTER_S:g} s"
_FOR_A_WHILE = f" for {PASSES_AFTER_S:g} s, and kills a rank meanwhile"
_STALLED = "storage stalled; the ranks restart when the run directory can be written again"
_DAMAGES = "; then kills a rank, so that a checkpoint is loaded. The bytes are put back afterwards"

KINDS: Mapping[DrillKind, DrillRow] = {
    DrillKind.KILL_RANK: DrillRow(
        "Sends SIGKILL to one rank", "killed; all ranks restart", _any(Cause.KILLED), simulated="KILL_RANK"
    ),
    DrillKind.STOP_RANK: DrillRow(
        "Sends SIGSTOP to one rank, SIGCONT at the end of the drill", "hang that names the rank; all ranks restart",
        _any(Cause.HANG), noticed_s=300.0, simulated="PAUSE_RANK",
    ),
    DrillKind.SEGFAULT_RANK: DrillRow(
        "Sends SIGSEGV to one rank", "signal; all ranks restart", _any(Cause.SIGNAL)
    ),
    DrillKind.SLOW_RANK: DrillRow(
        "Stops one rank for half of the time, by SIGSTOP and SIGCONT",
        "alert that names the rank; no restart",
        _any(SLOW_RANK), restarts=False, noticed_s=900.0, simulated="SLOW_RANK",
    ),
    DrillKind.OOM_RANK: DrillRow(
        "Lowers the memory limit of one rank below what it holds, so that its next allocation fails",
        "out of memory or rank error; all ranks restart", _any(Cause.RANK_ERROR, Cause.OOM), simulated="OOM_RANK",
    ),
    DrillKind.NAN_LOSS: DrillRow(
        "Has the sample script report NaN as the loss of one rank", "numerical; all ranks go back to a checkpoint",
        _any(Cause.NUMERICAL), DrillPlace.LOCAL, noticed_s=30.0, refusal="your script reports its own loss",
    ),
    DrillKind.KILL_AGENT: DrillRow(
        "Sends SIGKILL to the agent of one node", "agent died; all ranks restart",
        _any(Cause.AGENT_DIED), simulated="KILL_AGENT",
    ),
    DrillKind.KILL_WARDEN: DrillRow(
        "Sends SIGKILL to the warden of one node", "agent died or node silent; all ranks restart",
        _any(Cause.AGENT_DIED, Cause.NODE_SILENT), simulated="KILL_WARDEN",
    ),
    DrillKind.KILL_SUPERVISOR: DrillRow(
        "Sends SIGKILL to the supervisor", "new supervisor; the ranks train on",
        _any(NEW_SUPERVISOR), names_node=False, restarts=False, noticed_s=30.0, simulated="KILL_SUPERVISOR",
    ),
    DrillKind.STOP_SUPERVISOR: DrillRow(
        "Sends SIGSTOP to the supervisor, SIGCONT at the end of the drill", "new supervisor; the ranks train on",
        _any(NEW_SUPERVISOR), names_node=False, restarts=False, noticed_s=30.0, simulated="PAUSE_SUPERVISOR",
    ),
    DrillKind.STOP_NODE: DrillRow(
        "Sends SIGSTOP to every process of one pretended host, SIGCONT at the end of the drill",
        "node silent; the ranks restart without it", _any(Cause.NODE_SILENT), DrillPlace.LOCAL,
        simulated="SUSPEND_NODE",
        refusal="only a pretended host of --local can be stopped as a whole",
    ),
    DrillKind.POWER_OFF: DrillRow(
        "Takes the power of one pretended host: its network is silent and none of its processes runs on",
        "node silent; the ranks restart without it", _any(Cause.NODE_SILENT), DrillPlace.LOCAL,
        simulated="KILL_NODE", refusal="real nodes belong to others; --local has pretended hosts",
    ),
    DrillKind.FULL_DISK: DrillRow(
        f"Fills the file system of the run directory{_FOR_A_WHILE}", _STALLED, _any(STORAGE_STALLED), DrillPlace.LOCAL,
        names_node=False, noticed_s=30.0, simulated="FS_FULL", refusal=_OWN_MOUNTS,
    ),
    DrillKind.READ_ONLY_DISK: DrillRow(
        f"Mounts the run directory read-only{_FOR_A_WHILE}", _STALLED, _any(STORAGE_STALLED), DrillPlace.LOCAL,
        names_node=False, noticed_s=30.0, simulated="FS_READ_ONLY", refusal=_OWN_MOUNTS,
    ),
    DrillKind.STALLED_DISK: DrillRow(
        f"Mounts a file system that never answers over the run directory{_FOR_A_WHILE}", _STALLED,
        _any(STORAGE_STALLED), DrillPlace.LOCAL, names_node=False, noticed_s=30.0, simulated="FS_STALL",
        refusal=_OWN_MOUNTS,
    ),
    DrillKind.TORN_CHECKPOINT: DrillRow(
        f"Cuts off the end of a file of the newest checkpoint{_DAMAGES}",
        "checkpoint passed over; the ranks resume from the one before", _any(PASSED_OVER), names_node=False,
        simulated="TEAR_CHECKPOINT",
    ),
    DrillKind.FLIPPED_CHECKPOINT: DrillRow(
        f"Flips a bit of the newest checkpoint{_DAMAGES}",
        "checkpoint passed over; the ranks resume from the one before", _any(PASSED_OVER), names_node=False,
        simulated="FLIP_CHECKPOINT",
    ),
    DrillKind.MIXED_CHECKPOINT: DrillRow(
        f"Copies a file of an older checkpoint into the newest one{_DAMAGES}",
        "checkpoint passed over; the ranks resume from the one before", _any(PASSED_OVER), names_node=False,
    ),
    DrillKind.XID: DrillRow(
        "Has the played driver report XID 79 of one GPU: it has fallen off the bus",
        "hardware; the ranks restart without that GPU", _any(Cause.HARDWARE), DrillPlace.LOCAL, noticed_s=30.0,
        simulated="BREAK_SLOT", refusal=_PLAYED,
    ),
    DrillKind.ECC: DrillRow(
        "Has the played driver count uncorrectable memory errors of one GPU",
        "hardware; the ranks restart without that GPU", _any(Cause.HARDWARE), DrillPlace.LOCAL, noticed_s=60.0,
        refusal=_PLAYED,
    ),
    DrillKind.IB_DOWN: DrillRow(
        "Takes a played InfiniBand port of one pretended host down", "hardware; the ranks restart without that host",
        _any(Cause.HARDWARE), DrillPlace.LOCAL, noticed_s=60.0, simulated="SICK",
        refusal="the ports of real nodes belong to others; --local has some that are played",
    ),
    DrillKind.CUT: DrillRow(
        f"Cuts one node off the network{_PASSES}", "node silent; the ranks restart without it",
        _any(Cause.NODE_SILENT), DrillPlace.LOCAL, simulated="CUT", refusal=_OWN_NETWORK,
    ),
    DrillKind.CUT_ONE_WAY: DrillRow(
        f"Drops all that one node sends{_PASSES}", "node silent; the ranks restart without it",
        _any(Cause.NODE_SILENT), DrillPlace.LOCAL, simulated="CUT_FROM", refusal=_OWN_NETWORK,
    ),
    DrillKind.LATENCY: DrillRow(
        f"Delays all that one node sends or gets by {LATENCY_S:g} s{_PASSES}",
        "nothing, or a suspect that recovers; no restart", _any(NOTHING, SUSPECTED), DrillPlace.LOCAL,
        names_node=False, restarts=False, simulated="DELAY", refusal=_OWN_NETWORK,
    ),
    DrillKind.SCANCEL: DrillRow(
        "Cancels the job from outside: scancel, or SIGTERM to gangrun run; this ends the run", "cancelled; no restart",
        _any(CANCELLED), names_node=False, restarts=False, ends=True, noticed_s=30.0, simulated="SCANCEL",
    ),
    DrillKind.DRAIN: DrillRow(
        "Asks for a drain of one node, as gangrun drain does", "drained; the ranks move to another node",
        _any(DRAINED), noticed_s=10.0, simulated="DRAIN",
    ),
    DrillKind.PREEMPT: DrillRow(
        "Requeues the job through scontrol requeue, as Slurm does with a job that it preempts (--requeue same-job)",
        "preempted; the ranks stop in order, and the run goes on when the job has nodes again", _any(NOTICED),
        DrillPlace.SCHEDULED, names_node=False, noticed_s=60.0,
        refusal="nothing preempts a run on one machine",
    ),
    DrillKind.CLOCK_JUMP: DrillRow(
        f"Sets the wall clock of all processes of the run {CLOCK_JUMP_S / 3600:g} hours ahead, and back after "
        f"{PASSES_AFTER_S:g} s", "nothing: no decision rests on the wall clock", _any(NOTHING),
        DrillPlace.LOCAL, names_node=False, restarts=False, simulated="WALL_JUMP",
        refusal="all processes of a machine share its wall clock; only a run of --local has one that is played",
    ),
}  # fmt: skip
# ``PASSES`` are undone after a while: a run directory that cannot be written holds no record of that before.
DISK_KINDS = frozenset({DrillKind.FULL_DISK, DrillKind.READ_ONLY_DISK, DrillKind.STALLED_DISK})
MOUNT_KINDS = DISK_KINDS | {DrillKind.IB_DOWN}  # each needs a mount table of its own
_CUTS = frozenset({DrillKind.CUT, DrillKind.CUT_ONE_WAY, DrillKind.LATENCY})
NETWORK_KINDS = _CUTS | {DrillKind.POWER_OFF}  # each needs a network of its own
PASSES = DISK_KINDS | _CUTS | {DrillKind.CLOCK_JUMP}
OWN_RUN_WORDS = (
    "With --local each drill strikes a run of its own: three pretended hosts of one rank each, of which two are enough."
    " For xid and ecc it is one host with four played GPUs, two or three ranks and one spare GPU."
)
LOCAL_KINDS = tuple(kind for kind, row in KINDS.items() if row.place in (DrillPlace.ANYWHERE, DrillPlace.LOCAL))


def refusal_of(kind: DrillKind, *, local: bool) -> str:
    """Why this kind cannot be done to such a run; "" if it can."""
    row = KINDS[kind]
    match row.place:
        case DrillPlace.LOCAL if not local:
            return row.refusal
        case DrillPlace.SCHEDULED if local:
            return row.refusal
        case _:
            return ""
