"""How the training goes, in numbers.

``supervisor.progress.GangFigures`` writes them beside the journal. A reader believes none of them:
the file may be of another version, or damaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gangrun.core.model import Attempt
from gangrun.core.text import json_number

Struct = TypeVar("Struct", bound=msgspec.Struct)
NOT_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of all ranks are used; null: they do not say."""

    count: int
    busy_percent: float | None = None  # the mean
    busy_min_percent: int | None = None
    memory_used_bytes: int | None = None  # of the fullest one
    memory_bytes: int | None = None  # that this one has
    power_w: int | None = None  # of all together
    temperature_c: int | None = None  # of the hottest one
    slowed_count: int = 0  # those whose clock heat, a power brake or their hardware hold down


class StandbyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that have imported what ranks import, and wait to become one after a failure."""

    count: int
    memory_bytes: int  # that are theirs alone, on all nodes together
    nodes: str  # folded


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The newest figures of an attempt; None: not known. The fields of ``Status`` have the same names."""

    loss: float | str | None = None
    grad_norm: float | str | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    gpu: GpuFigures | None = None
    phase: str | None = None  # train, eval, checkpoint or startup, as the script says
    standbys: StandbyFigures | None = None


def figures_of(live: Mapping[str, Any], step: int | None, attempt: Attempt, *, ended: bool) -> Figures:
    """What the supervisor wrote last; ``step`` is the newest one. Of ranks that have ``ended`` counts what they told
    at their end, which the supervisor may have written of too late.
    """
    total, per_s = _count(live.get("total_steps")) or _count(attempt.total_steps), _positive(live.get("steps_per_s"))
    known = total is not None and step is not None and per_s is not None
    return Figures(
        loss=_number(attempt.loss if ended and attempt.loss is not None else live.get("loss")),
        grad_norm=_number(live.get("grad_norm")),
        total_steps=total,
        steps_per_s=per_s,
        eta_s=max(0, total - step) / per_s if known else None,  # type: ignore[operator]
        tokens=_count(live.get("tokens")),
        tokens_per_s=_positive(live.get("tokens_per_s")),
        gpu=None if ended else _struct(live.get("gpu"), GpuFigures),
        standbys=None if ended else _struct(live.get("standbys"), StandbyFigures),
        phase=None if ended else _phase(_count(live.get("slot_phase")) or 0),
    )


def _phase(number: int) -> str | None:
    if not number:
        return None
    from gangrun.wire.progress import TrainingPhase  # not what most looks at a run should wait for

    return TrainingPhase(number).name.lower() if number in set(TrainingPhase) else None


def _struct(value: object, kind: type[Struct]) -> Struct | None:
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _number(value: object) -> float | str | None:
    if isinstance(value, str):
        return value if value in NOT_NUMBERS else None
    return json_number(float(value)) if isinstance(value, int | float) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None
