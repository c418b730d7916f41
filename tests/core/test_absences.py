"""Nodes whose agents never come: what is known of them, who is waited for, and who is left out of the next job."""

from __future__ import annotations

import pytest

from gangrun.core.actions import StopGang, SubmitSuccessor
from gangrun.core.events import (
    ActDone,
    AgentJoined,
    FindingRaised,
    GangStarted,
    NodeAbsent,
    NodeChecked,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    TermTaken,
)
from gangrun.core.model import Failure, Phase
from gangrun.core.policy import Policy
from tests.core.life import Life, fatal, saved

SCHEDULER = Policy(can_requeue=True)
EXECVE = "execve(): /x/python: No such file or directory"


def of_job(nodes: int = 3, *, policy: Policy = SCHEDULER, at_least: int | None = None, spares: int = 0) -> Life:
    """A run's first job, whose nodes are known."""
    life = Life(nodes, policy=policy, at_least=at_least)
    names = tuple(f"n{i}" for i in range(nodes + spares))
    life.on(TermTaken(1, "j", (), (), -1, names))
    return life


def absent(life: Life, *names: str, why: str = EXECVE, scheduler: bool = False) -> None:
    for name in names:
        life.on(NodeAbsent(name, why, scheduler))


def test_the_reason_names_who_did_not_join_and_what_is_known_of_them() -> None:
    life = of_job()
    life.join("n0")
    absent(life, "n2")
    life.says("n2 will not join", "No such file")
    assert life.phase is Phase.PENDING
    life.due("join")
    life.says("1 of 3 nodes joined within 60 s (n0)", "n1 did not join: the reason is", f"n2 did not join: {EXECVE}")


def test_once_all_that_are_missing_are_accounted_for_nobody_is_waited_for() -> None:
    life = of_job()
    life.join("n0", "n1")
    absent(life, "n2")
    life.says(
        f"2 of 3 nodes joined (n[0-1]); n2 did not join: {EXECVE}", "n2 excluded", "the next job of this run without n2"
    )
    assert life.last(SubmitSuccessor).exclude == ("n2",)
    assert life.state.health.excluded["n2"].reason == f"did not join: {EXECVE}"


def test_the_order_does_not_matter() -> None:
    life = of_job()
    absent(life, "n2")
    life.join("n0")
    assert life.phase is Phase.PENDING
    life.join("n1")
    assert life.last(SubmitSuccessor).exclude == ("n2",)


def test_fewer_start_at_once_where_the_user_allows_it() -> None:
    life = of_job(at_least=2)
    life.join("n0", "n1")
    absent(life, "n2")
    assert life.phase is Phase.CHECKING
    life.says(EXECVE)
    life = of_job(at_least=2)
    absent(life, "n2")
    life.join("n0", "n1")
    assert life.phase is Phase.CHECKING


def test_a_spare_that_does_not_come_costs_nothing() -> None:
    life = of_job(2, spares=1)
    absent(life, "n2")
    life.join("n0", "n1")
    assert life.phase is Phase.CHECKING


def barred_before_the_spare_joins() -> Life:
    """Two nodes are enough, but one of them is broken, and the agent of the spare is slow."""
    life = of_job(2, spares=1)
    life.join("n0", "n1")
    life.on(NodeChecked("n0", True))
    life.on(NodeChecked("n1", False, "gpu 3 is lost"))
    assert life.phase is Phase.WAITING
    life.says("waiting up to 60 s for n2 to join")
    return life


def test_a_slow_spare_is_waited_for_before_another_job_is_asked_for() -> None:
    life = barred_before_the_spare_joins()
    life.join("n2")
    assert life.phase is Phase.CHECKING
    life.on(NodeChecked("n2", True))
    life.again()
    assert life.started().placement.nodes == ("n0", "n2")
    assert life.count(SubmitSuccessor) == 0


def test_a_spare_that_does_not_join_in_time_or_never_will_is_waited_for_once() -> None:
    life = barred_before_the_spare_joins()
    life.due("nodes")
    assert life.count(SubmitSuccessor) == 1
    life = barred_before_the_spare_joins()
    absent(life, "n2")
    assert life.count(SubmitSuccessor) == 1


@pytest.mark.parametrize("restarted", ["n0", "n2"])
def test_a_wait_for_a_slow_spare_outlives_what_does_not_end_it(restarted: str) -> None:
    life = of_job(2, spares=2)
    life.join("n0", "n1")
    life.on(NodeChecked("n0", True))
    life.on(NodeChecked("n1", False, "gpu 3 is lost"))
    if restarted == "n0":
        life.on(NodeSilent("n0", life.now))
        absent(life, "n2", "n3")
    else:
        absent(life, "n2")
    assert life.phase is Phase.WAITING and not life.state.underway.submitting
    life.ignored(NodeAbsent("n2", EXECVE), "known")


