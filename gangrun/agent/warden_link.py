"""The agent's end of what it shares with its warden: the lease and the messages.

Nothing may enter that decides when to renew: ``lease_keeping`` does.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Any

from gangrun.node.lease import Lease
from gangrun.node.warden import ENV_INCARNATION, ENV_LEASE_FD, ENV_LINK_FD, receive


class AgentEnd:
    """The agent's end: its lease and its messages with the warden."""

    def __init__(self, lease_fd: int, link_fd: int, incarnation: int) -> None:
        os.set_inheritable(lease_fd, False)
        self.lease = Lease(lease_fd)
        self.incarnation = incarnation  # how many agents this warden has started before
        self._link = socket.socket(fileno=link_fd)
        self._link.set_inheritable(False)
        self._link.setblocking(False)

    @classmethod
    def attach(cls, environ: MutableMapping[str, str]) -> AgentEnd | None:
        """The end that our warden left us; None if none did. The names are taken out: ranks must not see them."""
        found = [environ.pop(name, "") for name in (ENV_LEASE_FD, ENV_LINK_FD, ENV_INCARNATION)]
        return cls(int(found[0]), int(found[1]), int(found[2] or 0)) if found[0] and found[1] else None

    def fileno(self) -> int:
        """For a selector: readable when ``receive`` has something."""
        return self._link.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the warden; it reads every quarter second, so a full buffer means that it is stopped."""
        self._link.send(json.dumps(message).encode())

    def receive(self) -> list[dict[str, Any]]:
        """All messages that wait; [] if none."""
        return [message for message in receive(self._link) if message is not None]
