"""An agent's line to the supervisor of one term.

Each dial is a new socket with an identity of its own: node, incarnation and a count. Without the count a ROUTER that
still holds the dead connection (a cut network) would ignore the new one, silently and for good; with HANDOVER whoever
names an identity could take it over. The node behind an identity is learnt from its ``Hello`` alone.
"""

from __future__ import annotations

from collections import Counter

import zmq

from gangrun.adapters.net.curve import KeyPair
from gangrun.adapters.net.sockets import Context, Socket, client, decoded
from gangrun.wire.messages import FromAgent, ToAgent, encode

TAKE_MAX_COUNT = 256


class SupervisorLine:
    """At most one open socket, to the term dialled last."""

    def __init__(self, context: Context, run: str, keys: KeyPair, name: str, stats: Counter[str]) -> None:
        self.socket: Socket | None = None
        self._context = context
        self._run = run
        self._keys = keys
        self._name = name
        self._stats = stats
        self._dials_count = 0

    def dial(self, endpoint: str, server_key: str) -> None:
        """Close what was open, queue and all, and connect anew."""
        self.close(0)
        self._dials_count += 1
        try:
            self.socket = client(self._context, self._keys, f"{self._name}/{self._dials_count}", endpoint, server_key)
        except ValueError:
            self._stats["not an address"] += 1

    def say(self, message: FromAgent) -> None:
        """Queue for the supervisor; dropped where the queue is full."""
        if self.socket is None:
            return
        try:
            self.socket.send(encode(self._run, message), zmq.NOBLOCK)
        except zmq.Again:
            self._stats["queue full"] += 1

    def take(self) -> list[ToAgent]:
        """Everything that has come."""
        taken: list[ToAgent] = []
        while self.socket is not None and len(taken) < TAKE_MAX_COUNT:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = decoded(self._run, frames[-1], self._stats) if len(frames) == 1 else None
            if isinstance(message, ToAgent):
                taken.append(message)
            elif message is not None or len(frames) != 1:
                self._stats["not a supervisor's message"] += 1
        return taken

    def close(self, linger_ms: int) -> None:
        """Let go; what is queued has ``linger_ms`` to leave."""
        if self.socket is not None:
            self.socket.close(linger_ms)
            self.socket = None