def test_without_enough_late_nodes_or_after_an_attempt_nobody_is_waited_for() -> None:
    life = of_job(3, spares=1)
    life.join("n0", "n1", "n2")
    life.on(NodeChecked("n0", True))
    for name in ("n1", "n2"):
        life.on(NodeChecked(name, False, "gpu 3 is lost"))
    assert life.count(SubmitSuccessor) == 1
    life = of_job(2, spares=1).running()
    life.exit(2, code=None, signal=7)
    life.on(NodeLost("n1", life.now, "its lease is over"))
    life.stopped()
    assert life.count(SubmitSuccessor) == 1


def test_a_node_that_never_said_anything_is_left_out_too() -> None:
    life = of_job(4)
    life.join("n0", "n1", "n2")
    life.due("join")
    assert life.last(SubmitSuccessor).exclude == ("n3",)
    life.says("n3 did not join: the reason is not known")


@pytest.mark.parametrize(("scheduler", "failure"), [(False, Failure.SCRIPT), (True, Failure.SCHEDULER)])
def test_where_no_node_can_start_no_other_job_is_asked_for(scheduler: bool, failure: Failure) -> None:
    life = of_job()
    for i, name in enumerate(("n0", "n1", "n2")):
        absent(life, name, why=f"task {i} on {name}: {EXECVE}", scheduler=scheduler)
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, failure)
    life.says("no node could start: ", EXECVE)
    assert life.count(SubmitSuccessor) == 0


def test_where_many_say_the_same_it_is_what_was_asked_for() -> None:
    life = of_job(6)
    life.join("n0", "n1", "n2")
    absent(life, "n3", "n4", "n5")
    assert life.phase is Phase.FAILED
    life.says("3 of 6 nodes could not start", EXECVE)


def test_two_of_many_may_be_a_coincidence() -> None:
    life = of_job(4)
    life.join("n0", "n1")
    absent(life, "n2", "n3")
    assert life.last(SubmitSuccessor).exclude == ("n2", "n3")


def test_a_single_node_on_which_the_scheduler_could_start_nothing_is_exchanged() -> None:
    life = of_job(1)
    absent(life, "n0", why="prolog failed", scheduler=True)
    assert life.last(SubmitSuccessor).exclude == ("n0",)
    life = of_job(1)
    absent(life, "n0")
    assert life.phase is Phase.FAILED, "but the same command would fail on any other"


def test_where_nobody_came_and_nobody_knows_why_nobody_is_blamed() -> None:
    life = of_job()
    life.due("join")
    life.says("0 of 3 nodes joined", "the reason is not known")
    assert life.last(SubmitSuccessor).exclude == ()


def test_no_more_are_left_out_than_may_be() -> None:
    life = of_job(9)
    life.join(*(f"n{i}" for i in range(6)))
    for i in range(6, 9):
        absent(life, f"n{i}", why=f"{'abc'[i - 6]} broke")
    assert len(life.last(SubmitSuccessor).exclude) == 2
    life.says("is blamed but stays in use")


def test_without_a_scheduler_it_ends_with_the_words() -> None:
    life = of_job(policy=Policy())
    life.join("n0")
    absent(life, "n1", why="a")
    absent(life, "n2", why="b")
    assert life.phase is Phase.FAILED
    life.says("1 of 3 nodes joined", "n1 did not join: a", "n2 did not join: b")


def test_what_is_known_of_nodes_is_kept_in_any_phase_and_not_believed_of_those_that_are_here() -> None:
    life = of_job(2, spares=1).running()
    life.ignored(NodeAbsent("n1", "left", True), "n1 has joined")
    absent(life, "n2", why="left")
    assert life.state.roster.absent["n2"].why == "left"
    life.ignored(NodeAbsent("n2", "left"), "known")
    life.on(TermTaken(2, "k", (), (), 0, ("m0", "m1")))
    assert (life.state.roster.absent, life.state.roster.expected) == ({}, ("m0", "m1"))


def test_a_node_that_comes_all_the_same_is_here() -> None:
    life = of_job()
    absent(life, "n0")
    life.join("n0", "n1", "n2")
    assert life.phase is Phase.CHECKING


def test_a_job_that_only_ends_takes_no_interest() -> None:
    life = of_job(2).running()
    life.on(Notice(NoticeKind.REQUEUE, 60.0))
    life.stopped()
    assert life.state.ending.leaving
    absent(life, "n0", "n1")
    assert (life.phase, life.state.ending.leaving) == (Phase.PENDING, True)


# ---- the scheduler takes a good node for dead --------------------------------------------------------------------


