"""The one loop: wait, translate, decide, record, perform.

It waits in exactly one place, ``turn``. What comes is turned into core events; each is decided by ``core.lifecycle``,
written to the ledger, and what it asks for is performed once the record and its tickets are durable *and* this
supervisor leads (law 3). Stopping alone does not wait for the disk. All instants here are on the run clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gangrun.core.actions import Action, Decision, EndJob, StartGang, StopGang
from gangrun.core.events import (
    ActDone,
    ActFailed,
    AttemptSealed,
    CancelRequested,
    CheckpointSeen,
    DeadlinePassed,
    Event,
    NodeLost,
    NodeSilent,
    ProgressStalled,
    SaveAnswered,
    Stamped,
    StepBrought,
)
from gangrun.core.machine import lifecycle
from gangrun.core.model import Outcome, Phase, RunState
from gangrun.core.policy import Policy
from gangrun.core.recovery import error_rules
from gangrun.core.versions import with_entries
from gangrun.ports import (
    AgentsSaid,
    Checkpoints,
    Clock,
    Deposed,
    Item,
    Jobs,
    Mailbox,
    Radio,
    Store,
    Stored,
    StoreTrouble,
    VerifyAsked,
    Withheld,
    Woken,
)
from gangrun.supervisor.agent_messages import AgentMessages, AgentTables
from gangrun.supervisor.gang_commands import Dispatch, GangCommands
from gangrun.supervisor.heartbeats import Heartbeats, Leadership, Silence
from gangrun.supervisor.journal_queue import JournalQueue, StorageStall, Written
from gangrun.supervisor.node_calls import CommandRetry
from gangrun.supervisor.opening import EXIT_DEPOSED, Opening, RunClock, RunFacts
from gangrun.supervisor.progress import CheckpointPolling, GangProgress
from gangrun.supervisor.takeover import TakeoverGather
from gangrun.wire.messages import AgentEvent
from gangrun.wire.record import Inherited

NEVER = float("inf")
OVERDUE_S = 1.0  # woken this much too late: this process, or its machine, was paused
BEHIND_LOOK_S, BEHIND_MAX_S = 0.05, 1.0  # letters lie unread: what they prove is waited for, until no more are read


class Loop:
    """One term's supervisor, from its snapshot to its last act."""

    def __init__(
        self,
        *,
        clock: Clock,
        mailbox: Mailbox,
        store: Store,
        radio: Radio,
        checkpoints: Checkpoints,
        jobs: Jobs,
        policy: Policy,
        facts: RunFacts,
        opening: Opening,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Commits the term's snapshot at once; everything else happens in ``turn``."""
        self.state: RunState = opening.state
        self.exit_code: int | None = None
        self.facts, self.policy, self.term = facts, policy, opening.term
        self.run_clock = RunClock(opening.run_start, opening.boot_start)
        self._clock, self._mailbox, self._store, self._jobs = clock, mailbox, store, jobs
        self._say = say
        now = self._now()
        timing = policy.timing
        self.leadership = Leadership(timing)
        self.journal = JournalQueue(store, opening.term)
        self.beats = Heartbeats(timing)
        self.silence = Silence(self.beats, timing, opening.term, radio.send)
        self.progress = GangProgress(policy, now, facts.total_steps)
        self.takeover = TakeoverGather(facts, opening, timing, self.beats.rows)
        board = CommandRetry(radio.send, opening.term, self.journal.number, self.leadership.holds, timing)
        self._commands = GangCommands(
            board, self.beats.rows, facts, policy, self.takeover.empty_at, checkpoints,
            lambda: self.run_clock.at(jobs.looked_at()),
        )  # fmt: skip
        self._radio = radio
        tables = AgentTables(
            self.beats, self.leadership, self.silence, self.progress, self.takeover, self._commands, self.journal
        )
        self._messages = AgentMessages(self, tables, facts, radio, timing, clock.wall)
        self.dispatch = Dispatch(
            opening.term, self.leadership, self._commands, checkpoints, jobs, self.silence, alone=facts.alone
        )
        self._fired: set[tuple[str, int]] = set()
        self.stall = StorageStall(self.journal, timing)
        self._read_until = now  # all that came in before this instant has been read
        self._behind_at: float | None = None  # when agents' letters were read last, if they have more to be read
        self._read_again_at = now
        self._turned_at = self._live_at = now
        self._polling = CheckpointPolling(checkpoints, facts, self.state, now, self.progress)
        self._due: float | None = None
        for node in sorted(self.takeover.roster):
            since = self.state.roster.nodes[node].silent_since
            self.beats.expect(node, now if since is None else since)
        if self.takeover.roster:
            self.silence.adopt(self.state)
        self.leadership.proven(opening.opened_at)
        self._opening_nodes = self.state.roster.nodes if self.takeover.roster else {}
        self.count_rosters()
        reason = f"supervisor #{self.term} on {facts.node or 'this host'} reads: {self.state.reason or 'nothing yet'}"
        carried = Inherited(opening.highest_attempt, opening.started_attempt, opening.lost)
        self.journal.snapshot(self.state, carried, now, clock.wall(), "; ".join((reason, *opening.notes)))

    # ---- time ----

    def _now(self) -> float:
        return self.run_clock.at(self._clock.now())

    def deadline(self) -> float:
        """Until when ``turn`` would wait if nothing came (seconds of ``Clock.now``)."""
        if self._due is None:
            self._due = self._next_due()
        return self.run_clock.boot(self._due)

    def _next_due(self) -> float:
        if self.takeover.gathering:
            return min(self.takeover.due(), max(self.stall.due(), self._read_again_at))
        timers = (at.at for name, at in self.state.timers.deadlines.items() if (name, at.generation) not in self._fired)
        return min(
            min(timers, default=NEVER),
            max(min(self.stall.due(), self.silence.next_at), self._read_again_at),
            self.progress.next_at(self.state),
            self._commands.next_at(),
            self._live_at,
            self._polling.due(self.state),
        )

    # ---- one turn ----

    def run(self) -> int:
        """Turn until over; the exit code."""
        while self.turn():
            pass
        assert self.exit_code is not None
        return self.exit_code

    def turn(self) -> bool:
        """Wait for one item, deal with it and with all that is due; False once this supervisor is over."""
        if self.exit_code is not None:
            return False
        until = self.deadline()
        item = self._mailbox.next(until)
        now = self._now()
        if now > max(self.run_clock.at(until), self._turned_at) + OVERDUE_S:
            self.beats.excuse(now, self.silence.suspects)
            self.silence.next_at = now
        self._take(item, now)
        if self.exit_code is None:
            self._drain_ready(now)
            if now >= self.run_clock.at(self.deadline()):
                self._sweep(now)
        self._turned_at = self._now()
        return self.exit_code is None

    def _take(self, item: Item, now: float) -> None:
        match item:
            case AgentsSaid():
                came_at = self._came_at(item, now)
                for peer, message in item.letters:
                    self._messages.open(peer, message, now, came_at)
                    if self.exit_code is not None:
                        return
            case Stamped():
                self._outside(item, now)
            case Stored():
                self._stored(item.n, now)
            case Withheld():  # the word of the cancel itself may still be on its way
                self._stored(item.n, now, (StopGang, StartGang))
                self.decide(Stamped(CancelRequested(item.by)), now)
            case StoreTrouble():
                if self.journal.trouble != item.why:
                    self.journal.trouble = item.why
                    self._say(f"the run directory refuses writing: {item.why}; trying again")
            case Deposed():
                self.leave(item.why)
            case VerifyAsked():
                self._commands.verify(item, self.state, now)
                self._due = None
            case Woken():
                if self._behind_at is not None and now < self._behind_at + BEHIND_MAX_S:
                    self._read_again_at = now + BEHIND_LOOK_S
                else:
                    self._read_until = now

    def _came_at(self, said: AgentsSaid, now: float) -> float:
        """When these letters came in. Of a heap that grows the newest letter may be read before the oldest."""
        if said.at is None:
            return now
        came_at = self._read_until = min(now, self.run_clock.at(said.at))
        self._behind_at = None
        if said.all_until is not None and said.all_until < said.at:
            self._behind_at, self._read_until = now, min(came_at, self.run_clock.at(said.all_until))
        return came_at

    def leave(self, why: str) -> None:
        """A newer term exists, or this one's acts are sealed: nothing more is said or done."""
        self.exit_code = EXIT_DEPOSED
        self.dispatch.ready.clear()
        self._say(f"supervisor #{self.term} leaves: {why}")

    def _outside(self, stamped: Stamped, now: float) -> None:
        """What checkpoints, jobs and the user's signals say."""
        event = stamped.event
        if isinstance(event, AttemptSealed):
            self.dispatch.sealed = event.commits
        elif isinstance(event, CheckpointSeen):
            self.progress.note_checkpoint(now)
            told = replace(event, job_left_s=self._jobs.left_s(), step_time=self.progress.step_time)
            stamped = replace(stamped, event=told)
        elif isinstance(event, ActDone | ActFailed) and event.what == EndJob.__name__:
            self._commands.job_ended = True
            self._due = None
            if isinstance(event, ActFailed):
                self._say(f"this job may not end by itself: {event.why}")
            return
        if self.takeover.gathering:
            self._messages.later.append(stamped)
            return
        self.decide(stamped, now)

    def touch(self) -> None:
        """A table changed: look anew at what is due."""
        self._due = None

    # ---- decide and record ----

    def tell(self, events: list[Event], now: float) -> None:
        """Events of this supervisor's own tables."""
        for event in events:
            self.decide(Stamped(event), now)

    def decide(self, stamped: Stamped, now: float) -> None:
        """One event through the core, onto the ledger."""
        before = self.state
        now = max(now, before.updated_at)
        decision = lifecycle.step(before, stamped, now, self.policy)
        self.state = decision.state
        written = self.journal.write(before, stamped, decision, now, self._clock.wall())
        self._due = None
        self._follow(before, stamped.event, decision, now)
        for action, n in written.acts:
            if isinstance(action, StopGang):
                self.dispatch.ready.append((action, n))
        self._drain_ready(now)

    def malformed(self, node: str, incarnation: str, event: AgentEvent, why: str, now: float) -> None:
        """An event that cannot be read is counted and journalled, or its agent would repeat it for ever."""
        before = self.state
        self.state = replace(before, marks=with_entries(before.marks, {node: (incarnation, event.seq)}))
        what = {"node": node, "seq": event.seq, "kind": event.kind}
        self.journal.malformed(before, self.state, what, why, now, self._clock.wall())
        self._due = None

    def _follow(self, before: RunState, event: Event, decision: Decision, now: float) -> None:
        """Keep the tables in step with the state."""
        state = decision.state
        if decision.outcome is Outcome.APPLIED and decision.reason:
            self._say(decision.reason)
        if state.ending.cancelled_by and not before.ending.cancelled_by and self.facts.mark_cancel is not None:
            self.facts.mark_cancel(state.ending.cancelled_by)  # first of all: this process may be killed any moment
        if self.facts.note_nodes is not None:
            self.facts.note_nodes(before, state)
        if state.roster.nodes is not before.roster.nodes:
            if not state.roster.nodes and before.roster.nodes:
                self.silence.clear()
                self.beats.forget_all()
            self.count_rosters()
        self._polling.follow(before, state, now)
        if state.phase is Phase.RUNNING:
            self.progress.begin(state.attempt.number, state.attempts[-1].started if state.attempts else now, now)
        elif before.phase is Phase.RUNNING:
            self.progress.end()
        if isinstance(event, SaveAnswered):
            self._polling.look_soon(now)
        if isinstance(event, StepBrought):
            self._polling.brought(now)
        if isinstance(event, NodeSilent | NodeLost):
            self._jobs.look()
        if isinstance(event, NodeLost):
            self._commands.look_again(now)

    def count_rosters(self) -> None:
        """Whose beats make a majority: of the roster as decided, and as a successor would read it."""
        durable = self._opening_nodes if self.journal.durable_nodes is None else self.journal.durable_nodes
        self.leadership.rosters(self._opening_nodes if self.takeover.gathering else self.state.roster.nodes, durable)

    def _stored(self, n: int, now: float, withheld: tuple[type[Action], ...] = (StopGang,)) -> None:
        done: list[Written] = self.journal.stored(n)
        if not done:
            return
        self._due = None
        self._prove()
        self.count_rosters()
        hung = self.stall.released(n)
        if hung is not None:
            self.decide(Stamped(hung), now)
        acts = [(a, number) for written in done for a, number in written.acts if not isinstance(a, withheld)]
        self.dispatch.ready.extend(acts)
        back = self.stall.over(now)
        if back is not None:
            self.progress.resume(now)
            self.decide(Stamped(back), now)

    def _drain_ready(self, now: float) -> None:
        if self.dispatch.drain(self.state, now):
            self._due = None

    # ---- what is due ----

    def _sweep(self, now: float) -> None:
        self._due = None
        self._judge_stall(now)
        if self.takeover.gathering:
            if self.takeover.over(now):
                self.tell(self.takeover.events(), now)
                self.count_rosters()
                self._messages.gathered(now)
                self.silence.missing(self.state, now)
            return
        self._judge_silence(now)
        for name, due in sorted(self.state.timers.deadlines.items()):
            if now >= due.at and (name, due.generation) not in self._fired:
                self._fired.add((name, due.generation))
                self.decide(Stamped(DeadlinePassed(name, due.generation)), now)
        if now >= self.progress.next_at(self.state):
            self._judge_progress(now)
        self.tell(self._commands.tick(now, self.silence.suspects, self.silence.lost), now)
        self._show(now)
        if self.state.phase is Phase.RUNNING:
            error_rules.prepare()
        if self._commands.ending is not None and self._commands.dismissed:
            self.exit_code = self._commands.ending.exit_code
            self._say(f"supervisor #{self.term} ends: {self._commands.ending.reason}")

    def _judge_stall(self, now: float) -> None:
        stalled = self.stall.begun(self._read_until)
        if stalled is not None:
            self.progress.suspend(now)
            self.decide(Stamped(stalled), now)

    def _judge_progress(self, now: float) -> None:
        warned = bool(self.progress.warning)
        self._judge_steps(now)
        if bool(self.progress.warning) != warned:
            self._live_at = now  # people see at once that a hang is suspected, or no more

    def _judge_steps(self, now: float) -> None:
        for event in self.progress.tick(self.state, now):
            if isinstance(event, ProgressStalled):
                # Ranks that wait for a disk that stands still are not hung: see first whether it answers.
                reason = f"{self.progress.warning}; looking whether the run directory answers"
                self.stall.hold(self.journal.look(self.state, reason, now, self._clock.wall()), event)
            else:
                self.decide(Stamped(event), now)

    def _judge_silence(self, now: float) -> None:
        """As of what has been read: the heartbeats that prove a node alive may be next in the queue."""
        if self._read_until >= self.silence.next_at:
            halted, stepped_at = self.progress.halted(now), self.progress.stepped_at
            self.tell(self.silence.tick(self.state, self._read_until, halted, stepped_at), now)

    def _prove(self) -> None:
        self.leadership.proven(self.run_clock.at(self._store.seen_open_at()))
        self.leadership.confirmed(self.run_clock.at(self._jobs.runs_at()))

    def _show(self, now: float) -> None:
        if now >= self._live_at:
            self._prove()
            self._live_at = now + self.policy.timing.counter_every_s
            heard = len(self.beats.heard) - len(self.silence.suspects)
            standbys = {node: row.standbys for node, row in self.beats.rows.items() if row.standbys[0]}
            live = self.progress.live(self.state, now, heard, standbys)
            if not self._store.note_progress(live) and not len(self.journal):
                self.journal.look(self.state, "looking whether the run directory answers", now, self._clock.wall())
        self.tell(self._polling.look(self.state, now), now)
