"""``[health.commands]`` of gangrun.toml: a site's own checks.

[health.commands]
scratch = "/opt/site/check_scratch --quick"
fabric = { run = ["/opt/site/fabric", "-v"], timeout = "2m" }
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangrun.config.parsers import span_s
from gangrun.errors import did_you_mean

if TYPE_CHECKING:
    from gangrun.health.host.site import SiteCommand

KEYS = ("run", "timeout")
WHERE = "[health.commands]"
TIMEOUT_MAX_S = 600.0


def site_commands(table: Mapping[str, Any]) -> dict[str, SiteCommand]:
    """Every command by its name; ValueError otherwise."""
    from gangrun.health.host.site import COMMANDS_MAX_COUNT, NAMES

    if len(table) > COMMANDS_MAX_COUNT:
        raise ValueError(f"{WHERE} has {len(table)} commands; at most {COMMANDS_MAX_COUNT}")
    for name in table:
        if not NAMES.fullmatch(str(name)):
            raise ValueError(f"{WHERE} {name!r} is no name for a check: small letters, digits and _, a letter first")
    return {str(name): _command(str(name), given) for name, given in table.items()}


def _command(name: str, given: object) -> SiteCommand:
    from gangrun.health.host.site import SiteCommand

    if not isinstance(given, dict):
        return SiteCommand(_argv(name, given))
    for key in given:
        if key not in KEYS:
            hint = did_you_mean(str(key), KEYS) or f"known keys: {', '.join(KEYS)}"
            raise ValueError(f"{WHERE} {name}: unknown key {key!r}; {hint}")
    if "run" not in given:
        raise ValueError(f'{WHERE} {name} does not say what to run: {name} = {{ run = "...", timeout = "60s" }}')
    argv = _argv(name, given["run"])
    if "timeout" not in given:
        return SiteCommand(argv)
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
        raise ValueError(f"{WHERE} {name} = {given!r} is neither a command line nor a list of its words")
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError(f"{WHERE} {name} names no command")
    return tuple(words)
