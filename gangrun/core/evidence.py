"""What is seen around a failure, as frozen values. ``model`` hands them on.

Times named ``at`` are seconds on the run clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A rank's own account of its death. ``signature`` is stable over ranks and attempts."""

    kind: str  # exception type
    message: str
    signature: str
    traceback: str
    collective: bool  # a victim's error: a peer was gone first


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended. Exactly one of ``code`` and ``signal`` is set; ``at`` is when it was seen."""

    rank: int
    node: str
    code: int | None
    signal: int | None
    oom_kill: bool
    by_us: bool  # it fell after we had begun to stop all ranks
    error: ErrorReport | None
    at: float
    step: int = -1  # the last step that it reported; -1: it reported none


@dataclass(frozen=True, slots=True)
class RankObservation:
    """What was seen of one rank when progress stalled."""

    rank: int
    node: str
    state: str  # /proc state letter: R S D T Z ...
    step: int  # -1: the script does not report steps
    idle_s: float  # since its last sign of progress
    cpu_rate: float  # CPU seconds per second, lately


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where one rank stands: ``frame`` is its innermost Python frame, or the kernel's word for why it waits."""

    rank: int
    node: str
    frame: str
    path: str  # file with the whole dump; "" when none could be taken


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
class Finding:
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything seen around one failure, in the order in which it was seen."""

    exits: tuple[RankExit, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)  # node -> silent since
    findings: tuple[Finding, ...] = ()
    hang: Hang | None = None
    agents_died: tuple[str, ...] = ()
    start_failed: tuple[str, str] | None = None  # (node or "", why)
    started_over: tuple[int, int] | None = None  # (first step seen, resumed step)
