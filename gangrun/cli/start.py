"""Making a run and owning it to its end (room: cli): what ``gangrun run`` does once its words are understood."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gangrun import __version__, processes
from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Index, IndexEntry
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, Taken
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, create_run, no_room, write_environment, write_spec
from gangrun.adapters.local import box
from gangrun.adapters.net.curve import write_client_key
from gangrun.cli import environment
from gangrun.cli.config import Value, layered, unknown_variables
from gangrun.cli.errors import SLURM, UserError
from gangrun.cli.live_view import LiveView
from gangrun.cli.local_world import launcher, live_of
from gangrun.cli.run_spec import command_of, environment_of, is_secret, ranks_of, spec_of
from gangrun.wire.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Request:
    """What the user typed."""

    words: tuple[str, ...]
    module: str
    no_python: bool
    env_pairs: tuple[str, ...]
    env_files: tuple[Path, ...]
    config_file: Path | None
    as_json: bool
    quiet: bool
    flags: Mapping[str, Any]
    user: str
    terminal: bool


def start(request: Request) -> int:
    """Make the run directory, start the hosts, stay until the end; the exit code."""
    variables = environment.all_variables()
    settings = settings_of(request.flags, request.config_file, variables)
    for told in unknown_variables(variables):
        click.echo(f"gangrun: {told}", err=True)
    if environment.in_allocation(variables) and not settings["local_hosts"].value and settings["nodes"].value > 1:
        raise UserError(
            "slurm", "using the nodes of an allocation is not there yet", "gangrun run uses this node only", SLURM
        )
    argv, python = command_of(request.words, request.module, request.no_python, environment.python_of(variables))
    added = environment_of(request.env_pairs, request.env_files, variables)
    secret_names = tuple(sorted(name for name, value in added.items() if is_secret(name, value)))
    ranks = ranks_of(settings["nproc_per_node"].value, box.gpus_count(variables), box.cpus_count())
    nodes = nodes_of(settings)
    disk, clock = Disk(), SystemClock()
    runs_dir = Path(settings["runs_dir"].value).expanduser().absolute()
    name = settings["name"].value or name_of(argv, request.module, python)
    draft = spec_of(
        settings, run="-", nodes=nodes, ranks=ranks, name=name, command=argv, python=python,
        working_directory=os.getcwd(), environment={k: v for k, v in added.items() if k not in secret_names},
        secret_names=secret_names, created_wall=clock.wall(),
        created_by=request.user, gangrun_version=__version__,
    )  # fmt: skip
    paths, spec = _made(disk, runs_dir, draft, clock.wall())
    return own(spec, paths, {**variables, **added}, as_json=request.as_json, quiet=request.quiet)


def _made(disk: Disk, runs_dir: Path, draft: RunSpec, wall: float) -> tuple[RunPaths, RunSpec]:
    """The run directory with all that stands in it from the start, or none."""
    try:
        paths = create_run(disk, runs_dir, wall, os.urandom)
        try:
            spec = _named(draft, paths.run)
            write_spec(disk, paths, spec)
            write_environment(disk, paths, spec.environment)
            write_client_key(paths.client_key)
        except OSError as error:
            shutil.rmtree(paths.root, ignore_errors=True)  # half a run would be shown as one
            raise no_room(runs_dir, error) from error
        except UnicodeEncodeError as error:
            shutil.rmtree(paths.root, ignore_errors=True)
            words = os.fsencode(error.object).decode("utf-8", "backslashreplace")
            message = f"{words!r} is not valid UTF-8, so it cannot be kept with the run"
            raise UserError("usage", message, "rename it, or let the script put it together") from error
    except RunDirError as error:
        raise UserError("run directory", error.message, error.hint) from error
    return paths, spec


def own(
    spec: RunSpec, paths: RunPaths, variables: Mapping[str, str], *, as_json: bool = False, quiet: bool = False
) -> int:
    """Hold the next job of this run on this box until it ends."""
    disk, clock = Disk(), SystemClock()
    host, me = box.short_name(), processes.read_proc(os.getpid())
    assert me is not None

    def wish(seq: int) -> JobClaim:
        return JobClaim(seq, f"local-{host}-{me.pid}-{me.start_ticks}", 0, host, me.pid, me.start_ticks)

    claimed = JobClaims(paths, disk).claim_next(wish, _owner_gone)
    if isinstance(claimed, Taken):
        raise UserError("busy", f"this run is already being run: {claimed.why}", "gangrun status shows it")
    index = Index(environment.state_home() / "runs", disk=disk)
    try:
        jobs = next((known.jobs for known in index.entries() if known.run == paths.run), ())
        jobs = (*jobs, claimed.claim.job)
        index.put(IndexEntry(paths.run, spec.name, str(paths.root), spec.created_wall, jobs, (me.pid,)))
    except OSError as error:
        click.echo(f"gangrun: the index of runs cannot be written ({error}); use --runs-dir to find this run", err=True)
    terminal = sys.stderr.isatty() and variables.get("TERM", "") != "dumb"
    view = LiveView(
        log_of=paths.node_log,
        live_of=lambda term: live_of(paths, disk, term),
        wall=clock.wall,
        out=sys.stderr if as_json else sys.stdout,
        terminal=terminal,
        quiet_ranks=quiet,
    )
    view.say(f"run {paths.run} ({spec.name}) in {paths.root}")
    code = launcher(spec, paths, variables, view, job=claimed.claim.job, seq=claimed.claim.seq).run()
    if as_json:
        from gangrun.cli.status_json import final_status

        click.echo(final_status(paths))
    return code


def settings_of(flags: Mapping[str, Any], config_file: Path | None, variables: Mapping[str, str]) -> dict[str, Value]:
    """All settings, with ``--config`` before the usual files."""
    files = [Path("gangrun.toml"), environment.config_home() / "config.toml"]
    if config_file is not None:
        if not config_file.is_file():
            raise UserError("config", f"no such file: {config_file}")
        files.insert(0, config_file)
    return layered(flags, variables, tuple(files))


def nodes_of(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Names of the local hosts."""
    host, count = box.short_name(), settings["nodes"].value
    if count == 1 and not settings["local_hosts"].value:
        return (host,)
    if not settings["local_hosts"].value:
        raise UserError(
            "usage", f"--nodes {count} on one box", "--local-hosts plays several nodes here; Slurm is not there yet"
        )
    return tuple(f"{host}-{k}" for k in range(count))


def name_of(argv: tuple[str, ...], module: str, python: bool) -> str:
    """A run's name when none was given: the script's or the command's."""
    if module:
        return module.rsplit(".", 1)[-1]
    word = argv[1] if python and len(argv) > 1 else argv[0]
    return re.sub(r"\.py$", "", Path(word).name) or "run"


def _named(draft: RunSpec, run: str) -> RunSpec:
    import msgspec

    return msgspec.structs.replace(draft, run=run)


def _owner_gone(claim: JobClaim) -> bool:
    if claim.host != box.short_name():
        return False
    proc = processes.read_proc(claim.pid)
    return proc is None or proc.start_ticks != claim.start_ticks or proc.state == "Z"
