"""Taking a run up again on Slurm: one more job of it is asked for, or one that Slurm holds is let go.

Nothing is started while a job of the run is there or nobody can tell: two would wait for each other's leases at best.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import click
import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaims
from gangrun.adapters.fs.run_dir import (
    ResumeOrder,
    RunDirError,
    clear_cancelled,
    mark_cancelled,
    read_cancelled,
    read_submission,
)
from gangrun.adapters.slurm.scheduler import SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.core.nodes.quarantine import if_booted
from gangrun.core.nodeset import fold
from gangrun.display.text import clean, echo_json
from gangrun.errors import DONE, SCHEDULER, UNKNOWN, UserError
from gangrun.launch.create import put_in_index
from gangrun.launch.executor import BatchExecutor
from gangrun.launch.slurm_ask import standing, tools_of
from gangrun.launch.slurm_submit import sent, tell_of_company
from gangrun.runs.job_queue import HELD_BY_OTHERS, Queue, RunJob, active_words, waiting_words
from gangrun.runs.jobs import scheduler_of
from gangrun.runs.snapshot import RunSnapshot, ask_scheduler
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import WallTimes, pause, steady_now, wall_now
from gangrun.wire.submission import SubmissionError

Leave = Callable[[ResumeOrder], None]
LETS_GO_WITHIN_S = 20.0  # a job whose run has ended, or that is ending, leaves by then
LOOK_EVERY_S = 0.5


class ResumedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What ``resume --json`` prints of a run on Slurm; ``released``: the job was held, and goes on now."""

    schema: int = SCHEMA
    run: str
    name: str
    directory: str
    job: str
    seq: int | None
    released: bool
    job_state: str
    job_reason: str


