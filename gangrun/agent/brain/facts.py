"""Who an agent is, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from gangrun.core.events import StacksTaken
from gangrun.core.evidence import NodeFinding, RankExit
from gangrun.core.model import BrokenSlot, Met
from gangrun.core.policy import Timing
from gangrun.wire.messages import (
    AskSave,
    Dial,
    LiveRank,
    MeetPeer,
    MemoryAnswer,
    PeerAddress,
    RankSample,
    Recover,
    SaveAnswer,
    VerifyShare,
)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Who this agent is; nothing of it changes within an incarnation."""

    node: str
    incarnation: str
    boot_id: str
    job: str
    slots_count: int
    peer: PeerAddress
    timing: Timing = field(default_factory=Timing)
    roster_count: int = 0  # as the spec has it; 0: known from the first ack on
    founder: bool = False  # has the first supervisor of the job made
    previous_died: str = ""
    nofile_hard: int = 0
    addresses: tuple[str, ...] = ()
    refill: int = 0  # which refill brought this node: then it never promises itself, nor asks for a supervisor; 0: none
    notice_grace_s: float = 90.0  # with no supervisor that acks, leave so long after a signal
    leave_within_s: float = 15.0


@dataclass(slots=True)
class Counters:
    """What was not believed, for people who look into an agent."""

    lower_term: int = 0
    stale_acks: int = 0
    not_followed: int = 0


@dataclass(frozen=True, slots=True)
class TermFound:
    """What ``FindTerm`` read: the newest claim as an address and the job it is of, or None (yet).

    ``holder_ended``: the claim was made on this node, and the process that made it is gone.
    """

    claim: Dial | None
    job: str = ""
    holder_ended: bool = False


@dataclass(frozen=True, slots=True)
class NodePrepared:
    """``Prepare`` ended; ``why`` names what is left on the node if it is not clean. ``port`` for rank 0's node.

    ``retry_free``: nobody's fault (no port was free), so another start costs nothing.
    """

    attempt: int
    ok: bool
    why: str = ""
    port: int = 0
    retry_free: bool = False


@dataclass(frozen=True, slots=True)
class RanksLaunched:
    """``Launch`` ended; if not ok, none of its ranks is left. ``retry_free``: the port was taken meanwhile."""

    attempt: int
    ok: bool
    why: str = ""
    ranks: tuple[LiveRank, ...] = ()
    retry_free: bool = False


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's process ended, with 0 or not; descendants of it may live on until a stop."""

    attempt: int
    exit: RankExit


@dataclass(frozen=True, slots=True)
class RanksStopped:
    """``Stop`` ended: ok means that no rank of any attempt up to this one, nor a descendant, is left.

    ``leftovers`` are in words; where not ok they name the processes that cannot be killed. ``overdue``: ranks that were
    killed because they had not ended ``grace_s`` after SIGTERM. ``saved_step``: of ranks that saved when asked, or -1.
    """

    attempt: int
    ok: bool
    leftovers: tuple[str, ...] = ()
    overdue: tuple[int, ...] = ()
    grace_s: float = 0.0
    saved_step: int = -1


@dataclass(frozen=True, slots=True)
class Checked:
    """``CheckNode`` ended, one that asked for ``tests`` and ``meetings``; ``tested``: what devices did, where all came
    out right; ``met``: how the node got through to others; ``broken``: the slots that the node can do without.
    """

    ok: bool
    why: str = ""
    tested: str = ""
    tests: str = ""
    meetings: tuple[MeetPeer, ...] = ()
    met: tuple[Met, ...] = ()
    broken: tuple[BrokenSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadingsTaken:
    """The newest sample of every live rank of ``attempt``; it rides on the next beat."""

    attempt: int
    readings: tuple[RankSample, ...]


@dataclass(frozen=True, slots=True)
class StandbysKept:
    """How many standbys wait on this node, and the bytes of memory that are theirs alone."""

    count: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class FindingReported:
    """A check measured something worth telling."""

    finding: NodeFinding


@dataclass(frozen=True, slots=True)
class DiskTaskDone:
    """``AskSave``, ``Recover`` or ``VerifyShare`` ended; ``answer`` goes back to the supervisor."""

    command: AskSave | Recover | VerifyShare
    ok: bool
    why: str = ""
    answer: MemoryAnswer | SaveAnswer | None = None


@dataclass(frozen=True, slots=True)
class HostAnswered:
    """The kernel of that node's host took a connection, or refused it: the machine runs and can be reached."""

    node: str


@dataclass(frozen=True, slots=True)
class SupervisorExited:
    """The warden saw its supervisor end; code 75 means that it was deposed."""

    code: int
    term: int


@dataclass(frozen=True, slots=True)
class SupervisorRefused:
    """The warden did not start the supervisor that was asked for: one still runs there."""

    why: str


@dataclass(frozen=True, slots=True)
class TerminateAsked:
    """A signal to this agent or its warden: INT is the user's, any other does not say why. A second one hurries."""

    signal: int


Fact = (
    TermFound
    | NodePrepared
    | RanksLaunched
    | RankEnded
    | RanksStopped
    | StacksTaken
    | Checked
    | DiskTaskDone
    | ReadingsTaken
    | StandbysKept
    | FindingReported
    | HostAnswered
    | SupervisorExited
    | SupervisorRefused
    | TerminateAsked
)
