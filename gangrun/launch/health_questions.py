"""The children that health asks, and what it keeps between two calls."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gangrun.config import environment

if TYPE_CHECKING:
    from gangrun.health.framework.check import NodeFacts, Reading

KEPT_MAX_BYTES = 1_000_000


class Asking:
    """``health.rounds.Probes``: children that answer in JSON, read with care."""

    def __init__(self, variables: dict[str, str]) -> None:
        from gangrun.adapters.local.probe_children import ProbeChildren

        package = str(Path(__file__).resolve().parents[2])
        inherited = variables.get("PYTHONPATH")
        found = {**variables, "PYTHONPATH": f"{package}{os.pathsep}{inherited}" if inherited else package}
        self._children = ProbeChildren((sys.executable, "-m", "gangrun.entry.health_probe"), found)

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        """One question, in a process of its own."""
        from gangrun.health.framework.readings import facts_from

        return facts_from(self._children.ask(kind, words, within_s))


def baseline_of(node: str) -> Reading | None:
    """What the devices of this node reached before; None where nothing was kept, or nothing that makes sense."""
    from gangrun.health.framework.readings import reading_from, text_of

    try:
        return reading_from(json.loads(text_of(_kept(node), KEPT_MAX_BYTES)))
    except (ValueError, RecursionError):
        return None


def keep_baseline(node: str, reading: Reading) -> str:
    """Keep it for the next call; why it could not be kept, or ""."""
    from gangrun.health.framework.readings import plain_reading

    path = _kept(node)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(json.dumps(plain_reading(reading)) + "\n", "ascii")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        return f"{path} cannot be written: {error.strerror}"
    return ""


def _kept(node: str) -> Path:
    return environment.state_home() / "health" / f"{node}.json"
