"""Commands are said until answered, and a gang counts as stopped only when every node is accounted for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core.actions import EndJob
from gangrun.core.events import CancelRequested, Stamped
from gangrun.core.model import Phase, Savers
from gangrun.core.policy import Policy, Timing
from gangrun.core.protocol import lease
from gangrun.supervisor.gang_commands import FarewellCall
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.node_calls import HOLD_WITHIN_S, CommandRetry
from gangrun.wire import record as wire_record
from gangrun.wire.kinds import event_of
from gangrun.wire.messages import (
    CheckAnswer,
    CheckNode,
    CommandResult,
    Hello,
    Launch,
    PeerAddress,
    Prepare,
    Stacks,
    StartAnswer,
    Stop,
    StopAnswer,
)
from tests.supervisor.desk import Desk
from tests.supervisor.test_loop import killed


def cancel(desk: Desk) -> None:
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.turn_all()


def record(desk: Desk, kind: str) -> dict[str, Any]:
    """The newest event of this kind, with the fields that a record leaves out because they are as by default."""
    event = next(r.event for r in reversed(desk.disk.records(desk.loop.term)) if r.kind == kind)
    told: dict[str, Any] = wire_record.builtins(event_of(kind, event))
    return told


def test_a_command_is_said_every_beat_until_answered() -> None:
    desk = Desk()
    desk.open()
    desk.agents["n1"].obeys = False
    desk.join()
    desk.pass_s(5.0)
    said = desk.agents["n1"].heard(CheckNode)
    assert 5 <= len(said) <= 7 and len({m.act for m in said}) == 1
    assert len(desk.agents["n0"].heard(CheckNode)) == 1
    desk.agents["n1"].obeys = True
    desk.pass_s(3.0)
    assert desk.loop.state.phase is Phase.RUNNING


def test_answers_twice_or_to_nobody_change_nothing() -> None:
    desk = Desk()
    loop = desk.running()
    before = len(desk.disk.records(1))
    agent = desk.agents["n0"]
    for message in [*agent.heard(Launch), *agent.heard(CheckNode)]:
        agent.answer(message)
    agent.post(CommandResult("n0", "i1", (9, 9), True))
    agent.post(CommandResult("n9", "i1", (1, 1), True))
    agent.post(CommandResult("n0", "other", (1, 1), False))
    desk.turn_all()
    assert len(desk.disk.records(1)) == before and loop.state.phase is Phase.RUNNING


def test_devices_are_put_to_work_where_the_policy_says_so_and_what_they_did_is_journalled() -> None:
    desk = Desk(policy=Policy(test_at_start=True))
    desk.open()
    desk.agents["n1"].obeys = False
    desk.join()
    desk.pass_s(2.0)
    (check,) = {message.act: message for message in desk.agents["n1"].heard(CheckNode)}.values()
    assert check.tests == "quick"
    desk.agents["n1"].answer(check, answer=CheckAnswer("4 products"))
    desk.turn_all()
    assert record(desk, "NodeChecked")["tested"] == "4 products"


def test_launch_carries_the_shape_of_the_gang() -> None:
    desk = Desk(nodes=3)
    desk.running()
    launches = [desk.agents[f"n{i}"].heard(Launch)[0] for i in range(3)]
    assert [m.ranks for m in launches] == [(0, 1), (2, 3), (4, 5)]
    assert [m.slots for m in launches] == [(0, 1)] * 3
    assert {m.master_addr for m in launches} == {"10.0.0.n0"} and {m.master_port for m in launches} == {20000}
    assert [m.node_rank for m in launches] == [0, 1, 2] and launches[0].nodes == ("n[0-2]",)
    assert len({m.act for m in launches}) == 3


def test_rank_0_s_node_launches_first() -> None:
    """Ranks that ask for torch's store before rank 0 has opened it would wait for most of a second."""
    desk = Desk(nodes=3)
    desk.open()
    first, others = desk.agents["n0"], [desk.agents["n1"], desk.agents["n2"]]
    hear = first.hear

    def hear_but(message: Any) -> None:
        first.obeys = not isinstance(message, Launch)
        hear(message)

    first.hear = hear_but  # type: ignore[method-assign]
    desk.join()
    desk.pass_s(3.0)
    assert first.heard(Launch) and not any(agent.heard(Launch) for agent in others)
    first.attempt, first.ranks = 0, (0, 1)
    first.answer(first.heard(Launch)[0])
    desk.turn_all()
    assert [len(agent.heard(Launch)) for agent in others] == [1, 1]
    assert desk.loop.state.phase is Phase.RUNNING


@pytest.mark.parametrize(("kind", "word"), [(Prepare, "prove"), (Launch, "launch")])
def test_a_node_that_does_not_start_in_time_is_named(kind: type, word: str) -> None:
    desk = Desk(policy=Policy(start_within_s=20.0))
    desk.open()
    hear = desk.agents["n1"].hear

    def hear_but(message: Any) -> None:
        desk.agents["n1"].obeys = not isinstance(message, kind)
        hear(message)

    desk.agents["n1"].hear = hear_but  # type: ignore[method-assign]
    desk.join()
    desk.pass_s(25.0)
    failed = record(desk, "GangStartFailed")
    assert failed["node"] == "n1" and word in failed["why"] and not failed["retry_free"]
    assert desk.agents["n0"].heard(Stop)


