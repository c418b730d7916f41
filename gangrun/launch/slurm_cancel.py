"""Ending the jobs of a cancelled run in Slurm. The mark stands already: no job that starts from here on
starts anything.

Jobs that wait are cancelled at once. The one that has nodes is left to its supervisor, which finds the mark within a
second and stops all ranks in order; scancel comes where nobody does that in time, or where it is asked for. A job
without this run's comment is never touched: whoever holds it gives it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gangrun.adapters.slurm.scheduler import SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.core.nodeset import fold
from gangrun.display.text import clean
from gangrun.errors import SCHEDULER, UNKNOWN, UserError
from gangrun.runs.follow import Follower
from gangrun.runs.job_queue import Queue, RunJob
from gangrun.runs.jobs import ask, slurm
from gangrun.runs.snapshot import RunSnapshot, read, with_queue
from gangrun.runs.times import pause, steady_now

LOOK_EVERY_S = 0.5
ASK_EVERY_S = 1.0
SILENT_MAX_S = 20.0  # a controller that is busy for a moment is not silent
HEEDED_WITHIN_S = 30.0  # without a sign of a supervisor after so long nobody stops anything in order
LEAVES_WITHIN_S = 15.0  # a job whose run has ended ends by itself
KILLED_WITHIN_S = 90.0  # after scancel: KillWait, and an epilog
COMPLETES_WITHIN_S = 45.0  # longer means a node that does not answer: Slurm waits for it, and nobody else has to


class NotEnded(Exception):
    """What is left, in a sentence; ``silent``: because Slurm does not answer."""

    def __init__(self, words: str, *, silent: bool = False) -> None:
        super().__init__(words)
        self.silent = silent


@dataclass(slots=True)
class CancelJobs:
    """One cancel. ``patience_s``: how long a supervisor may take to stop in order; ``now``: not at all."""

    first: RunSnapshot
    patience_s: float
    now: bool = False
    scheduler: SlurmScheduler = field(default_factory=slurm)
    say: Callable[[str], None] = lambda sentence: None
    cancelled: set[str] = field(default_factory=set)  # jobs that we asked Slurm to end

    def ask_once(self) -> tuple[Queue, tuple[RunJob, ...]]:
        """Cancel what waits, and with ``now`` all; what is left to its supervisor."""
        try:
            queue = self._look(self.first)
            self._scancel(queue, kill=self.now)
        except SchedulerSilent as error:
            raise NotEnded(f"Slurm does not answer: {error}", silent=True) from error
        return queue, tuple(job for job in queue.active if job.job not in self.cancelled)

    def until_none(self, timeout_s: float | None = None) -> RunSnapshot:
        """Until Slurm has no job of the run any more; ``NotEnded`` where that takes too long."""
        follower, began_at = Follower(self.first.paths, scheduler=False), steady_now()
        give_up_at = began_at + (self.patience_s + KILLED_WITHIN_S if timeout_s is None else timeout_s)
        ended_at: float | None = None
        silent_since: float | None = None
        had_nodes, completing_since = False, float("inf")
        signs, sign_at = self.first.signs(), began_at
        while True:
            reading = follower.look()
            if reading.signs() != signs:  # by no clock but ours: that of the supervisor's host may be wrong
                signs, sign_at = reading.signs(), steady_now()
            if reading.ended and ended_at is None:
                ended_at = steady_now()
            silent = ""
            try:
                queue = self._look(reading)
                reading = with_queue(follower.look(), queue)
                completing_since = float("inf") if queue.busy else min(completing_since, steady_now())
                stuck = steady_now() - completing_since > COMPLETES_WITHIN_S
                if _is_done(reading, queue, had_nodes=had_nodes, stuck=stuck):
                    return reading
                had_nodes = bool(queue.active)  # whoever had nodes may just have asked for one more job
                self._scancel(queue, kill=self.now or self._is_late(began_at, ended_at, sign_at))
                silent_since = None
            except SchedulerSilent as error:
                silent_since, silent, queue = silent_since or steady_now(), str(error), Queue()
            self._give_up(silent, silent_since, queue, give_up_at)
            pause(min(ASK_EVERY_S, max(0.05, give_up_at - steady_now())))

    def _look(self, reading: RunSnapshot) -> Queue:
        queue = ask(self.first.paths, self.first.spec.run, reading.owner, self.scheduler)
        if queue.silent:
            raise SchedulerSilent(queue.silent)
        return queue

    def _scancel(self, queue: Queue, *, kill: bool) -> None:
        jobs = [job for job in (*queue.waiting, *(queue.active if kill else ())) if job.seq is not None]
        # Refills that have a node hold ranks: like the job that they serve, they are left to its supervisor.
        jobs += [job for job in queue.refills if job.waits or kill or not queue.busy]
        names = [job.job for job in jobs if job.state != "COMPLETING"]
        if not names:
            return
        fresh = set(names) - self.cancelled
        try:
            self.scheduler.cancel(names)
        except SchedulerRefused as error:
            raise NotEnded(f"Slurm refuses to cancel {_named(names)}: {error}") from error
        self.cancelled.update(names)
        if fresh:
            self.say(f"scancel of {_named(sorted(fresh))}")

    def _is_late(self, began_at: float, ended_at: float | None, sign_at: float) -> bool:
        """Will nobody end the job that has nodes?"""
        if ended_at is not None:
            return steady_now() - ended_at > LEAVES_WITHIN_S
        return steady_now() - began_at > self.patience_s or steady_now() - sign_at > HEEDED_WITHIN_S

    def _give_up(self, silent: str, silent_since: float | None, queue: Queue, give_up_at: float) -> None:
        spent = steady_now() >= give_up_at
        if silent_since is not None and (spent or steady_now() - silent_since > SILENT_MAX_S):
            raise NotEnded(f"Slurm does not answer: {silent}", silent=True)
        if spent:
            left = [job.job for job in (*queue.waiting, *queue.active, *queue.refills)]
            raise NotEnded(f"{_named(left)} {'is' if len(left) == 1 else 'are'} still there")


def _is_done(reading: RunSnapshot, queue: Queue, *, had_nodes: bool, stuck: bool) -> bool:
    """Is nothing left that could do anything? ``stuck``: what is left has only been on its way out, for long."""
    if queue.waiting or any(job.state != "COMPLETING" for job in queue.refills):
        return False
    if reading.ended:
        return all(job.seq is None for job in queue.busy)  # an allocation that a user holds is his to give back
    return stuck if queue.active else not had_nodes


def _named(jobs: list[str]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {fold(jobs).strip('[]')}"


def cancel_jobs(
    reading: RunSnapshot, timeout_s: float | None, grace_s: float, say: Callable[[str], None], *, waits: bool, now: bool
) -> tuple[RunSnapshot, str]:
    """Cancel the jobs of a run that is marked; the last look at it, and one sentence of what was done."""
    run = clean(reading.spec.run)
    nobody = f"{run}: no job of it is left, so nothing had to be stopped; it is marked as cancelled"
    jobs = CancelJobs(reading, grace_s, now=now, say=say)
    try:
        last, left = (jobs.until_none(timeout_s), ()) if waits else (None, jobs.ask_once()[1])
    except NotEnded as error:
        hint = f"the cancel stays in force: no job of the run starts anything any more; gangrun cancel {run}"
        hint += " when Slurm answers again" if error.silent else " --now ends the rest at once"
        kind, code = ("slurm", SCHEDULER) if error.silent else ("not yet", UNKNOWN)
        raise UserError(kind, str(error), hint, code) from error
    if last is None:
        last = read(reading.paths, scheduler=True)
        if left:
            return last, f"{run} is asked to stop; its supervisor will end job {left[-1].job}"
        return last, f"{run}: its jobs are cancelled" if jobs.cancelled else nobody
    if not jobs.cancelled and not last.ended:
        return last, nobody
    stuck = [job for job in last.queue.active if job.seq is not None] if last.queue is not None else []
    more = (
        f"; Slurm still waits for nodes of job {stuck[-1].job} that do not answer" if stuck and not last.ended else ""
    )
    return last, f"{run} has ended{more}"
