"""Whose devices were put to work for a run, and what came out, as ``status`` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gangrun.core.model import Node
from gangrun.core.nodeset import fold, natural_sort
from gangrun.display.text import clean


def as_json(nodes: Mapping[str, Node]) -> list[dict[str, str]]:
    """One entry for each node that is being tested, or was and came out right; broken ones are excluded."""
    return [
        {"node": name, "state": "testing" if nodes[name].trial else "passed", "words": nodes[name].trial or passed}
        for name in natural_sort(nodes)
        if (passed := nodes[name].tested) or nodes[name].trial
    ]


def told(tests: Sequence[Mapping[str, str]]) -> str:
    """On one line; "" where no device was put to work."""
    passed = [one for one in tests if one["state"] == "passed"]
    testing = [f"{clean(one['node'])} is being tested ({clean(one['words'])})" for one in tests if one not in passed]
    if len(passed) == 1:
        return "; ".join([f"of {clean(passed[0]['node'])} work: {clean(passed[0]['words'])}", *testing])
    names = clean(fold([one["node"] for one in passed]))
    return "; ".join([*([f"of {names} work, as tested"] if passed else []), *testing])
