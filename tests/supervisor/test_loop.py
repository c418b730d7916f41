"""The loop's order of things: record, ticket, act; what the disk may and may not hold up."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gangrun.core.checkpoints.flush_to_disk import END_WITHIN_S
from gangrun.core.events import AgentJoined, CancelRequested, FlushDue, RankFinished, SaveRequested, Stamped
from gangrun.core.evidence import StateFigures
from gangrun.core.model import AttemptRecord, MemoryStep, Outcome, Phase, RunState, SavedProgress, Shape
from gangrun.core.policy import Policy
from gangrun.core.recovery import error_rules
from gangrun.ports import AgentsSaid, StoreTrouble
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.node_calls import HOLD_WITHIN_S
from gangrun.supervisor.opening import EXIT_DEPOSED, RunFacts
from gangrun.supervisor.progress import NEVER, CheckpointPolling, GangProgress
from gangrun.wire.messages import (
    Ack,
    AskSave,
    Farewell,
    Hello,
    Launch,
    PeerAddress,
    Prepare,
    RankSample,
    SaveAnswer,
    Stop,
)
from gangrun.wire.record import replay
from gangrun.wire.spec import CheckpointSpec
from tests.supervisor.desk import Desk
from tests.supervisor.ports_in_memory import HandCheckpoints

HOW = {"rank": 1, "node": "n0", "code": 1, "signal": None, "oom_kill": False, "by_us": False, "error": None, "at": 0.0}
EXIT = {"attempt": 0, "exit": HOW}


def killed(desk: Desk, seq: int = 1, attempt: int = 0) -> None:
    """Rank 1 on n0 dies, and its agent says so with the next beat."""
    agent = desk.agents["n0"]
    agent.tell(seq, "RankExited", {**EXIT, "attempt": attempt})
    agent.beat()
    desk.turn_all()


def test_the_patterns_of_error_texts_are_compiled_while_ranks_train() -> None:
    """And not when the first of them falls, while all wait for the restart."""
    compiled = error_rules._patterns
    compiled.cache_clear()
    desk = Desk()
    desk.running()
    desk.turn_all()
    assert desk.loop.state.phase is Phase.RUNNING
    assert compiled.cache_info().currsize == 1


def test_the_order_in_which_ranks_of_two_hosts_fell_is_told_by_one_clock() -> None:
    """Uptimes differ by days: the rank of the host that booted last did not fall first for that."""
    desk = Desk()
    desk.running()
    uptimes = {"n0": 9e5, "n1": 50.0}
    for node, rank, ago_s in (("n1", 2, 0.5), ("n0", 1, 0.8)):
        agent = desk.agents[node]
        boot = desk.clock.boot + uptimes[node]
        exit_of = {**HOW, "node": node, "rank": rank, "at": boot - ago_s, "written_at": boot - ago_s - 0.1}
        agent.tell(1, "RankExited", {"attempt": 0, "exit": exit_of})
        agent.beat(boottime=boot)
    desk.turn_all()
    told = [record for record in desk.disk.records(1) if record.kind == "RankExited"]
    ends = {record.event["exit"]["rank"]: record.event["exit"] for record in told}
    assert ends[2]["at"] - ends[1]["at"] == pytest.approx(0.3, abs=1e-3)
    assert ends[1]["at"] - ends[1]["written_at"] == pytest.approx(0.1, abs=1e-3)
    assert told[0].at - ends[2]["at"] == pytest.approx(0.5, abs=1e-3)
    [verdict] = [record.reason for record in desk.disk.records(1) if record.kind == "GangStopped"]
    assert verdict.startswith("rank 1 on n0")


def test_a_fresh_run_gets_to_running_and_the_journal_is_the_state() -> None:
    desk = Desk()
    loop = desk.running()
    assert loop.state.attempt.number == 0
    assert loop.state.roster.nodes["n0"].addresses == ("address of n0",)
    assert replay(desk.disk.records(1)) == loop.state
    assert desk.kinds()[:3] == ["Snapshot", "TermTaken", "AgentJoined"]


def test_record_then_ticket_then_act() -> None:
    desk = Desk()
    desk.open()
    order: list[tuple[str, Any]] = []
    desk.store.log = order  # type: ignore[assignment]
    hear = desk.radio.on_send
    desk.radio.on_send = lambda node, message: (order.append((type(message).__name__, node)), hear(node, message))[1]  # type: ignore[func-returns-value]
    desk.join()
    desk.pass_s(3.0)
    start = next(r for r in desk.disk.records(1) for act in r.actions if act.kind == "StartGang")
    ticket = next(act.n for act in start.actions if act.kind == "StartGang")
    assert order.index(("fsync", start.n)) < order.index(("ticket", ticket)) < order.index(("Prepare", "n0"))


def test_nothing_is_performed_before_its_record_is_durable() -> None:
    desk = Desk()
    desk.open()
    desk.store.stalled = True
    desk.join()
    desk.pass_s(3.0)
    assert desk.loop.state.phase is Phase.CHECKING
    assert not desk.agents["n0"].heard(Prepare) and not desk.checkpoints.asked
    desk.store.stalled = False
    desk.store.flush()
    desk.pass_s(3.0)
    assert desk.loop.state.phase is Phase.RUNNING


def test_a_start_that_waits_for_the_disk_does_not_happen_after_its_stop() -> None:
    desk = Desk()
    desk.open()
    stall_at_start(desk)
    assert desk.loop.state.underway.stage is not None and desk.loop.state.underway.stage.value == "launching"
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.turn_all()
    assert desk.agents["n0"].heard(Stop)
    desk.store.stalled = False
    desk.store.flush()
    desk.pass_s(5.0)
    assert not desk.agents["n0"].heard(Prepare) and not desk.agents["n0"].heard(Launch)
    assert desk.loop.state.phase is Phase.CANCELLED


def stall_at_start(desk: Desk) -> None:
    """The disk stops answering just as the launch is decided."""

    def stall(what: str) -> None:
        desk.store.stalled = what == "choose"

    desk.checkpoints.on_ask = stall
    desk.join()
    desk.pass_s(0.5)


def test_a_stop_does_not_wait_for_the_disk() -> None:
    desk = Desk()
    desk.running()
    desk.store.stalled = True
    killed(desk)
    assert desk.loop.state.phase is not Phase.RUNNING
    assert desk.agents["n1"].heard(Stop)


def test_a_start_whose_ticket_was_withheld_is_a_cancel() -> None:
    """The run was cancelled and the word of it has not come yet: this process may have been stopped."""
    desk = Desk()
    desk.open()
    desk.disk.cancelled_by = "a person"
    desk.join()
    desk.pass_s(3.0)
    assert desk.loop.state.phase is Phase.CANCELLED
    assert desk.loop.state.ending.cancelled_by == "a person"
    assert not [m for agent in desk.agents.values() for m in agent.got if isinstance(m, Prepare | Launch)]


def test_acks_go_on_while_the_journal_stands_still_but_cover_no_event() -> None:
    desk = Desk()
    desk.running()
    desk.store.stalled = True
    killed(desk)
    desk.pass_s(20.0)
    assert desk.loop.state.store_stalled_since is not None
    acks = desk.agents["n0"].acks
    assert acks[-1].seq == desk.agents["n0"].seq and acks[-1].journalled_seq == 0
    assert not [m for m in desk.agents["n0"].got if isinstance(m, Prepare) and m.attempt == 1]
    desk.store.stalled = False
    desk.store.flush()
    desk.pass_s(1.1)
    assert desk.loop.state.store_stalled_since is None
    assert desk.agents["n0"].acks[-1].journalled_seq == 1
    assert {"StoreStalled", "StoreBack"} <= set(desk.kinds())
    assert replay(desk.disk.records(1)) == desk.loop.state


def test_each_event_counts_once_however_often_it_is_said() -> None:
    desk = Desk()
    loop = desk.running()
    desk.store.stalled = True
    killed(desk)
    for _ in range(5):
        desk.agents["n0"].beat()
    desk.turn_all()
    desk.store.flush()
    assert desk.kinds().count("RankExited") == 1
    assert loop.state.marks["n0"] == ("i1", 1)


def test_ranks_are_told_how_often_the_run_failed_before() -> None:
    desk = Desk()
    desk.running()
    killed(desk)
    launches = desk.agents["n0"].heard(Launch)
    assert [one.failures_count for one in launches] == [0, 1]


def test_events_are_taken_in_order_and_a_gap_waits() -> None:
    desk = Desk()
    desk.running()
    agent = desk.agents["n0"]
    agent.tell(2, "RankExited", EXIT)
    agent.beat()
    desk.turn_all()
    assert desk.loop.state.attempt.number == 0 and "RankExited" not in desk.kinds()
    agent.events.clear()
    agent.tell(1, "FindingRaised", {"finding": {"node": "n0", "check": "c", "fatal": False, "sentence": "s"}})
    agent.tell(2, "RankExited", EXIT)
    agent.beat()
    desk.turn_all()
    assert desk.loop.state.attempt.number == 1  # stopped, judged and started again, all in this instant
    assert desk.kinds().count("RankExited") == 1


@pytest.mark.parametrize("kind", ["TermTaken", "NoSuchEvent", "RankExited"])
def test_what_an_agent_may_not_say_is_counted_and_forgotten(kind: str) -> None:
    desk = Desk()
    loop = desk.running()
    agent = desk.agents["n0"]
    agent.tell(1, kind, {"nonsense": 1})
    agent.beat()
    desk.turn_all()
    agent.beat()
    desk.turn_all()
    assert loop.state.phase is Phase.RUNNING and loop.state.marks["n0"] == ("i1", 1)
    record = desk.disk.records(1)[-1]
    assert record.kind == "Malformed" and record.outcome == Outcome.REFUSED.value
    assert agent.acks[-1].journalled_seq == 1
    assert replay(desk.disk.records(1)) == loop.state


def test_deposed_means_silence_at_once() -> None:
    desk = Desk()
    loop = desk.running()
    desk.disk.sealed.add(1)
    sent = len(desk.radio.sent)
    killed(desk)
    after = [type(m).__name__ for _, m in desk.radio.sent[sent:]]
    assert loop.exit_code == EXIT_DEPOSED
    assert set(after) <= {"Ack", "Stop"}  # a stop did not wait for the disk; nothing was started
    count = len(desk.radio.sent)
    for agent in desk.agents.values():
        agent.beat()
    assert loop.turn() is False and len(desk.radio.sent) == count


@pytest.mark.parametrize("said", ["hello", "beat"])
def test_an_agent_that_knows_a_newer_term_deposes(said: str) -> None:
    desk = Desk()
    loop = desk.running()
    sent = len(desk.radio.sent)
    getattr(desk.agents["n1"], said)(term_max=2)
    desk.turn_all()
    assert loop.exit_code == EXIT_DEPOSED and len(desk.radio.sent) == sent


def test_a_bundle_of_letters_is_one_turn_and_nothing_of_it_counts_after_one_that_deposes() -> None:
    desk = Desk()
    loop = desk.running()

    def bundle(**changes: object) -> None:
        for agent in desk.agents.values():
            agent.beat(**changes)
        said = [letter for item in desk.mailbox.items if isinstance(item, AgentsSaid) for letter in item.letters]
        desk.mailbox.items.clear()
        desk.mailbox.post(AgentsSaid(said))

    acked = {name: len(agent.acks) for name, agent in desk.agents.items()}
    bundle()
    assert loop.turn()
    assert {name: len(agent.acks) for name, agent in desk.agents.items()} == {name: n + 1 for name, n in acked.items()}
    bundle(term_max=2)
    assert not loop.turn() and loop.exit_code == EXIT_DEPOSED
    assert sum("leaves" in line for line in desk.says) == 1


def test_trouble_is_said_once() -> None:
    desk = Desk()
    desk.running()
    for _ in range(3):
        desk.mailbox.post(StoreTrouble(99, "No space left on device"))
    desk.turn_all()
    assert sum("No space left" in line for line in desk.says) == 1


def test_a_refused_event_changes_nothing_and_is_on_record() -> None:
    desk = Desk()
    loop = desk.running()
    before = loop.state
    desk.mailbox.post(Stamped(AgentJoined("n0", "i9", "b", 2)))
    desk.turn_all()
    assert "AgentJoined" in [record.kind for record in desk.disk.records(1)]
    assert loop.state.attempt.number == before.attempt.number


def test_the_run_ends_with_its_code_and_agents_are_dismissed() -> None:
    desk = Desk()
    loop = desk.running()
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.pass_s(5.0)
    assert loop.exit_code == 130
    assert desk.agents["n0"].heard(Farewell)[0].exit_code == 130
    assert any(isinstance(m, Ack) for m in desk.agents["n0"].got)


def test_an_end_waits_for_agents_that_do_not_answer_only_so_long() -> None:
    desk = Desk()
    loop = desk.running()
    hear = desk.agents["n1"].hear

    def deaf(message: Any) -> None:
        desk.agents["n1"].obeys = not isinstance(message, Farewell)
        hear(message)

    desk.agents["n1"].hear = deaf  # type: ignore[method-assign]
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.pass_s(30.0)
    assert loop.exit_code is None and len(desk.agents["n1"].heard(Farewell)) >= 25  # it beats, so it is told again
    desk.agents["n1"].beating = False
    desk.pass_s(6.0)
    assert loop.exit_code == 130


def test_the_counter_file_is_written_every_five_seconds() -> None:
    desk = Desk()
    desk.running()
    for agent in desk.agents.values():
        agent.step = 7
    desk.pass_s(6.0)
    assert desk.store.live["step"] == 7 and desk.store.live["agents_heard_count"] == 2
    assert ("look", -1) not in desk.checkpoints.asked
    desk.pass_s(10.0)
    assert ("look", -1) in desk.checkpoints.asked


def test_ranks_are_noted_by_node_every_fifteen_seconds() -> None:
    desk = Desk()
    desk.running()
    noted: dict[float, dict[str, list[int]]] = {}
    for _ in range(40):
        desk.pass_s(1.0)
        live: Any = desk.store.live
        if ranks := live.get("ranks"):
            noted[live["at"]] = {node: [rank for rank, *_ in rows] for node, rows in ranks.items()}
    times = sorted(noted)
    assert len(times) >= 2 and all(later - earlier >= 15 for earlier, later in itertools.pairwise(times))
    assert noted[times[-1]] == {name: sorted(agent.ranks) for name, agent in desk.agents.items() if agent.ranks}


def test_first_step_and_marks() -> None:
    desk = Desk()
    loop = desk.running()
    for agent in desk.agents.values():
        agent.step = 3
    desk.pass_s(1.5)
    assert desk.kinds().count("FirstStepSeen") == 1 and loop.state.attempt.step == 3
    for step in range(4, 70):
        for agent in desk.agents.values():
            agent.step = step
        desk.pass_s(1.0)
    assert 2 <= desk.kinds().count("ProgressMarked") <= 3


def test_what_files_tell_counts_where_ranks_tell_nothing() -> None:
    desk = Desk()
    loop = desk.running()
    desk.checkpoints.told = StateFigures(20, 60, 2.5)
    desk.pass_s(45.0)
    live: Any = desk.store.live
    assert (live["step"], live["log_step"], live["total_steps"], live["loss"]) == (-1, 20, 60, 2.5)
    assert desk.kinds().count("FirstStepSeen") == 1 and desk.kinds().count("ProgressMarked") == 1
    marked = next(record for record in desk.disk.records(desk.loop.term) if record.kind == "ProgressMarked")
    assert (marked.event["step"], marked.event["loss"]) == (20, 2.5)  # the curves of a report are drawn from these
    assert (loop.state.attempt.step, loop.state.attempt.total_steps, loop.state.checkpoints.logged_step) == (-1, 60, 20)
    for agent in desk.agents.values():
        agent.step = 31
    desk.pass_s(15.0)
    live = desk.store.live
    assert live["step"] == 31 and "log_step" not in live


@pytest.mark.parametrize(("steps", "saved"), [((19, 20), 21), ((0, -1), 1), ((-1, -1), -1)])
def test_all_nodes_are_told_to_save_the_step_after_the_newest_of_all(steps: tuple[int, int], saved: int) -> None:
    """Ranks wait at the end of their next step until then, so none can be past it. -1: no script reads requests."""
    desk = Desk()
    desk.running()
    for agent, step in zip(desk.agents.values(), steps, strict=False):
        agent.step = step
    desk.mailbox.post(Stamped(CancelRequested("ada")))
    desk.turn_all()
    stops = [stop for agent in desk.agents.values() for stop in agent.heard(Stop)]
    assert [stop.save_step for stop in stops] == [saved] * 2
    assert [one.hold for agent in desk.agents.values() for one in agent.heard(AskSave)] == [True] * 2


def test_a_node_that_does_not_tell_its_step_delays_a_stop_by_two_seconds_at_most() -> None:
    desk = Desk()
    desk.running()
    n0, n1 = desk.agents.values()
    n0.step, n1.obeys = 7, False
    desk.mailbox.post(Stamped(CancelRequested("ada")))
    desk.turn_all()
    assert not n0.heard(Stop)
    desk.pass_s(HOLD_WITHIN_S + 0.1)
    assert [stop.save_step for stop in n0.heard(Stop)] == [8] and n1.heard(Stop)[0].save_step == 8


def test_a_second_cancel_does_not_wait_for_the_step_to_save() -> None:
    desk = Desk()
    desk.running()
    for agent in desk.agents.values():
        agent.obeys = False
    desk.mailbox.post(Stamped(CancelRequested("ada")))
    desk.turn_all()
    desk.mailbox.post(Stamped(CancelRequested("ada")))
    desk.turn_all()
    assert all(agent.heard(Stop) for agent in desk.agents.values())


def test_ranks_save_on_request_of_a_person_and_train_on() -> None:
    desk = Desk()
    loop = desk.running()
    n0, n1 = desk.agents.values()
    desk.mailbox.post(Stamped(SaveRequested("ada", "k1")))
    desk.mailbox.post(Stamped(SaveRequested("eve", "k2")))  # while the first one waits
    desk.turn_all()
    (first,), (other,) = ([one for one in node.heard(AskSave) if not one.hold] for node in (n0, n1))
    assert [one.save_step for one in (first, other)] == [-1] * 2, "the second one would replace it in some ranks"
    n0.answer(first, answer=SaveAnswer(7))
    desk.turn_all()
    assert "SaveAnswered" not in desk.kinds(), "n1 has not answered"
    n1.answer(other, False, "the script reads none")  # rank 0 alone may read requests
    desk.turn_all()
    assert "all ranks that read requests saved when asked, at step 7" in desk.says
    desk.turn_all()
    second = [one for one in n0.heard(AskSave) if not one.hold][-1]
    assert second.act != first.act, "asked once the first is over"
    n0.answer(second, False, "the script reads none")
    desk.turn_all()
    n1.beating = n1.obeys = False  # its answer never comes
    desk.pass_s(40.0)
    assert "SaveRequested in STOPPING: no rank trains now" not in desk.says
    desk.mailbox.post(Stamped(SaveRequested("ada", "k3")))
    desk.turn_all()
    assert loop.state.phase is not Phase.RUNNING and desk.kinds().count("SaveAnswered") == 1


def test_a_stop_joins_the_save_that_ranks_were_told_of() -> None:
    """Some ranks may be saving that step and wait for the others: these must not be told of another one."""
    desk = Desk()
    desk.running()
    for agent, step in zip(desk.agents.values(), (41, 42), strict=True):
        agent.step = step
    desk.mailbox.post(Stamped(SaveRequested("ada", "k1")))
    desk.turn_all()
    for agent in desk.agents.values():
        assert [(one.hold, one.save_step) for one in agent.heard(AskSave)] == [(True, -1), (False, 43)]
        agent.obeys, agent.step = False, 50
    desk.mailbox.post(Stamped(CancelRequested("ada")))
    desk.turn_all()
    for agent in desk.agents.values():
        assert [one.save_step for one in agent.heard(Stop)] == [43]
        assert len(agent.heard(AskSave)) == 2, "nothing is held for it"


def test_run_turns_until_it_is_over() -> None:
    desk = Desk()
    loop = desk.running()
    desk.disk.sealed.add(1)
    desk.mailbox.stop_at = float("inf")
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    assert loop.run() == EXIT_DEPOSED
    assert "leaves" in desk.says[-1]


def test_what_comes_before_the_terms_first_event_waits_for_it() -> None:
    desk = Desk()
    desk.running()
    loop = desk.open()
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.turn_all()
    assert loop.state.ending.cancelled_by == ""
    desk.pass_s(6.0)
    kinds = desk.kinds()
    assert kinds.index("TermTaken") < kinds.index("CancelRequested")


WAITS = RunState(run="r", shape=Shape(2, 2, 1, 1), checkpoints=SavedProgress(best_step=4))
RUNS = replace(WAITS, phase=Phase.RUNNING, attempt=replace(WAITS.attempt, number=0))
SAVES = replace(RUNS, phase=Phase.STOPPING, underway=replace(RUNS.underway, saving=True))


def looks(every_s: float = 10.0, state: RunState = WAITS) -> tuple[CheckpointPolling, list[tuple[str, int]]]:
    checkpoints = HandCheckpoints(post=lambda item: None)
    return made_of(checkpoints, state, checkpoint=CheckpointSpec("d", look_every_s=every_s))[0], checkpoints.asked


def made_of(
    checkpoints: HandCheckpoints, state: RunState, **facts: CheckpointSpec
) -> tuple[CheckpointPolling, GangProgress]:
    progress = GangProgress(Policy(), 100.0)
    told = replace(RunFacts(run="r", shape=state.shape, job="j"), **facts)  # type: ignore[arg-type]
    return CheckpointPolling(checkpoints, told, state, 100.0, progress), progress


def test_now_and_then_while_ranks_train_and_often_while_all_wait_for_a_save() -> None:
    made, asked = looks()
    assert made.due(WAITS) == NEVER
    made.follow(WAITS, RUNS, 101.0)
    assert made.due(RUNS) == 111.0
    made.look(RUNS, 110.0)
    assert asked == []
    made.look(RUNS, 111.0)
    assert (asked, made.due(RUNS)) == ([("look", 4)], 121.0)
    made.follow(RUNS, SAVES, 112.0)
    assert (asked.pop(), made.due(SAVES)) == (("await save", -1), 113.0)
    made.follow(SAVES, SAVES, 112.5)
    made.look(SAVES, 113.0)
    assert (asked, made.due(SAVES)) == ([("look", 4), ("look", 4)], 114.0)
    assert made.due(replace(SAVES, underway=replace(SAVES.underway, saving=False))) == NEVER


def test_a_supervisor_that_takes_over_meanwhile_does_the_same() -> None:
    made, asked = looks(state=SAVES)
    assert (asked, made.due(SAVES)) == ([("await save", -1)], 101.0)


def test_without_a_directory_never() -> None:
    made, asked = looks(every_s=0.0)
    made.follow(WAITS, RUNS, 101.0)
    made.follow(RUNS, SAVES, 102.0)
    made.look(SAVES, 200.0)
    assert asked == [] and made.due(RUNS) == made.due(SAVES) == NEVER


def row(step: int, kept_step: int, attempt: int = 0) -> Row:
    reading = RankSample(0, step, 2, step, 0, 0.0, "R", kept_step=kept_step)
    hello = Hello("n0", "j", "b", "i", 1, 1, 0, (), PeerAddress("n0", "x", "k"))
    made = Row(hello, 0.0, 0.0, attempt=attempt)
    made.take((reading,))
    return made


def test_a_flush_is_due_when_the_disk_has_had_nothing_new_for_so_long_and_memory_has() -> None:
    made, progress = made_of(
        HandCheckpoints(post=lambda item: None), WAITS, checkpoint=CheckpointSpec(memory=True, flush_every_s=60.0)
    )
    assert made.due(WAITS) == NEVER
    progress.begin(0, 100.0, 100.0)
    made.follow(WAITS, RUNS, 100.0)
    assert made.due(RUNS) == 160.0
    assert made.due(replace(RUNS, store_stalled_since=1.0)) == NEVER
    assert made.look(RUNS, 159.0) == []
    assert made.look(RUNS, 160.0) == [], "nothing is in memory"
    assert made.due(RUNS) == 161.0
    progress.observe(row(9, 8), 161.0)
    assert made.look(RUNS, 161.0) == [FlushDue(0, 8)]
    assert made.due(RUNS) == 161.0 + END_WITHIN_S, "while it is written"
    made.brought(163.0)
    assert made.due(RUNS) == 221.0
    newer = replace(RUNS, checkpoints=replace(RUNS.checkpoints, best_step=8))
    made.follow(RUNS, newer, 180.0)
    assert made.due(newer) == 240.0, "somebody wrote to the disk"
    assert made.look(newer, 240.0) == []


def test_a_step_with_fewer_copies_than_it_had_is_due_at_once_and_again_only_after_a_write_that_failed() -> None:
    """Or where nobody tells what became of it. The run needs no setting for that."""
    lost = (
        AttemptRecord(0, "j", ("n0", "n1"), 1.0),
        AttemptRecord(1, "j", ("n0", "n2"), 2.0, memory=MemoryStep(0, 8, "ab", is_shared=True, lacking=("n2",))),
    )
    runs = replace(RUNS, attempt=replace(RUNS.attempt, number=1), attempts=lost)
    made, progress = made_of(HandCheckpoints(post=lambda item: None), WAITS, checkpoint=CheckpointSpec())
    progress.begin(1, 100.0, 100.0)
    made.follow(WAITS, runs, 100.0)
    assert made.due(runs) == 100.0 and made.look(runs, 100.0) == [FlushDue(1, 8)]
    assert made.due(runs) == 100.0 + END_WITHIN_S and made.look(runs, 500.0) == []
    made.brought(500.0)
    assert made.due(runs) == 560.0, "it failed, or is looked at now"
    assert made.due(replace(runs, checkpoints=replace(runs.checkpoints, best_step=8))) == NEVER
    progress.observe(row(9, 8, attempt=1), 501.0)
    assert made.due(runs) == NEVER, "all nodes protect a step of their own"


def test_without_the_setting_nothing_is_flushed() -> None:
    made, progress = made_of(HandCheckpoints(post=lambda item: None), RUNS, checkpoint=CheckpointSpec())
    progress.begin(0, 100.0, 100.0)
    progress.observe(row(9, 8), 161.0)
    assert (made.due(RUNS), made.look(RUNS, 1e6)) == (NEVER, [])


def test_records_on_their_way_keep_no_states() -> None:
    """Else the end of 16,384 ranks, whose records all wait for a disk that stands still, takes gigabytes."""
    desk = Desk(nodes=8, shape=Shape(8, 8, 8, 1), addresses={})
    desk.open()
    for agent in desk.agents.values():
        agent.hello(slots_count=8)
    desk.turn_all()
    desk.pass_s(3.0)
    assert desk.loop.state.phase is Phase.RUNNING
    desk.store.stalled = True
    for agent in desk.agents.values():
        for seq, rank in enumerate(agent.ranks, start=1):
            agent.tell(seq, "RankFinished", msgspec.to_builtins(RankFinished(0, rank, agent.node, 1.0)))
        agent.ranks = ()
        agent.beat()
    desk.turn_all()
    assert len(desk.loop.journal) >= 64 and len(desk.loop.state.attempt.finished) == 64
    gc.collect()
    assert sum(type(one) is RunState for one in gc.get_objects()) < 32  # isinstance asks torch's objects, which warn
    desk.store.flush()
    desk.turn_all()
    assert desk.loop.journal.durable_marks == desk.loop.state.marks
    assert desk.loop.journal.durable_nodes is desk.loop.state.roster.nodes
