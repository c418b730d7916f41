"""``gangrun submit``: ``run``'s options, and what the cluster's scheduler is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from gangrun.cli.options import GroupedCommand
from gangrun.cli.train import CONTEXT, flag, request_of, training_options
from gangrun.config.settings import GROUPS, OUTPUT, SETTINGS
from gangrun.config.slurm_options import SLURM_SETTINGS

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
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch import slurm_submit, stop

    found = request_of(ctx, options, SUBMIT_SETTINGS, submits=True)
    if dry_run:
        return slurm_submit.dry(found)
    as_json = found.request.as_json
    paths = slurm_submit.submit(found, say=not (wait and as_json))
    return stop.tell_end(paths, None, as_json=as_json) if wait else 0
