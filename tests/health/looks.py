"""What tests of checks share: readings made of values, trees of files, probes that answer by script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangrun.health.catalogue import CHECKS, FAMILIES
from gangrun.health.framework.check import Check, CheckVerdict, HealthPolicy, NodeFacts, Reading, Value, judged
from gangrun.health.framework.readings import facts_from, reading_from
from gangrun.health.framework.rounds import CheckFamily

RECORDED = Path(__file__).parent / "recorded"
POLICY = HealthPolicy()


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


def family(name: str) -> CheckFamily:
    return next(one for one in FAMILIES if one.name == name)


def reading(values: Mapping[str, Mapping[str, Value]], at: float = 1000.0, boot: str = "b", **missing: str) -> Reading:
    return Reading("any", at, boot, NodeFacts(values, {"node": missing} if missing else {}))


def recorded(name: str) -> Reading:
    found = reading_from(json.loads((RECORDED / f"{name}.json").read_text("utf-8")))
    assert found is not None, name
    return found


def look(name: str, now: Reading, before: Reading | None = None, policy: HealthPolicy = POLICY) -> CheckVerdict:
    """One check's verdict, with its family's memory of the reading before."""
    one = check(name)
    remember = family(one.family).remember
    was = remember(before, None) if before is not None else None
    return judged(one, remember(now, was), was, policy)


@dataclass
class HandClock:
    """A clock that tests set."""

    at: float = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


@dataclass
class Scripted:
    """Probes that answer what a test says, and remember what they were asked."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        self.asked.append((kind, words))
        answer = self.answers.get(kind, {"absent": "not scripted"})
        return facts_from(answer(*words) if isinstance(answer, Callable) else answer)  # type: ignore[arg-type]


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def verdict_after(name: str, readings: Sequence[Reading], policy: HealthPolicy = POLICY) -> CheckVerdict:
    """The verdict on the last of several looks, each remembered by the next as ``Rounds`` does."""
    one = check(name)
    remember, was, now = family(one.family).remember, None, None
    for each in readings:
        was, now = now, remember(each, now)
    assert now is not None
    return judged(one, now, was, policy)
