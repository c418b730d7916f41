"""The next job is asked for exactly once, whatever sbatch and Slurm do; or the same job again; or this one is ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from gangrun.adapters.slurm.commands import Answer
from gangrun.adapters.slurm.jobs import ASK, GaveUp, Outcome, SlurmJobs, end_allocation, repointed
from gangrun.adapters.slurm.scheduler import SlurmScheduler
from gangrun.adapters.slurm.submission import SbatchRefused, Unfit, Unknown
from gangrun.core.actions import EndJob, SubmitSuccessor
from gangrun.core.events import ActDone, ActFailed, ActUnknown
from gangrun.core.model import Phase
from tests.slurm_parts.pretend import UNREACHABLE, PretendJob, PretendSlurm, PretendTime, stamp
from tests.waiting import until

ACT = (3, 17)
NEXT = SubmitSuccessor(1, ("n2", "n5"), "n2 and n5 are gone")
DONE = ActDone(ACT, ASK)
BACK = ActDone(ACT, ASK, same_job=True)
LATE = Unknown("sbatch did not answer within 60 s")


@dataclass
class World:
    """One supervisor's ``SlurmJobs`` with all that it touches."""

    time: PretendTime = field(default_factory=PretendTime)
    asked: list[tuple[int, tuple[str, ...], str]] = field(default_factory=list)  # of sbatch
    said: list[str] = field(default_factory=list)
    posted: list[object] = field(default_factory=list)
    answers: list[Exception | Callable[[], object]] = field(default_factory=list)  # of sbatch, else it works
    cancelled: bool = False
    all_heard: bool = True

    def __post_init__(self) -> None:
        self.slurm = PretendSlurm(self.time)
        self.me = self.slurm.add(PretendJob("7", comment="gr:r1:0", state="RUNNING"))

    def jobs(self, same_job: bool = False, user_exclude: Sequence[str] = (), **more: object) -> SlurmJobs:
        return SlurmJobs(
            SlurmScheduler(self.slurm), self.submit, run="r1", job_name="train.r1", job="7", restarts_count=0,
            post=lambda stamped: self.posted.append(stamped.event), cancelled=lambda: self.cancelled,
            all_heard=lambda: self.all_heard, clock=self.time, same_job=same_job, user_exclude=user_exclude,
            say=self.said.append, **{"wait": self.time.wait, **more},  # type: ignore[arg-type]
        )  # fmt: skip

    def submit(self, seq: int, exclude: Sequence[str], dependency: str) -> str:
        self.asked.append((seq, tuple(exclude), dependency))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            answer()
        return self.made(seq).job

    def made(self, seq: int, job: str = "", state: str = "PENDING") -> PretendJob:
        return self.slurm.add(PretendJob(job or str(8 + len(self.asked)), comment=f"gr:r1:{seq}", state=state))

    def perform(self, **more: object) -> Outcome:
        return self.jobs(**more).perform(ACT, NEXT)  # type: ignore[arg-type]

    def successors(self) -> list[PretendJob]:
        return [job for job in self.slurm.jobs.values() if job.comment == "gr:r1:1"]


# ---- a new job -------------------------------------------------------------------------------------------------------


def test_looked_for_then_submitted_behind_this_job() -> None:
    world = World()
    assert world.perform() == DONE
    assert world.asked == [(1, ("n2", "n5"), "afterany:7")]
    assert world.slurm.asked[0].startswith("squeue") and len(world.successors()) == 1


def test_no_dependency_on_a_job_with_a_silent_node() -> None:
    """Slurm holds such a job to be running until the node is declared DOWN, minutes later."""
    world = World(all_heard=False)
    assert world.perform() == DONE
    assert world.asked[0][2] == ""


@pytest.mark.parametrize("same_job", [False, True])
def test_nodes_that_have_booted_may_be_in_it_again(same_job: bool) -> None:
    """n2 was last seen in the bad boot 500 s ago; n5 is out for another reason."""
    world = World()
    told = f"NodeName=n2 State=IDLE BootTime={stamp(world.time.wall() - 300.0)} SlurmdStartTime=None\n"
    world.slurm.instead["scontrol show node n2 "] = [Answer(0, told)]
    done = world.jobs(same_job=same_job).perform(ACT, replace(NEXT, if_booted=(("n2", 500.0),)))
    assert done == ActDone(ACT, ASK, same_job=same_job, booted=("n2",))
    assert (world.asked[0][1] if not same_job else (world.me.excluded,)) == ("n5",)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "CANCELLED"])
