"""What the agent's loop needs of the world, on one page.

Wiring hands in real ones: ``adapters.net.agent_net`` for ``Net``, ``agent.warden_link`` for ``WardenEnd``,
``agent.ranks`` for ``Ranks``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gangrun.agent.brain import facts
from gangrun.wire.messages import (
    BetweenAgents,
    FromAgent,
    Launch,
    LiveRank,
    PeerAddress,
    Prepare,
    RankSample,
    Stacks,
    Stop,
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

    def reply_peer(self, route: bytes, message: BetweenAgents) -> None:
        """Back to whoever spoke; never blocks."""

    def close(self, linger_s: float = 0.0) -> None:
        """Let the last words leave, so long at most."""


class LeaseMemory(Protocol):
    """The memory that the warden reads."""

    def renew(self, deadline_ns: int) -> None:
        """Move the deadline."""

    def touch(self) -> None:
        """The loop turns."""


class WardenEnd(Protocol):
    """This agent's end of what it shares with its warden."""

    @property
    def lease(self) -> LeaseMemory: ...

    def fileno(self) -> int:
        """Readable when ``receive`` has something."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the warden."""

    def receive(self) -> list[dict[str, Any]]:
        """All that waits."""


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


class Ranks(Protocol):
    """What this node runs for the gang; outcomes come as facts."""

    def fileno(self) -> int:
        """Readable when ``take`` has something."""

    def take(self) -> list[facts.Fact]:
        """Everything that happened since, in order."""

    def launch(self, order: Launch, may: Callable[[], bool]) -> tuple[LiveRank, ...]:
        """Start all ranks of this node or none (``RuntimeError`` says why), as long as they ``may`` live; from the main
        thread only.
        """

    def prepare(self, command: Prepare) -> None:
        """Prove the slate clean."""

    def stop(self, command: Stop) -> None:
        """Stop all ranks."""

    def take_stacks(self, command: Stacks, within_s: float) -> None:
        """Where does every rank stand."""

    def readings(self) -> tuple[RankSample, ...]:
        """A sample of every live rank."""

    def kill_now(self) -> None:
        """SIGKILL to every rank."""

    def close(self) -> bool:
        """Let go; False: not all that ranks printed is in the logs."""
