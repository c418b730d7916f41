"""The invariants, checked where something could break them.

Each is checked at the very event that can violate it, not after every event: a ticket, a durable record, a forked rank,
a commit, a choice, a turn of the loop. Numbers as in ``docs/protocol.md`` section 9. What one state alone can show is
``core.invariants``. A broken one raises ``InvariantBroken``. ``Checker`` holds records, tickets and gangs against each
other; ``Safety`` has what lies between a supervisor and its agents, ``Tiers`` what lies between disk and memory;
``NodeEmpty`` has invariant I16, ``Exclusions`` I9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gangrun.core import events, invariants
from gangrun.core.machine import lifecycle
from gangrun.core.model import TERMINAL, Phase, RunState
from gangrun.core.nodes import refilling
from gangrun.core.nodes.race import FIGURES
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.body.checkpoints import Name, Saved
from gangrun.sim.body.gang import SimGang, SimRank
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.refills import RefillJob
from gangrun.sim.body.scheduler import Job
from gangrun.sim.body.supervisor import SimSupervisor
from gangrun.sim.body.surroundings import Checks
from gangrun.sim.cluster import Cluster
from gangrun.sim.faults import FaultPlan, Kind
from gangrun.sim.tier_invariants import Tiers
from gangrun.supervisor.heartbeats import roster_of
from gangrun.supervisor.node_calls import FRAGMENT
from gangrun.wire import record as wire_record
from gangrun.wire.messages import Launch, Prepare, Stop
from gangrun.wire.record import Record

LAST_COUNT = 20
CANCEL_WORD_S = 20.0  # how long the word of a cancel may take to reach everybody
OWNER_WITHIN_S = 240.0
REFILL_LEAVES_WITHIN_S = 120.0
IDLE_STARTS_MAX_COUNT = 60
OF_AN_ATTEMPT = frozenset(
    {"RankExited", "RankFinished", "GangStarted", "GangStartFailed", "GangStopped", "ProgressMarked"}
)
BIG_NODES_COUNT = 16
ENDS_BADLY = frozenset({Phase.FAILED.value, Phase.CANCELLED.value})
EventKey = tuple[str, str, int]  # node, incarnation, seq of an event
PROMISES_ARE_FRESH_S = 2.0  # later some may have been taken back, as they may
STOP_SAID_WITHIN_S = 5.0
RUN_CLOCK_SLACK_S = 3600.0  # drift, and a disk that stalled under the records so far


class InvariantBroken(AssertionError):
    """A promise did not hold; the message says which, when, the last records, and how to see it again."""


class Checker(Checks):
    """The world's conscience."""

    def __init__(self, world: Cluster, plan: FaultPlan) -> None:
        """Nothing has happened yet."""
        self.world = world
        self.plan = plan
        self.records: list[Record] = []
        self.top_ticket_term = 0
        self.late: set[str] = set()  # nonces of commits that came too late to count
        self.chosen: set[Name] = set()  # whose resume points were chosen
        self.refused: list[str] = []
        self._starts: dict[Name, int] = {}  # (term, attempt) -> ticket of StartGang
        self._known_terms: dict[str, int] = {}  # incarnation -> term_max
        self._acts: dict[tuple[int, str, int], int] = {}
        self._idle_starts_count = 0  # starts since a newer checkpoint was committed
        self._best_step = -1
        self._plain: dict[str, Any] | None = None
        self._plain_at: tuple[int, int] = (0, -1)
        self._applied: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        self._states: dict[int, RunState] = {}
        self._at = float("-inf")
        self._ahead_s: float | None = None  # how far the run clock was ahead of the world's, at most
        self._owner_seen_at = 0.0
        self._claims_of_seq: dict[int, str] = {}
        self._unwanted_since: dict[str, float] = {}  # refills with a node
        self.cancel_asked = False  # set by whoever cancels without the marker
        self._cancelled_n: tuple[int, int] | None = None
        self.safety = Safety(self)
        self.node_empty = NodeEmpty(self)
        self.exclusions = Exclusions(world, self.broken)
        self._tiers = Tiers(world, lambda: self.plan, self.broken)
        self._big = world.setup.shape.nodes_count > BIG_NODES_COUNT

    def broken(self, which: str, what: str) -> None:
        """Raise, with all that a person needs."""
        raise InvariantBroken(f"{which}: {what}\n{self.story()}")

    def story(self) -> str:
        """Where, what went wrong before, the last records, and how to see it again."""
        world, faults = self.world, "\n".join(f"  {fault}" for fault in self.plan)
        again = f"python -m gangrun.sim --seed {world.seed} {world.setup.label}"
        return (
            f"at {world.timeline.now:.3f} s of seed {world.seed}\nfaults:\n{faults or '  none'}\nlast records:\n"
            f"{self.last_records()}\nsee it again: {again}"
        )

    def last_records(self) -> str:
        """The newest records, one line each."""
        return "\n".join(
            f"  #{record.term}.{record.n} {record.kind} {record.outcome} {record.was} -> {record.phase}:"
            f" {record.reason}"
            for record in self.records[-LAST_COUNT:]
        )

    def replayed(self) -> RunState | None:
        """The state that the records make."""
        return None if self._plain is None else wire_record.state_of(self._plain)

    def claimed(self, supervisor: SimSupervisor, term: int) -> None:
        """A term was claimed: was anybody in the way who should have been asked?"""
        self.safety.claimed(supervisor, term)
        world = self.world
        roster, earlier = set(world.roster_of(supervisor.node.job)), world.disk.claims.get(term - 1)
        if earlier is None or earlier[1].job != supervisor.node.job or not world.lives(earlier[1].pid):
            return
        if earlier[1].pid == supervisor.pid:
            return  # its own claim, of which only the reply was lost
        if 2 * len(roster & set(supervisor.promises)) > len(roster):
            return
        moved_at = world.disk.counters.get(term - 1, earlier[0])
        if world.timeline.now - moved_at < supervisor.policy.timing.counter_still_s - 1.0:
            self.broken(
                "I1", f"term {term} was claimed, the holder of term {term - 1} lives and writes ({supervisor.entitled})"
            )

    def ticket(self, term: int, n: int) -> None:
        """A ticket was obtained."""
        disk = self.world.disk
        if term < self.top_ticket_term:
            self.broken("I1", f"term {term} obtained ticket {n} after term {self.top_ticket_term} had one")
        readers = [later for later in disk.lineage if later > term]
        if readers:
            self.broken("I1", f"term {term} obtained ticket {n} after term {min(readers)} had read the journals")
        self.top_ticket_term = term
        open_ones = [k for k in range(1, term) if k in disk.acts and not disk.acts[k].sealed]
        if open_ones:
            self.broken("I1", f"term {term} obtained ticket {n} while {open_ones} can obtain tickets too")
        line = disk.journals.get(term)
        if not line or not any(act.n == n for act in line[-1].record.actions):
            self.broken("I13", f"ticket {n} of term {term} without its record on disk")
            return
        for act in line[-1].record.actions:
            if act.n == n and act.kind == "StartGang":
                self._started(term, int(act.args["attempt"]), n)

    def _started(self, term: int, attempt: int, n: int) -> None:
        """From here on ranks of this attempt may start."""
        top = max((name[1] for name in self._starts), default=-1)
        if attempt <= top:
            self.broken("I10", f"term {term} starts attempt {attempt} though attempt {top} was started before")
        if self._cancelled_n is not None:
            self.broken("I8", f"attempt {attempt} is started after the run had been cancelled")
        self._starts[term, attempt] = n
        self._idle_starts_count += 1
        if self._idle_starts_count > IDLE_STARTS_MAX_COUNT:
            self.broken("I14", f"{self._idle_starts_count} starts without one newer checkpoint: this never ends")

    def record(self, record: Record) -> None:
        """A record became durable."""
        self.records.append(record)
        for act in record.actions:
            attempt = int(act.args.get("attempt", act.args.get("number", act.args.get("seq", -1))))
            self._acts[record.term, act.kind, attempt] = act.n
            if act.kind in {"EndJob", "SubmitSuccessor"} and act.args.get("phase") != Phase.SUCCEEDED.value:
                self._tiers.takes_along(record, self.chosen)
        self._counted_once(record)
        self._follows_the_table(record)
        self.safety.record(record)
        newest = (record.term, record.n)
        if newest <= self._plain_at:
            return  # a dead client's late write, or a deposed supervisor's: history, not state
        self._of_this_attempt(record)
        before, self._plain = self._plain, wire_record.advance(self._plain, (record,))
        self.exclusions.record(record, before, self._plain)
        self._plain_at = newest
        if not any(later > record.term for later in self.world.disk.lineage):  # else the newest holder has not read it
            if record.at < self._at - 1e-6:
                self.broken("I10", f"the run clock went back from {self._at:.3f} to {record.at:.3f}")
            self._at = record.at
        self._run_clock_is_no_faster(record.at)
        if record.kind == "GangStopped" and record.outcome == "applied" and record.term == max(self.world.disk.claims):
            self.node_empty.presumed(record)
        if record.kind in {"CancelRequested", "ResumeRequested"} and record.outcome == "applied":
            self._cancelled_n = newest if record.kind == "CancelRequested" else None
            asked = self.cancel_asked or any(fault.kind is Kind.CANCEL for fault in self.plan)
            if self._cancelled_n and self.world.disk.cancelled_at is None and not asked:
                self.broken("I8", "the run is cancelled, and nobody cancelled it")

    def _follows_the_table(self, record: Record) -> None:
        kind = getattr(events, record.kind, None)
        if kind is None or record.outcome != "applied" or record.was == record.phase:
            return
        if not lifecycle.follows(Phase(record.was), kind, Phase(record.phase)):
            what = f"{record.kind} leads from {record.was} to {record.phase}, which the table does not list"
            self.broken("table", what)

    def _counted_once(self, record: Record) -> None:
        if record.origin is None or record.outcome != "applied":
            return
        seq = int(record.origin["seq"])
        if seq <= 0:
            return
        key = (str(record.origin["node"]), str(record.origin["incarnation"]), seq)
        born_from = self.born_from(record.term)
        for term, n in self._applied.setdefault(key, []):
            if term == record.term or n < born_from.get(term, 0):
                self.broken("I12", f"event {seq} of {key[1]} ({record.kind}) was applied twice")
        self._applied[key].append((record.term, record.n))

    def _run_clock_is_no_faster(self, at: float) -> None:
        """Deadlines and exclusions end by the run clock. A record is written at its time or later."""
        ahead_s = at - self.world.timeline.now
        before_s = ahead_s if self._ahead_s is None else self._ahead_s
        if ahead_s > before_s + RUN_CLOCK_SLACK_S:
            self.broken("I10", f"the run clock jumped ahead by {ahead_s - before_s:.0f} s that did not pass")
        self._ahead_s = max(before_s, ahead_s)

    def _of_this_attempt(self, record: Record) -> None:
        if self._plain is None or record.outcome != "applied":
            return
        self.safety.speaks(record, self._plain["nodes"])
        if record.kind not in OF_AN_ATTEMPT:
            return
        named, newest = int(record.event["attempt"]), int(self._plain["attempt"])
        if named != newest and not self.world.journal_damaged:
            self.broken("I12", f"{record.kind} of attempt {named} was applied while attempt {newest} was the newest")

    def born_from(self, term: int) -> dict[int, int]:
        """How much of each earlier journal this term's state has in it: its parent's, then that one's parent's."""
        lineage, found = self.world.disk.lineage, dict[int, int]()
        while True:
            read = lineage.get(term, {})
            parents = [k for k, count in read.items() if k < term and count > 0]
            if not parents:
                return found
            parent = max(parents)
            found[parent] = read[parent]
            term = parent

    def performs(self, term: int, what: str, attempt: int) -> None:
        """A supervisor acts on the world."""
        kind = {"seal": "SealAttempts", "choose": "ChooseResume", "submit": "SubmitSuccessor"}.get(what, what)
        self._has_ticket(term, kind, attempt)

    def _has_ticket(self, term: int, kind: str, attempt: int) -> None:
        n, acts = self._acts.get((term, kind, attempt)), self.world.disk.acts.get(term)
        if n is None:
            self.broken("I13", f"term {term} performs {kind}({attempt}) without a durable record")
        if acts is None or n not in acts.tickets:
            self.broken("I13", f"term {term} performs {kind}({attempt}) without ticket {n}")

    def lease_ended(self, node: SimNode) -> None:
        """A warden kills all ranks of its node, if there are any."""
        if node.ranks and len(self.plan.faults) and all(fault.kind is Kind.FS_STALL for fault in self.plan):
            self.broken("I18", f"the lease of {node.name} ended, and nothing was wrong but the run directory")

    def turned(self, supervisor: SimSupervisor) -> None:
        """A loop turned: its state, and the journal's replay of it."""
        loop = supervisor.loop
        assert loop is not None
        state, before = loop.state, self._states.get(supervisor.pid)
        self._owner_seen_at = self.world.timeline.now
        self.safety.turned(supervisor)
        if state is before:
            return
        self._states[supervisor.pid] = state
        only_taken = len(self.plan.faults) and all(fault.kind is Kind.NODE_TAKEN for fault in self.plan)
        if state.health.excluded and only_taken:
            self.broken("I9", f"{sorted(state.health.excluded)} are excluded, though only the scheduler took them")
        changed = before is None or before.phase is not state.phase or before.attempt.number != state.attempt.number
        if self._big and not changed:
            return
        for sentence in invariants.check(before, state, supervisor.policy):
            self.broken(sentence[:3] if sentence.startswith("I") else "state", sentence)
        if (
            loop.journal.durable_nodes is not None
            and self._plain is not None
            and self._plain_at[0] == supervisor.term
            and not len(loop.journal)
            and wire_record.state_of(self._plain) != state
        ):
            self.broken("I11", "replaying the journal does not give the live state")

    def journal_refused(self, why: str) -> None:
        """A new term could not read what the last one wrote."""
        self.refused.append(why)

    def forgot(self, agent: SimAgent, before_seq: int, seq: int) -> None:
        """An agent was told that its events up to ``seq`` are journalled, and drops them."""
        self.safety.forgot(agent, before_seq, seq)

    def says_stop(self, supervisor: SimSupervisor, attempt: int) -> None:
        """A stop leaves a supervisor."""
        self.safety.says_stop(supervisor, attempt)

    def obeys(self, agent: SimAgent, command: Prepare | Launch | Stop) -> None:
        """An agent does what a supervisor told it."""
        known = agent.brain.term_max
        if command.term < max(known, self._known_terms.get(agent.incarnation, 0)):
            self.broken("I10", f"{agent.name} obeys term {command.term} though it knows of term {known}")
        self._known_terms[agent.incarnation] = known

    def rank_started(self, node: SimNode, rank: SimRank, command: Launch) -> None:
        """A rank was forked."""
        self._has_ticket(command.term, "StartGang", command.attempt)
        self.node_empty.forked(node, rank)
        self._tiers.begins(command)
        cancelled_at = self.world.disk.cancelled_at
        if cancelled_at is not None and self.world.timeline.now > cancelled_at + CANCEL_WORD_S:
            self.broken("I8", f"{rank.name} started {self.world.timeline.now - cancelled_at:.1f} s after the cancel")

    def joined(self, gang: SimGang, rank: SimRank) -> None:
        """A rank met others."""
        others = {other.of for other in gang.members.values() if other.alive}
        if len(others) > 1:
            self.broken("I2", f"ranks of {sorted(others)} met at one address (last: {rank.name})")
        if not gang.whole:
            return
        whole = [other for other in self.world.gangs if other.whole and other is not gang]
        if whole:
            self.broken("I3", f"attempts {whole[0].name} and {gang.name} (term, attempt) both have all ranks alive")
        self._tiers.met(gang)

    def stepping(self, gang: SimGang) -> None:
        """A gang steps."""
        for other in self.world.gangs:
            if other is not gang and other.stepping:
                self.broken("I3", f"attempts {other.name} and {gang.name} (term, attempt) both step")
        newer = [other.name for other in self.world.gangs if not other.fresh and other.name[1] > gang.name[1]]
        if newer:
            self.broken("I2", f"attempt {gang.name} steps after a later one, {newer[0]}, has stepped")

    def committed(self, saved: Saved) -> None:
        """A checkpoint got its final name."""
        if saved.step > self._best_step:
            self._best_step, self._idle_starts_count = saved.step, 0
        if saved.nonce in self.world.checkpoint_fs.poisoned:
            self.broken("I5", f"step {saved.step}, set aside as poisoned, is brought to the disk again")
        later = sorted({attempt for _, attempt in self.chosen if attempt > saved.counts_for})
        self._tiers.committed(saved)
        if later and not self.world.checkpoint_fs.seals:
            self.late.add(saved.nonce)  # nothing can keep it out of the directory there: it must not be chosen
        elif later:
            self.broken("I4", f"attempt {saved.name[1]} committed step {saved.step} after {later} had chosen")

    def chose(self, name: Name, saved: Saved | None, told_so: bool, back: bool) -> None:
        """A resume point was chosen; ``back``: one before a poisoned one, as whose are the last attempt's in memory."""
        if any(later > name for later in self.chosen):
            return  # a deposed supervisor chose, which gets no ticket for a start
        attempt = name[1]
        fs = self.world.checkpoint_fs
        if saved is not None and saved.nonce in self.late:
            self.broken(
                "I4", f"attempt {attempt} resumes from step {saved.step}, committed after a later one had chosen"
            )
        best = fs.newest_valid(self.late)
        if not told_so:
            if best is not None and best is not saved:
                self.broken("I5", f"attempt {attempt} resumes from {saved}, the newest valid is {best}")
            if saved is None and fs.ever_valid:
                self.broken("I6", f"attempt {attempt} starts from zero though checkpoints were committed")
        if not (told_so or back):
            self._tiers.chose(attempt, saved, self.chosen, self.replayed())
        self._tiers.keeps_base(attempt)
        if saved is not None and not told_so:
            self._copies_agreed(attempt, saved)
        if saved is not None and saved.name not in self._starts:
            self.broken("I5", f"attempt {attempt} resumes from {saved}, of an attempt that no record started")
        self.chosen.add(name)

    def _copies_agreed(self, attempt: int, saved: Saved) -> None:
        """I19: what is resumed from was not saved after ranks were known to have agreed last."""
        state = self.replayed()
        for seen in state.divergences if state is not None else ():
            spoilt = seen.divergence.odd and saved.step > seen.divergence.agreed_step
            if spoilt and saved.name[1] == seen.attempt:
                self.broken("I19", f"attempt {attempt} resumes from {saved}, though copies of it differ: {seen}")

    def released(self, node: SimNode, key: tuple[int, int, str]) -> None:
        """A node lets a step in memory go."""
        self._tiers.released(node, key)

    def replaced(self, saved: Saved) -> None:
        """A committed checkpoint was written over."""
        if saved.whole and saved.valid:
            self.broken("I6", f"the valid checkpoint of step {saved.step} (nonce {saved.nonce}) was written over")

    def moved(self, name: Name, saved: Saved) -> None:
        """A checkpoint was set aside for this (term, attempt)."""
        later = sorted(other for other in self.chosen if other > name)
        if later and saved.whole and saved.valid:
            self.broken("I4", f"{name} set the valid step {saved.step} ({saved.nonce}) aside after {later} had chosen")

    def job_began(self, job: Job) -> None:
        """A batch script passed the claim."""
        first = self._claims_of_seq.setdefault(job.seq, job.id)
        if first != job.id and any(other.id == first for other in self.world.scheduler.running()):
            self.broken("I7", f"{first} and {job.id} both run as job {job.seq} of the run")
        if self.cancel_asked or self.world.disk.cancelled_at is not None:
            self.broken("I8", f"{job.id} began after the run had been cancelled")

    def submitted(self, seq: int) -> None:
        """One more job is in the queue by our own hand."""
        waiting = [job.id for job in self.world.scheduler.jobs if job.seq == seq and job.state.value != "ENDED"]
        if len(waiting) > 1:
            self.broken("I7", f"{', '.join(waiting)} are all job {seq} of the run")

    def refill_submitted(self, job: RefillJob) -> None:
        """One more refill is in the queue by our own hand."""
        alive = [one for one in self.world.scheduler.refills.jobs if one.state.value != "ENDED"]
        same = [one.id for one in alive if one.number == job.number]
        if len(same) > 1:
            self.broken("I7", f"{', '.join(same)} are all refill {job.number} of the run")
        state = self.replayed()
        if state is None or all(one.number != job.number for one in state.roster.refills):
            self.broken("I7", f"refill {job.number} is submitted, and no record says that it is wanted")
            return
        wanted = {one.number for one in refilling.on_their_way(state)}
        missing_count = refilling.missing_count(state, len(refilling.held(state, state.updated_at)))
        if len([one for one in alive if one.number in wanted]) > missing_count:
            self.broken("I7", f"refills {sorted(wanted)} are asked for, and {missing_count} nodes are missing")

    def refill_began(self, job: RefillJob) -> None:
        """A refill's batch script starts something."""
        world = self.world
        if self.cancel_asked or world.disk.cancelled_at is not None:
            self.broken("I8", f"refill {job.number} began after the run had been cancelled")
        twins = [one.id for one in world.scheduler.refills.jobs if one.number == job.number and one.node is not None]
        if len([one for one in twins if one != job.id and world.scheduler.refills.holds(one)]) > 0:
            self.broken("I7", f"{', '.join(twins)} both bring refill {job.number}")
        if not any(main.seq == job.seq for main in world.scheduler.running()):
            self.broken("I15", f"refill {job.number} began for a job that is gone")

    def _refills(self) -> None:
        """I15: a refill that nobody wants ends within a bound."""
        state, now = self.replayed(), self.world.timeline.now
        wanted = {one.number for one in state.roster.refills} if state is not None else set()
        alive = {one.id: one for one in self.world.scheduler.refills.jobs if one.node and one.state.value != "ENDED"}
        seqs = {main.seq for main in self.world.scheduler.running()}
        for name, job in alive.items():
            if job.number in wanted and job.seq in seqs:
                self._unwanted_since.pop(name, None)
                continue
            since = self._unwanted_since.setdefault(name, now)
            if now > max(since, self.plan.over_at_s) + REFILL_LEAVES_WITHIN_S:
                self.broken("I15", f"refill {job.number} has been held for {now - since:.0f} s, and nobody wants it")

    def owners(self) -> None:
        """Does anybody still decide? Asked from time to time."""
        world = self.world
        if world.scheduler.refills.jobs:
            self._refills()
        agents = [n for n in world.nodes if n.up and n.agent is not None and n.agent.awake]
        supervised = any(
            n.supervisor is not None and n.supervisor.alive and n.supervisor.loop is not None for n in world.nodes
        )
        now = world.timeline.now
        if supervised or not agents or now < self.plan.over_at_s:
            self._owner_seen_at = now
        elif now > self._owner_seen_at + OWNER_WITHIN_S and not self.refused:
            self.broken("I15", f"nobody has decided for {now - self._owner_seen_at:.0f} s, {len(agents)} agents live")

    def at_the_end(self) -> None:
        """Faults are long over: the run is where it should be."""
        world, state = self.world, self.world.newest_state()
        if self.refused:
            return
        if world.disk.cancelled_at is not None and world.scheduler.running():
            self.broken("I8", f"{[job.id for job in world.scheduler.running()]} still run after the cancel")
        phase = None if state is None else state.phase
        if world.disk.cancelled_at is not None and not world.scheduler.running():
            return  # taken away in the middle of stopping: the marker says how it ended
        if state is not None and world.bad_links and world.setup.policy.test_suspects:
            innocent = set(state.health.excluded) - {name for link in world.bad_links for name in link}
            if innocent:
                self.broken("I9", f"{sorted(innocent)} are excluded, and only the network of {world.bad_links} is bad")
            if phase is Phase.FAILED and world.setup.spares_count:
                self.broken("I14", f"the run failed although it can do without one node of {world.bad_links}")
        self.exclusions.at_the_end(state, self.plan)
        if phase in TERMINAL:
            if held := [one.number for one in world.scheduler.refills.jobs if world.scheduler.refills.holds(one.id)]:
                self.broken("I15", f"the run is {phase.value} and refills {held} still hold nodes")
            if world.scheduler.running():
                self.broken("I14", f"the run is {state.phase.value if state else ''} and jobs still hold nodes")
            return
        if not world.scheduler.running():
            if world.enough_nodes() and world.anybody_was_left():
                self.broken("I14", f"the run is {phase} and no job is left")
            return
        if not any(gang.stepping for gang in world.gangs):
            self.broken("I14", f"faults ended {world.timeline.now - self.plan.over_at_s:.0f} s ago, the run is {phase}")


