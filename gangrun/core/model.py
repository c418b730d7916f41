"""The nouns of a run, as frozen values; what is seen around a failure is in ``core.evidence``.

Everything here is immutable by convention too: a mapping inside a value is replaced, never changed in place.
All times named ``at``, ``since`` or ``until`` are seconds on the run clock (see ``docs/protocol.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from gangrun.core.evidence import (
    Evidence,
    NodeFinding,
    Reported,
    SeenAlert,
    SeenAnomaly,
    SeenDataChange,
    SeenDivergence,
)
from gangrun.core.versions import Ranks


class Phase(Enum):
    """Where a run stands; the values are what users read."""

    PENDING = "PENDING"  # waiting for nodes to join
    CHECKING = "CHECKING"  # nodes prove themselves before the gang starts
    STARTING = "STARTING"  # sealing, choosing the resume point, launching
    RUNNING = "RUNNING"  # all ranks are alive
    STOPPING = "STOPPING"  # all ranks are being stopped; evidence is gathered
    WAITING = "WAITING"  # back-off, or waiting for storage or nodes: always with a deadline
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIME_UP = "TIME_UP"  # all of its total training time is used: saved, stopped, and not finished


TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.TIME_UP})
# The code with which a run that has ended leaves: the same for jobs, for ``run`` and for viewers.
EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.CANCELLED: 130, Phase.TIME_UP: 124}  # 124 as timeout(1)


class StartStage(Enum):
    """What STARTING is waiting for."""

    SEALING = "sealing"
    CHOOSING = "choosing"
    LAUNCHING = "launching"


class After(Enum):
    """What follows once all ranks are down."""

    JUDGE = "judge"  # weigh the evidence, then choose a rung
    MOVE = "move"  # a suspect that still works makes room: start again, free of charge
    AGAIN = "again"  # nobody's fault (a port was taken): start again, free of charge
    SUCCEED = "succeed"
    CANCEL = "cancel"
    REQUEUE = "requeue"  # preemption or time limit: the job goes, the run goes on
    RETURN = "return"  # the same job comes back by itself
    TIME_UP = "time up"  # all of the run's training time is used


class Rung(Enum):
    """By what means the run went on."""

    RESTART = "restart"  # in place: the same ranks on the same nodes
    MOVE = "move"  # the same nodes, and some ranks changed places
    SWAP = "swap"  # other nodes, as many ranks
    SHRINK = "shrink"
    GROW = "grow"
    REQUEUE = "requeue"  # another job
    END = "end"  # by none: the run ended


class Failure(Enum):
    """Whose the failure is, as ``status --json`` names it."""

    SCRIPT = "script"
    NODE = "node"
    STORAGE = "storage"
    SCHEDULER = "scheduler"
    BUDGET = "budget"


class Cause(Enum):
    """What a verdict concluded; each has its own line in the retry budget."""

    RANK_ERROR = "rank error"  # a Python exception or a non-zero exit of its own
    SIGNAL = "signal"  # killed by a signal that nobody explained
    OOM = "out of memory"
    HANG = "hang"
    NODE_SILENT = "node silent"
    HARDWARE = "hardware"
    AGENT_DIED = "agent died"
    START_FAILED = "start failed"
    VICTIMS_ONLY = "collective error"  # every report is a victim's: the culprit is not known
    LEFT_EARLY = "left early"  # exit 0 while the others ran on
    SAME_AGAIN = "same failure again"
    POISONED = "poisoned checkpoint"  # the same failure, and only of those who loaded this one
    STARTED_OVER = "started over"
    STORAGE = "storage"
    USAGE = "usage"  # wrong arguments, or a script or module that Python cannot read
    ENVIRONMENT = "environment"  # what is installed does not fit, on all nodes
    GPU_MEMORY = "gpu memory"
    FOREIGN_PROCESS = "foreign process"  # another program holds the GPU's memory
    LOCAL_DISK = "local disk"
    CPU = "cpu"  # an instruction that the CPU of one node does not have
    NETWORK = "network"
    SERVICE = "service"  # one outside the gang does not answer
    PORT = "port"  # it is in use
    TEARDOWN = "teardown"  # a crash of the interpreter as it ended
    KILLED = "killed"  # by a signal from outside
    NUMERICAL = "numerical"  # the loss is not finite or blew up
    DATA = "data"  # the same, at the same batches again
    SILENT_CORRUPTION = "silent corruption"  # copies of the same numbers differ


class Cure(Enum):
    """What follows from a failure whose text is known."""

    RESTART = "restart; a rank that falls first twice is moved to another node once"
    ONCE = "restart once; the same again ends the run"
    END = "end the run, if it made no progress"
    WAIT = "wait and try again until the budget is spent"
    EXCLUDE = "exclude the node if another can take its place"
    TEST = "restart, and test the node"
    MOVE = "move the rank to another node"
    VICTIM = "look for the rank that others lost"
    MEET = "look for the rank that others lost; if none is found, test the network between the nodes"


class OnAnomaly(str, Enum):
    """What is done about a loss that is not finite or blew up, and stays so."""

    ALERT = "alert"
    CHECKPOINT = "checkpoint"
    ROLLBACK = "rollback"


class OnSlowRank(str, Enum):
    """What is done about a rank or a GPU that slows all ranks down."""

    ALERT = "alert"
    MOVE = "move"


class OnDataChange(str, Enum):
    """What is done about data that changed under a resumed run; OFF: nobody looks."""

    OFF = "off"
    ALERT = "alert"
    STOP = "stop"


class Level(Enum):
    """How far a checkpoint has been proven."""

    COMPLETE = "complete"
    VERIFIED = "verified"


class Savers(Enum):
    """Which ranks write checkpoints that only their node's lease keeps from a later attempt."""

    CHECKPOINTER = "checkpointer"  # none: gangrun's own renames out of staging, which a seal stops
    RANK0 = "rank0"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which incarnation of which agent said it; ``seq`` counts within the incarnation."""

    job: str
    node: str
    boot_id: str
    incarnation: str
    seq: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The unit of placement: a node, or a GPU on one box."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot with the ranks it holds: ``first_rank .. first_rank + ranks_count - 1``."""

    slot: Slot
    first_rank: int
    ranks_count: int

    @property
    def ranks(self) -> range:
        """The ranks that it holds."""
        return range(self.first_rank, self.first_rank + self.ranks_count)


