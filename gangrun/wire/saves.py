"""What a run's checkpointer tells people of its saves.

One block of constant length, written over and over at the same place: so there is room for the news that the disk is
full. Written by ``training/save/saver.py`` beside the run's staging, read by ``gangrun status``.
"""

from __future__ import annotations

import msgspec

SCHEMA = 1
NAME = "saves.json"
SIZE_BYTES = 4096
ATTEMPTS_MAX_COUNT = 24  # as many as surely have room
_CHARS_COUNT = 400


class SavesTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """As of the newest save that ended; times are seconds since the epoch."""

    attempt: int
    at: float
    interval_s: float  # what saving by time aims at; of an interval in steps the number of steps
    interval_reason: str
    schema: int = SCHEMA
    saved_step: int = -1  # the newest one that this attempt committed
    saved_at: float = 0.0
    persist_s: float = 0.0  # what writing it out took, beside training
    failures_count: int = 0  # in a row; 0: the newest save was committed
    failed_step: int = -1
    failed_why: str = ""
    stalled: tuple[tuple[int, float], ...] = ()  # newest attempts, and how long training stood still for their saves


def encode(told: SavesTold) -> bytes:
    """As one block; long words are cut."""
    short = msgspec.structs.replace(told, interval_reason=_cut(told.interval_reason), failed_why=_cut(told.failed_why))
    return msgspec.json.encode(short).ljust(SIZE_BYTES - 1) + b"\n"


def _cut(words: str) -> str:
    """As many as surely have room in any spelling."""
    return "".join(c if c.isprintable() else "?" for c in words[:_CHARS_COUNT])


def decode(data: bytes) -> SavesTold | None:
    """None for what is torn, alien or newer."""
    try:
        told = msgspec.json.decode(data, type=SavesTold)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return told if told.schema == SCHEMA else None
