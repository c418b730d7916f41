"""Both ends of a line, opened and closed (room: tests)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import zmq

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.net.agent_net import AgentNet
from gangrun.adapters.net.curve import KeyPair, new_key_pair
from gangrun.adapters.net.router import QueueMailbox, RouterRadio
from gangrun.adapters.net.sockets import client
from gangrun.ports import AgentsSaid
from gangrun.wire.messages import Beat, Hello, PeerAddress

RUN = "20261121-065001-k3f9"
HOST = "127.0.0.1"
KEYS = new_key_pair()
NOWHERE = PeerAddress("nowhere", "tcp://127.0.0.1:9", "")


class Letter(NamedTuple):
    """What one agent said."""

    peer: bytes
    message: Any


class Supervisor:
    """A router with the mailbox it fills."""

    def __init__(self, keys: KeyPair = KEYS) -> None:
        self.clock = SystemClock()
        self.mailbox = QueueMailbox(self.clock)
        self.radio = RouterRadio(RUN, keys.public, HOST, self.mailbox.post_many, self.clock.now)
        self.radio.start()
        self._letters: deque[Letter] = deque()

    def next(self, within_s: float = 60.0) -> Letter:
        """The next letter; one must come."""
        assert self._comes(within_s), "nobody said anything"
        return self._letters.popleft()

    def hears_nothing(self, for_s: float = 0.3) -> bool:
        """Whether nothing comes for so long."""
        return not self._comes(for_s)

    def _comes(self, within_s: float) -> bool:
        """Whether there is one now, or comes one within so long."""
        until = self.clock.now() + within_s
        while not self._letters:
            item = self.mailbox.next(until)
            if not isinstance(item, AgentsSaid):
                return False
            self._letters.extend(Letter(peer, message) for peer, message in item.letters)
        return True


@contextmanager
def supervisor(keys: KeyPair = KEYS) -> Iterator[Supervisor]:
    one = Supervisor(keys)
    try:
        yield one
    finally:
        one.radio.close()


@contextmanager
def agent(node: str = "n1", keys: KeyPair = KEYS) -> Iterator[AgentNet]:
    net = AgentNet(RUN, keys, node, "inc", HOST)
    try:
        yield net
    finally:
        net.close()


@contextmanager
def dealer(where: Supervisor, keys: KeyPair = KEYS, name: str = "raw") -> Iterator[zmq.Socket[bytes]]:
    """A line that says whatever bytes it likes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = client(context, keys, name, where.radio.endpoint, where.radio.server_key)
    try:
        yield socket
    finally:
        socket.close(0)
        context.term()


def hello(node: str = "n1") -> Hello:
    return Hello(node, "job", "boot", "inc", 0, 1, -1, (), NOWHERE)


def beat(seq: int, node: str = "n1") -> Beat:
    return Beat(node, "inc", seq, float(seq), 1, -1, True)
