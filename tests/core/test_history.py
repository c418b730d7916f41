"""What is remembered of nodes and their GPUs over attempts, jobs and runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.events import FindingRaised, GangStarted
from gangrun.core.evidence import DriverReport, NodeFinding, Reported
from gangrun.core.model import Attempt, Node, NodeHealth, Phase, Roster, RunState, Shape
from gangrun.core.nodes import history
from gangrun.core.nodes.history import (
    COUNTED_MAX,
    DAY_S,
    NODES_MAX_COUNT,
    WEEK_S,
    KnownBad,
    nodes_to_avoid,
    remembered_nodes,
    with_bad_node,
)
from gangrun.core.policy import Policy
from tests.core.life import Life

# ---- what GPUs' drivers reported -------------------------------------------------------------------------------------


APP, SOFT = history.POOR, history.FATAL


def xid(node: str, gpu: str, number: int, again: str) -> NodeFinding:
    told = DriverReport(gpu, number, again)
    return NodeFinding(node, "xid", False, f"XID {number} on gpu 1", 0.0, again == SOFT, "reset", "gpu 1", report=told)


def empty(run: str = "r", attempt: int = 0) -> RunState:
    nodes = {name: Node(name, "i", f"b-{name}", 1) for name in ("n0", "n1")}
    return RunState(run=run, shape=Shape(2, 2, 1, 1), roster=Roster(nodes=nodes), attempt=Attempt(number=attempt))


def after(state: RunState, found: NodeFinding, at: float, attempt: int = 0) -> tuple[RunState, NodeFinding]:
    return history.heard(replace(state, attempt=replace(state.attempt, number=attempt)), found, at)


def test_a_soft_one_that_the_gpu_had_before_is_the_hardwares_in_whatever_attempt() -> None:
    state, first = after(empty(), xid("n1", "GPU-7", 94, SOFT), 100.0)
    assert (first.fatal, first.poor, first.at) == (False, True, 100.0)
    state, burst = after(state, xid("n1", "GPU-7", 94, SOFT), 100.0 + history.APART_S)
    assert not burst.fatal, "still the same fault"
    _, again = after(state, xid("n1", "GPU-7", 94, SOFT), 4000.0, attempt=3)
    assert (again.fatal, again.poor, again.until_boot, again.boot_id) == (True, False, True, "b-n1")
    assert "GPU-7 had it 2 times within a day, so it is the hardware's" in again.sentence
    assert not after(state, xid("n1", "GPU-8", 94, SOFT), 4000.0)[1].fatal, "another GPU"
    assert not after(state, xid("n1", "GPU-7", 63, SOFT), 4000.0)[1].fatal, "another number"
    assert not after(state, xid("n1", "GPU-7", 94, SOFT), 200.0 + DAY_S)[1].fatal, "the day after"
    assert not after(state, xid("n1", "GPU-7", 94, ""), 4000.0)[1].fatal, "one of which a second says nothing"


def test_the_programs_own_counts_against_a_gpu_in_two_attempts_and_only_alone() -> None:
    state, first = after(empty(), xid("n1", "GPU-7", 31, APP), 100.0)
    same, twice = after(state, xid("n1", "GPU-7", 31, APP), 4000.0)
    assert not (first.poor or twice.poor), "once more in one attempt is the program at the same place"
    _, again = after(same, xid("n1", "GPU-7", 31, APP), 5000.0, attempt=1)
    assert (again.poor, again.fatal) == (True, False)
    assert "GPU-7 had it in 2 attempts within a day, and no other GPU did" in again.sentence
    both, _ = after(state, xid("n0", "GPU-3", 31, APP), 101.0)
    _, software = after(both, xid("n1", "GPU-7", 31, APP), 5000.0, attempt=1)
    assert not software.poor, "two GPUs at once: the program's"
    elsewhere, _ = after(state, xid("n0", "GPU-3", 13, APP), 101.0)
    assert after(elsewhere, xid("n1", "GPU-7", 31, APP), 5000.0, attempt=1)[1].poor, "another number is no company"


def test_what_is_fatal_at_once_stays_so_and_what_is_no_report_is_only_dated() -> None:
    hard = replace(xid("n1", "GPU-7", 79, ""), fatal=True, until_boot=True)
    state, found = after(empty(), hard, 9.0)
    assert found == replace(hard, at=9.0, boot_id="b-n1")
    assert set(state.health.reports) == {"GPU-7 79"}
    plain = NodeFinding("elsewhere", "gpu_lost", True, "x", until_boot=True)
    assert after(state, plain, 10.0) == (state, replace(plain, at=10.0))
    port = NodeFinding("n1", "ib_state", True, "x")
    assert after(state, port, 10.0)[1].boot_id == "", "which time may cure"


def test_other_runs_count_too_each_report_once() -> None:
    mine, _ = after(empty(), xid("n1", "GPU-7", 31, APP), 100.0)
    others = [Reported("n1", "GPU-7", 31, ((50.0, "q 2"),)), Reported("n1", "GPU-9", 94, ((1e12, "q 2"),))]
    known = history.joined(mine.health.reports, others, 200.0)
    assert known["GPU-7 31"].seen == ((50.0, "q 2"), (100.0, "r 0"))
    assert history.joined(known, others, 200.0) == known
    assert known["GPU-9 94"].seen == ((200.0, "q 2"),), "a clock that ran ahead is not believed"
    assert history.joined({}, others[:1], 50.0 + DAY_S) == {}
    new = replace(empty("s"), health=NodeHealth(reports=history.joined({}, others, 200.0)))
    assert after(new, xid("n1", "GPU-7", 31, APP), 300.0)[1].poor
    assert history.news(mine.health.reports, known) == (known["GPU-9 94"],)
    assert history.news({}, known) == tuple(known.values())
    later, _ = after(replace(mine, health=replace(mine.health, reports=known)), xid("n1", "GPU-7", 31, APP), 300.0)
    assert history.news(known, later.health.reports) == (later.health.reports["GPU-7 31"],)


def test_a_second_soft_one_in_the_next_attempt_moves_the_gang() -> None:
    life = Life(2, policy=Policy(can_requeue=True)).running()
    life.on(FindingRaised(xid("n1", "GPU-7", 94, SOFT)))
    assert life.phase is Phase.RUNNING
    life.exit(0, signal=11)
    life.stopped()
    if life.phase is Phase.WAITING:
        life.due("backoff")
    life.again()
    life.on(GangStarted(life.state.attempt.number))
    life.on(FindingRaised(xid("n1", "GPU-7", 94, SOFT)), after_s=120.0)
    assert life.phase is Phase.STOPPING
    life.stopped()
    life.says("hardware failed on n1", "GPU-7 had it 2 times", "excluded until it has booted")
    assert life.state.health.excluded["n1"].boot_id == "b-n1"


def test_memory_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_MAX_COUNT", 32)
    state = empty()
    for k in range(history.KEPT_MAX_COUNT + 9):
        state, _ = after(state, xid("n1", f"GPU-{k}", 31, APP), 100.0 + k)
    assert len(state.health.reports) == history.KEPT_MAX_COUNT
    assert "GPU-8 31" not in state.health.reports and "GPU-9 31" in state.health.reports
    for k in range(20):
        state, _ = after(state, xid("n1", "GPU-9", 31, APP), 5000.0 + k)
    assert len(state.health.reports["GPU-9 31"].seen) == history.SEEN_MAX_COUNT
    assert history.remembered(state.health.reports, 6000.0) == state.health.reports


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["GPU-0", "GPU-1"]),
        st.sampled_from([(31, APP), (94, SOFT), (137, "")]),
        st.integers(0, 3),
        st.sampled_from([1.0, 100.0, 3600.0, 0.6 * DAY_S]),
    ),
    max_size=25,
)


@given(EVENTS)
def test_whatever_comes_only_what_came_before_within_a_day_makes_it_worse(
    events: list[tuple[str, tuple[int, str], int, float]],
) -> None:
    state, now, told = empty(), 0.0, list[tuple[float, str, int, int]]()
    for gpu, (number, again), attempt, after_s in events:
        now += after_s
        state, found = after(state, xid("n1", gpu, number, again), now, attempt)
        day = [one for one in told if now - one[0] < DAY_S and one[2] == number]
        same = [one for one in day if one[1] == gpu]
        if found.fatal:
            assert again == SOFT and same, "never the first"
        if again == APP and found.poor:
            assert {one[3] for one in same} - {attempt}, "in another attempt"
            assert same == day, "no other GPU had it"
        if again == SOFT and same and now - same[-1][0] > history.APART_S:
            assert found.fatal
        if not again:
            assert not (found.fatal or found.poor)
        told.append((now, gpu, number, attempt))


@pytest.mark.parametrize("at", [0.0, DAY_S])
def test_one_that_said_nothing_is_forgotten(at: float) -> None:
    assert history.remembered({"k": Reported("n", "g", 1, ())}, at) == {}


# ---- nodes that earlier runs found broken ----------------------------------------------------------------------------


def test_each_time_it_counts_twice_as_long_and_a_week_at_most() -> None:
    known: dict[str, KnownBad] = {}
    lasts = []
    for run in range(5):
        known = dict(with_bad_node(known, "n1", "XID 79", f"r{run}", 1000.0 * run))
        lasts.append((known["n1"].until - known["n1"].at) / DAY_S)
    assert lasts == [1, 2, 4, 7, 7]


def test_the_same_run_finds_it_once() -> None:
    known = with_bad_node(with_bad_node({}, "n1", "XID 79", "r", 0.0), "n1", "gpu lost", "r", 60.0)
    assert known == {"n1": KnownBad("n1", "gpu lost", "r", 60.0, 1)}


@pytest.mark.parametrize(
    ("days", "counts", "is_remembered"),
    [(0.9, True, True), (1.1, False, True), (7.9, False, True), (8.1, False, False)],
)
def test_it_decays(days: float, counts: bool, is_remembered: bool) -> None:
    known, now = with_bad_node({}, "n1", "XID 79", "r", 0.0), days * DAY_S
    assert bool(nodes_to_avoid(known, now)) is counts
    assert bool(remembered_nodes(known, now)) is is_remembered
    assert with_bad_node(known, "n2", "x", "s", now).keys() == ({"n1", "n2"} if is_remembered else {"n2"})


def test_one_that_was_well_for_long_begins_anew() -> None:
    known = with_bad_node(with_bad_node({}, "n1", "XID 79", "r", 0.0), "n1", "XID 79", "s", 1.0)
    assert with_bad_node(known, "n1", "XID 79", "t", DAY_S)["n1"].times == 3
    assert with_bad_node(known, "n1", "XID 79", "t", 20 * DAY_S)["n1"].times == 1


def test_a_clock_that_ran_ahead_holds_no_node_for_ever() -> None:
    known = with_bad_node({}, "n1", "XID 79", "r", 1e12)
    assert nodes_to_avoid(known, 0.0)[0].until == DAY_S


def test_only_so_many_count_the_newest_first_and_the_file_does_not_grow() -> None:
    known: dict[str, KnownBad] = {}
    for k in range(NODES_MAX_COUNT + 50):
        known = dict(with_bad_node(known, f"n{k}", "x", "r", float(k)))
    assert len(known) == NODES_MAX_COUNT
    last = NODES_MAX_COUNT + 49
    assert [one.node for one in nodes_to_avoid(known, last)] == [f"n{last - k}" for k in range(COUNTED_MAX)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("rs"), st.floats(0, 100 * DAY_S)), max_size=20))
def test_nothing_counts_longer_than_a_week(told: list[tuple[str, str, float]]) -> None:
    known: dict[str, KnownBad] = {}
    for node, run, at in told:
        known = dict(with_bad_node(known, node, "x", run, at))
        assert all(one.until - one.at <= WEEK_S + 1 and one.times >= 1 for one in known.values())
    assert not nodes_to_avoid(known, 200 * DAY_S)