@dataclass(frozen=True)  # without slots, so that what it derives is kept: each event asks for it, and it is long
class Placement:
    """Which slots hold which ranks; seats are in rank order and ranks of a node are contiguous."""

    seats: tuple[Seat, ...]
    world_size: int

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in rank order, each once."""
        return tuple(self._nodes)

    @cached_property
    def _nodes(self) -> dict[str, None]:
        return dict.fromkeys(seat.slot.node for seat in self.seats)

    def holds(self, node: str) -> bool:
        """Does this node hold ranks?"""
        return node in self._nodes


@dataclass(frozen=True, slots=True)
class Shape:
    """What the user asked for: how many nodes, and how many slots and ranks on each."""

    nodes_count: int
    nodes_min_count: int
    slots_per_node: int  # local box: one per rank; under a scheduler: 1
    ranks_per_slot: int
    slots_min_per_node: int = 0  # so many are enough if slots break; 0: all of them are needed
    world_multiple: int = 1  # the number of ranks is always a multiple of it: of tensor times pipeline parallel ranks

    @property
    def slots_needed(self) -> int:
        """How many slots a node must have to be used."""
        return self.slots_min_per_node or self.slots_per_node


@dataclass(frozen=True, slots=True)
class RankAlive:
    """One live rank in an agent's inventory."""

    rank: int
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """What an agent holds: the newest attempt it was told to run (-1: none) and the ranks of it alive now."""

    node: str
    attempt: int
    ranks: tuple[RankAlive, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenSlot:
    """A slot that no rank gets as long as its node does not boot: its number, its name for people, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Node:
    """One host of the job, as the supervisor knows it."""

    name: str
    incarnation: str
    boot_id: str
    slots_count: int
    silent_since: float | None = None
    lost: bool = False
    checked: bool | None = None  # None: not yet checked in this job
    check_reason: str = ""
    found: NodeFinding | None = None  # the fatal finding for which it is not used
    poor: str = ""  # why another node would be better, where one is free
    due: str = ""  # why it is relieved at the next checkpoint, where one is
    trial: str = ""  # why its devices are put to work before it is used again
    tested: str = ""  # what they did when they were put to work last, where all came out right
    taken: str = ""  # how the scheduler took it out of this job, if it did
    addresses: tuple[str, ...] = ()  # of its interfaces: error texts name them
    refill: int = 0  # which refill brought it; 0: it is the job's own. Only those have a voice in who is supervisor
    broken_slots: tuple[BrokenSlot, ...] = ()
    slow: str = ""  # why it is set aside where another node is free: its ranks are slower than their peers

    @property
    def is_doubtful(self) -> bool:
        """Would any node without a mark be better?"""
        return bool(self.poor or self.slow)

    @property
    def away(self) -> bool:
        """Is it silent or lost?"""
        return self.lost or self.silent_since is not None

    @property
    def counts(self) -> bool:
        """Does its agent's word count for a majority? A node that a refill brought belongs to another job."""
        return not self.lost and not self.refill

    @property
    def whole_slots(self) -> tuple[int, ...]:
        """The slots that ranks may get, ascending."""
        broken = {one.index for one in self.broken_slots}
        return tuple(index for index in range(self.slots_count) if index not in broken)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was concluded: the cause, whose failure it is, and the nodes to blame (often none)."""

    cause: Cause
    failure: Failure
    blamed: tuple[str, ...]
    suspects: tuple[str, ...]  # looked innocent, but it fell there first
    signature: str  # "" when there is nothing that could repeat
    sentence: str
    final: bool = False  # no other node would cure it
    cure: Cure = Cure.RESTART
    rank: int = -1  # the one that fell first, if it may be its node's fault or its own
    moves: bool = False  # that rank goes to another node, to tell the two apart
    cleared: tuple[str, ...] = ()  # nodes that are innocent after all
    broken_rank: int = -1  # the slot of this rank is blamed instead of its node, which can do without it


@dataclass(frozen=True, slots=True)
class Absence:
    """Why no agent comes from a node; ``scheduler``: it could start nothing there, else what it started failed;
    ``taken``: the scheduler took it out of the job.
    """

    why: str
    scheduler: bool = False
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that the gang may not use, why, and until when."""

    reason: str
    since: float
    until: float
    hardware: bool = False  # something broke there, as was measured: other runs do without it too
    boot_id: str = ""  # only another boot than this one counts as a cure; "": time does
    returns_count: int = 0  # so often it was taken back before its time was up, after another boot
    seen_at: float = 0.0  # when it was last seen in the boot that was bad, in a later job; 0: not since
    shows_reset: bool = False  # clean checks in the same boot are a cure, too: they would still see what was wrong
    drained_by: str = ""  # the person who wants the node left; no cap counts it
    silent: bool = False  # it was silent and no more: heard again, with clean checks, it is used again


@dataclass(frozen=True, slots=True)
class Move:
    """A rank that fell first on one node runs on another node once, to tell the node from the code."""

    rank: int
    node: str  # on which it fell
    other: str  # on which it runs next
    attempt: int  # after which it was moved
    step: int  # the highest that the run had reached, -1 unknown
    signature: str
    times: int = 2  # how often ranks had fallen first on that node
    of_connections: bool = False  # it lost those to its peers, and told no more
    is_whole_node: bool = False  # all of the node's several ranks fell, and none because we stopped it
    excluded: bool = False  # the run came past the step, so the node was excluded: until the rank falls elsewhere too


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step of all ranks took, the median over ``steps_count`` of them."""

    step_s: float
    steps_count: int


@dataclass(frozen=True, slots=True)
class Race:
    """The ranks of a slow node run on another one, to tell that node from what its ranks do."""

    node: str  # that was slow
    other: str  # that took its place
    ranks: tuple[int, ...]
    attempt: int  # the last one before the move
    before: StepTime  # in that attempt
    lost_share: float  # of each step, for which the others waited for a rank of the node


@dataclass(frozen=True, slots=True)
class Races:
    """What compared nodes have shown in this run; see ``core.nodes.race``."""

    open: Race | None = None  # whose outcome is not known yet
    back: Race | None = None  # its ranks were slower on the other node, and go back at the next checkpoint
    followed: tuple[int, ...] = ()  # ranks that were as slow on another node: they are not moved for it again
    world_size: int = 0  # of the gang in which that is true


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """A save in the memory of nodes. The attempt that made it and the nonce tell it from others of the same step."""

    attempt: int
    step: int
    nonce: str
    is_shared: bool = False  # no node need have all of it: ranks that load it send each other what is missing
    lacking: tuple[str, ...] = ()  # of a shared one: nodes that will have ranks, and have no part of it


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A save that is not on disk. Each of these nodes has it whole in its memory, or all together if it is shared."""

    save: MemoryStep
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A valid checkpoint: the step it resumes from, where it is, how far it was proven."""

    step: int
    path: str  # "" of one that is in memory only
    level: Level
    savers: Savers | None = None  # of checkpoints in this format; None: not known
    memory: MemoryStep | None = None  # it is loaded from there


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A checkpoint after the loading of which, and of no other, the same failure came again and again."""

    step: int
    path: str
    signature: str
    attempt: int  # the last one that loaded it
    why: str
    failed: str  # the newest of these failures: the end of its traceback, or what is known
    level: Level = Level.COMPLETE  # as it was when it was loaded
    since_step: int = -1  # it was saved between the loading of that one and the failure, so that goes too; -1: of none

    @property
    def first_step(self) -> int:
        """What is at this step or above it is of the same state, and set aside with it."""
        return self.step if self.since_step < 0 else self.since_step


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment at which something must have happened; a stale generation is ignored."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class Bringing:
    """The job's end waits until the newest step in its nodes' memory is on disk."""

    attempt: int  # whose steps
    nodes: tuple[str, ...]  # that are asked
    then: Phase  # which phase follows: the end, WAITING for the next job, PENDING where this one comes back
    reason: str  # why


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One start of the gang, for ``status``."""

    number: int
    job: str
    nodes: tuple[str, ...]
    started: float
    ended: float | None = None
    outcome: str = ""
    reason: str = ""
    resumed_from_step: int | None = None
    last_step: int = -1  # the highest one seen in it, once it has ended
    first_told: int = -1  # the first one that ranks reported or printed; a print may count from 1 in each attempt
    last_told: int = -1  # the highest of these, once it has ended
    memory: MemoryStep | None = None  # that it began from, if that was in memory only


@dataclass(frozen=True, slots=True)
class Sighting:
    """One remembered failure, to know it when it comes again."""

    signature: str
    attempt: int
    step: int  # highest step seen in that attempt, -1 unknown
    nodes: tuple[str, ...]  # where it showed first
    loaded_step: int = -1  # of the checkpoint that the attempt had loaded, -1 none


@dataclass(frozen=True, slots=True)
class Budget:
    """Retries used since the last progress, by cause; ``mark`` is the step that progress is measured from."""

    used: Mapping[str, int] = field(default_factory=dict)
    total_count: int = 0  # restarts over the whole run, never refilled: shown to people
    mark: int = -1
    sightings: tuple[Sighting, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The newest start of all ranks."""

    number: int = -1
    placement: Placement | None = None
    resume: CheckpointRef | None = None
    evidence: Evidence = field(default_factory=Evidence)
    finished: Ranks = field(default_factory=Ranks)  # that ended with 0
    stopped: Ranks = field(default_factory=Ranks)  # that we stopped, and that said what they had written
    step: int = -1  # highest step seen in it
    printed_step: int = -1  # highest step that ranks printed in it
    reach: int = -1  # highest step that ranks which ended with 0 may have done, as their lines go
    crashed_count: int = 0  # of the finished, whose processes crashed after the script's end
    total_steps: int = -1  # of the whole run, as ranks that ended told
    loss: float | str | None = None  # the last that the lowest rank told which ended ...
    loss_rank: int = -1  # ... this one
    ready_s: float = 0.0  # from the launch to the first step that ranks told; 0: not known


class RefillStage(Enum):
    """How far a refill is."""

    ASKED = "asked"  # the scheduler has not confirmed it
    QUEUED = "queued"  # it is in the queue, or its node has not joined yet
    HERE = "here"  # its node has joined


@dataclass(frozen=True, slots=True)
class Refill:
    """A small job of the run that brings one node to this job. Its number is used once in a run."""

    number: int
    since: float  # when it was asked for
    stage: RefillStage = RefillStage.ASKED
    job: str = ""  # the scheduler's number, once known
    waits: str = ""  # why it waits, in the scheduler's words
    node: str = ""  # that it brought


@dataclass(frozen=True, slots=True)
class Roster:
    """The nodes of this job."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    expected: tuple[str, ...] = ()  # all nodes of this job, spares too; (): not known
    absent: Mapping[str, Absence] = field(default_factory=dict)
    alone: bool = False  # no agent of this job lives, and none will come
    waited_for_nodes: bool = False  # once since the last launch; a second time nobody is waited for
    refills: tuple[Refill, ...] = ()  # that are wanted, oldest first
    refills_count: int = 0  # that the run has asked for, in all jobs: their numbers
    refill_failures_count: int = 0  # in a row that brought no node of use to this job
    refill_failed_at: float = 0.0  # the newest of them
    refills_off: bool = False  # a person ended one, or none can be had in this job
    refill_until: float = 0.0  # until then the job holds its nodes for a refill; 0: it has not begun to wait


@dataclass(frozen=True, slots=True)
class Met:
    """How one node got through to another; ``error``: why it did not."""

    partner: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class NetworkTest:
    """Nodes that meet in pairs before the next attempt, the most suspected first, and what came of it so far."""

    nodes: tuple[str, ...]
    met: Mapping[str, tuple[Met, ...]] = field(default_factory=dict)  # of those that have answered


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What is remembered of nodes from one job to the next."""

    suspicion: Mapping[str, int] = field(default_factory=dict)
    suspected_at: Mapping[str, float] = field(default_factory=dict)  # when last: suspicion fades
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)
    reports: Mapping[str, Reported] = field(default_factory=dict)  # of GPUs' drivers, by GPU and number
    move: Move | None = None  # whose outcome is open
    network: NetworkTest | None = None  # whose outcome is open