def taken(life: Life, name: str) -> None:
    life.on(NodeAbsent(name, f"Slurm took {name} out of job 7", scheduler=True, taken=True))


def silenced(life: Life, name: str) -> None:
    life.on(NodeSilent(name, life.now))
    life.on(NodeLost(name, life.now, "no other node reaches it"))


def test_a_node_that_the_scheduler_took_is_not_excluded_for_its_silence() -> None:
    life = of_job(3).running()
    life.on(NodeSilent("n1", life.now))
    taken(life, "n1")
    life.on(NodeLost("n1", life.now, "no other node reaches it"))
    life.stopped(presumed=(("n1", "law 1"),))
    life.says("no heartbeat from n1", "not excluded, as Slurm took n1 out of job 7", "2 nodes usable, 3 needed")
    assert life.last(SubmitSuccessor).exclude == ()
    assert life.state.health.excluded == {}


def test_nobody_waits_for_it_and_a_spare_takes_its_place() -> None:
    for policy in (SCHEDULER, Policy()):
        life = of_job(2, policy=policy, spares=1)
        life.join("n0", "n1", "n2")
        for name in ("n0", "n1", "n2"):
            life.on(NodeChecked(name, True))
        life.again()
        life.on(GangStarted(0))
        taken(life, "n1")
        silenced(life, "n1")
        life.stopped()
        life.again()
        assert life.started().placement.nodes == ("n0", "n2")
        assert life.state.health.excluded == {}


def test_an_agent_that_answers_outweighs_the_schedulers_word() -> None:
    life = of_job(2).running()
    taken(life, "n1")
    life.says("Slurm took n1 out of job 7; its agent answers, so n1 is used all the same")
    assert life.phase is Phase.RUNNING
    life.ignored(NodeAbsent("n1", "once more", scheduler=True, taken=True), "n1 has joined")


def test_what_broke_on_it_excludes_it_all_the_same() -> None:
    life = of_job(3).running()
    life.on(FindingRaised(fatal("n1")))
    taken(life, "n1")
    silenced(life, "n1")
    life.stopped()
    assert life.last(SubmitSuccessor).exclude == ("n1",)


def test_where_nobody_can_prove_that_its_ranks_are_gone_it_is_not_excluded_either() -> None:
    life = of_job(3).running()
    taken(life, "n1")
    silenced(life, "n1")
    life.due("stop")
    while life.phase is Phase.STOPPING:
        life.due("stop")
    assert life.last(SubmitSuccessor).exclude == ()


def test_a_node_that_was_taken_before_it_joined_is_absent_and_no_more() -> None:
    life = of_job(3)
    life.join("n0", "n1")
    taken(life, "n2")
    life.says("2 of 3 nodes joined", "n2 did not join: Slurm took n2 out of job 7")
    assert life.last(SubmitSuccessor).exclude == ()
    life = of_job(1)
    taken(life, "n0")
    assert life.count(SubmitSuccessor) == 1, "another node may be had"


def test_a_node_that_only_the_scheduler_does_not_reach_is_excluded_until_the_scheduler_knows() -> None:
    life = of_job(3)
    life.join("n0", "n1")
    absent(life, "n2", why="Communication connection failure", scheduler=True)
    life.says("n2 excluded for 0.5 h")
    assert life.last(SubmitSuccessor).exclude == ("n2",)


# ---- jobs are counted --------------------------------------------------------------------------------------------


def jobs_until_the_end(*, saves: bool) -> tuple[Life, int]:
    """Each job is preempted, with a newer checkpoint or without."""
    life = Life(policy=SCHEDULER)
    life.checked()
    for number in range(1, 20):
        life.again()
        life.on(GangStarted(life.state.attempt.number))
        if saves:
            life.save(number)
        life.on(Notice(NoticeKind.PREEMPTION, 30.0))
        life.stopped()
        if not life.state.underway.submitting:
            return life, number
        life.on(ActDone((1, 9), "SubmitSuccessor"))
        life.on(TermTaken(life.state.term + 1, f"j{number}", (), (), life.state.attempt.number))
        for name in life.names:
            life.on(AgentJoined(name, f"i{number}-{name}", f"b-{name}", 2))
        life.due("check")
    return life, number


def test_a_run_that_comes_no_farther_in_any_job_ends() -> None:
    life, jobs_count = jobs_until_the_end(saves=False)
    assert (jobs_count, life.phase, life.state.ending.failure) == (7, Phase.FAILED, Failure.BUDGET)
    life.says("no other job is asked for: 6 of 6 spent without any progress")


def test_a_run_that_comes_farther_in_each_job_goes_on() -> None:
    life, jobs_count = jobs_until_the_end(saves=True)
    assert (jobs_count, life.phase) == (19, Phase.STARTING)


