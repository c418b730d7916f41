"""NVIDIA's binding and what it raises: the only module that imports pynvml.

Everything is asked by name, as functions and structures come and go with drivers and bindings: what either of them does
not know is ``Refused`` with a number, as all that NVML refuses is, and never an error of ours. A new reading is a
function of a few lines in the module of its kind (``memory``, ``running``, ``links``), and a row of its table.
Any call here may hang on a sick driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NewType

import pynvml

from gangrun.adapters.nvml.codes import (
    ARGUMENT_VERSION_MISMATCH,
    BINDING_TOO_OLD,
    NEVER_SAID,
    NOT_SUPPORTED,
    UNKNOWN,
    VALUE_TYPES,
)

Handle = NewType("Handle", object)  # of one GPU, opaque


class Refused(Exception):
    """NVML's return code, and its own words for it."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(words)
        self.code = code


def start() -> None:
    """Load the library and begin; each needs its ``stop``."""
    ask("nvmlInit")


def stop() -> None:
    """Let go; what cannot be let go in order is left to the process's end."""
    try:
        ask("nvmlShutdown")
    except Refused:
        return


def count() -> int:
    """How many GPUs this user can see."""
    return int(ask("nvmlDeviceGetCount"))


def handle(index: int) -> Handle:
    """The GPU of this number."""
    return Handle(ask("nvmlDeviceGetHandleByIndex", index))


def ask(function: str, *about: Any) -> Any:
    """What this function of the binding returns."""
    try:
        return getattr(pynvml, function)(*about)
    except pynvml.NVMLError as error:
        raise Refused(int(getattr(error, "value", UNKNOWN)), str(error)) from error
    except AttributeError as error:
        raise Refused(BINDING_TOO_OLD, str(error)) from error


def text(function: str, *about: Any) -> str:
    """The same as text."""
    return words(ask(function, *about))


def words(value: Any) -> str:
    """Text, of which some bindings hand out the bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def either(newer: str, older: str, *about: Any) -> Any:
    """The newer function, or the older one where this driver or binding has no other."""
    try:
        return ask(newer, *about)
    except Refused as why:
        if why.code not in NEVER_SAID:
            raise
        return ask(older, *about)


def filled(function: str, of: Handle, *structures: str) -> Any:
    """The first of these structures that the driver knows, filled in by it."""
    *newer, oldest = structures
    for name in newer:
        try:
            return _filled(function, of, name)
        except Refused as why:
            if why.code not in (ARGUMENT_VERSION_MISMATCH, BINDING_TOO_OLD):
                raise
    return _filled(function, of, oldest)


def _filled(function: str, of: Handle, name: str) -> Any:
    structure = ask(name)
    ask(function, of, pynvml.byref(structure))
    return structure


def constant(name: str) -> Any:
    """A constant of the binding."""
    try:
        return getattr(pynvml, name)
    except AttributeError as error:
        raise Refused(BINDING_TOO_OLD, str(error)) from error


def fields(of: Handle, asked: Sequence[int | tuple[int, int]]) -> list[float | Refused]:
    """Fields by number, or by number and scope. Each has a return code of its own, which goes before its value."""
    return [_value(answer) for answer in ask("nvmlDeviceGetFieldValues", of, list(asked))]


def _value(answer: Any) -> float | Refused:
    if answer.nvmlReturn != 0:
        return Refused(int(answer.nvmlReturn), str(pynvml.NVMLError(answer.nvmlReturn)))
    kind = VALUE_TYPES.get(int(answer.valueType))
    if kind is None or not hasattr(answer.value, kind):
        return Refused(NOT_SUPPORTED)
    found: float = getattr(answer.value, kind)
    return found


def field(of: Handle, number: int) -> float:
    """One field."""
    [answer] = fields(of, [number])
    if isinstance(answer, Refused):
        raise answer
    return answer
