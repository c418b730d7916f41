"""``gangrun run`` in an allocation that the user holds: salloc, or an sbatch script of his own.

All its nodes are used, from here: this process owns the run as it does on one box. The allocation stays the user's: it
is never ended, and only a batch job can be had again (``scontrol requeue``, which runs the user's script once more).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Index
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, Taken, insist
from gangrun.adapters.fs.run_dir import RunPaths, write_submission
from gangrun.adapters.local import box
from gangrun.config import environment
from gangrun.config.request import ResolvedRequest, ranks_of
from gangrun.core.model import Phase
from gangrun.core.nodeset import NodesetError, fold
from gangrun.entry.wiring import clock_of
from gangrun.errors import SCHEDULER, UserError
from gangrun.launch.create import make_run, put_in_index, unmade
from gangrun.launch.exclusive import refuse_lasting_company
from gangrun.launch.owner import shown, tell_json
from gangrun.launch.sidecars import Sidecars, refuse_unusable_port
from gangrun.launch.slurm_ask import excuse, tools_of
from gangrun.launch.slurm_batch_job import Allocation, allocation_of
from gangrun.launch.slurm_job_owner import JobOwner
from gangrun.node import processes
from gangrun.runs.locate import entries_of
from gangrun.runs.snapshot import read
from gangrun.wire.spec import RunSpec
from gangrun.wire.submission import Requeue, Submission

SPECIAL_STEPS = 0xFFFF_FFF0  # batch, interactive, extern: steps that are no srun of the user's
CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """The allocation around us."""

    allocation: Allocation
    is_batch: bool  # a script that Slurm can run again
    job_name: str


def held_by(variables: Mapping[str, str]) -> HeldAllocation | None:
    """None outside of any job; ``UserError`` in one of several tasks that would all do the same."""
    if not variables.get("SLURM_JOB_ID"):
        return None
    step = variables.get("SLURM_STEP_ID", "")
    tasks = variables.get("SLURM_STEP_NUM_TASKS") or variables.get("SLURM_NTASKS") or "1"
    if step.isdecimal() and int(step) < SPECIAL_STEPS and tasks.isdecimal() and int(tasks) > 1:
        words = f"this is one of {tasks} tasks of an srun: each of them would start a run"
        raise UserError("slurm", words, "call gangrun run once, from the batch script or the salloc shell", SCHEDULER)
    try:
        allocation = allocation_of(variables, processes.host_name())
    except (KeyError, NodesetError, ValueError) as error:
        raise UserError(
            "slurm", f"SLURM_JOB_ID is set, but gangrun cannot read the details of that job: {error}", "", SCHEDULER
        ) from error
    is_batch = "SLURM_PROCID" in variables and not step
    return HeldAllocation(allocation, is_batch, variables.get("SLURM_JOB_NAME", ""))


def refuse_login_node(variables: Mapping[str, str]) -> None:
    """Training by mistake where all users of a cluster log in makes no friends."""
    named = variables.get("SLURM_CONF")
    configured = any(Path(path).is_file() for path in ([named] if named else CONFIGURATIONS))
    if configured and shutil.which("sbatch"):
        words = "this host belongs to a Slurm cluster, and you are not in a job: it may be a login node"
        hint = "gangrun submit asks Slurm for nodes; inside salloc gangrun run uses its nodes; --here trains right here"
        raise UserError("slurm", words, hint, SCHEDULER)


def run_in(held: HeldAllocation, wish: ResolvedRequest) -> int:
    """Make the run, or take up the one that an earlier stay of this job began; stay until its end."""
    if shutil.which("srun") is None:
        raise UserError("slurm", "there is no srun here; gangrun needs it to reach the nodes of the job", "", SCHEDULER)
    if wish.request.debug_rank is not None:
        words = "--debug-rank gives a rank the terminal of this machine, and the ranks of a Slurm job have none"
        hint = "in a shell on the node, gangrun run --here --debug-rank trains on that node alone"
        raise UserError("usage", words, hint)
    disk, wall = Disk(), clock_of().wall()
    draft = _draft(held, wish, wall)
    before = _begun(held, draft)
    if before is None:
        refuse_unusable_port(draft.metrics)
        paths, spec = make_run(disk, wish.runs_dir, draft, wall, wish.value("notify"))
        write_submission(disk, paths, _submission(held, spec))
    else:
        paths, spec = before
    reading = insist(lambda: read(paths), _say)
    if reading.state is not None and reading.state.phase is Phase.SUCCEEDED:
        click.echo(f"gangrun: run {spec.run} succeeded before job {held.allocation.job} was requeued", err=True)
        return 0
    return _own(held, spec, paths, wish)


def _draft(held: HeldAllocation, wish: ResolvedRequest, wall: float) -> RunSpec:
    here = len(held.allocation.nodes)
    asked = wish.value("nodes") if wish.is_set("nodes") else here
    if asked > here:
        words = f"--nodes {asked}: the allocation has {here} ({fold(held.allocation.nodes)})"
        raise UserError("slurm", words, "ask salloc or sbatch for more", SCHEDULER)
    gpus = wish.variables.get("SLURM_GPUS_ON_NODE", "")
    gpus_count = int(gpus) if gpus.isdecimal() else box.gpus_count(wish.variables)
    ranks = ranks_of(wish.value("nproc_per_node"), gpus_count, box.cpus_count())
    return wish.draft(
        wall, world="slurm", nodes=(), nodes_count=asked, spares_count=here - asked, slots_per_node=1,
        ranks_per_slot=ranks, can_requeue=held.is_batch,
    )  # fmt: skip


def _submission(held: HeldAllocation, spec: RunSpec) -> Submission:
    return Submission(
        job_name=held.job_name,
        nodes_count=len(held.allocation.nodes),
        python=sys.executable,
        working_directory=spec.working_directory,
        requeue=Requeue.SAME_JOB if held.is_batch else Requeue.NONE,
    )


def _begun(held: HeldAllocation, draft: RunSpec) -> tuple[RunPaths, RunSpec] | None:
    """A requeued script runs from its top: what it began before is the same command in the same job."""
    if not held.allocation.restart:
        return None
    for entry in Index(environment.state_home() / "runs").entries():
        if held.allocation.job not in entry.jobs:
            continue
        paths = RunPaths(Path(entry.path))
        try:
            spec = insist(partial(read, paths), _say).spec  # a job that gave up here would leave its run to nobody
        except UserError:
            continue
        if (spec.command, spec.working_directory, spec.name) == (draft.command, draft.working_directory, draft.name):
            return paths, spec
    return None


def _place(claims: JobClaims, allocation: Allocation) -> tuple[int, JobClaim | None]:
    """The place to claim, and who holds the newest one. ``OSError``: not known."""
    seq = max(0, claims.highest())
    holder = claims.holder(seq)
    return seq + (holder is not None and (holder.job, holder.restart) >= (allocation.job, allocation.restart)), holder


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # the output of the job may lie on the disk that fails
        click.echo(f"gangrun: {sentence}", err=True)


def _own(held: HeldAllocation, spec: RunSpec, paths: RunPaths, wish: ResolvedRequest) -> int:
    disk, allocation, request = Disk(), held.allocation, wish.request
    me = processes.read_proc(os.getpid())
    assert me is not None
    claims = JobClaims(paths, disk)
    seq, holder = insist(lambda: _place(claims, allocation), _say)
    mine = JobClaim(seq, allocation.job, allocation.restart, allocation.host, me.pid, me.start_ticks)
    claimed = insist(lambda: claims.claim(mine), _say)
    if isinstance(claimed, Taken):
        raise UserError("busy", f"another process runs this run already: {claimed.why}", "gangrun status shows it")
    put_in_index(paths, spec, allocation.job)
    try:
        refuse_lasting_company(spec, lambda: entries_of(None))
    except UserError:
        if holder is None:
            unmade(disk, paths)
        raise
    view = shown(paths, wish.variables, as_json=request.as_json, quiet=request.quiet)
    view.say(f"run {paths.run} ({spec.name}) on {fold(allocation.nodes)}, in {paths.root}")
    owner = JobOwner(
        spec, paths, claimed.claim, allocation, wish.everything, (), disk, clock_of(), view, foreground=True,
        excuse=lambda: excuse(tools_of(wish.variables), allocation.job, allocation.restart),
    )  # fmt: skip
    sidecars = Sidecars.of(spec, paths, wish.everything, view.say)
    code = owner.run()
    view.let_go()
    if request.as_json:
        tell_json(paths)
    sidecars.notifier.over(code)
    sidecars.close()
    return code
