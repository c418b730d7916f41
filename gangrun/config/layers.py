"""Where a setting's value comes from: flag > GANGRUN_* > profile > ./gangrun.toml > user's config > site's > default.

A profile is a named group of settings: a table ``[profiles.NAME]`` in any of the files, put over a built-in one.

A key that no setting has is an error that names the nearest one: a misspelt time-out must not be ignored in silence.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from gangrun.config import environment
from gangrun.config.health_table import HealthTable
from gangrun.config.secrets import HIDDEN
from gangrun.config.slurm_options import ALL_SETTINGS
from gangrun.errors import UserError, did_you_mean

BY_NAME = {setting.name: setting for setting in ALL_SETTINGS}
VARIABLES = {environment.PREFIX + row.name.upper(): row for row in ALL_SETTINGS}
DEFAULT = "default"  # the origin of what nobody set
PROFILES = "profiles"
# A node as its maker builds it: 8 GPUs, and a network port for each of 200 Gb/s (DGX A100: ConnectX-6, HDR) or 400 Gb/s
# (DGX H100 and B200: ConnectX-7, NDR); docs/operating.md names the sources.
BUILT_IN: dict[str, dict[str, Any]] = {
    "a100": {"gpus_per_node": 8, "health": {"ib_rate_gbps": 200}},
    "h100": {"gpus_per_node": 8, "health": {"ib_rate_gbps": 400}},
    "b200": {"gpus_per_node": 8, "health": {"ib_rate_gbps": 400}},
}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and where it was found."""

    value: Any
    origin: str

    @property
    def plain(self) -> Any:
        """The value as JSON has it."""
        if isinstance(self.value, HealthTable):
            return {**self.value.bounds, "off": list(self.value.off)}
        return self.value.value if isinstance(self.value, Enum) else self.value

    @property
    def words(self) -> str:
        """The value as a person reads it."""
        match self.plain:
            case None:
                return "-"
            case bool() as on:
                return str(on).lower()
            case float() as seconds:
                return f"{seconds:g} s"
            case dict() as bounds:
                return ", ".join([*(f"{key} = {bounds[key]}" for key in bounds if key != "off"), *bounds["off"]]) or "-"
            case tuple() as parts:
                return "; ".join(one if isinstance(one, str) else "=".join(filter(None, one)) for one in parts) or '""'
            case other:
                return str(other) or '""'


def usual_files(config_file: Path | None = None) -> tuple[Path, ...]:
    """Where settings are looked for, the strongest first; ``config_file`` is what --config named."""
    files = environment.config_files()
    if config_file is None:
        return files
    if not config_file.is_file():
        raise UserError("config", f"--config: no such file: {config_file}", "name a file in TOML")
    return (config_file, *files)


def layered(flags: Mapping[str, Any], variables: Mapping[str, str], files: tuple[Path, ...]) -> dict[str, Value]:
    """Every setting with its value; ``files`` from the strongest to the weakest, missing ones are skipped."""
    found = {row.name: Value(row.default, DEFAULT) for row in ALL_SETTINGS}
    tables = {name: [("built in", dict(table))] for name, table in BUILT_IN.items()}
    health: dict[str, Any] = {}  # as the files have it: a profile changes the limits that it names
    for path in reversed(files):
        for name, raw, place in _read(path):
            if name == PROFILES:
                for profile, table in _profiles_in(raw, place):
                    tables.setdefault(profile, []).append((str(path), table))
                continue
            found[name] = Value(parsed(name, raw, place), str(path))
            health = raw if name == "health" else health
    for name, raw, origin in _profile(_chosen(flags, variables, found), tables):
        merged = {**health, **raw} if name == "health" and isinstance(raw, dict) else raw
        health = merged if name == "health" else health
        found[name] = Value(parsed(name, merged, origin), origin)
    for variable, row in VARIABLES.items():
        # GANGRUN_RESUME is what a rank is told, not what a user asks: only the flag and the files set ``resume``
        if variable in variables and row.name != "resume" and not row.in_files_only:
            found[row.name] = Value(parsed(row.name, variables[variable], variable), variable)
    for name, raw in flags.items():
        found[name] = Value(parsed(name, raw, BY_NAME[name].flag), BY_NAME[name].flag)
    return found


