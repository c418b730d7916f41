"""``gangrun submit``: make a run and ask Slurm for its first job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from gangrun.config.request import CONTEXT, command_options, request_of, setting_options
from gangrun.config.settings import SETTINGS, Setting
from gangrun.config.slurm_options import SLURM_SETTINGS

MORE_FLAGS = {"nodes": ("-N", "--nnodes"), "name": ("-J", "--job-name")}


def _as_sbatch_has_it(row: Setting) -> Setting:
    words = "Nodes that ranks run on." if row.name == "nodes" else row.help
    return replace(row, flags=MORE_FLAGS.get(row.name, row.flags), help=words)


SUBMIT_SETTINGS = (*(_as_sbatch_has_it(row) for row in SETTINGS if row.name != "local_hosts"), *SLURM_SETTINGS)


@click.command("submit", context_settings=CONTEXT)
@command_options
@click.option("--dry-run", is_flag=True, help="Print the batch script; submit nothing, leave nothing behind.")
@click.option("--wait", is_flag=True, help="Stay until the run has ended; exit with its code.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options(SUBMIT_SETTINGS)
@click.pass_context
def command(ctx: click.Context, /, dry_run: bool, wait: bool, **options: Any) -> int:
    """Submit a training run to Slurm; it lives on through as many jobs as it needs.

    Options come before the command and mean what they mean to sbatch; those of `gangrun run` and torchrun's are
    understood too. What is not asked is the site's default.

    \b
      gangrun submit -N 4 --gpus-per-node 8 -t 1-00:00:00 train.py --lr 3e-4
      gangrun submit -N 16 --spares 1 -p gpu -A me --setup 'module load cuda' -m my.trainer
      gangrun submit -N 2 --dry-run train.py
    """  # noqa: D301 - click reads the backspace
    from gangrun.cli.wait import tell_end
    from gangrun.launch.slurm_submit import dry, submit

    request = request_of(ctx, options, SUBMIT_SETTINGS, submits=True)
    if dry_run:
        return dry(request)
    paths = submit(request, say=not (wait and request.as_json))
    return tell_end(paths, None, as_json=request.as_json) if wait else 0