@dataclass(frozen=True, slots=True)
class Fence:
    """Until then ranks of an earlier gang may live on these nodes, and nothing shows that they can do no harm."""

    until: float = 0.0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """What the run has saved, what it may resume from, and how far it got."""

    newest: CheckpointRef | None = None  # of those in use
    best_step: int = -1  # highest step of a checkpoint that was valid
    observed_step: int = -1  # highest step seen in any attempt
    logged_step: int = -1  # highest step that ranks printed in any attempt; it may count from 1 in each of them
    steps_told: bool = False  # an earlier attempt reported steps, so one that reports none did not get to any
    resume_request: str = "auto"  # auto | none | a step | a path; "auto" again after the first attempt
    condemned: Poisoned | None = None  # the next choice sets it aside
    poisoned: tuple[Poisoned, ...] = ()  # were set aside
    cleared: tuple[str, ...] = ()  # paths of those that were, and are to be put back
    brought_attempt: int = -1  # steps of attempts up to this one are not brought from memory any more
    held: HeldStep | None = None  # that the attempt which is being started may load instead of what is on disk
    savers: Savers | None = None  # as the newest one's format tells; None: none was seen

    @property
    def disk_step(self) -> int:
        """Of the newest checkpoint that is in use, as far as is known; after a step back it is below ``best_step``."""
        return self.best_step if self.newest is None else self.newest.step


