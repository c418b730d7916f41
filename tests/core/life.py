"""A run's life driven by hand: a clock, the state, and everything that was asked for; each step is checked."""

from __future__ import annotations

from typing import Any, TypeVar

from gangrun.core import invariants
from gangrun.core.actions import Decision, StartGang
from gangrun.core.events import (
    AgentJoined,
    AttemptSealed,
    CancelRequested,
    CheckpointSeen,
    DeadlinePassed,
    Event,
    FirstStepSeen,
    GangStarted,
    GangStopped,
    NodeChecked,
    NodeLost,
    Notice,
    NoticeKind,
    ProgressMarked,
    RankExited,
    RankFinished,
    ResumeChosen,
    Stamped,
)
from gangrun.core.evidence import ErrorReport, NodeFinding, RankExit
from gangrun.core.machine.lifecycle import follows, step
from gangrun.core.machine.succession import first_state
from gangrun.core.model import CheckpointRef, Level, Origin, Outcome, Phase, RunState, Shape
from gangrun.core.nodes.placement import node_of_rank
from gangrun.core.policy import Policy

Kind = TypeVar("Kind")
BUG = ErrorReport("ValueError", "bad batch", "sig", "Traceback ...\nValueError: bad batch", False)
VICTIM = ErrorReport("DistBackendError", "peer closed", "nccl", "Traceback ...\nDistBackendError", True)


def saved(at_step: int) -> CheckpointRef:
    return CheckpointRef(at_step, f"/c/step-{at_step}", Level.VERIFIED)


