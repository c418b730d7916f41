"""A new term in every phase, a new job, a run taken up again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import (
    CheckNodes,
    ChooseResume,
    EndJob,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitSuccessor,
    TakeStacks,
)
from gangrun.core.events import (
    ActDone,
    AgentJoined,
    AttemptSealed,
    GangStarted,
    NodeLost,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressStalled,
    RankFinished,
    ResumeRequested,
    StopTimedOut,
    StoreBack,
    StoreStalled,
    TermTaken,
)
from gangrun.core.machine.transitions import may_hold_ranks
from gangrun.core.model import TERMINAL, After, Exclusion, Inventory, Outcome, Phase, RankAlive, StartStage
from gangrun.core.policy import Policy
from tests.core.life import BUG, Life, at, saved

SCHEDULER = Policy(can_requeue=True)


def held(life: Life, attempt: int, *ranks: int) -> tuple[Inventory, ...]:
    return tuple(
        Inventory(name, attempt, tuple(RankAlive(r, 1, 1) for r in ranks if life.names[r // life.ranks] == name))
        for name in life.names
    )


def taken(life: Life, *, job: str = "j", inventories: tuple[Inventory, ...] = (), highest: int | None = None) -> None:
    attempt = life.state.attempt.number if highest is None else highest
    life.on(TermTaken(life.state.term + 1, job, inventories, (), attempt))


# ---- the same job ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", list(Phase))
def test_a_new_term_is_known_in_every_phase_and_an_old_one_never(phase: Phase) -> None:
    life = at(phase)
    whole = held(life, life.state.attempt.number, *range(4)) if phase is Phase.RUNNING else ()
    taken(life, inventories=whole)
    assert life.state.term == 1
    life.says("supervisor #1 begins")
    taken(life, inventories=whole)
    life.says("supervisor #2 took over")
    life.ignored(TermTaken(2, "j", (), (), 0), "term 2", "not newer")


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.CHECKING, Phase.STOPPING, Phase.WAITING])
def test_whoever_takes_over_has_time_to_do_so(phase: Phase) -> None:
    life = at(phase)
    life.now += 100_000.0
    taken(life)
    assert life.phase is phase
    for due in life.state.timers.deadlines.values():
        assert due.at >= life.now + life.policy.start_within_s


def test_what_the_last_supervisor_asked_for_is_asked_again() -> None:
    life = at(Phase.CHECKING)
    taken(life)
    assert life.actions == (CheckNodes(("n0", "n1")),)
    life = Life()
    life.checked()
    taken(life)
    assert life.actions == (SealAttempts(0),)
    life.on(AttemptSealed(0))
    taken(life)
    assert life.actions == (SealAttempts(0),), "which commits stand died with the last supervisor"
    assert life.state.underway.stage is StartStage.SEALING
    life = at(Phase.STOPPING)
    taken(life)
    assert life.actions == (StopGang(0, 10.0, False, life.state.reason),)
    life = Life().running()
    life.cancel()
    taken(life)
    assert life.last(StopGang).checkpoint_first
    life = at(Phase.WAITING)
    taken(life)
    assert isinstance(life.actions[0], SubmitSuccessor)
    life = Life().waiting()
    taken(life)
    assert life.actions == ()
    for phase in TERMINAL:
        life = at(phase)
        story = life.state.reason
        taken(life)
        assert isinstance(life.actions[0], EndJob)
        assert life.state.reason == story


def test_a_gang_that_lives_is_adopted_whatever_has_not_answered_yet() -> None:
    life = Life().running()
    taken(life, inventories=held(life, 0, 0, 1)[:1])
    assert life.phase is Phase.RUNNING
    life.says("adopted attempt 0", "2 of 4", "no report yet from n1")


def test_a_gang_of_which_a_node_knows_nothing_any_more_is_stopped_and_judged() -> None:
    life = Life().running()
    taken(life, inventories=(held(life, 0, 0, 1, 2, 3)[0], Inventory("n1", -1)))
    assert (life.phase, life.state.underway.after) == (Phase.STOPPING, After.JUDGE)
    life.says("n1 no longer holds attempt 0")
    assert life.state.attempt.evidence.agents_died == ("n1",)


def test_a_hang_is_looked_at_again_with_time_for_it() -> None:
    life = Life().running()
    life.on(ProgressStalled(0, 130.0, 120.0, ()))
    life.now += 60
    taken(life, inventories=held(life, 0, *range(4)))
    assert life.actions == (TakeStacks(0),)
    assert life.state.timers.deadlines["stacks"].at >= life.now + life.policy.stacks_within_s


def test_a_gang_in_the_middle_of_a_launch_is_taken_if_whole_and_stopped_if_not() -> None:
    life = Life().launching()
    life.finish(3)
    taken(life, inventories=held(life, 0, 0, 1, 2))
    assert life.phase is Phase.RUNNING
    life.says("found all ranks of attempt 0")
    life = Life().launching()
    taken(life, inventories=held(life, 0, 0, 1, 2))
    assert life.state.underway.after is After.AGAIN
    life.says("while attempt 0 was starting")


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.WAITING])
def test_an_attempt_that_the_journal_does_not_know_is_stopped_first(phase: Phase) -> None:
    life = at(phase)
    taken(life, highest=4)
    assert life.phase is Phase.STOPPING
    assert life.last(StopGang).attempt == 4
    life.says("attempt 4", "the journal only attempt 0")


def test_a_cancelled_run_does_not_start_again_because_nodes_know_more_than_the_journal() -> None:
    life = Life().running()
    life.cancel("a person")
    taken(life, highest=4)
    life.stopped()
    assert life.phase is Phase.CANCELLED
    life.says("a person")


def test_nor_is_a_success_a_requeue_or_the_evidence_forgotten() -> None:
    life = Life(1, 1).running()
    life.finish(0)
    taken(life, highest=4)
    life.stopped()
    assert life.phase is Phase.SUCCEEDED

    life = at(Phase.WAITING)
    taken(life, highest=4)
    assert not life.state.underway.submitting
    life.stopped()
    assert life.state.underway.submitting
    assert life.last(SubmitSuccessor).seq == 1

    life = Life().running()
    life.exit(0, error=BUG)
    taken(life, highest=4)
    life.stopped()
    assert "ValueError" in life.state.attempts[0].reason
    assert life.state.attempt.number == 5


def test_numbers_that_nodes_know_are_not_used_again_even_for_an_attempt_that_was_never_launched() -> None:
    life = Life()
    life.checked()
    life.on(NoneValid(0, "cannot be listed", storage=True))
    life.join("n2")
    life.due("backoff")
    assert life.phase is Phase.CHECKING
    taken(life, highest=3)
    assert life.phase is Phase.CHECKING
    life.due("check")
    assert life.state.attempt.number == 4
    assert [(one.number, one.outcome) for one in life.state.attempts] == [(0, "not started"), (4, "")]


def test_a_stall_of_the_last_supervisors_disk_does_not_blind_the_hang_watch_for_ever() -> None:
    life = Life().running()
    life.on(StoreStalled(life.now - 5))
    taken(life, inventories=held(life, 0, *range(4)))
    assert life.state.store_stalled_since is None, "the new claim was written"
    life.on(ProgressStalled(0, 130.0, 120.0, ()))
    assert life.actions == (TakeStacks(0),)


def test_trouble_after_the_end_does_not_hide_why_it_ended() -> None:
    for phase in TERMINAL:
        life = at(phase)
        story = life.state.reason
        life.on(StoreStalled(life.now - 5))
        life.on(StoreBack(6.0))
        life.ignored(NodeLost("n0", 90.0, "left"), "ended")
        life.ignored(Notice(NoticeKind.CANCEL, 5.0), "ended")
        assert life.state.reason == story


# ---- another job -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in TERMINAL])
def test_another_job_waits_for_its_own_nodes(phase: Phase) -> None:
    life = at(phase)
    was = life.state.attempt.number
    taken(life, job="k")
    assert (life.phase, life.state.job, life.state.roster.nodes) == (Phase.PENDING, "k", {})
    assert "join" in life.state.timers.deadlines
    assert not life.state.underway.submitting
    life.join()
    assert life.phase is Phase.CHECKING
    assert life.state.attempt.number == was


def test_old_leases_are_waited_for_only_where_ranks_could_be() -> None:
    for begin, waits in [(Life(1).running(), True), (Life(1), False)]:
        taken(begin, job="k")
        begin.names = ["m0"]
        begin.checked()
        assert (begin.phase is Phase.WAITING) is waits
        if waits:
            begin.says("leases of n0")
            begin.due("backoff")
            assert begin.phase is Phase.STARTING


def test_the_same_nodes_in_another_job_can_be_asked_and_need_no_wait() -> None:
    life = Life(1).running()
    taken(life, job="k")
    life.checked()
    assert life.phase is Phase.STARTING


def test_a_run_cancelled_or_done_as_its_job_ended_is_not_taken_up_by_the_next() -> None:
    life = Life().running()
    life.cancel("a person")
    taken(life, job="k")
    assert life.phase is Phase.CANCELLED
    life.says("a person")
    assert life.last(EndJob).exit_code == 130
    life = Life(1, 1).running()
    life.finish(0)
    taken(life, job="k")
    assert life.phase is Phase.SUCCEEDED
    assert life.last(EndJob).exit_code == 0


def test_a_job_that_only_ends_ends_under_its_next_supervisor_too_and_the_next_job_begins() -> None:
    life = at(Phase.WAITING)
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    taken(life)
    assert isinstance(life.actions[0], EndJob)
    taken(life, job="k")
    assert (life.phase, life.state.job, life.state.ending.leaving) == (Phase.PENDING, "k", False)
    life.names = ["m0", "m1"]
    life.checked()
    assert life.phase is Phase.STARTING, "all ranks of the last job were proven gone: there is nothing to wait for"
    life.again()
    assert life.started().placement.nodes == ("m0", "m1")


def test_the_next_job_waits_for_no_node_whose_ranks_can_neither_step_nor_save() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, 60.0))
    life.stopped(presumed=(("n1", "fragment: ..."),))
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    taken(life, job="k")
    life.names = ["m0", "m1"]
    life.checked()
    assert life.phase is Phase.STARTING


# ---- taken up again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase in TERMINAL])
def test_only_what_has_ended_is_taken_up_again_and_afresh(phase: Phase) -> None:
    life = at(phase)
    attempt = life.state.attempt.number
    life.on(ResumeRequested("a person", "k", 0, "40"))
    life.says("a person")
    state = life.state
    assert (state.phase, state.job, state.seq, state.ending.cancelled_by, state.ending.failure) == (
        Phase.PENDING,
        "k",
        0,
        "",
        None,
    )
    assert (state.budget.used, state.budget.sightings, state.health.suspicion) == ({}, (), {})
    taken(life, job="k")
    life.checked()
    life.on(AttemptSealed(life.state.attempt.number))
    assert life.state.attempt.number == attempt + 1
    assert life.last(ChooseResume).request == "40"
    life.choose(saved(40))
    assert isinstance(life.last(StartGang), StartGang)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in TERMINAL])
def test_a_run_that_lives_is_not_resumed(phase: Phase) -> None:
    life = at(phase)
    life.refused(ResumeRequested("a person", "j", 1), "cancel it first")


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in TERMINAL])
def test_a_run_whose_job_was_lost_is_taken_up_as_it_was_asked_for(phase: Phase) -> None:
    """Ranks of the lost job may live: other nodes wait for their leases."""
    life = at(phase)
    held = may_hold_ranks(life.state)
    life.on(ResumeRequested("a person", "k", 1, "40"))
    assert (life.phase, life.state.job, life.state.seq, life.state.budget.used) == (Phase.PENDING, "k", 1, {})
    assert life.state.fence.nodes == (("n0", "n1") if held else ())
    assert all(attempt.ended is not None for attempt in life.state.attempts)
    taken(life, job="k")
    life.checked()
    if life.phase is Phase.CHECKING or life.phase is Phase.WAITING:
        life.due("backoff")
    life.on(AttemptSealed(life.state.attempt.number))
    assert life.last(ChooseResume).request == "40"


def test_a_job_that_was_leaving_when_it_was_lost_does_not_end_the_next_one() -> None:
    life = at(Phase.WAITING)
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    assert life.state.ending.leaving
    life.on(ResumeRequested("a person", "k", 2))
    taken(life, job="k")
    assert (life.phase, life.count(EndJob)) == (Phase.PENDING, 1)


def test_a_run_all_of_whose_ranks_finished_before_its_job_was_lost_has_succeeded() -> None:
    life = Life(1, 1).running()
    life.finish(0)
    assert life.phase is Phase.STOPPING
    life.refused(ResumeRequested("a person", "k", 1), "all ranks had finished")
    taken(life, job="k")
    assert life.phase is Phase.SUCCEEDED


def test_a_run_cancelled_while_it_asked_for_a_job_has_forgotten_that_when_it_is_resumed() -> None:
    life = at(Phase.WAITING)
    life.cancel()
    assert not life.state.underway.submitting
    life.on(ResumeRequested("a person", "k", 1))
    taken(life, job="k")
    life.on(AgentJoined("n0", "i2", "b", 2))
    life.on(AgentJoined("n1", "i2", "b", 2))
    taken(life, job="k")
    assert not [action for action in life.actions if isinstance(action, SubmitSuccessor)]


def test_the_place_in_the_sequence_of_jobs_never_goes_back() -> None:
    life = at(Phase.WAITING)
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    life.cancel()
    life.on(ResumeRequested("a person", "k", 0))
    assert life.state.seq == 1


def test_after_a_stop_that_nobody_could_prove_other_nodes_wait_for_the_leases() -> None:
    life = Life(1).running()
    life.exit(0)
    life.on(StopTimedOut(0, "n0", ("python[1]",)))
    while life.phase is Phase.STOPPING:
        life.due("stop")
    life.on(ResumeRequested("a person", "k", 1))
    life.names = ["m0"]
    life.checked()
    assert life.phase is Phase.WAITING
    life.says("leases of n0")


def test_exclusions_outlive_a_resume_only_as_long_as_they_last() -> None:
    life = Life(1)
    life.cancel()
    life.state = replace(
        life.state,
        health=replace(
            life.state.health,
            excluded={"old": Exclusion("x", 0.0, life.now), "new": Exclusion("y", 0.0, life.now + 99)},
        ),
    )
    life.on(ResumeRequested("a person", "k", 1))
    assert set(life.state.health.excluded) == {"new"}


def test_a_launch_said_twice_is_ignored() -> None:
    life = Life().running()
    life.on(GangStarted(0))
    assert life.answer.outcome is Outcome.IGNORED


def test_a_rank_of_an_attempt_that_only_the_nodes_know_may_finish_while_it_is_stopped() -> None:
    life = Life()
    life.checked()
    assert life.state.attempt.placement is None or life.phase is Phase.STARTING
    life.state = replace(life.state, attempt=replace(life.state.attempt, placement=None))
    taken(life, highest=life.state.attempt.number + 1)
    assert life.phase is Phase.STOPPING
    life.on(RankFinished(life.state.attempt.number, 0, "n0", life.now))
    life.says("rank 0 finished while all ranks were being stopped")