def test_one_that_exists_already_is_taken(state: str) -> None:
    """Cancelled too: somebody ended what was to come next, so nothing comes back."""
    world = World()
    world.made(1, "9", state)
    assert world.perform() == DONE
    assert world.asked == [] and f"job 9 is job 1 of this run already ({state})" in world.said[0]


def test_of_several_a_living_one_is_taken_and_the_oldest_of_those() -> None:
    world = World()
    for job, state in (("8", "CANCELLED"), ("12", "PENDING"), ("11", "PENDING")):
        world.made(1, job, state)
    dependent = world.slurm.add(PretendJob("20", name="after", dependency="afterok:7(unfulfilled)"))
    assert world.perform() == DONE
    assert dependent.dependency == "afterok:11" and "jobs 8, 12, 11 all are job 1" in world.said[0]


def test_other_runs_and_other_numbers_are_nobody_here() -> None:
    world = World()
    world.slurm.add(PretendJob("9", comment="gr:r2:1"))
    world.slurm.add(PretendJob("10", comment="gr:r1:11"))
    world.slurm.add(PretendJob("11", comment="gr:r1:1", name="other.r1"))
    assert world.perform() == DONE
    assert len(world.asked) == 1


@pytest.mark.parametrize("words", [SbatchRefused("Invalid qos specification"), Unfit("a line break in the account")])
def test_refused_in_slurms_words(words: Exception) -> None:
    world = World(answers=[words])
    assert world.perform() == ActFailed(ACT, ASK, str(words))


def test_timed_out_but_made_is_found_by_its_comment() -> None:
    world = World(answers=[LATE])
    world.time.later(5.0, lambda: world.made(1, "9"))
    assert world.perform() == DONE
    assert len(world.asked) == 1 and "job 9 was made although sbatch did not say so" in world.said[0]
    assert world.time.now() == 106.0  # looked every two seconds


def test_timed_out_and_nothing_made_is_unknown_after_half_a_minute() -> None:
    world = World(answers=[LATE])
    outcome = world.perform()
    assert isinstance(outcome, ActUnknown) and "60 s; no job 1 of this run in the queue 30 s later" in outcome.why
    assert len(world.asked) == 1 and world.time.now() == 130.0


def test_the_next_act_looks_before_it_asks_again() -> None:
    world = World(answers=[LATE])
    jobs = world.jobs()
    assert isinstance(jobs.perform(ACT, NEXT), ActUnknown)
    world.made(1, "9")
    assert jobs.perform((3, 21), NEXT) == ActDone((3, 21), ASK)
    assert len(world.asked) == 1


def test_nobody_to_ask_while_looking_again_is_unknown_too() -> None:
    world = World()

    def fall_silent() -> None:
        world.slurm.down = True
        raise LATE

    world.answers = [fall_silent]
    outcome = world.perform()
    assert isinstance(outcome, ActUnknown) and "Unable to contact" in outcome.why
    assert outcome.why.count("Unable to contact") == 1


def test_no_look_no_submission() -> None:
    world = World()
    world.slurm.down = True
    outcome = world.perform()
    assert isinstance(outcome, ActUnknown) and "Unable to contact" in outcome.why and world.asked == []


def test_a_run_directory_that_refuses_the_script_is_unknown_not_the_end() -> None:
    outcome = World(answers=[OSError(5, "Input/output error")]).perform()
    assert isinstance(outcome, ActUnknown) and "Input/output error" in outcome.why


# ---- a cancelled run -------------------------------------------------------------------------------------------------


def test_cancelled_before() -> None:
    world = World(cancelled=True)
    for same_job in (False, True):
        assert world.perform(same_job=same_job) == ActFailed(ACT, ASK, "the run is cancelled")
    assert world.asked == [] == world.slurm.asked


def test_cancelled_while_looking() -> None:
    world = World()
    world.slurm.costs_s = 4.0
    world.time.later(2.0, lambda: setattr(world, "cancelled", True))
    assert world.perform() == ActFailed(ACT, ASK, "the run is cancelled")
    assert world.asked == []


def test_cancelled_while_sbatch_ran_takes_the_job_back() -> None:
    world = World(answers=[lambda: setattr(world, "cancelled", True)])
    assert world.perform() == ActFailed(ACT, ASK, "the run is cancelled")
    assert [job.state for job in world.successors()] == ["CANCELLED"]