def _chosen(flags: Mapping[str, Any], variables: Mapping[str, str], found: Mapping[str, Value]) -> Value:
    """The profile's name, and who gave it."""
    if "profile" in flags:
        return Value(flags["profile"], "--profile")
    variable = environment.PREFIX + "PROFILE"
    return Value(variables[variable], variable) if variable in variables else found["profile"]


def _profiles_in(raw: object, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables below ``[profiles]``, by name; their keys are checked whether or not the profile is used."""
    for profile, table in raw.items() if isinstance(raw, dict) else [("", raw)]:
        where = f"{place}.{profile}"
        if not isinstance(table, dict):
            raise UserError("config", f"{where} is no table", "write [profiles.NAME], and settings below it")
        settings = {key.replace("-", "_"): value for key, value in table.items()}
        for name in settings:
            if name not in BY_NAME or name == "profile":
                hint = did_you_mean(name, BY_NAME) or "gangrun config lists the settings"
                raise UserError("config", f"{where}: unknown key {name!r}", hint)
        yield profile, settings


def profile_names(files: Iterable[Path]) -> list[str]:
    """The profiles that ``--profile`` may name, in order; a file with a mistake is passed over."""
    names = set(BUILT_IN)
    for path in files:
        with contextlib.suppress(UserError):
            tables = [_profiles_in(raw, place) for name, raw, place in _read(path) if name == PROFILES]
            names |= {profile for table in tables for profile, _ in table}
    return sorted(names)


def _profile(chosen: Value, tables: Mapping[str, list[tuple[str, dict[str, Any]]]]) -> Iterator[tuple[str, Any, str]]:
    """(setting, its value, origin) for each key of the profile, the weakest table of this name first."""
    if not chosen.value:
        return
    if chosen.value not in tables:
        hint = did_you_mean(chosen.value, tables) or f"known profiles: {', '.join(sorted(tables))}"
        raise UserError("config", f"{chosen.origin}: there is no profile {chosen.value!r}", hint)
    for where, table in tables[chosen.value]:
        for name, raw in table.items():
            yield name, raw, f"profile {chosen.value} ({where})"


def parsed(name: str, raw: object, place: str) -> Any:
    """The value that ``raw`` stands for; ``UserError`` with the place."""
    try:
        return BY_NAME[name].kind.parse(raw)
    except ValueError as error:
        raise UserError("usage", f"{place}: {error}", getattr(error, "hint", "")) from error


def shown(name: str, value: Value) -> Value:
    """The value as it may be shown: of an address that holds a token, the service alone."""
    if not BY_NAME[name].secret:
        return value
    return Value(tuple(f"{one.partition('://')[0]}://{HIDDEN}" for one in value.value), value.origin)


def unknown_variables(variables: Mapping[str, str]) -> list[str]:
    """GANGRUN_* names that look like a misspelt setting, with the nearest one."""
    own = environment.OWN_VARIABLES | VARIABLES.keys()
    strange = [name for name in sorted(variables) if name.startswith(environment.PREFIX) and name not in own]
    nearest = {name: did_you_mean(name, VARIABLES, like=0.8) for name in strange}
    return [f"{name} is not a setting; {near}" for name, near in nearest.items() if near]


def _read(path: Path) -> Iterator[tuple[str, Any, str]]:
    """(setting, its value, file and line) for each key of a file; nothing if there is no file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = path.read_bytes().decode()
        table = tomllib.loads(text)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError("config", f"cannot read {path}: {error.strerror}", "see whether you may read it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError("config", f"{path} is not TOML: {error}", 'write one "name = value" per line') from error
    for key, value in table.items():
        name, line = key.replace("-", "_"), re.search(rf"^\s*\[?[\"']?{re.escape(key)}\b", text, re.MULTILINE)
        place = f"{path}:{text.count(chr(10), 0, line.end()) + 1}" if line else str(path)
        if name not in BY_NAME and name != PROFILES:
            hint = did_you_mean(name, BY_NAME) or f"known keys: {', '.join(BY_NAME)}"
            raise UserError("config", f"{place}: unknown key {key!r}", hint)
        yield name, value, f"{place}: {key}"
