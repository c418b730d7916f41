"""The jobs of a run as Slurm shows them, and the sentences about them that become a run's reason.

A job is this run's if its comment says so; the allocation of a user's own that holds the run is told apart by having
no place in the sequence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gangrun.core.model import Failure
from gangrun.core.nodeset import fold

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
# Slurm's reason -> what it means to whoever waits. What is not here is said in Slurm's own word alone.
REASONS = {
    "Resources": "for free nodes",
    "Priority": "jobs of higher priority come first",
    "BeginTime": "its start time has not come",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs now",
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives",
    "Reservation": "for its reservation to begin",
    "ReqNodeNotAvail": "nodes that it asks for are not available",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained or reserved",
    "Licenses": "for licences",
    "JobArrayTaskLimit": "for other tasks of its array",
    "DependencyNeverSatisfied": "its dependency can never be met: cancel the job",
    "BadConstraints": "no node fits what it asks for",
}
HOLDS = {
    "JobHeldUser": "it is held by its user",
    "JobHeldAdmin": "it is held by an admin",
    "JobHoldMaxRequeue": "Slurm holds it, as it was requeued too often",
    "launch_failed_requeued_held": "Slurm holds it, as its start failed on a node (a prolog that failed)",
    "ReservationDeleted": "it is held, as its reservation is gone",
    "SPECIAL_EXIT": "it is held after a special exit",
}
NODES_FAILED = frozenset({"NODE_FAIL", "BOOT_FAIL"})
HELD_BY_OTHERS = frozenset({"JobHeldAdmin"})  # a user's release is refused
_COMMENT = re.compile(r"gr:(?P<run>.+):(?P<seq>[0-9]+)")


def place_of(comment: str) -> tuple[str, int] | None:
    """The run and the place in its sequence of jobs; None for a comment that is not ours."""
    match = _COMMENT.fullmatch(comment)
    return (match["run"], int(match["seq"])) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One job of the run; texts are Slurm's."""

    job: str
    seq: int | None = None  # its place; None: a user's own allocation, which is his to end
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    partition: str = ""
    dependency: str = ""
    end_wall: float | None = None
    ended: bool = False
    began: bool = False  # its batch script took its place in the run
    last_words: str = ""  # of an ended one: what Slurm wrote at the end of its output

    @property
    def waits(self) -> bool:
        """In the queue, with no node yet."""
        return not self.ended and self.state in WAITING

    @property
    def active(self) -> bool:
        """Has nodes."""
        return not self.ended and not self.waits

    @property
    def forgotten(self) -> bool:
        """Over, and Slurm knows nothing of it any more."""
        return self.ended and not self.state

    @property
    def held(self) -> str:
        """By which of ``HOLDS`` it waits for a person; "" where it does not."""
        if not self.waits:
            return ""
        if self.state in HOLDS:
            return self.state
        return self.reason if self.reason in HOLDS else ""


def stopped_note(why: str, cause: Failure) -> str:
    """What a batch script leaves that stops; its setup lines leave bare words."""
    return f"[{cause.value}] {why}\n"


def read_stopped(note: str) -> tuple[str, Failure]:
    """Why a batch script stopped, and what caused it."""
    words = " ".join(note.split())
    for cause in Failure:
        if words.startswith(f"[{cause.value}] "):
            return words.removeprefix(f"[{cause.value}] "), cause
    return words, Failure.SCRIPT


@dataclass(frozen=True, slots=True)
class Queue:
    """All jobs of the run that Slurm remembers, oldest first; ``silent`` says why it could not be asked."""

    jobs: tuple[RunJob, ...] = ()
    silent: str = ""
    stopped: str = ""  # why a batch script ended before it began
    stopped_by: Failure = Failure.SCRIPT
    refills: tuple[RunJob, ...] = ()  # one-node jobs beside them, that are not over

    @property
    def waiting(self) -> tuple[RunJob, ...]:
        """Those that are still to come."""
        return tuple(job for job in self.jobs if job.waits)

    @property
    def active(self) -> tuple[RunJob, ...]:
        """Those that have nodes."""
        return tuple(job for job in self.jobs if job.active)

    @property
    def busy(self) -> tuple[RunJob, ...]:
        """Those that have nodes and are not on their way out: a dead node keeps a job there for minutes."""
        return tuple(job for job in self.active if job.state != "COMPLETING")

    @property
    def newest(self) -> RunJob | None:
        """The last that was asked for."""
        return self.jobs[-1] if self.jobs else None


def in_order(jobs: tuple[RunJob, ...], holder: str = "") -> tuple[RunJob, ...]:
    """By their places, then as they were submitted; of several for one place the one that holds it is the last."""
    return tuple(sorted(jobs, key=lambda job: (_place(job), job.job == holder, _as_number(job.job))))


