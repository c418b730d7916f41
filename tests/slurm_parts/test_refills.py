"""A refill is asked for once, watched to its end, and cancelled when nobody wants it, whatever sbatch and Slurm do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gangrun.adapters.slurm.refills import SlurmRefills
from gangrun.adapters.slurm.scheduler import SlurmScheduler
from gangrun.adapters.slurm.submission import SbatchRefused, Unknown
from gangrun.core.actions import CancelRefill, SubmitRefill
from gangrun.core.events import RefillEnded, RefillQueued, RefillUnknown
from gangrun.wire.submission import Requeue, refill_comment, refill_of, refill_submission
from tests.slurm_parts.pretend import PretendJob, PretendSlurm, PretendTime
from tests.slurm_parts.scripts import RUN, asked, made, options, script

ASK = SubmitRefill(2, 0, ("n1", "n2"), "a node of this job is missing")
NAME = "train.r1-refill"
NOT_YET = "Slurm has not looked at it yet"


@dataclass
class World:
    """One supervisor's ``SlurmRefills``."""

    time: PretendTime = field(default_factory=PretendTime)
    asked: list[tuple[int, int, tuple[str, ...], float | None]] = field(default_factory=list)
    answers: list[Exception | Callable[[], object]] = field(default_factory=list)
    cancelled: bool = False
    why_not: str = ""
    left_s: float | None = None

    def __post_init__(self) -> None:
        self.slurm = PretendSlurm(self.time)
        self.slurm.add(PretendJob("7", comment="gr:r1:0", state="RUNNING"))
        self.refills = SlurmRefills(
            SlurmScheduler(self.slurm), self.submit, run="r1", job_name="train.r1", post=lambda stamped: None,
            cancelled=lambda: self.cancelled, clock=self.time, why_not=self.why_not, wait=self.time.wait,
            job_left_s=lambda: self.left_s,
        )  # fmt: skip

    def submit(self, seq: int, number: int, exclude: Sequence[str], left_s: float | None) -> str:
        self.asked.append((seq, number, tuple(exclude), left_s))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            answer()
        return self.made(number).job

    def made(self, number: int = 2, job: str = "", state: str = "PENDING", reason: str = "None") -> PretendJob:
        name = job or str(8 + len(self.asked))
        comment = refill_comment("r1", 0, number)
        return self.slurm.add(PretendJob(name, NAME, comment, state, reason, nodes="(null)"))


def test_asked_for_once_and_watched_to_its_end() -> None:
    world = World(left_s=90.0)
    assert world.refills.turn(ASK) == [RefillQueued(2, "9", NOT_YET)]
    assert world.asked == [(0, 2, ("n1", "n2"), 90.0)]
    job = world.slurm.jobs["9"]
    job.reason = "Resources"
    assert world.refills.turn(None) == [RefillQueued(2, "9", "Resources")]
    assert world.refills.turn(None) == []
    job.state, job.reason = "RUNNING", "None"
    assert world.refills.turn(None) == [RefillQueued(2, "9", "")]
    job.state, job.exit_code = "FAILED", "75:0"
    assert world.refills.turn(None) == [RefillEnded(2, "job 9 ended (FAILED)")]
    assert world.refills.turn(None) == []


def test_one_that_exists_is_taken_and_one_that_is_gone_is_not_made_again() -> None:
    world = World()
    world.made(2, "12", "RUNNING")
    world.made(3, "13")
    assert world.refills.turn(ASK) == [RefillQueued(2, "12", "")]
    del world.slurm.jobs["12"]
    assert world.refills.turn(None) == []
    assert world.refills.turn(None) == [RefillEnded(2, "job 12 is not in the queue any more")]
    assert world.asked == []


def test_a_new_supervisor_watches_what_its_predecessor_asked_for_even_if_slurm_is_silent_just_then() -> None:
    world, known = World(), SubmitRefill(2, 0, (), "", "12")
    world.made(2, "12", "RUNNING")
    world.slurm.down = True
    assert world.refills.turn(known) == world.refills.turn(None) == []
    world.slurm.down = False
    assert world.refills.turn(None) == [RefillQueued(2, "12", "")]
    del world.slurm.jobs["12"]
    assert world.refills.turn(known) == []
    assert world.refills.turn(None) == [RefillEnded(2, "job 12 is not in the queue any more")]
    assert world.asked == []


