"""What the agent's brain may ask of its body.

One frozen value each, performed in order by ``loop`` in the real world and by ``sim`` in the simulated one. A command
of the supervisor that is to be obeyed now is itself an effect. Outcomes come back as ``facts``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.wire.messages import BetweenAgents, Command, FromAgent, PeerAddress


@dataclass(frozen=True, slots=True)
class SendSupervisor:
    """Send to the term dialled last; lost where there is no connection, which is fine: all is said again."""

    message: FromAgent


@dataclass(frozen=True, slots=True)
class SendPeer:
    """Send to another agent's peer socket, fire and forget."""

    peer: PeerAddress
    message: BetweenAgents


@dataclass(frozen=True, slots=True)
class Knock:
    """Open a connection to a peer's host and close it: its kernel answers, whatever its processes do.

    Answered by ``facts.HostAnswered``; a host that is not there answers nothing.
    """

    peer: PeerAddress


@dataclass(frozen=True, slots=True)
class ReplyPeer:
    """Answer a peer on the route by which its message came (``from_peer``'s ``route``)."""

    route: bytes
    message: BetweenAgents


@dataclass(frozen=True, slots=True)
class DialTerm:
    """Drop the socket to the supervisor, whatever it was, and open a new one to this term."""

    term: int
    endpoint: str
    server_key: str


@dataclass(frozen=True, slots=True)
class FindTerm:
    """Read the newest claim in ``terms/`` (start-up, or last resort); answered by ``facts.TermFound``."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """The lease now ends at ``deadline`` (seconds of CLOCK_BOOTTIME); never lower than the one before."""

    deadline: float


@dataclass(frozen=True, slots=True)
class SpawnSupervisor:
    """Ask the warden for a supervisor that claims a term of at least ``term_min``.

    ``promises`` are the nodes (this one among them) that stopped following lower terms; () means that the supervisor
    must prove by the holder's counter file, or as the job's founder, that it may claim. ``promised_at`` is when they
    came to be more than half, on this host's CLOCK_BOOTTIME: law 1's wait runs from there + D.
    """

    term_min: int
    promises: tuple[str, ...]
    promised_at: float


@dataclass(frozen=True, slots=True)
class Leave:
    """No rank is left: say goodbye to the warden and end with this code."""

    code: int
    reason: str


Effect = (
    SendSupervisor | SendPeer | Knock | ReplyPeer | DialTerm | FindTerm | WriteLease | SpawnSupervisor | Leave | Command
)
