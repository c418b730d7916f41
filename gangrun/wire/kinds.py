"""The events and actions that a record or a message may name.

Apart from ``record`` so that whoever only replays a state does not pay for sixty classes that it never makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gangrun.core import actions as core_actions
from gangrun.core import events as core_events
from gangrun.core.model import Placement
from gangrun.wire.record import Act, RecordError, builtins, plain_placement, whole_placement

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in core_events.Event.__args__}
_ACTIONS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in core_actions.Action.__args__}


def act(action: core_actions.Action, n: int) -> Act:
    """The action as it is written down."""
    if isinstance(action, core_actions.StartGang):  # its seats are many, and are written as few
        seatless = replace(action, placement=Placement((), 0))
        args = {**builtins(seatless), "placement": plain_placement(action.placement)}
    else:
        args = builtins(action)
    return Act(kind=type(action).__name__, args=args, n=n)


def event_of(kind: str, data: Mapping[str, Any]) -> core_events.Event:
    """The event that a record or message names; ``RecordError`` if unknown, misshapen or with numbers that are none."""
    if not _finite(data):
        raise RecordError(f"event {kind}: a number is infinite or none at all")
    found: core_events.Event = _convert(_EVENTS, "event", kind, data)
    return found


def action_of(kind: str, data: Mapping[str, Any]) -> core_actions.Action:
    """The action that a record names; ``RecordError`` if unknown or misshapen."""
    if isinstance(placement := data.get("placement"), Mapping):
        data = {**data, "placement": whole_placement(placement)}
    found: core_actions.Action = _convert(_ACTIONS, "action", kind, data)
    return found


def _finite(plain: object) -> bool:
    match plain:
        case float():
            return math.isfinite(plain)
        case Mapping():
            return all(_finite(entry) for entry in plain.values())
        case list() | tuple():
            return all(_finite(entry) for entry in plain)
        case _:
            return True


def _convert(kinds: Mapping[str, type[Any]], what: str, kind: str, data: Mapping[str, Any]) -> Any:
    if kind not in kinds:
        raise RecordError(f"unknown {what} {kind!r}")
    try:
        return msgspec.convert(dict(data), kinds[kind])
    except msgspec.ValidationError as error:
        raise RecordError(f"{what} {kind}: {error}") from error
