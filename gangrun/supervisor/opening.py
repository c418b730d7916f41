"""What a supervisor is told when its term begins, and the clock of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gangrun.core.events import ResumeRequested
from gangrun.core.model import RunState, Shape
from gangrun.wire.spec import CheckpointSpec

EXIT_DEPOSED = 75  # a newer term exists, or ours could not be had: nothing was left undone that is ours
EXIT_NOT_KNOWN = 74  # the file system gave no answer: nothing was found out, another try may do better
EXIT_REFUSED = 78  # the journal cannot be used: a person must look


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The run and the job this supervisor works for."""

    run: str
    shape: Shape
    job: str
    seq: int = 0
    node: str = ""  # where this supervisor runs
    addresses: Mapping[str, str] = field(default_factory=dict)  # node -> where its ranks are reached; empty: any node
    resume_request: str = "auto"
    resumed: ResumeRequested | None = None  # this job takes an ended run up again
    checkpoint: CheckpointSpec = field(default_factory=lambda: CheckpointSpec("checkpoints"))
    expected: tuple[str, ...] = ()  # all nodes of the job, spares too; (): those of ``addresses``
    asks_why: Callable[[], None] | None = None  # have the scheduler asked why an agent was told to end; never blocks
    mark_cancel: Callable[[str], None] | None = None  # leave the mark that ``str`` cancelled the run; never blocks
    note_nodes: Callable[[RunState, RunState], None] | None = None  # (before, after), for other runs; never blocks
    memory_staging: Callable[[int, int], str] | None = None  # (term, attempt) -> where steps in memory are brought to
    loads_memory: bool = False  # ranks may load a step that is in memory only
    total_steps: int = 0  # of the whole run, as the user says; 0: not said
    alone: bool = False  # no agent of this job lives and none will come: this supervisor is the last resort


@dataclass(frozen=True, slots=True)
class Opening:
    """A term that was taken: what its loop begins with."""

    term: int
    state: RunState  # becomes the term's snapshot; ``state.term`` is still the last one's
    run_start: float  # run clock at ``boot_start``
    boot_start: float  # ``Clock.now`` when the term was taken
    highest_attempt: int  # over journal and tickets
    promised: frozenset[str] = frozenset()  # nodes whose agents promised not to listen to the last term
    started_attempt: int = -1  # over tickets to start one
    lost: tuple[str, ...] | None = None  # nodes that any supervisor so far has counted as lost; None: not known
    notes: tuple[str, ...] = ()  # what people should read: damage, warnings
    opened_at: float = float("-inf")  # run clock: nobody had sealed this term then
    witnesses: frozenset[str] = frozenset()  # nodes that count for every supervisor before this one


@dataclass(frozen=True, slots=True)
class RunClock:
    """Seconds of the run from seconds of CLOCK_BOOTTIME, and back."""

    run_start: float
    boot_start: float

    @staticmethod
    def starting(last_recorded: float, wall: float, boot: float, quiet_s: float | None) -> RunClock:
        """The clock of a term that starts now, ``quiet_s`` after the last record; None: only ``wall`` tells.

        A wall clock that is ahead would end waits and exclusions at once, so it counts only up to ``quiet_s``.
        """
        passed_s = max(0.0, wall - last_recorded)
        return RunClock(last_recorded + (passed_s if quiet_s is None else min(passed_s, quiet_s)), boot)

    def at(self, boot: float) -> float:
        """The run's time at that CLOCK_BOOTTIME."""
        return self.run_start + (boot - self.boot_start)

    def boot(self, at: float) -> float:
        """The CLOCK_BOOTTIME at that time of the run."""
        return self.boot_start + (at - self.run_start)
