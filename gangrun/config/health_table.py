"""``[health]`` of gangrun.toml: which bounds a user set for the checks of nodes, and which checks are off.

Pure parsing. A name that no bound or check has is an error that says the nearest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gangrun.errors import did_you_mean

OFF, COMMANDS = "off", "commands"
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
        raise ValueError("[health] is a table, as in: [health] margin_warn_c = 3; to turn it off: no_health = true")  # noqa: TRY004
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
    from gangrun.config.site_checks import WHERE, site_commands

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
            raise ValueError(f"[health] off: there is no check {one!r}{_nearest(one, names)}")
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
