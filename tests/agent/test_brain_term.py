"""Which term is followed, and until when ranks may live: rule by rule."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gangrun.agent.brain import effects, facts
from gangrun.wire.messages import Ack, Beat, CommandResult, Hello, Recover, Rejected, Welcome
from tests.agent.stage import PEERS, TIMING, Stage, dial, launch, prepare, stop


def test_it_looks_for_a_term_at_start_and_goes_on_until_there_is_one():
    stage = Stage()
    assert stage.only(effects.FindTerm) == [effects.FindTerm()]
    stage.pass_s(5)
    looks = stage.only(effects.FindTerm)
    assert 4 <= len(looks) <= 8
    stage.local(facts.TermFound(dial(3), "job"))
    assert stage.brain.term_max == 3
    assert stage.only(effects.DialTerm) == [effects.DialTerm(3, "tcp://sup3", "skey3")]


def test_whoever_dials_says_hello_first():
    stage = Stage()
    stage.take()
    stage.peer(dial(2))
    kinds = [type(e.message if isinstance(e, effects.SendSupervisor) else e) for e in stage.take()]
    assert kinds == [effects.DialTerm, Hello]


def test_no_beat_before_the_welcome_but_hello_again():
    stage = Stage()
    stage.peer(dial(1))
    stage.take()
    stage.pass_s(1.5)
    assert stage.only(Hello)
    stage.sup(Welcome(1, "n1", stamp=77.0))
    beats = stage.only(Beat)
    assert [beat.echo for beat in beats] == [77.0]


def test_the_founder_has_the_first_supervisor_made_and_then_finds_its_claim():
    stage = Stage(founder=True)
    stage.local(facts.TermFound(None))
    assert stage.only(effects.SpawnSupervisor) == [effects.SpawnSupervisor(1, (), stage.now)]
    stage.pass_s(3)
    assert not stage.only(effects.SpawnSupervisor), "one is on its way"
    stage.local(facts.TermFound(dial(1), "job"))
    assert stage.only(effects.DialTerm)


def test_nobody_but_the_founder_does():
    stage = Stage()
    stage.local(facts.TermFound(None))
    assert not stage.only(effects.SpawnSupervisor)


def test_a_claim_of_a_job_that_is_over_only_counts_its_number():
    stage = Stage(founder=True)
    stage.take()
    stage.local(facts.TermFound(dial(7), "another job"))
    assert stage.brain.term_max == 7
    assert stage.take() == [effects.SpawnSupervisor(8, (), stage.now)]


def test_a_first_supervisor_that_fails_is_asked_for_again_ever_later():
    stage = Stage(founder=True)
    asked = []
    for _ in range(5):
        stage.local(facts.TermFound(None))
        while not stage.brain.follow.asked.spawning:
            stage.pass_s(0.5)
            stage.local(facts.TermFound(None))
        asked.append(stage.now)
        stage.local(facts.SupervisorExited(1, 1))
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert gaps == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("lower", [dial(1), dial(2)])
def test_a_lower_or_the_same_term_is_not_dialled(lower):
    stage = Stage().follow(2)
    assert stage.peer(lower) == []
    assert stage.brain.term_max == 2


def test_the_lease_ends_one_fence_after_the_newest_acked_beat_was_sent():
    stage = Stage().follow()
    sent = stage.now
    stage.pass_s(1.2)
    beat = stage.only(Beat)[-1]
    stage.pass_s(0.7)  # a slow ack adds nothing
    assert stage.ack(beat) == [effects.WriteLease(beat.boottime + TIMING.fence_after_s)]
    assert sent < beat.boottime < stage.now


def test_an_ack_may_not_lie_about_when_the_beat_was_sent():
    stage = Stage().follow()
    stage.pass_s(1.2)
    beat = stage.only(Beat)[-1]
    assert stage.sup(Ack(1, beat.seq, stage.now + 1e6, 0)) == [effects.WriteLease(beat.boottime + TIMING.fence_after_s)]


def test_an_older_ack_or_one_of_no_beat_changes_nothing():
    stage = Stage().follow()
    stage.pass_s(2.2)
    first, second = stage.only(Beat)[-2:]
    assert stage.ack(second)
    before = stage.brain.lease.acked_at
    stage.now += 0.5
    assert stage.ack(second) == []
    assert stage.ack(first) == []
    assert stage.sup(Ack(1, 999, stage.now, 0)) == []
    assert stage.brain.lease.acked_at == before
    assert stage.brain.counters.stale_acks == 2, "the repeated newest one is not even stale"


@pytest.mark.parametrize("message",
    [
        Ack(1, 1, 1000.0, 0), Welcome(1, "n1"), stop(5), prepare(1), launch(1),
        Recover(1, (1, 7), 0), Recover(1, (1, 8), 0, "/staging/5-ab", 5, "ab", ("0",)),
    ],
)  # fmt: skip
def test_nothing_of_a_lower_term_is_believed(message):
    stage = Stage().follow(1)
    stage.peer(dial(2))
    stage.take()
    assert stage.sup(message) == []
    assert stage.brain.counters.lower_term == 1


def test_an_ack_of_a_newer_term_that_was_not_dialled_makes_it_look_and_never_renews():
    stage = Stage().follow(1)
    stage.pass_s(1.2)
    beat = stage.only(Beat)[-1]
    leases = list(stage.leases)
    assert stage.sup(Ack(5, beat.seq, beat.boottime, 0)) == [effects.FindTerm()]
    assert stage.brain.term_max == 5
    assert stage.ack(beat, term=1) == [], "and the term that it followed is a lower one now"
    assert stage.leases == leases


def test_a_beat_sent_to_another_term_is_not_acked_by_this_one():
    stage = Stage().follow(1)
    stage.pass_s(1.2)
    beat = stage.only(Beat)[-1]
    stage.peer(dial(2))
    stage.sup(Welcome(2, "n1"))
    assert stage.sup(Ack(2, beat.seq, beat.boottime, 0)) == []


def test_the_echo_is_of_the_term_followed_and_never_falls():
    stage = Stage().follow(1)
    beat = stage.brain.beat(stage.now)
    stage.ack(beat, stamp=600.0)
    stage.ack(stage.brain.beat(stage.now), stamp=550.0)
    assert stage.brain.beat(stage.now).echo == 600.0
    stage.peer(dial(2))
    assert stage.brain.beat(stage.now).echo == 0.0


def test_two_beats_without_an_ack_make_it_dial_again_each_time_later():
    stage = Stage()
    stage.follow(1)
    start, dials = stage.now, []
    for _ in range(45):
        stage.pass_s(0.1)
        dials += [stage.now for _ in stage.only(effects.DialTerm)]
    assert [round(at - start, 1) for at in dials] == [2.5]
    stage.pass_s(15)
    assert len(stage.only(effects.DialTerm)) == 2, "4 and then 8 beats later"


def test_acks_keep_the_line():
    stage = Stage().follow(1)
    stage.pass_s(60, acks=True)
    assert not stage.only(effects.DialTerm)
    assert stage.brain.lease_deadline > stage.now + 28


def test_beats_come_once_a_period():
    stage = Stage().follow(1)
    stage.pass_s(30, acks=True)
    assert 29 <= len(stage.only(Beat)) <= 31


def test_rejection_by_a_deposed_supervisor_makes_it_look():
    stage = Stage().follow(1)
    assert stage.sup(Rejected(1, "another job")) == []
    assert stage.sup(Rejected(2, "deposed")) == [effects.FindTerm()]


def test_a_pause_of_its_own_is_not_held_against_the_supervisor():
    stage = Stage(roster_count=1).follow(1)
    stage.pass_s(5, acks=True)
    stage.take()
    stage.now += 20  # SIGSTOP
    stage.did(stage.brain.tick(stage.now))
    assert not any(isinstance(e, effects.SpawnSupervisor | effects.DialTerm) for e in stage.done)
    assert stage.only(Beat), "the first thing is to be heard again"
    stage.pass_s(10, acks=True)
    assert not stage.only(effects.SpawnSupervisor)


def test_a_simulator_may_account_for_beats_without_sending_them():
    lazy, real = Stage(roster_count=1).follow(1), Stage(roster_count=1).follow(1)
    real.pass_s(20.0, acks=True)
    first = lazy.brain.next_beat_at
    count = int(lazy.now + 20 - first) + 1
    lazy.now += 20
    assert lazy.brain.next_wake(beats=False) < lazy.now, "without being told it would look for a supervisor"
    sent = first + count - 1
    assert lazy.did(lazy.brain.catch_up_acked(sent, lazy.now, count, stamp=520.0)) == [
        effects.WriteLease(sent + TIMING.fence_after_s)
    ]
    for name in ("seq", "deadline", "term_max", "welcomed"):
        assert getattr(lazy.brain.lease, name) == getattr(real.brain.lease, name), name
    assert lazy.brain.next_beat_at == pytest.approx(real.brain.next_beat_at)
    assert lazy.brain.beat(lazy.now).echo == 520.0
    assert lazy.brain.catch_up_acked(sent - 5, lazy.now) == [], "the lease is never shortened"


def test_hello_tells_what_it_holds():
    stage = Stage(previous_died="signal SIGKILL", nofile_hard=9).follow(1).run(3)
    hello = stage.brain.hello()
    assert (hello.attempt, [r.rank for r in hello.ranks], hello.launching) == (3, [0, 1], False)
    assert (hello.previous_died, hello.nofile_hard, hello.term_max) == ("signal SIGKILL", 9, 1)


def test_the_ack_with_the_newest_stamp_tells_the_candidates_though_its_beat_was_acked_before():
    """The next heartbeat echoes that stamp, and the supervisor concludes that the names are known."""
    stage = Stage().follow(1, candidates=PEERS[:1], roster_count=5)
    stage.sup(Ack(1, 1, 0.0, 0, PEERS[1:3], stamp=501.0))
    assert stage.brain.lease.echo == 501.0 and stage.brain.follow.candidates == PEERS[1:3]
    stage.sup(Ack(1, 1, 0.0, 0, PEERS[:1], stamp=500.5))
    assert stage.brain.follow.candidates == PEERS[1:3], "it was sent before the one above"


def test_candidates_come_with_acks():
    stage = Stage().follow(1, candidates=PEERS, roster_count=5)
    assert stage.brain.follow.candidates == PEERS
    assert not stage.only(CommandResult)
