"""Making a run: what ``run`` and ``submit`` do alike before anything starts; see ``start``, ``submit``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from gangrun import __version__
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Index, IndexEntry, remove_run
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, create_run, no_room, write_spec
from gangrun.adapters.net.curve import write_client_key
from gangrun.config import environment
from gangrun.config.layers import Value, layered, unknown_variables, usual_files
from gangrun.config.request import Request
from gangrun.config.run_spec import command_of, environment_of, spec_of
from gangrun.config.secrets import is_secret, redacted, secret_names
from gangrun.display.text import clean
from gangrun.errors import UserError
from gangrun.wire.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Understood:
    """A request with its settings found, its command resolved and its environment read."""

    request: Request
    settings: Mapping[str, Value]
    variables: Mapping[str, str]  # the user's environment
    argv: tuple[str, ...]
    python: bool
    added: Mapping[str, str]  # --env and --env-file

    @property
    def runs_dir(self) -> Path:
        """Where the run directory will lie."""
        return Path(self.settings["runs_dir"].value).expanduser().absolute()

    @property
    def everything(self) -> dict[str, str]:
        """The environment for ranks."""
        return {**self.variables, **self.added}

    def value(self, name: str) -> Any:
        """A setting's value."""
        return self.settings[name].value

    def draft(self, wall: float, **shape: Any) -> RunSpec:
        """The spec but for the run's id, which its directory will give."""
        secret = tuple(sorted(name for name, value in self.added.items() if is_secret(name, value)))
        return spec_of(
            self.settings,
            run="-",
            name=self.value("name") or name_of(self.argv, self.request.module, self.python),
            command=self.argv,
            python=self.python,
            working_directory=os.getcwd(),
            environment={name: value for name, value in self.added.items() if name not in secret},
            secret_names=secret,
            created_wall=wall,
            created_by=self.request.user,
            gangrun_version=__version__,
            **shape,
        )


def understood(request: Request, variables: Mapping[str, str]) -> Understood:
    """Find every setting, the command and the environment; a mistake in them is a ``UserError``.

    Setup lines may bring the command, or another python, only where the job runs: then neither is looked for here.
    """
    settings = layered(request.flags, variables, usual_files(request.config_file))
    for told in unknown_variables(variables):
        click.echo(f"gangrun: {told}", err=True)
    there = bool(request.submits and settings["setup"].value)
    python_here = "python" if there else environment.python_of(variables)
    argv, python = command_of(request.words, request.module, request.no_python, python_here, look=not there)
    added = environment_of(request.env_pairs, request.env_files, variables)
    _warn_of_secrets(request.words)
    return Understood(request, settings, variables, argv, python, added)


def _warn_of_secrets(words: tuple[str, ...]) -> None:
    if names := secret_names(words):
        told = f"what {clean(', '.join(names))} holds looks like a secret"
        kept = "arguments are kept with the run (0600), and every user of a node can read them in its process table"
        click.echo(f"gangrun: {told}: {kept};", err=True)
        click.echo("  --env NAME hands a variable of yours to the ranks, and a secret one is written nowhere", err=True)


def make_run(disk: Disk, runs_dir: Path, draft: RunSpec, wall: float) -> tuple[RunPaths, RunSpec]:
    """The run directory with all that stands in it from the start, or none."""
    try:
        paths = create_run(disk, runs_dir, wall, os.urandom)
        try:
            spec = msgspec.structs.replace(draft, run=paths.run)
            write_spec(disk, paths, spec)
            write_client_key(paths.client_key)
        except OSError as error:
            shutil.rmtree(paths.root, ignore_errors=True)  # half a run would be shown as one
            raise no_room(runs_dir, error) from error
        except UnicodeEncodeError as error:
            shutil.rmtree(paths.root, ignore_errors=True)
            words = os.fsencode(redacted((error.object,))[0]).decode("utf-8", "backslashreplace")
            message = f"{words!r} is not valid UTF-8, so it cannot be kept with the run"
            raise UserError("usage", message, "rename it, or let the script put it together") from error
    except RunDirError as error:
        raise UserError("run directory", error.message, error.hint) from error
    return paths, spec


def put_in_index(paths: RunPaths, spec: RunSpec, job: str, pids: tuple[int, ...] = ()) -> None:
    """Let ``status`` find the run by its id, name and jobs; the run does not depend on it."""
    index = Index(environment.state_home() / "runs")
    try:
        jobs = next((known.jobs for known in index.entries() if known.run == paths.run), ())
        jobs = (*jobs, job) if job else jobs
        index.put(IndexEntry(paths.run, spec.name, str(paths.root), spec.created_wall, jobs, pids))
    except OSError as error:
        click.echo(f"gangrun: the index of runs cannot be written ({error}); use --runs-dir to find this run", err=True)


def unmade(disk: Disk, paths: RunPaths) -> None:
    """Take a run away in which nothing was started."""
    with contextlib.suppress(OSError, RunDirError):
        remove_run(disk, paths.root)
        Index(environment.state_home() / "runs").remove(paths.run)


def name_of(argv: tuple[str, ...], module: str, python: bool) -> str:
    """A run's name when none was given: the script's or the command's."""
    if module:
        return module.rsplit(".", 1)[-1]
    word = argv[1] if python and len(argv) > 1 else argv[0]
    return re.sub(r"\.py$", "", Path(word).name) or "run"
