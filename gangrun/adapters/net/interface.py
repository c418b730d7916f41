"""How hosts reach each other: which of this host's addresses the others use, and does another host answer at all?

A node may have several addresses: of the management network, of InfiniBand, of containers. The one from which it
answers the host that launched the step is reached by the other nodes too, and no name service is needed to find it.
Standard library only: the command line imports this, and must not pay for ZeroMQ.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"
ANY_PORT = 9  # discard; nothing is sent


def towards(launcher: str) -> str:
    """The local IPv4 address from which this host would speak to ``launcher``; without one, that of its own name."""
    for target in (launcher, socket.gethostname()):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, ANY_PORT))  # a datagram socket: the kernel picks the route and says nothing
                found = str(probe.getsockname()[0])
        except OSError:
            continue
        if not found.startswith(("127.", "0.")):
            return found
    return LOOPBACK


TRIES_COUNT = 2


def unanswered(host: str, port: int, within_s: float) -> str:
    """Why nothing came back from there; "" where something did."""
    why = ""
    for _ in range(TRIES_COUNT):
        try:
            socket.create_connection((host, port), within_s / TRIES_COUNT).close()
        except ConnectionRefusedError:
            return ""
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        else:
            return ""
    return f"{host} does not answer: {why}"
