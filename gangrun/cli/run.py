"""``gangrun run``: train on this box, or in the allocation held, and own the run's life."""

from __future__ import annotations

from typing import Any

import click

from gangrun.config.request import CONTEXT, command_options, request_of, setting_options
from gangrun.config.settings import SETTINGS


@click.command("run", context_settings=CONTEXT)
@command_options
@click.option("--json", "as_json", is_flag=True, help="Print the final status as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Do not pass the ranks' output through.")
@click.option("--here", is_flag=True, help="On this machine alone, though it is a cluster's or a job has more.")
@click.option("--standalone", is_flag=True, hidden=True)
@setting_options(SETTINGS)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Train right here: start all ranks, watch them, and bring them back when something breaks.

    Here is this box, or all nodes of the Slurm allocation that you hold (salloc, an sbatch script of yours). Options
    come before the command. A .py file runs with the python of your environment; `-m MODULE` and any other command work
    too. torchrun's options of the same meaning are understood.

    \b
      gangrun run --nproc-per-node 4 train.py --lr 3e-4
      gangrun run --checkpoint-dir ckpt --max-restarts 5 -m my.trainer
      gangrun run --nodes 2 --local-hosts --nproc-per-node 2 train.py
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch.start import start

    return start(request_of(ctx, options, SETTINGS))
