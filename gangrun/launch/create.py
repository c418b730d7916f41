"""Making a run: what ``run`` and ``submit`` do alike before anything starts; see ``start``, ``submit``."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import click
import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Index, IndexEntry, remove_run
from gangrun.adapters.fs.run_dir import (
    RunDirError,
    RunPaths,
    create_run,
    no_room,
    write_notify_addresses,
    write_spec,
)
from gangrun.adapters.net.curve import write_client_key
from gangrun.config import environment
from gangrun.config.secrets import redacted
from gangrun.errors import UserError
from gangrun.launch.sidecars import refuse_unusable_addresses
from gangrun.wire.spec import RunSpec


def make_run(
    disk: Disk, runs_dir: Path, draft: RunSpec, wall: float, addresses: tuple[str, ...]
) -> tuple[RunPaths, RunSpec]:
    """The run directory with all that stands in it from the start, or none. ``addresses``: where the run is told."""
    refuse_unusable_addresses(addresses)
    try:
        paths = create_run(disk, runs_dir, wall, os.urandom)
        try:
            spec = msgspec.structs.replace(draft, run=paths.run)
            write_spec(disk, paths, spec)
            write_client_key(paths.client_key)
            if addresses:
                write_notify_addresses(disk, paths, addresses)
        except OSError as error:
            shutil.rmtree(paths.root, ignore_errors=True)  # half a run would be shown as one
            raise no_room(runs_dir, error) from error
        except UnicodeEncodeError as error:
            shutil.rmtree(paths.root, ignore_errors=True)
            words = os.fsencode(redacted((error.object,))[0]).decode("utf-8", "backslashreplace")
            message = f"{words!r} is not valid UTF-8, so it cannot be stored with the run"
            raise UserError("usage", message, "rename it, or let the script build the name") from error
    except RunDirError as error:
        raise UserError("run directory", error.message, error.hint) from error
    return paths, spec


def put_in_index(paths: RunPaths, spec: RunSpec, job: str, pids: tuple[int, ...] = ()) -> None:
    """Let ``status`` find the run by its id, name and jobs; the run does not depend on it."""
    index = Index(environment.state_home() / "runs")
    try:
        jobs = next((known.jobs for known in index.entries() if known.run == paths.run), ())
        jobs = (*jobs, job) if job else jobs
        index.put(
            IndexEntry(
                paths.run, spec.name, str(paths.root), spec.created_wall, jobs, pids, directory=spec.working_directory
            )
        )
    except OSError as error:
        click.echo(f"gangrun: the index of runs cannot be written ({error}); use --runs-dir to find this run", err=True)


def unmade(disk: Disk, paths: RunPaths) -> None:
    """Take a run away in which nothing was started."""
    with contextlib.suppress(OSError, RunDirError):
        remove_run(disk, paths.root)
        Index(environment.state_home() / "runs").remove(paths.run)
