"""The only place of the command line that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

RUNS_DIR = "gangrun_runs"  # where runs lie if nobody says otherwise


def all_variables() -> dict[str, str]:
    """A copy of the environment."""
    return dict(os.environ)


def state_home() -> Path:
    """Where the index of runs lives: $XDG_STATE_HOME/gangrun."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "gangrun"


def config_home() -> Path:
    """Where the user's config lives: $XDG_CONFIG_HOME/gangrun."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gangrun"


def config_files() -> tuple[Path, ...]:
    """Where settings are looked for, the strongest first."""
    return (Path("gangrun.toml"), config_home() / "config.toml")


def python_of(variables: Mapping[str, str]) -> str:
    """The python of the environment the user stands in: an active venv or conda first, else the one that runs us."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        home = variables.get(name)
        if home:
            candidate = Path(home) / "bin" / "python"
            if candidate.exists():
                return str(candidate)
    return sys.executable


def in_allocation(variables: Mapping[str, str]) -> bool:
    """Are we inside a Slurm job?"""
    return bool(variables.get("SLURM_JOB_ID"))


def attachable() -> MutableMapping[str, str]:
    """The environment itself, for the one reader that takes names out of it."""
    return os.environ
