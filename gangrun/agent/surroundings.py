"""What the agent's loop needs of the world: its lines, what watches the hardware, and its warden.

Wiring hands in ``adapters.net.agent_net`` for ``Net`` and ``entry.agent_health`` for ``Health``. ``AgentEnd`` is the
agent's end of what it shares with its warden; ``brain.line`` decides when the lease is renewed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from gangrun.agent.brain import facts
from gangrun.core.text import one_line
from gangrun.node.lease import Lease
from gangrun.node.warden import ENV_INCARNATION, ENV_LEASE_FD, ENV_LINK_FD, receive
from gangrun.wire.messages import (
    BetweenAgents,
    FromAgent,
    PeerAddress,
    ToAgent,
)


class Net(Protocol):
    """All lines of this agent, and the one place in which its loop waits."""

    def watch(self, fd: int) -> None:
        """``wait`` also ends when this becomes readable."""

    def wait(self, timeout_s: float) -> None:
        """Until something came, or the time is over."""

    def from_supervisor(self) -> Sequence[ToAgent]:
        """What the supervisor dialled last said."""

    def from_peers(self) -> Sequence[tuple[BetweenAgents, bytes]]:
        """What peers said, each with the way back."""

    def dial(self, endpoint: str, server_key: str) -> None:
        """A new line to a supervisor instead of the last."""

    def say(self, message: FromAgent) -> None:
        """To the supervisor; never blocks."""

    def say_peer(self, peer: PeerAddress, message: BetweenAgents, now: float) -> None:
        """To another agent; never blocks."""

    def knock(self, peer: PeerAddress, now: float) -> None:
        """See whether its host answers; never blocks."""

    def hosts_answered(self) -> Sequence[str]:
        """The nodes whose hosts did since."""

    def reply_peer(self, route: bytes, message: BetweenAgents) -> None:
        """Back to whoever spoke; never blocks."""

    def close(self, linger_s: float = 0.0) -> None:
        """Let the last words leave, so long at most."""


class Health(Protocol):
    """What watches this node's hardware; findings come as facts."""

    def fileno(self) -> int:
        """Readable when ``take`` has something."""

    def take(self) -> list[facts.FindingReported]:
        """What was found since."""

    def gang(self, attempt: int, stopping: bool) -> None:
        """Which attempt runs here, and whether its ranks are being stopped: what a kill leaves behind is no finding."""

    def pids(self) -> tuple[int, ...]:
        """Processes of its own, which are no rank's."""

    def close(self) -> None:
        """Let go."""


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

    @contextlib.contextmanager
    def telling_a_crash(self) -> Iterator[None]:
        """Tell the warden which error ends this process: an exit code alone explains nothing to the reader of a run."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(OSError):
                self.send({"op": "crashed", "why": one_line(f"{type(error).__name__}: {error}")})
            raise

    def receive(self) -> list[dict[str, Any]]:
        """All messages that wait; [] if none."""
        return [message for message in receive(self._link) if message is not None]
