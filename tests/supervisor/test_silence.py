"""Silent is not lost: what turns one into the other, and what must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core.model import Phase
from gangrun.core.policy import Policy
from gangrun.ports import AgentsSaid
from gangrun.wire.messages import Beat, Probe, ProbeResult
from tests.supervisor.desk import Desk

S = Policy().timing.silence_after_s


def stepping(desk: Desk, seconds: float, every_s: float = 0.5) -> None:
    """Time passes and the gang steps."""
    left = seconds
    while left > 0:
        for agent in desk.agents.values():
            agent.step += 1
        desk.pass_s(min(every_s, left))
        left -= every_s


def hush(desk: Desk, node: str) -> None:
    desk.agents[node].beating = desk.agents[node].obeys = False


def answer(desk: Desk, node: str, *, is_up: bool = False) -> None:
    """All others say that they do not reach its agent."""
    for name in desk.agents.keys() - {node}:
        desk.agents[name].post(ProbeResult(name, node, False, is_up))
    desk.turn_all()


def events(desk: Desk, kind: str) -> list[dict[str, Any]]:
    return [r.event for r in desk.disk.records(desk.loop.term) if r.kind == kind]


def test_silent_after_s_and_asked_about() -> None:
    desk = Desk(nodes=4)
    loop = desk.running()
    stepping(desk, 5.0)
    hush(desk, "n2")
    last = loop.beats.rows["n2"].arrived_at
    stepping(desk, 7.0)
    silent = events(desk, "NodeSilent")
    assert [e["node"] for e in silent] == ["n2"] and silent[0]["since"] == pytest.approx(last)
    probes = {n: [m for m in a.got if isinstance(m, Probe)] for n, a in desk.agents.items()}
    assert [n for n, said in probes.items() if said] == ["n0", "n1", "n3"]
    assert probes["n0"][0].target.node == "n2"


def test_progress_outranks_heartbeats_until_the_lease_is_over() -> None:
    desk = Desk(nodes=4)
    loop = desk.running()
    stepping(desk, 5.0)
    hush(desk, "n2")
    stepping(desk, 28.0)
    assert loop.state.phase is Phase.RUNNING and not events(desk, "NodeLost")
    stepping(desk, 6.0)
    assert "lease is over" in events(desk, "NodeLost")[0]["why"]
    assert loop.state.phase is not Phase.RUNNING


@pytest.mark.parametrize("steps_on", [False, True])
def test_a_node_that_nobody_reaches_is_lost_before_a_slow_gang_shows_that_it_has_halted(steps_on: bool) -> None:
    desk = Desk(nodes=4)
    desk.running()
    stepping(desk, 61.0, 20.0)
    hush(desk, "n2")
    desk.pass_s(4.0)
    if steps_on:
        stepping(desk, 1.0)
    desk.pass_s(5.0)  # a step takes 20 s
    lost = events(desk, "NodeLost")
    assert [e["why"] for e in lost] == (
        [] if steps_on else ["silent for 6 s, and no other node reaches it (n3, n0, n1)"]
    )


def test_a_silent_node_whose_gang_halts_is_lost_soon_whatever_others_say() -> None:
    desk = Desk(nodes=4)
    desk.running()
    stepping(desk, 6.0)
    hush(desk, "n2")
    desk.pass_s(3 * S + 0.5)
    lost = events(desk, "NodeLost")
    assert [e["node"] for e in lost] == ["n2"] and "makes no steps" in lost[0]["why"]


def test_nobody_reaches_it() -> None:
    desk = Desk(nodes=4)
    desk.running()
    hush(desk, "n2")
    desk.pass_s(S - 0.1)
    answer(desk, "n2")
    assert not events(desk, "NodeSilent"), "its heartbeat may only be late"
    desk.pass_s(0.1)
    assert events(desk, "NodeLost")[0]["why"] == "silent for 2 s, and its host answers no other node (n3, n0, n1)"


def test_a_node_that_stops_while_all_ranks_step_is_given_the_time_that_steps_need_to_be_seen() -> None:
    desk = Desk(nodes=4)
    desk.running()
    stepping(desk, 5.0)
    hush(desk, "n2")
    stepping(desk, 1.2)  # the node lives a little longer than its last heartbeat shows
    desk.pass_s(0.6)
    answer(desk, "n2")
    desk.pass_s(0.4)
    assert events(desk, "NodeSilent") and not events(desk, "NodeLost")
    desk.pass_s(1.0)
    assert len(events(desk, "NodeLost")) == 1


def test_a_slow_node_is_no_suspect_while_its_host_answers_others() -> None:
    """Load takes a process its time, but not the kernel: it answers a connection within milliseconds."""
    desk = Desk(nodes=4)
    loop = desk.running()
    hush(desk, "n2")
    for _ in range(7):
        desk.pass_s(0.6)
        answer(desk, "n2", is_up=True)
    assert not events(desk, "NodeSilent") and loop.state.roster.nodes["n2"].silent_since is None
    asked = [m for m in desk.agents["n0"].got if isinstance(m, Probe)]
    assert len(asked) > 1, "what was true two seconds ago may be so no longer"
    desk.agents["n2"].beating = desk.agents["n2"].obeys = True
    desk.pass_s(9.0)
    assert not events(desk, "NodeSilent")


def test_a_host_that_answered_and_does_no_more_is_a_suspect_at_once() -> None:
    desk = Desk(nodes=4)
    desk.running()
    hush(desk, "n2")
    desk.pass_s(1.8)
    answer(desk, "n2", is_up=True)
    desk.pass_s(2.0)
    assert not events(desk, "NodeSilent")
    answer(desk, "n2")
    desk.pass_s(0.1)
    assert len(events(desk, "NodeLost")) == 1


def test_a_process_that_stands_still_on_a_host_that_answers_is_lost_in_the_end() -> None:
    desk = Desk(nodes=4)
    desk.running()
    stepping(desk, 61.0, 20.0)  # a step takes 20 s: nobody knows yet that the gang has halted
    hush(desk, "n2")
    for _ in range(7):
        desk.pass_s(1.0)
        answer(desk, "n2", is_up=True)
    assert events(desk, "NodeLost")[0]["why"].startswith("silent for 6 s, and no other node reaches it")


def test_somebody_reaches_it_and_it_comes_back() -> None:
    desk = Desk(nodes=4)
    loop = desk.running()
    hush(desk, "n2")
    desk.pass_s(S + 1.0)
    desk.agents["n0"].post(ProbeResult("n0", "n2", True))
    desk.agents["n1"].post(ProbeResult("n1", "n2", False))
    desk.pass_s(10.0)
    assert not events(desk, "NodeLost")
    desk.agents["n2"].beating = desk.agents["n2"].obeys = True
    desk.pass_s(1.5)
    assert [e["node"] for e in events(desk, "NodeHeard")] == ["n2"]
    assert loop.state.roster.nodes["n2"].silent_since is None


def test_probes_without_an_answer_count_as_no() -> None:
    desk = Desk(nodes=4)
    desk.running()
    hush(desk, "n2")
    desk.pass_s(9.5)
    assert [e["node"] for e in events(desk, "NodeLost")] == ["n2"]


def test_whoever_hears_less_than_half_declares_nobody_lost() -> None:
    desk = Desk(nodes=4)
    loop = desk.running()
    for name in ("n1", "n2", "n3"):
        hush(desk, name)
    desk.pass_s(50.0)
    assert len(events(desk, "NodeSilent")) == 3 and not events(desk, "NodeLost")
    desk.pass_s(15.0)
    assert len(events(desk, "NodeLost")) == 3  # a majority elsewhere would have taken the term long ago
    assert loop.exit_code is None


def test_half_of_two_may_go_on() -> None:
    desk = Desk(nodes=2)
    desk.running()
    stepping(desk, 5.0)
    hush(desk, "n1")
    desk.pass_s(9.0)
    assert [e["node"] for e in events(desk, "NodeLost")] == ["n1"]


def test_our_own_pause_makes_nobody_silent() -> None:
    desk = Desk(nodes=3)
    loop = desk.running()
    stepping(desk, 5.0)
    for _ in range(20):  # the loop is stopped: time goes on, beats pile up in its queue
        desk.clock.boot += 1.0
        for agent in desk.agents.values():
            agent.step += 1
            agent.beat()
    desk.turn_all()
    stepping(desk, 4.0)
    assert not events(desk, "NodeSilent") and loop.state.phase is Phase.RUNNING


def test_a_pause_without_a_single_beat_is_excused_too() -> None:
    desk = Desk(nodes=3)
    loop = desk.running()
    desk.clock.boot += 20.0
    desk.pass_s(4.0)
    assert not events(desk, "NodeSilent") and loop.state.phase is Phase.RUNNING


def test_old_beats_from_a_queue_keep_nobody_alive() -> None:
    """A connection comes back and delivers what a dead node said long ago."""
    desk = Desk(nodes=3)
    desk.running()
    stepping(desk, 3.0)
    agent = desk.agents["n2"]
    hush(desk, "n2")
    echo = agent.echo
    for _ in range(12):
        stepping(desk, 1.0)
        agent.beat(echo=echo)
    assert events(desk, "NodeSilent")


def test_beats_of_the_unknown_and_beats_said_before_are_dropped() -> None:
    desk = Desk(nodes=2)
    loop = desk.running()
    agent = desk.agents["n0"]
    agent.beat(incarnation="other")
    agent.beat(node="n9")
    agent.beat(seq=1)
    desk.turn_all()
    assert loop.beats.dropped["beat of an unknown agent"] == 2 and loop.beats.dropped["beat said before"] == 1


def test_strangers_are_turned_away() -> None:
    desk = Desk(nodes=2)
    loop = desk.open()
    desk.agents["n0"].hello(job="another")
    desk.agents["n1"].hello(node="n1", job="another")
    desk.turn_all()
    assert [type(m).__name__ for m in desk.agents["n0"].got] == ["Rejected"]
    assert not loop.beats.rows


def test_readings_feed_the_hang_watch_and_a_stalled_journal_suspends_it() -> None:
    policy = replace(Policy(), hang=replace(Policy().hang, timeout_s=60.0))
    desk = Desk(nodes=2, policy=policy)
    loop = desk.running()
    stepping(desk, 5.0)
    desk.store.stalled = True
    desk.pass_s(300.0)  # nothing was to be written, so nobody knew that the disk stands still
    assert loop.state.phase is Phase.RUNNING and loop.state.attempt.evidence.hang is None
    assert loop.state.store_stalled_since is not None
    desk.store.stalled = False
    desk.store.flush()
    desk.pass_s(40.0)
    assert "ProgressStalled" not in desk.kinds() and "no sign of progress" in loop.progress.warning
    desk.pass_s(30.0)
    assert "ProgressStalled" in desk.kinds()


@pytest.mark.parametrize("speaks", [True, False])
def test_a_queue_that_is_never_empty_makes_nobody_silent_and_hides_nobody(speaks: bool) -> None:
    """Thousands of letters wait, as at the start of a large job; when each came in is what counts."""
    desk = Desk()
    loop = desk.running()
    began = desk.clock.boot
    n0, n1 = desk.agents["n0"], desk.agents["n1"]
    waiting = [(n1, 0.5)] * 12_000 + [(agent, 0.5 + s) for s in range(7) for agent in ([n0, n1] if speaks else [n1])]
    for agent, came_s in waiting:
        agent.seq += 1
        echo = loop.run_clock.at(began + max(0.0, came_s - 1.0))
        said = Beat(agent.node, "i1", agent.seq, began + came_s, 0, 0, False, echo=echo)
        desk.mailbox.post(AgentsSaid(((agent.node.encode(), said),), began + came_s))
    while len(desk.mailbox.items) > 1:
        desk.clock.boot += 8.0 / len(waiting)
        loop.turn()
    assert desk.mailbox.items, "the queue was never empty"
    assert ("NodeSilent" in desk.kinds()) is not speaks
    assert set(loop.silence.suspects) == (set() if speaks else {"n0"})


def test_letters_that_lie_unread_make_nobody_silent_until_no_more_of_them_come() -> None:
    """A supervisor that reads more slowly than agents speak finds the newest of one before the oldest of another."""
    desk = Desk()
    loop = desk.running()
    n0, n1 = desk.agents["n0"], desk.agents["n1"]

    def read_of_a_heap() -> None:
        n1.seq += 1
        said = Beat("n1", "i1", n1.seq, desk.clock.boot, 0, 0, False, echo=loop.run_clock.at(desk.clock.boot))
        desk.mailbox.post(AgentsSaid(((b"n1", said),), desk.clock.boot, heap_since))
        loop.turn()

    heap_since = desk.clock.boot
    for _ in range(40):
        desk.clock.boot += 0.2
        read_of_a_heap()
        loop.turn()
        assert loop.deadline() > desk.clock.boot, "while nothing comes the loop waits"
    assert "NodeSilent" not in desk.kinds(), "what n0 has said lies unread"
    n1.beating = n0.beating = False
    desk.pass_s(2.0)
    assert "n0" in loop.silence.suspects, "no more is read, so nothing lies there"
