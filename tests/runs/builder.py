"""Run directories as real runs leave them, without any process: the real core decides, the real journal is written.

A ``Builder`` holds a clock and a state; ``on`` puts an event through ``core.lifecycle.step`` and writes the record as a
supervisor's ledger would.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Index, IndexEntry
from gangrun.adapters.fs.job_claims import JobClaim
from gangrun.adapters.fs.journal import Counter, JournalWriter
from gangrun.adapters.fs.run_dir import RunPaths, write_spec
from gangrun.core.actions import TICKETED
from gangrun.core.events import (
    AgentJoined,
    AttemptSealed,
    Event,
    FirstStepSeen,
    GangStarted,
    GangStopped,
    NodeChecked,
    RankExited,
    RankFinished,
    ResumeChosen,
    Stamped,
    TermTaken,
)
from gangrun.core.evidence import ErrorReport, RankExit
from gangrun.core.machine.lifecycle import step
from gangrun.core.machine.succession import first_state
from gangrun.core.model import CheckpointRef, RunState, Shape
from gangrun.core.policy import Policy
from gangrun.node import processes
from gangrun.wire import kinds
from gangrun.wire import record as wire_claim
from gangrun.wire import record as wire_record
from gangrun.wire.record import Claim, Record
from gangrun.wire.spec import CheckpointSpec, RunSpec

BEGAN = 1_795_000_000.0  # 2026-11-18 11:06:40 UTC
ERROR = ErrorReport(
    kind="RuntimeError",
    message="shape mismatch: 3 vs 4",
    signature="RuntimeError@train.py:17",
    traceback='Traceback (most recent call last):\n  File "train.py", line 17, in <module>\n    loss = model(x)\n'
    "RuntimeError: shape mismatch: 3 vs 4\n",
    collective=False,
)
VICTIM = ErrorReport("torch.distributed.DistBackendError", "peer closed", "victim", "Traceback ...\nvictim\n", True)


@dataclass
class Builder:
    """One run, told event by event."""

    runs: Path
    run: str = "20261118-110640-abcde"
    name: str = "train"
    nodes: tuple[str, ...] = ("n0", "n1")
    ranks: int = 2
    policy: Policy = field(default_factory=Policy)
    checkpoint_dir: str = ""
    secret_names: tuple[str, ...] = ()
    command: tuple[str, ...] = ("python", "train.py")
    now: float = BEGAN
    disk: Disk = field(default_factory=Disk)
    term: int = 0
    job: str = "local-box-1-1"
    world: str = "local"
    resume: str = "auto"
    reports: bool = True  # its first step

    def __post_init__(self) -> None:
        """A private run directory with a spec, and nothing else yet."""
        self.paths = RunPaths(self.runs / self.run)
        for folder in (self.paths.root, self.paths.machine, self.paths.keys, self.paths.terms, self.paths.journals,
                       self.paths.jobs, self.paths.logs):  # fmt: skip
            folder.mkdir(mode=0o700, parents=True)
        slurm = self.world == "slurm"
        self.spec = RunSpec(
            run=self.run, name=self.name, world=self.world, command=self.command, python=True,
            working_directory=str(self.runs), nodes=() if slurm else self.nodes, nodes_min_count=len(self.nodes),
            nodes_count=len(self.nodes) if slurm else 0, slots_per_node=self.ranks, ranks_per_slot=1,
            checkpoint=CheckpointSpec(self.checkpoint_dir), policy=self.policy, secret_names=self.secret_names,
            created_wall=self.now, resume=self.resume,
        )  # fmt: skip
        write_spec(self.disk, self.paths, self.spec)
        shape = Shape(len(self.nodes), len(self.nodes), self.ranks, 1)
        self.state = first_state(RunState(run=self.run, shape=shape), self.now, self.policy)
        self.reasons: list[str] = []

    # ---- as a supervisor writes ----

    def supervisor(self, took_over: bool = True) -> Builder:
        """The next term: its claim, its snapshot, and that it was taken."""
        self.term += 1
        self.writer = JournalWriter(self.disk, self.paths.journal(self.term))
        self.n = self.tickets = 0
        claim = Claim(self.term, self.run, self.job, self.nodes[0], 1, 1, "tcp://x", "key", self.now)
        self.paths.claim(self.term).write_bytes(wire_claim.encode_claim(claim))
        self._write(kind="Snapshot", reason=f"supervisor #{self.term} reads", patch=wire_record.snapshot(self.state))
        if took_over:
            self.on(TermTaken(self.term, self.job, (), (), self.state.attempt.number))
        return self

    def on(self, event: Event, after_s: float = 1.0) -> Builder:
        """One event, a little later."""
        self.now += after_s
        before, decision = self.state, step(self.state, Stamped(event), self.now, self.policy)
        self.state = decision.state
        acts = []
        for action in decision.actions:
            self.tickets += isinstance(action, TICKETED)
            acts.append(kinds.act(action, self.tickets if isinstance(action, TICKETED) else 0))
        self._write(
            kind=type(event).__name__, event=wire_record.builtins(event), outcome=decision.outcome.value,
            was=before.phase.value, reason=decision.reason, actions=tuple(acts),
            patch=wire_record.diff(before, decision.state),
        )  # fmt: skip
        self.reasons.append(decision.reason)
        return self

    def _write(self, **what: Any) -> None:
        what.setdefault("was", self.state.phase.value)
        record = Record(
            v=wire_record.SCHEMA,
            term=self.term,
            n=self.n,
            at=self.now,
            wall=self.now,
            phase=self.state.phase.value,
            **what,
        )
        self.n += 1
        self.writer.append(wire_record.encode(record))

    def live(self, **figures: Any) -> Builder:
        """What the supervisor writes beside the journal every few seconds."""
        Counter(self.disk, self.paths, self.term).write({"attempt": self.state.attempt.number, **figures}, self.now)
        return self

    def owner(self, seq: int = 0, *, pid: int | None = None, ticks: int | None = None, host: str = "") -> Builder:
        """Who holds the newest job: without more, a process that is long gone."""
        pid, ticks = (2**22 + 7, 1) if pid is None else (pid, ticks or _ticks(pid))
        claim = JobClaim(seq, self.job, 0, host or processes.host_name(), pid, ticks)
        self.paths.job(seq).write_bytes(msgspec.json.encode(claim))
        return self

    def owned_by_us(self) -> Builder:
        """Held by the process that runs this test."""
        return self.owner(pid=os.getpid())

    def indexed(self, index: Path) -> Builder:
        """Known to the user's index."""
        spec = self.spec
        entry = IndexEntry(self.run, self.name, str(self.paths.root), spec.created_wall, (self.job,))
        Index(index).put(msgspec.structs.replace(entry, directory=spec.working_directory))
        return self

    # ---- chapters ----

    def up(self, checkpoint: CheckpointRef | None = None, passed: tuple[tuple[int, str], ...] = ()) -> Builder:
        """From nobody there to all ranks running."""
        for node in self.nodes:
            self.on(AgentJoined(node, f"i-{node}", f"b-{node}", self.ranks))
        for node in self.nodes:
            self.on(NodeChecked(node, True))
        return self.again(checkpoint, passed)

    def again(self, checkpoint: CheckpointRef | None = None, passed: tuple[tuple[int, str], ...] = ()) -> Builder:
        """Sealed, chosen, launched, first step."""
        why = (
            f"resuming from step {checkpoint.step}" if checkpoint else "starting from the beginning: none was committed"
        )
        self.on(AttemptSealed(self.state.attempt.number))
        self.on(ResumeChosen(self.state.attempt.number, checkpoint, why, passed))
        self.on(GangStarted(self.state.attempt.number))
        if not self.reports:
            return self
        return self.on(FirstStepSeen(self.state.attempt.number, checkpoint.step if checkpoint else 0))

    def exit(
        self, rank: int, *, error: ErrorReport | None = None, signal: int | None = None, by_us: bool = False
    ) -> Builder:
        """A rank ended."""
        code = None if signal else 1
        node = self.nodes[rank // self.ranks]
        died = RankExit(rank, node, code, signal, False, by_us, error, self.now)
        return self.on(RankExited(self.state.attempt.number, died))

    def stopped(self) -> Builder:
        """No rank lives."""
        return self.on(GangStopped(self.state.attempt.number))

    def finished(self, step: int = -1) -> Builder:
        """Every rank ended with 0, at this step."""
        for rank in range(len(self.nodes) * self.ranks):
            node = self.nodes[rank // self.ranks]
            self.on(RankFinished(self.state.attempt.number, rank, node, self.now, step))
        return self.stopped()


def _ticks(pid: int) -> int:
    proc = processes.read_proc(pid)
    assert proc is not None
    return proc.start_ticks
