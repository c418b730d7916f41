"""What the scheduler is told and asked: why agents were told to end, that a run is cancelled, that a job ends."""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import SubmitSuccessor
from gangrun.core.events import ActDone, CancelRequested, NodeAbsent, Notice, NoticeKind, Stamped
from gangrun.core.machine.transitions import WHY
from gangrun.core.model import Phase
from gangrun.core.policy import Policy
from gangrun.wire.messages import Farewell, Stop
from tests.supervisor.desk import Desk
from tests.supervisor.test_takeover import rejoin

SCHEDULER = Policy(can_requeue=True)


class Slurm:
    """Counts the questions; leaves marks."""

    def __init__(self) -> None:
        self.asked_count = 0
        self.marks: list[str] = []

    def ask(self) -> None:
        self.asked_count += 1


def desk_with(slurm: Slurm, nodes: int = 2) -> Desk:
    return Desk(nodes=nodes, policy=SCHEDULER, asks_why=slurm.ask, mark_cancel=slurm.marks.append)


def told_to_end(desk: Desk, seq: int = 1, grace_s: float = 30.0) -> None:
    for agent in desk.agents.values():
        agent.tell(seq, "Notice", {"kind": "unknown", "grace_s": grace_s})
        agent.beat()
    desk.turn_all()


def test_agents_that_are_told_to_end_make_one_question_and_the_answer_decides() -> None:
    slurm = Slurm()
    desk = desk_with(slurm)
    loop = desk.running()
    told_to_end(desk)
    assert (slurm.asked_count, loop.state.phase) == (1, Phase.RUNNING)
    assert loop.state.reason.startswith("attempt 0"), "nothing has happened yet"
    desk.pass_s(3.0)
    desk.mailbox.post(Stamped(Notice(NoticeKind.PREEMPTION, 27.0)))
    desk.turn_all()
    stop = desk.agents["n0"].heard(Stop)[-1]
    assert (stop.grace_s, stop.checkpoint_grace_s, stop.checkpoint_first) == (10.0, 12.0, True)
    desk.pass_s(2.0)
    assert loop.state.underway.submitting
    assert slurm.marks == []


def test_they_may_say_it_again_later_and_it_is_asked_again() -> None:
    slurm = Slurm()
    desk = desk_with(slurm)
    desk.running()
    told_to_end(desk)
    desk.pass_s(4.0)
    told_to_end(desk, 2)
    assert slurm.asked_count == 1
    desk.pass_s(2.0)
    told_to_end(desk, 3)
    assert slurm.asked_count == 2


def test_without_an_answer_it_stops_and_leaves_the_mark() -> None:
    slurm = Slurm()
    desk = desk_with(slurm)
    loop = desk.running()
    told_to_end(desk)
    desk.pass_s(14.0)
    assert loop.state.phase is Phase.RUNNING
    desk.pass_s(3.0)
    assert loop.state.phase is Phase.CANCELLED
    assert slurm.marks == ["a signal"]


def test_a_question_that_died_with_its_supervisor_is_asked_again() -> None:
    slurm = Slurm()
    desk = desk_with(slurm)
    desk.running()
    told_to_end(desk)
    loop = desk.open()
    assert slurm.asked_count == 1
    desk.join()
    desk.pass_s(4.0)
    assert slurm.asked_count == 2
    assert WHY in loop.state.timers.deadlines


def test_where_nobody_can_be_asked_a_signal_means_stop() -> None:
    desk = Desk()
    loop = desk.running()
    told_to_end(desk)
    desk.pass_s(2.0)
    assert loop.state.phase is Phase.CANCELLED


def test_the_mark_is_left_as_soon_as_a_cancel_is_known() -> None:
    slurm = Slurm()
    desk = desk_with(slurm)
    desk.running()
    desk.agents["n1"].obeys = False
    desk.mailbox.post(Stamped(Notice(NoticeKind.CANCEL, 30.0)))
    desk.turn_all()
    assert desk.loop.state.phase is Phase.STOPPING
    desk.mailbox.post(Stamped(CancelRequested("somebody else")))
    desk.turn_all()
    assert slurm.marks == ["the scheduler"]