def test_jobs_are_not_counted_as_restarts() -> None:
    life = Life(policy=Policy(can_requeue=True, restarts_max_count=0)).submitting()
    assert life.state.budget.used == {"jobs": 1}
    assert life.state.budget.total_count == 0


# ---- the last resort ---------------------------------------------------------------------------------------------


def last_resort(life: Life, names: tuple[str, ...] = ("n0", "n1"), job: str = "j") -> None:
    life.on(TermTaken(life.state.term + 1, job, (), (), life.state.attempt.number, names, True))


def test_nobody_is_left_of_a_gang_so_it_goes_on_in_another_job() -> None:
    life = Life(policy=SCHEDULER).running(saved(10))
    last_resort(life)
    assert life.phase is Phase.STOPPING
    assert isinstance(life.actions[0], StopGang)
    life.says("all gangrun processes on the job's nodes have ended")
    assert all(node.lost for node in life.state.roster.nodes.values())
    life.stopped(presumed=(("n0", "law 1"), ("n1", "law 1")))
    assert life.state.underway.submitting, "nobody is waited for"
    life.says("the next job of this run")


def test_what_was_to_follow_a_stop_follows() -> None:
    life = Life(policy=SCHEDULER).running()
    life.cancel("a person")
    last_resort(life)
    life.stopped()
    assert life.phase is Phase.CANCELLED


def test_where_nobody_ever_joined_it_waits_only_for_the_launchers_words() -> None:
    life = Life(policy=SCHEDULER)
    last_resort(life)
    assert life.phase is Phase.PENDING
    assert life.state.timers.deadlines["join"].at == life.now + 5.0
    absent(life, "n0", "n1")
    assert life.phase is Phase.FAILED
    life.says("no node could start", EXECVE)
    life = Life(policy=SCHEDULER)
    last_resort(life)
    life.due("join")
    assert life.state.underway.submitting


def test_the_same_in_a_job_that_never_had_a_supervisor() -> None:
    life = Life(policy=SCHEDULER).running()
    last_resort(life, job="k")
    assert (life.phase, life.state.timers.deadlines["join"].at) == (Phase.PENDING, life.now + 5.0)
    life.due("join")
    assert life.state.underway.submitting


def test_nodes_that_had_joined_and_are_gone_are_not_started_on() -> None:
    life = Life(policy=SCHEDULER)
    life.checked()
    last_resort(life)
    assert life.state.underway.submitting
    life = Life(3, policy=SCHEDULER)
    life.join("n0", "n1")
    last_resort(life, ("n0", "n1", "n2"))
    absent(life, "n2")
    assert life.state.underway.submitting


def test_a_job_that_is_asked_for_is_asked_for_again() -> None:
    life = Life(policy=SCHEDULER).submitting()
    last_resort(life)
    assert isinstance(life.actions[0], SubmitSuccessor)


def test_without_a_scheduler_the_last_resort_ends_the_run() -> None:
    life = Life().running()
    last_resort(life)
    life.stopped()
    assert life.phase is Phase.FAILED


def ends_waiting(life: Life, *names: str, of: tuple[str, ...]) -> None:
    """A job begins on ``of``, and only ``names`` join."""
    term = life.state.term + 1
    life.on(TermTaken(term, f"j{term}", (), (), -1, of))
    life.join(*names)
    life.due("join")


def submits(life: Life) -> tuple[str, ...]:
    """Whom the next job avoids; it is submitted."""
    avoided = life.last(SubmitSuccessor).exclude
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    return avoided


def test_whoever_is_alone_in_two_jobs_is_left_out_instead_of_yet_another_neighbour() -> None:
    """It is cut off from all others, and cannot know that it is not they who are."""
    life = Life(2, policy=SCHEDULER)
    ends_waiting(life, "n0", of=("n0", "n1"))
    assert submits(life) == ("n1",)
    ends_waiting(life, "n0", of=("n0", "n2"))
    life.says("no other node joined it in two jobs", "n0 excluded")
    assert submits(life) == ("n0", "n1")
    life.on(TermTaken(4, "j4", (), (), -1, ("n2", "n3")))
    life.join("n2", "n3")
    assert life.phase is Phase.CHECKING


def test_whoever_is_alone_because_it_is_known_why_the_others_are_not_there_is_no_suspect() -> None:
    life = of_job(2)
    life.join("n0")
    absent(life, "n1")
    assert submits(life) == ("n1",) and not life.state.health.suspicion
    life = of_job(1)
    life.due("join")
    assert not life.state.health.suspicion


def test_a_lone_node_stays_where_no_other_job_can_be_asked_for() -> None:
    life = Life(2)
    ends_waiting(life, "n0", of=("n0", "n1"))
    assert (life.state.health.suspicion, dict(life.state.health.excluded)) == ({}, {})
