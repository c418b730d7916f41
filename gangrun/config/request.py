"""What a user types to train something: the options that ``run`` and ``submit`` share, and their words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from gangrun.config.settings import Setting
from gangrun.errors import UserError

IGNORED_TORCHRUN = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method", "role")
# options come before the command; torchrun spells them with underscores, and click hands names over without dashes
CONTEXT = {"allow_interspersed_args": False, "token_normalize_func": lambda name: name.replace("_", "-")}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Request:
    """What the user typed."""

    words: tuple[str, ...]
    module: str
    no_python: bool
    env_pairs: tuple[str, ...]
    env_files: tuple[Path, ...]
    config_file: Path | None
    flags: Mapping[str, Any]
    user: str
    as_json: bool = False
    quiet: bool = False
    submits: bool = False  # setup lines run before the command
    here: bool = False  # on this machine, whatever Slurm has to do with it


def setting_options(settings: Iterable[Setting]) -> Callable[[F], F]:
    """One flag for each setting."""

    def add(function: F) -> F:
        for row in reversed([row for row in settings if not row.in_files_only]):
            names = ["--" + row.name.replace("_", "-"), *row.flags, row.name]
            if row.flag:
                option = click.option(*names, is_flag=True, default=None, help=row.help)
            elif row.many:
                option = click.option(*names, multiple=True, metavar=row.metavar, help=row.help)
            else:
                option = click.option(*names, default=None, metavar=row.metavar, help=row.help)
            function = option(function)
        return function

    return add


def command_options(function: F) -> F:
    """The command to train with, its environment, and what torchrun has and nobody needs here."""
    path = click.Path(path_type=Path)
    decorators = [
        click.option("-m", "--module", is_flag=True, help="The first word is a module, as in python -m."),
        click.option("--no-python", is_flag=True, help="Run the command as it is, even if it is a script."),
        click.option("--env", "env_pairs", multiple=True, metavar="K=V|K", help="A variable for the ranks, or yours."),
        click.option("--env-file", "env_files", multiple=True, type=path, help="Lines of NAME=VALUE."),
        click.option("--config", "config_file", type=path, help="Read settings from here first."),
        click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND..."),
        *(click.option("--" + name.replace("_", "-"), name, default=None, hidden=True) for name in IGNORED_TORCHRUN),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def request_of(
    ctx: click.Context, options: Mapping[str, Any], settings: Iterable[Setting], *, submits: bool = False
) -> Request:
    """The words put in order; only what was typed counts as a flag."""
    from gangrun.cli.options import user_name

    ignored = [name for name in IGNORED_TORCHRUN if options[name] is not None]
    if ignored:
        names = ", ".join("--" + name.replace("_", "-") for name in ignored)
        click.echo(f"gangrun: {names}: not needed here, left aside", err=True)
    words: tuple[str, ...] = options["words"]
    if options["module"] and not words:
        raise UserError("usage", "-m needs a module", f"{ctx.command_path} -m my.trainer")
    typed = [
        row.name
        for row in settings
        if not row.in_files_only and ctx.get_parameter_source(row.name) is ParameterSource.COMMANDLINE
    ]
    return Request(
        words=words[1:] if options["module"] else words,
        module=words[0] if options["module"] else "",
        no_python=options["no_python"],
        env_pairs=options["env_pairs"],
        env_files=options["env_files"],
        config_file=options["config_file"],
        flags={name: options[name] for name in typed},
        user=user_name(),
        as_json=options.get("as_json", False),
        quiet=options.get("quiet", False),
        submits=submits,
        here=options.get("here", False),
    )
