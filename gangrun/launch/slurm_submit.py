"""From a request to Slurm's answer: what ``gangrun submit`` does once its words are resolved.

Either there is a run with a job, or nothing; only where nobody can tell whether Slurm took the job does a run stay
behind without one, and then that is said.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click
import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import (
    SUFFIX_BYTES,
    RunDirError,
    RunPaths,
    make_run_id,
    mark_cancelled,
    no_room,
    read_spec,
    write_submission,
)
from gangrun.adapters.slurm.commands import NOT_FOUND
from gangrun.adapters.slurm.submission import NoSbatch, SbatchRefused, Unfit, Unknown
from gangrun.checkpoint.scan import StorageUnreadable, list_steps, naming_of, strangers
from gangrun.config.request import Request, ResolvedRequest, ranks_of
from gangrun.config.slurm_options import gpus_count, spares_count
from gangrun.core.text import step_words
from gangrun.display.account_page import submitted_words
from gangrun.display.text import clean, echo_json
from gangrun.display.times import ago_words
from gangrun.errors import SCHEDULER, UNKNOWN, UserError
from gangrun.frameworks import layouts
from gangrun.launch.create import make_run, put_in_index
from gangrun.launch.exclusive import words_of_company
from gangrun.launch.executor import BatchExecutor
from gangrun.launch.node_history import heeded
from gangrun.launch.sidecars import refuse_unusable_addresses
from gangrun.launch.slurm_ask import LOOK_FOR_S, Standing, standing, tools_of, whatever_came
from gangrun.runs.jobs import scheduler_of
from gangrun.runs.locate import entries_of
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import wall_now
from gangrun.wire.spec import RunSpec, SpecError
from gangrun.wire.submission import Requeue, Submission, encode

RUNS_MAX_COUNT = 100  # newest runs that are asked whether they save to the same directory
NAME_MAX_COUNT = 40  # of a job's name; the run's id follows
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - named to warn of them
# Slurm takes such jobs, unless the site enforces its limits at submission, and never starts them.
NEVER = frozenset(
    {"PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
     "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "PartitionConfig"}
)  # fmt: skip
HINTS = (
    ("partition", "sinfo -s lists the partitions"),
    ("account", "sacctmgr show associations user=$USER lists your accounts"),
    ("qos", "sacctmgr show associations user=$USER format=account,qos lists what you may use"),
    ("node configuration", "no node offers so much: sinfo -N -o '%N %c %m %G %f' lists what there is"),
    ("configuration source", "is this host a part of the cluster? SLURM_CONF may name its configuration"),
    ("controller", "Slurm's controller does not answer; try again"),
)


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What ``submit --dry-run --json`` prints."""

    schema: int = SCHEMA
    dry_run: bool = True
    script: str


class NewestCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest committed checkpoint, as its directory shows it; ``run`` is the run that most likely wrote it."""

    step: int
    path: str
    run: str | None
    user: str


class SubmittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What ``submit --json`` prints: the run, its first job in Slurm's words, and what it would resume from."""

    schema: int = SCHEMA
    run: str
    name: str
    directory: str
    job: str
    job_state: str
    job_reason: str
    resume_from: NewestCheckpoint | None


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A run that is not made yet."""

    resolved: ResolvedRequest
    draft: RunSpec
    submission: Submission  # but for the job's name, which holds the run's id


def dry(found: ResolvedRequest) -> int:
    """Print what would be sent."""
    wish = _wish(found, wall_now())
    refuse_unusable_addresses(found.value("notify"))
    paths = RunPaths(found.runs_dir / make_run_id(wish.draft.created_wall, os.urandom(SUFFIX_BYTES)))
    try:
        text = _jobs(wish, paths).script(0)
    except Unfit as error:
        raise UserError("usage", str(error)) from error
    if found.request.as_json:
        echo_json(DryRun(script=text))
    else:
        click.echo(text, nl=False)
    return 0


def submit(found: ResolvedRequest, *, say: bool = True) -> RunPaths:
    """Make the run, ask Slurm for its first job, tell what became of it."""
    disk, wall = Disk(), wall_now()
    wish = _wish(found, wall)
    runs_dir = found.runs_dir
    made = [folder for folder in (runs_dir, *runs_dir.parents) if not folder.exists()]
    paths, spec = make_run(disk, runs_dir, wish.draft, wall, found.value("notify"))
    try:
        jobs = _jobs(wish, paths)
        write_submission(disk, paths, jobs.submission)
        job = sent(jobs, spec)
    except (UserError, OSError) as error:
        if isinstance(error, UserError) and error.code == UNKNOWN:
            raise
        _unmake(paths, made)
        if isinstance(error, OSError):
            failed = no_room(runs_dir, error)
            raise UserError("run directory", failed.message, failed.hint) from error
        raise
    except KeyboardInterrupt:
        if not paths.cancelled.exists():  # sbatch was not called yet
            _unmake(paths, made)
        raise
    put_in_index(paths, spec, job)
    if say:
        _tell(found.request, spec, paths, job, standing(jobs.tools, job))
    return paths


def _wish(found: ResolvedRequest, wall: float) -> PendingRun:
    nodes = found.value("nodes")
    spares = spares_count(found.value("spares"), nodes)
    gpus = gpus_count(found.value("gpus_per_node"), found.value("gres"))
    ranks = ranks_of(found.value("nproc_per_node"), gpus, int(found.value("cpus_per_task") or 0), here=False)
    draft = found.draft(
        wall, world="slurm", nodes=(), nodes_count=nodes, spares_count=spares, slots_per_node=1,
        ranks_per_slot=ranks, can_requeue=found.value("requeue") is not Requeue.NONE, shell=bool(found.line),
    )  # fmt: skip
    asked = found.fields("submission")
    if draft.health.enabled:
        asked["exclude"] = heeded(asked["exclude"], asked["nodelist"])
    submission = Submission(
        job_name="-",
        nodes_count=nodes + spares,
        python=sys.executable,
        working_directory=draft.working_directory,
        needs_python=draft.command[0] == "python",
        script=found.request.body,
        line=found.line,
        tells_people=bool(draft.notify.services),
        refills=draft.policy.refill_wait_s is not None,
        **asked,
    )
    try:
        encode(submission)
    except UnicodeEncodeError as error:
        words = os.fsencode(error.object).decode("utf-8", "backslashreplace")
        raise UserError("usage", f"{words!r} is not valid UTF-8, so it cannot be stored with the run") from error
    if found.request.body:
        _refuse_unfinished(found)
    _warn_of_places(found, draft)
    _warn_of_cpus(draft, submission)
    tell_of_company(draft)
    return PendingRun(found, draft, submission)


def _refuse_unfinished(found: ResolvedRequest) -> None:
    """The shell text before the ``gangrun run`` line must be complete: the line cannot stand in an ``if``."""
    looked = tools_of(found.everything).run(("bash", "-n", "-c", found.request.body), LOOK_FOR_S)
    if looked.code > 0 and looked.code != NOT_FOUND:
        said = looked.err.strip().splitlines()[-1:] or ["no word"]
        words = f"the batch script is not complete up to its gangrun run line: {said[0]}"
        raise UserError("usage", words, "keep that line outside of if, loops, functions and quotes")


def tell_of_company(spec: RunSpec) -> None:
    """A dependency on a job of the other run would not do: that run may go on in another job."""
    words, other = words_of_company(spec, lambda: entries_of(None))
    if words:
        hint = f"the jobs of this run wait until run {other} has ended (gangrun wait {other} waits for that)"
        click.echo(clean(f"gangrun: {words}; {hint}"), err=True)


def _warn_of_places(found: ResolvedRequest, draft: RunSpec) -> None:
    places = {"the runs directory": str(found.runs_dir), "the checkpoint directory": draft.checkpoint.directory}
    for what, place in places.items():
        if any(place == local or place.startswith(local + "/") for local in OF_ONE_NODE):
            words = (
                f"{what} {clean(place)} must be visible on all nodes, but such a directory is usually local to one node"
            )
            click.echo(f"gangrun: {words}", err=True)


def _warn_of_cpus(draft: RunSpec, submission: Submission) -> None:
    """Slurm gives a task one CPU unless it is told otherwise, and all ranks of a node are in one task."""
    passed = {key for key, _ in submission.sbatch}
    asked = submission.cpus_per_task or submission.exclusive or passed & {"cpus-per-gpu", "mincpus", "exclusive"}
    if draft.ranks_per_slot > 1 and not asked:
        words = f"without -c, all {draft.ranks_per_slot} ranks of a node share one CPU, unless your site gives more"
        click.echo(f"gangrun: {words}", err=True)


def job_name(name: str, run: str) -> str:
    """Of all jobs of one run and of no other; without what squeue or a shell would take for a sign of its own."""
    plain = re.sub(r"[^A-Za-z0-9_+-]+", "_", name).strip("_-")[:NAME_MAX_COUNT]
    return f"{plain or 'run'}.{run}"


def _jobs(wish: PendingRun, paths: RunPaths) -> BatchExecutor:
    submission = msgspec.structs.replace(wish.submission, job_name=job_name(wish.draft.name, paths.run))
    return BatchExecutor(paths, submission, tools_of(wish.resolved.everything), _repeat)


def _repeat(words: str) -> None:
    """A site's greeting, a warning: Slurm took the job all the same."""
    click.echo(f"gangrun: sbatch says: {clean(words)}", err=True)


