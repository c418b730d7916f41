"""A file of failure rates, as ``gangrun simulate --failures FILE.toml`` takes it: what may stand there, and its values.

``base`` names a table that is built in; what the file does not say is as there. docs/planning.md has an example.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gangrun.config.parsers import BadValue, positive_span_s, span_s, text
from gangrun.errors import UserError, did_you_mean
from gangrun.sim.failure_tables import TABLES, FailureCause, FailureKind, FailureTable, RecoverySeconds

NODES_MAX_COUNT = 4096  # that one outage takes
_EMPTY = FailureTable("", "", ())


def failure_table(word: str) -> FailureTable:
    """The table of that name, or of that file."""
    if word in TABLES:
        return TABLES[word]
    path = Path(word)
    if path.suffix != ".toml":
        hint = did_you_mean(word, TABLES) or "write rates into a file such as failures.toml"
        raise UserError("usage", f"--failures: {word!r} is neither {', '.join(TABLES)} nor a .toml file", hint)
    found = parsed_file(path, "docs/planning.md has an example")
    try:
        return _table(found, path)
    except BadValue as error:
        hint = getattr(error, "hint", "") or "docs/planning.md describes the file"
        raise UserError("config", f"{path}: {error}", hint) from error


def parsed_file(path: Path, hint: str) -> dict[str, Any]:
    """A file in TOML as a table; ``UserError`` if it cannot be read, with ``hint`` if it is no TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise UserError("config", f"cannot read {path}: {error.strerror}", "see whether the file is there") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError("config", f"{path} is not TOML: {error}", hint) from error


def _table(found: Mapping[str, Any], path: Path) -> FailureTable:
    values = {name: parse(found[name]) for name, parse in _KEYS.items() if name in found}
    known_keys(found, (*_KEYS, "recovery", "failure"), "")
    base: FailureTable = values.get("base", _EMPTY)
    rows = found.get("failure", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadValue("failure is not a list of tables", "write [[failure]] above each")
    causes = tuple(_cause(row, number) for number, row in enumerate(rows, 1)) or base.causes
    if not causes:
        raise BadValue("it has no failures", 'write a [[failure]] table, or base = "llama3"')
    recovery = found.get("recovery", {})
    if not isinstance(recovery, dict):
        raise BadValue("recovery is not a table", "write [recovery] above its lines")
    seconds = {one.name for one in fields(RecoverySeconds)}
    known_keys(recovery, seconds, "[recovery] ")
    took = {name: keyed_value(f"[recovery] {name}", span_s, value) for name, value in recovery.items()}
    return replace(
        base,
        name=values.get("name", path.stem),
        source=values.get("source", f"{path.name}{', else as ' + base.name if base.name else ''}"),
        causes=causes,
        queue_wait_s=values.get("queue_wait", base.queue_wait_s),
        free_nodes_share=values.get("free_nodes", base.free_nodes_share),
        lemon_share=values.get("lemon_share", base.lemon_share),
        lemon_factor=values.get("lemon_factor", base.lemon_factor),
        recovery=replace(base.recovery, **took),
    )


def _cause(row: Mapping[str, Any], number: int) -> FailureCause:
    where = f"[[failure]] {number}: "
    known_keys(row, _ROW, where)
    for name in ("cause", "kind"):
        if name not in row:
            raise BadValue(f"{where}{name} is missing")
    values = {name: keyed_value(f"{where}{name}", parse, row[name]) for name, parse in _ROW.items() if name in row}
    one = FailureCause(
        values["cause"],
        values["kind"],
        values.get("per_1000_node_days", 0.0),
        values.get("per_day", 0.0),
        values.get("lasts", _EMPTY_CAUSE.lasts_s),
        values.get("nodes", 1),
    )
    storage = one.kind is FailureKind.STORAGE
    if bool(one.per_day) != storage or bool(one.per_1000_node_days) == storage:
        raise BadValue(f"{where}its rate is not clear", "write per_day for storage, else per_1000_node_days, above 0")
    if one.nodes_count > 1 and one.kind is not FailureKind.OUTAGE:
        raise BadValue(f"{where}nodes is for outages only")
    return one


_EMPTY_CAUSE = FailureCause("", FailureKind.NODE)


def known_keys(found: Iterable[str], names: Iterable[str], where: str) -> None:
    """``BadValue`` with its place for a key that is not among ``names``."""
    known = list(names)
    for name in found:
        if name not in known:
            raise BadValue(f"{where}unknown key {name!r}", did_you_mean(name, known) or f"known: {', '.join(known)}")


def keyed_value(where: str, parse: Callable[[Any], Any], value: object) -> Any:
    """The value, or a ``BadValue`` with its place."""
    try:
        return parse(value)
    except BadValue as error:
        raise BadValue(f"{where}: {error}", error.hint) from error


def _number(least: float, most: float = math.inf) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            to = f" to {most:g}" if most < math.inf else " up"
            raise BadValue(f"{value!r} is not a number from {least:g}{to}")
        return float(value)

    return parse


def _base(value: object) -> FailureTable:
    if value not in TABLES:
        raise BadValue(f"base: {value!r} is not one of {', '.join(TABLES)}")
    return TABLES[str(value)]


def _kind(value: object) -> FailureKind:
    kinds = [one.value for one in FailureKind]
    if value not in kinds:
        raise BadValue(f"{value!r} is not one of {', '.join(kinds)}")
    return FailureKind(value)


def _nodes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= NODES_MAX_COUNT:
        raise BadValue(f"{value!r} is not a whole number from 1 to {NODES_MAX_COUNT}")
    return value


def _named(name: str, parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: keyed_value(name, parse, value)


_KEYS: dict[str, Callable[[object], Any]] = {
    "base": _base,
    "name": _named("name", text),
    "source": _named("source", text),
    "queue_wait": _named("queue_wait", span_s),
    "free_nodes": _named("free_nodes", _number(0.0, 10.0)),
    "lemon_share": _named("lemon_share", _number(0.0, 1.0)),
    "lemon_factor": _named("lemon_factor", _number(1.0, 10000.0)),
}
_ROW: dict[str, Callable[[object], Any]] = {
    "cause": text,
    "kind": _kind,
    "per_1000_node_days": _number(0.0, 1e6),
    "per_day": _number(0.0, 1e4),
    "lasts": positive_span_s,
    "nodes": _nodes,
}
