"""The gang-level acts: when each is performed, and how it is asked of the nodes.

An act is ready once its record and its ticket are durable, and is performed while this supervisor leads (law 3); an end
needs no majority. The core knows gangs, not nodes: it is told once all nodes answered, or once it is known why not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gangrun.core.actions import (
    Action,
    BringSteps,
    CheckNodes,
    ChooseResume,
    EndJob,
    ProbeNode,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitSuccessor,
    TakeStacks,
)
from gangrun.core.checkpoints.memory import WholeStep, newest_chosen
from gangrun.core.checkpoints.poison import to_set_aside
from gangrun.core.checkpoints.resume import far_share
from gangrun.core.events import Event, StepBrought
from gangrun.core.model import RunState
from gangrun.core.policy import Policy
from gangrun.ports import Checkpoints, Jobs, ReadingAsked
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.node_calls import CheckCall, CommandRetry, NodeCall, StacksCall, StartCall, StopCall, VerifyCall
from gangrun.supervisor.opening import RunFacts
from gangrun.supervisor.recover_call import RecoverCall
from gangrun.wire.messages import CommandResult, Farewell, Stop

if TYPE_CHECKING:
    from gangrun.supervisor.loop import Loop


class Dispatch:
    """The acts of one term, each with its number, in the order in which they were decided."""

    def __init__(self, loop: Loop, checkpoints: Checkpoints, jobs: Jobs) -> None:
        """Nothing is ready yet."""
        self._loop, self._checkpoints, self._jobs = loop, checkpoints, jobs
        self.ready: deque[tuple[Action, int]] = deque()
        self.sealed: tuple[tuple[int, str], ...] = ()  # the commits that stood when older attempts were sealed

    def drain(self, state: RunState, now: float) -> bool:
        """Perform what is ready; was there anything? An end alone needs no majority: whoever comes later reads it, and
        the nodes may be gone already.
        """
        ready, performed = self.ready, False
        while ready and not isinstance(ready[0][0], EndJob) and isinstance(ready[-1][0], EndJob):
            ready.popleft()  # the end supersedes what could not be done before it
        while ready and (isinstance(ready[0][0], EndJob) or self._loop.leadership.holds(now)):
            action, n = ready.popleft()
            performed = True
            self._perform(action, n, state, now)
        return performed

    def _perform(self, action: Action, n: int, state: RunState, now: float) -> None:
        loop = self._loop
        match action:
            case StartGang() | StopGang() | TakeStacks() | CheckNodes():
                loop.roll_call.perform(action, state, now)
            case EndJob():
                self._checkpoints.put_back(action.put_back)
                loop.roll_call.perform(action, state, now)
                self._jobs.end((loop.term, n), action, () if loop.facts.alone else loop.silence.away)
            case SealAttempts() | BringSteps():
                loop.roll_call.rescue(action, state, self._checkpoints, now)
            case ChooseResume():
                self._checkpoints.choose(action, self.sealed)
            case ProbeNode():
                loop.silence.probe(action.node, state, now)
            case SubmitSuccessor():
                self._jobs.submit((loop.term, n), action)


NEVER = float("inf")
BRING_SHARE = 0.9  # of the time the core waits: who did not bring its part must be named before it gives up
FAREWELL_BEATS = 10.0  # so long agents are waited for before the supervisor leaves without their answer
JOB_ENDS_WITHIN_S = 30.0  # so long the scheduler's side of the end is waited for
FAREWELL_HEARD_BEATS = 60.0  # so long those that still beat, for whom it is only the way that is bad

GangAction = StartGang | StopGang | TakeStacks | CheckNodes | EndJob


class GangCommands:
    """Who was told what, and who has answered."""

    def __init__(
        self,
        board: CommandRetry,
        rows: Mapping[str, Row],
        facts: RunFacts,
        policy: Policy,
        empty_at: Callable[[str], float],
    ) -> None:
        self.ending: EndJob | None = None
        self._board = board
        self._rows = rows
        self._facts = facts
        self._policy = policy
        self._empty_at = empty_at
        self._start: StartCall | None = None
        self._stop: StopCall | None = None
        self._stacks: StacksCall | None = None
        self._check: CheckCall | None = None
        self._rescue: RecoverCall | None = None
        self._reading: VerifyCall | None = None
        self._stopped_through = -1
        self._chased: dict[str, int] = {}  # node -> command
        self._farewells: dict[int, str] = {}
        self._said_farewell: set[str] = set()
        self.job_ended = False  # the scheduler's side of the end is done, or nobody waits for it any more
        self._end_at = self._job_until = NEVER
        self._looked_at = -NEVER

    # ---- what the core asks for ----

    def perform(self, action: GangAction, state: RunState, now: float) -> None:
        """Begin one act; events follow from ``result`` and ``tick``."""
        match action:
            case StartGang():
                self._perform_start(action, now)
            case StopGang():
                self._perform_stop(action, state, now)
            case TakeStacks():
                self._drop(self._stacks)
                nodes = tuple(n for n in (state.placement.nodes if state.placement else ()) if n in self._rows)
                self._stacks = StacksCall(self._board, action.attempt, nodes, self._policy, now)
            case CheckNodes():
                if self._check is not None and self._check.over:
                    self._check = None
                call = CheckCall(self._board, action.nodes, action.tests, now)
                self._check = call if self._check is None else self._check.joined(call)
            case EndJob():
                self._perform_end(action, now)

    def _perform_start(self, action: StartGang, now: float) -> None:
        if action.attempt <= self._stopped_through:
            return  # stopped while its record was on the way to disk
        self._drop(self._start)
        if self._check is not None:
            self._board.withdraw(self._check.left_by(action.placement.nodes))
        self._start = StartCall(self._board, action, self._facts.addresses, self._policy, now)

    def _perform_stop(self, action: StopGang, state: RunState, now: float) -> None:
        self._stopped_through = max(self._stopped_through, action.attempt)
        self._drop(self._start)
        self._drop(self._stacks)
        self._start = self._stacks = None
        if self._stop is None or self._stop.over or self._stop.attempt != action.attempt:
            self._drop(self._stop)
            self._stop = StopCall(self._board, self._facts, self._policy, state.placement, self._empty_at)
        held = set(state.placement.nodes if state.placement else state.nodes)  # unknown where: anywhere
        doubtful = {row.node for row in self._rows.values() if not row.empty or row.launching}
        self._stop.begin(action, held | doubtful, now)

    def _perform_end(self, action: EndJob, now: float) -> None:
        self.ending = action
        self._board.final = True
        self._end_at = now + FAREWELL_BEATS * self._policy.timing.beat_every_s
        self._job_until = now + JOB_ENDS_WITHIN_S
        for call in self._calls():
            self._drop(call)
        self._start = self._stop = self._stacks = self._check = self._rescue = self._reading = None
        for node in sorted(self._rows):
            self.dismiss(node, now)

    def rescue(self, action: SealAttempts | BringSteps, state: RunState, checkpoints: Checkpoints, now: float) -> None:
        """What only nodes' memory holds is brought to the disk."""
        self._drop(self._rescue)
        self._rescue = None
        if isinstance(action, BringSteps):
            self._bring(action, checkpoints, now)
        else:
            self._rescue_then_seal(action.attempt, state, checkpoints, now)

    def _rescue_then_seal(self, attempt: int, state: RunState, checkpoints: Checkpoints, now: float) -> None:
        """In any case older attempts are sealed."""
        last = newest_chosen([(one.number, bool(one.nodes)) for one in state.attempts], attempt)
        spoilt = to_set_aside(state) is not None  # what the last attempt kept is of the state that is set aside
        if self._facts.memory_staging is None or last < 0 or spoilt:
            checkpoints.seal(attempt)
            return

        def done(path: str, step: WholeStep | None, why: str) -> list[Event]:
            told = _brought(checkpoints, last, path, step, why)
            checkpoints.seal(attempt)
            return told if step is not None else []

        staging = self._facts.memory_staging(self._board.term, last)
        nodes = sorted(node for node in self._rows if node in state.nodes and not state.nodes[node].lost)
        checkpoints.prepare(staging)
        self._rescue = RecoverCall(
            self._board, last, state.disk_step, nodes, staging, done, now,
            ready=partial(checkpoints.prepared, staging), discard=partial(checkpoints.discard, more=True),
        )  # fmt: skip

    def _bring(self, action: BringSteps, checkpoints: Checkpoints, now: float) -> None:
        """Before this job ends, or while ranks train on; answered with ``StepBrought``."""
        staging = self._facts.memory_staging(self._board.term, action.attempt) if self._facts.memory_staging else ""

        def done(path: str, step: WholeStep | None, why: str) -> list[Event]:
            return _brought(checkpoints, action.attempt, path, step, why)

        if staging:
            checkpoints.prepare(staging)
        nodes = action.nodes if staging else ()
        self._rescue = RecoverCall(
            self._board, action.attempt, action.above_step, nodes, staging, done, now, BRING_SHARE * action.within_s,
            pin=action.flush, ready=partial(checkpoints.prepared, staging),
            discard=partial(checkpoints.discard, more=True),
        )  # fmt: skip

    def read(self, asked: ReadingAsked, state: RunState, checkpoints: Checkpoints, now: float) -> None:
        """A checkpoint is read by all nodes that answer, this host among them."""
        if asked.left_s < NEVER:
            if self._reading is not None and self._reading.number == asked.number:
                self._reading.wait_until(now + asked.left_s)
            return
        self._drop(self._reading)
        here = self._facts.node
        others = [
            name
            for name, node in sorted(state.nodes.items())
            if name in self._rows and not node.lost and node.silent_since is None and name != here
        ]
        others = others[: asked.readers_max_count - 1] if self.ending is None else []
        count = len(others) + 1
        shares = {name: far_share(place, count) for place, name in enumerate(sorted([here, *others]))}
        checkpoints.dealt(asked.number, shares.pop(here), count)
        done = partial(checkpoints.proven, asked.number)
        self._reading = VerifyCall(self._board, asked, shares, count, done, now) if shares else None

    def dismiss(self, node: str, now: float) -> None:
        """This agent may go: the run is over."""
        if self.ending is None or node in self._said_farewell:
            return
        ending = self.ending
        self._said_farewell.add(node)

        def command(act: tuple[int, int]) -> Farewell:
            return Farewell(self._board.term, act, ending.exit_code, ending.reason)

        self._farewells[self._board.say(node, command, now)] = node

    @property
    def dismissed(self) -> bool:
        """All agents know that the run is over, and the scheduler knows what it must."""
        return self.ending is not None and not self._farewells and self.job_ended

    def _drop(self, call: NodeCall | None) -> None:
        if call is not None and not call.over:
            call.over = True
            self._board.withdraw(call.numbers())

    # ---- what agents say ----

    def result(self, said: CommandResult, now: float) -> list[Event]:
        """One node's answer to one command."""
        n = self._board.answered(said)
        if n is None:
            return []
        if n in self._farewells:
            del self._farewells[n]
            return []
        if self._chased.get(said.node) == n:
            del self._chased[said.node]
            return []
        for call in self._calls():
            if n in call.numbers():
                told = call.answered(n, said, now)
                if call.over:
                    self._board.withdraw(call.numbers())
                return told
        return []

    def _calls(self) -> list[NodeCall]:
        calls: tuple[NodeCall | None, ...] = (
            self._start, self._stop, self._stacks, self._check, self._rescue, self._reading,
        )  # fmt: skip
        return [call for call in calls if call is not None and not call.over]

    def chase(self, row: Row, why: str, now: float) -> None:
        """Ranks of an attempt that is over live there: they must go, whatever became of the rest."""
        if row.node in self._chased or (self._stop is not None and not self._stop.over):
            return
        grace_s, attempt = self._policy.stop_grace_s, row.attempt

        def command(act: tuple[int, int]) -> Stop:
            return Stop(self._board.term, act, attempt, grace_s, False, 0.0, why)

        self._chased[row.node] = self._board.say(row.node, command, now)

    # ---- time ----

    def next_at(self) -> float:
        """When ``tick`` has something to do."""
        if self.dismissed:
            return -NEVER
        due = min((call.deadline for call in self._calls()), default=NEVER)
        if self.ending is not None and not self.job_ended:
            due = min(due, self._job_until)
        end_at = self._end_at if self._farewells else NEVER
        return min(due, self._board.next_at, max(end_at, self._looked_at + self._policy.timing.beat_every_s))

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Say again what was not answered, and give up on what took too long."""
        self._looked_at = now
        self._board.tick(now)
        if self.ending is not None and now >= self._job_until:
            self.job_ended = True
        told: list[Event] = []
        for call in self._calls():
            if now >= call.deadline:
                told += call.tick(now, silent, lost)
                if call.over:
                    self._board.withdraw(call.numbers())
        for n in [n for n, node in self._farewells.items() if node in lost or self._given_up(node, now)]:
            del self._farewells[n]
        return told

    def _given_up(self, node: str, now: float) -> bool:
        """Has this agent been waited for long enough?"""
        if now < self._end_at:
            return False
        timing = self._policy.timing
        beats = now - self._rows[node].arrived_at < timing.silence_after_s
        return not beats or now >= self._end_at + (FAREWELL_HEARD_BEATS - FAREWELL_BEATS) * timing.beat_every_s

    def look_again(self, now: float) -> None:
        """Something changed that may prove a node empty, or that it will not answer."""
        for call in (self._stop, self._reading, self._rescue):
            if call is not None and not call.over:
                call.deadline = now


def _brought(checkpoints: Checkpoints, attempt: int, path: str, step: WholeStep | None, why: str) -> list[Event]:
    """What is known already; nothing where it still has to become a checkpoint, which answers later."""
    if step is None:
        return [StepBrought(attempt)]
    nodes = tuple(step.files)
    if why:
        checkpoints.discard(path)
        return [StepBrought(attempt, step.step, nodes, why)]
    checkpoints.adopt(path, attempt, step.step, step.nonce, nodes, step.rebuilt_count)
    return []
