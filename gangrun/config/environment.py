"""The only place of the command line that reads the environment: who asks, from where, with which variables."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

from gangrun.errors import UserError

RUNS_DIR = "gangrun_runs"  # where runs lie if nobody says otherwise
PREFIX = "GANGRUN_"
SITE_FILE, SITE_VARIABLE = "/etc/gangrun.toml", "GANGRUN_SITE_CONFIG"
# what we set for ranks and our own processes is not the user's configuration
OWN_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "RUN",
        "RUN_DIR",
        "STAY",
        "ATTEMPT",
        "MEMORY",
        "MEMORY_PARITY",
        "RESUME_STEP",
        "PROGRESS_SLOT",
        "SITE_CONFIG",
    )
)
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def all_variables() -> dict[str, str]:
    """A copy of the environment."""
    return dict(os.environ)


def attachable() -> MutableMapping[str, str]:
    """The environment itself, for the one reader that takes names out of it."""
    return os.environ


def state_home() -> Path:
    """Where the index of runs lives: $XDG_STATE_HOME/gangrun."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "gangrun"


def config_home() -> Path:
    """Where the user's config lives: $XDG_CONFIG_HOME/gangrun."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gangrun"


def config_files() -> tuple[Path, ...]:
    """Where settings are looked for, the strongest first: the project's, the user's, the site's."""
    site = Path(os.environ.get(SITE_VARIABLE) or SITE_FILE)
    return (Path("gangrun.toml"), config_home() / "config.toml", site)


def user_name() -> str:
    """Who sits here."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as containers have
        return str(os.getuid())


def python_of(variables: Mapping[str, str]) -> str:
    """The python of the environment the user stands in: an active venv or conda first, else the one that runs us."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        home = variables.get(name)
        if home:
            candidate = Path(home) / "bin" / "python"
            if candidate.exists():
                return str(candidate)
    return sys.executable


def added_variables(pairs: Iterable[str], files: Iterable[Path], inherited: Mapping[str, str]) -> dict[str, str]:
    """What --env-file and --env set, later ones winning; ``K`` alone copies the value that the user has now."""
    found: dict[str, str] = {}
    for path in files:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError("usage", f"--env-file {path}: {why}", "name a text file of NAME=VALUE lines") from error
        for number, raw in enumerate(lines, 1):
            line = raw.strip()
            if line and not line.startswith("#"):
                _set(found, line.removeprefix("export "), inherited, f"{path}:{number}")
    for pair in pairs:
        _set(found, pair, inherited, "--env")
    return found


def _set(found: dict[str, str], pair: str, inherited: Mapping[str, str], where: str) -> None:
    name, equals, value = pair.partition("=")
    name = name.strip()
    if not _VARIABLE.match(name):
        hint = "write NAME=VALUE, or NAME to copy yours"
        raise UserError("usage", f"{where}: {name!r} is not a variable's name", hint)
    if equals:
        words = value.strip()
        quoted = len(words) > 1 and words[0] == words[-1] and words[0] in "'\""
        found[name] = shlex.split(words)[0] if quoted and where != "--env" else value
    elif name in inherited:
        found[name] = inherited[name]
    else:
        hint = f"export it first, or write {name}=VALUE"
        raise UserError("usage", f"{where}: {name} is not set in your environment, so there is nothing to copy", hint)