def test_the_scheduler_is_told_which_nodes_are_lost_and_waited_for() -> None:
    desk = Desk(nodes=3, policy=SCHEDULER)
    loop = desk.open()
    desk.jobs.answers = False
    desk.join()
    desk.pass_s(3.0)
    desk.agents["n0"].beating = desk.agents["n0"].obeys = False
    desk.pass_s(10.0)
    desk.mailbox.post(Stamped(CancelRequested("a person")))
    desk.pass_s(36.0)
    assert loop.state.phase is Phase.CANCELLED
    (ending, lost), *more = desk.jobs.ended
    assert (ending.phase, lost, more) == (Phase.CANCELLED, ("n0",), [])
    assert loop.exit_code is None
    desk.pass_s(31.0)
    assert loop.exit_code == 130, "but not for ever"


def test_it_is_told_of_lost_nodes_where_the_run_goes_on_in_another_job_too() -> None:
    """With the batch script's host among them, nobody else would end this job."""
    desk = Desk(nodes=3, policy=SCHEDULER)
    desk.running()
    desk.agents["n0"].beating = desk.agents["n0"].obeys = False
    desk.pass_s(45.0)
    ((act, _),) = desk.jobs.asked
    desk.mailbox.post(Stamped(ActDone(act, "SubmitSuccessor")))
    desk.pass_s(2.0)
    assert [(ending.phase, lost) for ending, lost in desk.jobs.ended] == [(Phase.PENDING, ("n0",))]


def test_a_job_that_only_ends_lets_go_whoever_is_still_there() -> None:
    """Its roster is empty, and an agent that was cut off finds the new term only once that has begun."""
    desk = Desk(nodes=3, policy=SCHEDULER)
    desk.running()
    cut_off = desk.agents["n0"]
    cut_off.beating = cut_off.obeys = False
    desk.pass_s(45.0)
    ((act, _),) = desk.jobs.asked
    desk.mailbox.post(Stamped(ActDone(act, "SubmitSuccessor")))
    desk.pass_s(20.0)
    assert desk.loop.exit_code == 0
    for agent in desk.agents.values():
        agent.beating = agent.obeys = False
    loop = desk.open()
    desk.pass_s(1.0)
    assert loop.exit_code is None
    cut_off.obeys = True
    rejoin(desk, "n0")
    desk.pass_s(5.0)
    assert [one.reason for one in cut_off.heard(Farewell) if one.term == 2] == [
        "supervisor #2 took over; the run goes on in another job, so this one ends"
    ]
    assert loop.exit_code == 0
    alone = desk.open()
    desk.pass_s(5.0)
    assert alone.exit_code == 0, "nor does it wait long where nobody is left"


def test_a_job_that_a_person_asked_for_after_a_lost_one_asks_for_the_place_after_its_own() -> None:
    desk = Desk(nodes=2, policy=SCHEDULER)
    desk.running()
    desk.facts = replace(desk.facts, job="j3", seq=2)
    loop = desk.open()
    assert loop.state.seq == 0
    desk.pass_s(4.0)
    assert (loop.state.job, loop.state.seq) == ("j3", 2)


def test_a_supervisor_of_last_resort_needs_nobody() -> None:
    """All that the job had on its nodes has ended: it sees to the next job, and leaves the batch host alone."""
    desk = Desk(nodes=3, policy=SCHEDULER)
    desk.running()
    for agent in desk.agents.values():
        agent.beating = agent.obeys = False
    desk.facts = replace(desk.facts, alone=True)
    loop = desk.open()
    desk.pass_s(4.0)
    assert loop.state.phase is Phase.STOPPING
    desk.pass_s(51.0)
    assert loop.state.underway.submitting
    (act, action), *more = desk.jobs.asked
    assert isinstance(action, SubmitSuccessor) and not more
    desk.mailbox.post(Stamped(ActDone(act, "SubmitSuccessor")))
    desk.pass_s(12.0)
    assert loop.exit_code == 0
    assert [(ending.phase, lost) for ending, lost in desk.jobs.ended] == [(Phase.PENDING, ())]


def test_what_the_launcher_knows_decides_at_once() -> None:
    desk = Desk(nodes=3, policy=SCHEDULER)
    loop = desk.open()
    for name in ("n0", "n1"):
        desk.agents[name].hello()
    desk.pass_s(4.0)
    assert loop.state.roster.expected == ("n0", "n1", "n2")
    desk.mailbox.post(Stamped(NodeAbsent("n2", "execve(): /x: No such file or directory")))
    desk.agents["n0"].beat()
    desk.agents["n1"].beat()
    desk.pass_s(1.0)
    assert loop.state.underway.submitting
