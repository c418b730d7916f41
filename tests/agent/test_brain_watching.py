"""Where no majority can be had: asking for a supervisor that watches the counter of the one before it."""

from __future__ import annotations

import pytest

from gangrun.agent.brain import effects, facts
from tests.agent.stage import PEERS, TIMING, Stage
from tests.agent.test_brain_takeover import T, pong, promise


def watching(roster_count: int = 2) -> Stage:
    """A candidate, of whose roster nobody answers, that has asked for a supervisor which watches the counter."""
    stage = Stage().follow(1, candidates=PEERS[:roster_count], roster_count=roster_count)
    stage.pass_s(2 * T - 0.01)
    assert not stage.only(effects.SpawnSupervisor)
    stage.pass_s(0.02)
    assert [(e.term_min, e.promises) for e in stage.only(effects.SpawnSupervisor)] == [(2, ())]
    return stage


def test_where_too_few_answer_a_candidate_asks_for_one_that_watches_the_counter():
    """It watches for a minute: so it begins soon, though a promise is held."""
    stage = watching()
    stage.pass_s(3 * TIMING.counter_still_s)
    assert not stage.only(effects.SpawnSupervisor), "one at a time"


@pytest.mark.parametrize("roster_count", [5, 1000])
def test_where_enough_answer_two_candidates_get_their_promises_first(roster_count: int):
    stage = Stage().follow(1, candidates=PEERS, roster_count=roster_count)
    spawned_at, began = 0.0, stage.now
    while not spawned_at:
        stage.pass_s(0.1)
        done = stage.take()
        spawned_at = stage.now if any(isinstance(e, effects.SpawnSupervisor) for e in done) else 0.0
        if any(isinstance(e, effects.SendPeer) for e in done):
            for node in ("n2", "n3", "n4", "n5"):
                stage.peer(pong(node, stage.now - began))
    assert 4 * T <= spawned_at - began <= 4 * T + 0.2


def test_a_late_answer_counts_too():
    stage = Stage().follow(1, candidates=PEERS[:3], roster_count=3)
    stage.pass_s(T + 1.5)
    stage.peer(pong("n3"))
    stage.pass_s(T)
    assert not stage.only(effects.SpawnSupervisor)


def test_nobody_watches_while_a_candidate_proves_that_the_supervisor_lives():
    stage = Stage().follow(1, candidates=PEERS[:2], roster_count=2)
    for _ in range(300):
        stage.pass_s(0.2)
        done = stage.take()
        assert not any(isinstance(e, effects.SpawnSupervisor) for e in done)
        if any(isinstance(e, effects.SendPeer) for e in done):
            stage.peer(pong("n2", 0.5))


def test_one_that_watches_is_in_no_majoritys_way():
    stage = watching(3)
    stage.peer(promise("n2", term=1, unacked_s=12.0))
    assert [(e.term_min, e.promises) for e in stage.only(effects.SpawnSupervisor)] == [(3, ("n1", "n2"))]
    stage.local(facts.SupervisorExited(75, 2))
    assert stage.brain.follow.asked.spawning, "that was the other one"
    stage.local(facts.SupervisorExited(1, 3))
    assert not stage.brain.follow.asked.spawning


def test_one_that_watched_in_vain_makes_the_next_one_wait_and_no_majority():
    stage = watching(3)
    for _ in range(6):
        stage.local(facts.SupervisorExited(75, 2))
        while not stage.brain.follow.asked.spawning:
            stage.pass_s(0.25)
    stage.local(facts.SupervisorExited(75, 2))
    stage.take()
    stage.pass_s(30.0)
    assert not stage.only(effects.SpawnSupervisor), "it has found a counter that moves six times"
    stage.peer(pong("n2"))
    stage.peer(promise("n2", term=1, unacked_s=60.0))
    stage.pass_s(2 * T)
    stage.peer(promise("n2", term=1, unacked_s=60.0))
    assert [e.promises for e in stage.only(effects.SpawnSupervisor)] == [("n1", "n2")]