def test_a_job_that_sbatch_makes_while_all_refills_are_ended_is_taken_back() -> None:
    world = World()
    world.answers.append(world.refills.end_all)
    world.refills.turn(ASK)
    assert world.slurm.jobs["9"].state == "CANCELLED"


def test_a_request_that_timed_out_is_looked_up_before_anything_is_said() -> None:
    world = World(answers=[Unknown("sbatch did not answer")])
    world.time.later(10.0, lambda: world.made(2, "20"))
    assert world.refills.turn(ASK) == [RefillQueued(2, "20", NOT_YET)]
    world = World(answers=[Unknown("sbatch did not answer")])
    (unknown,) = world.refills.turn(ASK)
    assert isinstance(unknown, RefillUnknown) and "no such job in the queue 30 s later" in unknown.why
    assert world.refills.turn(ASK) == [RefillQueued(2, "10", NOT_YET)]


def test_refused_or_cancelled_it_is_over() -> None:
    assert World(answers=[SbatchRefused("no account")]).refills.turn(ASK) == [
        RefillEnded(2, "Slurm refused it: no account")
    ]
    world = World(cancelled=True)
    assert world.refills.turn(ASK) == [RefillEnded(2, "the run is cancelled", cancelled=True)]
    assert World(why_not="no").refills.turn(ASK) == [RefillEnded(2, "no", cancelled=True)]
    assert world.asked == []


def test_a_cancel_that_comes_while_sbatch_runs_takes_the_job_back() -> None:
    world = World()
    world.answers.append(lambda: setattr(world, "cancelled", True))
    assert world.refills.turn(ASK) == [RefillEnded(2, "the run is cancelled", cancelled=True)]
    assert world.slurm.jobs["9"].state == "CANCELLED"


def test_scancel_by_a_person_is_told() -> None:
    world = World()
    world.refills.turn(ASK)
    world.slurm.jobs["9"].state = "CANCELLED"
    assert world.refills.turn(None) == [RefillEnded(2, "job 9 ended (CANCELLED)", cancelled=True)]


def test_only_the_unwanted_one_is_cancelled_and_at_the_end_all_of_the_run_are() -> None:
    world = World()
    for number in (1, 2, 3):
        world.made(number, str(20 + number))
    other = world.slurm.add(PretendJob("30", NAME, refill_comment("another", 0, 1)))
    assert world.refills.turn(CancelRefill(2, "no node is missing")) == []
    states = {job: world.slurm.jobs[job].state for job in ("7", "21", "22", "23")}
    assert states == {"7": "RUNNING", "21": "PENDING", "22": "CANCELLED", "23": "PENDING"}
    world.refills.end_all()
    assert [world.slurm.jobs[job].state for job in ("7", "21", "23")] == ["RUNNING", "CANCELLED", "CANCELLED"]
    assert other.state == "PENDING"


def test_a_silent_slurm_is_asked_for_a_while() -> None:
    world = World()
    world.made(2, "22")
    world.slurm.down = True
    world.time.later(12.0, lambda: setattr(world.slurm, "down", False))
    world.refills.turn(CancelRefill(2, "no node is missing"))
    assert world.slurm.jobs["22"].state == "CANCELLED"


def test_its_batch_script_asks_for_one_node_under_a_name_of_its_own(tmp_path: object) -> None:
    submission = refill_submission(
        asked(
            nodes_count=4, nodelist="n[1-4]", dependency="afterok:3", requeue=Requeue.SAME_JOB, sbatch=(("hold", None),)
        )
    )
    found = options(script(submission, made(tmp_path), 1, ["true"], exclude=("n1", "n2"), refill=2))  # type: ignore[arg-type]
    assert (found["nodes"], found["job-name"], found["comment"]) == ("1", f"train.{RUN}-refill", f"gr:{RUN}:1+2")
    assert (found["exclude"], "no-requeue" in found) == ("n[1-2]", True)
    assert not {"nodelist", "dependency", "hold"} & found.keys()


@pytest.mark.parametrize(
    ("comment", "found"), [("gr:r1:0+12", ("r1", 12)), ("gr:r1:0", None), ("gr:a:b:3+1", ("a:b", 1)), ("", None)]
)
def test_a_comment_tells_whose_it_is(comment: str, found: tuple[str, int] | None) -> None:
    assert refill_of(comment) == found
