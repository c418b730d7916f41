"""When nobody acks: asking, promising, collecting promises, asking for a supervisor."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.decide import AgentBrain, AgentConfig
from gangrun.wire.messages import Ack, Beat, Hello, Ping, Pong, Promise, Welcome
from tests.agent.stage import ME, PEERS, TIMING, Stage, dial

T = TIMING.takeover_after_s
ASKED_S = T - 0.4  # the candidates were asked, so that their answers are there after T


def lonely(roster_count: int = 5, candidates=PEERS, spec: int = 0, **config) -> Stage:
    """An agent that was acked once and never again. ``spec``: how many nodes the run is to have, 0: not known."""
    return Stage(roster_count=spec, **config).follow(1, candidates=candidates, roster_count=roster_count)


def pong(node: str, unacked_s: float = 6.0, term_max: int = 1) -> Pong:
    return Pong(node, f"inc-{node}", term_max, unacked_s)


def promise(node: str, term: int = 1, unacked_s: float = 6.0) -> Promise:
    return Promise(node, "inc" if node == ME.node else f"inc-{node}", term, unacked_s)


def sent(stage: Stage, kind: type) -> list:
    return [e for e in stage.only(effects.SendPeer) if isinstance(e.message, kind)]


def asked(stage: Stage) -> Stage:
    """Time has passed until the candidates were asked."""
    stage.pass_s(ASKED_S)
    assert [e.peer.node for e in sent(stage, Ping)] == ["n2", "n3", "n4", "n5"]
    return stage


def test_nobody_is_asked_before_the_time():
    stage = lonely()
    stage.pass_s(T - 0.51)
    assert not sent(stage, Ping)
    asked(lonely())


def test_the_first_candidate_that_answers_in_the_order_of_the_ack_is_promised_to():
    stage = asked(lonely())
    for node in ("n5", "n3", "n2"):
        stage.peer(pong(node))
    assert not sent(stage, Promise), "n4 may still answer"
    stage.pass_s(0.5)
    held = stage.brain.follow.held
    assert held is not None
    assert held.candidate.node == "n1", "itself comes first in this order"
    other = Stage()
    other.follow(1, candidates=(PEERS[3], PEERS[1], PEERS[0]), roster_count=5)
    other.pass_s(ASKED_S)
    other.peer(pong("n2"))
    assert not sent(other, Promise), "the supervisor may still ack"
    other.pass_s(0.41)
    [said] = sent(other, Promise)
    assert said.peer.node == "n2", "n4 did not answer"
    assert said.message == promise("n1", unacked_s=said.message.unacked_s) and said.message.unacked_s >= T


def test_a_roster_that_was_still_being_filled_makes_no_majority():
    """The last ack came while one of two nodes had joined; the supervisor stopped before it could say more."""
    stage = lonely(roster_count=1, candidates=PEERS[:1], spec=2)
    stage.pass_s(T + 0.6)
    assert not stage.only(effects.SpawnSupervisor), "one promise of two"
    stage.peer(promise("n2"))
    [asked_for] = stage.only(effects.SpawnSupervisor)
    assert asked_for.promises == ("n1", "n2")


def test_a_roster_that_was_full_once_may_shrink():
    stage = lonely(roster_count=3, candidates=PEERS[:1], spec=3)
    stage.pass_s(0.5, acks=True, candidates=PEERS[:1], roster_count=3)
    stage.pass_s(3.0, acks=True, candidates=PEERS[:1], roster_count=1)
    stage.take()
    stage.pass_s(T + 1.6)
    assert [e.promises for e in stage.only(effects.SpawnSupervisor)] == [("n1",)], "the two others are lost"


def test_all_answers_need_no_more_waiting():
    stage = Stage().follow(1, candidates=PEERS[1:3], roster_count=5)
    stage.pass_s(T)
    assert not sent(stage, Promise), "nobody has answered"
    stage.pass_s(0.6)
    stage.take()
    stage.peer(pong("n3"))
    stage.peer(pong("n2"))
    assert [e.peer.node for e in sent(stage, Promise)] == ["n2"]


def test_a_candidate_that_was_acked_lately_proves_that_the_supervisor_lives():
    stage, dials_count = lonely(), 0
    for _ in range(130):
        stage.pass_s(0.1)
        done = stage.take()
        dials_count += sum(isinstance(e, effects.DialTerm) for e in done)
        assert not any(isinstance(e, effects.SpawnSupervisor) for e in done)
        if any(isinstance(e, effects.SendPeer) for e in done):
            for node in ("n2", "n3", "n4"):
                stage.peer(pong(node))
            stage.peer(pong("n5", unacked_s=0.8))
    assert stage.brain.lease.promised_term == 0
    assert dials_count >= 2, "it dials on"


def test_while_a_promise_is_held_the_old_term_neither_hears_nor_is_believed():
    stage = Stage().follow(1, candidates=PEERS[1:2], roster_count=5)
    stage.pass_s(ASKED_S)
    beat = stage.brain.beat(stage.now)
    stage.peer(pong("n2"))
    stage.pass_s(0.41)
    stage.take()
    assert stage.sup(Ack(1, beat.seq, beat.boottime, 0)) == []
    assert stage.sup(Welcome(1, "n1")) == []
    stage.pass_s(2.5)
    assert not stage.only(Beat)


LEADS_S = TIMING.leader_lease_s * (1 + TIMING.drift)


def test_a_promise_counts_once_no_heartbeat_makes_the_old_supervisor_lead_any_more():
    """A welcome is no ack, and yet a heartbeat that echoes it lets its supervisor lead for D (law 3)."""
    stage = Stage().follow(1, candidates=PEERS[1:2], roster_count=5)
    stage.pass_s(T - 0.6)
    stage.take()
    stage.sup(Welcome(1, "n1", stamp=5000.0))
    welcomed_at = stage.now
    assert [beat.echo for beat in stage.only(Beat)] == [5000.0]
    stage.pass_s(0.3)
    stage.peer(pong("n2"))
    stage.pass_s(0.31)
    assert stage.brain.lease.promised_term == 1
    stage.take()
    while stage.now < welcomed_at + LEADS_S - 0.1:
        stage.peer(pong("n2"))
        stage.pass_s(0.05)
    said = stage.take()
    assert not said, "neither a word to the old term, nor a promise"
    stage.pass_s(0.11)
    assert [e.peer.node for e in sent(stage, Promise)] == ["n2"]


def test_a_candidate_counts_its_own_promise_no_sooner():
    stage = Stage().follow(1, candidates=PEERS[:1], roster_count=2)
    stage.pass_s(T - 0.6)
    stage.sup(Welcome(1, "n1", stamp=5000.0))
    welcomed_at = stage.now
    stage.pass_s(0.7)
    assert stage.brain.follow.held is not None
    stage.take()
    stage.peer(promise("n2"))
    assert not stage.only(effects.SpawnSupervisor), "one of two: its own does not count yet"
    stage.pass_s(welcomed_at + LEADS_S - stage.now + 0.01)
    assert [e.promises for e in stage.only(effects.SpawnSupervisor)] == [("n1", "n2")]


def test_a_promise_is_said_again_every_beat():
    stage = Stage().follow(1, candidates=PEERS[1:2], roster_count=5)
    stage.pass_s(ASKED_S)
    stage.peer(pong("n2"))
    stage.pass_s(0.41)
    for _ in range(3):
        stage.take()
        stage.peer(pong("n2"))
        stage.pass_s(1.0)
        assert len(sent(stage, Promise)) == 1


def test_a_promise_is_taken_back_in_time_and_the_next_goes_to_the_next():
    stage = Stage().follow(1, candidates=PEERS[1:3], roster_count=5)
    stage.pass_s(T)
    promised = []
    for _ in range(400):
        if stage.brain.follow._choose_at < float("inf") or stage.brain.follow.held:
            stage.peer(pong("n2"))
            stage.peer(pong("n3"))
        promised += [e.peer.node for e in sent(stage, Promise)]
        stage.pass_s(0.1)
    first_back = promised.index("n3")
    assert 5 <= first_back <= 7, "twice T, once a second"
    assert "n2" in promised[first_back:], "then the first once more"
    stage = Stage().follow(1, candidates=PEERS[1:2], roster_count=5)
    stage.pass_s(ASKED_S)
    stage.peer(pong("n2"))
    stage.pass_s(0.41)
    for _ in range(6):
        stage.pass_s(1.0)
        stage.peer(pong("n2"))
    stage.take()
    stage.pass_s(1.0)
    assert stage.brain.lease.promised_term == 1, "while its last word may still be counted it says nothing"
    assert stage.take() == []
    stage.pass_s(1.5)
    assert stage.brain.lease.promised_term == 0
    assert stage.only(Hello), "the old one gets another chance"
    stage.sup(Welcome(1, "n1"))
    assert stage.ack(stage.only(Beat)[-1]), "and is believed again"


def test_a_candidate_that_dies_is_left_for_the_next():
    stage = Stage().follow(1, candidates=PEERS[1:3], roster_count=5)
    stage.pass_s(ASKED_S)
    stage.peer(pong("n2"))
    stage.peer(pong("n3"))
    stage.pass_s(0.41)
    assert [e.peer.node for e in sent(stage, Promise)] == ["n2"]
    stage.pass_s(6.8)  # not a word of n2, and then none of ours while the last may be counted
    stage.take()
    stage.peer(pong("n3"))
    stage.pass_s(0.6)
    assert {e.peer.node for e in sent(stage, Promise)} == {"n3"}


def candidate(roster_count: int = 5) -> Stage:
    """Itself the candidate, its own promise given."""
    stage = Stage().follow(1, candidates=PEERS[:1], roster_count=roster_count)
    stage.pass_s(T)
    assert stage.brain.follow.held is not None
    return stage


def test_more_than_half_and_not_one_less():
    stage = candidate(5)
    stage.peer(promise("n2"), b"r2")
    assert not stage.only(effects.SpawnSupervisor), "two of five"
    stage.peer(promise("n3"), b"r3")
    assert stage.only(effects.SpawnSupervisor) == [effects.SpawnSupervisor(2, ("n1", "n2", "n3"), stage.now)]
    stage.peer(promise("n4"), b"r4")
    assert not stage.only(effects.SpawnSupervisor), "one at a time"


def test_half_is_no_majority():
    stage = candidate(4)
    stage.peer(promise("n2"))
    assert not stage.only(effects.SpawnSupervisor)


def test_the_same_node_twice_counts_once_and_old_promises_not_at_all():
    stage = candidate(5)
    stage.peer(promise("n2"))
    stage.peer(promise("n2"))
    assert not stage.only(effects.SpawnSupervisor)
    stage.pass_s(3.0)
    stage.peer(promise("n3"))
    assert not stage.only(effects.SpawnSupervisor), "n2 has not said it again"


def test_a_promise_of_somebody_who_was_acked_just_now_does_not_count():
    stage = candidate(3)
    stage.peer(promise("n2", unacked_s=T - 0.1), b"r")
    assert not stage.only(effects.SpawnSupervisor)
    assert stage.brain.follow._taken == {}


def test_one_node_needs_only_itself():
    stage = Stage(roster_count=1).follow(1, candidates=PEERS[:1], roster_count=1)
    stage.pass_s(T + 0.01)
    assert [(e.term_min, e.promises) for e in stage.only(effects.SpawnSupervisor)] == [(2, ("n1",))]


def test_a_restarted_agent_of_a_run_of_one_node_needs_no_ack_first():
    stage = Stage(roster_count=1)
    stage.local(facts.TermFound(dial(4), "job"))
    stage.pass_s(T + 0.01)
    assert [e.term_min for e in stage.only(effects.SpawnSupervisor)] == [5]


def test_the_new_term_leads_all_who_promised_there():
    stage = candidate(3)
    stage.peer(promise("n2"), b"way back")
    stage.take()
    stage.pass_s(0.5)
    assert stage.only(effects.FindTerm), "its own supervisor's claim says where it listens"
    stage.local(facts.TermFound(dial(2), "job"))
    done = stage.take()
    assert effects.DialTerm(2, "tcp://sup2", "skey2") in done
    assert effects.ReplyPeer(b"way back", dial(2)) in done
    assert stage.brain.lease.promised_term == 0
    stage.sup(Welcome(2, "n1"))
    assert stage.only(Beat)


def test_who_follows_a_newer_term_shows_the_way_there():
    stage = Stage().follow(3)
    assert stage.peer(promise("n2", term=1), b"r") == [
        effects.ReplyPeer(b"r", Pong("n1", "inc", 3, 0.0)),
        effects.ReplyPeer(b"r", dial(3)),
    ]
    assert stage.peer(Ping("n2", 2), b"r")[1] == effects.ReplyPeer(b"r", dial(3))
    assert len(stage.peer(Ping("n2", 3), b"r")) == 1


def test_a_promise_of_a_term_it_never_heard_of_makes_it_look():
    stage = candidate(5)
    stage.take()
    stage.peer(promise("n2", term=6), b"r")
    assert stage.only(effects.FindTerm)
    assert stage.brain.term_max == 6
    stage.peer(promise("n3", term=6), b"r")
    assert [e.term_min for e in stage.only(effects.SpawnSupervisor)] == [7]


@pytest.mark.parametrize("how", [facts.SupervisorExited(1, 2), facts.SupervisorRefused("one runs")])
def test_after_a_failed_supervisor_the_next_is_asked_for_ever_later(how):
    stage = Stage(roster_count=1).follow(1, candidates=PEERS[:1], roster_count=1)
    asked_at = []
    for _ in range(4):
        while not stage.brain.follow.asked.spawning:
            stage.pass_s(0.25)
        asked_at.append(stage.now)
        stage.local(how)
    gaps = [b - a for a, b in pairwise(asked_at)]
    assert gaps[0] >= 1.0
    assert all(later > sooner for sooner, later in pairwise(gaps)), gaps


def test_a_deposed_supervisor_of_ours_means_that_there_is_a_newer_term():
    stage = Stage().follow(1)
    assert stage.local(facts.SupervisorExited(75, 1)) == [effects.FindTerm()]
    assert stage.local(facts.SupervisorExited(0, 1)) == []


def test_who_is_no_candidate_does_so_later_since_all_who_are_may_be_gone():
    stage = Stage().follow(1, candidates=PEERS[1:2], roster_count=2)
    stage.pass_s(2 * TIMING.counter_still_s - 1)
    assert not stage.only(effects.SpawnSupervisor)
    stage.pass_s(25)
    assert [(e.term_min, e.promises) for e in stage.only(effects.SpawnSupervisor)] == [(2, ())]


@pytest.mark.parametrize(("ended", "after_s"), [(True, 2.5 * T), (False, TIMING.counter_still_s)])
def test_a_restarted_agent_that_sees_the_holder_gone_asks_as_soon_as_a_majority_has_had_its_turn(ended, after_s):
    stage = Stage(roster_count=3)
    stage.local(facts.TermFound(dial(4), "job", holder_ended=ended))
    stage.pass_s(after_s - 0.5)
    assert not stage.only(effects.SpawnSupervisor)
    stage.pass_s(11.0)
    assert [(e.term_min, e.promises) for e in stage.only(effects.SpawnSupervisor)] == [(5, ())]


def test_a_newer_term_than_the_one_whose_holder_is_gone_is_believed():
    stage = Stage(roster_count=3)
    stage.local(facts.TermFound(dial(4), "job", holder_ended=True))
    stage.peer(dial(5))
    stage.pass_s(TIMING.counter_still_s - 1.0)
    assert not stage.only(effects.SpawnSupervisor)


def test_many_who_are_no_candidates_do_not_do_so_all_at_once():
    first_s = []
    for i in range(12):
        stage = Stage()
        config = AgentConfig("n1", f"i{i}", "boot", "job", 2, peer=ME, timing=TIMING)
        stage.brain = AgentBrain(config, stage.now)
        stage.follow(1, candidates=PEERS[1:2], roster_count=1000)
        while not stage.only(effects.SpawnSupervisor):
            stage.pass_s(5.0)
        first_s.append(stage.now)
    assert max(first_s) - min(first_s) > 120


def test_a_lost_dial_is_made_good_by_reading_the_claims_ever_more_rarely():
    stage = Stage().follow(1, candidates=PEERS[1:2], roster_count=5)
    stage.pass_s(2 * T - 0.1)
    assert not stage.only(effects.FindTerm)
    stage.pass_s(100)
    looks = len(stage.only(effects.FindTerm))
    assert 3 <= looks <= 6, "at 6, 11, 21, 41, 81 s or so"


def test_an_ack_ends_it_all():
    stage = asked(lonely())
    beat = stage.brain.beat(stage.now)
    stage.ack(beat, candidates=PEERS, roster_count=5)
    for node in ("n2", "n3", "n4", "n5"):
        stage.peer(pong(node))
    stage.pass_s(3, acks=True)
    assert not sent(stage, Promise)
    assert not stage.only(effects.SpawnSupervisor)


def test_answers_to_no_question_are_not_counted():
    stage = lonely()
    assert stage.peer(pong("n2")) == []
    asked(stage)
    assert stage.peer(pong("n9")) == [], "no candidate"


def test_a_dial_ends_the_promise():
    stage = candidate(5)
    stage.peer(dial(2))
    assert stage.brain.follow.held is None
    assert stage.brain.lease.promised_term == 0
    assert stage.brain.follow.asked.spawning is False


def test_takeover_and_reconnect_fit_into_the_lease():
    """Law 2, as far as the agent has a say: unacked, asked, promised, spawned within T + 1.5 s; the lease is L."""
    stage = Stage(roster_count=1).follow(1, candidates=PEERS[:1], roster_count=1)
    begun = stage.now
    while not stage.brain.follow.asked.spawning:
        stage.pass_s(0.1)
    assert stage.now - begun <= T + 1.5 < TIMING.fence_after_s


def test_a_new_term_that_reads_is_waited_for_and_not_for_ever():
    stage = lonely()
    stage.peer(dial(2))
    stage.take()
    began, asked_after_s = stage.now, 0.0
    while not asked_after_s and stage.now < began + 10 * T:
        stage.sup(Welcome(2, "n1", reading=True))
        stage.pass_s(TIMING.beat_every_s)
        done = stage.take()
        if any(isinstance(e, effects.SendPeer) and isinstance(e.message, Ping) for e in done):
            asked_after_s = stage.now - began
        else:
            assert not any(isinstance(e, effects.DialTerm) for e in done), "the line to it stays"
    assert asked_after_s == pytest.approx(4 * T, abs=TIMING.beat_every_s)
    assert not stage.brain.lease.welcomed, "its beats count only from the loop's own welcome on"


def test_a_supervisor_that_was_stopped_before_it_claimed_is_replaced_where_nobody_else_can():
    stage = Stage(roster_count=1, founder=True)
    stage.local(facts.TermFound(None))
    (first,) = stage.only(effects.SpawnSupervisor)
    assert (first.term_min, first.promises) == (1, ())
    for _ in range(59):
        stage.pass_s(1.0)
        stage.local(facts.TermFound(None))
    assert not stage.only(effects.SpawnSupervisor)
    stage.pass_s(2.0)
    (second,) = stage.only(effects.SpawnSupervisor)
    assert (second.term_min, second.promises) == (2, ("n1",)), (
        "its own word, or the warden would not start one beside it"
    )


def test_where_others_can_the_founders_warden_is_only_asked():
    stage = Stage(roster_count=3, founder=True)
    stage.local(facts.TermFound(None))
    stage.pass_s(62.0)
    first, second = stage.only(effects.SpawnSupervisor)
    assert (first.term_min, second.term_min, second.promises) == (1, 2, ())


def test_a_supervisor_that_claimed_and_is_being_born_is_not_called_stuck():
    stage = Stage(roster_count=1, founder=True)
    stage.local(facts.TermFound(None))
    stage.take()
    stage.peer(dial(1))
    stage.pass_s(T - 0.1)
    assert not stage.only(effects.SpawnSupervisor)


def test_a_journal_that_nobody_can_use_is_given_up_with_the_words():
    stage = lonely()
    for count in range(1, 6):
        assert not stage.only(effects.Leave)
        stage.local(facts.SupervisorExited(78, 2))
        stage.pass_s(1.0)
        assert stage.brain.follow.asked.refusals_count == count
    (leave,) = stage.only(effects.Leave)
    assert leave.code == 78
    assert "a person must look" in leave.reason


def test_one_that_can_use_it_ends_the_count():
    stage = lonely()
    for _ in range(4):
        stage.local(facts.SupervisorExited(78, 2))
    stage.follow(2, candidates=PEERS, roster_count=5)
    stage.local(facts.SupervisorExited(78, 3))
    stage.pass_s(1.0)
    assert not stage.only(effects.Leave)


def test_an_agent_whose_run_went_on_in_another_job_leaves_once_that_is_certain():
    stage = Stage(roster_count=2, founder=True)
    for _ in range(7):
        stage.local(facts.TermFound(dial(3), "another"))
        assert not stage.only(effects.Leave), "its own job may be about to take a term"
        stage.local(facts.SupervisorExited(75, 4))
    stage.local(facts.TermFound(dial(3), "another"))
    (leave,) = stage.only(effects.Leave)
    assert (leave.code, leave.reason) == (0, "the run went on in job another")


def test_supervisors_that_end_the_job_and_do_not_let_this_agent_go_are_asked_for_more_and_more_rarely():
    """Each of them acks it, and is gone before its farewell gets through."""
    stage = lonely(3, PEERS[:3])
    asked_at: list[float] = []
    for term in range(2, 10):
        began = stage.now
        while not stage.brain.follow.asked.spawning:
            stage.pass_s(0.5)
        asked_at.append(stage.now - began)
        stage.follow(term, candidates=PEERS[:3], roster_count=3)
        stage.local(facts.SupervisorExited(0, term))
    assert all(asked_at[0] <= s <= 70 for s in asked_at), asked_at
    assert min(asked_at[5:]) > 60, asked_at


def watching(roster_count: int = 2) -> Stage:
    """A candidate, of whose roster nobody answers, that has asked for a supervisor which watches the counter."""
    stage = Stage().follow(1, candidates=PEERS[:roster_count], roster_count=roster_count)
    stage.pass_s(3 * T - 0.01)
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
