"""The gang-level acts: when each is performed, and how it is asked of the nodes.

An act is ready once its record and its ticket are durable, and is performed while this supervisor leads (law 3); an end
needs no majority. The core knows gangs, not nodes: it is told once all nodes answered, or once it is known why not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from gangrun.core.actions import (
    Action,
    BringSteps,
    CancelRefill,
    CheckNodes,
    ChooseResume,
    EndJob,
    ProbeNode,
    SaveGang,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitRefill,
    SubmitSuccessor,
    TakeStacks,
)
from gangrun.core.checkpoints.memory import Offered, WholeStep, may_share, offered
from gangrun.core.checkpoints.poison import to_set_aside
from gangrun.core.checkpoints.resume import far_share
from gangrun.core.events import Event, StepBrought, StepHeld
from gangrun.core.model import MemoryStep, RunState, Savers
from gangrun.core.policy import Policy, Timing
from gangrun.ports import Checkpoints, Jobs, VerifyAsked
from gangrun.supervisor.heartbeats import Leadership, Row, Silence
from gangrun.supervisor.node_calls import (
    ChaseCall,
    CheckCall,
    CommandRetry,
    NodeCall,
    SaveCall,
    StacksCall,
    StartCall,
    StopCall,
    VerifyCall,
)
from gangrun.supervisor.opening import RunFacts
from gangrun.supervisor.recover_call import Done, MemoryLoad, RecoverCall
from gangrun.wire.messages import CommandResult, Farewell

NEVER = float("inf")
BRING_SHARE = 0.9  # of the time the core waits: a node that did not bring its part must be named before it gives up
FAREWELL_BEATS = 10.0  # agents are waited for this long before the supervisor leaves without their answer
JOB_ENDS_WITHIN_S = 30.0  # the scheduler's side of the end is waited for this long
FAREWELL_HEARD_BEATS = 60.0  # an agent that still beats is waited for this long: only the way to it is bad


class FarewellCall(NodeCall):
    """The run is over, and each agent may go."""

    def __init__(
        self, board: CommandRetry, ending: EndJob, rows: Mapping[str, Row], timing: Timing, now: float
    ) -> None:
        super().__init__(board)
        self._ending, self._rows, self._timing = ending, rows, timing
        self._until = now + FAREWELL_BEATS * timing.beat_every_s
        self._said: set[str] = set()
        for node in sorted(rows):
            self.dismiss(node, now)
        self.deadline = now  # nodes that are lost already are not waited for

    def dismiss(self, node: str, now: float) -> None:
        """This agent may go; said to each once."""
        if node not in self._said:
            self._said.add(node)
            code, reason = self._ending.exit_code, self._ending.reason
            self.ask(node, lambda act: Farewell(self._board.term, act, code, reason), now)
            self.deadline = min(self.deadline, max(self._until, now + self._timing.beat_every_s))

    @property
    def answered_by_all(self) -> bool:
        """All agents know that the run is over, or are not waited for."""
        return not self._open

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """A node that is lost, or has had its time, is not waited for."""
        del silent
        self.leave([node for node in self._open.values() if node in lost or self._given_up(node, now)])
        self.deadline = max(self._until, now + self._timing.beat_every_s) if self._open else NEVER
        return []

    def _given_up(self, node: str, now: float) -> bool:
        if now < self._until:
            return False
        beats = now - self._rows[node].arrived_at < self._timing.silence_after_s
        patience_s = (FAREWELL_HEARD_BEATS - FAREWELL_BEATS) * self._timing.beat_every_s
        return not beats or now >= self._until + patience_s


class GangCommands:
    """What was asked of which nodes, and what is still unanswered."""

    def __init__(
        self,
        board: CommandRetry,
        rows: Mapping[str, Row],
        facts: RunFacts,
        policy: Policy,
        empty_at: Callable[[str], float],
        checkpoints: Checkpoints,
        jobs_looked_at: Callable[[], float],
    ) -> None:
        """``empty_at``: from when on law 1 presumes a node empty.
        ``jobs_looked_at``: when the scheduler was asked of this job whose answer came last.
        """
        self.ending: EndJob | None = None
        self.job_ended = False  # the scheduler's side of the end is done, or is not waited for any more
        self._board = board
        self._rows = rows
        self._facts = facts
        self._policy = policy
        self._empty_at = empty_at
        self._checkpoints = checkpoints
        self._jobs_looked_at = jobs_looked_at
        self._start: StartCall | None = None
        self._stop: StopCall | None = None
        self._stacks: StacksCall | None = None
        self._saves: list[SaveCall] = []
        self._check = CheckCall(board)
        self._recover: RecoverCall | None = None
        self._verify: VerifyCall | None = None
        self._chase = ChaseCall(board)
        self._farewell: FarewellCall | None = None
        self._stopped_through = -1
        self._job_until = NEVER

    # ---- what the core asks for ----

    def start(self, action: StartGang, state: RunState, now: float) -> None:
        """Start all ranks."""
        if action.attempt <= self._stopped_through:
            return  # stopped while its record was on the way to disk
        _end(self._start)
        self._check.leave(action.placement.nodes)  # the other nodes may still be at it
        failures = state.budget.total_count
        self._start = StartCall(self._board, action, self._facts.addresses, self._policy, now, failures)

    def stop(self, action: StopGang, state: RunState, now: float) -> None:
        """Stop all ranks."""
        self._stopped_through = max(self._stopped_through, action.attempt)
        told_step = max((one.told_step for one in self._saves if not one.over), default=-1)
        _end(self._start, self._stacks, *self._saves)
        if self._stop is None or self._stop.over or self._stop.attempt != action.attempt:
            _end(self._stop)
            savers = self._policy.saves_with or state.checkpoints.savers or Savers.RANK0
            self._stop = StopCall(
                self._board, self._policy, state.attempt.placement, savers, self._empty_at, self._jobs_looked_at
            )
        held = set(
            state.attempt.placement.nodes if state.attempt.placement else state.roster.nodes
        )  # unknown where: anywhere
        doubtful = {row.node for row in self._rows.values() if not row.empty or row.hello.launching}
        self._stop.begin(action, held | doubtful, now, told_step)

    def stacks(self, action: TakeStacks, state: RunState, now: float) -> None:
        """Take all ranks' stacks."""
        _end(self._stacks)
        nodes = tuple(n for n in (state.attempt.placement.nodes if state.attempt.placement else ()) if n in self._rows)
        self._stacks = StacksCall(self._board, action.attempt, nodes, self._policy, now)

    def save(self, action: SaveGang, state: RunState, now: float) -> None:
        """Have all ranks save and train on, once they have done so for all who asked before."""
        placed = state.attempt.placement.nodes if state.attempt.placement else ()
        self._saves.append(SaveCall(self._board, action, placed))
        self._begin_save(now)

    def _begin_save(self, now: float) -> None:
        """One save after the other: a second request would replace the first before all ranks have read it."""
        self._saves = [one for one in self._saves if not one.over]
        if self._saves and not self._saves[0].begun:
            self._saves[0].begin(now)

    def check(self, action: CheckNodes, now: float) -> None:
        """Have nodes prove themselves."""
        self._check.ask_all(action, self._facts.addresses, now)

    def end(self, action: EndJob, now: float) -> None:
        """Let all agents go."""
        self.ending = action
        self._board.final = True
        self._job_until = now + JOB_ENDS_WITHIN_S
        _end(self._start, self._stop, self._stacks, *self._saves, self._check, self._recover, self._verify)
        self._farewell = FarewellCall(self._board, action, self._rows, self._policy.timing, now)

    def recover(self, action: SealAttempts | BringSteps, state: RunState, now: float) -> None:
        """What only nodes' memory holds is brought to the disk."""
        _end(self._recover)
        if isinstance(action, BringSteps):
            self._bring(action, state, now)
        else:
            self._recover_then_seal(action, state, now)

    def _recover_then_seal(self, action: SealAttempts, state: RunState, now: float) -> None:
        """In any case older attempts are sealed."""
        attempt, theirs = action.attempt, offered(state.attempts, action.attempt)
        spoilt = to_set_aside(state) is not None  # what the last attempt kept is of the state that is set aside
        if self._facts.memory_staging is None or theirs is None or spoilt:
            self._checkpoints.seal(attempt)
            return

        def done(path: str, step: WholeStep | None, why: str) -> list[Event]:
            told = self._brought(theirs.attempt, path, step, why)
            self._checkpoints.seal(attempt)
            return told if step is not None else []

        def held(step: WholeStep, nodes: tuple[str, ...]) -> list[Event]:
            self._checkpoints.seal(attempt)
            return [StepHeld(attempt, MemoryStep(theirs.attempt, step.step, step.nonce), nodes)]

        def shared(step: WholeStep, lacking: tuple[str, ...]) -> list[Event]:
            self._checkpoints.seal(attempt)
            save = MemoryStep(theirs.attempt, step.step, step.nonce, is_shared=True, lacking=lacking)
            return [StepHeld(attempt, save, action.nodes)]

        nodes = sorted(node for node in self._rows if node in state.roster.nodes and not state.roster.nodes[node].lost)
        load = None
        if action.nodes and self._facts.loads_memory:
            load = MemoryLoad(action.nodes, held, shared if may_share(state.attempts) else None)
        self._begin_recover(theirs, attempt - 1, state.checkpoints.disk_step, nodes, done, now, load=load)

    def _bring(self, action: BringSteps, state: RunState, now: float) -> None:
        """Before this job ends, or while ranks train on; answered with ``StepBrought``."""
        theirs = offered([one for one in state.attempts if one.number == action.attempt], action.attempt + 1)
        within_s = BRING_SHARE * action.within_s
        done = partial(self._brought, action.attempt)
        self._begin_recover(
            theirs or Offered(action.attempt), state.attempt.number, action.above_step, action.nodes, done, now,
            within_s=within_s, pin=action.flush,
        )  # fmt: skip

    def _begin_recover(
        self, theirs: Offered, number: int, above_step: int, nodes: Collection[str], done: Done, now: float, **how: Any
    ) -> None:
        """Without a place to bring steps to, no node is asked. ``number``: of an attempt whose staging is not sealed,
        and will be before a later one chooses.
        """
        checkpoints = self._checkpoints
        staging = self._facts.memory_staging(self._board.term, number) if self._facts.memory_staging else ""
        if staging:
            checkpoints.prepare(staging)
        self._recover = RecoverCall(
            self._board, theirs, above_step, nodes if staging else (), staging, done, now,
            ready=partial(checkpoints.prepared, staging), discard=partial(checkpoints.discard, more=True), **how,
        )  # fmt: skip

    def _brought(self, attempt: int, path: str, step: WholeStep | None, why: str) -> list[Event]:
        """What is known already; nothing if it still has to become a checkpoint, which answers later."""
        if step is None:
            return [StepBrought(attempt)]
        nodes = tuple(step.files)
        if why:
            self._checkpoints.discard(path)
            return [StepBrought(attempt, step.step, nodes, why)]
        self._checkpoints.adopt(path, attempt, step.step, step.nonce, nodes, step.rebuilt_count)
        return []

    def verify(self, asked: VerifyAsked, state: RunState, now: float) -> None:
        """A checkpoint is read by all nodes that answer, this host among them."""
        _end(self._verify)
        here = self._facts.node
        others = [
            name
            for name, node in sorted(state.roster.nodes.items())
            if name in self._rows and not node.lost and node.silent_since is None and name != here
        ]
        others = others[: asked.readers_max_count - 1] if self.ending is None else []
        count = len(others) + 1
        shares = {name: far_share(place, count) for place, name in enumerate(sorted([here, *others]))}
        own = shares.pop(here)
        asked.dealt(own, {share: name for name, share in shares.items()})
        self._verify = VerifyCall(self._board, asked, shares, count, now) if shares else None

    def dismiss(self, node: str, now: float) -> None:
        """This agent may go, if the run is over."""
        if self._farewell is not None:
            self._farewell.dismiss(node, now)

    @property
    def dismissed(self) -> bool:
        """All agents know that the run is over, and the scheduler knows what it must."""
        return self._farewell is not None and self._farewell.answered_by_all and self.job_ended

    # ---- what agents say ----

    def result(self, said: CommandResult, now: float) -> list[Event]:
        """One node's answer to one command."""
        n = self._board.answered(said)
        call = next((call for call in self._calls() if n is not None and call.waits_for(n)), None)
        told = [] if call is None or n is None else call.answered(n, said, now)
        self._begin_save(now)
        return told

    def _calls(self) -> list[NodeCall]:
        calls: tuple[NodeCall | None, ...] = (
            self._start, self._stop, self._stacks, *self._saves, self._check, self._recover, self._verify, self._chase,
            self._farewell,
        )  # fmt: skip
        return [call for call in calls if call is not None and not call.over]

    def chase(self, row: Row, now: float) -> None:
        """The attempt that this agent's ranks are of is over."""
        if self._stop is None or self._stop.over:
            self._chase.chase(row.node, row.attempt, self._policy.stop_grace_s, now)

    # ---- time ----

    def next_at(self) -> float:
        """When ``tick`` has something to do."""
        if self.dismissed:
            return -NEVER
        due = min((call.deadline for call in self._calls()), default=NEVER)
        if self.ending is not None and not self.job_ended:
            due = min(due, self._job_until)
        return min(due, self._board.next_at)

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Say again what was not answered, and give up on what took too long."""
        self._board.tick(now)
        if now >= self._job_until:
            self.job_ended = True
        told: list[Event] = []
        for call in self._calls():
            if now >= call.deadline:
                told += call.tick(now, silent, lost)
        self._begin_save(now)
        return told

    def look_again(self, now: float) -> None:
        """Something changed that may prove a node empty, or that it will not answer."""
        for call in (self._stop, self._verify, self._recover, self._farewell):
            if call is not None and not call.over:
                call.deadline = now


def _end(*calls: NodeCall | None) -> None:
    for call in calls:
        if call is not None and not call.over:
            call.end()


class Dispatch:
    """The acts of one term, each with its number, in the order in which they were decided."""

    def __init__(
        self,
        term: int,
        leadership: Leadership,
        commands: GangCommands,
        checkpoints: Checkpoints,
        jobs: Jobs,
        silence: Silence,
        *,
        alone: bool,
    ) -> None:
        """Nothing is ready yet. ``alone``: no agent of this job lives."""
        self.ready: deque[tuple[Action, int]] = deque()
        self.sealed: tuple[tuple[int, str], ...] = ()  # the commits that stood when older attempts were sealed
        self._term, self._leadership, self._commands = term, leadership, commands
        self._checkpoints, self._jobs, self._silence, self._alone = checkpoints, jobs, silence, alone

    def drain(self, state: RunState, now: float) -> bool:
        """Perform what is ready; was there anything? An end alone needs no majority: a later supervisor reads it, and
        the nodes may be gone already.
        """
        ready, performed = self.ready, False
        while ready and not isinstance(ready[0][0], EndJob) and isinstance(ready[-1][0], EndJob):
            ready.popleft()  # the end supersedes what could not be done before it
        while ready and (isinstance(ready[0][0], EndJob) or self._leadership.holds(now)):
            action, n = ready.popleft()
            performed = True
            self._perform(action, n, state, now)
        return performed

    def _perform(self, action: Action, n: int, state: RunState, now: float) -> None:
        commands = self._commands
        match action:
            case StartGang():
                commands.start(action, state, now)
            case StopGang():
                commands.stop(action, state, now)
            case TakeStacks():
                commands.stacks(action, state, now)
            case SaveGang():
                commands.save(action, state, now)
            case CheckNodes():
                commands.check(action, now)
            case SealAttempts() | BringSteps():
                commands.recover(action, state, now)
            case EndJob():
                self._checkpoints.put_back(action.put_back)
                commands.end(action, now)
                self._jobs.end((self._term, n), action, () if self._alone else self._silence.away)
            case ChooseResume():
                self._checkpoints.choose(action, self.sealed)
            case ProbeNode():
                self._silence.probe(action.node, state, now)
            case SubmitRefill() if all(one.number != action.number for one in state.roster.refills):
                pass  # it was dropped while this waited for the disk, or for a majority
            case SubmitSuccessor() | SubmitRefill() | CancelRefill():
                self._jobs.submit((self._term, n), action)