class Safety:
    """What lies between a supervisor and its agents.

    Who leads when the next one claims (law 3), which events agents have forgotten (I12), whether a stop is
    said at once (protocol section 5), whether RUNNING is true (I14).
    """

    def __init__(self, checker: Checker) -> None:
        """Nothing was seen yet."""
        self._checker = checker
        self._world = checker.world
        self._written: dict[EventKey, list[tuple[int, int]]] = {}  # where the journals have an event: (term, n)
        self._forgotten: set[EventKey] = set()
        self._stopping: dict[int, tuple[int, float]] = {}  # supervisor's pid -> (attempt, since)
        self._said: set[tuple[int, int]] = set()  # (pid, attempt): a stop of it, or of a later one, was said

    def claimed(self, supervisor: SimSupervisor, term: int) -> None:
        """Law 3: whoever lost a majority of the agents it counts to this claim has stopped leading before it."""
        world = self._world
        roster = set(world.roster_of(supervisor.node.job))
        fresh = world.timeline.now <= supervisor.start_ticks / 100 + PROMISES_ARE_FRESH_S
        if not fresh or 2 * len(roster & set(supervisor.promises)) <= len(roster):
            return
        for other in world.supervisors:
            loop = other.loop
            if loop is None or not other.awake or other.exit_code is not None:
                continue
            if other.term >= supervisor.term_min:
                continue  # claimed after these promises were given, which are for the end of the terms before it
            if world.clocks_stopped(other.node) or other.node.job != supervisor.node.job:
                continue
            counted = roster_of(loop.state.roster.nodes)
            if 2 * len(counted & set(supervisor.promises)) <= len(counted):
                continue  # it had given most of these up as lost before: the seal ends its term, and law 5 the wait
            if loop.leadership.holds(loop.run_clock.at(other.clock.now())):
                self._checker.broken("I1", f"term {other.term} still leads as term {term} is claimed with promises")

    def record(self, record: Record) -> None:
        """A record became durable."""
        if record.origin is not None:
            key = (str(record.origin["node"]), str(record.origin["incarnation"]), int(record.origin["seq"]))
            self._written.setdefault(key, []).append((record.term, record.n))
        if record.kind == "Snapshot" and record.term == max(self._world.disk.journals):  # else nobody goes on from it
            for forgotten in sorted(self._forgotten):
                self._must_count(forgotten, record.term)
        newest = record.term == max(self._world.disk.claims)
        if newest and record.phase == Phase.RUNNING.value and record.was != record.phase:
            self._all_were_born(record)

    def _all_were_born(self, record: Record) -> None:
        gang = next((gang for gang in reversed(self._world.gangs) if gang.members), None)
        missing = 0 if gang is None else gang.world_size - len(gang.members)
        if missing:
            self._checker.broken("I14", f"term {record.term} says RUNNING, and {missing} ranks were never started")

    def speaks(self, record: Record, nodes: Mapping[str, Any]) -> None:
        """An event counts: is its agent the one that the state knows on that node?"""
        origin = record.origin or {}
        node = nodes.get(str(origin.get("node", "")))
        if node is not None and node["incarnation"] != origin["incarnation"] and not self._world.journal_damaged:
            what = f"{record.kind} of {origin['incarnation']} was applied, which {node['incarnation']} had replaced"
            self._checker.broken("I12", what)

    def orphans(self, node: SimNode, attempt: int) -> None:
        """Time proves nothing of a node whose warden slept, but the kernel kills what has lost its agent even there."""
        left = [rank for rank in node.ranks if rank.awake and rank.is_orphan and rank.of[1] <= attempt]
        if left and not any(rank.stuck for rank in left) and not node.kill_takes_s:
            self._checker.broken("I16", f"{left[0].name} lives without its agent")

    # ---- events -------------------------------------------------------------------------------------------------

    def forgot(self, agent: SimAgent, before_seq: int, seq: int) -> None:
        """An agent was told that its events up to ``seq`` are journalled, and drops them."""
        for number in range(before_seq + 1, seq + 1):
            key = (agent.node.name, agent.incarnation, number)
            self._forgotten.add(key)
            if key not in self._written:
                self._lost(key, "no journal has it")
            terms = [term for term in self._world.disk.lineage if term in self._world.disk.journals]
            self._must_count(key, max(terms, default=0))

    def _must_count(self, key: EventKey, term: int) -> None:
        """Is it in what this term was born from, or in what it wrote itself?"""
        counts = self._checker.born_from(term)
        if not any(at == term or n < counts.get(at, 0) for at, n in self._written[key]):
            self._lost(key, f"term {term} knows nothing of it")

    def _lost(self, key: EventKey, why: str) -> None:
        if not self._world.journal_damaged:
            self._checker.broken("I12", f"{key[1]} was told that its event {key[2]} is journalled, and {why}")

    # ---- stops --------------------------------------------------------------------------------------------------

    def says_stop(self, supervisor: SimSupervisor, attempt: int) -> None:
        """A stop leaves a supervisor."""
        self._said.add((supervisor.pid, attempt))

    def turned(self, supervisor: SimSupervisor) -> None:
        """A loop turned: does it keep back a stop that it has decided?"""
        loop = supervisor.loop
        assert loop is not None
        if loop.state.phase is not Phase.STOPPING or loop.takeover.gathering:
            self._stopping.pop(supervisor.pid, None)
            return
        now, attempt = self._world.timeline.now, loop.state.attempt.number
        named, since = self._stopping.setdefault(supervisor.pid, (attempt, now))
        if named != attempt:
            self._stopping[supervisor.pid] = attempt, now
        elif now > since + STOP_SAID_WITHIN_S and (supervisor.pid, attempt) not in self._said:
            rows = loop.beats.rows
            asked = [
                name
                for name in (loop.state.attempt.placement.nodes if loop.state.attempt.placement else ())
                if name in rows
            ]
            if asked and loop.leadership.holds(loop.run_clock.at(supervisor.clock.now())):
                what = f"attempt {attempt} is to be stopped for {now - since:.0f} s, and nobody is told"
                self._checker.broken("I14", what)


