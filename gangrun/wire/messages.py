"""What agents, supervisor and candidates say to each other.

msgspec structs in msgpack, tagged by their class, each message in an ``Envelope`` that names run and schema version.
A message that does not decode, or is of another run or a newer schema, is counted and dropped by its receiver.
Boottime is CLOCK_BOOTTIME seconds of the sender's host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from gangrun.core.checkpoints.memory import Holding
from gangrun.core.evidence import Anomaly, RankStack, SelfChecks
from gangrun.core.model import BrokenSlot, MemoryStep, Met
from gangrun.core.recovery.fill_rules import FillTrend
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.recovery.pace_rules import Pace
from gangrun.core.recovery.standing import Stand

SCHEMA = 2
SIZE_MAX_BYTES = 8 * 1024 * 1024


class WireError(ValueError):
    """Bytes that are not a message for us; the message says why."""


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=False, omit_defaults=True):
    """Base of all messages."""


class PeerAddress(msgspec.Struct, frozen=True):
    """Where an agent listens for its peers' promises and probes; ``key`` is its public CURVE key."""

    node: str
    endpoint: str
    key: str


class LiveRank(msgspec.Struct, frozen=True):
    """A live rank as an inventory lists it."""

    rank: int
    pid: int
    start_ticks: int


class RankSample(msgspec.Struct, frozen=True, array_like=True):
    """The newest sample of one rank; counters only grow within an attempt."""

    rank: int
    step: int
    phase: int
    slot_writes_count: int
    output_bytes: int
    cpu_s: float
    state: str
    first_step: int = -1  # that this rank reported in this attempt
    loss: float | None = None
    kept_step: int = -1  # the newest step that is whole in the nodes' memory, as this rank knows
    kept_losses_count: int = 0  # so many nodes may be lost, and it still is
    pid: int = 0  # of its first process; 0 from an older agent
    log_step: int = -1  # that it printed, if it reports none
    total_steps: int = -1  # of the whole run, as it reports or prints
    grad_norm: float | None = None
    tokens_count: int = -1  # that the whole run has trained on
    anomalies: tuple[Anomaly, ...] = ()  # of its loss and gradient norm: the newest of each kind
    is_sampled: bool = False  # its sampler runs: without a ``stand`` it moves
    stand: Stand | None = None
    log_first_step: int = -1  # the first that it printed in this attempt, if it reports none
    pace: Pace | None = None  # its own time, told now and then
    growths: tuple[FillTrend, ...] = ()  # what it or its node will run out of
    gpu: GpuUse | None = None  # its GPU, told each time that it was read
    checks: SelfChecks | None = None  # what its own checks found in this attempt
    moves: bool = False  # it has issued collectives since the reading before


class AgentEvent(msgspec.Struct, frozen=True):
    """A core event on its way; ``seq`` counts within the agent's incarnation, and it is kept until journalled."""

    seq: int
    kind: str
    data: dict[str, Any]


# ---- agent -> supervisor -------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True, tag=True):
    """First on every connection to a term: who I am, what I hold."""

    node: str
    job: str
    boot_id: str
    incarnation: str
    term_max: int
    slots_count: int
    attempt: int
    ranks: tuple[LiveRank, ...]
    peer: PeerAddress
    launching: bool = False  # told to start ``attempt`` and still at it
    previous_died: str = ""  # why the agent before this one on the node ended, "" for the first
    nofile_hard: int = 0
    addresses: tuple[str, ...] = ()  # of the node's interfaces
    peers: tuple[PeerAddress, ...] = ()  # as the last supervisor named them: one of them may never come to the next
    refill: int = 0  # which refill brought this node; 0: it is the job's own


class Beat(_Message, frozen=True, tag=True):
    """I live. ``empty``: no rank of any attempt, nor any descendant of one, is left here."""

    node: str
    incarnation: str
    seq: int
    boottime: float
    term_max: int
    attempt: int
    empty: bool
    readings: tuple[RankSample, ...] = ()
    events: tuple[AgentEvent, ...] = ()  # not yet journalled, oldest first, bounded
    echo: float = 0.0  # newest ``stamp`` seen of this term: proves that this beat was sent after it
    is_brief: bool = False  # ``readings`` are of ranks that tell something new; the others are as they were
    standbys: tuple[int, int] = (0, 0)  # how many wait, and bytes of memory that are theirs alone; not in a brief one


class StartAnswer(_Message, frozen=True, tag=True):
    """To ``Prepare`` and ``Launch``; ``port`` by rank 0's node. ``retry_free``: no node is to blame for the refusal."""

    port: int = 0
    retry_free: bool = False


class StopAnswer(_Message, frozen=True, tag=True):
    """To ``Stop``: what is left, in words; the processes that cannot be killed if it failed.

    ``overdue``: ranks that were killed because they had not ended ``grace_s`` after SIGTERM. ``saved_step``: the newest
    step that ranks saved because they were asked to; -1: none.
    """

    leftovers: tuple[str, ...]
    overdue: tuple[int, ...] = ()
    grace_s: float = 0.0
    saved_step: int = -1


