"""Who an agent is, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from gangrun.core.policy import Timing
from gangrun.wire.messages import PeerAddress


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Who this agent is; nothing of it changes within an incarnation."""

    node: str
    incarnation: str
    boot_id: str
    job: str
    job_restart: int
    slots_count: int
    peer: PeerAddress
    timing: Timing = field(default_factory=Timing)
    roster_count: int = 0  # as the spec has it; 0: known from the first ack on
    founder: bool = False  # has the first supervisor of the job made
    previous_died: str = ""
    nofile_hard: int = 0
    attempt_floor: int = -1  # newest attempt that an earlier incarnation was told of, where known
    notice_grace_s: float = 90.0  # with no supervisor that acks, leave so long after a signal
    leave_within_s: float = 15.0


@dataclass(slots=True)
class Counters:
    """What was not believed, for people who look into an agent."""

    lower_term: int = 0
    stale_acks: int = 0
    not_followed: int = 0
