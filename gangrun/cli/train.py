"""``gangrun run``, and what ``submit`` shares with it: options before the user's command, one for each setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gangrun.cli.options import Grouped, GroupedCommand, Typed, file_names, profile_names
from gangrun.config.environment import all_variables
from gangrun.config.launchers import (
    LACKED,
    MODULE,
    NEEDLESS,
    NO_PYTHON,
    TORCHRUN,
    VALUELESS,
    named,
    settings_of,
)
from gangrun.config.parsers import whole
from gangrun.config.settings import GROUPS, OUTPUT, PLACES, SETTINGS, TRAINING, Setting
from gangrun.display.text import clean
from gangrun.errors import UserError
from gangrun.node.processes import blank_arguments

if TYPE_CHECKING:
    from gangrun.config.request import ResolvedRequest

F = TypeVar("F", bound=Callable[..., Any])
# what torchrun has and gangrun has not, by the name that click hands over
TORCHRUN_ONLY = {
    spelled: "torchrun_" + spelled.split()[-1].replace("-", "_")
    for spelled, meaning in TORCHRUN.items()
    if meaning not in (MODULE, NO_PYTHON) and spelled not in ("nproc-per-node", "max-restarts")
}
# options come before the command; torchrun spells them with underscores, and click hands names over without dashes
CONTEXT: dict[str, Any] = {
    "allow_interspersed_args": False,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
RUN_COMMON = (
    "module", "env_pairs", "nproc_per_node", "checkpoint_dir", "resume", "max_restarts", "hang_timeout", "no_health",
    "name", "quiet",
)  # fmt: skip


def flag(*names: str, group: str, help: str) -> Callable[[F], F]:  # noqa: A002 - click's word
    """An option without a value, in a group of the help."""
    return click.option(*names, is_flag=True, cls=Grouped, group=group, help=help)


def training_options(settings: Iterable[Setting]) -> Callable[[F], F]:
    """The command to train with, its environment, a flag for each setting, and torchrun's that nobody needs here."""
    path: dict[str, Any] = {"type": click.Path(path_type=Path), "cls": Grouped, "group": TRAINING, "metavar": "FILE"}
    decorators: list[Callable[[Any], Any]] = [
        flag("-m", "--module", group=TRAINING, help="Run the first word as a module, as python -m does."),
        flag("--no-python", group=TRAINING, help="Run COMMAND as it is, even if it is a .py file."),
        click.option(
            "--env", "env_pairs", multiple=True, metavar="K=V|K", cls=Grouped, group=TRAINING,
            help="Set a variable for the ranks, or copy yours; repeatable.",
        ),
        click.option("--env-file", "env_files", multiple=True, help="File of NAME=VALUE lines; repeatable.", **path),
        click.option("--config", "config_file", help="File of settings, stronger than the others.", **path),
        *(_setting_option(row) for row in settings if not row.in_files_only),
        click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...", shell_complete=file_names),
        *(
            click.option("--" + spelled.split()[-1], name, default=None, hidden=True, is_flag=spelled in VALUELESS)
            for spelled, name in TORCHRUN_ONLY.items()
        ),
        click.pass_context,
    ]  # fmt: skip

    def add(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def _setting_option(row: Setting) -> Callable[[F], F]:
    names = (row.flag, *row.flags, row.name)
    more: dict[str, Any] = {"cls": Grouped, "group": row.group, "help": row.help}
    if row.default is False:
        return click.option(*names, is_flag=True, default=None, **more)

    def parse(value: object) -> Any:
        return row.kind.parse((value,) if row.many else value)

    if row.kind.metavar in ("FILE", "COMMAND") or "PATH" in row.kind.metavar.split("|"):
        more["shell_complete"] = None if row.kind.words else file_names
    if row.name == "profile":
        more["shell_complete"] = profile_names
    more["type"] = click.Path() if row.kind.metavar == "DIR" else Typed(parse, row.kind.words, raw=True)
    return click.option(*names, default=None, multiple=row.many, metavar=row.kind.metavar, **more)


def request_of(
    ctx: click.Context,
    options: Mapping[str, Any],
    settings: Iterable[Setting],
    *,
    submits: bool = False,
    body: str = "",
    raw_words: tuple[str, ...] = (),
) -> ResolvedRequest:
    """The words put in order and understood; only what was typed counts as a flag."""
    from gangrun.config.request import Request, resolved  # not for --help

    torchrun = {spelled: options[name] for spelled, name in TORCHRUN_ONLY.items() if options[name] is not None}
    for meaning, why in (
        (NEEDLESS, "because gangrun starts and connects the ranks itself"),
        (LACKED, "because gangrun has nothing like it; a torchrun line with --per-node does it"),
    ):
        if names := named(torchrun, TORCHRUN, meaning):
            click.echo(f"gangrun: {', '.join(names)} ignored, {why}", err=True)
    words: tuple[str, ...] = options["words"]
    if options["module"] and not words:
        raise UserError("usage", "-m needs a module", f"for example: {ctx.command_path} -m my.trainer")
    known = {row.name for row in settings if not row.in_files_only}
    typed = {name: options[name] for name in known if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if "notify" in typed:
        blank_arguments(typed["notify"])
    request = Request(
        words=words[1:] if options["module"] else words,
        module=words[0] if options["module"] else "",
        flags={**settings_of("gangrun run", TORCHRUN, torchrun), **typed},
        submits=submits,
        body=body,
        raw_words=raw_words,
        **{
            name: options[name]
            for name in (
                "no_python",
                "env_pairs",
                "env_files",
                "config_file",
                "as_json",
                "quiet",
                "here",
                "detach",
                "debug_rank",
            )
            if name in options
        },
    )
    found = resolved(request, all_variables())
    for warning in found.warnings:
        click.echo("gangrun: " + "\n  ".join(map(clean, warning.splitlines())), err=True)
    return found


@click.command("run", cls=GroupedCommand, groups=GROUPS, common=RUN_COMMON, context_settings=CONTEXT)
@training_options(SETTINGS)
@flag("--here", group=PLACES, help="Train on this machine alone, even on a login node or in a larger job.")
@flag("--detach", group=PLACES, help="Go on in the background; gangrun attach shows the run.")
@click.option(
    "--debug-rank", type=Typed(whole(0)), metavar="RANK", cls=Grouped, group=TRAINING,
    help="Give this rank the terminal, for breakpoint(); suspends the hang watch.",
)  # fmt: skip
@flag("-q", "--quiet", group=OUTPUT, help="Do not show the ranks' output.")
@flag("--json", "as_json", group=OUTPUT, help="Print the final status as one JSON object.")
def run(ctx: click.Context, /, **options: Any) -> int:
    """Train here: start all ranks, watch them, and recover them after failures.

    Here means this machine, or all nodes of the Slurm job that you are in (salloc, or your own batch script). Options
    come before COMMAND. A .py file runs with the python of your environment. torchrun's options are understood. COMMAND
    may be a line of torchrun, accelerate launch, deepspeed or fabric run: gangrun starts its ranks instead.

    \b
      gangrun run --nproc-per-node 4 train.py --lr 3e-4
      gangrun run --checkpoint-dir ckpt --max-restarts 5 -m my.trainer
      gangrun run --nodes 2 --local-hosts --nproc-per-node 2 train.py
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch.local import start

    return start(request_of(ctx, options, SETTINGS))
