"""The whole outside world on one page, as the supervisor's loop sees it.

Each port has a real form (``adapters``) and one made of numbers (``sim``); both pass the contract suite. Nothing here
blocks but ``Mailbox.next``: what takes time answers later, as an item in the mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gangrun.core.actions import Action, ChooseResume, EndJob
from gangrun.core.events import Stamped
from gangrun.core.evidence import RankObservation, StateFigures
from gangrun.core.model import Inventory, Placement, RunState
from gangrun.wire.record import Claim, History, Record


class Clock(Protocol):
    """Time, held in the hand."""

    def now(self) -> float:
        """Seconds of CLOCK_BOOTTIME: goes on during suspend, never back."""

    def wall(self) -> float:
        """Seconds since the epoch; may jump, so it only annotates."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Record ``n`` is on disk and all its tickets are held."""

    n: int


@dataclass(frozen=True, slots=True)
class Withheld:
    """As ``Stored``, but no ticket to start a gang was taken: ``by`` has cancelled the run."""

    n: int
    by: str


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """Record ``n`` could not be written yet (ENOSPC, EIO, EROFS); the store goes on trying, in order."""

    n: int
    why: str


@dataclass(frozen=True, slots=True)
class Deposed:
    """A ticket was refused: a later term exists, or this one's acts are sealed. Stop at once."""

    why: str


@dataclass(frozen=True, slots=True)
class AgentsSaid:
    """Letters of authenticated agents in the order in which they came: who spoke, and a ``wire.messages.FromAgent``."""

    letters: Iterable[tuple[bytes, object]]
    at: float | None = None  # ``Clock.now`` when they came in, which may be long before they are read; None: not known
    all_until: float | None = None  # all that came in before this has been posted, and this is no later than ``at``


@dataclass(frozen=True, slots=True)
class Woken:
    """Nothing came before the deadline."""


@dataclass(frozen=True, slots=True)
class VerifyAsked:
    """A checkpoint that is to be verified is worth reading by several nodes, this host among them.

    The callbacks are called by the loop and never block: once ``dealt`` with this host's share and the node of each
    other share; ``read`` with each other share as it is read, and why it is not whole ("" if it is). ``over``: the
    thread that asked waits for no other node any more.
    """

    directory: str
    nonce: str
    readers_max_count: int
    dealt: Callable[[int, Mapping[int, str]], None]
    read: Callable[[int, str], None]
    over: Callable[[], bool]


Item = Stamped | Stored | Withheld | StoreTrouble | Deposed | AgentsSaid | VerifyAsked | Woken


class Mailbox(Protocol):
    """Where everything arrives; the one place in which the loop waits."""

    def next(self, until: float) -> Item:
        """The next item, or ``Woken`` at ``until`` (seconds of ``Clock.now``)."""


class Store(Protocol):
    """Journal and tickets of one term, strictly in order, off the loop."""

    def commit(self, record: Record, tickets: Sequence[int]) -> None:
        """Append and fsync, then take each ticket; ``Stored``, ``StoreTrouble`` or ``Deposed`` comes by mail.

        Before the ticket of a ``StartGang`` it looks for the mark that every cancel makes first: this process may have
        been stopped since it last heard of anything. ``Withheld`` where it is there.
        """

    def note_progress(self, live: Mapping[str, object]) -> bool:
        """The holder's counter file: at most one small write per ``counter_every_s``; loss is harmless.

        False: the write before failed or has not come back. In quiet times this is all that tells of a bad disk. With
        each write goes a look for the seal, so that a term which was taken away learns of it (``Deposed``).
        """

    def seen_open_at(self) -> float:
        """When (``Clock.now``) this term was surely not sealed yet, as late as is known; -infinity: never seen."""


