"""``gangrun run`` and ``gangrun submit``: options come before the user's command, one for each setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gangrun.cli.options import Grouped, GroupedCommand, Typed
from gangrun.config.environment import all_variables
from gangrun.config.settings import GROUPS, OUTPUT, PLACES, SETTINGS, TRAINING, Setting
from gangrun.config.slurm_options import SLURM_SETTINGS
from gangrun.display.text import clean
from gangrun.errors import UserError

if TYPE_CHECKING:
    from gangrun.config.request import ResolvedRequest

F = TypeVar("F", bound=Callable[..., Any])
IGNORED_TORCHRUN = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method", "role")
# options come before the command; torchrun spells them with underscores, and click hands names over without dashes
CONTEXT = {"allow_interspersed_args": False, "token_normalize_func": lambda name: name.replace("_", "-")}
RUN_COMMON = (
    "module", "env_pairs", "nproc_per_node", "checkpoint_dir", "resume", "max_restarts", "hang_timeout", "no_health",
    "name", "quiet",
)  # fmt: skip
SUBMIT_COMMON = (
    "nproc_per_node", "setup", "nodes", "gpus_per_node", "spares", "partition", "time", "checkpoint_dir",
    "max_restarts", "dry_run",
)  # fmt: skip
MORE_FLAGS = {"nodes": ("-N", "--nnodes"), "name": ("-J", "--job-name")}
SUBMIT_SETTINGS = (
    *(replace(row, flags=MORE_FLAGS.get(row.name, row.flags)) for row in SETTINGS if row.name != "local_hosts"),
    *SLURM_SETTINGS,
)


def _flag(*names: str, group: str, help: str) -> Callable[[F], F]:  # noqa: A002 - click's word
    return click.option(*names, is_flag=True, cls=Grouped, group=group, help=help)


def _training_options(settings: Iterable[Setting]) -> Callable[[F], F]:
    """The command to train with, its environment, a flag for each setting, and torchrun's that nobody needs here."""
    path: dict[str, Any] = {"type": click.Path(path_type=Path), "cls": Grouped, "group": TRAINING, "metavar": "FILE"}
    decorators: list[Callable[[Any], Any]] = [
        _flag("-m", "--module", group=TRAINING, help="Run the first word as a module, as python -m does."),
        _flag("--no-python", group=TRAINING, help="Run the command as it is, even if it is a script."),
        click.option(
            "--env", "env_pairs", multiple=True, metavar="K=V|K", cls=Grouped, group=TRAINING,
            help="Set a variable for the ranks, or copy yours; repeatable.",
        ),
        click.option("--env-file", "env_files", multiple=True, help="File of NAME=VALUE lines; repeatable.", **path),
        click.option("--config", "config_file", help="File of settings to read first.", **path),
        *(_setting_option(row) for row in settings if not row.in_files_only),
        click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND..."),
        *(click.option("--" + name.replace("_", "-"), name, default=None, hidden=True) for name in IGNORED_TORCHRUN),
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

    more["type"] = click.Path() if row.kind.metavar == "DIR" else Typed(parse, row.kind.words, raw=True)
    return click.option(*names, default=None, multiple=row.many, metavar=row.kind.metavar, **more)


def _request(
    ctx: click.Context, options: Mapping[str, Any], settings: Iterable[Setting], *, submits: bool = False
) -> ResolvedRequest:
    """The words put in order and understood; only what was typed counts as a flag."""
    from gangrun.config.request import Request, resolved  # not for --help

    if ignored := [name for name in IGNORED_TORCHRUN if options[name] is not None]:
        names = ", ".join("--" + name.replace("_", "-") for name in ignored)
        click.echo(f"gangrun: gangrun ignores {names}: it needs no rendezvous", err=True)
    words: tuple[str, ...] = options["words"]
    if options["module"] and not words:
        raise UserError("usage", "-m needs a module", f"for example: {ctx.command_path} -m my.trainer")
    known = {row.name for row in settings if not row.in_files_only}
    request = Request(
        words=words[1:] if options["module"] else words,
        module=words[0] if options["module"] else "",
        flags={name: options[name] for name in known if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE},
        submits=submits,
        **{
            name: options[name]
            for name in ("no_python", "env_pairs", "env_files", "config_file", "as_json", "quiet", "here")
            if name in options
        },
    )
    found = resolved(request, all_variables())
    for warning in found.warnings:
        click.echo("gangrun: " + "\n  ".join(map(clean, warning.splitlines())), err=True)
    return found


@click.command("run", cls=GroupedCommand, groups=GROUPS, common=RUN_COMMON, context_settings=CONTEXT)
@_training_options(SETTINGS)
@_flag("--here", group=PLACES, help="Train on this machine alone, even on a login node or in a larger job.")
@_flag("-q", "--quiet", group=OUTPUT, help="Do not show the ranks' output.")
@_flag("--json", "as_json", group=OUTPUT, help="Print the final status as one JSON object.")
@click.option("--standalone", is_flag=True, hidden=True)
def run(ctx: click.Context, /, **options: Any) -> int:
    """Train here: start all ranks, watch them, and recover them after failures.

    Here means this machine, or all nodes of the Slurm job that you are in (salloc, or your own batch script). Options
    come before COMMAND. A .py file runs with the python of your environment. torchrun's options are understood.

    \b
      gangrun run --nproc-per-node 4 train.py --lr 3e-4
      gangrun run --checkpoint-dir ckpt --max-restarts 5 -m my.trainer
      gangrun run --nodes 2 --local-hosts --nproc-per-node 2 train.py
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch.local import start

    return start(_request(ctx, options, SETTINGS))


@click.command("submit", cls=GroupedCommand, groups=GROUPS, common=SUBMIT_COMMON, context_settings=CONTEXT)
@_training_options(SUBMIT_SETTINGS)
@_flag("--dry-run", group=OUTPUT, help="Print the batch script; submit nothing, leave nothing behind.")
@_flag("--wait", group=OUTPUT, help="Wait until the run has ended; exit with its code.")
@_flag("--json", "as_json", group=OUTPUT, help="Print one JSON object.")
def submit(ctx: click.Context, /, dry_run: bool, wait: bool, **options: Any) -> int:
    """Submit a run to Slurm; it continues through as many jobs as it needs.

    Options come before COMMAND. sbatch's options keep their meaning here, and so do those of `gangrun run`. What you
    leave out, the site's defaults decide.

    \b
      gangrun submit -N 4 --gpus-per-node 8 -t 1-00:00:00 train.py --lr 3e-4
      gangrun submit -N 16 --spares 1 -p gpu -A me --setup 'module load cuda' -m my.trainer
      gangrun submit -N 2 --dry-run train.py
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch import slurm_submit, stop

    found = _request(ctx, options, SUBMIT_SETTINGS, submits=True)
    if dry_run:
        return slurm_submit.dry(found)
    as_json = found.request.as_json
    paths = slurm_submit.submit(found, say=not (wait and as_json))
    return stop.tell_end(paths, None, as_json=as_json) if wait else 0