def test_a_refusal_is_told_with_its_reason_and_stops_the_others() -> None:
    desk = Desk()
    desk.open()
    desk.agents["n1"].refuses[Launch] = "no lease"
    desk.join()
    desk.pass_s(0.5)
    first = next(r.event for r in desk.disk.records(1) if r.kind == "GangStartFailed")
    assert first == {"attempt": 0, "node": "n1", "why": "no lease"}
    assert desk.agents["n0"].heard(Stop) and desk.agents["n0"].ranks == ()


def test_stacks_that_come_count_at_the_deadline() -> None:
    desk = Desk(policy=replace(Policy(), hang=replace(Policy().hang, timeout_s=30.0)))
    desk.running()
    desk.agents["n1"].obeys = False
    for agent in desk.agents.values():
        agent.step = 5
    desk.pass_s(45.0)
    taken = record(desk, "StacksTaken")
    assert [stack["rank"] for stack in taken["stacks"]] == [0, 1]
    assert len(desk.agents["n1"].heard(Stacks)) > 5


def test_stop_needs_each_nodes_word_not_an_empty_beat() -> None:
    desk = Desk()
    loop = desk.running()
    desk.agents["n1"].obeys = False
    cancel(desk)
    desk.agents["n1"].ranks = ()
    desk.pass_s(5.0)
    assert loop.state.phase is Phase.STOPPING
    desk.agents["n1"].obeys = True
    desk.pass_s(2.0)
    assert loop.state.phase is Phase.CANCELLED


def test_what_cannot_be_killed_is_told_and_asked_again() -> None:
    desk = Desk()
    loop = desk.running()
    agent = desk.agents["n1"]
    agent.obeys = False
    cancel(desk)
    desk.pass_s(HOLD_WITHIN_S)
    agent.answer(agent.heard(Stop)[-1], False, "cannot be killed", StopAnswer(("pid 7",)))
    desk.turn_all()
    assert record(desk, "StopTimedOut") == {"attempt": 0, "node": "n1", "processes": ["pid 7"]}
    agent.obeys = True
    desk.pass_s(7.0)
    assert len({m.act for m in agent.heard(Stop)}) == 2
    assert loop.exit_code == 130 or loop.state.phase is Phase.CANCELLED


def test_ranks_that_had_to_be_killed_are_told() -> None:
    desk = Desk()
    loop = desk.running()
    for agent in desk.agents.values():
        agent.obeys = False
    cancel(desk)
    desk.pass_s(HOLD_WITHIN_S)
    for rank, agent in enumerate(desk.agents.values()):
        agent.answer(agent.heard(Stop)[-1], True, "", StopAnswer((), (rank,), 2.0, 40 + rank))
    desk.turn_all()
    assert loop.state.phase is Phase.CANCELLED
    told = record(desk, "GangStopped")
    assert (told["overdue"], told["grace_s"], told["saved_step"]) == ([0, 1], 2.0, 41)


def test_a_new_agent_on_the_node_is_asked_and_answers_for_it() -> None:
    desk = Desk()
    loop = desk.running()
    agent = desk.agents["n1"]
    agent.incarnation, agent.ranks, agent.attempt, agent.seq, agent.echo = "i2", (), -1, 0, 0.0
    agent.hello(previous_died="killed by signal 9")
    desk.turn_all()
    assert record(desk, "AgentRejoined")["why"] == "killed by signal 9"
    assert loop.state.phase is Phase.STOPPING  # nobody acts for a majority until the new agent has beaten
    agent.beat()
    desk.turn_all()
    assert loop.state.attempt.number == 1  # stopped, accounted for by the new agent, started again
    agent.incarnation = "i1"
    agent.hello()
    desk.turn_all()
    assert loop.beats.dropped["hello of a replaced agent"] == 1


def law_one(timing: Any) -> float:
    return timing.fence_after_s * (1 + timing.drift) + timing.kill_within_s + timing.warden_wake_s


def test_law_one_to_the_instant() -> None:
    desk = Desk(nodes=3, policy=replace(Policy(), saves_with=Savers.ALL))
    loop = desk.running()
    silent = desk.agents["n2"]
    silent.beating = silent.obeys = False
    last_beat = loop.beats.rows["n2"].arrived_at
    killed(desk)
    desk.pass_s(1.0)
    assert loop.state.phase is Phase.STOPPING
    due = loop.run_clock.boot(lease.presumed_empty_at(last_beat, desk.policy.timing))
    assert due == pytest.approx(loop.run_clock.boot(last_beat) + law_one(desk.policy.timing))
    desk.pass_s(due - desk.clock.boot - 0.001)
    assert loop.state.phase is Phase.STOPPING
    desk.pass_s(0.002)
    assert loop.state.phase is not Phase.STOPPING
    stopped = record(desk, "GangStopped")
    assert stopped["presumed"] == [["n2", "its lease has expired"]]


