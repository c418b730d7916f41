"""All that an agent hears and says, and the one place where it waits.

One thread only: ``wait`` polls our sockets together with whatever file descriptors the agent watches besides.
"""

from __future__ import annotations

from collections import Counter

import zmq

from gangrun.adapters.net.curve import KeyPair
from gangrun.adapters.net.dealer import SupervisorLine
from gangrun.adapters.net.gate import Gate
from gangrun.adapters.net.peer import PeerSocket
from gangrun.adapters.net.sockets import raise_nofile
from gangrun.wire.messages import BetweenAgents, FromAgent, PeerAddress, ToAgent


class AgentNet:
    """An agent's network; ``host`` is the address of the one interface it may listen on."""

    def __init__(self, run: str, keys: KeyPair, node: str, incarnation: str, host: str) -> None:
        self.nofile_soft, self.nofile_hard = raise_nofile()
        self.stats: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Gate(self._context, keys.public)
        name = f"{node}/{incarnation}"
        self._line = SupervisorLine(self._context, run, keys, name, self.stats)
        self._peer = PeerSocket(self._context, run, keys, node, name, host, self.stats)
        self._watched: list[int] = []

    @property
    def address(self) -> PeerAddress:
        """Where peers reach this agent."""
        return self._peer.address

    @property
    def dropped(self) -> dict[str, int]:
        """What came and was not believed, by kind."""
        return {**self.stats, "strangers": self._gate.refused_count}

    def watch(self, fd: int) -> None:
        """``wait`` also returns when this becomes readable."""
        self._watched.append(fd)

    def unwatch(self, fd: int) -> None:
        """Not any more: the other side has gone, and it would be readable for ever."""
        if fd in self._watched:
            self._watched.remove(fd)

    def wait(self, timeout_s: float) -> None:
        """Until something came or the time is over; admits peers meanwhile."""
        poller = zmq.Poller()
        for fd in self._watched:
            poller.register(fd, zmq.POLLIN)
        for socket in (self._gate.socket, self._line.socket, *self._peer.sockets()):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        # rounded up: a wake just before its time would find nothing to do, and turn
        poller.poll(max(0, int(timeout_s * 1000) + 1))
        self._gate.answer()

    def from_supervisor(self) -> list[ToAgent]:
        """What the supervisor said."""
        return self._line.take()

    def from_peers(self) -> list[tuple[BetweenAgents, bytes]]:
        """What peers said, with the way back."""
        return self._peer.take()

    def dial(self, endpoint: str, server_key: str) -> None:
        """A new socket to the supervisor, whatever there was."""
        self._line.dial(endpoint, server_key)

    def say(self, message: FromAgent) -> None:
        """To the supervisor."""
        self._line.say(message)

    def say_peer(self, peer: PeerAddress, message: BetweenAgents, now: float) -> None:
        """To another agent."""
        self._peer.say(peer, message, now)
        self._peer.sweep(now)

    def reply_peer(self, route: bytes, message: BetweenAgents) -> None:
        """Back to whoever asked."""
        self._peer.reply(route, message)

    def close(self, linger_s: float = 0.0) -> None:
        """Let the last words to the supervisor leave, ``linger_s`` at most."""
        self._line.close(int(linger_s * 1000))
        self._peer.close()
        self._gate.close()
        self._context.term()
