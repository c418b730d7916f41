"""Taking a term: claims, seals, what is read, and what the next loop begins with."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gangrun.core.events import CancelRequested, ResumeRequested, Stamped
from gangrun.core.model import Phase, Savers
from gangrun.core.policy import Policy, Timing
from gangrun.core.protocol import lease
from gangrun.supervisor.opening import EXIT_DEPOSED, RunClock
from gangrun.supervisor.takeover import CounterWatch, JournalRefused, TermLost, _fence_kept, take
from gangrun.wire import record as wire_record
from gangrun.wire.messages import Ack, Launch, PeerAddress, Probe, Stop
from gangrun.wire.record import replay
from tests.supervisor.desk import Desk
from tests.supervisor.ports_in_memory import MemoryTerms
from tests.supervisor.test_loop import killed
from tests.supervisor.test_roll_call import record


def rejoin(desk: Desk, *nodes: str) -> None:
    """These agents dial the new term."""
    for name in nodes or tuple(desk.agents):
        desk.agents[name].echo = 0.0
        desk.agents[name].hello()
    desk.turn_all()
    for name in nodes or tuple(desk.agents):
        desk.agents[name].beat()
    desk.turn_all()


# ---- claim, seal, read ----


def test_terms_grow_and_seal_what_came_before() -> None:
    desk = Desk()
    desk.running()
    loop = desk.open()
    assert loop.term == 2 and desk.disk.sealed >= {0, 1}
    desk.store.flush()
    assert desk.disk.records(2)[0].kind == "Snapshot"


def test_an_ambiguous_claim_counts_as_lost() -> None:
    desk = Desk()
    terms = MemoryTerms(desk.disk, lost_replies=2)
    opening = take(terms, desk.clock, desk.facts, desk.policy, offer=desk.offer)
    assert opening.term == 3


def test_ambiguous_for_ever_gives_up() -> None:
    desk = Desk()
    with pytest.raises(TermLost, match="confirmed"):
        take(MemoryTerms(desk.disk, lost_replies=99), desk.clock, desk.facts, desk.policy, offer=desk.offer)


def test_another_claimant_wins() -> None:
    desk = Desk()

    class Late(MemoryTerms):
        def claim(self, claim):  # type: ignore[no-untyped-def]
            self.disk.claims[claim.term] = replace_claim(desk.offer(claim.term), node="n7")
            return False

    with pytest.raises(TermLost, match="n7 claimed term 1 first"):
        take(Late(desk.disk), desk.clock, desk.facts, desk.policy, offer=desk.offer)


def replace_claim(claim, **changes):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(claim, **changes)


def test_sealed_before_it_began() -> None:
    desk = Desk()
    desk.disk.sealed.add(1)
    with pytest.raises(TermLost, match="sealed by a newer one"):
        take(MemoryTerms(desk.disk), desk.clock, desk.facts, desk.policy, offer=desk.offer)


def test_term_min_is_obeyed() -> None:
    desk = Desk()
    assert take(MemoryTerms(desk.disk), desk.clock, desk.facts, desk.policy, offer=desk.offer, term_min=9).term == 9


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda lines: lines[:2] + lines[3:], "jumps from record 1 to 3"),
        (lambda lines: lines[1:], "no snapshot"),
    ],
)
def test_journals_that_cannot_be_replayed_are_refused_in_words(spoil, words) -> None:  # type: ignore[no-untyped-def]
    desk = Desk()
    desk.running()
    desk.disk.journals[1] = spoil(desk.disk.journals[1])
    with pytest.raises(JournalRefused, match=words):
        desk.open()


def test_a_journal_of_another_run_is_refused() -> None:
    desk = Desk()
    desk.running()
    desk.facts = replace(desk.facts, run="other")
    with pytest.raises(JournalRefused, match="mixed up"):
        desk.open()


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    desk = Desk()
    desk.running()
    first = desk.disk.records(1)[0]
    broken = replace_claim(first, patch={**first.patch, "shape": "NOWHERE"})
    desk.disk.journals[1][0] = wire_record.encode(broken)
    with pytest.raises(JournalRefused, match="cannot be replayed"):
        desk.open()


def test_a_lost_journal_is_not_a_fresh_run() -> None:
    desk = Desk()

    class Lost(MemoryTerms):
        def history(self, before):  # type: ignore[no-untyped-def]
            return replace(super().history(before), ticketed_attempt=3)

    with pytest.raises(JournalRefused, match="journal is gone"):
        take(Lost(desk.disk), desk.clock, desk.facts, desk.policy, offer=desk.offer)


def test_the_run_clock_never_goes_back_and_a_fence_never_shrinks() -> None:
    desk = Desk()
    loop = desk.running()
    last = loop.state.updated_at
    desk.clock.epoch -= 3600.0
    opening = take(MemoryTerms(desk.disk), desk.clock, desk.facts, desk.policy, offer=desk.offer)
    assert opening.run_start == pytest.approx(last)
    clock = RunClock(opening.run_start, opening.boot_start)
    assert clock.boot(clock.at(77.0)) == pytest.approx(77.0)
    kept = _fence_kept(
        replace(opening.state, fence=replace(opening.state.fence, until=last + 30.0)), last, last + 3600.0
    )
    assert kept.fence.until == pytest.approx(last + 3630.0)


@pytest.mark.parametrize(
    ("ahead_s", "quiet_s", "passed_s"),
    [
        (6 * 3600.0, 40.0, 40.0),  # a wrong wall clock here: no wait and no exclusion is over at once
        (-6 * 3600.0, 40.0, 0.0),
        (40.0, 6 * 3600.0, 40.0),
        (40.0, None, 40.0),
    ],
)
def test_the_run_clock_goes_no_further_than_the_files_say(
    ahead_s: float, quiet_s: float | None, passed_s: float
) -> None:
    desk = Desk()
    last = desk.running().state.updated_at
    desk.clock.epoch += last + ahead_s - desk.clock.wall()
    desk.disk.quiet_s = quiet_s
    opening = take(MemoryTerms(desk.disk), desk.clock, desk.facts, desk.policy, offer=desk.offer)
    assert opening.run_start == pytest.approx(last + passed_s)


def test_counter_watch() -> None:
    watch = CounterWatch(Timing())
    assert watch.look(4, True, 0.0) is None
    assert watch.look(4, True, 59.9) is None
    assert watch.look(4, True, 60.0) is True
    watch = CounterWatch(Timing())
    assert watch.look(4, True, 0.0) is None and watch.look(5, True, 5.0) is False
    watch = CounterWatch(Timing())
    watch.look(4, True, 0.0)
    assert watch.look(4, False, 40.0) is None and watch.look(4, True, 61.0) is None  # our own writes failed: anew
    assert watch.look(4, True, 121.0) is True


# ---- what the loop begins with ----


def test_a_live_whole_gang_is_adopted() -> None:
    desk = Desk(nodes=3)
    desk.running()
    launches = {n: len(a.heard(Launch)) for n, a in desk.agents.items()}
    loop = desk.open()
    rejoin(desk)
    desk.pass_s(3.0)
    assert loop.state.phase is Phase.RUNNING and loop.state.attempt.number == 0 and loop.state.term == 2
    assert {n: len(a.heard(Launch)) for n, a in desk.agents.items()} == launches
    assert not any(a.heard(Stop) for a in desk.agents.values())
    taken = record(desk, "TermTaken")
    assert len(taken["inventories"]) == 3 and taken["missing"] == [] and taken["highest_attempt"] == 0
    assert desk.agents["n0"].acks[-1].term == 2


def test_it_waits_for_the_roster_only_so_long() -> None:
    desk = Desk(nodes=3)
    desk.running()
    loop = desk.open()
    desk.agents["n2"].beating = desk.agents["n2"].obeys = False
    rejoin(desk, "n0", "n1")
    assert loop.takeover.gathering
    desk.pass_s(5.1)
    assert record(desk, "TermTaken")["missing"] == ["n2"]
    assert loop.state.phase is Phase.RUNNING


def test_an_agent_that_lost_its_ranks_ends_the_adoption() -> None:
    desk = Desk(nodes=2)
    desk.running()
    loop = desk.open()
    agent = desk.agents["n1"]
    agent.incarnation, agent.attempt, agent.ranks, agent.seq = "i2", -1, (), 0
    rejoin(desk)
    desk.pass_s(3.0)
    assert loop.state.attempt.number == 1 and loop.state.roster.nodes["n1"].incarnation == "i2"
    assert "AgentRejoined" in desk.kinds()


@pytest.mark.parametrize("by", ["ticket", "agent"])
def test_an_attempt_whose_start_was_lost_from_the_journal_is_not_started_again(by: str) -> None:
    desk = Desk(nodes=2)
    desk.running()
    lines = [wire_record.decode(line) for line in desk.disk.journals[1]]
    chosen = next(i for i, line in enumerate(lines) if line.kind == "ResumeChosen")
    desk.disk.journals[1] = desk.disk.journals[1][:chosen]
    if by == "ticket":
        desk.disk.started_attempt = 0
        for agent in desk.agents.values():
            agent.attempt, agent.ranks = -1, ()
    loop = desk.open()
    rejoin(desk)
    assert record(desk, "TermTaken")["highest_attempt"] == 1
    desk.pass_s(3.0)
    assert loop.state.attempt.number >= 2


def test_attempt_numbers_never_repeat() -> None:
    desk = Desk(nodes=2)
    desk.running()
    desk.agents["n1"].attempt = 7
    loop = desk.open()
    rejoin(desk)
    assert record(desk, "TermTaken")["highest_attempt"] == 7
    desk.pass_s(3.0)
    assert loop.state.attempt.number >= 8


def test_events_the_last_term_never_made_durable_come_again() -> None:
    desk = Desk(nodes=2)
    desk.running()
    desk.store.stalled = True
    killed(desk)
    loop = desk.open()
    desk.agents["n0"].ranks = (0,)
    rejoin(desk)
    desk.pass_s(2.0)
    assert desk.kinds().count("RankExited") == 1 and loop.state.marks["n0"] == ("i1", 1)
    assert desk.agents["n0"].acks[-1].journalled_seq == 1


def test_law_one_after_a_takeover_runs_from_the_majoritys_hello_plus_d() -> None:
    desk = Desk(nodes=3, policy=Policy(saves_with=Savers.ALL))
    desk.running()
    loop = desk.open()
    desk.agents["n2"].beating = desk.agents["n2"].obeys = False
    rejoin(desk, "n0")
    assert loop.takeover.floor is not None  # the last supervisor may still lead the other two, but not for long
    assert loop.takeover.floor >= loop.takeover.until + 10.0
    desk.clock.boot += 0.5
    rejoin(desk, "n1")
    floor = loop.takeover.floor
    assert floor == pytest.approx(loop.run_clock.at(desk.clock.boot))
    desk.pass_s(5.0)
    killed(desk)
    desk.pass_s(12.0)
    assert loop.state.phase is Phase.STOPPING
    due = loop.run_clock.boot(lease.presumed_empty_after_takeover(floor or 0.0, desk.policy.timing))
    desk.pass_s(due - desk.clock.boot - 0.001)
    assert loop.state.phase is Phase.STOPPING
    desk.pass_s(0.002)
    assert loop.state.phase is not Phase.STOPPING


def test_one_node_that_the_last_supervisor_must_hear_is_enough_to_know_when_it_acked_last() -> None:
    desk = Desk(nodes=3)
    desk.running()
    loop = desk.open()
    assert loop.takeover.floor is None
    for name in ("n1", "n2"):
        desk.agents[name].beating = desk.agents[name].obeys = False
    rejoin(desk, "n0")
    floor = loop.takeover.floor
    assert floor == pytest.approx(loop.takeover.until - 3.5 + 15.0 * 1.01)
    desk.pass_s(100.0)  # nobody is lost before a majority on the other side would long have taken the term
    assert loop.state.phase is Phase.WAITING
    presumed = record(desk, "GangStopped")["presumed"]
    assert presumed == [["n1", "its lease has expired"], ["n2", "its lease has expired"]]


def test_one_that_was_ever_lost_proves_nothing() -> None:
    desk = Desk(nodes=3)
    desk.running()
    desk.agents["n0"].beating = False
    desk.pass_s(40.0)
    assert "NodeLost" in desk.kinds()
    desk.agents["n0"].beating = True
    desk.pass_s(5.0)
    loop = desk.open()
    assert not loop.state.roster.nodes["n0"].lost
    rejoin(desk, "n0")
    assert loop.takeover.floor is None
    rejoin(desk, "n1")
    assert loop.takeover.floor is not None


def test_a_deposed_supervisor_that_wakes_starts_nothing() -> None:
    desk = Desk(nodes=2)
    old = desk.running()
    store, radio = desk.store, desk.radio
    assert desk.open().term == 2
    desk.loop = old
    for agent in desk.agents.values():
        agent.beating = False
    desk.clock.boot += 20.0
    sent = len(radio.sent)
    desk.mailbox.items.clear()
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.turn_all()
    assert store.waiting == type(store.waiting)() and old.exit_code == EXIT_DEPOSED and len(radio.sent) == sent


def test_an_ended_run_is_ended_again_by_the_next_term() -> None:
    desk = Desk(nodes=2)
    first = desk.running()
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.pass_s(5.0)
    assert first.exit_code == 130
    loop = desk.open()
    rejoin(desk, "n0")
    desk.pass_s(16.0)
    assert loop.exit_code == 130


def test_a_resumed_run_begins_anew_in_its_new_job() -> None:
    desk = Desk(nodes=2)
    desk.running()
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.pass_s(5.0)
    desk.facts = replace(desk.facts, job="j2", seq=1, resumed=ResumeRequested("a person", "j2", 1))
    for agent in desk.agents.values():
        agent.incarnation, agent.attempt, agent.ranks, agent.seq, agent.echo, agent.events = "i9", -1, (), 0, 0.0, []
    loop = desk.open()
    desk.join()
    desk.pass_s(3.0)
    assert loop.state.phase is Phase.RUNNING and loop.state.job == "j2" and loop.state.attempt.number == 1
    assert replay([r for term in (1, 2) for r in desk.disk.records(term)]) == loop.state
    again = desk.open()
    rejoin(desk)
    desk.pass_s(2.0)
    assert again.state.phase is Phase.RUNNING and any(isinstance(m, Ack) and m.term == 3 for m in desk.agents["n1"].got)


def test_a_run_that_was_abandoned_resumes_from_the_step_that_was_asked_for_once() -> None:
    """Its job was lost in the middle. The same job under its own id again, or a later term of it, asks no more."""
    desk = Desk(nodes=2)
    desk.running()
    desk.facts = replace(desk.facts, job="j2", seq=1, resumed=ResumeRequested("a person", "j2", 1, "40"))
    loop = desk.open()
    desk.pass_s(5.0)
    assert loop.state.checkpoints.resume_request == "40"
    assert loop.state.job == "j2" and loop.state.phase is Phase.PENDING
    desk.facts = replace(desk.facts, job="j2r1", resumed=ResumeRequested("a person", "j2r1", 1, "30"))
    again = desk.open()
    desk.pass_s(5.0)
    assert again.state.job == "j2r1"
    assert again.state.checkpoints.resume_request == "40"


def test_nodes_that_were_lost_are_not_waited_for_nor_heard_by_mistake() -> None:
    desk = Desk(nodes=4)
    desk.running()
    desk.agents["n3"].beating = desk.agents["n3"].obeys = False
    desk.pass_s(12.0)
    assert desk.loop.state.roster.nodes["n3"].lost
    loop = desk.open()
    rejoin(desk, "n0", "n1", "n2")
    assert not loop.takeover.gathering and loop.state.roster.nodes["n3"].lost
    desk.pass_s(3.0)
    assert "NodeHeard" not in desk.kinds()
    assert record(desk, "TermTaken")["missing"] == ["n3"]


def test_a_gang_that_was_found_halted_is_known_to_have_by_its_pace_until_then() -> None:
    """The first node goes, and with it the supervisor and rank 0: no other node has its address any more."""
    desk = Desk(nodes=4)
    desk.running()
    for _ in range(40):
        for agent in desk.agents.values():
            agent.step += 1
        desk.pass_s(0.5)
    desk.agents["n0"].beating = desk.agents["n0"].obeys = False
    desk.open()
    rejoin(desk, "n1", "n2", "n3")
    desk.pass_s(15.0)
    lost = [record for record in desk.disk.records(desk.loop.term) if record.kind == "NodeLost"]
    assert [record.event["node"] for record in lost] == ["n0"]
    assert lost[0].event["why"].endswith("the gang makes no steps any more")


def test_a_node_that_never_came_to_the_new_supervisor_is_probed_at_the_address_that_others_know() -> None:
    """A script that reports no steps: nothing but probes can tell that the first node is gone."""
    desk = Desk(nodes=4)
    desk.running()
    known = next(ack.candidates for ack in reversed(desk.agents["n0"].heard(Ack)) if ack.candidates)
    assert [peer.node for peer in known] == ["n0", "n1", "n2", "n3"]
    desk.agents["n0"].beating = desk.agents["n0"].obeys = False
    desk.open()
    for name in ("n1", "n2", "n3"):
        desk.agents[name].echo = 0.0
        desk.agents[name].hello(peers=known)
    desk.pass_s(9.0)
    asked = [message for message in desk.agents["n1"].got if isinstance(message, Probe)]
    assert [one.target for one in asked] == [known[0]]
    lost = [record for record in desk.disk.records(desk.loop.term) if record.kind == "NodeLost"]
    assert [record.event["node"] for record in lost] == ["n0"] and "no other node reaches it" in lost[0].event["why"]


def named_of(acks: list[Ack]) -> list[list[str]]:
    return [[peer.endpoint for peer in ack.candidates] for ack in acks]


def test_an_ack_names_candidates_until_its_agent_has_echoed_one_that_did() -> None:
    desk = Desk(nodes=3)
    desk.running()
    desk.pass_s(3.0)
    first, agent = ["tcp://n0", "tcp://n1", "tcp://n2"], desk.agents["n1"]
    assert named_of(agent.acks)[-1] == [] and first in named_of(agent.acks)

    agent.acks.clear()
    desk.agents["n2"].hello(peer=PeerAddress("n2", "tcp://elsewhere", "key"))
    agent.beating = False
    desk.pass_s(2.0)
    stale = agent.echo
    for _ in range(3):  # no ack has reached it since
        agent.beat(echo=stale)
        desk.turn_all()
    changed = ["tcp://n0", "tcp://n1", "tcp://elsewhere"]
    assert named_of(agent.acks) == [changed] * 3
    agent.beat(echo=agent.acks[-1].stamp)
    desk.turn_all()
    assert named_of(agent.acks)[-1] == []

    agent.acks.clear()
    agent.incarnation, agent.seq, agent.echo, agent.beating = "i2", 0, 0.0, True
    agent.hello()
    desk.pass_s(3.0)
    assert named_of(agent.acks)[0] == changed, "an agent that was restarted knows nobody"