def _place(job: RunJob) -> int:
    return -1 if job.seq is None else job.seq


def _as_number(job: str) -> int:
    digits = re.match(r"[0-9]+", job)
    return int(digits.group()) if digits else 0


def waiting_words(job: RunJob, run: str = "") -> str:
    """Why a job does not run yet; with ``run`` also what releases a held one."""
    what = f"job {job.job} waits in the queue"
    if hold := job.held:
        words = f"{what} ({hold}): {HOLDS[hold]}"
        if run and hold not in HELD_BY_OTHERS:
            words += f"; gangrun resume {run} releases it"
        return words
    if not job.reason:
        return f"{what} (Slurm has not looked at it yet)"
    word = job.reason.partition(",")[0]
    if word == "Dependency":
        after = f" for {job.dependency}" if job.dependency else ""
        return f"{what} (Dependency{after})"
    meaning = f": {REASONS[word]}" if word in REASONS else ""
    return f"{what} ({job.reason.replace('_', ' ') if ',' in job.reason else job.reason}){meaning}"


def active_words(job: RunJob) -> str:
    """A job that has nodes."""
    on = f" on {fold(job.nodes)}" if job.nodes else ""
    if job.state == "COMPLETING":
        return f"job {job.job} is ending{on}"
    if job.state in {"SUSPENDED", "STOPPED"}:
        return f"job {job.job} is suspended{on}"
    return f"job {job.job} runs{on}" if job.state == "RUNNING" else f"job {job.job} is {job.state.lower()}{on}"


def ended_words(job: RunJob) -> str:
    """How a job ended that left no word of its own in the run."""
    if "slurm prolog" in job.last_words.lower():
        return f"job {job.job} was not started: Slurm's own preparation of a node failed ({job.last_words})"
    if _never_ran(job):
        why = "because a prolog failed, or because the job was cancelled at that moment"
        return f"job {job.job} was not started: Slurm ended it before anything of it ran, {why}"
    if job.reason == "DependencyNeverSatisfied":
        return f"job {job.job} was cancelled by Slurm: its dependency can never be met"
    if was_cancelled(job):
        return f"job {job.job} was cancelled in Slurm (scancel)"
    if job.forgotten and not job.began and not job.last_words:
        return f"job {job.job} never started, and Slurm no longer knows it: it was cancelled in the queue, or purged"
    told = f" ({job.last_words})" if job.last_words else ""
    early = "" if job.began else f" ({job.state}) before it began,"
    how = {
        "": f"ended, and Slurm no longer knows how{told}",
        "TIMEOUT": "ended at its time limit",
        "DEADLINE": "ended at its deadline",
        "PREEMPTED": "was preempted",
        "NODE_FAIL": f"ended{early} as a node of it failed",
        "BOOT_FAIL": f"ended{early} as a node of it did not boot",
        "OUT_OF_MEMORY": "ended for lack of memory",
        "COMPLETED": "ended",
    }.get(job.state, f"ended in Slurm's state {job.state}{_why(job)}{told}")
    return f"job {job.job} {how}"


def _why(job: RunJob) -> str:
    """What Slurm gives as the reason of an end, where that says more than the state.

    22.05 says JobLaunchFailure of a batch script that was killed too; newer ones say by which signal.
    """
    reason = job.reason
    if job.began and (reason == "JobLaunchFailure" or reason.startswith("RaisedSignal")):
        return f" ({reason}): its batch script was killed"
    if reason == "JobLaunchFailure":
        return (
            " (JobLaunchFailure): a node could not start it, for example because the node cannot write the job's output"
        )
    return f" ({reason})" if reason and reason != "NonZeroExitCode" else ""


def was_cancelled(job: RunJob) -> bool:
    """By a person, as far as Slurm shows it: after a prolog that failed it says CANCELLED too.

    What slurmstepd wrote then tells it where Slurm has forgotten the job.
    """
    if "slurm prolog" in job.last_words.lower() or job.reason == "DependencyNeverSatisfied" or _never_ran(job):
        return False
    told = "CANCELLED AT" in job.last_words and "DUE TO" not in job.last_words
    return job.state == "CANCELLED" or (not job.state and told)


def failure_before_it_began(job: RunJob) -> Failure | None:
    """Whose fault it was that Slurm itself ended a job of which nothing of ours had run; None where that is not so."""
    if not job.ended or job.began:
        return None
    if job.state in NODES_FAILED:
        return Failure.NODE
    return Failure.SCHEDULER if job.state == "CANCELLED" and not was_cancelled(job) else None


def _never_ran(job: RunJob) -> bool:
    """It had nodes, and neither its batch script nor what watches over that left a word.

    A prolog that failed leaves the same as a scancel before the prolog's end, so this may have been either.
    """
    return job.state == "CANCELLED" and bool(job.nodes) and not job.began and not job.last_words