class StacksAnswer(_Message, frozen=True, tag=True):
    """To ``Stacks``."""

    stacks: tuple[RankStack, ...]


class CheckAnswer(_Message, frozen=True, tag=True):
    """To ``CheckNode``: what the devices did, if all came out right; how the node got through to others; the slots that
    no rank may get.
    """

    tested: str
    met: tuple[Met, ...] = ()
    broken: tuple[BrokenSlot, ...] = ()


class SaveAnswer(_Message, frozen=True, tag=True):
    """To ``AskSave``: the step that the ranks saved; of ranks that hold, the newest that one of them has done."""

    step: int


class MemoryAnswer(_Message, frozen=True, tag=True):
    """To ``Recover`` without ``into``."""

    steps: tuple[Holding, ...]


Answer = StartAnswer | StopAnswer | StacksAnswer | CheckAnswer | SaveAnswer | MemoryAnswer


class CommandResult(_Message, frozen=True, tag=True):
    """The outcome of one command; said again until the command is withdrawn by a newer one or acked."""

    node: str
    incarnation: str
    act: tuple[int, int]
    ok: bool
    why: str = ""
    answer: Answer | None = None


class ProbeResult(_Message, frozen=True, tag=True):
    """Whether I reached ``target``'s agent directly, or at least its host: a kernel answers for a busy process too."""

    node: str
    target: str
    reached: bool
    is_up: bool = False  # its host answered


FromAgent = Hello | Beat | CommandResult | ProbeResult


# ---- supervisor -> agent -------------------------------------------------------------------------------------------


class Welcome(_Message, frozen=True, tag=True):
    """Answer to ``Hello``; from now on your beats count."""

    term: int
    node: str
    stamp: float = 0.0  # supervisor's clock as this was sent; echoed in beats
    reading: bool = False  # not yet: this supervisor still reads what earlier terms left; say hello again
    whole_every_s: float = 0.0  # how often a beat is to have all readings, others being brief; 0 (older ones): each


class Ack(_Message, frozen=True, tag=True):
    """Renews the lease up to the send time of the echoed beat + ``fence_after_s``."""

    term: int
    seq: int
    boottime: float  # echo of the beat's
    journalled_seq: int  # every event up to here is on disk
    candidates: tuple[PeerAddress, ...] = ()  # who may follow this supervisor; (): those that the agent was told of
    roster_count: int = 1
    stamp: float = 0.0  # supervisor's clock as this was sent; echoed in beats
    wall: float = 0.0  # its wall clock then: only how far apart clocks are is told by it
    asks_for_all: bool = False  # no beat is to be brief for now


class Prepare(_Message, frozen=True, tag=True):
    """Prove that nothing of earlier attempts is left, and find a port if ``rank_zero``; see ``StartAnswer``."""

    term: int
    act: tuple[int, int]
    attempt: int
    rank_zero: bool


class Launch(_Message, frozen=True, tag=True):
    """Start these ranks."""

    term: int
    act: tuple[int, int]
    attempt: int
    world_size: int
    node_rank: int
    nodes_count: int
    ranks: tuple[int, ...]  # global ranks of this node, ascending
    slots: tuple[int, ...]  # slot index of each rank
    master_addr: str
    master_port: int
    nodes: tuple[str, ...]  # in rank order; several may be folded into one list
    resume_path: str = ""
    resume_step: int = -1
    failures_count: int = 0  # that stopped this run before: not moves, preemptions and starts that were free
    skip_batches: tuple[tuple[int, int], ...] = ()  # (after so many global batches, so many are left out)
    resume_memory: MemoryStep | None = None  # this save, which is in the node's memory, instead of ``resume_path``
    lacks_step: bool = False  # nothing of it is in this node's memory: other nodes' ranks send it


class Stop(_Message, frozen=True, tag=True):
    """Stop all ranks of every attempt up to ``attempt``; answered once none is left."""

    term: int
    act: tuple[int, int]
    attempt: int
    grace_s: float
    checkpoint_first: bool
    checkpoint_grace_s: float
    why: str
    settle_s: float = 0.0  # wait before anything else, as long as a rank here lives
    save_step: int = (
        -1
    )  # with ``checkpoint_first``: the step that all ranks are to save; -1: one that no rank here has done
    peer_gone_grace_s: float | None = None  # instead of ``grace_s``, unless the script saves when asked


class Stacks(_Message, frozen=True, tag=True):
    """Take the stacks of all ranks; see ``StacksAnswer``."""

    term: int
    act: tuple[int, int]
    attempt: int


