"""``gangrun explain``: every decision, with what was seen, concluded and done."""

from __future__ import annotations

import click

from gangrun.cli.options import json_option, run_argument, runs_dir_option
from gangrun.display.explain_page import explained, page
from gangrun.display.status_page import look_now
from gangrun.display.text import echo_json
from gangrun.runs.locate import find
from gangrun.runs.snapshot import read


@click.command("explain")
@run_argument
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Also what was ignored, refused or routine, with tickets."
)
@json_option
@runs_dir_option
def explain(run: str | None, everything: bool, as_json: bool, runs_dir: str | None) -> int:
    """The story of a run: when, what was seen, what was concluded, what was done.

    The sentences under "concluded" are the supervisor's own, from the journal. Without --all only decisions that
    matter are told; what came in numbers is summed up under "meanwhile".
    """
    look = look_now()
    told = explained(read(find(run, runs_dir), timeline=True, slurm=True), look.now, everything=everything)
    if as_json:
        echo_json(told)
    else:
        click.echo("\n".join(page(told, look, everything=everything)))
    return 0
