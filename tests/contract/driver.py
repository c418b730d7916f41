"""What a world must be able to do so that the contract can be held against it (law: what one world promises, all do).

A test is written once, in these words. To put another world under the contract, write one more ``WorldDriver`` and
name it in ``conftest.WORLDS``; what a world cannot do at all it lists, with its reason, in ``cannot``. Next:
``test_contract`` for the promises, ``sim_driver`` and ``local_driver`` for how each world keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

Status = dict[str, Any]  # in the very shape of ``gangrun status --json``

ENDLESS = 100_000  # steps: it goes on until somebody ends it


class How(Enum):
    """What a rank does to itself."""

    EXIT = "exits with ``code``"
    RAISE = "raises RuntimeError('boom')"
    KILL = "sends itself SIGKILL"
    HANG = "waits for ever"


@dataclass(frozen=True, slots=True)
class Does:
    """Once ``step`` steps are complete, ``rank`` does this, in these attempts (None: in each one)."""

    how: How
    step: int
    rank: int = 0
    code: int = 1
    attempts: frozenset[int] | None = frozenset({0})


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run to be started: its shape, its script, its policy. Every world does a step at its own pace."""

    nodes: int = 1
    min_nodes: int | None = None  # fewer than ``nodes``: the gang can do without the rest
    ranks_per_node: int = 2
    steps: int = 40
    does: tuple[Does, ...] = ()
    checkpoint_every: int = 0
    max_restarts: int = 3
    hang_timeout_s: float | None = None
    silence_after_s: float = 3.0
    fence_after_s: float = 16.0  # the shortest lease, about, that the laws between the times allow

    @property
    def world_size(self) -> int:
        """All ranks, on all nodes."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True, order=True)
class Stepped:
    """A rank completed a step: as the ranks themselves tell it, not the supervisor."""

    at: float
    attempt: int
    step: int
    rank: int
    pid: int


class Injection(Enum):
    """What the contract does to a run from outside."""

    KILL_RANK = "kill a rank"
    KILL_AGENT = "kill an agent"
    KILL_SUPERVISOR = "kill the supervisor"
    KILL_WARDEN = "kill a warden"
    REBOOT_NODE = "kill all of a node, which comes back soon"
    FREEZE_NODE = "stop all processes of a node, and let them go on"
    PAUSE_SUPERVISOR = "stop the supervisor, and let it go on"
    CANCEL = "gangrun cancel"
    RESUME = "gangrun resume"
    TEAR_CHECKPOINT = "cut off the end of the newest checkpoint"
    JUMP_WALL = "set the wall clock"


class WorldDriver(Protocol):
    """One run in one world. Times are seconds of that world; deadlines grow with how long its seconds are."""

    name: str
    cannot: Mapping[Injection, str]  # why this world has no such thing
    scenario: Scenario

    def start(self) -> None:
        """``gangrun run`` (or submit), and return at once."""

    # ---- seeing ----

    def status(self) -> Status:
        """``gangrun status --json``."""

    def explain(self) -> str:
        """``gangrun explain``, each run of blanks as one."""

    def steps(self) -> list[Stepped]:
        """Every step that any rank completed, in order of time."""

    def alive(self, process: int) -> bool:
        """Does a process live, stopped or not?"""

    def ranks(self) -> dict[int, int]:
        """Rank -> process of the ranks that live now; several attempts' would be a failure of its own."""

    def node(self, index: int) -> str:
        """The name of a node."""

    def wait(self, what: str, condition: Callable[[Status], bool], deadline_s: float = 60.0) -> Status:
        """Let time pass until the status fulfils a condition; AssertionError at the deadline."""

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        """Until rank 0 completed ``step`` in ``attempt`` or a later one."""

    def wait_for_launch(self, attempt: int = 0) -> None:
        """Until the first rank of an attempt exists, and no longer."""

    def wait_until(self, what: str, condition: Callable[[], object], deadline_s: float = 60.0) -> None:
        """Until anything at all is so."""

    def pass_time(self, for_s: float) -> None:
        """Just that."""

    def end(self, deadline_s: float = 120.0) -> int:
        """Until the run's owner has left; its exit code."""

    # ---- doing ----

    def kill_rank(self, rank: int) -> None:
        """SIGKILL."""

    def kill_agent(self, node: int) -> None:
        """SIGKILL."""

    def kill_warden(self, node: int) -> None:
        """SIGKILL."""

    def kill_supervisor(self) -> None:
        """SIGKILL, to the newest."""

    def pause_supervisor(self) -> int:
        """SIGSTOP to the newest; which process that is."""

    def wake(self, process: int) -> None:
        """SIGCONT."""

    def reboot_node(self, node: int) -> None:
        """All of it dies at once; something starts it again."""

    def freeze_node(self, node: int) -> None:
        """SIGSTOP to all of it."""

    def thaw_node(self, node: int) -> None:
        """SIGCONT to all of it."""

    def cancel(self) -> None:
        """``gangrun cancel``, without waiting."""

    def resume(self) -> None:
        """``gangrun resume`` of the ended run, and return at once; ``end`` waits for it."""

    def tear_newest_checkpoint(self) -> int:
        """Make the newest checkpoint worthless; its step."""

    def jump_wall(self, by_s: float) -> None:
        """Set every wall clock."""

    def close(self) -> None:
        """Leave nothing behind."""

    def told(self) -> str:
        """Everything that helps to understand a failure."""
