"""Whatever comes in whatever order: what may never happen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangrun.agent.brain import effects, facts
from gangrun.wire.messages import (
    Ack,
    Beat,
    CheckNode,
    Farewell,
    Launch,
    Ping,
    Pong,
    Probe,
    Promise,
    Rejected,
    Stacks,
    Stop,
    Welcome,
)
from tests.agent.stage import PEERS, TIMING, Stage, dial, died, launch, live, prepare, stop

terms = st.integers(1, 4)
attempts = st.integers(0, 3)
nodes = st.sampled_from(["n1", "n2", "n3"])
acts = st.integers(1, 3)

from_supervisor = st.one_of(
    st.builds(Welcome, terms, st.just("n1"), st.floats(0, 2000)),
    st.builds(Ack, terms, st.integers(0, 12), st.floats(0, 1e7), st.integers(0, 9), st.just(PEERS), st.integers(1, 5)),
    st.builds(prepare, attempts, terms, acts, st.booleans()),
    st.builds(launch, attempts, terms, acts),
    st.builds(stop, attempts, terms, acts, st.sampled_from([0.0, 10.0]), st.booleans()),
    st.builds(lambda t, n, a: Stacks(t, (t, n), a), terms, acts, attempts),
    st.builds(lambda t, n: CheckNode(t, (t, n)), terms, acts),
    st.builds(Probe, terms, st.sampled_from(PEERS)),
    st.builds(Rejected, terms, st.just("no")),
)
from_peers = st.one_of(
    st.builds(dial, terms),
    st.builds(Ping, nodes, terms),
    st.builds(Pong, nodes, st.just("i"), terms, st.floats(0, 20)),
    st.builds(Promise, nodes, st.just("i"), terms, st.floats(0, 20)),
)
local = st.one_of(
    st.builds(facts.NodePrepared, attempts, st.booleans()),
    st.builds(facts.RanksLaunched, attempts, st.booleans(), st.just(""), st.just(live(0, 1))),
    st.builds(facts.RankEnded, attempts, st.builds(died, st.integers(0, 1), st.integers(0, 1))),
    st.builds(facts.RanksStopped, attempts, st.booleans()),
    st.builds(facts.TermFound, st.none() | st.builds(dial, terms), st.sampled_from(["job", "other"]), st.booleans()),
    st.builds(facts.SupervisorExited, st.sampled_from([0, 1, 75]), terms),
    st.builds(facts.Checked, st.booleans()),
    st.builds(facts.StandbysKept, st.integers(0, 8), st.just(10**9)),
)
passing = st.floats(0.0, 8.0)
# the orders most likely to do harm come more often than chance alone would bring them
honest = st.sampled_from(["slate", "launched", "stopped", "ack", "welcome"])
anything = st.lists(
    st.one_of(
        st.tuples(st.just("sup"), from_supervisor),
        st.tuples(st.just("peer"), from_peers),
        st.tuples(st.just("local"), local),
        st.tuples(st.just("wait"), passing),
        st.tuples(st.just("honest"), honest),
    ),
    max_size=60,
)


class Watcher:
    """Plays a story and holds the brain to what may never happen."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.sent: dict[tuple[int, int], float] = {}  # (term dialled, seq) -> when
        self.launched: list[int] = []
        self.stopped_through = -1
        self.ranks_may_live = False
        self.dialled = 0

    def play(self, kind: str, what: object) -> None:
        stage, brain = self.stage, self.stage.brain
        before = (brain.term_max, brain.lease_deadline)
        stage.take()
        match kind:
            case "sup":
                stage.sup(what)
            case "peer":
                stage.peer(what, b"route")
            case "local":
                stage.local(what)  # type: ignore[arg-type]
            case "wait":
                stage.pass_s(float(what))  # type: ignore[arg-type]
            case "honest":
                self.honest(str(what))
        assert brain.term_max >= before[0], "term_max fell"
        assert brain.lease_deadline >= before[1], "the lease was shortened"
        for effect in stage.take():
            self.judge(effect)

    def honest(self, what: str) -> None:
        """What a good world would answer now."""
        stage, brain = self.stage, self.stage.brain
        line = brain.lease.line
        in_hand = list(brain.orders._in_hand.values())
        match what:
            case "ack" if line is not None:
                stage.ack(brain.beat(stage.now), line.term)
            case "welcome" if line is not None:
                stage.sup(Welcome(line.term, "n1"))
            case "slate":
                for command in in_hand:
                    if type(command).__name__ == "Prepare":
                        stage.local(facts.NodePrepared(command.attempt, True))  # type: ignore[union-attr]
            case "launched":
                for command in in_hand:
                    if type(command).__name__ == "Launch":
                        stage.local(facts.RanksLaunched(command.attempt, True, ranks=live(0, 1)))  # type: ignore[union-attr]
            case "stopped":
                for command in in_hand:
                    if type(command).__name__ == "Stop":
                        stage.local(facts.RanksStopped(command.attempt, True))  # type: ignore[union-attr]

    def judge(self, effect: object) -> None:
        brain = self.stage.brain
        match effect:
            case effects.SendSupervisor(Beat() as beat):
                self.sent[self.dialled, beat.seq] = beat.boottime
            case effects.DialTerm():
                assert effect.term >= self.dialled, "an older term was dialled"
                assert effect.term == brain.term_max or brain.term_max > effect.term == self.dialled
                self.dialled = effect.term
            case effects.WriteLease():
                assert effect.deadline <= self.stage.now + TIMING.fence_after_s, "longer than any beat allows"
                assert self.dialled == brain.term_max, "renewed by a lower term"
            case Launch():
                attempt = effect.attempt
                assert all(attempt > earlier for earlier in self.launched), "an attempt twice, or an older one"
                assert attempt > self.stopped_through, "launched what was stopped"
                assert effect.term == brain.term_max, "at the word of a lower term"
                assert self.stage.now < brain.lease_deadline, "without a lease"
                self.launched.append(attempt)
            case Stop():
                self.stopped_through = max(self.stopped_through, effect.attempt)


@settings(max_examples=300)
@given(anything)
def test_no_order_of_messages_breaks_the_rules(story):
    watcher = Watcher()
    for kind, what in story:
        watcher.play(kind, what)


@settings(max_examples=100)
@given(anything, st.floats(0.0, 5.0))
def test_it_always_sleeps_and_its_wakes_lie_ahead(story, extra):
    watcher = Watcher()
    for kind, what in story:
        watcher.play(kind, what)
    watcher.stage.pass_s(extra)
    assert watcher.stage.brain.next_wake() > watcher.stage.now
    assert watcher.stage.brain.next_wake(beats=False) >= watcher.stage.brain.next_wake()


@settings(max_examples=100)
@given(anything, terms)
def test_an_ack_of_a_lower_term_never_renews(story, term):
    watcher = Watcher()
    for kind, what in story:
        watcher.play(kind, what)
    stage = watcher.stage
    stage.peer(dial(5))
    stage.sup(Welcome(5, "n1"))
    deadline = stage.brain.lease_deadline
    for seq in range(stage.brain.lease.seq + 1):
        stage.sup(Ack(term, seq, stage.now, 0))
    assert stage.brain.lease_deadline == deadline


@settings(max_examples=50)
@given(anything)
def test_a_farewell_always_ends_it(story):
    watcher = Watcher()
    for kind, what in story:
        watcher.play(kind, what)
    stage = watcher.stage
    stage.peer(dial(9))
    stage.sup(Farewell(9, (9, 99), 0, "done"))
    stage.pass_s(30.0)
    assert stage.brain.gone
