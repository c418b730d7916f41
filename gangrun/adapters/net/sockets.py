"""Options that every socket of ours has, and the number of files a process may open.

Facts behind the numbers: at a soft limit of 1,024 files a ROUTER hears about 1,012 agents and no error shows anywhere;
a default backlog loses connections when thousands dial at once; a DEALER without a peer queues what it is told and
delivers it, old, as soon as there is one.
"""

from __future__ import annotations

import random
import resource
from collections import Counter

import zmq

from gangrun.adapters.net.curve import DOMAIN, KeyPair
from gangrun.wire.messages import SIZE_MAX_BYTES, Message, WireError, decode

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

BACKLOG = 4096
SEND_QUEUE_MAX = 16  # messages per peer: commands are said again, so a long queue only holds old ones
# Only to notice connections that died without a word: beats and acks tell all else within seconds. The kernel does it,
# not libzmq's own pings: each of them makes libzmq look through the timers of all its connections. With 4,096 agents
# that was half of what the supervisor's I/O thread cost.
DEAD_AFTER_S, DEAD_PROBES_COUNT = 45, 3
RECONNECT_FIRST_MS, RECONNECT_SPREAD_MS, RECONNECT_MAX_MS = 50, 200, 2_000
IDENTITY_MAX_BYTES = 255


def raise_nofile() -> tuple[int, int]:
    """Soft limit of open files up to the hard one; (soft, hard) as they are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft, hard  # preflight demands enough and names the figure
    return hard, hard


def tune(socket: Socket) -> None:
    """What server and client have in common."""
    socket.linger = 0
    socket.sndhwm = SEND_QUEUE_MAX
    # Twice what a decoder takes: a message just too long is counted by us, a monstrous one cut off by libzmq.
    socket.maxmsgsize = 2 * SIZE_MAX_BYTES
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, DEAD_AFTER_S // DEAD_PROBES_COUNT)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, DEAD_AFTER_S // DEAD_PROBES_COUNT)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, DEAD_PROBES_COUNT - 1)
    socket.setsockopt(zmq.TCP_MAXRT, DEAD_AFTER_S * 1000)  # for data that nobody acknowledges


def server(context: Context, keys: KeyPair, host: str) -> tuple[Socket, str]:
    """A CURVE ROUTER bound to a free port of ``host``, and its endpoint. The context's gate must be there already."""
    socket = context.socket(zmq.ROUTER)
    tune(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.BACKLOG, BACKLOG)
    socket.rcvhwm = 0  # judged at once, in order: a full queue would block the peers' reader threads instead
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.curve_secretkey = keys.secret.encode("ascii")
    try:
        socket.bind(f"tcp://{host}:*")
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def client(context: Context, keys: KeyPair, identity: str, endpoint: str, server_key: str) -> Socket:
    """A CURVE DEALER that connects to ``endpoint``; ``ValueError`` where that is no address or no key."""
    socket = context.socket(zmq.DEALER)
    try:
        tune(socket)
        socket.identity = identity.encode()[-IDENTITY_MAX_BYTES:]
        socket.curve_serverkey = server_key.encode()
        socket.curve_publickey = keys.public.encode("ascii")
        socket.curve_secretkey = keys.secret.encode("ascii")
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_FIRST_MS + random.randrange(RECONNECT_SPREAD_MS))  # noqa: S311
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ValueError(f"{endpoint!r} cannot be dialled: {error}") from error
    return socket


def decoded(run: str, data: bytes, stats: Counter[str]) -> Message | None:
    """The message, or None for one that was counted and dropped."""
    try:
        return decode(run, data)
    except WireError:
        stats["not a message for us"] += 1
        return None
