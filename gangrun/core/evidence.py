"""What is seen around a failure, as frozen values: how ranks ended, what they reported, what checks measured.

Nothing here says what follows from it: that is ``core.recovery``. All times named ``at`` or ``since`` are seconds on
the run clock (see ``docs/protocol.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A rank's own account of its death. ``signature`` is stable over ranks and attempts."""

    kind: str  # exception type
    message: str = ""
    signature: str = ""
    traceback: str = ""  # of the first ranks that fell only: ``running.abridged``
    collective: bool = False  # a victim's error: a peer was gone first
    chain: tuple[str, ...] = ()  # its causes as "Kind: message", outermost first; texts too: ``running.abridged``


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended. Exactly one of ``code`` and ``signal`` is set; ``at`` is when it was seen."""

    rank: int
    node: str
    code: int | None = None
    signal: int | None = None
    oom_kill: bool = False
    by_us: bool = False  # it fell after we had begun to stop all ranks
    error: ErrorReport | None = None
    at: float = 0.0
    step: int = -1  # the last step that it reported; -1: it reported none
    tail: tuple[str, ...] = ()  # the lines of its stderr that tell most; texts too: ``running.abridged``
    written_at: float = 0.0  # when its error was written; 0.0: nobody knows
    mark: str = ""  # the row of ``failure_texts`` that its own words matched; "-": none; "": nobody looked yet
    shown: tuple[str, ...] = ()  # the rows that lines of its stderr matched, in the table's order
    log_step: int = -1  # the highest that it printed, if it reported none
    log_reach: int = -1  # the highest that it may have done unseen, as its lines go: they may not tell each step
    total_steps: int = -1  # of the whole run, as it reported or printed
    loss: float | str | None = None  # the last that it told; what JSON cannot hold is a word
    script_ended: bool = False  # Python had run the script to its end, and all that was to follow it
    anomalies: tuple[Anomaly, ...] = ()  # of its loss and gradient norm, over the whole attempt
    checks: SelfChecks | None = None  # what its own checks found
    memory: str = ""  # if the kernel killed it for memory: which rank of the node held how much, in words
    collectives: tuple[Collective, ...] = ()  # of its newest groups, if NCCL's watchdog wrote its flight recorder

    @property
    def fell_at(self) -> float:
        """When it failed, as far as is known: destructors may keep a process long after its error."""
        return self.written_at or self.at


@dataclass(frozen=True, slots=True)
class StateFigures:
    """What a framework's own file tells of the training; -1 or None: not that."""

    step: int
    total_steps: int = -1
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class RankObservation:
    """What was seen of one rank when progress stalled."""

    rank: int
    node: str
    state: str  # /proc state letter: R S D T Z ...
    step: int  # -1: the script does not report steps
    cpu_rate: float  # CPU seconds per second, lately
    place: str = ""  # where its main thread stands, if it has a sampler
    sign: str = ""  # by which the others wait for this rank; "" if they do not, or nobody knows


@dataclass(frozen=True, slots=True)
class Collective:
    """What one rank does in one process group, by torch's flight recorder: the first collective that is not done."""

    group: str
    seq: int
    op: str  # nccl:all_reduce
    sizes: str
    newest_seq: int  # that this rank has entered; NCCL runs behind the host
    is_open: bool  # False: it is done, and the rank has entered no other


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where one rank stands: ``frame`` is its innermost Python frame, or the kernel's word for why it waits."""

    rank: int
    node: str
    frame: str
    path: str  # file with the whole dump; "" when none could be taken
    collectives: tuple[Collective, ...] = ()  # of its newest groups, if the flight recorder was read


class AnomalyKind(Enum):
    """What is wrong with the numbers that the training reports; the values are what ``status --json`` says."""

    NOT_FINITE = "not finite"
    BLOW_UP = "blow-up"
    GRADIENT = "gradient"
    FLAT = "flat"


