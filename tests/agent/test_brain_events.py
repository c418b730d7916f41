"""Events on their way to the journal, readings, signals, probes."""

from __future__ import annotations

import signal

import pytest

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.line import FINDINGS_MAX, PER_BEAT_MAX, Outbox
from gangrun.core.events import CancelRequested, Notice, RankExited, RankFinished
from gangrun.core.evidence import NodeFinding
from gangrun.wire.kinds import event_of
from gangrun.wire.messages import Beat, Farewell, Ping, Pong, Probe, ProbeResult, RankSample, Stop, Welcome
from tests.agent.stage import PEERS, Stage, dial, died, stop


def finding(n: int) -> facts.FindingReported:
    return facts.FindingReported(NodeFinding("n1", "disk", False, f"finding {n}"))


def test_an_event_does_not_wait_for_the_next_beat_and_rides_on_each_until_journalled():
    stage = Stage().follow().run(0)
    stage.local(facts.RankEnded(0, died(1, code=1)))
    [beat] = stage.only(Beat)
    assert [(e.seq, e.kind) for e in beat.events] == [(1, "RankExited")]
    assert event_of(beat.events[0].kind, beat.events[0].data) == RankExited(0, died(1, code=1))
    stage.pass_s(2.2)
    for again in stage.only(Beat):
        assert again.events == beat.events
    stage.ack(stage.brain.beat(stage.now), journalled_seq=1)
    assert stage.brain.beat(stage.now).events == ()


def test_events_are_in_order_and_as_many_as_a_beat_may_carry():
    stage = Stage().follow().run(0)
    for _ in range(PER_BEAT_MAX + 5):
        stage.local(facts.RankEnded(0, died(0, code=1)))
    assert [e.seq for e in stage.brain.beat(stage.now).events] == list(range(1, PER_BEAT_MAX + 1))
    stage.ack(stage.brain.beat(stage.now), journalled_seq=PER_BEAT_MAX)
    assert [e.seq for e in stage.brain.beat(stage.now).events] == list(range(PER_BEAT_MAX + 1, PER_BEAT_MAX + 6))


def test_a_journalled_number_never_given_is_not_believed_and_an_older_one_takes_nothing_back():
    stage = Stage().follow().run(0)
    stage.local(facts.RankEnded(0, died(0, code=1)))
    stage.ack(stage.brain.beat(stage.now), journalled_seq=99)
    assert len(stage.brain.outbox) == 1
    stage.ack(stage.brain.beat(stage.now), journalled_seq=1)
    stage.ack(stage.brain.beat(stage.now), journalled_seq=0)
    assert (len(stage.brain.outbox), stage.brain.outbox.journalled_seq) == (0, 1)


def test_events_outlive_a_term_and_are_told_to_the_next():
    stage = Stage().follow(1).run(0)
    stage.local(facts.RankEnded(0, died(0, code=1)))
    stage.follow(2)
    assert [e.seq for e in stage.brain.beat(stage.now).events] == [1]


def test_findings_beyond_the_bound_are_dropped_counted_and_said():
    box = Outbox()
    stage = Stage().follow()
    for n in range(FINDINGS_MAX + 3):
        stage.local(finding(n))
    assert stage.brain.outbox.findings_dropped_count == 3
    assert len(stage.brain.outbox) == FINDINGS_MAX
    stage.ack(stage.brain.beat(stage.now), journalled_seq=FINDINGS_MAX)
    stage.local(finding(1000))
    [event] = stage.brain.beat(stage.now).events
    assert event.data["finding"]["sentence"] == "finding 1000 (3 findings before it were dropped)"
    assert event.seq == FINDINGS_MAX + 1, "no gap: what was dropped had no number"
    assert box.page() == ()


def test_a_rank_that_ended_with_zero_is_finished():
    stage = Stage().follow().run(0)
    stage.local(facts.RankEnded(0, died(1, code=0)))
    [event] = stage.only(Beat)[-1].events
    assert event_of(event.kind, event.data) == RankFinished(0, 1, "n1", 0.0)
    assert [r.rank for r in stage.brain.hello().ranks] == [0]


@pytest.mark.parametrize("ended", [{"signal": 9}, {"code": 0}])
@pytest.mark.parametrize("why", ["it said so", "stopping", "lease"])
def test_deaths_that_are_our_own_doing_are_marked_and_no_success(why, ended):
    stage = Stage().follow().run(0)
    if why == "stopping":
        stage.sup(stop(0))
    if why == "lease":
        stage.now = stage.brain.lease_deadline
    stage.take()
    stage.local(facts.RankEnded(0, died(0, by_us=why == "it said so", at=stage.now, **ended)))
    [event] = stage.brain.beat(stage.now).events
    assert event.kind == "RankExited"
    assert event.data["exit"]["by_us"] is True


@pytest.mark.parametrize(
    ("at", "written", "ours"), [(0.2, 0.0, False), (0.4, 0.0, True), (5.0, 0.2, False), (5.0, 0.4, True)]
)
def test_what_failed_before_the_ranks_were_really_stopped_failed_of_itself(at, written, ours):
    """However long its destructors kept it, and however late we hear of it."""
    stage = Stage().follow().run(0)
    began = stage.now
    stage.sup(stop(0, settle_s=0.3))
    stage.take()
    stage.local(facts.RankEnded(0, died(0, code=1, at=began + at, written=written and began + written)))
    [event] = stage.brain.beat(stage.now).events
    assert event.data["exit"]["by_us"] is ours
    stage.local(facts.RanksStopped(0, True, ()))


