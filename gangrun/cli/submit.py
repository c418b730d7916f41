"""``gangrun submit``: ``run``'s options, and what the cluster's scheduler is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangrun.cli.options import TYPED, GroupedCommand, file_names
from gangrun.cli.train import CONTEXT, flag, request_of, run, training_options
from gangrun.config.environment import all_variables
from gangrun.config.settings import GROUPS, OUTPUT, SETTINGS
from gangrun.config.slurm_options import SLURM_SETTINGS
from gangrun.display.text import clean
from gangrun.errors import UserError

if TYPE_CHECKING:
    from gangrun.config.request import ResolvedRequest
    from gangrun.config.slurm_script import SlurmScript

SUBMIT_COMMON = (
    "nproc_per_node", "setup", "nodes", "gpus_per_node", "spares", "partition", "time", "checkpoint_dir",
    "max_restarts", "dry_run",
)  # fmt: skip
MORE_FLAGS = {"nodes": ("-N",), "name": ("-J", "--job-name")}
SUBMIT_SETTINGS = (
    *(replace(row, flags=MORE_FLAGS.get(row.name, row.flags)) for row in SETTINGS if row.name != "local_hosts"),
    *SLURM_SETTINGS,
)


@click.command("submit", cls=GroupedCommand, groups=GROUPS, common=SUBMIT_COMMON, context_settings=CONTEXT)
@training_options(SUBMIT_SETTINGS)
@flag("--dry-run", group=OUTPUT, help="Print the batch script; submit nothing, leave nothing behind.")
@flag("--wait", group=OUTPUT, help="Wait until the run has ended; exit with its code.")
@flag("--json", "as_json", group=OUTPUT, help="Print one JSON object.")
def submit(ctx: click.Context, /, dry_run: bool, wait: bool, **options: Any) -> int:
    """Submit a run to Slurm; it continues through as many jobs as it needs.

    Options come before COMMAND. sbatch's options keep their meaning here, and so do those of `gangrun run`. What you
    leave out, the site's defaults decide.

    \b
      gangrun submit -N 4 --gpus-per-node 8 -t 1-00:00:00 train.py --lr 3e-4
      gangrun submit -N 16 --spares 1 -p gpu -A me --setup 'module load cuda' -m my.trainer
      gangrun submit -N 2 --dry-run train.py
      gangrun submit train.sbatch      where it holds a line such as: gangrun run train.py
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch import slurm_submit, stop

    script = None if options["module"] or options["no_python"] else _script(options["words"])
    if script is not None:
        found = _from_script(ctx, script, options["words"][1:])
    else:
        found = request_of(ctx, options, SUBMIT_SETTINGS, submits=True)
    if dry_run:
        return slurm_submit.dry(found)
    as_json = found.request.as_json
    paths = slurm_submit.submit(found, say=not (wait and as_json))
    return stop.tell_end(paths, None, as_json=as_json) if wait else 0


def _script(words: tuple[str, ...]) -> SlurmScript | None:
    if not words or words[0].endswith(".py"):
        return None
    from gangrun.config.slurm_script import read_script  # not for --help

    return read_script(words[0])


def _from_script(ctx: click.Context, script: SlurmScript, arguments: tuple[str, ...]) -> ResolvedRequest:
    """The #SBATCH lines, then the options of the script's ``gangrun run`` line, then what was typed: the last wins."""
    from gangrun.config.slurm_script import option_value, plain_value, refuse_unclear, script_run, spares_of, spread

    asked = script_run(script, arguments)
    for note in asked.notes:
        click.echo("gangrun: " + clean(note), err=True)
    own = spread(script, asked.words, all_variables())
    known = (plain_value(script, word, all_variables()) for word in own)
    shown = [word if value is None else value for word, value in zip(own, known, strict=True)]
    read, _, _ = run.make_parser(click.Context(run, **CONTEXT)).parse_args(list(shown))
    count = len(own) - len(read.get("words", ()))
    line = [option_value(script, word, all_variables()) for word in own[:count]]
    typed = ctx.meta[TYPED][: -1 - len(arguments)]
    words = [
        *asked.options,
        *spares_of(asked.options, read.get("nodes")),
        *(word for word in line if word not in ("-q", "--quiet")),
        *typed,
        *shown[count:],
    ]
    whole = submit.make_context("submit", words, parent=ctx.parent)
    refuse_unclear(script, whole.params["checkpoint_dir"])
    return request_of(
        whole, whole.params, SUBMIT_SETTINGS, submits=True, body=asked.setup, raw_words=tuple(own[count:])
    )


@click.command("convert")
@click.argument("script", metavar="SCRIPT", shell_complete=file_names)
def convert(script: str) -> int:
    """Print a batch script with a gangrun run line in place of its launch line.

    SCRIPT is a batch script that starts its ranks with srun, torchrun, accelerate launch, deepspeed, mpirun or python.
    The new script goes to standard output, the difference and remarks to standard error. Nothing is written or run.

    \b
      gangrun convert train.sbatch >train-gangrun.sbatch
      gangrun submit train-gangrun.sbatch
    """  # noqa: D301 - click reads the backspace
    from gangrun.config.slurm_convert import converted
    from gangrun.config.slurm_script import read_script

    found = read_script(script)
    if found is None:
        words = f"{script} is no batch script" if Path(script).is_file() else f"no such script: {script}"
        raise UserError("usage", words, "gangrun convert reads a bash script with #SBATCH lines")
    made = converted(found, all_variables())
    click.echo(made.text, nl=False)
    click.echo(made.diff, nl=False, err=True)
    for note in made.notes:
        click.echo("gangrun: " + clean(note), err=True)
    return 0
