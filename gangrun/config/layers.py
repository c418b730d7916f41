"""Where a setting's value comes from: flag > GANGRUN_* > ./gangrun.toml > user's config > default.

A key that no setting has is an error that names the nearest one: a misspelt time-out must not be ignored in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangrun.config import environment
from gangrun.config.slurm_options import ALL_SETTINGS
from gangrun.errors import UserError, did_you_mean

PREFIX = "GANGRUN_"
BY_NAME = {setting.name: setting for setting in ALL_SETTINGS}
# what we set for ranks and our own processes is not the user's configuration
OWN_VARIABLES = frozenset(
    {
        "GANGRUN_RUN",
        "GANGRUN_RUN_DIR",
        "GANGRUN_ATTEMPT",
        "GANGRUN_MEMORY",
        "GANGRUN_MEMORY_PARITY",
        "GANGRUN_RESUME_STEP",
        "GANGRUN_PROGRESS_SLOT",
    }
)


DEFAULT = "default"  # the origin of what nobody set


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and where it was found."""

    value: Any
    origin: str


def usual_files(config_file: Path | None = None) -> tuple[Path, ...]:
    """Where settings are looked for, the strongest first; ``config_file`` is what --config named."""
    files = environment.config_files()
    if config_file is None:
        return files
    if not config_file.is_file():
        raise UserError("config", f"no such file: {config_file}")
    return (config_file, *files)


def layered(flags: Mapping[str, Any], variables: Mapping[str, str], files: tuple[Path, ...]) -> dict[str, Value]:
    """Every setting with its value; ``files`` from the strongest to the weakest, missing ones are skipped."""
    found: dict[str, Value] = {s.name: Value(s.default, DEFAULT) for s in ALL_SETTINGS}
    for path in reversed(files):
        for name, raw in _read(path).items():
            found[name] = Value(_parsed(name, raw, str(path)), str(path))
    for setting in ALL_SETTINGS:
        variable = PREFIX + setting.name.upper()
        # GANGRUN_RESUME is what a rank is told, not what a user asks: only the flag and the files set ``resume``
        if variable in variables and setting.name != "resume" and not setting.in_files_only:
            found[setting.name] = Value(_parsed(setting.name, variables[variable], variable), variable)
    for name, raw in flags.items():
        found[name] = Value(_parsed(name, raw, "--" + name.replace("_", "-")), "--" + name.replace("_", "-"))
    return found


def unknown_variables(variables: Mapping[str, str]) -> list[str]:
    """GANGRUN_* names that look like a misspelt setting, with the nearest one."""
    told = []
    names = [PREFIX + s.name.upper() for s in ALL_SETTINGS]
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in names and name not in OWN_VARIABLES:
            near = did_you_mean(name, names, like=0.8)
            if near:
                told.append(f"{name} is not a setting; {near}")
    return told


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError("config", f"cannot read {path}: {error.strerror}") from error
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError("config", f"{path} is not TOML: {error}") from error
    names = [s.name for s in ALL_SETTINGS]
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in BY_NAME:
            hint = did_you_mean(name, names) or f"known keys: {', '.join(names)}"
            raise UserError("config", f"{path}: unknown key {key!r}", hint)
        flat[name] = value
    return flat


def _parsed(name: str, raw: object, where: str) -> Any:
    try:
        return BY_NAME[name].parse(raw)
    except ValueError as error:
        raise UserError("usage", f"{where}: {error}") from error