class Terms(Protocol):
    """Claims, seals and what earlier terms wrote; used before the loop starts, so it may block."""

    def newest(self) -> Claim | None:
        """The newest claim that can be read; None never proves that there is none."""

    def claim(self, claim: Claim) -> bool:
        """Take ``claim.term`` by link(2); an ambiguous error counts as lost, ``OSError`` if no claim is seen."""

    def open_acts(self, term: int) -> bool:
        """Make the folder of tickets; False means deposed already."""

    def seal_before(self, term: int) -> tuple[str, ...]:
        """Let no earlier term obtain another ticket; returns warnings."""

    def history(self, before: int) -> History:
        """The journals of all earlier terms, after ``seal_before``; ``RecordError``: must not go on from them."""


class Radio(Protocol):
    """Messages to agents; sending never blocks and never promises delivery."""

    def send(self, node: str, message: object) -> None:
        """Send one of ``wire.messages.ToAgent`` to the newest peer of ``node``; dropped where there is none."""

    def bind_peer(self, node: str, peer: bytes) -> None:
        """Remember that ``node`` now speaks through ``peer``."""


class Checkpoints(Protocol):
    """What is on the checkpoint file system; answers by mail as core events."""

    def prepare(self, staging: str) -> None:
        """Make the folder that an attempt's steps are brought to, empty."""

    def prepared(self, staging: str) -> bool:
        """Is it there since it was last asked for?"""

    def adopt(self, path: str, attempt: int, step: int, nonce: str, nodes: Sequence[str], rebuilt_count: int) -> None:
        """Before the next ``seal``: what nodes brought from their memory becomes a checkpoint, if it is whole; answer
        with ``StepBrought``. ``rebuilt_count``: files that none of them held and that were made again.
        """

    def discard(self, path: str, *, more: bool = False) -> None:
        """What nodes brought there, or half of it, will never be a checkpoint. Unless ``more`` is brought beside it
        its staging goes too, and nothing can be brought there before it is prepared again.
        """

    def seal(self, attempt: int) -> None:
        """Answer with ``AttemptSealed``."""

    def choose(self, asked: ChooseResume, sealed: Sequence[tuple[int, str]]) -> None:
        """Answer with ``ResumeChosen`` or ``NoneValid``."""

    def put_back(self, paths: Sequence[str]) -> None:
        """Move back what was set aside from these paths, without an answer; most often there are none."""

    def look(self, above_step: int) -> None:
        """Look for a newer valid checkpoint; ``CheckpointSeen`` if there is one, else nothing."""

    def figures(self) -> StateFigures | None:
        """What the newest look found in the framework's own files, if they tell of this attempt. Never blocks."""

    def await_save(self) -> None:
        """Ranks are being told to save: what is committed by now is not what they were told for."""


class Jobs(Protocol):
    """The scheduler; local worlds have none and refuse."""

    def submit(self, act: tuple[int, int], action: Action) -> None:
        """Answer with ``ActDone``, ``ActFailed`` or ``ActUnknown``."""

    def end(self, act: tuple[int, int], action: EndJob, lost: tuple[str, ...]) -> None:
        """This job is to end: leave the mark of a cancel where it is one; end the allocation where its batch host is
        among the nodes that are lost, since no batch script will. Answer with ``ActDone`` or ``ActFailed``.
        """

    def look(self) -> None:
        """A node is silent: see at once which nodes the scheduler took out of this job, and post each, once, as
        ``NodeAbsent``. Never blocks.
        """

    def looked_at(self) -> float:
        """When the scheduler was asked of this job whose answer came last; what it said of nodes has been told."""

    def runs_at(self) -> float:
        """When (``Clock.now``) the scheduler last held this very stay of the job for running, so that nothing had taken
        its place; -infinity: never; infinity: there is no scheduler that could. Never blocks.
        """

    def left_s(self) -> float | None:
        """Until the job's time limit, as last seen; None: it has none, or nobody knows it. Never blocks."""


__all__ = [
    "AgentsSaid",
    "Checkpoints",
    "Clock",
    "Deposed",
    "History",
    "Inventory",
    "Item",
    "Jobs",
    "Mailbox",
    "Placement",
    "Radio",
    "RankObservation",
    "RunState",
    "Store",
    "StoreTrouble",
    "Stored",
    "Terms",
    "VerifyAsked",
    "Withheld",
    "Woken",
]
