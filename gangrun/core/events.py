"""Everything that can happen to a run.

Past tense, one frozen value each. ``Stamped`` adds who said it; ``filter`` drops what is stale before the table in
``lifecycle`` sees it. Heartbeats are not here: they are a table, judged at deadlines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gangrun.core.evidence import Alert, Anomaly, NodeFinding, RankExit, RankObservation, RankStack, SelfChecks
from gangrun.core.model import BrokenSlot, CheckpointRef, Inventory, MemoryStep, Met, Origin, StepTime


class NoticeKind(Enum):
    """Why the scheduler (or the user's Ctrl-C) wants us gone."""

    CANCEL = "cancelled"
    PREEMPTION = "preempted"
    REQUEUE = "requeued"
    TIME_LIMIT = "time limit"
    MAINTENANCE = "maintenance"
    BATCH_DIED = "its batch script died"  # or its first node did, which ends the job: nobody asked for that
    UNKNOWN = "unknown"  # means stop


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent said hello for the first time in this job."""

    node: str
    incarnation: str
    boot_id: str
    slots_count: int
    addresses: tuple[str, ...] = ()
    refill: int = 0  # which refill brought its node; 0: it is the job's own


@dataclass(frozen=True, slots=True)
class AgentRejoined:
    """A new incarnation of a known agent: the ranks it had are dead, its warden saw to that."""

    node: str
    incarnation: str
    boot_id: str
    slots_count: int
    why: str = ""
    addresses: tuple[str, ...] = ()
    refill: int = 0


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """No beat for ``silence_after_s``: a suspect, not a reason to stop. ``NodeLost`` follows if it comes to that."""

    node: str
    since: float


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A silent node counts as gone: progress halted too, or the probes failed, or its lease is over (``why``)."""

    node: str
    since: float
    why: str


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A silent node beats again."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeAbsent:
    """No agent will come from this node: the job's launcher knows it (``scheduler``: it could start nothing there), or
    the scheduler has taken the node out of the job (``taken``), whatever runs there.
    """

    node: str
    why: str
    scheduler: bool = False
    taken: bool = False


@dataclass(frozen=True, slots=True)
class NodeChecked:
    """Preflight of one node ended. ``tested``: what its devices did, where all that they were put to came out right.
    ``met``: how it got through to other nodes, if that was asked. ``broken``: the slots that no rank may get.
    """

    node: str
    ok: bool
    reason: str = ""
    tested: str = ""
    met: tuple[Met, ...] = ()
    broken: tuple[BrokenSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class FindingRaised:
    """A check on a node measured something."""

    finding: NodeFinding


@dataclass(frozen=True, slots=True)
class AttemptSealed:
    """Staging of all attempts before ``attempt`` is sealed; ``commits`` are (step, nonce) that stand."""

    attempt: int
    commits: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ResumeChosen:
    """The resume point of ``attempt``; ``checkpoint`` None means from the beginning, which ``reason`` justifies."""

    attempt: int
    checkpoint: CheckpointRef | None
    reason: str
    passed_over: tuple[tuple[int, str], ...] = ()  # (step, why not)


@dataclass(frozen=True, slots=True)
class NoneValid:
    """No checkpoint may be resumed from though some were committed, or (``storage``) nobody could tell."""

    attempt: int
    reason: str
    storage: bool = False


@dataclass(frozen=True, slots=True)
class GangStarted:
    """Every node has launched its ranks of ``attempt``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class GangStartFailed:
    """Some node could not start its ranks. ``retry_free``: nobody's fault (a port was taken)."""

    attempt: int
    node: str
    why: str
    retry_free: bool = False


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank ended with other than 0."""

    attempt: int
    exit: RankExit


@dataclass(frozen=True, slots=True)
class RankFinished:
    """A rank ended with 0."""

    attempt: int
    rank: int
    node: str
    at: float
    step: int = -1  # the last step that it reported
    log_reach: int = -1  # the highest that it may have done, as its lines go; -1: it reported steps, or printed none
    log_step: int = -1  # the last step that it printed, if it reported none
    total_steps: int = -1  # of the whole run, as it reported or printed
    loss: float | str | None = None  # the last that it told; what JSON cannot hold is a word
    anomalies: tuple[Anomaly, ...] = ()  # of its loss and gradient norm, over the whole attempt
    checks: SelfChecks | None = None  # what its own checks found


@dataclass(frozen=True, slots=True)
class FirstStepSeen:
    """The first step that any rank of ``attempt`` reported, printed, or wrote into a file of its framework.

    ``printed``: it stood in a line, of ``total_steps`` steps (-1: it names none), and may count from 1 in each attempt.
    ``written``: a file told it, which may be far behind.
    """

    attempt: int
    step: int
    printed: bool = False
    total_steps: int = -1
    written: bool = False


@dataclass(frozen=True, slots=True)
class ProgressMarked:
    """The gang got to ``step``; sent at most once per ``progress_mark_every_s``. ``printed``: nobody reported it.
    ``total_steps``: of the whole run, as ranks or their framework's files tell.
    """

    attempt: int
    step: int
    printed: bool = False
    total_steps: int = -1
    loss: float | str | None = None  # the newest that is known; what JSON cannot hold is a word


@dataclass(frozen=True, slots=True)
class AnomalySeen:
    """The supervisor's table: the loss or the gradient norm went bad on ``rank`` first, or it lasts by now."""

    attempt: int
    rank: int
    node: str
    anomaly: Anomaly
    ranks_count: int = 1  # that report it


@dataclass(frozen=True, slots=True)
class SelfCheckFailed:
    """The supervisor's table: a check in the script found something, as ``rank`` tells."""

    attempt: int
    rank: int
    node: str
    checks: SelfChecks


@dataclass(frozen=True, slots=True)
class AlertSeen:
    """The supervisor's table: a rank is slow, the training slows down, a node fills up; or that is over."""

    attempt: int
    alert: Alert
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class StepsTimed:
    """The supervisor's table: the first ``steps_count`` warm steps of the attempt took ``step_s`` each, their median.
    It is told only if a slow node is being compared with the one that took its place.
    """

    attempt: int
    step_s: float
    steps_count: int


@dataclass(frozen=True, slots=True)
class ProgressStalled:
    """No sign of progress from any rank for longer than the learnt limit."""

    attempt: int
    stalled_s: float
    limit_s: float
    observations: tuple[RankObservation, ...]


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """Where all ranks stood; follows ``TakeStacks``."""

    attempt: int
    stacks: tuple[RankStack, ...]


@dataclass(frozen=True, slots=True)
class GangStopped:
    """No rank of ``attempt`` lives. ``presumed``: (node, by which rule) where no report said so.

    ``overdue``: ranks that were killed because they had not ended ``grace_s`` after SIGTERM. ``saved_step``: the newest
    step that the script saved because this stop asked for it; -1: none.
    """

    attempt: int
    presumed: tuple[tuple[str, str], ...] = ()
    leftovers: tuple[str, ...] = ()
    overdue: tuple[int, ...] = ()
    grace_s: float = 0.0
    saved_step: int = -1


@dataclass(frozen=True, slots=True)
class StopTimedOut:
    """A node answers but cannot kill its ranks (D state)."""

    attempt: int
    node: str
    processes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A checkpoint newer than any known was committed and judged valid."""

    checkpoint: CheckpointRef
    told: bool = False  # it was not there yet when ranks were told to save
    job_left_s: float | None = None  # until the time limit of this job; None: it has none, or nobody knows it
    step_time: StepTime | None = None  # of the gang's newest steps; None: not known, or nobody races stragglers


@dataclass(frozen=True, slots=True)
class StepBrought:
    """From the memory of ``nodes`` a step of ``attempt`` came to the disk, or did not (``why``); -1: there is none."""

    attempt: int
    step: int = -1
    nodes: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class StepHeld:
    """Each of ``nodes`` has this save whole in its memory: ``attempt``, which is being started, may load it there."""

    attempt: int
    save: MemoryStep
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlushDue:
    """The disk has had nothing new for as long as it may, and memory has: ``step``."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class SaveRequested:
    """``gangrun checkpoint``: ranks save and train on. ``key`` names the order, for whoever waits for its answer."""

    by: str
    key: str


@dataclass(frozen=True, slots=True)
class SaveAnswered:
    """All ranks that read requests saved ``step``; or ``why`` they did not."""

    attempt: int
    key: str
    step: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """``gangrun drain``: the ranks of a node move off it, and it gets none any more. ``key`` names the order."""

    node: str
    by: str
    key: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Someone asked for the end: Ctrl-C in ``run``, ``gangrun cancel``, scancel. ``now``: without a save or a grace."""

    by: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """The scheduler gives time before it takes the nodes. REQUEUE: the same job comes back by itself.

    ``asking``: an agent was told to end, and the scheduler is being asked why; what it answers is the notice.
    ``save_s``: what a save takes, as far as the run has measured it; 0: not known. ``about``: more of why, in words.
    """

    kind: NoticeKind
    grace_s: float
    asking: bool = False
    save_s: float = 0.0
    about: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """``gangrun resume``: after a fix, a cancel or a spent budget."""

    by: str
    job: str
    seq: int
    resume_request: str = "auto"


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A deadline of ``state.timers.deadlines`` is due."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class StoreStalled:
    """The journal's file system has not answered since ``since``."""

    since: float


@dataclass(frozen=True, slots=True)
class StoreBack:
    """The journal's file system answers again."""

    stalled_s: float


@dataclass(frozen=True, slots=True)
class TermTaken:
    """A new supervisor holds ``term`` and has asked around. ``highest_attempt`` is over journal, tickets and agents."""

    term: int
    job: str
    inventories: tuple[Inventory, ...]
    missing: tuple[str, ...]  # roster nodes that have not answered
    highest_attempt: int
    expected: tuple[str, ...] = ()  # all nodes of the job; (): not known
    alone: bool = False  # all that the job had on its nodes has ended, and nothing will be started there again
    seq: int = 0  # the job's place in the run: above what was asked for, where a person asked


@dataclass(frozen=True, slots=True)
class ActDone:
    """An act that left the process succeeded. ``same_job``: the next job is this one, come back by itself. ``booted``:
    nodes that were left out and may come again, since the scheduler says that they have booted.
    """

    act: tuple[int, int]
    what: str
    same_job: bool = False
    booted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActFailed:
    """An act was refused or failed; it did not happen."""

    act: tuple[int, int]
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ActUnknown:
    """Nobody knows yet whether the act happened (a timeout)."""

    act: tuple[int, int]
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class RefillQueued:
    """A refill is in the queue, or has its node. ``waits``: why it waits, in the scheduler's words."""

    number: int
    job: str
    waits: str = ""


@dataclass(frozen=True, slots=True)
class RefillUnknown:
    """Nobody knows yet whether a refill was made: a timeout, and nothing in the queue afterwards."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class RefillEnded:
    """A refill was refused, or its job is over. ``cancelled``: a person ended it (scancel)."""

    number: int
    why: str
    cancelled: bool = False


Event = (
    AgentJoined
    | AgentRejoined
    | NodeSilent
    | NodeLost
    | NodeHeard
    | NodeAbsent
    | NodeChecked
    | FindingRaised
    | AttemptSealed
    | ResumeChosen
    | NoneValid
    | GangStarted
    | GangStartFailed
    | RankExited
    | RankFinished
    | FirstStepSeen
    | ProgressMarked
    | AnomalySeen
    | SelfCheckFailed
    | AlertSeen
    | StepsTimed
    | ProgressStalled
    | StacksTaken
    | GangStopped
    | StopTimedOut
    | CheckpointSeen
    | StepBrought
    | StepHeld
    | FlushDue
    | SaveRequested
    | DrainRequested
    | SaveAnswered
    | CancelRequested
    | Notice
    | ResumeRequested
    | DeadlinePassed
    | StoreStalled
    | StoreBack
    | TermTaken
    | ActDone
    | ActFailed
    | ActUnknown
    | RefillQueued
    | RefillUnknown
    | RefillEnded
)


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event and who said it; ``origin`` None: the supervisor itself (timers, outcomes, its own tables)."""

    event: Event
    origin: Origin | None = None
