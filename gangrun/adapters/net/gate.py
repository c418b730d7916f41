"""Who may connect: holders of the run's client key, and nobody else.

Without a ZAP handler libzmq admits *any* client key to a CURVE server; so each context that serves has this one bound
before its first server socket, and the servers refuse to work without it (``ZAP_ENFORCE_DOMAIN``). It answers in the
thread that polls it. One context serves one run.
"""

from __future__ import annotations

import zmq
from zmq.utils import z85

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
