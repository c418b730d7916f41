"""How hosts reach each other: which of this host's addresses the others use, and does another host answer at all?

A node may have several addresses: of the management network, of InfiniBand, of containers. The one from which it
answers the host that launched the step is reached by the other nodes too, and no name service is needed to find it.
Standard library only: the command line imports this, and must not pay for ZeroMQ.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import IPv6Address
from pathlib import Path

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


SIOCGIFADDR = 0x8915
INET6 = Path("/proc/net/if_inet6")


def addresses() -> tuple[str, ...]:
    """This host's addresses, as texts name them; none of the loopback interface."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    try:
        found += [str(IPv6Address(bytes.fromhex(line.split()[0]))) for line in INET6.read_text().splitlines()]
    except OSError:
        pass  # a host without IPv6
    return tuple(dict.fromkeys(one for one in found if not one.startswith("127.") and one != "::1"))


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
