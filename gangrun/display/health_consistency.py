"""What should be the same on every node, compared between those that answered: driver, firmware.

A difference is a set-up's matter: a warning, told at nodes that have what fewer have, and no reason to leave one out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gangrun.core.nodeset import fold
from gangrun.health.framework.bounds import most_common

if TYPE_CHECKING:
    from gangrun.display.health_fold import Said


def compared(nodes: Sequence[Said]) -> list[Said]:
    """The nodes, with a warning more for each thing in which they are not as most of the others."""
    kinds: dict[tuple[str, str], dict[str, str]] = {}
    for one in nodes:
        for check, kind, version in _versions(one):
            kinds.setdefault((check, kind), {})[one.node] = version
    more: dict[str, list[tuple[str, str, str]]] = {}
    for (check, kind), versions in kinds.items():
        common = most_common(versions.values())
        others = fold(node for node, version in versions.items() if version == common)
        for node, version in versions.items():
            if version != common:
                sentence = f"its {kind} is {version}, and that of {others} is {common}"
                more.setdefault(node, []).append(("warn", check, sentence))
    return [replace(one, wrong=(*one.wrong, *more.get(one.node, ()))) for one in nodes]


def _versions(one: Said) -> Iterator[tuple[str, str, str]]:
    """What a node said, read with care: (check, kind, version)."""
    checks = one.plain.get("checks")
    for check in checks if isinstance(checks, list) else ():
        alike = check.get("alike") if isinstance(check, dict) else None
        if isinstance(alike, dict):
            yield from ((str(check.get("check")), str(kind), str(version)) for kind, version in alike.items())
