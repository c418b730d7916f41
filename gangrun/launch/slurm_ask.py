"""Asking Slurm from the command line: short deadlines, and silence is an answer too.

What a command shows never depends on Slurm: where it does not answer, that is said and the command goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.scheduler import JobFacts, SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.adapters.slurm.watch import why_terminated
from gangrun.core.events import NoticeKind
from gangrun.runs.job_queue import REASONS
from gangrun.runs.jobs import scheduler_of
from gangrun.runs.times import pause, steady_now
from gangrun.wire.submission import comment

REASON_WITHIN_S = 3.0  # Slurm gives a job its reason when it first tries to place it
LOOK_FOR_S = 30.0  # a job that sbatch may have submitted shows up by then, or nobody can tell
LOOK_EVERY_S = 1.0
SHOWS_AFTER_TRIES = 4  # a signal may come a little before Slurm shows why
TRY_EVERY_S = 0.3
EXCUSES = {
    NoticeKind.REQUEUE: "is requeued",
    NoticeKind.PREEMPTION: "is preempted",
    NoticeKind.TIME_LIMIT: "is at its time limit",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands, in Slurm's words; both "" where it did not answer."""

    state: str
    reason: str

    @property
    def words(self) -> str:
        """For people."""
        if not self.state:
            return "Slurm does not report its state"
        meaning = f": {REASONS[self.reason]}" if self.reason in REASONS else ""
        return self.state.lower() + (f" ({self.reason}{meaning})" if self.reason else "")


def tools_of(variables: Mapping[str, str]) -> Tools:
    """Slurm's tools; what sbatch hands on to a job is this environment."""
    return Tools(variables)


def standing(tools: Tools, job: str) -> Standing:
    """How a job stands that was submitted just now: a moment later there is a reason too."""
    scheduler, give_up_at = scheduler_of(tools), steady_now() + REASON_WITHIN_S
    facts: JobFacts | None = None
    while True:
        try:
            facts = scheduler.job(job)
        except (SchedulerSilent, SchedulerRefused):
            break
        if facts is None or facts.state != "PENDING" or facts.reason or steady_now() > give_up_at:
            break
        pause(LOOK_EVERY_S / 4)
    return Standing(facts.state, facts.reason) if facts else Standing("", "")


def whatever_came(scheduler: SlurmScheduler, name: str, run: str, seq: int = 0, *, within_s: float = LOOK_FOR_S) -> str:
    """The job that an sbatch without an answer made after all; "" if none is seen for long enough."""
    give_up_at = steady_now() + within_s
    while True:
        try:
            for job in scheduler.jobs_named(name):
                if job.comment == comment(run, seq):
                    return job.job
        except (SchedulerSilent, SchedulerRefused):
            pass  # it may answer in a moment
        if steady_now() > give_up_at:
            return ""
        pause(LOOK_EVERY_S)


def excuse(tools: Tools, job: str, restarts_count: int) -> str:
    """Why a SIGTERM to who runs in this job does not mean the run; "" where it does, or where Slurm does not say.

    Slurm sends one to all that a job has, whatever the reason: the agents have it too, and the supervisor heeds it.
    """
    scheduler = SlurmScheduler(tools, REASON_WITHIN_S)
    for _ in range(SHOWS_AFTER_TRIES):
        try:
            facts = scheduler.job(job)
        except SchedulerSilent:
            return ""
        kind = why_terminated(None, restarts_count, facts)
        if kind in EXCUSES:
            return f"job {job} {EXCUSES[kind]}: its supervisor decides what happens to the run"
        if kind is NoticeKind.CANCEL:
            return ""
        pause(TRY_EVERY_S)
    return ""
