"""Asking a real Slurm: what it shows of a job, why it ends it, and the next job asked for exactly once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.slurm.commands import PLAIN, Answer, Tools
from gangrun.adapters.slurm.jobs import ASK, SlurmJobs
from gangrun.adapters.slurm.scheduler import JobFacts, SchedulerRefused, SlurmScheduler
from gangrun.adapters.slurm.submission import SbatchRefused, Unknown
from gangrun.core.actions import SubmitSuccessor
from gangrun.core.events import ActDone, ActUnknown
from tests.slurm.cluster import Cluster
from tests.slurm_parts.pretend import PretendTime
from tests.waiting import until

ACT = (1, 1)
COUNT = itertools.count(1)
MEEK = "srun --no-kill --kill-on-bad-exit=0 sleep 600"
KILL_WAIT_S = 5.0


class UsersTools(Tools):
    """The user's on the login host."""

    def __init__(self, cluster: Cluster, host: str = "login") -> None:
        super().__init__({**cluster.environment(), **PLAIN})
        self._cluster, self._host = cluster, host

    def run(self, argv: Sequence[str], within_s: float) -> Answer:
        return super().run(self._cluster._as_user(argv, None, self._host), within_s)


@dataclass
class Run:
    """A run of one job so far, and what asks for the next."""

    cluster: Cluster
    sbatch_within_s: float = 20.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = f"r{next(COUNT)}"  # Slurm remembers jobs of the tests before
        self.tools = UsersTools(self.cluster)
        self.slurm = SlurmScheduler(self.tools)

    def marks(self, seq: int) -> tuple[str, str]:
        return f"-Jtrain.{self.name}", f"--comment=gr:{self.name}:{seq}"

    def first(self, *options: str, nodes: int = 2, shell: str = MEEK) -> str:
        job = str(self.cluster.submit(shell, f"-N{nodes}", *self.marks(0), "--no-kill", *options))
        self.cluster.wait_job(job, "RUNNING")
        if shell == MEEK:
            until(lambda: self.started() == nodes, 20, lambda: f"{nodes} tasks\n{self.cluster.told()}")
        return job

    def started(self) -> int:
        return sum(bool(self.cluster.processes_on(name, r"^\S*sleep 600")) for name in self.cluster.names)

    def submit(self, seq: int, exclude: Sequence[str], dependency: str) -> str:
        options = [f"--exclude={','.join(exclude)}"] * bool(exclude) + [f"--dependency={dependency}"] * bool(dependency)
        words = ("sbatch", "--parsable", "-N1", *self.marks(seq), *options, "--wrap=true")
        answer = self.tools.run(words, self.sbatch_within_s)
        if answer.timed_out:
            raise Unknown(answer.words)
        if answer.code:
            raise SbatchRefused(answer.words)
        return answer.out.strip()

    def jobs(self, job: str, same_job: bool = False, all_heard: bool = True, **more: Any) -> SlurmJobs:
        return SlurmJobs(
            self.slurm, self.submit, run=self.name, job_name=f"train.{self.name}", job=job, restarts_count=0,
            post=lambda stamped: None, cancelled=lambda: False, all_heard=lambda: all_heard,
            same_job=same_job, say=self.said.append, **{"clock": SystemClock(), **more},
        )  # fmt: skip

    def seen(self, seq: int) -> list[JobFacts]:
        return [job for job in self.slurm.jobs_named(f"train.{self.name}") if job.comment.endswith(f":{seq}")]


@pytest.fixture
def run(cluster: Cluster) -> Run:
    return Run(cluster)


# ---- looking ---------------------------------------------------------------------------------------------------------


def test_a_job_as_slurm_shows_it(run: Run) -> None:
    job = run.first("--exclude=n5,n6", "-t10", nodes=3)
    shown, (listed,) = run.slurm.job(job), run.slurm.jobs_named(f"train.{run.name}")
    assert shown is not None and shown.end_wall is not None and shown.start_wall is not None
    assert shown.end_wall - shown.start_wall == 600 and abs(shown.start_wall - SystemClock().wall()) < 30
    assert len(shown.nodes) == 3 and shown.batch_host == shown.nodes[0]
    assert not {"n5", "n6"} & set(shown.nodes) and shown.excluded == ("n5", "n6")
    for key in ("job", "name", "comment", "user", "state", "reason", "partition", "nodes", "batch_host", "end_wall"):
        assert getattr(shown, key) == getattr(listed, key), key
    controller = run.slurm.controller()
    assert controller.kill_wait_s == KILL_WAIT_S
    assert controller.wall is not None and abs(controller.wall - SystemClock().wall()) < 30
    run.slurm.cancel((job,))
    run.slurm.cancel((job,))  # on its way out already
    assert run.cluster.wait_job(job, "CANCELLED")
    run.slurm.cancel((job,))
    assert run.slurm.job("999999") is None  # never known, or forgotten: Slurm says the same
    run.slurm.cancel(("999999",))


def test_a_running_job_cannot_be_told_what_to_avoid(run: Run) -> None:
    job = run.first(nodes=1)
    with pytest.raises(SchedulerRefused, match="no longer pending"):
        run.slurm.set_excluded(job, ("n3",))


# ---- why SIGTERM came ------------------------------------------------------------------------------------------------


# ---- the next job ----------------------------------------------------------------------------------------------------


def test_the_successor_starts_when_the_job_ends_and_others_wait_for_it(run: Run) -> None:
    job = run.first()
    after = str(run.cluster.submit("true", f"--dependency=afterok:{job}"))
    assert run.jobs(job).perform(ACT, SubmitSuccessor(1, ("n2",), "n2 is gone")) == ActDone(ACT, ASK)
    (successor,) = run.seen(1)
    assert successor.dependency.startswith(f"afterany:{job}") and successor.excluded == ("n2",)
    waits = run.slurm.job(after)
    assert waits is not None and waits.dependency.startswith(f"afterok:{successor.job}")
    assert [one.job for one in run.slurm.dependents_of(successor.job)] == [after]
    run.slurm.cancel((job,))
    run.cluster.wait_job(successor.job, "COMPLETED")
    run.cluster.wait_job(after, "COMPLETED")
    assert run.jobs(job).perform((2, 9), SubmitSuccessor(1, (), "again")) == ActDone((2, 9), ASK)
    assert len(run.seen(1)) == 1


def test_sbatch_that_hangs_is_killed_and_asked_again_once_nothing_came_of_it(run: Run) -> None:
    """Half a minute of looking is made of steps that take no time here."""
    job, time = run.first(nodes=1), PretendTime()
    run.cluster.hang("sbatch", times=1)
    run.sbatch_within_s = 4.0  # time to begin, on a busy machine too
    jobs = run.jobs(job, clock=time, wait=time.wait)
    unknown = jobs.perform(ACT, SubmitSuccessor(1, (), "x"))
    assert isinstance(unknown, ActUnknown) and "did not answer within 4 s" in unknown.why
    assert (run.seen(1), time.now() >= 30.0) == ([], True)
    run.sbatch_within_s = 20.0
    assert jobs.perform((1, 2), SubmitSuccessor(1, (), "x")) == ActDone((1, 2), ASK)
    assert len(run.seen(1)) == 1 and len(run.cluster.calls("sbatch")) == 3
