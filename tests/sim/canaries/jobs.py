"""Mutants of protocol sections 4 and 7: jobs, cancel, ports. Next: ``worlds``."""

from __future__ import annotations

from typing import Any

from gangrun.adapters.slurm import watch
from gangrun.core.machine import stopping
from gangrun.core.machine.transitions import stay
from gangrun.core.recovery import choose
from gangrun.sim import cluster
from gangrun.sim.body import scheduler
from gangrun.sim.engine import disk
from gangrun.sim.invariants import Checker
from tests.sim.canaries.mutation import Swaps, mutant


@mutant("a batch script exits where the run is cancelled", "4", "I8")
def ignores_the_marker() -> Swaps:
    """The marker is not looked for."""
    original = scheduler.SimScheduler.batch

    def batch(self: scheduler.SimScheduler, job: Any) -> None:
        self.checks_cancelled = False
        original(self, job)

    return ((scheduler.SimScheduler, "batch", batch),)


@mutant("the time limit is counted by Slurm's clock", "4", "I14")
def time_limit_by_the_wall() -> Swaps:
    """How long a job has left is counted by the wall clock of the supervisor's host."""

    def left_s(self: Any, wall: float | None) -> float | None:
        return None if wall is None else wall - self._clock.wall()

    return ((watch.JobWatch, "_left_s", left_s),)


@mutant("a place in the sequence is claimed by link, the loser exits", "4", "I7", "I1")
def every_job_passes() -> Swaps:
    """Every job of a place runs."""
    original = scheduler.SimScheduler.batch

    def batch(self: scheduler.SimScheduler, job: Any) -> None:
        self.uses_link = False
        original(self, job)

    return ((scheduler.SimScheduler, "batch", batch),)


@mutant("the same job with a higher restart count claims its place again", "4", "I14")
def requeued_job_loses_its_place() -> Swaps:
    """A place is claimed once and for all."""

    def batch(self: scheduler.SimScheduler, job: Any) -> None:
        restart, job.restart = job.restart, 0
        try:
            original(self, job)
        finally:
            job.restart = restart

    original = scheduler.SimScheduler.batch
    return ((scheduler.SimScheduler, "batch", batch),)


@mutant("an error of the file system is not the mark of a cancel", "1", "I8", "I14")
def an_error_is_a_cancel() -> Swaps:
    """Whatever keeps the mark from being read is read as the mark."""

    def cancelled(self: disk.Mount) -> bool:
        return self.broken or self.disk.cancelled_at is not None

    return ((disk.Mount, "cancelled", cancelled),)


@mutant("a job that meets an error at its claim asks again, since there is no elsewhere", "4", "I14")
def leaves_after_an_error() -> Swaps:
    """It leaves the run to another job, and there is none."""
    return ((scheduler.SimScheduler, "_ask_again", lambda self, job, pid: self._end(job)),)


@mutant("a claim by the same process is its own, whatever the reply was", "4", "I14")
def lost_reply_is_anothers_claim() -> Swaps:
    """A place that is claimed is another's."""
    original = scheduler.SimScheduler._begin

    def begin(self: scheduler.SimScheduler, job: Any, mount: Any) -> None:
        claim = mount.disk.job_claims.get(job.seq)
        if claim is not None and claim.pid == job.pid:
            self._end(job)
        else:
            original(self, job, mount)

    return ((scheduler.SimScheduler, "_begin", begin),)


@mutant("look for our comment before asking sbatch again", "4", "I7")
def submits_again_blindly() -> Swaps:
    """A timeout counts as a no."""
    original = scheduler.SimJobs._try

    def again(self: scheduler.SimJobs, *args: Any) -> None:
        self.scheduler.looks_before_retry = False
        original(self, *args)

    return ((scheduler.SimJobs, "_try", again),)


@mutant("where all nodes left undecided the batch script decides", "4", "I14")
def no_last_resort() -> Swaps:
    """A job ends with its last node, whatever is to follow."""
    return ((scheduler.SimScheduler, "last_resort", lambda self, job: False),)


@mutant("a cancel creates `cancelled` first, then takes the jobs away", "4", "I8")
def marks_the_cancel_last() -> Swaps:
    """The jobs first, the marker ten seconds later."""

    def cancel(self: cluster.Cluster) -> None:
        assert isinstance(self.checks, Checker)
        self.checks.cancel_asked = True
        for job in self.scheduler.jobs:
            self.scheduler.scancel(job)
        self.timeline.after(10.0, lambda: original(self))

    original = cluster.Cluster.cancel
    return ((cluster.Cluster, "cancel", cancel),)


@mutant("before a start's ticket the mark of a cancel is looked for", "4", "I8")
def starts_unlooked() -> Swaps:
    """The ticket is taken as any other."""
    original = disk.SimStore._store

    def store(self: disk.SimStore, *args: Any) -> bool:
        at, self.mount.disk.cancelled_at = self.mount.disk.cancelled_at, None
        try:
            return original(self, *args)
        finally:
            self.mount.disk.cancelled_at = at

    return ((disk.SimStore, "_store", store),)


@mutant("nothing starts after a cancel", "4", "I8", given="starts_unlooked")
def forgets_the_cancel() -> Swaps:
    """The word is heard and forgotten."""

    def cancel(state: Any, *args: Any, **how: Any) -> Any:
        return stay(state, "cancelled, but who cares")

    return ((stopping, "cancel", cancel),)


@mutant("ranks of each attempt meet at a port of their own", "7", "I2", "I3")
def one_port_for_all() -> Swaps:
    """Every attempt meets at the same port."""
    return ((cluster.Cluster, "new_port", lambda self: 20000),)


@mutant("a node that the scheduler took out of the job is not excluded for its silence", "4", "I9")
def excludes_what_slurm_took() -> Swaps:
    """Whoever is silent is excluded, whatever the scheduler says."""
    return ((choose, "_is_taken", lambda state, name: False),)
