"""What is to be drilled, and what must hold: the plan's file, drills drawn by chance from a seed, and the SLA.

random = 5                     # or [[drill]] tables, or both; all keys are optional but kind
kinds = ["kill-rank"]          # what to draw from

[sla]
noticed = "10s"

[[drill]]
kind = "kill-rank"
rank = 1                       # else the seed chooses one
at_step = 40                   # else after = "5s", counted from the last recovery
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gangrun.config.failure_file import keyed_value, known_keys, parsed_file
from gangrun.config.parsers import BadValue, positive_span_s, span_s, switch, text, whole
from gangrun.errors import UserError, did_you_mean
from gangrun.launch.chaos.kinds import KINDS, DrillKind, refusal_of

DRILLS_MAX_COUNT = 1000
DEFAULT_AFTER_S = 3.0
HINT = "docs/drill.md describes the file"


@dataclass(frozen=True, slots=True)
class Sla:
    """What must hold of a drill. None: the kind's own limit (``noticed_s``), or no limit (``steps_lost_count``)."""

    noticed_s: float | None = None
    right_cause: bool = True
    right_node: bool = True
    steps_lost_count: int | None = 100
    recovery_s: float = 60.0
    orphans_count: int = 0
    leaked_allocations_count: int = 0


NOTICED_S = 10.0  # of kinds that have no limit of their own


def noticed_limit_s(sla: Sla, kind: DrillKind) -> float:
    """How soon a fault of this kind must be noticed."""
    if sla.noticed_s is not None:
        return sla.noticed_s
    own_s = KINDS[kind].noticed_s
    return NOTICED_S if own_s is None else own_s


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault. ``rank`` -1 and ``node`` "": the seed chooses. ``at_step`` -1: ``after_s`` counts."""

    kind: DrillKind
    rank: int = -1
    node: str = ""
    at_step: int = -1
    after_s: float = DEFAULT_AFTER_S
    sla: Sla = Sla()
    choice: float = 0.0  # from the seed: of what nobody named, which one


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """All drills, one after the other."""

    drills: tuple[Drill, ...]
    seed: int = 0

    @property
    def kinds(self) -> frozenset[DrillKind]:
        """The kinds that it has."""
        return frozenset(one.kind for one in self.drills)


def drill_kind(value: object) -> DrillKind:
    """The kind of that name."""
    names = [kind.value for kind in DrillKind]
    if value not in names:
        raise BadValue(f"{value!r} is no kind of drill", did_you_mean(str(value), names) or "see gangrun chaos --list")
    return DrillKind(value)


def plan_of(path: Path | None, kinds: Sequence[DrillKind], seed: int, *, local: bool) -> DrillPlan:
    """The plan of a file, or one drill of each of ``kinds``, with all that the seed decides; ``UserError``."""
    if path is None:
        found = [Drill(kind) for kind in kinds]
        return _ready(found, seed, local=local)
    table = parsed_file(path, HINT)
    try:
        return _ready(_drills(table, seed, local=local) + [Drill(kind) for kind in kinds], seed, local=local)
    except BadValue as error:
        raise UserError("config", f"{path}: {error}", error.hint or HINT) from error


def _ready(drills: list[Drill], seed: int, *, local: bool) -> DrillPlan:
    if not drills:
        raise UserError("usage", "the plan has no drills", "write [[drill]] tables or random = N, or name --kind")
    if len(drills) > DRILLS_MAX_COUNT:
        raise UserError("usage", f"{len(drills)} drills are too many", f"at most {DRILLS_MAX_COUNT}")
    for one in drills:
        if why := refusal_of(one.kind, local=local):
            hint = "gangrun chaos --list shows which kinds can be done where"
            raise UserError("refused", f"{one.kind.value} cannot be done to this run: {why}", hint)
    ends = [number for number, one in enumerate(drills) if KINDS[one.kind].ends]
    if not local and ends and ends[0] < len(drills) - 1:
        kind = drills[ends[0]].kind.value
        raise UserError("usage", f"{kind} ends the run, so no drill can come after it", "make it the last one")
    chance = random.Random(f"drills {seed}")
    return DrillPlan(tuple(replace(one, choice=chance.random()) for one in drills), seed)


def _drills(table: Mapping[str, Any], seed: int, *, local: bool) -> list[Drill]:
    known_keys(table, ("random", "kinds", "sla", "drill"), "")
    sla = _sla(table.get("sla", {}), Sla(), "[sla] ")
    rows = table.get("drill", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadValue("drill is not a list of tables", "write [[drill]] above each")
    drills = [_drill(row, sla, number) for number, row in enumerate(rows, 1)]
    count = keyed_value("random", whole(1), table["random"]) if "random" in table else 0
    names = table.get("kinds", [])
    if not isinstance(names, list):
        raise BadValue("kinds is not a list", 'write kinds = ["kill-rank", "stop-rank"]')
    kinds = [keyed_value("kinds", drill_kind, name) for name in names]
    chance = random.Random(f"kinds {seed}")
    drawn = kinds or [kind for kind, row in KINDS.items() if not refusal_of(kind, local=local) and not row.ends]
    return drills + [Drill(chance.choice(drawn), sla=sla) for _ in range(min(count, DRILLS_MAX_COUNT + 1))]


def _drill(row: Mapping[str, Any], sla: Sla, number: int) -> Drill:
    where = f"[[drill]] {number}: "
    known_keys(row, (*_ROW, "kind", "sla"), where)
    if "kind" not in row:
        raise BadValue(f"{where}kind is missing")
    if "at_step" in row and "after" in row:
        raise BadValue(f"{where}at_step and after exclude each other")
    values = {
        into: keyed_value(f"{where}{name}", parse, row[name]) for name, (into, parse) in _ROW.items() if name in row
    }
    kind = keyed_value(f"{where}kind", drill_kind, row["kind"])
    return Drill(kind, sla=_sla(row.get("sla", {}), sla, f"{where}sla: "), **values)


def _sla(table: object, base: Sla, where: str) -> Sla:
    if not isinstance(table, dict):
        raise BadValue(f"{where}is not a table")
    known_keys(table, _SLA, where)
    values = {into: keyed_value(f"{where}{name}", parse, table[name]) for name, (into, parse) in _SLA.items()
              if name in table}  # fmt: skip
    return replace(base, **values)


_ROW: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "rank": ("rank", whole(0)),
    "node": ("node", text),
    "at_step": ("at_step", whole(0)),
    "after": ("after_s", span_s),
}
_SLA: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "noticed": ("noticed_s", positive_span_s),
    "right_cause": ("right_cause", switch),
    "right_node": ("right_node", switch),
    "steps_lost": ("steps_lost_count", whole(0)),
    "recovery": ("recovery_s", positive_span_s),
    "orphans": ("orphans_count", whole(0)),
    "leaked_allocations": ("leaked_allocations_count", whole(0)),
}
assert {into for into, _ in _SLA.values()} == {one.name for one in fields(Sla)}
