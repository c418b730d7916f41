"""The supervisor's end: one CURVE ROUTER with a key of its own for this term, and the mailbox that its loop waits at.

A thread owns the sockets and posts what comes in bundles, unread: the loop is woken once for a bundle, and decodes it.
``send`` may be called from any thread and never blocks: if a peer is unknown or does not drain its queue, the message
is dropped and counted, since everything is said again until it is answered.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import cast

import zmq

from gangrun.adapters.net.curve import Gate, new_key_pair
from gangrun.adapters.net.sockets import decoded, raise_nofile, server
from gangrun.ports import AgentsSaid, Clock, Item, Woken
from gangrun.wire.messages import FromAgent, Message, encode

HEARD_MAX_COUNT = 1024
BUNDLE_MAX_COUNT = 128  # the loop does nothing else until it has dealt with one
# From so many messages a second on, the thread lets some gather before it reads: each wake-up of it, of the loop and of
# libzmq's thread costs as much as a few messages. An ack comes two such times later, which leases of seconds allow.
CROWD_PER_S, GATHERS_MS = 200, 20
CLOSE_WITHIN_S = 2.0
NOW, NOW_AND_MORE, MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.RCVMORE)


class Bundle:
    """Letters as they came. Who reads them first decodes them, and counts what is dropped."""

    __slots__ = ("_letters", "_run", "_sealed", "_stats")

    def __init__(self, run: str, sealed: Sequence[tuple[bytes, bytes]], stats: Counter[str]) -> None:
        self._run, self._sealed, self._stats = run, sealed, stats
        self._letters: list[tuple[bytes, FromAgent]] | None = None

    def __iter__(self) -> Iterator[tuple[bytes, FromAgent]]:
        if self._letters is None:
            self._letters, self._sealed = self._opened(), ()
        return iter(self._letters)

    def _opened(self) -> list[tuple[bytes, FromAgent]]:
        letters: list[tuple[bytes, FromAgent]] = []
        for peer, data in self._sealed:
            message = decoded(self._run, data, self._stats)
            if isinstance(message, FromAgent):
                letters.append((peer, message))
            elif message is not None:
                self._stats["not an agent's message"] += 1
        return letters


class RouterRadio:
    """``ports.Radio``, and the source of ``AgentsSaid``."""

    def __init__(
        self, run: str, client_public: str, host: str, post: Callable[[Sequence[Item]], None], now: Callable[[], float]
    ) -> None:
        """Bind to a free port of ``host``, an address of one interface; ``start`` begins to read."""
        self.nofile_soft, self.nofile_hard = raise_nofile()
        self.stats: Counter[str] = Counter()
        self._run = run
        self._post = post
        self._now = now
        self._peers: dict[str, bytes] = {}
        self._outgoing: deque[tuple[bytes, bytes]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._crowd_since, self._crowd_count, self._crowded = now(), 0, False
        self._emptied_at = now()
        keys = new_key_pair()
        self.server_key = keys.public
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Gate(self._context, client_public)
        self._socket, self.endpoint = server(self._context, keys, host)
        self._thread = threading.Thread(target=self._work, name="router", daemon=True)

    @property
    def dropped(self) -> dict[str, int]:
        """What came and was not believed, by kind."""
        return {**self.stats, "strangers": self.refused_count}

    @property
    def refused_count(self) -> int:
        """Connections that did not hold the run's client key."""
        return self._gate.refused_count

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self, flush_s: float = 0.0) -> None:
        """Say what was queued, wait ``flush_s`` at most until it left, and let go."""
        self._closing = True
        self._flush_ms = int(flush_s * 1000)
        os.eventfd_write(self._bell, 1)
        if self._thread.is_alive():
            self._thread.join(CLOSE_WITHIN_S + flush_s)

    _flush_ms = 0

    # ---- Radio ----------------------------------------------------------------------------------------------------

    def bind_peer(self, node: str, peer: bytes) -> None:
        """Remember that ``node`` now speaks through ``peer``."""
        self._peers[node] = peer

    def send(self, node: str, message: object) -> None:
        """Queue one message to the newest peer of ``node``."""
        peer = self._peers.get(node)
        if peer is None:
            self.stats["to nobody"] += 1
            return
        first = not self._outgoing
        self._outgoing.append((peer, encode(self._run, cast(Message, message))))
        if first:
            os.eventfd_write(self._bell, 1)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        poller = zmq.Poller()
        poller.register(self._gate.socket, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll())
            if self._gate.socket in ready:
                self._gate.answer()
            if self._bell in ready:
                try:
                    os.eventfd_read(self._bell)
                except BlockingIOError:
                    pass
            self._say()
            if self._socket in ready:
                self._hear()
            if self._crowded:
                self._gate.socket.poll(GATHERS_MS)  # new connections are answered at once
        self._say()
        self._gate.close()
        self._socket.close(self._flush_ms)
        self._context.term()  # the bell stays open: a late ``send`` must not write to a file that took its number

    def _say(self) -> None:
        while self._outgoing:
            peer, data = self._outgoing.popleft()
            try:
                self._socket.send(peer, NOW_AND_MORE)
                self._socket.send(data, NOW)
            except zmq.Again:
                self.stats["queue full"] += 1
            except zmq.ZMQError:
                self.stats["peer gone"] += 1

    def _hear(self) -> None:
        heard: list[tuple[bytes, bytes]] = []
        now, emptied_at = self._now(), self._emptied_at
        frame, option = self._socket.recv, self._socket.get  # half of what ``recv_multipart`` costs
        for _ in range(HEARD_MAX_COUNT):
            try:
                letter = frame(NOW), frame(NOW)
            except zmq.Again:
                self._emptied_at = now  # else what is left may have come long before what was read
                break
            if not option(MORE):
                heard.append(letter)
                continue
            while option(MORE):
                frame(NOW)
            self.stats["wrong number of frames"] += 1
        bundles: list[Item] = []
        for at in range(0, len(heard), BUNDLE_MAX_COUNT):
            bundle = Bundle(self._run, heard[at : at + BUNDLE_MAX_COUNT], self.stats)
            is_last = at + BUNDLE_MAX_COUNT >= len(heard)
            bundles.append(AgentsSaid(bundle, now, self._emptied_at if is_last else emptied_at))
        self._post(bundles)
        self._count(len(heard), now)

    def _count(self, heard_count: int, now: float) -> None:
        self._crowd_count += heard_count
        if now - self._crowd_since >= 1.0:
            self._crowded = self._crowd_count >= CROWD_PER_S
            self._crowd_since, self._crowd_count = now, 0


WAIT_MAX_S = 1.0  # a queue's time-out stands still while the machine is suspended; the run's clock does not


class QueueMailbox:
    """``ports.Mailbox`` over a thread-safe queue; items come out in the order in which they were posted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: SimpleQueue[Sequence[Item]] = SimpleQueue()
        self._taken: deque[Item] = deque()

    def post(self, item: Item) -> None:
        """Put one item in, from any thread."""
        self._queue.put((item,))

    def post_many(self, items: Sequence[Item]) -> None:
        """Put several in at once: cheaper for a reader that found many. The sequence must not change afterwards."""
        if items:
            self._queue.put(items)

    def next(self, until: float) -> Item:
        """The next item, or ``Woken`` at ``until``."""
        while not self._taken:
            left_s = until - self._clock.now()
            try:
                if left_s <= 0:
                    self._taken.extend(self._queue.get_nowait())
                else:
                    self._taken.extend(self._queue.get(timeout=min(left_s, WAIT_MAX_S)))
            except Empty:
                if left_s <= 0:
                    return Woken()
        return self._taken.popleft()
