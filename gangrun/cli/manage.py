"""``gangrun checkpoints``, ``nodes``, ``config`` and ``prune``: what runs left, and what they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from gangrun.cli.options import TIME, Typed, asks, json_option, run_names, run_or_file_names, runs_dir_option
from gangrun.config import parsers
from gangrun.core.nodeset import fold
from gangrun.display.status_page import look_now
from gangrun.display.text import clean, echo_json, size_words, styled, table
from gangrun.errors import DONE, RUN_FAILED, UNKNOWN, UserError
from gangrun.runs.status import SCHEMA

OLDER_THAN_S = 14 * 86400.0


class SettingValue(msgspec.Struct, frozen=True, kw_only=True):
    """A setting's value, and the flag, variable or file that set it."""

    value: Any
    origin: str


class ConfigReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``config --json`` prints."""

    schema: int = SCHEMA
    settings: dict[str, SettingValue]
    files: tuple[str, ...]
    warnings: tuple[str, ...]


@click.command("checkpoints")
@click.argument("where", required=False, metavar="[DIR|RUN]", shell_complete=run_or_file_names)
@click.option("--verify", is_flag=True, help="Read every byte not yet verified; exit 1 if the newest is invalid.")
@click.option(
    "--checkpoint-pattern", metavar="REGEX", help="Pattern of checkpoint directory names; its group is the step."
)
@click.option(
    "--framework",
    type=Typed(parsers.framework, parsers.framework_names, raw=True),
    metavar="auto|NAME",
    help="Framework that saved there, such as hf; auto = by the names.",
)
@click.option(
    "--validator", metavar="COMMAND", help="With --verify, also run this command; it exits 0 if valid, 1 if not."
)
@json_option
@runs_dir_option
def checkpoints(
    where: str | None, verify: bool, checkpoint_pattern: str | None, framework: str | None, validator: str | None,
    as_json: bool, runs_dir: str | None,
) -> int:  # fmt: skip
    """List checkpoints, newest first: valid or not, why not, and which one a run would resume from.

    DIR is a directory of checkpoints. RUN is a run, whose checkpoint directory is listed. Without --verify gangrun
    reads no data: "complete" means that no part is missing, "verified" that all checksums were right when gangrun last
    read the data, and that no file has changed since.
    """
    from gangrun.display.checkpoints_page import page, progress_bars
    from gangrun.entry.wiring import validator_of
    from gangrun.runs import checkpoints

    place = checkpoints.place_of(where, checkpoint_pattern, validator, runs_dir, framework)
    with progress_bars(shown=verify) as progress:
        judge = validator_of(place.validator, place.validator_within_s, place.working_directory)
        survey = checkpoints.surveyed(place, progress, judge, verify=verify)
    if as_json:
        echo_json(survey)
    else:
        click.echo("\n".join(page(survey, look_now())))
    return RUN_FAILED if verify and not survey.newest_is_valid else DONE


@click.command("nodes")
@click.argument("words", nargs=-1, metavar="[clear NODES|all]")
@json_option
def nodes(words: tuple[str, ...], as_json: bool) -> int:
    """List nodes excluded by your runs: why, and until when new runs avoid them.

    Below, nodes whose error counters got worse over the last week, with a sentence for the administrator. No run
    excludes a node for that.

    `gangrun nodes clear n[3-4]` removes these nodes from the list, `gangrun nodes clear all` removes every node.
    """
    from gangrun.launch import node_history

    if words:
        verb, *named = words
        if verb != "clear" or not named:
            hint = "gangrun nodes clear n3"
            raise UserError("usage", f"gangrun nodes {clean(' '.join(words))}: not understood", hint)
        cleared = node_history.clear(named)
        if as_json:
            echo_json(node_history.ClearedNodes(cleared=tuple(cleared)))
        else:
            click.echo(f"removed from the list: {clean(fold(cleared))}" if cleared else "the list was empty")
        return DONE
    known = node_history.known_nodes()
    if as_json:
        echo_json(known)
        return DONE
    rows = node_history.rows_of(known)
    head = ("node", "now", "times", "last", "why")
    columns = look_now().columns
    lines = table(head, rows, columns, "") if rows else ["no node is excluded"]
    worse = node_history.worse_lines(known, columns)
    click.echo("\n".join([*lines, *([""] if worse else []), *worse]))
    return DONE


@click.command("config")
@click.option("--show", is_flag=True, help="Show all settings (the default).")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of settings, stronger than the others.",
)
@json_option
def config(show: bool, config_file: Path | None, as_json: bool) -> int:
    """Show every setting of a run with its value, and where that came from.

    From the strongest to the weakest: flags of `gangrun run`, GANGRUN_* variables, the profile, ./gangrun.toml, the
    config.toml of your $XDG_CONFIG_HOME/gangrun, your site's /etc/gangrun.toml, the default.
    """
    from gangrun.config.environment import all_variables
    from gangrun.config.layers import BY_NAME, layered, shown, unknown_variables, usual_files

    del show
    variables, files = all_variables(), usual_files(config_file)
    found, warnings = layered({}, variables, files), unknown_variables(variables)
    settings = {name: shown(name, value) for name, value in found.items()}
    if as_json:
        known = {name: SettingValue(value=value.plain, origin=value.origin) for name, value in settings.items()}
        echo_json(ConfigReport(settings=known, files=tuple(map(str, files)), warnings=tuple(warnings)))
        return DONE
    look = look_now()
    rows = [(name, clean(value.words), clean(value.origin), BY_NAME[name].help) for name, value in settings.items()]
    head, *lines = table(("setting", "value", "from", "what it is"), rows, look.columns, "")
    click.echo("\n".join([styled(head, "dim", look.color), *lines, "", "files, the strongest first:"]))
    for file in files:
        click.echo(f"  {clean(file.absolute())}{'' if file.exists() else ' (not there)'}")
    for sentence in warnings:
        click.echo(f"gangrun: {clean(sentence)}", err=True)
    return DONE


@click.command("prune")
@click.argument("runs", nargs=-1, metavar="[RUN...]", shell_complete=run_names)
@click.option("--older-than", type=TIME, help="Remove runs that ended longer ago than TIME (default 14d).")
@click.option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the N newest runs (default 0).")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@runs_dir_option
def prune(
    runs: tuple[str, ...], older_than: float | None, keep: int, dry_run: bool, yes: bool, as_json: bool,
    runs_dir: str | None,
) -> int:  # fmt: skip
    """Remove the run directories of runs that have ended: logs, journal and keys, never checkpoints.

    With RUN only these runs, however new they are. Without RUN all runs that ended longer ago than --older-than. A run
    that is alive, or may be alive, is never removed.
    """
    from gangrun.launch import prune as removal

    age_s = older_than if older_than is not None else 0.0 if runs else OLDER_THAN_S
    found = removal.candidates(runs, runs_dir, age_s, keep, dry_run=dry_run)
    going, kept = found.removed, found.kept
    if not as_json:
        rows = [(clean(one.run), clean(one.name), size_words(one.size_bytes), clean(one.why)) for one in going]
        lines = table(("run", "name", "size", "why"), rows, look_now().columns, "") if rows else ["nothing to remove"]
        lines += [f"kept {clean(one.run)}: {clean(one.why)}" for one in kept if runs]
        lines += [f"kept {len(kept)} that are newer, have not ended, or cannot be read"] if kept and not runs else []
        click.echo("\n".join(lines))
    if going and not dry_run:
        if not yes and not asks():
            raise UserError(
                "usage", "nothing was removed, because nobody is here to confirm it", "-y removes without asking"
            )
        if not yes:
            many = "y" if len(going) == 1 else "ies"
            click.confirm(f"Remove {len(going)} run director{many}?", abort=True, err=True)
        removal.remove(going, runs_dir)
    if not dry_run and (swept := removal.sweep_memory()):
        click.echo(clean(swept), err=True)
    if as_json:
        echo_json(found)
    elif going and not dry_run:
        click.echo(f"removed {len(going)} run{'' if len(going) == 1 else 's'}")
    return UNKNOWN if runs and kept else DONE
