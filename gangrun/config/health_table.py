"""``[health]`` of gangrun.toml: which bounds a user set for the checks of nodes, and which checks are off.

Pure parsing. A name that no bound or check has is an error that says the nearest one. A site's own checks:

    [health.commands]
    scratch = "/opt/site/check_scratch --quick"
    fabric = { run = ["/opt/site/fabric", "-v"], timeout = "2m" }
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangrun.errors import did_you_mean

if TYPE_CHECKING:
    from gangrun.health.host.site import SiteCommand

OFF, COMMANDS = "off", "commands"
KEYS = ("run", "timeout")
WHERE = "[health.commands]"
TIMEOUT_MAX_S = 600.0
SWITCHES = ("active_at_start", "active_on_suspicion", "move_suspects")  # what is done about what nodes show


@dataclass(frozen=True, slots=True)
class HealthTable:
    """The table, checked; as ``wire.spec.HealthSpec``, which costs more to load than most commands may."""

    bounds: dict[str, Any] = field(default_factory=dict)
    off: tuple[str, ...] = ()
    commands: dict[str, Any] = field(default_factory=dict)
    active_at_start: bool = False
    active_on_suspicion: bool = True
    move_suspects: bool = True


def health_table(value: object) -> HealthTable:
    """What ``[health]`` says; ValueError otherwise."""
    from gangrun.health.catalogue import ACTIVE_CHECKS, CHECKS
    from gangrun.health.framework.check import HealthPolicy

    if not isinstance(value, dict):
        hint = "to turn all checks off, write no_health = true outside it"
        raise ValueError(f"[health] must be a table, for example [health] margin_warn_c = 3; {hint}")  # noqa: TRY004
    bounds: dict[str, Any] = {}
    off: tuple[str, ...] = ()
    commands: dict[str, Any] = {}
    switches: dict[str, bool] = {}
    known = HealthPolicy.__dataclass_fields__
    for key, given in value.items():
        name = str(key).replace("-", "_")
        if name == OFF:
            off = _checks(given, [check.name for check in (*CHECKS, *ACTIVE_CHECKS)])
        elif name == COMMANDS:
            commands = _commands(given)
        elif name in SWITCHES:
            if not isinstance(given, bool):
                raise ValueError(f"[health] {name} = {given!r}: true or false")
            switches[name] = given
        elif name in known:
            bounds[name] = _bound(name, given, str(known[name].type))
        else:
            raise ValueError(f"unknown key {key!r} in [health]{_nearest(name, [*known, OFF, COMMANDS, *SWITCHES])}")
    try:
        HealthPolicy(**bounds)
    except ValueError as error:
        raise ValueError(f"[health] {error}") from None
    return HealthTable(bounds=bounds, off=off, commands=commands, **switches)


def _commands(given: object) -> dict[str, Any]:
    """As they are, once each is seen to be one."""
    if not isinstance(given, dict):
        raise ValueError(f'{WHERE} is a table, as in: scratch = "/opt/site/check_scratch"')  # noqa: TRY004
    site_commands(given)
    return given


def _checks(given: object, names: list[str]) -> tuple[str, ...]:
    wanted = [given] if isinstance(given, str) else given
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        raise ValueError('[health] off: names of checks, as in off = ["host_load", "gpu_modes"]')
    for one in wanted:
        if one not in names:
            raise ValueError(f"[health] off: no check is called {one!r}{_nearest(one, names)}")
    return tuple(dict.fromkeys(wanted))


def _bound(name: str, given: object, kind: str) -> float | int | tuple[str, ...]:
    if kind.startswith("tuple"):
        if not isinstance(given, list) or not all(isinstance(one, str) and one and "/" not in one for one in given):
            raise ValueError(f'[health] {name}: names of devices, as in {name} = ["mlx5_0"]')
        return tuple(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError(f"[health] {name} = {given!r} is not a number")  # noqa: TRY004 - a user's mistake
    if kind.startswith("int") and given != int(given):
        raise ValueError(f"[health] {name} = {given!r} is not a whole number")
    return int(given) if kind.startswith("int") else float(given)


def _nearest(name: str, names: Iterable[str]) -> str:
    near = did_you_mean(name, names)
    return f"; {near}" if near else ""


# ---- a site's own checks ---------------------------------------------------------------------------------------------


def site_commands(table: Mapping[str, Any]) -> dict[str, SiteCommand]:
    """Every command by its name; ValueError otherwise."""
    from gangrun.health.host.site import COMMANDS_MAX_COUNT, NAMES

    if len(table) > COMMANDS_MAX_COUNT:
        raise ValueError(f"{WHERE} has {len(table)} commands; at most {COMMANDS_MAX_COUNT}")
    for name in table:
        if not NAMES.fullmatch(str(name)):
            raise ValueError(
                f"{WHERE} {name!r} is not a name for a check: use small letters, digits and _, with a letter first"
            )
    return {str(name): _site_command(str(name), given) for name, given in table.items()}


def _site_command(name: str, given: object) -> SiteCommand:
    from gangrun.health.host.site import SiteCommand

    if not isinstance(given, dict):
        return SiteCommand(_argv(name, given))
    for key in given:
        if key not in KEYS:
            hint = did_you_mean(str(key), KEYS) or f"known keys: {', '.join(KEYS)}"
            raise ValueError(f"{WHERE} {name}: unknown key {key!r}; {hint}")
    if "run" not in given:
        raise ValueError(f'{WHERE} {name} has no command: write {name} = {{ run = "...", timeout = "60s" }}')
    argv = _argv(name, given["run"])
    if "timeout" not in given:
        return SiteCommand(argv)
    from gangrun.config.parsers import span_s  # which costs more to load than the watching of a node may

    try:
        within_s = span_s(given["timeout"])
    except ValueError as error:
        raise ValueError(f"{WHERE} {name}: timeout: {error}") from None
    if not 0 < within_s <= TIMEOUT_MAX_S:
        raise ValueError(f"{WHERE} {name}: timeout: more than 0, at most {TIMEOUT_MAX_S:.0f} s")
    return SiteCommand(argv, within_s)


def _argv(name: str, given: object) -> tuple[str, ...]:
    """Words of a command line, quoted as for a shell; no shell reads them."""
    if isinstance(given, str):
        try:
            words = shlex.split(given)
        except ValueError as error:
            raise ValueError(f"{WHERE} {name}: {given!r} is no command line: {error}") from None
    elif isinstance(given, list) and all(isinstance(one, str) for one in given):
        words = list(given)
    else:
        wrong = "has the wrong form: write the command as one string, or as a list of strings"
        raise ValueError(f"{WHERE} {name} = {given!r} {wrong}")
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError(f"{WHERE} {name} has an empty command")
    return tuple(words)
