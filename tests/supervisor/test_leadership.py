"""Law 3: without a majority of fresh beats a supervisor neither acks nor acts; and what counts as fresh."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gangrun.core.events import CancelRequested, Stamped
from gangrun.core.model import Node, Phase
from gangrun.core.policy import Timing
from gangrun.core.protocol.lease import all_heard_within_s
from gangrun.supervisor.heartbeats import Leadership
from gangrun.wire.messages import Ack, Stop, Welcome
from tests.supervisor.desk import Desk
from tests.supervisor.test_loop import killed

TIMING = Timing()


def nodes(names: Iterable[str], *lost: str) -> dict[str, Node]:
    return {name: Node(name, "i1", "b", 1, lost=name in lost) for name in names}


def proven() -> Leadership:
    """Nobody ever seals its term."""
    leads = Leadership(TIMING)
    leads.proven(float("inf"))
    return leads


def test_a_majority_within_d_and_not_an_instant_longer() -> None:
    leads = proven()
    leads.rosters(nodes("abc"))
    leads.heard("a", 10.0)
    assert not leads.holds(10.0)
    leads.heard("b", 11.0)
    lasts_s = TIMING.leader_lease_s
    assert leads.holds(10.0 + lasts_s) and not leads.holds(10.001 + lasts_s)
    leads.heard("a", 12.0)
    assert leads.holds(11.0 + lasts_s) and not leads.holds(11.001 + lasts_s)


def test_half_is_no_majority_and_strangers_do_not_count() -> None:
    leads = proven()
    leads.rosters(nodes("abcd"))
    for node in ("a", "b", "x", "y"):
        leads.heard(node, 10.0)
    assert not leads.holds(10.0)


def test_lost_nodes_do_not_count() -> None:
    leads = proven()
    leads.rosters(nodes("abcd", "c", "d"))
    leads.heard("a", 10.0)
    assert not leads.holds(10.0)
    leads.heard("b", 10.0)
    assert leads.holds(10.0)


def test_both_rosters_need_their_majority() -> None:
    leads = proven()
    leads.rosters(nodes("a"), nodes("abc"))
    leads.heard("a", 10.0)
    assert not leads.holds(10.0)
    leads.rosters(nodes("a"), nodes("a"))
    assert leads.holds(10.0)


def test_who_does_not_hear_all_leads_only_for_so_long_after_it_was_seen_not_to_be_sealed() -> None:
    leads = Leadership(TIMING)
    leads.confirmed(float("inf"))
    leads.rosters(nodes("abc"), nodes("abcd", "d"))
    for now in (10.0, 30.0):
        for node in "abc":
            leads.heard(node, now)
        assert leads.holds(now), "all are heard: nobody else can have taken its term"
    for now in (35.0, 35.1):
        leads.heard("a", now)
        leads.heard("b", now)
        assert leads.holds(now) is (now <= 30.0 + all_heard_within_s(TIMING)), "c is silent"
    leads.proven(22.0)
    assert leads.holds(37.0)
    for node in "ab":
        leads.heard(node, 37.0)
    assert not leads.holds(37.1)
    leads.rosters(nodes("abc", "c"), nodes("abc", "c"))
    assert leads.holds(37.1), "its loss is on disk"


def test_who_hears_all_leads_only_for_so_long_after_the_scheduler_held_its_job_for_running() -> None:
    leads, lasts_s = Leadership(TIMING), TIMING.fence_after_s
    leads.rosters(nodes("ab"))

    def holds(now: float) -> bool:
        for node in "ab":
            leads.heard(node, now)
        return leads.holds(now)

    assert not holds(10.0), "nobody knows whether another job has begun"
    leads.confirmed(10.0)
    assert holds(10.0 + lasts_s) and not holds(10.1 + lasts_s)
    leads.proven(50.0)
    assert holds(50.0 + lasts_s) and not holds(50.1 + lasts_s), "no seal at that instant says as much"


def test_a_loop_that_neither_scheduler_nor_storage_answers_falls_silent_until_one_of_them_does() -> None:
    desk = Desk()
    desk.last_known_at = began_at = desk.clock.now()
    loop, fence_s = desk.running(), desk.policy.timing.fence_after_s

    def leads() -> bool:
        return loop.leadership.holds(loop.run_clock.at(desk.clock.now()))

    desk.pass_s(began_at + fence_s - 1.0 - desk.clock.now())
    assert leads()
    desk.pass_s(2.0)
    assert not leads()
    desk.jobs.confirmed_at = desk.clock.now()
    desk.pass_s(6.0)
    assert leads(), "Slurm says that this very job runs"


def test_a_replaced_agent_proves_nothing() -> None:
    leads = proven()
    leads.rosters(nodes("a"))
    leads.heard("a", 10.0)
    assert leads.holds(10.0)
    leads.forget("a")
    assert not leads.holds(10.0)


def test_counting_ten_thousand_is_not_done_for_each_beat() -> None:
    leads = proven()
    names = [f"n{i}" for i in range(10_000)]
    leads.rosters(nodes(names))
    for name in names[:5_001]:
        leads.heard(name, 10.0)
    assert leads.holds(10.0)
    late = proven()
    late.rosters(nodes(names))
    for name in names[:5_000]:
        late.heard(name, 10.0)
    assert not late.holds(10.0)
    late.heard(names[5_000], 10.0)
    assert not late.holds(10.01) and late.holds(10.06)  # at most COUNT_COST_S per agent later


def test_no_majority_neither_acks_nor_acts() -> None:
    desk = Desk(nodes=3)
    loop = desk.running()
    for name in ("n1", "n2"):
        desk.agents[name].beating = False
    desk.pass_s(4.5)
    agent = desk.agents["n0"]
    acks, stops = len(agent.heard(Ack)), len(agent.heard(Stop))
    killed(desk)
    desk.pass_s(20.0)
    assert len(agent.heard(Ack)) == acks and len(agent.heard(Stop)) == stops
    assert loop.state.phase is Phase.STOPPING  # decided and on record, not done
    for name in ("n1", "n2"):
        desk.agents[name].beating = True
    desk.pass_s(3.0)
    assert agent.heard(Stop) and len(agent.heard(Ack)) > acks


def test_beats_that_lay_in_a_queue_lead_nobody() -> None:
    """They echo an old word of ours: what their senders promised since is not known."""
    desk = Desk(nodes=3)
    desk.running()
    for agent in desk.agents.values():
        agent.beating = False
    desk.pass_s(4.0)
    acks = [len(agent.heard(Ack)) for agent in desk.agents.values()]
    for agent in desk.agents.values():
        agent.beat(boottime=desk.clock.boot - 3.5)
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.turn_all()
    assert [len(agent.heard(Ack)) for agent in desk.agents.values()] == acks
    assert not any(agent.heard(Stop) for agent in desk.agents.values())
    for agent in desk.agents.values():
        assert isinstance(agent.got[-1], Welcome)  # a word to echo, which renews nothing
        agent.beat()
    desk.turn_all()
    assert all(agent.heard(Stop) for agent in desk.agents.values())


def test_a_welcome_is_not_said_for_every_old_beat() -> None:
    desk = Desk(nodes=3)
    desk.running()
    for agent in desk.agents.values():
        agent.beating = False
    desk.pass_s(4.0)
    agent = desk.agents["n0"]
    before = len(agent.heard(Welcome))
    for _ in range(50):
        agent.echo = 1.0
        agent.beat()
        desk.turn_all()
    assert len(agent.heard(Welcome)) == before + 1


def test_a_new_term_leads_by_beats_alone() -> None:
    """Acks make leaders and leaders ack: the knot is cut by beats, which every agent sends once it is welcomed."""
    desk = Desk(nodes=3)
    desk.running()
    loop = desk.open()
    assert not loop.leadership.holds(loop.state.updated_at)
    for agent in desk.agents.values():
        agent.echo = 0.0
        agent.hello()
    desk.turn_all()
    assert not any(isinstance(m, Ack) and m.term == 2 for m in desk.agents["n0"].got)
    desk.agents["n0"].beat()
    desk.turn_all()
    assert not any(isinstance(m, Ack) and m.term == 2 for m in desk.agents["n0"].got)
    desk.agents["n1"].beat()
    desk.turn_all()
    assert any(isinstance(m, Ack) and m.term == 2 for m in desk.agents["n1"].got)


def test_one_box_leads_by_its_one_agent() -> None:
    desk = Desk(nodes=1)
    loop = desk.running()
    agent = desk.agents["n0"]
    agent.beating = False
    desk.pass_s(3.5)
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.turn_all()
    assert loop.state.phase is Phase.STOPPING and not agent.heard(Stop)
    agent.beating = True
    desk.pass_s(2.5)
    assert loop.exit_code == 130


def test_a_roster_that_shrinks_counts_only_once_it_is_on_disk() -> None:
    desk = Desk(nodes=2)
    loop = desk.running()
    desk.agents["n1"].beating = desk.agents["n1"].obeys = False
    for step in range(1, 4):
        desk.agents["n0"].step = step
        desk.pass_s(1.0)
    desk.store.stalled = True
    desk.pass_s(10.0)
    lost = loop.state.roster.nodes["n1"].lost
    acks = len(desk.agents["n0"].heard(Ack))
    desk.pass_s(3.0)
    assert lost and len(desk.agents["n0"].heard(Ack)) == acks
    desk.store.stalled = False
    desk.store.flush()
    desk.pass_s(2.0)
    assert len(desk.agents["n0"].heard(Ack)) > acks


@pytest.mark.parametrize("beats", [1, 2])
def test_one_lost_beat_does_not_end_leadership(beats: int) -> None:
    desk = Desk(nodes=1)
    desk.running()
    agent = desk.agents["n0"]
    agent.next_beat += beats
    desk.pass_s(beats + 1.0)
    agent.beat()
    desk.turn_all()
    agent.beat()
    desk.turn_all()
    assert agent.acks[-1].seq == agent.seq
