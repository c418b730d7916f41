"""The options that several commands share, and how they all print one JSON object."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gangrun.config import environment
from gangrun.display.status_page import Look
from gangrun.display.text import welcomes_color, width
from gangrun.runs.times import wall_now

F = TypeVar("F", bound=Callable[..., Any])


def run_argument(function: F) -> F:
    """``[RUN]``."""
    return click.argument("run", required=False, metavar="[RUN]")(function)


def runs_dir_option(function: F) -> F:
    """``--runs-dir``."""
    words = "Look for runs here only (default: all that you started, and ./gangrun_runs)."
    return click.option("--runs-dir", metavar="DIR", help=words)(function)


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def echo_json(value: object) -> None:
    """One object on one line; ASCII, so that no locale can break it."""
    import json

    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value)))


def look_now() -> Look:
    """How to draw on this standard output."""
    return Look(wall_now(), width(), welcomes_color(environment.all_variables()))


def asks() -> bool:
    """Is there a person to ask? Both ends must be a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def user_name() -> str:
    """Who sits here."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as containers have
        return str(os.getuid())
