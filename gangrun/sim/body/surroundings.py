"""What the parts of a simulated world ask of the world around them, and what they report to whoever checks invariants.

``cluster.Cluster`` is the one implementation, ``invariants.Checker`` the one listener. Nodes, agents and
supervisors import this page and never the world, so that imports have no circle. A type above this page is ``Any``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gangrun.core.policy import Policy
from gangrun.sim.body.checkpoints import CheckpointFs, Name, Saved
from gangrun.sim.body.gang import SimGang, SimRank
from gangrun.sim.body.memory import MemoryTier
from gangrun.sim.body.rank_failures import RankFailures
from gangrun.sim.engine.clock import Timeline
from gangrun.sim.engine.disk import SimDisk
from gangrun.sim.engine.network import Network
from gangrun.sim.engine.process import SimProcess
from gangrun.sim.setup import Setup
from gangrun.wire.messages import BetweenAgents, FromAgent, Launch, PeerAddress, Prepare, Stop


class Checks(ABC):
    """Who is told of each act that could break a promise."""

    @abstractmethod
    def claimed(self, supervisor: Any, term: int) -> None: ...
    @abstractmethod
    def performs(self, term: int, what: str, attempt: int) -> None: ...
    @abstractmethod
    def turned(self, supervisor: Any) -> None: ...
    @abstractmethod
    def journal_refused(self, why: str) -> None: ...
    @abstractmethod
    def obeys(self, agent: Any, command: Prepare | Launch | Stop) -> None: ...
    @abstractmethod
    def forgot(self, agent: Any, before_seq: int, seq: int) -> None: ...
    @abstractmethod
    def says_stop(self, supervisor: Any, attempt: int) -> None: ...
    @abstractmethod
    def chose(self, name: Name, saved: Saved | None, told_so: bool, back: bool) -> None: ...
    @abstractmethod
    def job_began(self, job: Any) -> None: ...
    @abstractmethod
    def submitted(self, seq: int) -> None: ...
    @abstractmethod
    def refill_submitted(self, job: Any) -> None: ...
    @abstractmethod
    def refill_began(self, job: Any) -> None: ...
    @abstractmethod
    def lease_ended(self, node: Any) -> None: ...
    @abstractmethod
    def rank_started(self, node: Any, rank: SimRank, command: Launch) -> None: ...


class SupervisorBody(SimProcess, ABC):
    """A supervisor's process as nodes and agents see it."""

    node: Any
    parked: Any
    loop: Any
    term_min: int

    @abstractmethod
    def hear(self, line: Line, message: FromAgent) -> None:
        """An agent's message arrives."""

    @abstractmethod
    def plan(self) -> None:
        """Turn when something comes, at the latest at the loop's own deadline."""


class Line:
    """One connection of an agent to one supervisor; closed when the agent dials again."""

    __slots__ = ("agent", "supervisor")

    def __init__(self, agent: Any, supervisor: SupervisorBody | None) -> None:
        """Open (to nobody, if the address is of a process that is gone)."""
        self.agent = agent
        self.supervisor = supervisor


class Surroundings(ABC):
    """The world as its parts see it."""

    setup: Setup
    run_id: str
    rng: random.Random
    timeline: Timeline
    disk: SimDisk
    checkpoint_fs: CheckpointFs
    memory: MemoryTier
    network: Network
    checks: Checks
    scheduler: Any
    gangs: list[SimGang]
    nodes: Any
    sick: set[str]  # nodes whose hardware is broken, until they are repaired, which nobody does
    broken_slots: dict[str, set[int]]  # of nodes that have a GPU for each rank
    rank_failures: RankFailures
    bad_links: set[frozenset[str]]  # two nodes whose ranks do not reach each other, or one that reaches nobody
    resumed: dict[str, Any]  # job -> what a person asked of it

    def lost_pairs(self, node: str, partner: str) -> bool:
        """Do data of ranks get lost between these two?"""
        return any(link <= {node, partner} for link in self.bad_links)

    @abstractmethod
    def new_pid(self) -> int: ...
    @abstractmethod
    def new_port(self) -> int: ...
    @abstractmethod
    def policy_of_next_term(self) -> Policy: ...
    @abstractmethod
    def new_supervisor(
        self,
        node: Any,
        term_min: int,
        promises: tuple[str, ...],
        promised_at: float,
        alone: Callable[[bool], None] | None = None,
    ) -> SupervisorBody: ...
    @abstractmethod
    def supervisor_at(self, endpoint: str) -> SupervisorBody | None: ...
    @abstractmethod
    def lives(self, pid: int) -> bool: ...
    @abstractmethod
    def roster_of(self, job: str) -> tuple[str, ...]: ...
    @abstractmethod
    def add_agent(self, agent: Any) -> None: ...
    @abstractmethod
    def send_peer(self, sender: Any, endpoint: str, message: BetweenAgents) -> None: ...
    @abstractmethod
    def knock(self, sender: Any, peer: PeerAddress) -> None: ...
    @abstractmethod
    def gang_at(self, command: Launch) -> SimGang: ...
    @abstractmethod
    def node_left(self, node: Any) -> None: ...
    @abstractmethod
    def warden_killed(self, node: Any) -> None: ...
    @abstractmethod
    def node_lost(self, node: Any) -> None: ...
    @abstractmethod
    def job_lives(self, name: str) -> bool: ...
    @abstractmethod
    def terminate(self, node: Any, signal: int) -> None: ...
    @abstractmethod
    def unpark_all(self) -> None: ...
    @abstractmethod
    def mark_cancelled(self) -> None: ...
    @abstractmethod
    def is_over(self) -> bool: ...
    @abstractmethod
    def newest_state(self) -> Any: ...