class Life:
    """Drives ``step``; every decision has a reason, keeps the invariants, and takes only moves that are listed."""

    def __init__(
        self, nodes: int = 2, ranks: int = 2, policy: Policy | None = None, *, at_least: int | None = None
    ) -> None:
        self.policy = policy or Policy()
        self.now = 100.0
        shape = Shape(nodes, nodes if at_least is None else at_least, ranks, 1)
        self.names = [f"n{k}" for k in range(nodes)]
        self.ranks = ranks
        self.state = first_state(RunState(run="r", shape=shape, job="j"), self.now, self.policy)
        self.asked: list[object] = []
        self.answer = Decision(self.state, (), "")

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def reason(self) -> str:
        """The reason of the newest decision."""
        return self.answer.reason

    @property
    def actions(self) -> tuple[object, ...]:
        return self.answer.actions

    def on(self, event: Event, after_s: float = 0.1, origin: Origin | None = None) -> RunState:
        self.now += after_s
        before = self.state
        self.answer = answer = step(before, Stamped(event, origin), self.now, self.policy)
        assert answer.reason
        if answer.outcome is not Outcome.APPLIED:
            assert answer.actions == ()
            if origin is None:
                assert answer.state == before
        assert invariants.check(before, answer.state, self.policy) == (), (event, answer.reason)
        assert follows(before.phase, type(event), answer.state.phase), (event, answer.reason)
        if answer.state.phase is not before.phase:
            assert answer.state.reason == answer.reason, "people read why it is in this phase"
        self.state = answer.state
        self.asked.extend(answer.actions)
        return self.state

    def ignored(self, event: Event, *words: str) -> None:
        self.on(event)
        assert self.answer.outcome is Outcome.IGNORED, self.reason
        self.says(*words)

    def refused(self, event: Event, *words: str) -> None:
        self.on(event)
        assert self.answer.outcome is Outcome.REFUSED, self.reason
        self.says(*words)

    def says(self, *words: str) -> None:
        assert self.answer.reason
        for word in words:
            assert word in self.reason, self.reason

    def due(self, name: str) -> RunState:
        """Let the clock run until that deadline."""
        deadline = self.state.timers.deadlines[name]
        return self.on(DeadlinePassed(name, deadline.generation), after_s=max(0.0, deadline.at - self.now))

    def last(self, kind: type[Kind]) -> Kind:
        return [action for action in self.asked if isinstance(action, kind)][-1]

    def count(self, kind: type) -> int:
        return sum(isinstance(action, kind) for action in self.asked)

    # ---- whole stretches ----

    def join(self, *names: str) -> None:
        for name in names or self.names:
            self.on(AgentJoined(name, f"i-{name}", f"b-{name}", self.ranks))

    def checked(self) -> None:
        self.join()
        for name in self.names:
            self.on(NodeChecked(name, True))

    def choose(self, checkpoint: CheckpointRef | None = None) -> None:
        self.on(ResumeChosen(self.state.attempt.number, checkpoint, "nothing was saved yet"))

    def again(self, checkpoint: CheckpointRef | None = None) -> None:
        self.on(AttemptSealed(self.state.attempt.number))
        self.choose(checkpoint)

    def launching(self, checkpoint: CheckpointRef | None = None) -> Life:
        self.checked()
        self.again(checkpoint)
        return self

    def running(self, checkpoint: CheckpointRef | None = None) -> Life:
        self.launching(checkpoint)
        self.on(GangStarted(self.state.attempt.number))
        assert self.phase is Phase.RUNNING
        return self

    def stopping(self) -> Life:
        self.running()
        self.exit(0)
        assert self.phase is Phase.STOPPING
        return self

    def stopped(self, **more: Any) -> None:
        self.on(GangStopped(self.state.attempt.number, **more))

    def waiting(self) -> Life:
        """Waiting for nodes that may come back."""
        self.running()
        self.on(NodeLost("n1", self.now - 30, "its lease is over"))
        self.stopped()
        assert self.phase is Phase.WAITING
        return self

    def submitting(self) -> Life:
        """With a scheduler: a preempted run that asks for its next job."""
        assert self.policy.can_requeue
        self.running()
        self.on(Notice(NoticeKind.PREEMPTION, 60.0))
        self.stopped()
        assert self.state.underway.submitting
        return self

    def started(self) -> StartGang:
        return self.last(StartGang)

    def died(
        self, rank: int, *, code: int | None = 1, signal: int | None = None, error: ErrorReport | None = None,
        oom: bool = False, by_us: bool = False, step: int = -1, log_step: int = -1,
    ) -> RankExited:  # fmt: skip
        node = self.holder(rank)
        died = RankExit(rank, node, code, signal, oom, by_us, error, self.now, step, log_step=log_step)
        return RankExited(self.state.attempt.number, died)

    def exit(self, rank: int, **how: Any) -> RunState:
        return self.on(self.died(rank, **how))

    def finish(self, *ranks: int) -> None:
        for rank in ranks:
            self.on(RankFinished(self.state.attempt.number, rank, self.holder(rank), self.now))

    def holder(self, rank: int) -> str:
        """The node of a rank: ranks may have been moved."""
        placement = self.state.attempt.placement
        return (node_of_rank(placement, rank) if placement else "") or self.names[rank // self.ranks]

    def mark(self, at_step: int) -> None:
        self.on(ProgressMarked(self.state.attempt.number, at_step))

    def first(self, at_step: int) -> None:
        self.on(FirstStepSeen(self.state.attempt.number, at_step))

    def save(self, at_step: int) -> None:
        self.on(CheckpointSeen(saved(at_step)))

    def cancel(self, by: str = "someone") -> None:
        self.on(CancelRequested(by))


def at(phase: Phase) -> Life:
    """A run in that phase, with a scheduler behind it."""
    life = Life(policy=Policy(can_requeue=True))
    match phase:
        case Phase.PENDING:
            pass
        case Phase.CHECKING:
            life.join()
        case Phase.STARTING:
            life.launching()
        case Phase.RUNNING:
            life.running()
        case Phase.STOPPING:
            life.stopping()
        case Phase.WAITING:
            life.submitting()
        case Phase.SUCCEEDED:
            life = Life(1, 1).running()
            life.finish(0)
            life.stopped()
        case Phase.FAILED:
            life.running()
            for _ in range(2):
                life.exit(0, error=BUG)
                life.stopped()
                if life.phase is Phase.STARTING:
                    life.again()
                    life.on(GangStarted(life.state.attempt.number))
        case Phase.CANCELLED:
            life.cancel()
        case Phase.TIME_UP:
            life = Life(policy=Policy(can_requeue=True, total_time_s=3600.0)).running()
            life.due("total")
            life.stopped()
    assert life.phase is phase
    return life


def fatal(node: str, check: str = "gpu lost", sentence: str = "") -> NodeFinding:
    return NodeFinding(node, check, True, sentence or f"{node}: {check}", 5.0)


def warning(node: str) -> NodeFinding:
    return NodeFinding(node, "link", False, f"{node}: a link flapped once", 5.0)
