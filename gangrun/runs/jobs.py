"""Asking Slurm how a run's jobs stand.

Never asked for a local run, nor for one whose journal says that it has ended. A job is the run's if its comment says
so, whatever it is called; the allocation that a user holds himself is found by the claim of the run's owner.
Imported late, as it brings the modules that start Slurm's tools.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, noted_job_id
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_cancelled, read_submission
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.scheduler import JobFacts, SchedulerRefused, SchedulerSilent, SlurmScheduler, remembered
from gangrun.config import environment
from gangrun.core.model import Failure
from gangrun.runs.job_queue import Queue, RunJob, in_order, place_of, read_stopped
from gangrun.runs.times import UNCLAIMED_FOR_S, wall_now
from gangrun.wire.submission import SubmissionError, refill_name, refill_of

ANSWER_WITHIN_S = 5.0
TAIL_BYTES = 4096
NOTE_CHARS = 500
_SLURMS_OWN = re.compile(r"^.*(?:Error running slurm prolog|\*\*\* (?:JOB|STEP) .* CANCELLED AT ).*$", re.MULTILINE)


def is_scheduler_here() -> bool:
    """Can a job be submitted from this machine?"""
    return shutil.which("sbatch") is not None


def scheduler_of(tools: Tools) -> SlurmScheduler:
    """Slurm, which gets little time to answer."""
    return SlurmScheduler(tools, ANSWER_WITHIN_S)


def slurm() -> SlurmScheduler:
    """Slurm as this user's commands ask it."""
    return scheduler_of(Tools(environment.all_variables()))


def ask(paths: RunPaths, run: str, owner: JobClaim | None, scheduler: SlurmScheduler | None = None) -> Queue:
    """All jobs of the run that Slurm remembers, or why that cannot be known."""
    scheduler = scheduler or slurm()
    if whose := _anothers(paths):
        return Queue(silent=whose)
    try:
        submission = read_submission(Disk(), paths)
        name, refills = submission.job_name, submission.refills
    except RunDirError as error:  # it runs in an allocation that a user holds
        if owner is None:
            return Queue(silent=str(error).rstrip("."))
        name, refills = "", False
    except (OSError, SubmissionError) as error:
        return Queue(silent=str(error).rstrip("."))
    try:
        found = scheduler.jobs_named(name) if name else ()
        found += scheduler.jobs_named(refill_name(name)) if refills else ()
        if owner is not None and owner.job.isdecimal() and owner.job not in {facts.job for facts in found}:
            held = scheduler.job(owner.job)
            found = (*found, held) if held is not None else found
    except (SchedulerSilent, SchedulerRefused) as error:
        return Queue(silent=str(error).rstrip("."))
    queue = queue_of(paths, run, owner, found)
    newest = queue.newest
    if newest is None or not newest.forgotten or queue.stopped or read_cancelled(Disk(), paths) is not None:
        return queue
    facts = remembered(Tools(environment.all_variables()), newest.job, name)
    return queue if facts is None else replace(queue, jobs=(*queue.jobs[:-1], _as_remembered(newest, facts)))


def _as_remembered(job: RunJob, facts: JobFacts) -> RunJob:
    """A job that waited had nodes for accounting only if it was started."""
    return replace(job, state=facts.state, nodes=facts.nodes)


def queue_of_each() -> Callable[[RunPaths, str, JobClaim | None], Queue]:
    """For many runs by one question."""
    try:
        mine = slurm().mine()
    except (SchedulerSilent, SchedulerRefused) as error:
        silent = Queue(silent=str(error).rstrip("."))
        return lambda paths, run, owner: silent

    def queue(paths: RunPaths, run: str, owner: JobClaim | None) -> Queue:
        whose = _anothers(paths)
        return Queue(silent=whose) if whose else queue_of(paths, run, owner, mine)

    return queue


def _anothers(paths: RunPaths) -> str:
    """Root reads everybody's runs, but is told of its own jobs."""
    uid = Disk().lstat(paths.machine).st_uid
    return "" if uid == os.geteuid() else f"the run belongs to uid {uid}, but gangrun asks Slurm for your own jobs only"


def queue_of(paths: RunPaths, run: str, owner: JobClaim | None, found: Iterable[JobFacts]) -> Queue:
    """The run's own among them, and what Slurm may have forgotten: its owner's, and the one that was to follow."""
    jobs, refills = [], []
    for facts in found:
        place, refill = place_of(facts.comment), refill_of(facts.comment)
        if refill is not None and refill[0] == run and not facts.ended:
            refills.append(_job(facts, None))
        if place is not None and place[0] == run:
            jobs.append(_job(facts, place[1]))
        elif owner is not None and facts.job == owner.job:
            jobs.append(_job(facts, None))
    if owner is not None and owner.job.isdecimal() and owner.job not in {job.job for job in jobs}:
        jobs.append(RunJob(job=owner.job, seq=owner.seq, ended=True))
    seq = 0 if owner is None else owner.seq + 1
    number = noted_job_id(paths, seq, before=wall_now() - UNCLAIMED_FOR_S)
    if number and not any(job.seq == seq for job in jobs):
        jobs.append(RunJob(job=number, seq=seq, ended=True))
    ordered = list(in_order(tuple(jobs), owner.job if owner is not None else ""))
    if ordered and ordered[-1].ended:
        newest = ordered[-1]
        began = owner is not None and owner.job == newest.job
        ordered[-1] = replace(newest, began=began, last_words=_last_words(paths, newest.job, began))
    return Queue(tuple(ordered), "", *_stopped(paths, ordered[-1].seq if ordered else None), tuple(refills))


def run_of(job: str) -> str:
    """The run whose job this is, by its comment; "" where Slurm does not know, or does not answer."""
    try:
        facts = slurm().job(job)
    except (SchedulerSilent, SchedulerRefused):
        return ""
    place = place_of(facts.comment) if facts is not None else None
    return place[0] if place else ""


def _job(facts: JobFacts, seq: int | None) -> RunJob:
    return RunJob(
        job=facts.job, seq=seq, state=facts.state, reason=facts.reason, nodes=facts.nodes, partition=facts.partition,
        dependency=facts.dependency, end_wall=facts.end_wall, ended=facts.ended,
    )  # fmt: skip


def _last_words(paths: RunPaths, job: str, began: bool) -> str:
    """What Slurm itself wrote into the job's output: it outlives Slurm's memory of the job.

    Where the batch script never took its place in the run, what it said last: a module that is missing, say.
    """
    disk, log = Disk(), paths.job_log(job)
    try:
        size = disk.lstat(log).st_size
        tail = disk.read(log, max(0, size - TAIL_BYTES)).decode("utf-8", "replace")
    except OSError:
        return ""
    found = _SLURMS_OWN.findall(tail)
    if not found and not began:
        found = [line for line in tail.splitlines() if line.strip()]
    return str(found[-1]).strip()[:NOTE_CHARS] if found else ""


def _stopped(paths: RunPaths, seq: int | None) -> tuple[str, Failure]:
    """Why the newest batch script ended before it could claim its place, and the cause; "" where it did not."""
    disk = Disk()
    try:
        newest = JobClaims(paths, disk).highest() + 1 if seq is None else seq
        note = disk.read(paths.setup_failed(newest), limit=NOTE_CHARS)
    except OSError:
        return "", Failure.SCRIPT
    return read_stopped(note.decode("utf-8", "replace"))