def test_what_cannot_be_taken_back_is_said() -> None:
    world = World(answers=[lambda: setattr(world, "cancelled", True)])
    world.slurm.instead["scancel"] = [UNREACHABLE]
    assert world.perform() == ActFailed(ACT, ASK, "the run is cancelled")
    assert "job 9 of the cancelled run could not be cancelled: " in world.said[-1]


def test_cancelled_while_looking_again() -> None:
    world = World(answers=[LATE])
    world.time.later(3.0, lambda: setattr(world, "cancelled", True))
    assert world.perform() == ActFailed(ACT, ASK, "the run is cancelled")
    assert world.time.now() == 104.0


# ---- jobs that wait for this one -------------------------------------------------------------------------------------


def test_jobs_that_wait_for_this_one_wait_for_its_successor() -> None:
    world = World()
    one = world.slurm.add(PretendJob("20", dependency="afterany:3(unfulfilled),afterok:7(unfulfilled)"))
    other = world.slurm.add(PretendJob("21", dependency="afterany:7(unfulfilled)"))
    assert world.perform() == DONE
    assert one.dependency == "afterany:3,afterok:9" and other.dependency == "afterany:7(unfulfilled)"
    assert "job 20 waited for job 7; now it waits for job 9" in world.said


@pytest.mark.parametrize("answer", [UNREACHABLE, Answer(1, err="Access/permission denied for job 20")])
def test_what_cannot_be_repointed_is_said_and_no_more(answer: Answer) -> None:
    world = World()
    world.slurm.add(PretendJob("20", dependency="afterok:7(unfulfilled)"))
    world.slurm.instead["scontrol update"] = [answer]
    assert world.perform() == DONE
    assert "jobs that wait for job 7 could not be made to wait for job 9" in world.said[-1]


def test_a_slow_slurm_does_not_hold_up_the_answer() -> None:
    world = World()
    for number in range(20, 30):
        world.slurm.add(PretendJob(str(number), dependency="afterok:7(unfulfilled)"))
    world.slurm.costs_s = 2.0
    assert world.perform() == DONE
    assert world.time.now() < 115 and "no time left to let job 29 wait for job 9" in world.said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("afterok:7(unfulfilled)", "afterok:9"),
        ("afterok:7:8(failed),afternotok:7", "afterok:9:8,afternotok:7"),
        ("afterok:77?afterok:7", "afterok:77?afterok:9"),
        ("singleton,afterany:7,after:7+5(unfulfilled)", "singleton,afterany:7,after:7+5"),
    ],
)
def test_a_dependency_rewritten(before: str, after: str) -> None:
    assert repointed(before, "7", "9") == after


# ---- the same job again ----------------------------------------------------------------------------------------------


def test_requeued_first_and_told_what_to_avoid_then() -> None:
    world = World()
    assert world.perform(same_job=True, user_exclude=("n9", "n2")) == BACK
    assert (world.me.restarts, world.me.excluded, world.asked) == (1, "n9,n2,n5", [])
    assert [line.split()[1] for line in world.slurm.asked] == ["show", "requeue", "update"]


def test_one_that_slurm_has_requeued_by_itself_is_not_requeued_again() -> None:
    world = World()
    world.me.restarts, world.me.state = 1, "COMPLETING"
    assert world.perform(same_job=True) == BACK
    assert (world.me.restarts, world.me.excluded) == (1, "n2,n5")


def test_a_requeue_that_is_refused_has_failed() -> None:
    world = World()
    world.slurm.instead["scontrol requeue"] = [Answer(1, err="Requested operation is presently disabled for job 7")]
    outcome = world.perform(same_job=True)
    assert outcome == ActFailed(ACT, ASK, "Requested operation is presently disabled for job 7")


@pytest.mark.parametrize("happened", [True, False])
def test_a_requeue_that_nobody_answered_is_looked_for_before_it_is_asked_again(happened: bool) -> None:
    world = World()
    world.slurm.instead["scontrol requeue"] = [UNREACHABLE]
    if happened:
        world.time.later(1.0, lambda: world.slurm.run(("scontrol", "requeue", "7"), 1.0))
    assert world.perform(same_job=True) == BACK
    assert (world.me.restarts, world.time.now()) == (1, 102.0)


def test_a_slurm_that_stays_silent_is_unknown() -> None:
    world = World()
    world.slurm.down = True
    assert isinstance(world.perform(same_job=True), ActUnknown)
    assert 130 <= world.time.now() <= 133 and world.me.restarts == 0


