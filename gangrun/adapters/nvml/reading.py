"""The shape of a reading: a name, and what is asked of a GPU under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangrun.adapters.nvml import library
from gangrun.adapters.nvml.library import Handle

Plain = dict[str, Any]
Getter = Callable[[Handle], Plain]
LinkGetter = Callable[[Handle, int], Plain]


def named(name: str, function: str, *more: int, per: int = 1) -> tuple[str, Getter]:
    """What one function says; ``per``: so many of its units are one of ours."""
    if per == 1:
        return name, lambda gpu: {name: library.ask(function, gpu, *more)}
    return name, lambda gpu: {name: library.ask(function, gpu, *more) / per}


def worded(name: str, function: str) -> tuple[str, Getter]:
    """The same, where it says a word."""
    return name, lambda gpu: {name: library.text(function, gpu)}


def either(name: str, newer: str, older: str, *more: int) -> tuple[str, Getter]:
    """What the newer function says, or the older one where there is no other."""
    return name, lambda gpu: {name: library.either(newer, older, gpu, *more)}


_known: dict[tuple[str, str], Plain] = {}  # by UUID and name


def once(name: str, getter: Getter) -> tuple[str, Getter]:
    """What does not change while the driver runs, or is costly as it reads the flash: once in each process."""

    def ask(gpu: Handle) -> Plain:
        key = (library.text("nvmlDeviceGetUUID", gpu), name)
        if key not in _known:
            _known[key] = getter(gpu)
        return _known[key]

    return name, ask


def of_field(name: str, number: int) -> tuple[str, Getter]:
    """What one field says."""
    return name, lambda gpu: {name: library.field(gpu, number)}