class NodeEmpty:
    """What may be left on a node that counts as empty: invariant I16, and what stands in for it.

    A node is known to be empty by its own word, by law 1's time, or by the fragment rule. Time proves nothing of a
    machine whose clock stood while it was paused: what it still holds, or forks on waking under a lease that by its
    own clock goes on, is kept harmless by seals and by the ranks that it lacks (I2 to I4).
    """

    def __init__(self, checker: Checker) -> None:
        """No attempt has been stopped yet."""
        self._checker = checker
        self._world = checker.world
        self._stopped_through = -1
        self._slept_through: dict[str, int] = {}  # node -> newest attempt that went down while it was stopped itself
        self._harmless: dict[str, int] = {}  # node -> newest attempt of which it may hold ranks that can do nothing

    def presumed(self, record: Record) -> None:
        """A record says that all ranks of an attempt are gone."""
        attempt = int(record.event["attempt"])
        self._stopped_through = max(self._stopped_through, attempt)
        presumed = dict(record.event.get("presumed", ()))
        job = self._world.disk.claims[record.term][1].job
        for node in self._world.nodes:
            asleep = self._world.clocks_stopped(node)
            known = max(self._harmless.get(node.name, -1), self._slept_through.get(node.name, -1) if asleep else -1)
            left = [rank for rank in node.ranks if rank.alive and known < rank.of[1] <= attempt and not rank.stuck]
            if left and (node.serves or node.job) == job and node.name not in presumed:
                self._checker.broken("I16", f"attempt {attempt} counts as stopped, {left[0].name} lives")
        for name, rule in presumed.items():
            held_by = self._world.node_named(name)
            assert held_by is not None
            if rule == FRAGMENT:
                self._harmless[name] = attempt
                self._fragment(held_by, attempt)
                continue
            if self._world.clocks_stopped(held_by):
                self._slept_through[name] = attempt
                self._checker.safety.orphans(held_by, attempt)
                continue
            names = [rank.name for rank in held_by.ranks if rank.alive and rank.of[1] <= attempt and not rank.stuck]
            if names:
                self._checker.broken("I16", f"{name} was presumed empty ({rule}) and holds {', '.join(names)}")

    def forked(self, node: SimNode, rank: SimRank) -> None:
        """A rank is born: may there still be any of its attempt?"""
        attempt = rank.of[1]
        if attempt > self._stopped_through:
            return
        if attempt <= self._harmless.get(node.name, -1):
            self._fragment(node, attempt)
        elif attempt > self._slept_through.get(node.name, -1) or not self._lease_stood(node):
            through = self._stopped_through
            self._checker.broken("I16", f"{rank.name} starts after all ranks of attempt {through} were known as gone")

    def _lease_stood(self, node: SimNode) -> bool:
        """Would the node's lease be over if its clock had not stood?"""
        clock = node.clock
        return clock.boot(self._world.timeline.now) + clock.stood_s >= node.warden.deadline

    def _fragment(self, node: SimNode, attempt: int) -> None:
        """Presumed harmless: what it still holds can neither step nor save."""
        world = self._world
        held = {rank.rank for rank in node.ranks if rank.alive and rank.of[1] == attempt}
        gang = next((gang for gang in world.gangs if gang.members and gang.name[1] == attempt), None)
        if not held or gang is None:
            return
        size = world.setup.policy.replica_ranks_count or gang.world_size
        if any(all(first + i in held for i in range(size)) for first in range(0, gang.world_size - size + 1, size)):
            what = f"{node.name} still holds {sorted(held)} of attempt {attempt}, which can step alone"
            self._checker.broken("I2", what)
        if gang.whole:
            self._checker.broken("I2", f"attempt {attempt} counts as stopped and has all its ranks")
        if 0 in held and world.setup.script.foreign:
            self._checker.broken("I4", f"{node.name} still holds rank 0 of attempt {attempt}, which saves by itself")


