"""A supervisor's claim to a term, as ``terms/N.json`` holds it."""

from __future__ import annotations

import msgspec


class ClaimError(ValueError):
    """A claim file that cannot be read as one."""


class Claim(msgspec.Struct, frozen=True):
    """Who holds ``term``, and where agents reach it. ``server_key`` is the public CURVE key of this term."""

    term: int
    run: str
    job: str
    node: str
    pid: int
    start_ticks: int
    endpoint: str
    server_key: str
    claimed_wall: float
    v: int = 1


def encode(claim: Claim) -> bytes:
    """As JSON."""
    return msgspec.json.encode(claim) + b"\n"


def decode(data: bytes) -> Claim:
    """Read a claim; ``ClaimError`` says why it is none."""
    try:
        return msgspec.json.decode(data, type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClaimError(f"not a claim: {error}") from error