def test_exclusions_are_tried_again_for_a_while_then_said() -> None:
    world = World()
    world.slurm.instead["scontrol update"] = [UNREACHABLE] * 2
    assert world.perform(same_job=True) == BACK
    assert world.me.excluded == "n2,n5"
    world = World()
    world.slurm.instead["scontrol update"] = [UNREACHABLE] * 100
    assert world.perform(same_job=True) == BACK
    assert "job 7 could not be told to avoid n[2,5]: " in world.said[-1] and world.time.now() < 106


# ---- the port --------------------------------------------------------------------------------------------------------


def test_an_act_is_answered_once_whoever_asks_how_often() -> None:
    world = World(answers=[SbatchRefused("no"), SbatchRefused("no more")])
    jobs = world.jobs()
    jobs.submit(ACT, NEXT)
    jobs.submit(ACT, NEXT)
    jobs.start()
    until(lambda: world.posted, 10, "an answer")
    jobs.submit(ACT, NEXT)
    jobs.submit((3, 18), NEXT)
    until(lambda: len(world.posted) == 3, 10, "more answers")
    jobs.close()
    assert world.posted == [ActFailed(ACT, ASK, "no")] * 2 + [ActFailed((3, 18), ASK, "no more")]
    assert len(world.asked) == 2


def test_what_is_no_submission_is_refused() -> None:
    world = World()
    world.jobs().submit(ACT, EndJob(Phase.FAILED, 1, "over"))
    assert world.posted == [ActFailed(ACT, "EndJob", "this is nothing that Slurm could be asked")]


def test_a_surprise_is_an_answer_and_the_next_act_is_heard() -> None:
    world = World(answers=[ZeroDivisionError("what?")])
    jobs = world.jobs()
    jobs.start()
    jobs.submit(ACT, NEXT)
    jobs.submit((3, 18), NEXT)
    until(lambda: len(world.posted) == 2, 10, "answers")
    jobs.close()
    assert world.posted == [ActUnknown(ACT, ASK, "ZeroDivisionError: what?"), ActDone((3, 18), ASK)]


def test_closing_ends_a_look_that_would_last() -> None:
    world = World(answers=[LATE])
    inside, out = threading.Event(), threading.Event()

    def wait(for_s: float) -> bool:
        inside.set()
        return out.wait(100)

    jobs = world.jobs(wait=wait)
    jobs.start()
    jobs.submit(ACT, NEXT)
    assert inside.wait(100)
    out.set()
    jobs.close(100.0)
    assert world.posted == []
    with pytest.raises(GaveUp):
        World(answers=[LATE]).perform(wait=lambda for_s: True)


def test_closing_what_never_began() -> None:
    World().jobs().close()


def test_its_own_clockwork_ends_with_it() -> None:
    world = World(answers=[LATE])
    jobs = world.jobs(wait=None)
    jobs.start()
    jobs.submit(ACT, NEXT)
    until(lambda: len(world.slurm.asked) >= 2, 10, "it looks again")
    jobs.close(100.0)
    assert world.posted == []


class Ending:
    """One running job."""

    def __init__(self) -> None:
        self.time = PretendTime()
        self.slurm = PretendSlurm(self.time)
        self.me = self.slurm.add(PretendJob("7", state="RUNNING"))


def end(world: Ending, wait: Callable[[float], bool] | None = None) -> str:
    return end_allocation(SlurmScheduler(world.slurm), "7", clock=world.time, wait=wait or world.time.wait)


def test_an_allocation_without_a_batch_script_is_ended() -> None:
    world = Ending()
    assert end(world) == "" and world.me.state == "COMPLETING"
    assert [line.split()[0] for line in world.slurm.asked] == ["scontrol", "scancel", "scontrol"]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", None])
def test_one_that_is_over_is_left_alone(state: str | None) -> None:
    world = Ending()
    if state is None:
        del world.slurm.jobs["7"]
    else:
        world.me.state = state
    assert end(world) == "" and len(world.slurm.asked) == 1


def test_asked_again_until_slurm_hears() -> None:
    world = Ending()
    world.slurm.down = True
    world.time.later(4.5, lambda: setattr(world.slurm, "down", False))
    assert end(world) == "" and world.time.now() == 106.0


def test_given_up_in_words() -> None:
    world = Ending()
    world.slurm.down = True
    assert "job 7 could not be ended: " in end(world) and world.time.now() == 130.0
    world = Ending()
    world.slurm.instead["scancel"] = [Answer(0)] * 100  # it says yes and does nothing
    assert end(world) == "Slurm took the scancel of job 7, but still shows it after 30 s"
    world = Ending()
    world.slurm.down = True
    assert end(world, lambda for_s: True) != "" and world.time.now() == 100.0
