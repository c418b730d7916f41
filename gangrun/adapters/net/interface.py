"""Which of this host's addresses others reach.

A node may have several: of the management network, of InfiniBand, of containers. The one from which it answers the host
that launched the step is reached by the other nodes too, and no name service is needed to find it.
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
