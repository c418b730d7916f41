"""Asking a real Slurm: what it shows of a job, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.slurm.commands import PLAIN, Answer, Tools
from gangrun.adapters.slurm.scheduler import SchedulerRefused, SlurmScheduler
from tests.slurm.cluster import Cluster
from tests.waiting import until

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
    """A run of one job, and its user's Slurm."""

    cluster: Cluster

    def __post_init__(self) -> None:
        self.name = f"r{next(COUNT)}"  # Slurm remembers jobs of the tests before
        self.slurm = SlurmScheduler(UsersTools(self.cluster))

    def first(self, *options: str, nodes: int = 2) -> str:
        """Its job, all tasks of which have begun."""
        marks = (f"-Jtrain.{self.name}", f"--comment=gr:{self.name}:0")
        job = str(self.cluster.submit(MEEK, f"-N{nodes}", *marks, "--no-kill", *options))
        self.cluster.wait_job(job, "RUNNING")
        until(lambda: self.started() == nodes, 20, lambda: f"{nodes} tasks\n{self.cluster.told()}")
        return job

    def started(self) -> int:
        return sum(bool(self.cluster.processes_on(name, r"^\S*sleep 600")) for name in self.cluster.names)


@pytest.fixture
def run(cluster: Cluster) -> Run:
    return Run(cluster)


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
    assert shown.stay_runs(run.name, 0, 0) and not shown.stay_runs(run.name, 1, 0)
    run.slurm.mark_over(run.name, job, 0, 0, 10.0)
    run.slurm.mark_over("other", job, 0, 1, 10.0)
    shown, (listed,) = run.slurm.job(job), run.slurm.jobs_named(f"train.{run.name}")
    assert shown is not None and [shown.stay_runs(run.name, 0, launch) for launch in (0, 1)] == [False, True]
    assert shown.comment == listed.comment == f"gr:{run.name}:0"
    assert shown.over == listed.over == ((run.name, 0, 0), ("other", 0, 1))
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
