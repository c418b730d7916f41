"""What gangrun promises in every world, each promise written once. ``driver`` has the words, ``conftest`` the worlds.

A run that fails its promise prints what that world has to tell. Times are the world's own: seconds are real in one,
free in another, so that a test says for what it waits and how long at most, never how long it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.contract.conftest import Runs
from tests.contract.driver import ENDLESS, Does, How, Injection, Scenario, WorldDriver
from tests.contract.facts import adopted, ended, evidence, nobody_left, one_gang

pytestmark = pytest.mark.timeout(600)

EVERY_TIME = None
SETTLED = 50  # steps: time enough for each agent to be told who is there


# ---- ends ---------------------------------------------------------------------------------------------------------


def test_a_clean_run_ends_with_zero_and_leaves_nothing(run: Runs) -> None:
    one = run(Scenario(nodes=2, steps=20))
    status = ended(one, 0, "SUCCEEDED")
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["succeeded"]
    assert status["failure"] is None and status["restarts"] == 0 and status["excluded"] == []
    assert one_gang(one) == [0]
    assert {row.rank for row in one.steps() if row.step == 20} == set(range(4)), "each rank did the last step"
    nobody_left(one)


def test_an_exit_code_is_laid_to_its_rank_and_to_no_node(run: Runs) -> None:
    one = run(Scenario(nodes=2, does=(Does(How.EXIT, step=5, rank=3, code=9),)))
    status = ended(one, 0, "SUCCEEDED")
    first, second = status["attempts"]
    evidence(first["reason"], "rank 3", "exit code 9")
    assert second["outcome"] == "succeeded"
    assert status["excluded"] == [] and status["restarts"] == 1
    assert one_gang(one) == [0, 1]


def test_a_rank_that_dies_of_a_signal_comes_back_in_place(run: Runs) -> None:
    one = run(Scenario(nodes=2, does=(Does(How.KILL, step=5, rank=1),)))
    status = ended(one, 0, "SUCCEEDED")
    evidence(status["attempts"][0]["reason"], "rank 1", "SIGKILL")
    assert status["attempts"][1]["nodes"] == status["attempts"][0]["nodes"]
    assert status["excluded"] == []
    assert one_gang(one) == [0, 1]


def test_the_same_bug_twice_stops_the_run_with_its_traceback_and_excludes_nobody(run: Runs) -> None:
    one = run(Scenario(does=(Does(How.RAISE, step=5, rank=1, attempts=EVERY_TIME),)))
    status = ended(one, 1, "FAILED")
    assert status["failure"] == "script"
    evidence(status["reason"], "rank 1", "RuntimeError: boom", "attempt 0 failed", "the code is at fault")
    assert re.search(r'Traceback|File ".*", line', status["reason"]), status["reason"]
    assert len(status["attempts"]) == 2 and status["excluded"] == []
    one_gang(one)
    nobody_left(one)


def test_deaths_that_nobody_explains_spend_the_budget(run: Runs) -> None:
    does = tuple(Does(How.KILL, step=9 - n, rank=n % 2, attempts=frozenset({n})) for n in range(5))
    one = run(Scenario(does=does, max_restarts=1))
    status = ended(one, 1, "FAILED")
    assert status["failure"] == "budget"
    evidence(status["reason"], "SIGKILL", "no restart is left", "1 of 1")
    assert status["restarts"] == 1 and len(status["attempts"]) == 2 and status["excluded"] == []
    one_gang(one)


def test_a_gang_that_stands_still_is_stopped_and_comes_back(run: Runs) -> None:
    one = run(Scenario(does=(Does(How.HANG, step=15, rank=1),), hang_timeout_s=8.0, steps=30))
    status = ended(one, 0, "SUCCEEDED")
    evidence(status["attempts"][0]["reason"], "no progress")
    assert status["excluded"] == [] and status["restarts"] == 1
    assert one_gang(one) == [0, 1]


# ---- our own processes die ----------------------------------------------------------------------------------------


@pytest.mark.needs(Injection.KILL_AGENT)
@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent_takes_its_ranks_along_and_the_gang_comes_back(run: Runs, node: int) -> None:
    one = run(Scenario(nodes=2, ranks_per_node=1))
    one.wait_for_step(5)
    before = one.ranks()
    one.kill_agent(node)
    one.wait_until("its ranks are dead", lambda: not one.alive(before[node]), 5)
    status = ended(one, 0, "SUCCEEDED")
    evidence(status["attempts"][0]["reason"], "agent", one.node(node))
    assert status["excluded"] == [] and status["restarts"] == 1
    assert one_gang(one) == [0, 1]


@pytest.mark.needs(Injection.KILL_WARDEN)
def test_a_killed_warden_leaves_no_rank_and_the_gang_comes_back(run: Runs) -> None:
    one = run(Scenario(nodes=2, ranks_per_node=1))
    one.wait_for_step(5)
    before = one.ranks()
    one.kill_warden(1)
    one.wait_until("its ranks are dead", lambda: not one.alive(before[1]), 5)
    assert ended(one, 0, "SUCCEEDED")["excluded"] == []
    assert one_gang(one) == [0, 1]
    evidence(one.explain(), "its warden was killed by SIGKILL (9); its ranks died with it")


def replaced(one: WorldDriver, injury: Callable[[], int | None]) -> None:
    """The supervisor is struck in the middle; the next one adopts the gang. What was paused leaves when it wakes."""
    one.wait_for_step(SETTLED)
    before, old = one.ranks(), injury()
    one.wait("a second term", lambda status: status["supervisor"]["term"] >= 2 and status["state"] == "RUNNING")
    if old is not None:
        one.wake(old)
        one.wait_until("the deposed one leaves", lambda: not one.alive(old), 20)
    adopted(one, before)
    one.cancel()
    status = ended(one, 130, "CANCELLED")
    assert len(status["attempts"]) == 1 and status["restarts"] == 0
    evidence(one.explain(), "supervisor #2")
    assert one_gang(one) == [0]


@pytest.mark.needs(Injection.KILL_SUPERVISOR)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_killed_supervisor_is_replaced_and_the_gang_adopted(run: Runs, nodes: int) -> None:
    one = run(Scenario(nodes=nodes, ranks_per_node=1, steps=ENDLESS))
    replaced(one, one.kill_supervisor)


@pytest.mark.needs(Injection.PAUSE_SUPERVISOR)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_supervisor_stopped_over_a_takeover_is_deposed_when_it_wakes(run: Runs, nodes: int) -> None:
    one = run(Scenario(nodes=nodes, ranks_per_node=1, steps=ENDLESS))
    replaced(one, one.pause_supervisor)


@pytest.mark.needs(Injection.KILL_SUPERVISOR)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launch_that_is_sent_twice_makes_one_gang(run: Runs, nodes: int) -> None:
    one = run(Scenario(nodes=nodes))
    one.wait_for_launch()
    one.kill_supervisor()
    status = ended(one, 0, "SUCCEEDED")
    one_gang(one)
    processes = {(row.attempt, row.rank): set[int]() for row in one.steps()}
    for row in one.steps():
        processes[row.attempt, row.rank].add(row.pid)
    assert all(len(pids) == 1 for pids in processes.values()), "one process for each rank of each attempt"
    assert status["excluded"] == []


# ---- nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.needs(Injection.FREEZE_NODE)
@pytest.mark.parametrize("node", [0, 2])
def test_a_silent_node_is_noticed_left_out_and_used_again_once_it_is_well(run: Runs, node: int) -> None:
    one = run(Scenario(nodes=3, min_nodes=2, ranks_per_node=1, steps=ENDLESS))
    one.wait_for_step(SETTLED)
    name, frozen = one.node(node), one.ranks()[node]
    one.freeze_node(node)
    one.wait_for_step(5, attempt=1)
    status = one.wait("the second attempt runs", lambda found: len(found["attempts"]) == 2)
    evidence(status["attempts"][0]["reason"], name, "no heartbeat")
    assert [out["node"] for out in status["excluded"]] == [name]
    evidence(status["excluded"][0]["reason"], name)
    assert name not in status["attempts"][1]["nodes"] and len(status["attempts"][1]["nodes"]) == 2

    one.thaw_node(node)
    one.wait_until("the left-out node's rank is gone", lambda: not one.alive(frozen), 30)
    assert len(one.ranks()) == 2
    one.wait("it is heard again and has passed its checks", lambda found: not found["excluded"])
    assert len(one.status()["attempts"]) == 2, "all ranks were just started, so nobody is stopped to grow"
    one.kill_rank(0)
    one.wait_for_step(5, attempt=2)
    status = one.wait("the third attempt", lambda found: len(found["attempts"]) == 3)
    assert name in status["attempts"][2]["nodes"]
    one.cancel()
    ended(one, 130, "CANCELLED")
    assert one_gang(one, slept=(node,)) == [0, 1, 2]
    nobody_left(one)


@pytest.mark.needs(Injection.REBOOT_NODE)
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_dies_whole_and_comes_back_costs_one_attempt(run: Runs, node: int) -> None:
    one = run(Scenario(nodes=3, ranks_per_node=1))
    one.wait_for_step(5)
    one.reboot_node(node)
    status = ended(one, 0, "SUCCEEDED")
    assert one_gang(one)[0] == 0
    assert len(status["attempts"]) >= 2
    assert status["excluded"] == [], "without it there would be too few"


# ---- checkpoints, clocks ------------------------------------------------------------------------------------------


@pytest.mark.needs(Injection.TEAR_CHECKPOINT)
def test_a_torn_newest_checkpoint_is_passed_over_with_its_reason(run: Runs) -> None:
    one = run(Scenario(steps=ENDLESS, checkpoint_every=10))
    one.wait_for_step(35)
    one.wait_until("two checkpoints", lambda: one.steps()[-1].step > 35, 10)
    torn = one.tear_newest_checkpoint()
    one.kill_rank(1)
    one.wait_for_step(torn + 1, attempt=1)
    status = one.wait("its resume point", lambda found: len(found["attempts"]) == 2)
    assert status["attempts"][1]["resumed_from_step"] == torn - 10
    evidence(one.explain(), f"step {torn} was passed over", f"step {torn - 10}")
    one.cancel()
    ended(one, 130, "CANCELLED")
    first = min(row.step for row in one.steps() if row.attempt == 1)
    assert first == torn - 9, "the script went on where it was told to"
    assert one_gang(one) == [0, 1]


@pytest.mark.needs(Injection.JUMP_WALL)
def test_a_wall_clock_set_by_six_hours_and_back_by_twelve_harms_nobody(run: Runs) -> None:
    one = run(Scenario(nodes=2, ranks_per_node=1, steps=ENDLESS))
    one.wait_for_step(SETTLED)
    before = one.ranks()
    one.jump_wall(6 * 3600.0)
    one.wait_for_step(one.steps()[-1].step + 60)
    adopted(one, before)
    one.jump_wall(-12 * 3600.0)
    one.kill_supervisor()  # the next one reads the wall clock as it is now
    one.wait("a second term", lambda status: status["supervisor"]["term"] >= 2 and status["state"] == "RUNNING")
    adopted(one, before)
    one.kill_rank(1)
    one.wait_for_step(5, attempt=1)
    one.cancel()
    status = ended(one, 130, "CANCELLED")
    assert len(status["attempts"]) == 2 and status["excluded"] == []
    assert one_gang(one) == [0, 1]
