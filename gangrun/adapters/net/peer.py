"""Agents among themselves: promises, dials, pings.

Each agent has a CURVE ROUTER with a key of its own, behind the same gate as the supervisor's; ``Hello`` tells where.
To speak first an agent opens a short-lived DEALER to the other's; answers come back on the route of the question.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import zmq

from gangrun.adapters.net.curve import KeyPair, new_key_pair
from gangrun.adapters.net.sockets import Context, Socket, client, decoded, server
from gangrun.wire.messages import BetweenAgents, Message, PeerAddress, encode

IDLE_S = 15.0  # a promise is said again every second: its line stays open
LINES_MAX_COUNT = 32
TAKE_MAX_COUNT = 256


@dataclass(slots=True)
class _Line:
    socket: Socket
    used_at: float


class PeerSocket:
    """One agent's ear for its peers, and its lines to them."""

    def __init__(
        self, context: Context, run: str, keys: KeyPair, node: str, name: str, host: str, stats: Counter[str]
    ) -> None:
        own = new_key_pair()
        self.socket, endpoint = server(context, own, host)
        self.address = PeerAddress(node, endpoint, own.public)
        self._context = context
        self._run = run
        self._keys = keys
        self._name = name
        self._stats = stats
        self._lines: dict[tuple[str, str], _Line] = {}
        self._opened_count = 0

    def sockets(self) -> list[Socket]:
        """All that may become readable."""
        return [self.socket, *(line.socket for line in self._lines.values())]

    def say(self, peer: PeerAddress, message: BetweenAgents, now: float) -> None:
        """Fire and forget."""
        line = self._line(peer, now)
        if line is None:
            return
        try:
            line.socket.send(encode(self._run, message), zmq.NOBLOCK)
        except zmq.Again:
            self._stats["queue full"] += 1

    def _line(self, peer: PeerAddress, now: float) -> _Line | None:
        key = (peer.endpoint, peer.key)
        line = self._lines.get(key)
        if line is None:
            self._opened_count += 1
            name = f"{self._name}/to/{self._opened_count}"
            try:
                line = _Line(client(self._context, self._keys, name, peer.endpoint, peer.key), now)
            except ValueError:
                self._stats["not an address"] += 1
                return None
            self._lines[key] = line
            if len(self._lines) > LINES_MAX_COUNT:
                self._drop(min(self._lines, key=lambda k: self._lines[k].used_at))
        line.used_at = now
        return line

    def _drop(self, key: tuple[str, str]) -> None:
        self._lines.pop(key).socket.close(0)

    def sweep(self, now: float) -> None:
        """Close lines that nobody used lately."""
        for key in [k for k, line in self._lines.items() if now - line.used_at > IDLE_S]:
            self._drop(key)

    def reply(self, route: bytes, message: BetweenAgents) -> None:
        """Answer on the way by which a message came."""
        try:
            self.socket.send_multipart((route, encode(self._run, message)), zmq.NOBLOCK)
        except zmq.Again:
            self._stats["queue full"] += 1
        except zmq.ZMQError:
            self._stats["peer gone"] += 1

    def take(self) -> list[tuple[BetweenAgents, bytes]]:
        """Everything that has come, with the way back (b"" for an answer)."""
        taken: list[tuple[BetweenAgents, bytes]] = []
        for socket in self.sockets():
            listens = socket is self.socket
            while len(taken) < TAKE_MAX_COUNT:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if len(frames) != (2 if listens else 1):
                    self._stats["wrong number of frames"] += 1
                    continue
                message: Message | None = decoded(self._run, frames[-1], self._stats)
                if isinstance(message, BetweenAgents):
                    taken.append((message, frames[0] if listens else b""))
                elif message is not None:
                    self._stats["not a peer's message"] += 1
        return taken

    def close(self) -> None:
        """Let go of all."""
        for key in list(self._lines):
            self._drop(key)
        self.socket.close(0)
