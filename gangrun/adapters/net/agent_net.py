"""An agent's network: its line to the supervisor of one term, and its socket among the other agents.

Each dial to the supervisor is a new socket with an identity of its own: node, incarnation and a count. Without the
count a ROUTER that still holds the dead connection (a cut network) would ignore the new one, silently and for good.
With HANDOVER any process that names an identity could take it over. The node behind an identity is learnt from its
``Hello``.

Between agents go promises, dials and pings. Each agent has a CURVE ROUTER with a key of its own, behind the same gate
as the supervisor's; ``Hello`` tells its address. To speak first an agent opens a short-lived DEALER to the other's;
answers come back on the route of the question. All of it is used by the agent's one thread.
"""

from __future__ import annotations

import errno
import select
import socket
from collections import Counter
from dataclasses import dataclass

import zmq

from gangrun.adapters.net.curve import Gate, KeyPair, new_key_pair
from gangrun.adapters.net.sockets import Context, Socket, client, decoded, raise_nofile, server
from gangrun.wire.messages import BetweenAgents, FromAgent, Message, PeerAddress, ToAgent, encode

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


IDLE_S = 15.0  # a promise is said again every second: its line stays open
LINES_MAX_COUNT = 32


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
        for one in self.sockets():
            listens = one is self.socket
            while len(taken) < TAKE_MAX_COUNT:
                try:
                    frames = one.recv_multipart(zmq.NOBLOCK)
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


KNOCKS_MAX_COUNT = 64
KNOCK_WITHIN_S = 3.0  # whoever asked waits no longer
_HEARD = frozenset({0, errno.ECONNREFUSED, errno.ECONNRESET})  # a kernel answered


@dataclass(slots=True)
class _Knock:
    node: str
    socket: socket.socket
    at: float


class Knocks:
    """Connections that are opened to see whether a host answers at all, and closed at once."""

    def __init__(self) -> None:
        self._open: dict[int, _Knock] = {}

    def filenos(self) -> list[int]:
        """Writable once their host has answered, or cannot be reached."""
        return list(self._open)

    def knock(self, peer: PeerAddress, now: float) -> None:
        """Begin; an address that cannot be used, or is not reached at once, gives no answer."""
        for old in [fd for fd, one in self._open.items() if now - one.at > KNOCK_WITHIN_S]:
            self._close(old)
        host, _, port = peer.endpoint.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal() or len(self._open) >= KNOCKS_MAX_COUNT:
            return
        host = host.strip("[]")
        probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        probe.setblocking(False)
        try:
            code = probe.connect_ex((host, int(port)))
        except OSError:  # a name instead of an address
            code = errno.EINVAL
        if code not in {0, errno.EINPROGRESS}:
            probe.close()
            return
        self._open[probe.fileno()] = _Knock(peer.node, probe, now)

    def take(self) -> list[str]:
        """Nodes whose hosts have answered since."""
        if not self._open:
            return []
        _, ready, _ = select.select([], self.filenos(), [], 0)
        answered = []
        for fd in ready:
            one = self._open[fd]
            if one.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _HEARD:
                answered.append(one.node)
            self._close(fd)
        return answered

    def _close(self, fd: int) -> None:
        self._open.pop(fd).socket.close()

    def close(self) -> None:
        """Let go of all."""
        for fd in self.filenos():
            self._close(fd)


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
        self._knocks = Knocks()
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

    def wait(self, timeout_s: float) -> None:
        """Until something came or the time is over; admits peers meanwhile."""
        poller = zmq.Poller()
        for fd in self._watched:
            poller.register(fd, zmq.POLLIN)
        for fd in self._knocks.filenos():
            poller.register(fd, zmq.POLLOUT)
        for one in (self._gate.socket, self._line.socket, *self._peer.sockets()):
            if one is not None:
                poller.register(one, zmq.POLLIN)
        # rounded up: a wake just before its time would find nothing to do, and turn
        poller.poll(max(0, int(timeout_s * 1000) + 1))
        self._gate.answer()

    def from_supervisor(self) -> list[ToAgent]:
        """What the supervisor said."""
        return self._line.take()

    def from_peers(self) -> list[tuple[BetweenAgents, bytes]]:
        """What peers said, with the way back."""
        return self._peer.take()

    def knock(self, peer: PeerAddress, now: float) -> None:
        """See whether that peer's host answers."""
        self._knocks.knock(peer, now)

    def hosts_answered(self) -> list[str]:
        """The nodes whose hosts did."""
        return self._knocks.take()

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
        self._knocks.close()
        self._gate.close()
        self._context.term()
