"""Everything that may be asked of the world.

Imperative, one frozen value each. Each outcome comes back as an event. ``TICKETED`` are the acts that leave the
process for good: they need a record on disk and a ticket of the current term first (``docs/protocol.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.core.model import CheckpointRef, Outcome, Phase, Placement, Poisoned, RunState


@dataclass(frozen=True, slots=True)
class CheckNodes:
    """Ask these nodes to prove themselves; each answers with ``NodeChecked``. ``tests``: how hard devices are put to
    work for it (``trial.QUICK``, ``trial.THOROUGH``; "" not at all). ``rounds``: the pairs that meet before it.
    """

    nodes: tuple[str, ...]
    tests: str = ""
    rounds: tuple[tuple[tuple[str, str], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SealAttempts:
    """Seal staging of every attempt before ``attempt``; answers with ``AttemptSealed``, and before that with
    ``StepHeld`` if the newest step is whole in the memory of each of ``nodes``.
    """

    attempt: int
    nodes: tuple[str, ...] = ()  # that will have ranks; (): what memory holds is written to the disk first


@dataclass(frozen=True, slots=True)
class ChooseResume:
    """Find the newest valid checkpoint, move invalid ones above it and the condemned one aside, after ``put_back``;
    ``ResumeChosen`` or ``NoneValid``.
    """

    attempt: int
    request: str
    best_step: int  # highest step that the journal knows as valid, -1: none
    condemned: Poisoned | None = None
    put_back: tuple[str, ...] = ()  # paths from which a checkpoint was set aside that is cleared


@dataclass(frozen=True, slots=True)
class StartGang:
    """Start all ranks; ``GangStarted`` or ``GangStartFailed``."""

    attempt: int
    placement: Placement
    resume: CheckpointRef | None
    skip_batches: tuple[tuple[int, int], ...] = ()  # (after so many batches, so many are left out)


@dataclass(frozen=True, slots=True)
class StopGang:
    """Stop all ranks; ``GangStopped`` or ``StopTimedOut``. Never needs a ticket: stopping is always safe."""

    attempt: int
    grace_s: float
    checkpoint_first: bool
    why: str
    checkpoint_grace_s: float | None = None  # for that checkpoint; None: as the policy says
    settle_s: float = 0.0  # before anything else: ranks that fail at this moment write their own error
    peer_gone_grace_s: float | None = None  # instead of ``grace_s``, unless the script saves when asked; None: all live


@dataclass(frozen=True, slots=True)
class TakeStacks:
    """Dump every rank's stack into the run directory; ``StacksTaken``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SaveGang:
    """Ask all ranks for a checkpoint while they train on; ``SaveAnswered``. Asked twice, it is saved twice."""

    attempt: int
    key: str


@dataclass(frozen=True, slots=True)
class ProbeNode:
    """Ask other agents whether they reach this one; the answer shows in a later ``NodeSilent``."""

    node: str


@dataclass(frozen=True, slots=True)
class SubmitSuccessor:
    """Ask the scheduler for the next job of the run without the excluded nodes (rung 5). Those in ``if_booted`` may be
    in it all the same where they have booted within so many seconds: so long ago they were last seen in the bad boot.
    """

    seq: int
    exclude: tuple[str, ...]
    reason: str
    if_booted: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SubmitRefill:
    """Ask the scheduler for a one-node job that brings a node to this job (rung 4), and watch it: ``RefillQueued``,
    ``RefillUnknown`` or ``RefillEnded``. ``job``: its number, if it is known to be there: then it is only watched.
    """

    number: int
    seq: int  # place of the job that gets the node
    exclude: tuple[str, ...]
    reason: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class CancelRefill:
    """Have the scheduler end a refill, whether it waits or has its node. Nothing is answered: its own batch script
    leaves as soon as it reads that it is not wanted.
    """

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class BringSteps:
    """Have these nodes write the newest whole step of ``attempt`` in their memory above ``above_step`` to the disk;
    ``StepBrought``.
    """

    attempt: int
    above_step: int
    within_s: float
    nodes: tuple[str, ...]
    flush: bool = False  # ranks train on: it stays in memory too


@dataclass(frozen=True, slots=True)
class EndJob:
    """Dismiss the agents and end this job with all its refills; ``phase`` is what the job's state must tell. What was
    set aside from the paths ``put_back`` goes back there.
    """

    phase: Phase
    exit_code: int
    reason: str
    put_back: tuple[str, ...] = ()


Action = (
    CheckNodes
    | SealAttempts
    | ChooseResume
    | StartGang
    | StopGang
    | TakeStacks
    | SaveGang
    | ProbeNode
    | BringSteps
    | SubmitSuccessor
    | SubmitRefill
    | CancelRefill
    | EndJob
)
TICKETED = (SealAttempts, ChooseResume, StartGang, BringSteps, SubmitSuccessor, SubmitRefill, CancelRefill, EndJob)


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``lifecycle.step`` returns: the state after, what to do, and the sentence that says why."""

    state: RunState
    actions: tuple[Action, ...]
    reason: str
    outcome: Outcome = Outcome.APPLIED
