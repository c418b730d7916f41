"""``gangrun config``: every setting, its value and where it came from."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import click

from gangrun.cli.options import json_option
from gangrun.config import environment
from gangrun.config.health_table import HealthTable
from gangrun.config.layers import BY_NAME, Value, layered, unknown_variables, usual_files
from gangrun.display.status_page import look_now
from gangrun.display.text import clean, echo_json, styled, table
from gangrun.runs.status import SCHEMA


@click.command("config")
@click.option("--show", is_flag=True, help="Show all settings, which is also what happens without it.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Read this first.")
@json_option
def config(show: bool, config_file: Path | None, as_json: bool) -> int:
    """Every setting of a run with its value, and where that came from.

    Stronger first: flags of `gangrun run`, GANGRUN_* variables, ./gangrun.toml, the config.toml of your
    $XDG_CONFIG_HOME/gangrun, the default.
    """
    del show
    variables = environment.all_variables()
    files = usual_files(config_file)
    settings = layered({}, variables, files)
    told = unknown_variables(variables)
    if as_json:
        known = {name: {"value": _plain(value), "origin": value.origin} for name, value in settings.items()}
        echo_json({"schema": SCHEMA, "settings": known, "files": [str(file) for file in files], "warnings": told})
        return 0
    look = look_now()
    rows = [(name, _shown(value), clean(value.origin), BY_NAME[name].help) for name, value in settings.items()]
    lines = table(("setting", "value", "from", "what it is"), rows, look.columns, "")
    click.echo("\n".join([styled(lines[0], "dim", look.color), *lines[1:]]))
    click.echo("\nread, the strongest first:")
    for file in files:
        click.echo(f"  {clean(file.absolute())}{'' if file.exists() else ' (not there)'}")
    for sentence in told:
        click.echo(f"gangrun: {clean(sentence)}", err=True)
    return 0


def _plain(value: Value) -> Any:
    held = value.value
    if isinstance(held, HealthTable):
        return {**held.bounds, "off": list(held.off)}
    return held.value if isinstance(held, Enum) else held


def _shown(value: Value) -> str:
    held: Any = value.value.value if isinstance(value.value, Enum) else value.value
    match held:
        case None:
            return "-"
        case bool():
            return "true" if held else "false"
        case float():
            return f"{held:g} s"
        case HealthTable():
            return clean(", ".join([*(f"{key} = {held.bounds[key]}" for key in held.bounds), *held.off])) or "-"
        case tuple():
            return (
                clean("; ".join(one if isinstance(one, str) else "=".join(part or "" for part in one) for one in held))
                or '""'
            )
        case _:
            return clean(held) or '""'