@pytest.mark.parametrize(
    ("node", "facts", "allowed"),
    [
        ("n2", {}, True),
        ("n2", {"replica_ranks_count": 2}, False),  # it can step without the others
        ("n0", {}, False),  # rank 0 of a script of which nobody knows who saves
        ("n0", {"saves_with": Savers.CHECKPOINTER}, True),
        ("n2", {"saves_with": Savers.ALL}, False),
    ],
)
def test_the_fragment_rule(node: str, facts: dict[str, Any], allowed: bool) -> None:
    desk = Desk(nodes=3, policy=Policy(**facts))
    loop = desk.running()
    for agent in desk.agents.values():
        agent.step = 1
    for step in range(2, 8):
        for agent in desk.agents.values():
            agent.step = step
        desk.pass_s(1.0)
    desk.agents[node].beating = desk.agents[node].obeys = False
    desk.pass_s(12.0)
    assert "NodeLost" in desk.kinds()
    if allowed:
        stopped = record(desk, "GangStopped")
        assert stopped["presumed"][0][1].startswith("by the fragment rule")
    else:
        assert loop.state.phase is Phase.STOPPING
        desk.pass_s(25.0)
        assert record(desk, "GangStopped")["presumed"][0][1].startswith("its lease")


def test_ranks_of_an_attempt_that_is_over_are_stopped_when_their_node_comes_back() -> None:
    desk = Desk(nodes=3)
    loop = desk.running()
    agent = desk.agents["n2"]
    agent.beating = agent.obeys = False
    desk.pass_s(40.0)
    assert loop.state.phase is not Phase.RUNNING
    stops = len(agent.heard(Stop))
    agent.beating = agent.obeys = True
    agent.beat()
    desk.pass_s(2.0)
    assert len(agent.heard(Stop)) > stops and (agent.ranks == () or agent.attempt > 0)


def test_a_second_cancel_takes_the_grace_away() -> None:
    desk = Desk()
    desk.running()
    desk.agents["n1"].obeys = False
    cancel(desk)
    desk.pass_s(HOLD_WITHIN_S)
    cancel(desk)
    stops = desk.agents["n1"].heard(Stop)
    assert stops[0].grace_s > 0 and stops[-1].grace_s == 0 and stops[0].act != stops[-1].act


def test_a_busy_port_is_nobodys_fault() -> None:
    desk = Desk()
    desk.open()
    agent = desk.agents["n0"]
    hear = agent.hear

    def first_port_taken(message: Any) -> None:
        agent.obeys = not (isinstance(message, Prepare) and message.attempt == 0)
        hear(message)
        if not agent.obeys:
            agent.answer(message, False, "port 20000 is taken", StartAnswer(retry_free=True))

    agent.hear = first_port_taken  # type: ignore[method-assign]
    desk.join()
    desk.pass_s(3.0)
    first = next(r.event for r in desk.disk.records(1) if r.kind == "GangStartFailed")
    assert first["retry_free"] and desk.loop.state.phase is Phase.RUNNING and desk.loop.state.attempt.number == 1
    assert desk.loop.state.budget.total_count == 0


def test_stacks_that_make_no_sense_are_no_evidence() -> None:
    desk = Desk(policy=replace(Policy(), hang=replace(Policy().hang, timeout_s=30.0)))
    desk.running()
    agent = desk.agents["n1"]
    hear = agent.hear

    def nonsense(message: Any) -> None:
        agent.obeys = not isinstance(message, Stacks)
        hear(message)
        if not agent.obeys:
            agent.answer(message)

    agent.hear = nonsense  # type: ignore[method-assign]
    for other in desk.agents.values():
        other.step = 5
    desk.pass_s(40.0)
    assert [stack["rank"] for stack in record(desk, "StacksTaken")["stacks"]] == [0, 1]


def test_an_agent_that_comes_after_the_end_is_not_waited_for_without_bound() -> None:
    def row(node: str, at: float) -> Row:
        return Row(Hello(node, "j", "b", "i", 1, 1, -1, (), PeerAddress(node, "x", "k")), at, at)

    numbers = iter(range(1, 9))
    rows, timing = {"n0": row("n0", 0.0)}, Timing()
    board = CommandRetry(lambda node, message: None, 1, lambda: next(numbers), lambda now: True, timing)
    call = FarewellCall(board, EndJob(Phase.SUCCEEDED, 0, "all ranks finished"), rows, timing, 0.0)
    call.tick(1.0, (), ("n0",))
    assert call.answered_by_all
    rows["n1"] = row("n1", 20.0)
    call.dismiss("n1", 20.0)
    assert not call.answered_by_all
    assert call.deadline <= 22.0, "nobody looks after it again"
    call.tick(20.0 + timing.silence_after_s, (), ())
    assert call.answered_by_all, "it does not beat"
