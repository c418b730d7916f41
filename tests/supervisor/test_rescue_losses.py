"""A node that is lost in the middle of a rescue costs nothing that another one has, and keeps nobody waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from gangrun.core.checkpoints.memory import Holding
from gangrun.core.policy import Timing
from gangrun.supervisor.node_calls import CommandRetry
from gangrun.supervisor.recover_call import RecoverCall
from gangrun.wire.messages import CommandResult, MemoryAnswer, RankSample, Recover
from tests.supervisor.desk import Desk, HandAgent
from tests.supervisor.test_loop import killed
from tests.supervisor.test_rescue import CODE, FLUSHES, desk_of, holding, obey

Does = Callable[[HandAgent, Recover], None]
WITHIN_S = 60.0  # a silent node is lost once its lease is over, if not sooner
FIRST = holding(7, "0", "m", of=3)
COPIES = {"n0": [FIRST], "n1": [holding(7, "1", of=0)], "n2": [holding(7, "1", of=0)]}


def dies(node: str) -> Does:
    """It falls silent instead of writing anything."""

    def bring(agent: HandAgent, message: Recover) -> None:
        if agent.node != node:
            obey(agent, message)
        agent.beating = agent.beating and agent.node != node

    return bring


def refuses(node: str) -> Does:
    """It is another one under the same name, say, whose memory was empty when it began."""

    def bring(agent: HandAgent, message: Recover) -> None:
        agent.answer(message, ok=agent.node != node, why="'1' is not kept")

    return bring


def after_a_death(held: dict[str, list[Holding]], bring: Does) -> Desk:
    desk = desk_of(held, bring, nodes=3)
    killed(desk)
    desk.pass_s(WITHIN_S)
    return desk


def brought(desk: Desk) -> list[tuple[str, int]]:
    """What was made a checkpoint, discarded, sealed."""
    return [one for one in desk.checkpoints.asked if one[0].startswith(("adopt", "discard")) or one == ("seal", 1)]


def written(desk: Desk, node: str) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    said = {m.act: (m.step, m.files, m.rebuild) for m in desk.agents[node].heard(Recover) if m.into and not m.pin}
    return list(said.values())


@pytest.mark.parametrize("bring", [dies("n1"), refuses("n1")], ids=["is lost", "refuses"])
def test_what_it_should_have_written_is_brought_from_whoever_has_a_copy(bring: Does) -> None:
    desk = after_a_death(COPIES, bring)
    assert brought(desk) == [("adopt", 7), ("seal", 1)]
    assert written(desk, "n0") == [(7, ("0", "m"), ())], "nothing is written twice"
    assert written(desk, "n2") == [(7, ("1",), ())]


def test_with_the_last_that_had_a_file_the_step_is_given_up_at_once_and_nobody_writes_on() -> None:
    def bring(agent: HandAgent, message: Recover) -> None:
        if agent.node == "n1" and not message.pin:
            agent.answer(message, ok=False, why="No space left on device")

    desk = desk_of(COPIES | {"n2": []}, bring, nodes=3)
    killed(desk)
    desk.pass_s(5.0)
    assert brought(desk) == [("discard staging/1/0/7-ab", -1), ("seal", 1)]
    assert [(m.pin, m.step, m.files) for m in desk.agents["n0"].heard(Recover)][-1] == (True, -1, ())


def test_an_older_step_that_is_whole_without_it_is_brought_instead() -> None:
    older = holding(5, "0", "1", "m", of=3)
    desk = after_a_death({"n0": [older, FIRST], "n1": [holding(7, "1", of=0)]}, dies("n1"))
    gone = ("discard staging/1/0/7-ab", -1)
    assert brought(desk) == [gone, gone, ("adopt", 5), ("seal", 1)], "once more when nobody can write there any more"
    assert not desk.checkpoints.brought
    assert written(desk, "n0")[-1] == (5, ("0", "1", "m"), ())


PARITY = {
    "n0": [replace(FIRST, pieces=("p0",), codes=(CODE,))],
    "n1": [replace(holding(7, of=0), pieces=("p0",), codes=(CODE,))],
}


def test_another_one_makes_again_what_it_should_have_made() -> None:
    """What the lost one had written stays, though nobody holds it any more."""

    def bring(agent: HandAgent, message: Recover) -> None:
        if message.rebuild and agent.node == "n0":
            agent.beating = False
        else:
            obey(agent, message)

    desk = after_a_death(PARITY, bring)
    assert brought(desk) == [("adopt", 7), ("seal", 1)]
    assert written(desk, "n0") == [(7, ("0", "m", "p0"), ()), (7, (), ("1",))]
    assert written(desk, "n1") == [(7, (), ("1",))]


def test_a_silent_node_is_done_without_at_once_where_others_have_all_of_it_and_waited_for_where_not() -> None:
    desk = desk_of(COPIES, dies("n1"), nodes=3)
    killed(desk)
    desk.pass_s(10.0)
    assert brought(desk) == [("adopt", 7), ("seal", 1)]
    desk = desk_of(COPIES | {"n2": []}, dies("n1"), nodes=3)
    killed(desk)
    desk.pass_s(10.0)
    assert brought(desk) == []
    desk.agents["n1"].beating = True
    desk.pass_s(2.0)
    obey(desk.agents["n1"], desk.agents["n1"].heard(Recover)[-1])
    desk.pass_s(2.0)
    assert brought(desk) == [("adopt", 7), ("seal", 1)]


def test_who_is_lost_before_it_has_said_what_it_holds_is_not_waited_for() -> None:
    said: list[tuple[str, Any]] = []
    numbers = count(1)
    board = CommandRetry(lambda *one: said.append(one), 1, lambda: next(numbers), lambda now: True, Timing())
    call = RecoverCall(board, 0, -1, ("n0", "n1", "n2"), "staging", lambda *told: [], 0.0)
    for n, node in (1, "n0"), (3, "n2"):
        call.answered(n, CommandResult(node, "i", (1, n), True, "", MemoryAnswer(tuple(COPIES[node]))), 0.0)
    assert len(said) == 3
    call.tick(1.0, (), {"n1"})
    assert {(node, message.files) for node, message in said[3:]} == {("n0", ("0", "m")), ("n2", ("1",))}


def test_a_flush_does_not_go_on_without_it_since_others_pin_no_more_than_they_were_asked_for() -> None:
    desk = desk_of(COPIES, refuses("n1"), nodes=3, **FLUSHES)
    agent = desk.agents["n0"]
    agent.beat(readings=tuple(RankSample(rank, 8, 2, 9, 0, 0.0, "R", kept_step=7) for rank in agent.ranks))
    desk.pass_s(25.0)
    assert brought(desk) == [("discard staging/1/0/7-ab", -1)]
