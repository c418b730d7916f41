"""A network of their own for the pretended hosts of a drilled run. It can be cut and slowed, and nobody else is on it.

Each host is a network namespace with one TUN device. The kernel hands each packet that a host sends to a thread of this
process, which gives it to the host with that address. A cut is a packet that the thread drops, and a delay is one that
it holds for a while: no firewall, bridge or traffic shaper is needed. An ordinary user needs a user namespace and
``/dev/net/tun``. All of it goes with the last process that is on it, however that dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from gangrun.adapters.local.played_world import NotPossibleHere, in_thread, own_user, unshare

T = TypeVar("T")
CLONE_NEWNET, CAP_NET_ADMIN, CAP_SYS_ADMIN = 0x40000000, 12, 21
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_UP = 0x400454CA, 1, 0x1000, 1
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
TUN, DEVICE, SUBNET, NETMASK, PACKET_MAX_BYTES = "/dev/net/tun", "drill0", "10.213.77", "255.255.255.0", 60_000
ADDRESSES = "PLAYED_ADDRESSES"  # of the hosts in their order, for the processes on them
ASK = "ask its administrator to allow user namespaces and to let users open /dev/net/tun"


def own_networks() -> None:
    """From now on this process may make networks, which is tried. To be called before any thread is started."""
    try:
        if not _has_rights():
            own_user()
        PlayedNetwork.of(("probe",), lambda: 0.0).close()
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        words = f"this machine gives no networks of their own to its users ({what})"
        raise NotPossibleHere(error.errno, words) from error


def _has_rights() -> bool:
    status = Path("/proc/self/status").read_text()
    found = int(status.partition("CapEff:")[2].split()[0], 16)
    return all(found >> number & 1 for number in (CAP_NET_ADMIN, CAP_SYS_ADMIN))


@dataclass(frozen=True, slots=True)
class _Host:
    node: str
    address: str
    namespace: int
    tun: int


@dataclass(slots=True)
class PlayedNetwork:
    """Packets travel once ``carry`` was called. ``close`` ends it."""

    hosts: tuple[_Host, ...]
    now: Callable[[], float]
    _lost: frozenset[tuple[str, str]] = frozenset()  # node and which packets: "from" it, or "to" it
    _slow: str = ""
    _delay_s: float = 0.0
    _thread: threading.Thread | None = None
    _wake: tuple[int, int] = field(default_factory=os.pipe)
    _closed: bool = False

    @staticmethod
    def of(nodes: Iterable[str], now: Callable[[], float]) -> PlayedNetwork:
        """A network of these hosts; ``OSError`` if this process may not make it."""
        hosts: list[_Host] = []
        try:
            for number, node in enumerate(nodes, 1):
                address = f"{SUBNET}.{number}"
                hosts.append(_Host(node, address, *in_thread(partial(_new_namespace, address))))
        except OSError:
            _close(hosts)
            raise
        return PlayedNetwork(tuple(hosts), now)

    def environment(self) -> dict[str, str]:
        """What processes on the hosts need. A host's own name leads nowhere on this network."""
        addresses = ",".join(host.address for host in self.hosts)
        return {ADDRESSES: addresses, "GLOO_SOCKET_IFNAME": DEVICE, "NCCL_SOCKET_IFNAME": DEVICE}

    def on_host(self, node: str, start: Callable[[], T]) -> T:
        """``start`` a process on a host. A thread enters the namespace, since no way may lead back from it."""
        namespace = next(host.namespace for host in self.hosts if host.node == node)

        def there() -> T:
            _checked(_libc().setns(namespace, CLONE_NEWNET))
            return start()

        return in_thread(there)

    def carry(self) -> None:
        """From now on packets travel. Not before: a thread does not survive a fork."""
        self._thread = threading.Thread(target=self._switch, name="played network", daemon=True)
        self._thread.start()

    def cut(self, node: str, *, one_way: bool) -> None:
        """No packet of this host arrives any more; if not ``one_way``, it also gets none."""
        self._lost = frozenset({(node, "from")} if one_way else {(node, "from"), (node, "to")})

    def slow_down(self, node: str, delay_s: float) -> None:
        """Each packet from or to this host takes so much longer."""
        self._slow, self._delay_s = node, delay_s

    def heal(self) -> None:
        """From now on all packets travel at once, those that are held too."""
        self._lost, self._slow, self._delay_s = frozenset(), "", 0.0
        os.write(self._wake[1], b".")

    def close(self) -> None:
        """The network is gone once no process is on it."""
        self._closed = True
        os.write(self._wake[1], b".")
        if self._thread is not None:
            self._thread.join()
        _close(self.hosts)
        for fd in self._wake:
            os.close(fd)

    def _switch(self) -> None:
        by_tun = {host.tun: host for host in self.hosts}
        by_address = {socket.inet_aton(host.address): host for host in self.hosts}
        held: deque[tuple[float, int, bytes]] = deque()
        poll = select.poll()
        for fd in (*by_tun, self._wake[0]):
            poll.register(fd, select.POLLIN)
        while not self._closed:
            wait_s = max(0.0, held[0][0] + self._delay_s - self.now()) if held else None
            for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000):
                if fd == self._wake[0]:
                    os.read(fd, 64)
                    continue
                packet = os.read(fd, PACKET_MAX_BYTES)
                sender, receiver = by_tun[fd], by_address.get(packet[16:20])
                if packet[0] >> 4 != 4 or receiver is None:  # IPv6 looks for neighbours, and there are none
                    continue
                if {(sender.node, "from"), (receiver.node, "to")} & self._lost:
                    continue
                if self._slow in (sender.node, receiver.node):
                    held.append((self.now(), receiver.tun, packet))
                else:
                    _hand_on(receiver.tun, packet)
            while held and held[0][0] + self._delay_s <= self.now():
                _, tun, packet = held.popleft()
                _hand_on(tun, packet)


def _hand_on(tun: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue loses packets, as on any network
        os.write(tun, packet)


def _new_namespace(address: str) -> tuple[int, int]:
    """The calling thread is in a new namespace from now on: its file, and that of its device."""
    unshare(CLONE_NEWNET)
    with contextlib.ExitStack() as undo:
        tun = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        undo.callback(os.close, tun)
        name = DEVICE.encode()
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name, IFF_TUN | IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            for request, words in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, NETMASK)):
                fcntl.ioctl(asked, request, struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(words)))
            fcntl.ioctl(asked, SIOCSIFMTU, struct.pack("16si20x", name, PACKET_MAX_BYTES))
            for one in (b"lo", name):
                fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sH22x", one, IFF_UP))
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        undo.pop_all()
    return namespace, tun


def _close(hosts: Iterable[_Host]) -> None:
    for host in hosts:
        os.close(host.tun)
        os.close(host.namespace)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