def test_a_death_before_the_welcome_is_kept():
    stage = Stage().follow(1).run(0)
    stage.peer(dial(2))
    stage.take()
    stage.local(facts.RankEnded(0, died(0, code=1)))
    assert not stage.only(Beat)
    assert len(stage.brain.outbox) == 1


def test_readings_ride_on_beats_of_their_attempt_only():
    stage = Stage().follow().run(0)
    reading = RankSample(0, 5, 1, 2, 3, 0.5, "R")
    stage.local(facts.ReadingsTaken(0, (reading,)))
    assert stage.brain.beat(stage.now).readings == (reading,)
    stage.local(facts.ReadingsTaken(7, ()))
    assert stage.brain.beat(stage.now).readings == (reading,)
    for rank in (0, 1):
        stage.local(facts.RankEnded(0, died(rank, code=0)))
    assert stage.brain.beat(stage.now).readings == ()


def test_standbys_ride_on_beats_that_are_whole():
    stage = Stage().follow().run(0)
    stage.local(facts.StandbysKept(2, 10**9))
    assert stage.brain.beat(stage.now).standbys == (2, 10**9)
    stage.local(facts.StandbysKept(0, 0))
    assert stage.brain.beat(stage.now).standbys == (0, 0)


def test_a_supervisor_that_wants_all_readings_seldom_gets_brief_beats_until_it_asks_or_another_takes_over():
    stage = Stage().follow().run(0)

    def said() -> tuple[bool, int]:
        stage.now += 1.0
        stage.local(facts.ReadingsTaken(0, tuple(RankSample(rank, 5, 1, 2, 3, stage.now, "R") for rank in (0, 1))))
        beat = stage.brain.beat(stage.now)
        stage.ack(beat, asks_for_all=asks)
        return beat.is_brief, len(beat.readings)

    asks = False
    assert [said(), said()] == [(False, 2)] * 2, "it has said nothing of it, as an older one"
    stage.peer(dial(2))
    stage.take()
    stage.sup(Welcome(2, "n1", whole_every_s=15.0))
    assert [(beat.is_brief, len(beat.readings)) for beat in stage.only(Beat)] == [(False, 2)]
    assert [said(), said()] == [(True, 1), (True, 1)]
    asks = True
    assert [said(), said(), said()] == [(True, 1), (False, 2), (False, 2)]
    asks = False
    assert [said(), said()] == [(False, 2), (True, 1)]
    stage.peer(dial(3))
    stage.take()
    stage.sup(Welcome(3, "n1", whole_every_s=15.0))
    assert [(beat.is_brief, len(beat.readings)) for beat in stage.only(Beat)] == [(False, 2)]
    assert said() == (True, 1)
    stage.sup(Welcome(3, "n1", whole_every_s=15.0))
    assert [beat.is_brief for beat in stage.only(Beat)] == [True], "no new connection: only a newer word to echo"
    stage.brain.catch_up_acked(stage.now, stage.now)
    assert [said(), said()] == [(False, 2), (True, 1)]


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, Notice), (signal.SIGINT, CancelRequested)])
def test_a_signal_is_an_event_and_the_supervisor_decides(number, kind):
    stage = Stage(notice_grace_s=10.0).follow()
    stage.local(facts.TerminateAsked(number))
    [event] = stage.only(Beat)[-1].events
    assert isinstance(event_of(event.kind, event.data), kind)
    stage.pass_s(60, acks=True)
    assert not stage.only(effects.Leave), "it acks, so it is at it"
    stage.sup(Farewell(1, (1, 9), 130, "cancelled"))
    assert stage.only(effects.Leave) == [effects.Leave(130, "cancelled")]


def test_a_signal_without_a_supervisor_ends_the_agent_after_the_grace():
    stage = Stage(notice_grace_s=20.0).follow().run(0)
    stage.local(facts.TerminateAsked(15))
    stage.pass_s(19.5)
    assert not stage.only(Stop)
    stage.pass_s(1.0)
    assert len(stage.only(Stop)) == 1
    stage.local(facts.RanksStopped(0, True))
    assert stage.only(effects.Leave)[0].code == 143


def test_a_second_signal_does_not_wait():
    stage = Stage().follow().run(0)
    stage.local(facts.TerminateAsked(2))
    stage.local(facts.TerminateAsked(2))
    assert len(stage.only(Stop)) == 1
    stage.local(facts.TerminateAsked(2))
    stage.local(facts.RanksStopped(0, True))
    assert [leave.code for leave in stage.only(effects.Leave)] == [130]


def test_a_probe_is_a_ping_and_its_result():
    stage = Stage().follow()
    stage.sup(Probe(1, PEERS[1]))
    done = stage.take()
    assert effects.SendPeer(PEERS[1], Ping("n1", 1)) in done and effects.Knock(PEERS[1]) in done
    assert stage.brain.probes
    stage.peer(Pong("n2", "x", 1))
    assert stage.only(ProbeResult) == [ProbeResult("n1", "n2", True, True)]
    stage.peer(Pong("n2", "x", 1))
    assert not stage.only(ProbeResult), "once"
    stage.sup(Probe(1, PEERS[2]))
    stage.pass_s(1.5, acks=True)
    assert stage.only(ProbeResult) == [ProbeResult("n1", "n3", False)]
    stage.sup(Probe(1, PEERS[2]))
    stage.local(facts.HostAnswered("n3"))
    stage.local(facts.HostAnswered("n4"))
    assert stage.only(ProbeResult) == [ProbeResult("n1", "n3", False, True)], "at once: its agent may still answer"
    stage.pass_s(1.5, acks=True)
    assert stage.only(ProbeResult) == [ProbeResult("n1", "n3", False, True)]
    assert not stage.brain.probes
