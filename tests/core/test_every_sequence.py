"""Any sequence of events, plausible or not: no exception, no broken invariant, no move that is not listed.

The same walk checks that the journal's records give the live state back at every prefix (I11), wherever a new term
began with a snapshot.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangrun.core import invariants
from gangrun.core.actions import SealAttempts, StartGang, SubmitSuccessor
from gangrun.core.events import (
    ActDone,
    ActFailed,
    ActUnknown,
    AgentJoined,
    AgentRejoined,
    AlertSeen,
    AnomalySeen,
    AttemptSealed,
    CancelRequested,
    CheckpointSeen,
    DeadlinePassed,
    DrainRequested,
    Event,
    FindingRaised,
    FirstStepSeen,
    FlushDue,
    GangStarted,
    GangStartFailed,
    GangStopped,
    NodeAbsent,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    ResumeChosen,
    ResumeRequested,
    SaveAnswered,
    SaveRequested,
    SelfCheckFailed,
    StacksTaken,
    Stamped,
    StepBrought,
    StepsTimed,
    StopTimedOut,
    StoreBack,
    StoreStalled,
    TermTaken,
)
from gangrun.core.evidence import (
    Alert,
    AlertKind,
    Anomaly,
    AnomalyKind,
    DataChange,
    Divergence,
    DriverReport,
    ErrorReport,
    NodeFinding,
    RankExit,
    RankObservation,
    RankStack,
    SelfChecks,
)
from gangrun.core.machine.lifecycle import follows, step
from gangrun.core.machine.succession import first_state
from gangrun.core.model import (
    TERMINAL,
    CheckpointRef,
    Inventory,
    Level,
    Origin,
    Outcome,
    Phase,
    RankAlive,
    RunState,
    Shape,
    StepTime,
)
from gangrun.core.policy import Policy
from gangrun.wire import kinds
from gangrun.wire import record as wire
from gangrun.wire.record import Record

NODES = ("n0", "n1", "n2", "x9")
names = st.sampled_from(NODES)
ranks = st.integers(0, 5)
reports = st.none() | st.builds(DriverReport, names, st.just(94), st.sampled_from(["", "poor", "fatal"]))
steps = st.integers(-1, 60)
words = st.sampled_from(["EIO", "the port 29501 is taken", "naïve ☃"])
errors = st.one_of(
    st.none(),
    st.builds(ErrorReport, st.sampled_from(["ValueError", "CUDA error"]), words, words, words, st.booleans()),
)


class Walk:
    """One run under whatever comes, with its journal beside it."""

    def __init__(self, policy: Policy, shape: Shape) -> None:
        self.policy, self.now = policy, 100.0
        self.state = first_state(RunState(run="r", shape=shape), self.now, policy)
        self.records: list[Record] = []
        self.plain: dict[str, Any] | None = None
        self.cancelled = False
        self.snapshot()

    def snapshot(self) -> None:
        """A new term begins to write."""
        self._write(Record(1, self.state.term, 0, self.now, 0.0, "Snapshot", patch=wire.snapshot(self.state)))

    def _write(self, record: Record) -> None:
        line = wire.encode(record)
        again = wire.decode(line)
        assert wire.encode(again) == line
        self.records.append(again)
        self.plain = wire.advance(self.plain, (again,))
        assert self.plain is not None
        assert wire.state_of(self.plain) == self.state, "what the records say is the live state, at every prefix"

    def on(self, event: Event, after_s: float, origin: Origin | None) -> None:
        before = self.state
        self.now += after_s
        decision = step(before, Stamped(event, origin), self.now, self.policy)
        after = self.state = decision.state
        assert decision.reason
        assert invariants.check(before, after, self.policy) == (), (event, decision.reason)
        if decision.outcome is not Outcome.APPLIED:
            assert decision.actions == ()
            assert origin is not None or after == before
        assert follows(before.phase, type(event), after.phase), (event, decision.reason)
        if before.phase in TERMINAL and after.phase not in TERMINAL:
            assert isinstance(event, ResumeRequested)
        if isinstance(event, ResumeRequested) and decision.outcome is Outcome.APPLIED:
            self.cancelled = False
        if isinstance(event, CancelRequested) and decision.outcome is Outcome.APPLIED:
            self.cancelled = True
        starts = (StartGang, SealAttempts, SubmitSuccessor)
        assert not (self.cancelled and any(isinstance(action, starts) for action in decision.actions)), event
        for action in decision.actions:
            assert kinds.action_of(type(action).__name__, wire.builtins(action)) == action
        assert kinds.event_of(type(event).__name__, wire.builtins(event)) == event
        assert kinds.event_of(type(event).__name__, wire.sparse(event)) == event
        record = Record(
            wire.SCHEMA,
            after.term,
            len(self.records),
            self.now,
            0.0,
            type(event).__name__,
            wire.sparse(event),
            None if origin is None else wire.builtins(origin),
            decision.outcome.value,
            before.phase.value,
            after.phase.value,
            decision.reason,
            tuple(kinds.act(action, 1) for action in decision.actions),
        )
        self._write(msgspec.structs.replace(record, patch=wire.change(before, after, record)))


def of_attempt(number: int, draw: Any) -> Event:
    """Something that is said of an attempt."""
    code, flag = st.sampled_from([0, 1, 3]), st.booleans()
    exits = st.builds(RankExit, ranks, names, code, st.none(), flag, flag, errors, st.just(1.0))
    signal, no = st.sampled_from([9, 11]), st.just(False)
    killed = st.builds(RankExit, ranks, names, st.none(), signal, no, flag, st.none(), st.just(2.0))
    seen = st.builds(RankObservation, ranks, names, st.sampled_from("RSDT"), steps, st.just(0.0))
    stack = st.builds(RankStack, ranks, names, words, words)
    anomalies = st.builds(
        Anomaly, st.sampled_from(AnomalyKind), steps, steps, st.integers(0, 9), st.just("loss"), st.just("NaN"),
        lasting=st.booleans(),
    )  # fmt: skip
    some = st.lists(ranks, max_size=3, unique=True).map(tuple)
    divergences = st.builds(Divergence, steps, steps, words, st.just(1), st.integers(2, 4), st.integers(1, 3), some)
    changes = st.none() | st.builds(DataChange, st.just(9), st.integers(1, 9), some)
    it = st.just(number)
    drawn: Event = draw(
        st.one_of(
            st.builds(AttemptSealed, it),
            st.builds(ResumeChosen, it, st.none() | checkpoints, words),
            st.builds(NoneValid, it, words, st.booleans()),
            st.builds(GangStarted, it),
            st.builds(GangStartFailed, it, names | st.just(""), words, st.booleans()),
            st.builds(RankExited, it, exits | killed),
            st.builds(RankFinished, it, ranks, names, st.just(1.0)),
            st.builds(FirstStepSeen, it, steps),
            st.builds(ProgressMarked, it, steps),
            st.builds(AnomalySeen, it, ranks, names, anomalies, st.integers(1, 4)),
            st.builds(SelfCheckFailed, it, ranks, names, st.builds(SelfChecks, st.none() | divergences, changes)),
            st.builds(AlertSeen, it, st.builds(Alert, st.sampled_from(AlertKind), names, ranks), flag),
            st.builds(StepsTimed, it, st.just(1.0), st.integers(1, 9)),
            st.builds(ProgressStalled, it, st.just(130.0), st.just(120.0), st.lists(seen, max_size=3).map(tuple)),
            st.builds(StacksTaken, it, st.lists(stack, max_size=3).map(tuple)),
            st.builds(GangStopped, it, st.just(()), st.lists(words, max_size=1).map(tuple)),
            st.builds(FlushDue, it, steps),
            st.builds(SaveAnswered, it, words, steps, words | st.just("")),
            st.builds(StepBrought, it, steps, st.just(("n0",)), words | st.just("")),
            st.builds(StopTimedOut, it, names, st.just(("python[7]",))),
        )
    )
    return drawn


checkpoints = st.builds(CheckpointRef, st.integers(0, 60), words, st.sampled_from(Level))
agents = (names, st.sampled_from(["i1", "i2"]), st.sampled_from(["b1", "b2"]), st.integers(1, 2))
acts = (st.just((1, 1)), st.sampled_from(["SubmitSuccessor", "SealAttempts", "ChooseResume"]))
whatever = st.one_of(
    st.builds(AgentJoined, *agents),
    st.builds(AgentRejoined, *agents, words),
    st.builds(NodeSilent, names, st.just(1.0)),
    st.builds(NodeLost, names, st.just(1.0), words),
    st.builds(NodeHeard, names),
    st.builds(SaveRequested, words, words),
    st.builds(DrainRequested, names, words, words),
    st.builds(NodeAbsent, names, words, st.booleans()),
    st.builds(NodeChecked, names, st.booleans(), words),
    st.builds(FindingRaised, st.builds(NodeFinding, names, words, st.booleans(), st.just("a finding"), report=reports)),
    st.builds(
        FindingRaised,
        st.builds(
            NodeFinding, names, words, st.just(False), sentence=words, poor=st.just(True), needs=st.just("reset")
        ),
    ),
    st.builds(CheckpointSeen, checkpoints, step_time=st.none() | st.builds(StepTime, st.just(1.0), st.integers(1, 9))),
    st.builds(Notice, st.sampled_from(NoticeKind), st.just(30.0), st.booleans()),
    st.builds(StoreStalled, st.just(1.0)),
    st.builds(StoreBack, st.just(6.0)),
    st.builds(ActDone, *acts),
    st.builds(ActFailed, *acts, words),
    st.builds(ActUnknown, *acts, words),
    st.builds(ResumeRequested, st.just("a person"), st.sampled_from(["j", "k"]), st.integers(0, 3)),
    st.just(CancelRequested("a person")),
)


def helpful(state: RunState) -> Event | None:
    """What would bring the run on, so that walks get far."""
    attempt = state.attempt.number
    match state.phase:
        case Phase.PENDING:
            missing = [name for name in NODES if name not in state.roster.nodes]
            return AgentJoined(missing[0], "i1", "b1", 2) if missing and not state.ending.leaving else None
        case Phase.CHECKING:
            return NodeChecked(next(name for name, node in state.roster.nodes.items() if node.checked is None), True)
        case Phase.STARTING:
            stages: dict[str, Event] = {
                "sealing": AttemptSealed(attempt),
                "choosing": ResumeChosen(attempt, None, "nothing was saved yet"),
                "launching": GangStarted(attempt),
            }
            return stages[state.underway.stage.value if state.underway.stage else ""]
        case Phase.RUNNING:
            return ProgressMarked(attempt, state.checkpoints.observed_step + 1)
        case Phase.STOPPING:
            return GangStopped(attempt)
        case Phase.WAITING:
            return None
        case _:
            return ResumeRequested("a person", state.job, state.seq + 1)


def next_event(walk: Walk, draw: Any) -> tuple[Event, float]:
    """Mostly what fits; sometimes what cannot be."""
    state = walk.state
    kind = draw(st.integers(0, 9))
    brings_on = helpful(state) if kind <= 4 else None
    if brings_on is not None:
        return brings_on, 0.1
    if kind <= 5 and state.timers.deadlines:
        name = draw(st.sampled_from(sorted(state.timers.deadlines)))
        due = state.timers.deadlines[name]
        return DeadlinePassed(name, due.generation), max(0.0, due.at - walk.now)
    if kind == 6:
        alive = tuple(RankAlive(rank, 1, 1) for rank in range(draw(st.integers(0, 4))))
        held = (
            Inventory("n0", state.attempt.number, alive),
            Inventory("n1", draw(st.integers(-1, state.attempt.number + 1))),
        )
        job = draw(st.sampled_from([state.job or "j", "k"]))
        term, highest = state.term + draw(st.integers(0, 2)), state.attempt.number + draw(st.integers(0, 2))
        expected, alone = draw(st.sampled_from([(), NODES[:2], NODES])), draw(st.integers(0, 7)) == 0
        return TermTaken(term, job, held[: draw(st.integers(0, 2))], (), highest, expected, alone), 1.0
    if kind <= 8 and state.attempt.number >= 0:
        return of_attempt(
            draw(st.integers(max(0, state.attempt.number - 1), state.attempt.number + 1))
            if kind == 8
            else state.attempt.number,
            draw,
        ), 0.1
    return draw(whatever), 0.1


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(data=st.data())
def test_no_sequence_of_events_breaks_anything(data: st.DataObject) -> None:
    policy = Policy(
        can_requeue=data.draw(st.booleans()), observe=data.draw(st.booleans()),
        restarts_max_count=data.draw(st.sampled_from([0, 1, 3])), keeps_memory=data.draw(st.booleans()),
        race_stragglers=data.draw(st.booleans()),
    )  # fmt: skip
    nodes_count = data.draw(st.integers(1, 3))
    walk = Walk(policy, Shape(nodes_count, data.draw(st.integers(1, nodes_count)), 2, 1))
    for _ in range(data.draw(st.integers(5, 60))):
        event, after_s = next_event(walk, data.draw)
        origin = None
        if data.draw(st.integers(0, 3)) == 0:
            origin = Origin(walk.state.job, data.draw(names), "b1", data.draw(st.sampled_from(["i1", "i2"])),
                            data.draw(st.integers(1, 30)))  # fmt: skip
        walk.on(event, after_s, origin)
        if data.draw(st.integers(0, 15)) == 0:
            walk.snapshot()
    assert wire.replay(walk.records) == walk.state


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_every_run_that_is_left_to_its_timers_ends(data: st.DataObject) -> None:
    """I14: wherever a run is, if nothing happens any more but time, it ends; only RUNNING is for the hang watch."""
    walk = Walk(
        Policy(can_requeue=data.draw(st.booleans()), restarts_max_count=1, keeps_memory=True), Shape(2, 1, 2, 1)
    )
    for _ in range(data.draw(st.integers(0, 30))):
        event, after_s = next_event(walk, data.draw)
        walk.on(event, after_s, None)
    for _ in range(200):
        state = walk.state
        if state.phase in TERMINAL or state.phase is Phase.RUNNING or state.ending.leaving:
            break
        if state.store_stalled_since is not None:
            walk.on(StoreBack(6.0), 0.1, None)  # the outside event that is named
            continue
        name, due = min(state.timers.deadlines.items(), key=lambda item: item[1].at)
        walk.on(DeadlinePassed(name, due.generation), max(0.0, due.at - walk.now), None)
    else:
        pytest.fail(f"it turns in a circle: {[record.reason for record in walk.records[-6:]]}")
