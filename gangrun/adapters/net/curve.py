"""CURVE keys and who may connect with them: one client pair per run, a server pair per term and per agent.

A process that can read the run's client key can speak to its agents and its supervisor, so a file that others could
read is refused. Without a ZAP handler libzmq admits *any* client key to a CURVE server. Each context that serves
therefore has a ``Gate`` bound before its first server socket, and the servers refuse to work without it
(``ZAP_ENFORCE_DOMAIN``). The gate answers in the thread that polls it. One context serves one run.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

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


ADDRESS = "inproc://zeromq.zap.01"
DOMAIN = b"gangrun"
FRAMES_COUNT = 9  # route, "", version, request, domain, address, identity, mechanism, key


class Gate:
    """The ZAP handler of one context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], client_public: str) -> None:
        self._allowed = z85.decode(client_public.encode("ascii"))
        self.refused_count = 0
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ADDRESS)

    def answer(self) -> None:
        """Answer every question that waits."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) < 8:
                continue
            route, request, domain, mechanism = frames[0], frames[3], frames[4], frames[7]
            admitted = (
                domain == DOMAIN
                and mechanism == b"CURVE"
                and len(frames) == FRAMES_COUNT
                and frames[8] == self._allowed
            )
            self.refused_count += not admitted
            verdict = (b"200", b"OK") if admitted else (b"400", b"not of this run")
            self.socket.send_multipart([route, b"", b"1.0", request, *verdict, b"", b""], zmq.NOBLOCK)

    def close(self) -> None:
        """Nobody is admitted any more."""
        self.socket.close(0)
