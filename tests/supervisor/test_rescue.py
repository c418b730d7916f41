"""Before a new attempt chooses where to go on, what only the nodes hold in memory is brought to the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from gangrun.core.checkpoints.memory import HeldCode, HeldStripe, Holding, Offered
from gangrun.core.events import CancelRequested, Stamped
from gangrun.core.model import MemoryStep, Phase
from gangrun.core.policy import Policy, Timing
from gangrun.supervisor.node_calls import CommandRetry
from gangrun.supervisor.recover_call import RecoverCall
from gangrun.wire.messages import CommandResult, Farewell, Launch, MemoryAnswer, RankSample, Recover
from gangrun.wire.spec import CheckpointSpec
from tests.supervisor.desk import Desk, HandAgent
from tests.supervisor.test_loop import killed

KEEPS = Policy(keeps_memory=True)


def staging(term: int, attempt: int) -> str:
    return f"staging/{term}/{attempt}"


def holding(step: int, *files: str, of: int) -> Holding:
    return Holding(step, "ab", files, of)


def desk_of(
    held: dict[str, list[Holding]], bring: Callable[[HandAgent, Recover], None], policy: Policy | None = None,
    **facts: Any,
) -> Desk:  # fmt: skip
    """Two nodes that answer what they hold, and then do with the second question as ``bring`` says."""
    desk = Desk(memory_staging=staging, policy=policy, **facts)

    def listen(agent: HandAgent) -> None:
        hear = agent.hear

        def hearing(message: Any) -> None:
            if not isinstance(message, Recover):
                hear(message)
                return
            agent.got.append(message)
            why = desk.checkpoints.bring(message.into) if message.files else ""
            if why:
                agent.answer(message, ok=False, why=why)
            elif message.into:
                bring(agent, message)
            else:
                agent.answer(message, answer=MemoryAnswer(tuple(held.get(agent.node, ()))))

        agent.hear = hearing  # type: ignore[method-assign]

    for agent in desk.agents.values():
        listen(agent)
    desk.running()
    return desk


def obey(agent: HandAgent, message: Recover) -> None:
    agent.answer(message)


def restarted(desk: Desk, attempt: int = 0) -> list[tuple[str, int]]:
    """What the checkpoint room was asked for by the next attempt."""
    before = len(desk.checkpoints.asked)
    killed(desk, 1 + attempt, attempt)
    desk.pass_s(5.0)
    return [one for one in desk.checkpoints.asked[before:] if one[0] in {"adopt", "seal", "choose"}]


def test_a_whole_step_is_brought_by_those_who_hold_it_before_older_attempts_are_sealed() -> None:
    desk = desk_of({"n0": [holding(7, "0", "m", of=3)], "n1": [holding(7, "1", of=0)]}, obey)
    assert restarted(desk) == [("adopt", 7), ("seal", 1), ("choose", 1)]
    brought = {node: [m for m in agent.heard(Recover) if m.into] for node, agent in desk.agents.items()}
    assert {node: {(m.attempt, m.into, m.step, m.nonce, m.files) for m in said} for node, said in brought.items()} == {
        "n0": {(0, "staging/1/0/7-ab", 7, "ab", ("0", "m"))},
        "n1": {(0, "staging/1/0/7-ab", 7, "ab", ("1",))},
    }
    assert desk.loop.state.phase is Phase.RUNNING


CODE = HeldCode((("0",), ("1",)), (HeldStripe((1,), ("p0",)), HeldStripe((0,), ("p1",))))


@pytest.mark.parametrize("can", [True, False])
def test_what_nobody_holds_is_made_again_once_all_else_is_on_the_disk(can: bool) -> None:
    asked: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []

    def bring(agent: HandAgent, message: Recover) -> None:
        asked.append((agent.node, message.files, message.rebuild))
        agent.answer(message, ok=can or not message.rebuild, why="2 of 2 shards are lost")

    held = {"n0": [replace(holding(7, "0", "m", of=3), pieces=("p0",), codes=(CODE,))]}
    desk = desk_of(held, bring)
    assert restarted(desk) == ([("adopt", 7)] if can else []) + [("seal", 1), ("choose", 1)]
    assert asked == [("n0", ("0", "m", "p0"), ()), ("n0", (), ("1",))]


EACH = {node: [holding(7, "0", "1", "m", of=3)] for node in ("n0", "n1")}


def test_what_all_nodes_with_ranks_have_is_loaded_there_and_written_by_nobody() -> None:
    desk = desk_of(EACH, obey, KEEPS, loads_memory=True)
    assert restarted(desk) == [("seal", 1), ("choose", 1)]
    save = MemoryStep(0, 7, "ab")
    for agent in desk.agents.values():
        assert [m.into for m in agent.heard(Recover)] == [""]
        assert [m.resume_memory for m in agent.heard(Launch)] == [None, save]
    assert desk.loop.state.attempts[-1].memory == save


SHARED = {
    "n0": [replace(holding(7, "0", "m", of=3), is_sharable=True)],
    "n1": [replace(holding(7, "1", "m", of=3), is_sharable=True)],
}


def test_what_nodes_with_ranks_have_together_is_loaded_there_once() -> None:
    desk = desk_of(SHARED, obey, KEEPS, loads_memory=True)
    assert restarted(desk) == [("seal", 1), ("choose", 1)]
    save = MemoryStep(0, 7, "ab", is_shared=True)
    for agent in desk.agents.values():
        assert [m.resume_memory for m in agent.heard(Launch)] == [None, save]
    assert desk.loop.state.attempts[-1].memory == save
    assert restarted(desk, 1) == [("adopt", 7), ("seal", 2), ("choose", 2)]


def test_what_an_attempt_loaded_from_memory_goes_through_the_disk_before_the_next() -> None:
    """Each node is asked for it too, and it is written into staging of the attempt that loaded it."""
    desk = desk_of(EACH, obey, KEEPS, loads_memory=True)
    restarted(desk)
    save = desk.loop.state.attempts[-1].memory
    assert restarted(desk, 1) == [("adopt", 7), ("seal", 2), ("choose", 2)]
    asked, written = (m for m in desk.agents["n0"].heard(Recover)[1:])
    assert (asked.attempt, asked.base) == (1, save)
    assert (written.attempt, written.into) == (0, "staging/1/1/7-ab")


@pytest.mark.parametrize(
    ("held", "loads"),
    [(EACH, False), ({**EACH, "n1": [holding(7, "1", of=0)]}, True)],
    ids=["a validator reads directories", "a node has a part"],
)
def test_all_else_goes_through_the_disk(held: dict[str, list[Holding]], loads: bool) -> None:
    desk = desk_of(held, obey, KEEPS, loads_memory=loads)
    assert restarted(desk) == [("adopt", 7), ("seal", 1), ("choose", 1)]


@pytest.mark.parametrize("held", [{}, {"n0": [holding(7, "0", "m", of=3)]}], ids=["nothing", "half"])
def test_what_is_not_whole_is_left_and_the_run_goes_on_from_the_disk(held: dict[str, list[Holding]]) -> None:
    desk = desk_of(held, obey)
    assert restarted(desk) == [("seal", 1), ("choose", 1)]
    assert all(not m.into for agent in desk.agents.values() for m in agent.heard(Recover))


def test_a_node_that_cannot_write_its_part_costs_the_step_and_nothing_else() -> None:
    def refuse(agent: HandAgent, message: Recover) -> None:
        agent.answer(message, ok=agent.node == "n0", why="No space left on device")

    desk = desk_of({"n0": [holding(7, "0", "m", of=3)], "n1": [holding(7, "1", of=0)]}, refuse)
    assert restarted(desk) == [("seal", 1), ("choose", 1)]
    assert desk.loop.state.phase is Phase.RUNNING


def test_a_node_that_never_brings_its_part_is_not_waited_for_for_ever() -> None:
    desk = desk_of({"n0": [holding(7, "0", "m", of=2)]}, lambda agent, message: None)
    assert restarted(desk) == []
    desk.pass_s(1000.0)
    assert [one for one in desk.checkpoints.asked if one[1] == 1] == [("seal", 1), ("choose", 1)]


def test_without_the_setting_nobody_is_asked() -> None:
    desk = Desk()
    desk.running()
    assert restarted(desk) == [("seal", 1), ("choose", 1)]
    assert not any(agent.heard(Recover) for agent in desk.agents.values())


def test_the_newest_step_in_memory_is_among_the_live_figures() -> None:
    desk = Desk()
    loop = desk.running()
    assert loop.progress.live(loop.state, desk.clock.boot, 2, {})["kept_step"] == -1
    desk.agents["n0"].beat(readings=(RankSample(0, 9, 2, 9, 0, 0.0, "R", kept_step=8),))
    desk.turn_all()
    assert loop.progress.live(loop.state, desk.clock.boot, 2, {})["kept_step"] == 8
    desk.agents["n0"].beat(readings=(RankSample(0, 9, 2, 9, 0, 0.0, "R", kept_step=9, kept_losses_count=2),))
    desk.agents["n1"].beat(readings=(RankSample(1, 9, 2, 9, 0, 0.0, "R", kept_step=8, kept_losses_count=3),))
    desk.turn_all()
    live = loop.progress.live(loop.state, desk.clock.boot, 2, {})
    assert (live["kept_step"], live["kept_losses_count"]) == (9, 2)


def test_what_the_disk_has_already_is_not_brought() -> None:
    desk = desk_of({"n0": [holding(7, "0", "m", of=2)]}, obey)
    desk.loop.state = replace(desk.loop.state, checkpoints=replace(desk.loop.state.checkpoints, best_step=7))
    assert restarted(desk) == [("seal", 1), ("choose", 1)]


WHOLE = {"n0": [holding(7, "0", "m", of=3)], "n1": [holding(7, "1", of=0)]}


def cancel(desk: Desk) -> None:
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.pass_s(2.0)


def test_before_a_job_ends_its_memory_is_brought_and_only_then_agents_may_go() -> None:
    told: list[Phase] = []

    def bring(agent: HandAgent, message: Recover) -> None:
        told.append(agent.desk.loop.state.phase)
        assert not any(one.heard(Farewell) for one in agent.desk.agents.values())
        obey(agent, message)

    desk = desk_of(WHOLE, bring, KEEPS)
    cancel(desk)
    assert told == [Phase.WAITING, Phase.WAITING]
    assert ("adopt", 7) in desk.checkpoints.asked
    assert (desk.loop.state.phase, desk.loop.exit_code) == (Phase.CANCELLED, 130)
    assert "step 7 was written to disk from the memory of n[0-1]" in desk.loop.state.reason


@pytest.mark.parametrize("refuses", [True, False], ids=["a full disk", "no answer"])
def test_an_end_waits_for_memory_only_so_long(refuses: bool) -> None:
    def bring(agent: HandAgent, message: Recover) -> None:
        if refuses and agent.node == "n1":
            agent.answer(message, ok=False, why="No space left on device")

    desk = desk_of(WHOLE, bring, replace(KEEPS, checkpoint_grace_s=20.0))
    cancel(desk)
    desk.pass_s(0.0 if refuses else 14.0)
    assert desk.loop.state.phase is (Phase.CANCELLED if refuses else Phase.WAITING)
    desk.pass_s(6.0)
    assert desk.loop.state.phase is Phase.CANCELLED
    why = "n1: No space left on device" if refuses else "n0 did not write its part within 18 s"
    assert why in desk.loop.state.reason
    assert ("adopt", 7) not in desk.checkpoints.asked


def test_a_node_that_says_nothing_leaves_time_for_those_that_do() -> None:
    desk = desk_of({"n0": [holding(7, "0", "m", of=2)]}, obey, replace(KEEPS, checkpoint_grace_s=30.0))
    silent = desk.agents["n1"]
    hear = silent.hear
    silent.hear = lambda message: None if isinstance(message, Recover) else hear(message)  # type: ignore[method-assign]
    cancel(desk)
    assert desk.loop.state.phase is Phase.WAITING
    desk.pass_s(9.0)
    assert "step 7 was written to disk from the memory of n0" in desk.loop.state.reason


def test_nothing_is_brought_where_no_directory_is_known() -> None:
    desk = Desk(policy=KEEPS)
    desk.running()
    cancel(desk)
    assert desk.loop.state.phase is Phase.CANCELLED
    assert not any(agent.heard(Recover) for agent in desk.agents.values())


def kept(desk: Desk, step: int) -> None:
    """Ranks say that this step is whole in memory."""
    for agent in desk.agents.values():
        agent.beat(readings=(RankSample(0, step + 1, 2, 9, 0, 0.0, "R", kept_step=step),))
    desk.turn_all()


FLUSHES: dict[str, Any] = {"policy": KEEPS, "checkpoint": CheckpointSpec("d", memory=True, flush_every_s=20.0)}


def test_while_ranks_train_on_what_is_in_memory_is_pinned_and_written_down() -> None:
    desk = desk_of(WHOLE, obey, **FLUSHES)
    kept(desk, 7)
    desk.pass_s(25.0)
    said = {node: [(m.pin, m.step, m.files) for m in agent.heard(Recover)] for node, agent in desk.agents.items()}
    assert said == {
        "n0": [(True, -1, ()), (True, 7, ("0", "m"))],
        "n1": [(True, -1, ()), (True, 7, ("1",))],
    }
    assert ("adopt", 7) in desk.checkpoints.asked
    assert desk.loop.state.phase is Phase.RUNNING


def test_who_holds_nothing_that_is_wanted_may_let_go_too() -> None:
    desk = desk_of({"n0": [holding(7, "0", "m", of=2)], "n1": [holding(6, "1", of=9)]}, obey, **FLUSHES)
    kept(desk, 7)
    desk.pass_s(25.0)
    assert [(m.pin, bool(m.into), m.files) for m in desk.agents["n1"].heard(Recover)][1:] == [(True, True, ())]
    desk = desk_of({"n0": [holding(7, "0", of=2)]}, obey, **FLUSHES)
    kept(desk, 7)
    desk.pass_s(25.0)
    assert [(m.pin, bool(m.into), m.step) for m in desk.agents["n0"].heard(Recover)][1] == (True, True, -1)
    assert ("adopt", 7) not in desk.checkpoints.asked


def test_a_flush_that_fails_is_told_removed_and_tried_again_at_the_next_time() -> None:
    def refuse(agent: HandAgent, message: Recover) -> None:
        agent.answer(message, ok=agent.node == "n0", why="No space left on device")

    desk = desk_of(WHOLE, refuse, **FLUSHES)
    kept(desk, 7)
    desk.pass_s(25.0)
    assert any("step 7, which only memory holds, could not be written to disk" in said for said in desk.says)
    assert ("discard staging/1/0/7-ab", -1) in desk.checkpoints.asked
    assert desk.loop.state.phase is Phase.RUNNING
    before = len(desk.agents["n1"].heard(Recover))
    kept(desk, 8)
    desk.pass_s(25.0)
    assert len(desk.agents["n1"].heard(Recover)) > before


def test_a_flush_that_takes_long_is_not_begun_anew() -> None:
    desk = desk_of(WHOLE, lambda agent, message: None, **FLUSHES)
    kept(desk, 7)
    desk.pass_s(25.0)
    kept(desk, 8)
    desk.pass_s(100.0)
    assert len({m.act for m in desk.agents["n0"].heard(Recover)}) == 2, "what it holds, and to write it"


def test_what_a_node_that_came_back_is_sent_is_written_while_ranks_load_it_however_long_that_takes() -> None:
    held = {"n0": [replace(holding(7, "0", "1", "m", of=3), is_sharable=True)]}
    desk = desk_of(held, lambda agent, message: None, KEEPS, loads_memory=True)
    assert restarted(desk) == [("seal", 1), ("choose", 1)]
    save = MemoryStep(0, 7, "ab", is_shared=True, lacking=("n1",))
    for node, agent in desk.agents.items():
        assert [(m.resume_memory, m.lacks_step) for m in agent.heard(Launch)][1:] == [(save, node == "n1")]
    desk.pass_s(200.0)
    asked = {m.act: (m.pin, m.base, m.files) for m in desk.agents["n0"].heard(Recover)}
    assert list(asked.values())[1:] == [(True, save, ()), (True, save, ("0", "1", "m"))]


def test_ranks_that_die_meanwhile_end_the_flush_and_the_rescue_does_its_work() -> None:
    desk = desk_of(WHOLE, lambda agent, message: None if message.pin else obey(agent, message), **FLUSHES)
    kept(desk, 7)
    desk.pass_s(25.0)
    assert ("adopt", 7) not in desk.checkpoints.asked
    assert restarted(desk) == [("adopt", 7), ("seal", 1), ("choose", 1)]


def test_nothing_is_picked_before_there_is_a_place_to_bring_it_to() -> None:
    desk = desk_of(WHOLE, obey, **FLUSHES)
    desk.checkpoints.has_staging = False
    kept(desk, 7)
    desk.pass_s(25.0)
    assert not any(m.files for m in desk.agents["n0"].heard(Recover))
    desk.checkpoints.has_staging = True
    desk.pass_s(1.0)
    assert ("adopt", 7) in desk.checkpoints.asked


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
    desk.pass_s(5.0)
    assert brought(desk) == [("adopt", 7), ("seal", 1)]
    desk = desk_of(COPIES | {"n2": []}, dies("n1"), nodes=3)
    killed(desk)
    desk.pass_s(5.0)
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
    call = RecoverCall(board, Offered(0), -1, ("n0", "n1", "n2"), "staging", lambda *told: [], 0.0)
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