class Exclusions:
    """Holds each new exclusion against the nodes that have a fault of their own, which nobody in a real run knows (I9).

    Whoever falls because of the code, of what all ranks show, or of a line that healthy ranks write too, falls on an
    innocent node.
    """

    def __init__(self, world: Cluster, broken: Callable[[str, str], None]) -> None:
        """Nobody is excluded yet."""
        self._world = world
        self._broken = broken

    def record(self, record: Record, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        """A record became durable; ``before`` and ``after``: the states that records make, as they are written."""
        known = before["excluded"] if before is not None else {}
        excluded, nodes = (after["excluded"], after["nodes"]) if after is not None else ({}, {})
        new = {name for name, entry in excluded.items() if entry != known.get(name) and not entry["hardware"]}
        new = {name for name in new if not excluded[name].get("drained_by")}
        new = {name for name in new if after is not None and excluded[name]["until"] > after["updated_at"]}  # not back
        if not new:
            return
        silent = after["evidence"].get("silent") or () if after is not None else ()
        here = {name for name in new if name in nodes and not nodes[name].get("lost") and name not in silent}
        if record.phase in ENDS_BADLY and here:
            self._broken("I9", f"{sorted(here)} are excluded in a verdict that ends the run")
        world = self._world
        may_be_guilty = world.at_fault.union(world.sick, world.rank_failures.undecided, *world.bad_links)
        # Whoever is not heard is excluded, though what was cut may be the supervisor's own way.
        innocent = {name for name in new - may_be_guilty if name not in nodes or not nodes[name].get("lost")}
        if innocent and not self._world.setup.script.behaviours:  # these may stick to a node for two attempts
            self._broken("I9", f"{sorted(innocent)} are excluded, which had no fault of their own")

    def at_the_end(self, state: RunState | None, plan: FaultPlan) -> None:
        """Where ranks failed on one node only, and the run could do without it, it succeeded without it."""
        if state is not None:
            self._raced(state)
        kinds = {fault.kind for fault in plan}
        sick = {fault.node for fault in plan if fault.kind is Kind.FAIL_ON_NODE}
        if state is None or not sick or kinds - {Kind.FAIL_ON_NODE, Kind.REMARK} or len(sick) > 1:
            return
        setup = self._world.setup
        can_do = setup.spares_count > 0 or (setup.policy.can_requeue and len(self._world.nodes) > setup.job_nodes_count)
        if can_do and state.phase is Phase.FAILED:
            self._broken("I14", f"the run failed although it can do without node {sick}")

    def _raced(self, state: RunState) -> None:
        """Whom a comparison of speeds calls slow is slow."""
        if not self._world.setup.policy.race_stragglers or state.race.open is not None:
            return
        compared = {name for name, node in state.roster.nodes.items() if node.slow.startswith(FIGURES)}
        if innocent := compared - self._world.at_fault:
            self._broken("I9", f"{sorted(innocent)} are set aside as slow, and their ranks are as slow elsewhere")
