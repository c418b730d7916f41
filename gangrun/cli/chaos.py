"""``gangrun chaos``: rehearse failures on a run, and score what the run makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gangrun.cli.options import Typed, file_names, run_or_file_names, runs_dir_option
from gangrun.config.parsers import whole
from gangrun.display.status_page import look_now
from gangrun.display.text import clean, echo_json, size_words
from gangrun.errors import DONE, UserError

SLA_MISSED = 1
CONTEXT: dict[str, Any] = {"allow_interspersed_args": True, "ignore_unknown_options": False}


def _kind(value: object) -> Any:
    from gangrun.launch.chaos.plan import drill_kind  # not for --help

    return drill_kind(value)


@click.command("chaos", context_settings=CONTEXT)
@click.argument("words", nargs=-1, metavar="[RUN | COMMAND...]", shell_complete=run_or_file_names)
@click.option("--local", is_flag=True, help="Strike small runs of your own on this machine, which train COMMAND.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Plan of drills, in TOML.")
@click.option("--kind", "kinds", type=Typed(_kind, name="kind"), multiple=True, help="One drill of KIND; repeatable.")
@click.option("--seed", type=Typed(whole(0), name="number"), default="0", show_default=True,
              help="Seed of all that the plan leaves to chance.")  # fmt: skip
@click.option("--list", "lists", is_flag=True, help="List the kinds of drills and what each should lead to.")
@click.option("--html", metavar="FILE", shell_complete=file_names, help="Also write a page for a browser to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--yes", is_flag=True, help="Strike a live run without asking.")
@runs_dir_option
def chaos(
    words: tuple[str, ...], local: bool, plan_file: Path | None, kinds: tuple[Any, ...], seed: int, lists: bool,
    html: str | None, as_json: bool, yes: bool, runs_dir: str | None,
) -> int:  # fmt: skip
    """Rehearse failures: break something on purpose, and see whether the run recovers as the SLA demands.

    RUN is a live run of yours; the drills cost it the steps that a real failure would. With --local each drill has a
    small run of its own, of a sample script or of COMMAND. The exit code is 0 only if the SLA holds, and 1 if not.

    \b
      gangrun chaos --list
      gangrun chaos --local --kind kill-rank --kind stop-rank
      gangrun chaos my-run --plan plan.toml --seed 7
    """  # noqa: D301 - click reads the backspace
    from gangrun.launch.chaos.own_run import rehearse_local
    from gangrun.launch.chaos.page import kinds_page, rehearsal_html, rehearsal_page
    from gangrun.launch.chaos.plan import plan_of
    from gangrun.launch.chaos.stage import rehearse_run
    from gangrun.runs.locate import find

    look = look_now()
    if lists:
        click.echo("\n".join(kinds_page(look)))
        return DONE
    if not local and len(words) > 1:
        raise UserError("usage", "a COMMAND is for --local; without it one RUN is struck", "add --local, or name a run")
    if html and not html.lower().endswith((".html", ".htm")):
        raise UserError("usage", f"--html takes a file whose name ends in .html, not {html}", "--html drill.html")
    plan = plan_of(plan_file, kinds, seed, local=local)

    def say(line: str) -> None:
        click.echo(clean(line), err=True)

    if local:
        found = rehearse_local(plan, words, say)
    else:
        paths = find(words[0] if words else None, runs_dir, steering=True)
        _confirm(paths.run, len(plan.drills), yes=yes)
        found = rehearse_run(plan, paths, say)
    if html:
        page = rehearsal_html(found, look_now())
        Path(html).write_text(page, "utf-8")
        say(f"wrote {html} ({size_words(len(page.encode()))}); open it in a browser")
    if as_json:
        echo_json(found)
    else:
        click.echo("\n".join(rehearsal_page(found, look)))
    return DONE if found.holds else SLA_MISSED


def _confirm(run: str, count: int, *, yes: bool) -> None:
    from gangrun.cli.options import asks

    if yes:
        return
    words = f"strike {run} with {count} drill{'s' * (count != 1)}? Each costs it what a real failure would"
    if not asks():
        raise UserError("usage", f"{run} trains, and nobody can be asked whether to strike it", "add --yes")
    click.confirm(words, abort=True, err=True)
