"""CURVE key pairs: one client pair per run, in its private directory, and a server pair per term and per agent.

(Room: adapters/net.) Whoever can read the run's client key can speak to its agents and its supervisor, so a file that
others could read is refused.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

KEY_CHARS = 40  # Z85 of 32 bytes


class KeyRefused(ValueError):
    """A key that may not be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both halves in Z85; the secret stays out of every repr."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def new_key_pair() -> KeyPair:
    """A fresh pair from the system's randomness."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def write_client_key(path: Path) -> KeyPair:
    """Make the run's client pair and write it, mode 0600, never over another one."""
    pair = new_key_pair()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode({"public": pair.public, "secret": pair.secret}) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return pair


def read_client_key(path: Path) -> KeyPair:
    """The run's client pair; ``KeyRefused`` where it is not one, or not only ours."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid():
            raise KeyRefused(f"{path} belongs to another user: this is not your run")
        if stat.S_IMODE(facts.st_mode) & 0o077:
            raise KeyRefused(f"{path} can be read by others (mode {stat.S_IMODE(facts.st_mode):04o}): chmod 600 it")
        data = file.read(4096)
    try:
        pair = msgspec.json.decode(data, type=KeyPair)
    except msgspec.MsgspecError as error:
        raise KeyRefused(f"{path} does not hold a key pair: {error}") from error
    if len(pair.public) != KEY_CHARS or len(pair.secret) != KEY_CHARS:
        raise KeyRefused(f"{path} does not hold a key pair: wrong length")
    return pair