@dataclass(frozen=True, slots=True)
class Underway:
    """What the phase is doing. It is over with the phase."""

    stage: StartStage | None = None  # STARTING
    after: After | None = None  # STOPPING: what follows
    saving: bool = False  # STOPPING: ranks were told to save first
    hurried: bool = False  # STOPPING: asked to stop a second time: nothing is waited for
    bringing: Bringing | None = None  # WAITING: what was decided and waits for it
    submitting: bool = False  # WAITING: a successor was asked for and not yet confirmed


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run or its job ends."""

    failure: Failure | None = None
    cancelled_by: str = ""
    leaving: bool = False  # the run goes on in another job: all that is left for this one is to end
    gone_at: float | None = None  # the scheduler takes the nodes away then
    measured_save_s: float = 0.0  # what a save takes, as it was known when that was told; 0: not known


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """How long all ranks have run, over all jobs. Starts, stops, waits and the queue are no part of it."""

    trained_s: float = 0.0  # in stretches that are over
    running_since: float | None = None  # the one that is not


@dataclass(frozen=True, slots=True)
class Timers:
    """The moments that are waited for, by name."""

    deadlines: Mapping[str, Deadline] = field(default_factory=dict)
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """All that the supervisor knows. The journal's snapshot is exactly this, without the groups (``wire.record``)."""

    run: str
    shape: Shape
    job: str = ""
    seq: int = 0  # place in the sequence of jobs
    term: int = 0
    phase: Phase = Phase.PENDING
    reason: str = ""
    updated_at: float = 0.0
    underway: Underway = Underway()
    timers: Timers = field(default_factory=Timers)
    attempt: Attempt = field(default_factory=Attempt)
    attempts: tuple[AttemptRecord, ...] = ()
    roster: Roster = field(default_factory=Roster)
    health: NodeHealth = field(default_factory=NodeHealth)
    race: Races = Races()
    fence: Fence = Fence()
    checkpoints: SavedProgress = SavedProgress()
    budget: Budget = Budget()
    ending: Ending = Ending()
    training: TrainingTime = TrainingTime()
    tries_count: int = 0  # repeated waits for one and the same thing (storage, a stop, a submission)
    store_stalled_since: float | None = None
    marks: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # node -> (incarnation, newest seq)
    anomalies: tuple[SeenAnomaly, ...] = ()  # of the training's numbers, oldest first
    divergences: tuple[SeenDivergence, ...] = ()  # of copies that ranks compared, oldest first
    data_changes: tuple[SeenDataChange, ...] = ()  # that resumed attempts found, oldest first
    alerts: tuple[SeenAlert, ...] = ()  # of its speed and resources, oldest first
    slowing: tuple[NodeFinding, ...] = ()  # findings that may explain why a rank is slow, oldest first


class Outcome(Enum):
    """What became of an event."""

    APPLIED = "applied"
    IGNORED = "ignored"  # stale: a duplicate, another attempt, another incarnation
    REFUSED = "refused"  # illegal in this phase; nothing changed