def excluded_now(
    reading: RunSnapshot, now: float, scheduler: SlurmScheduler
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that the next job must do without, and those that were left out until they had booted, and have."""
    if reading.state is None:
        return (), ()
    walls = WallTimes.of(reading.records)
    out = {node: why for node, why in reading.state.health.excluded.items() if walls.wall(why.until) > now}
    curable = dict(if_booted(out, reading.state.updated_at))
    booted = scheduler.booted_since(
        {node: walls.wall(reading.state.updated_at - ago_s) for node, ago_s in curable.items()}
    )
    return tuple(sorted(set(out) - set(booted))), booted


def resume_job(
    reading: RunSnapshot, order: ResumeOrder, variables: Mapping[str, str], leave: Leave, *, as_json: bool
) -> int:
    """``leave(order)`` writes down what its job is asked for."""
    queue = _free(reading)
    jobs = _batch_jobs(reading, variables)
    if reading.state is None and order.request == "auto":  # it has not begun: what it was submitted with holds
        order = msgspec.structs.replace(order, request=reading.spec.resume)
    tell_of_company(reading.spec)
    held = next((job for job in queue.waiting if job.held), None)
    if held is not None:
        return _release(reading, jobs, held, order, leave, as_json=as_json)
    seq = _next_place(reading, queue)
    exclude, booted = excluded_now(reading, wall_now(), scheduler_of(jobs.tools))
    disk, paths = Disk(), reading.paths
    mark = read_cancelled(disk, paths)
    leave(msgspec.structs.replace(order, seq=seq))
    clear_cancelled(disk, paths)
    try:
        job = sent(jobs, reading.spec, seq, exclude)
    except UserError as error:
        if error.code != UNKNOWN:  # nothing was made: as if nobody had asked
            disk.discard((paths.resume_order(seq),))
            if mark is not None:
                mark_cancelled(disk, paths, mark.by, mark.wall)
        raise
    put_in_index(paths, reading.spec, job)
    without = f" without {fold(exclude)}" if exclude else ""
    without += f"; {fold(booted)} has rebooted; if it is in that job, it is tested first" if booted else ""
    return _tell(reading, jobs, RunJob(job=job, seq=seq), f"asked Slurm for job {job}{without}", as_json=as_json)


def _free(reading: RunSnapshot) -> Queue:
    """The run's jobs, none of which may be in the way."""
    run, give_up_at = clean(reading.spec.run), steady_now() + LETS_GO_WITHIN_S
    while True:
        queue = ask_scheduler(reading)
        if queue.silent:
            words = f"cannot tell whether {run} has a job: {clean(queue.silent)}"
            raise UserError("slurm", words, "nothing was started; try again when Slurm answers", SCHEDULER)
        waiting = [job for job in queue.waiting if not job.held]
        if not waiting and not queue.active:
            return queue
        late = steady_now() > give_up_at
        if late and not waiting and not queue.busy:
            return queue  # Slurm waits for a node that does not answer; the next job does as one that follows a loss
        if waiting or late or (queue.busy and not reading.ended):
            words = waiting_words(waiting[-1]) if waiting else active_words(queue.active[-1])
            raise UserError("busy", f"{run} has a job already: {clean(words)}", f"gangrun cancel {run} ends it first")
        pause(LOOK_EVERY_S)


def _batch_jobs(reading: RunSnapshot, variables: Mapping[str, str]) -> BatchExecutor:
    try:
        submission = read_submission(Disk(), reading.paths)
    except RunDirError as error:
        words = f"{clean(reading.spec.run)} was not submitted: it ran in an allocation of its user"
        raise UserError("slurm", words, "gangrun submit starts a new run with jobs of its own") from error
    except SubmissionError as error:
        raise UserError("slurm", f"{clean(reading.spec.run)}: {clean(str(error))}", "", UNKNOWN) from error
    return BatchExecutor(reading.paths, submission, tools_of(variables))


def _next_place(reading: RunSnapshot, queue: Queue) -> int:
    """After every job that was ever asked for, as far as anybody remembers."""
    known = [JobClaims(reading.paths, Disk()).highest(), *(job.seq for job in queue.jobs if job.seq is not None)]
    if reading.state is not None:
        known.append(reading.state.seq)
    return max(known) + 1


def _release(
    reading: RunSnapshot, jobs: BatchExecutor, held: RunJob, order: ResumeOrder,
    leave: Leave, *, as_json: bool,
) -> int:  # fmt: skip
    run, scheduler = clean(reading.spec.run), scheduler_of(jobs.tools)
    if held.held in HELD_BY_OTHERS:
        words = f"job {held.job} of {run} is held by an admin: only an admin can release it"
        raise UserError(
            "slurm", words, f"gangrun cancel {run}, then gangrun resume {run}, asks for another job", SCHEDULER
        )
    asks = reading.ended or order.request != "auto" or order.restarts_max_count is not None
    if asks and held.seq is not None:
        leave(msgspec.structs.replace(order, seq=held.seq))
    clear_cancelled(Disk(), reading.paths)
    try:
        scheduler.release(held.job)
    except SchedulerRefused as error:
        hint = f"gangrun cancel {run}, then gangrun resume {run}, asks for another job"
        raise UserError(
            "slurm", f"Slurm does not release job {held.job}: {clean(str(error))}", hint, SCHEDULER
        ) from error
    except SchedulerSilent as error:
        words = f"cannot tell whether job {held.job} was released: {clean(str(error))}"
        raise UserError("slurm", words, f"gangrun status {run} shows how it waits", UNKNOWN) from error
    with contextlib.suppress(SchedulerRefused, SchedulerSilent):  # then it waits two minutes more
        scheduler.start_now(held.job)
    return _tell(reading, jobs, held, f"job {held.job} is released; it was held ({held.held})", as_json=as_json)


def _tell(reading: RunSnapshot, jobs: BatchExecutor, job: RunJob, words: str, *, as_json: bool) -> int:
    spec, now = reading.spec, standing(jobs.tools, job.job)
    if as_json:
        echo_json(
            ResumedRun(
                run=spec.run, name=spec.name, directory=str(reading.paths.root), job=job.job, seq=job.seq,
                released=bool(job.held), job_state=now.state, job_reason=now.reason,
            )
        )  # fmt: skip
        return DONE
    click.echo(f"run {spec.run} ({clean(spec.name)}): {clean(words)}")
    click.echo(f"  job     {job.job}: {clean(now.words)}")
    click.echo(f"  next    gangrun status {spec.run}")
    return DONE
