"""A site's own checks: commands that end with 0 (well), 1 (not well) or else, which says nothing.

Each runs as a child with a time limit, without a shell. ``[health.commands]`` names them; see ``config.health_table``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gangrun.health.framework.check import (
    FAIL,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Needs,
    NodeFacts,
    Scope,
    Value,
)  # fmt: skip
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings

NAME, PREFIX = "site", "site_"
ENDS_BEFORE_S = 2.0  # the one who starts the command is given so much more
WELL, NOT_WELL = 0, 1
COMMANDS_MAX_COUNT = 20
SITE = CheckSubject(Scope.NODE, CauseClass.EITHER, Needs.ADMIN)
NAMES = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True, slots=True)
class SiteCommand:
    """One command, as argv."""

    argv: tuple[str, ...]
    within_s: float = 30.0


def family(commands: Mapping[str, SiteCommand]) -> CheckFamily | None:
    """A check for each; None where there is none."""
    if not commands:
        return None
    within_s = sum(one.within_s + ENDS_BEFORE_S for one in commands.values())
    checks = tuple(
        Check(PREFIX + name, NAME, f"`{' '.join(one.argv)}` is content", partial(_judge, name), 300.0, SITE)
        for name, one in commands.items()
    )
    return CheckFamily(NAME, within_s + ENDS_BEFORE_S, partial(_read, commands), checks)


def _read(commands: Mapping[str, SiteCommand], around: HealthSurroundings) -> NodeFacts:
    values: dict[str, Mapping[str, Value]] = {}
    missing: dict[str, Mapping[str, str]] = {}
    for name, one in commands.items():
        said = around.probes.ask("command", (f"{one.within_s:g}", *one.argv), one.within_s + ENDS_BEFORE_S)
        values[name] = said.values.get("command", {})
        why = said.absent or said.missing.get("command", {}).get("code", "")
        if why:
            missing[name] = {"code": why}
    return NodeFacts(values, missing)


def _judge(name: str, look: CheckLook) -> CheckOutcome:
    """Its exit code is its verdict, its last line the sentence."""
    limit = "ends with 0"
    code, said = look.number(name, "code"), str(look.facts.get(name, "said") or "")
    if code is None:
        return CheckOutcome("-", limit, unknown=look.facts.missing.get(name, {}).get("code", "") or "it was not run")
    shown, words = f"ended with {code:.0f}", f": {said}" if said else ""
    if code not in (WELL, NOT_WELL):
        return CheckOutcome(shown, limit, unknown=f"the command {shown}, which says nothing of the node{words}")
    sentence = f"this site's check {name} fails{words}"
    return CheckOutcome(shown, limit, (look.found(FAIL, "node", sentence, code),) if code == NOT_WELL else ())
