"""A smaller gang grows again at a checkpoint: onto which nodes, when not, and at what price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import CheckNodes, SaveGang, StopGang
from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    CheckpointSeen,
    FindingRaised,
    GangStarted,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    ProgressMarked,
    ProgressStalled,
    StopTimedOut,
)
from gangrun.core.evidence import NodeFinding
from gangrun.core.model import After, Exclusion, Node, Phase, Placement, Shape
from gangrun.core.nodes import quarantine
from gangrun.core.nodes.placement import NotEnough, place
from gangrun.core.policy import Policy
from tests.core.life import BUG, Life, fatal, saved

SOON = Policy(grow_every_s=5.0)


def lose(life: Life, name: str, after_s: float = 3.0) -> None:
    life.on(NodeSilent(name, life.now - 2.0))
    life.on(NodeLost(name, life.now - 2.0, "its host answers no other node"), after_s=after_s)


def smaller(policy: Policy = SOON, *, ago_s: float = 60.0, nodes: int = 3) -> Life:
    """One node of several was lost, and the others train without it since then."""
    life = Life(nodes, 1, policy, at_least=nodes - 1).running()
    life.first(1)
    lose(life, "n2")
    life.stopped()
    life.again(saved(5))
    life.on(GangStarted(life.state.attempt.number))
    life.first(6)
    life.now += ago_s
    return life


def back(life: Life, name: str = "n2", *, ok: bool = True) -> None:
    life.on(NodeHeard(name))
    life.on(NodeChecked(name, ok, "" if ok else "a GPU is gone"))


def test_a_lost_node_that_is_heard_again_is_used_again_at_the_next_checkpoint() -> None:
    life = smaller()
    budget = life.state.budget
    life.on(NodeHeard("n2"))
    life.says("n2 sends heartbeats again; it is checked before it is used again")
    assert life.last(CheckNodes).nodes == ("n2",)
    life.save(10)
    assert life.phase is Phase.RUNNING, "it has not passed its checks"
    life.on(NodeChecked("n2", True))
    life.says("n2 is heard again and passed its checks, so it is used again", "the run grows from 2 to 3 ranks")
    life.says("at the next checkpoint; asking all ranks to save now")
    assert (life.last(SaveGang), life.state.reason) == (SaveGang(1, ""), life.reason)
    life.save(20)
    life.says("checkpoint of step 20", "n2 is free again: the run grows from 2 to 3 ranks", "asked to save first")
    assert (life.state.underway.after, life.last(StopGang).checkpoint_first) == (After.MOVE, True)
    life.stopped()
    life.says("stopped to use more nodes; restarting on n[0-2], which the restart budget does not count")
    life.again(saved(21))
    assert life.started().placement.nodes == ("n0", "n1", "n2")
    assert [record.outcome for record in life.state.attempts] == ["node silent", "grown", ""]
    assert life.state.budget.total_count == budget.total_count
    life.on(GangStarted(2))
    life.save(30)
    assert life.phase is Phase.RUNNING, "it is whole"


def test_a_gang_that_was_just_started_is_left_alone() -> None:
    life = smaller(replace(SOON, grow_every_s=100.0), ago_s=10.0)
    back(life)
    life.says("the run grows from 2 to 3 ranks at a checkpoint, in 90 s at the earliest (--grow-every)")
    assert not life.count(SaveGang)
    life.save(20)
    life.says("n2 is free and stays so: all ranks were started less than 100 s ago (--grow-every)")
    assert life.phase is Phase.RUNNING
    life.now += 100.0
    life.save(30)
    assert life.state.underway.after is After.MOVE


@pytest.mark.parametrize(("left_s", "grows"), [(None, True), (100.0, True), (90.0, False), (0.0, False)])
def test_not_if_the_time_limit_comes_before_it_pays(left_s: float | None, grows: bool) -> None:
    """A third more ranks save a third of what is left; the restart costs 30 s and as long as the last start took."""
    life = smaller()
    back(life)
    life.on(CheckpointSeen(saved(20), job_left_s=left_s))
    assert (life.phase is Phase.STOPPING) is grows, life.reason
    if not grows:
        life.says(f"stays so: the job's time limit is {left_s:.0f} s away, in which 3 ranks would save")
        life.says("and the restart costs about 30 s")


def test_a_start_that_took_long_costs_as_much_again() -> None:
    life = smaller()
    life.state = replace(life.state, attempt=replace(life.state.attempt, ready_s=300.0))
    back(life)
    life.on(CheckpointSeen(saved(20), job_left_s=900.0))
    life.says("300 s, and the restart costs about 330 s")
    life.state = replace(life.state, attempt=replace(life.state.attempt, ready_s=0.0))
    life.on(CheckpointSeen(saved(21), job_left_s=400.0))
    life.says("the restart costs about 150 s")  # nobody knows how long it takes to the first step


@pytest.mark.parametrize(("total", "grows"), [(110, False), (2000, True)])
@pytest.mark.parametrize("told_by_user", [False, True])
def test_not_at_the_end_of_the_training(total: int, grows: bool, told_by_user: bool) -> None:
    """A hundred steps took a minute."""
    life = smaller(replace(SOON, total_steps=total if told_by_user else 0))
    life.on(ProgressMarked(1, 105, total_steps=0 if told_by_user else total))
    back(life)
    life.save(100)
    assert (life.phase is Phase.STOPPING) is grows, life.reason
    assert grows or "the end of the training is 3 s away" in life.reason


def test_a_knob_turns_it_off_and_who_observes_changes_nothing() -> None:
    off, observer = smaller(replace(SOON, grow_every_s=0.0)), smaller()
    observer.policy = replace(SOON, observe=True)
    for life in (off, observer):
        back(life)
        life.save(20)
        assert (life.phase, life.count(SaveGang)) == (Phase.RUNNING, 0)
        assert "free" not in life.reason
    life = off
    life.exit(0, error=BUG)
    life.stopped()
    life.says("restarting larger, on n[0-2]")


def test_whoever_fails_its_checks_or_is_poor_is_no_reason_to_grow() -> None:
    life = smaller()
    back(life, ok=False)
    life.save(20)
    assert life.phase is Phase.RUNNING
    life = smaller()
    life.on(FindingRaised(NodeFinding("n2", "gpu_temperature", False, "gpu 2 is hot", poor=True, place="gpu 2")))
    back(life)
    life.save(20)
    assert life.phase is Phase.RUNNING


def test_not_while_something_else_is_under_way() -> None:
    busy = [smaller() for _ in range(3)]
    for life in busy:
        back(life)
    busy[0].on(ProgressStalled(1, 130.0, 120.0, ()))
    busy[1].finish(1)
    lose(busy[2], "n2")
    for life in busy:
        life.save(20)
        assert life.phase is Phase.RUNNING
    life = smaller()
    back(life)
    life.on(NodeSilent("n0", life.now - 2))
    life.save(20)
    assert life.phase is Phase.RUNNING, "another node may be lost now"


def test_a_node_that_is_lost_meanwhile_leaves_all_as_it_was() -> None:
    life = smaller()
    back(life)
    life.save(20)
    lose(life, "n2")
    life.stopped()
    life.says("to replace nodes; restarting on n[0-1]")
    life = smaller()
    back(life)
    life.save(20)
    lose(life, "n1")
    life.stopped()
    assert life.state.attempts[1].outcome == "node silent", "that is judged as ever"


def test_a_node_that_joins_late_or_again_is_checked_and_used() -> None:
    life = Life(3, 1, SOON, at_least=2)
    life.join("n0", "n1")
    life.due("join")
    for name in ("n0", "n1"):
        life.on(NodeChecked(name, True))
    life.again()
    life.on(AgentJoined("n2", "i-n2", "b-n2", 1))
    assert not [asked for asked in life.asked if isinstance(asked, CheckNodes) and "n2" in asked.nodes]
    life.on(GangStarted(0))
    assert life.last(CheckNodes).nodes == ("n2",), "it came while ranks were started"
    life.on(NodeChecked("n2", True), after_s=10.0)
    life.says("grows from 2 to 3")
    lose(life, "n2")
    life.on(AgentRejoined("n2", "i-9", "b-n2", 1))
    life.says("the agent on n2 was restarted; it held no ranks; the run grows from 2 to 3 ranks")
    lose(life, "n2")
    life.on(AgentRejoined("n2", "i-10", "b-10", 1))
    assert life.last(CheckNodes).nodes == ("n2",), "it has booted"
    life.on(NodeChecked("n2", True))
    lose(life, "n2")
    life.on(NodeHeard("n2"))
    life.says("n2 sends heartbeats again; the run grows from 2 to 3 ranks")


def test_an_agent_that_comes_back_in_the_same_boot_proves_its_node_anew() -> None:
    life = smaller()
    life.on(AgentRejoined("n2", "i-9", "b-n2", 1))
    assert life.last(CheckNodes).nodes == ("n2",)
    life.on(NodeChecked("n2", True))
    life.says("grows from 2 to 3")


def test_heard_while_ranks_start_it_is_checked_once_they_run() -> None:
    life = Life(3, 1, SOON, at_least=2).running()
    lose(life, "n2")
    life.stopped()
    life.on(NodeHeard("n2"))
    life.again()
    assert life.started().placement.nodes == ("n0", "n1")
    life.on(GangStarted(1))
    assert life.last(CheckNodes).nodes == ("n2",)


def test_so_often_at_most_a_node_is_taken_back() -> None:
    life = smaller()
    for count in range(4):
        life.on(NodeHeard("n2"))
        life.on(NodeChecked("n2", True))
        life.save(20 + count)
        if life.phase is Phase.RUNNING:
            break
        life.stopped()
        life.again(saved(20 + count))
        life.on(GangStarted(life.state.attempt.number))
        lose(life, "n2")
        life.stopped()
        life.again(saved(20 + count))
        life.on(GangStarted(life.state.attempt.number))
        life.now += 3 * 3600.0
    assert (life.phase, life.state.health.excluded["n2"].returns_count) == (Phase.RUNNING, 2)


def test_a_node_on_which_something_broke_is_not_back_because_it_is_heard() -> None:
    life = Life(3, 1, SOON, at_least=2).running()
    life.on(FindingRaised(fatal("n2")))
    lose(life, "n2")
    life.stopped()
    assert not life.state.health.excluded["n2"].silent
    life.again()
    life.on(GangStarted(1))
    life.on(NodeHeard("n2"))
    life.save(20)
    assert life.phase is Phase.RUNNING


def test_what_is_found_on_a_silent_node_later_counts_more_than_its_silence() -> None:
    out = {"n1": Exclusion("silent", 0.0, 100.0, silent=True)}
    again = quarantine.exclude(out, ["n1"], "silent again", 10.0, Policy(), 4, silent=["n1"]).excluded["n1"]
    broken = quarantine.exclude(out, ["n1"], "a GPU is gone", 10.0, Policy(), 4, hardware=["n1"]).excluded["n1"]
    assert (again.silent, broken.silent) == (True, False)


def test_no_other_run_hears_of_a_node_that_was_only_silent() -> None:
    life = smaller()
    was = life.state.health.excluded
    back(life)
    assert quarantine.taken_back(was, life.state.health.excluded) == ()
    assert quarantine.taken_back({"n2": replace(was["n2"], silent=False)}, life.state.health.excluded) == ("n2",)


def test_a_silent_node_of_a_gang_that_nobody_can_stop_may_return_too() -> None:
    life = Life(3, 1, Policy(can_requeue=True)).running()
    lose(life, "n2")
    life.on(StopTimedOut(0, "n1", ("rank 1",)))
    for _ in range(4):
        life.due("stop")
    assert {name: out.silent for name, out in life.state.health.excluded.items()} == {"n1": False, "n2": True}


# ---- sizes -----------------------------------------------------------------------------------------------------------


def roster(count: int, slots: int = 1) -> dict[str, Node]:
    return {f"n{k}": Node(f"n{k}", "i", "b", slots, checked=True) for k in range(count)}


@pytest.mark.parametrize(
    ("usable", "ranks", "multiple", "nodes"),
    [(8, 4, 16, 8), (7, 4, 16, 4), (5, 4, 16, 4), (7, 4, 8, 6), (7, 4, 4, 7), (7, 3, 2, 6), (4, 4, 1, 4)],
)
def test_nodes_that_do_not_fit_stay_spares(usable: int, ranks: int, multiple: int, nodes: int) -> None:
    placed = place(roster(usable), {}, Shape(8, 4, 1, ranks, world_multiple=multiple))
    assert isinstance(placed, Placement)
    assert (len(placed.nodes), placed.world_size) == (nodes, nodes * ranks)
    assert placed.world_size % multiple == 0


def test_no_size_that_fits_is_told() -> None:
    placed = place(roster(3), {}, Shape(4, 3, 1, 2, world_multiple=4))
    assert isinstance(placed, NotEnough)
    assert placed.why == "3 nodes usable, but their ranks are never a multiple of 4 (--world-multiple-of)"


def test_on_one_box_slots_are_left_over() -> None:
    shape = Shape(1, 1, 8, 1, slots_min_per_node=4, world_multiple=4)
    nodes = {"n0": Node("n0", "i", "b", 8, checked=True)}
    whole = place(nodes, {}, shape)
    assert isinstance(whole, Placement) and whole.world_size == 8
    life = Life(1, 8)
    life.state = replace(life.state, shape=shape)
    life.running()
    life.on(FindingRaised(replace(fatal("n0"), slot=2, place="gpu 2")))
    life.stopped()
    life.again()
    assert [seat.slot.index for seat in life.started().placement.seats] == [0, 1, 3, 4]


def test_a_gang_grows_by_whole_groups_only() -> None:
    life = Life(4, 1, SOON, at_least=2)
    life.state = replace(life.state, shape=replace(life.state.shape, world_multiple=2))
    life.running()
    lose(life, "n2")
    life.stopped()
    life.again()
    assert life.started().placement.world_size == 2
    life.on(GangStarted(1))
    life.save(20)
    assert life.phase is Phase.RUNNING, "one node more would make no group"
    life.now += 60.0
    back(life)
    life.says("the run grows from 2 to 4 ranks")
