"""``gangrun run``: train on this box in the foreground, and own the run's life (room: cli)."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gangrun.cli.errors import UserError
from gangrun.cli.settings import SETTINGS

IGNORED_TORCHRUN = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method", "role")


def _setting_options(function: Any) -> Any:
    for setting in reversed(SETTINGS):
        flag = "--" + setting.name.replace("_", "-")
        names = [flag, "--nnodes"] if setting.name == "nodes" else [flag]
        if setting.flag:
            option = click.option(*names, setting.name, is_flag=True, default=None, help=setting.help)
        else:
            option = click.option(*names, setting.name, default=None, metavar=setting.metavar, help=setting.help)
        function = option(function)
    for name in reversed(IGNORED_TORCHRUN):
        function = click.option("--" + name.replace("_", "-"), name, default=None, hidden=True)(function)
    return function


@click.command(
    "run",
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda name: name.replace("_", "-"),  # click hands the name over without its dashes
    },
)
@click.option("-m", "--module", is_flag=True, help="The first word is a module, as in python -m.")
@click.option("--no-python", is_flag=True, help="Run the command as it is, even if it is a script.")
@click.option("--env", "env_pairs", multiple=True, metavar="K=V|K", help="Set a variable for the ranks, or copy yours.")
@click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path), help="Lines of NAME=VALUE.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Read settings from here first.")
@click.option("--json", "as_json", is_flag=True, help="Print the final status as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Do not pass the ranks' output through.")
@click.option("--standalone", is_flag=True, hidden=True)
@_setting_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> int:
    r"""Train on this box: start all ranks, watch them, and bring them back when something breaks.

    Options come before the command. A .py file runs with the python of your environment; `-m MODULE` and any other
    command work too. torchrun's options of the same meaning are understood.

    \b
      gangrun run --nproc-per-node 4 train.py --lr 3e-4
      gangrun run --checkpoint-dir ckpt --max-restarts 5 -m my.trainer
      gangrun run --nodes 2 --local-hosts --nproc-per-node 2 train.py
    """
    from gangrun.cli.start import Request, start

    flags = {
        setting.name: options[setting.name]
        for setting in SETTINGS
        if ctx.get_parameter_source(setting.name) is ParameterSource.COMMANDLINE
    }
    ignored = [name for name in IGNORED_TORCHRUN if options[name] is not None]
    if ignored:
        names = ", ".join("--" + name.replace("_", "-") for name in ignored)
        click.echo(f"gangrun: {names}: not needed here, left aside", err=True)
    if options["module"] and not words:
        raise UserError("usage", "-m needs a module", "gangrun run -m my.trainer")
    return start(
        Request(
            words=words[1:] if options["module"] else words,
            module=words[0] if options["module"] else "",
            no_python=options["no_python"],
            env_pairs=options["env_pairs"],
            env_files=options["env_files"],
            config_file=options["config_file"],
            as_json=options["as_json"],
            quiet=options["quiet"],
            flags=flags,
            user=_user(),
            terminal=sys.stderr.isatty(),
        )
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as containers have
        return str(os.getuid())