def sent(jobs: BatchExecutor, spec: RunSpec, seq: int = 0, exclude: Sequence[str] = ()) -> str:
    """The job id, or what went wrong in words; code UNKNOWN where a job may exist all the same."""
    try:
        return jobs.submit_job(seq, exclude)
    except Unfit as error:
        raise UserError("usage", str(error)) from error
    except NoSbatch as error:
        hint = "submit from a login node of the cluster; gangrun run trains on this machine"
        raise UserError("slurm", f"Slurm cannot be asked: {error}", hint, SCHEDULER) from error
    except SbatchRefused as error:
        hint = next((hint for sign, hint in HINTS if sign in str(error).lower()), "--dry-run shows what was asked")
        raise UserError("slurm", f"Slurm refused the job: {error}", hint, SCHEDULER) from error
    except Unknown as error:
        job = whatever_came(
            scheduler_of(jobs.tools), jobs.submission.job_name, jobs.paths.run, seq, within_s=LOOK_FOR_S
        )
        if job:
            return job
        put_in_index(jobs.paths, spec, "")
        words = f"cannot tell whether Slurm accepted the job of run {spec.run}: {error}"
        name = jobs.submission.job_name
        hint = f"squeue --me --name {name} shows it if it did; gangrun cancel {spec.run} ends it either way"
        raise UserError("slurm", words, hint, UNKNOWN) from error
    except KeyboardInterrupt:
        mark_cancelled(Disk(), jobs.paths, "Ctrl-C while it was submitted", wall_now())  # whatever came starts nothing
        put_in_index(jobs.paths, spec, "")
        raise


def _unmake(paths: RunPaths, made: list[Path]) -> None:
    """As if nobody had asked."""
    shutil.rmtree(paths.root, ignore_errors=True)
    for folder in made:
        try:
            folder.rmdir()
        except OSError:
            return  # somebody else has put something there


def _tell(request: Request, spec: RunSpec, paths: RunPaths, job: str, now: Standing) -> None:
    point: NewestCheckpoint | None = None
    try:
        point, words = resume_point(spec, entries_of(None), wall_now())
    except StorageUnreadable as error:
        words = clean(error)
    if request.as_json:
        echo_json(
            SubmittedRun(
                run=spec.run, name=spec.name, directory=str(paths.root), job=job, job_state=now.state,
                job_reason=now.reason, resume_from=point,
            )
        )  # fmt: skip
        return
    count = spec.nodes_count + spec.spares_count
    spares = f", {spec.spares_count} of them spare" if spec.spares_count else ""
    click.echo(f"run {spec.run} ({clean(spec.name)}) in {clean(paths.root)}")
    click.echo(f"  job     {job} on {count} node{'s' * (count != 1)}{spares}: {clean(now.words)}")
    click.echo(f"  plan    {submitted_words(spec.nodes_count, spec.spares_count)}")
    click.echo(f"  resume  {words}")
    if now.reason in NEVER:
        click.echo("  note    Slurm cannot start this job with these options; gangrun cancel removes it")
    if now.reason == "JobLaunchFailure":
        click.echo("  note    a node could not open a file in the run directory: is it shared by all nodes?")
    click.echo(f"  next    gangrun status {spec.run}")


def resume_point(spec: RunSpec, known: Iterable[IndexEntry], now: float) -> tuple[NewestCheckpoint | None, str]:
    """The checkpoint that ``auto`` would begin from, if there is one; what the first attempt begins from, for people.

    ``StorageUnreadable`` where nobody can tell.
    """
    if spec.resume != "auto":
        asked = f"{spec.resume}, as --resume asks" if spec.resume != "none" else "nothing, as --resume none asks"
        return None, clean(asked)
    directory = spec.checkpoint.directory
    if not directory:
        return None, "nothing: no --checkpoint-dir is given"
    naming = naming_of(spec.checkpoint)
    found = list_steps(directory, naming)
    newest = next((one for one in found if one.committed and not one.unreadable), None)
    if newest is None:
        if unjudged := layouts.told(strangers(directory, naming)):
            return None, clean(f"what the script itself loads from {directory}: {unjudged}")
        return None, clean(f"nothing: no checkpoint in {directory} yet")
    try:
        facts = os.stat(newest.path)
    except OSError as error:
        raise StorageUnreadable(f"{newest.path} cannot be looked at: {error.strerror}") from error
    run, name = _author(spec, islice(known, RUNS_MAX_COUNT), facts.st_mtime)
    user = _user(facts.st_uid)
    whose = f"run {run} ({name})" if run else f"user {user}"
    words = f"{step_words(newest.step)}, saved {ago_words(facts.st_mtime, now)} by {whose}: {newest.path}"
    return NewestCheckpoint(step=newest.step, path=newest.path, run=run or None, user=user), clean(words)


def _author(spec: RunSpec, known: Iterable[IndexEntry], changed: float) -> tuple[str, str]:
    """The newest run that saves there and existed by then; its id and name."""
    disk = Disk()
    for entry in known:
        if entry.run == spec.run or entry.created_wall > changed:
            continue
        try:
            other = read_spec(disk, RunPaths(Path(entry.path)))
        except (OSError, RunDirError, SpecError):
            continue
        if other.checkpoint.directory == spec.checkpoint.directory:
            return other.run, other.name
    return "", ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
