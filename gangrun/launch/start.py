"""Making a run and owning it to its end: what ``gangrun run`` does once its words are understood."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import click

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, Taken
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local import box
from gangrun.config.layers import Value
from gangrun.config.request import ResolvedRequest, ranks_of
from gangrun.display.live_view import LiveView
from gangrun.errors import UserError
from gangrun.launch.create import make_run, put_in_index, unmade
from gangrun.launch.exclusive import give_way, refuse_company
from gangrun.launch.local import launcher, live_of
from gangrun.node import processes
from gangrun.runs.locate import entries_of
from gangrun.wire.spec import RunSpec


def start(wish: ResolvedRequest) -> int:
    """Make the run directory, start the hosts, stay until the end; the exit code."""
    request = wish.request
    if not wish.value("local_hosts") and not request.here:
        from gangrun.launch import allocation as held

        if (allocation := held.held_by(wish.variables)) is not None:
            return held.run_in(allocation, wish)
        held.refuse_login_node(wish.variables)
    ranks = ranks_of(wish.value("nproc_per_node"), box.gpus_count(wish.variables), box.cpus_count())
    disk, wall = Disk(), SystemClock().wall()
    draft = wish.draft(wall, world="local", nodes=nodes_of(wish.settings), slots_per_node=ranks, ranks_per_slot=1)
    refuse_company(draft, lambda: entries_of(None))
    paths, spec = make_run(disk, wish.runs_dir, draft, wall)
    return own(spec, paths, wish.everything, as_json=request.as_json, quiet=request.quiet)


def own(
    spec: RunSpec,
    paths: RunPaths,
    variables: Mapping[str, str],
    *,
    as_json: bool = False,
    quiet: bool = False,
    over: JobClaim | None = None,
    ready: Callable[[int], None] | None = None,
) -> int:
    """Hold the next job of this run on this box until it ends. ``over``: the owner of the last one, wherever it was, if
    that has ended. ``ready(seq)``, of a run that is taken up again, is called before anything is started.
    """
    disk = Disk()
    host, me = box.short_name(), processes.read_proc(os.getpid())
    assert me is not None

    def wish(seq: int) -> JobClaim:
        return JobClaim(seq, f"local-{host}-{me.pid}-{me.start_ticks}", 0, host, me.pid, me.start_ticks)

    claimed = JobClaims(paths, disk).claim_next(wish, lambda claim: claim == over or _owner_gone(claim))
    if isinstance(claimed, Taken):
        raise UserError("busy", f"this run is already being run: {claimed.why}", "gangrun status shows it")
    put_in_index(paths, spec, claimed.claim.job, (me.pid,))
    try:
        give_way(spec, lambda: entries_of(None))
    except UserError:
        if ready is None:
            unmade(disk, paths)
        raise
    if ready is not None:
        ready(claimed.claim.seq)
    view = shown(paths, variables, as_json=as_json, quiet=quiet)
    view.say(f"run {paths.run} ({spec.name}) in {paths.root}")
    if over is not None and over.host != host:
        view.say(f"it was run on {over.host} before; nodes keep the names they had: {', '.join(spec.nodes)}")
    code = launcher(spec, paths, variables, view, job=claimed.claim.job, seq=claimed.claim.seq).run()
    if as_json:
        tell_json(paths)
    return code


def shown(paths: RunPaths, variables: Mapping[str, str], *, as_json: bool, quiet: bool) -> LiveView:
    """What the person in front of a run's owner sees."""
    disk = Disk()
    return LiveView(
        log_of=paths.node_log,
        live_of=lambda term: live_of(paths, disk, term),
        wall=SystemClock().wall,
        out=sys.stderr if as_json else sys.stdout,
        terminal=sys.stderr.isatty() and variables.get("TERM", "") != "dumb",
        quiet_ranks=quiet,
    )


def tell_json(paths: RunPaths) -> None:
    """The final status."""
    from gangrun.runs.status import final_status

    click.echo(final_status(paths))


def nodes_of(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Names of the local hosts."""
    host, count = box.short_name(), settings["nodes"].value
    if count == 1 and not settings["local_hosts"].value:
        return (host,)
    if not settings["local_hosts"].value:
        raise UserError(
            "usage",
            f"--nodes {count} on one box",
            "--local-hosts plays several nodes here; gangrun submit asks Slurm for some",
        )
    return tuple(f"{host}-{k}" for k in range(count))


def _owner_gone(claim: JobClaim) -> bool:
    if claim.host != box.short_name():
        return False
    proc = processes.read_proc(claim.pid)
    return proc is None or proc.start_ticks != claim.start_ticks or proc.state == "Z"