class AskSave(_Message, frozen=True, tag=True):
    """Have all ranks save ``save_step`` (-1: one that no rank here has done) and train on; see ``SaveAnswer``."""

    term: int
    act: tuple[int, int]
    attempt: int
    save_step: int
    hold: bool = False  # save nothing yet: each rank waits at the end of its next step for the step that all save


class MeetPeer(msgspec.Struct, frozen=True):
    """Meet ``partner`` at ``address``. With GPUs the two exchange data through ``host`` and ``port``, the first of them
    as rank 0; ``turn`` counts from 0, and each has the same time.
    """

    partner: str
    address: str
    host: str
    port: int
    is_first: bool
    turn: int


class CheckNode(_Message, frozen=True, tag=True):
    """Run the preflight, by ``tests`` with devices at work, after the meetings; see ``CheckAnswer``."""

    term: int
    act: tuple[int, int]
    tests: str = ""
    meetings: tuple[MeetPeer, ...] = ()


class Probe(_Message, frozen=True, tag=True):
    """Try to reach this peer and say whether it answered."""

    term: int
    target: PeerAddress


class Recover(_Message, frozen=True, tag=True):
    """Say which steps of ``attempt`` are in your memory, and whether ``base`` is, from which that attempt began
    (``MemoryAnswer``); all others of older attempts may go.

    With ``into``: write these files of that step there, durably; several nodes write into one directory. ``rebuild``:
    files that nobody holds, made again of what lies there once all others have written. ``pin``: ranks train on, so
    what is there stays from the question to the writing; with ``into`` and no ``step`` nothing of it is wanted.
    """

    term: int
    act: tuple[int, int]
    attempt: int
    into: str = ""
    step: int = -1
    nonce: str = ""
    files: tuple[str, ...] = ()
    rebuild: tuple[str, ...] = ()
    pin: bool = False
    base: MemoryStep | None = None


class VerifyShare(_Message, frozen=True, tag=True):
    """Read this share of so many of the checkpoint in ``directory``, if it is the save of this nonce.

    Answered with ok: every checksum in it holds, or why not. Leaves no effect; the next one ends it.
    """

    term: int
    act: tuple[int, int]
    directory: str
    nonce: str
    share: int
    readers_count: int


class Farewell(_Message, frozen=True, tag=True):
    """The run is over: leave with this code."""

    term: int
    act: tuple[int, int]
    exit_code: int
    reason: str


class Rejected(_Message, frozen=True, tag=True):
    """Not here: this supervisor is deposed, or you are of another job."""

    term: int
    why: str


Command = Prepare | Launch | Stop | Stacks | AskSave | CheckNode | Recover | VerifyShare
ToAgent = Welcome | Ack | Command | Probe | Farewell | Rejected


# ---- between agents ------------------------------------------------------------------------------------------------


class Promise(_Message, frozen=True, tag=True):
    """My supervisor of ``term`` has not acked me since ``unacked_s``: I follow whoever claims next."""

    node: str
    incarnation: str
    term: int
    unacked_s: float


class Dial(_Message, frozen=True, tag=True):
    """A newer term exists, and lives here."""

    term: int
    endpoint: str
    server_key: str


class Ping(_Message, frozen=True, tag=True):
    """Are you there (SWIM's indirect probe). An agent that follows a newer term than ``term_max`` adds a ``Dial``."""

    node: str
    term_max: int = 0


class Pong(_Message, frozen=True, tag=True):
    """I am; and so long it is since a supervisor acked me."""

    node: str
    incarnation: str
    term_max: int
    unacked_s: float = 0.0


BetweenAgents = Promise | Dial | Ping | Pong
Message = FromAgent | ToAgent | BetweenAgents


class Envelope(msgspec.Struct, frozen=True):
    """What is on the wire."""

    v: int
    run: str
    body: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(Envelope)
_body: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_NIL = b"\xc0"


@lru_cache
def _head(run: str) -> bytes:
    """What comes before the body in each message of this run and version."""
    return _encoder.encode(Envelope(SCHEMA, run, msgspec.Raw(_NIL))).removesuffix(_NIL)


def encode(run: str, message: Message) -> bytes:
    """The message as bytes of ``run``."""
    return _head(run) + _encoder.encode(message)


def decode(run: str, data: bytes) -> Message:
    """The message in ``data``; ``WireError`` if it is not one for this run and version."""
    if len(data) > SIZE_MAX_BYTES:
        raise WireError(f"{len(data)} bytes is more than a message may have")
    head = _head(run)
    try:
        if data.startswith(head):  # as nearly all do: comparing costs less than decoding it
            return _body.decode(data[len(head) :])
        envelope = _envelope.decode(data)
        if envelope.run != run:
            raise WireError(f"of run {envelope.run!r}, not {run!r}")
        if envelope.v > SCHEMA:
            raise WireError(f"of schema {envelope.v}, newer than this gangrun's {SCHEMA}")
        return _body.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:  # the latter two: hostile bytes alone
        raise WireError(f"not a message: {error}") from error