LOSS, NORM = "loss", "gradient norm"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One stretch of bad reports of one rank in one attempt; see ``recovery.loss_rules``."""

    kind: AnomalyKind
    since_step: int  # of the first bad report
    step: int  # of the newest
    count: int  # of bad reports
    what: str  # ``LOSS`` or ``NORM``
    value: str  # of the newest bad report: NaN is no number that JSON has
    usual: str = ""  # what it was before, in words
    lasting: bool = False  # it did not pass: reason enough to act


@dataclass(frozen=True, slots=True)
class SeenAnomaly:
    """An anomaly, where it was seen first, and what became of it."""

    attempt: int
    rank: int
    node: str
    anomaly: Anomaly
    at: float
    rolled_back: bool = False  # all ranks went back to a checkpoint from before it
    skipped_count: int = 0  # and so many global batches were left out


@dataclass(frozen=True, slots=True)
class AnomalyStop:
    """All ranks are stopped for an anomaly that began at ``since_step``."""

    since_step: int
    sentence: str
    is_final: bool  # the run ends; else it goes back to a checkpoint from before it
    is_data: bool = False


@dataclass(frozen=True, slots=True)
class Divergence:
    """Ranks that hold copies of the same numbers compared them, or what they make of the same batch, and they differ;
    see ``recovery.self_checks``.
    """

    step: int  # of the save at which they were compared
    agreed_step: int  # of the newest save before it at which all agreed, or that all had loaded; -1: none
    name: str  # of the first tensor that differs
    tensors_count: int  # that differ
    copies_count: int  # ranks that were compared
    agreeing_count: int  # the most of them that hold the same
    odd: tuple[int, ...] = ()  # ranks that do not; of two copies both; (): no majority tells them from the others
    replayed: bool = False  # gradients of the same batch, not weights; ``step`` is that of the batch


@dataclass(frozen=True, slots=True)
class DataChange:
    """Samples that are not what they were when the checkpoint was saved that the attempt resumed from."""

    compared_count: int
    changed_count: int
    samples: tuple[int, ...]  # the first of them, by their index in the dataset


@dataclass(frozen=True, slots=True)
class SelfChecks:
    """What checks in the training script found in this attempt; each the newest of its kind."""

    divergence: Divergence | None = None
    data: DataChange | None = None


@dataclass(frozen=True, slots=True)
class SeenDataChange:
    """A change of the data, and when it was told."""

    attempt: int
    change: DataChange
    at: float


@dataclass(frozen=True, slots=True)
class SeenDivergence:
    """A divergence, and when it was told."""

    attempt: int
    divergence: Divergence
    at: float


class AlertKind(Enum):
    """What the speed or the resources of the training show; the values are what ``status --json`` says."""

    SLOW_RANK = "slow rank"
    SLOWER = "slower"
    MEMORY = "memory"
    SHARED_MEMORY = "shared memory"
    FILES = "open files"
    THREADS = "threads"
    SLOW_GPU = "slow GPU"
    IDLE_GPU = "idle GPU"
    GPU_MEMORY = "GPU memory"


@dataclass(frozen=True, slots=True)
class Alert:
    """What somebody should look at. Nothing acts on it; see ``recovery.pace_rules``, ``fill_rules``, ``gpu_rules``."""

    kind: AlertKind
    node: str = ""  # "": all of them
    rank: int = -1  # -1: no rank is named
    over_s: float = 0.0  # it was seen for so long
    share: float = 0.0  # SLOW_RANK: its own work takes so much longer; SLOWER: so much of the rate is gone
    lost_share: float = 0.0  # SLOW_RANK: of each step, its peers wait for it
    others_count: int = 0  # more ranks of which the same is true
    more_tokens_share: float = 0.0  # SLOW_RANK: it trained on so many more tokens than its peers
    rates: tuple[float, float] = (0.0, 0.0)  # SLOWER: steps per second, IDLE_GPU: share of time; before and now
    in_s: float = 0.0  # growth: the limit is reached then
    per_s: float = 0.0  # bytes, files or threads that come
    used: int = 0  # FILES: so many are open; THREADS: of all that the limit counts; GPU_MEMORY: bytes
    limit: int = 0
    gpu: int = -1  # the rank's, as its node counts; -1: not known
    signs: tuple[str, ...] = ()  # in what its GPU falls behind the others, in words

    @property
    def key(self) -> tuple[AlertKind, str, int]:
        """Two with one key are the same. A node has one of memory and of threads, whichever rank grows most; idle GPUs
        have one.
        """
        if self.kind is AlertKind.IDLE_GPU:
            return self.kind, "", -1
        return self.kind, self.node, -1 if self.kind in (AlertKind.MEMORY, AlertKind.THREADS) else self.rank


@dataclass(frozen=True, slots=True)
class SeenAlert:
    """An alert, when it began, and when it was over."""

    attempt: int
    alert: Alert  # as it was told last
    at: float
    told_at: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """A stall, and where every rank stood in it."""

    stalled_s: float
    limit_s: float
    observations: tuple[RankObservation, ...]
    stacks: tuple[RankStack, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverReport:
    """What a driver reported of a GPU by number (an XID). ``again``: what a second one is worth (``reports``)."""

    gpu: str  # its UUID; the node, where the number tells of all its GPUs
    number: int
    again: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """How often one GPU had one number lately: ``seen`` is when, and in which attempt of which run, oldest first."""

    node: str
    gpu: str
    number: int
    seen: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class CheckTraits:
    """What follows from the name of the check that made a finding, beside what the finding says."""

    is_storage: bool = False  # it may be a file server's, and is never one node's alone
    is_lost: bool = False  # the GPU computes nothing more, so its rank cannot save
    asks_for_itself: bool = False  # the GPU itself asks to be left alone: no gang starts there
    shows_reset: bool = False  # the driver says it until it has reset the GPU
    same_sign: str = ""  # of checks with one sign, two are no two signs
    of_the_site: bool = False  # a gang's own work, or how a whole site is set up: no event of a run
    memory_errors: bool = False  # an XID may say that they were contained


CHECK_TRAITS: Mapping[str, CheckTraits] = {  # ``tests.health`` holds it against the catalogue of checks
    "gpu_recovery": CheckTraits(asks_for_itself=True, shows_reset=True),
    "gpu_lost": CheckTraits(is_lost=True, shows_reset=True),
    "gpu_ecc": CheckTraits(shows_reset=True, memory_errors=True),
    "gpu_ecc_growth": CheckTraits(memory_errors=True),
    "gpu_throttled": CheckTraits(same_sign="slowed"),
    "gpu_slowed": CheckTraits(same_sign="slowed"),
    "host_load": CheckTraits(of_the_site=True),
    "host_clock": CheckTraits(of_the_site=True),
    "storage_answers": CheckTraits(is_storage=True),
    "storage_space": CheckTraits(is_storage=True),
    "storage_inodes": CheckTraits(is_storage=True),
    "storage_writable": CheckTraits(is_storage=True),
    "storage_mounts": CheckTraits(is_storage=True),
    "storage_lustre": CheckTraits(is_storage=True),
}


def traits_of(check: str) -> CheckTraits:
    """The traits of a check; a check without an entry, as a site's own, has none."""
    return CHECK_TRAITS.get(check, CheckTraits())


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What a check measured on a node."""

    node: str
    check: str
    fatal: bool
    sentence: str
    at: float = 0.0
    poor: bool = False  # not fatal, but another node would be better where one is free
    needs: str = ""  # what cures it: restart, reset, reboot, rma, admin; "" nothing
    place: str = ""  # which GPU, link, port, directory
    until_boot: bool = False  # it holds, once its sign is gone too, until the node has booted anew
    shows_reset: bool = False  # its sign stays until the device is reset: once that is gone, it was
    boot_id: str = ""  # of the node as this was heard, where only another boot counts as a cure
    report: DriverReport | None = None
    slot: int = -1  # the one slot of the node that it is about; -1: it is about the node


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything seen around one failure, in the order in which it was seen."""

    exits: tuple[RankExit, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)  # node -> silent since
    findings: tuple[NodeFinding, ...] = ()
    hang: Hang | None = None
    agents_died: tuple[str, ...] = ()
    start_failed: tuple[str, str] | None = None  # (node or "", why)
    started_over: tuple[int, int] | None = None  # (first step seen, resumed step)
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # row -> two nodes at most of ranks we stopped
    anomaly: AnomalyStop | None = None
    divergence: Divergence | None = None  # of copies: those from there on are not to be used
    unfinished: str = ""  # all ranks ended with 0: why that is not the end of the run
