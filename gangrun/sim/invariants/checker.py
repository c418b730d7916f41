"""The invariants, checked where something could break them.

Each is checked at the very event that can violate it, not after every event: a ticket, a durable record, a forked rank,
a commit, a choice, a turn of the loop. Numbers as in ``docs/protocol.md`` section 9. What one state alone can show is
``core.invariants``. A broken one raises ``InvariantBroken``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangrun.core import invariants
from gangrun.core.model import TERMINAL, Phase, RunState
from gangrun.sim.body.checkpoints import Name, Saved
from gangrun.sim.body.gang import SimGang, SimRank
from gangrun.sim.body.memory import newest_on
from gangrun.sim.invariants.node_empty import Emptiness
from gangrun.sim.invariants.safety import Witness
from gangrun.wire import record as wire_record
from gangrun.wire.messages import Launch, Prepare, Stop
from gangrun.wire.record import Record

if TYPE_CHECKING:
    from gangrun.sim.body.agent import SimAgent
    from gangrun.sim.body.node import SimNode
    from gangrun.sim.body.scheduler import Job
    from gangrun.sim.body.supervisor import SimSupervisor
    from gangrun.sim.world import World

LAST_COUNT = 20
CANCEL_WORD_S = 20.0  # how long the word of a cancel may take to reach everybody
OWNER_WITHIN_S = 240.0
IDLE_STARTS_MAX_COUNT = 60
OF_AN_ATTEMPT = frozenset(
    {"RankExited", "RankFinished", "GangStarted", "GangStartFailed", "GangStopped", "ProgressMarked"}
)
BIG_NODES_COUNT = 16


class InvariantBroken(AssertionError):
    """A promise did not hold; the message says which, when, the last records, and how to see it again."""


class Checker:
    """The world's conscience."""

    def __init__(self, world: World) -> None:
        """Nothing has happened yet."""
        self.world = world
        self.records: list[Record] = []
        self.top_ticket_term = 0
        self.late: set[str] = set()  # nonces of commits that came too late to count
        self.chosen: dict[int, float] = {}  # attempt -> when its resume point was chosen
        self.refused: list[str] = []
        self.journal_damaged = False  # decisions were lost, so what follows may contradict them
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
        self._owner_seen_at = 0.0
        self._claims_of_seq: dict[int, str] = {}
        self.cancel_asked = False  # set by whoever cancels without the marker
        self._cancelled_n: tuple[int, int] | None = None
        self.witness = Witness(self)
        self.emptiness = Emptiness(self)
        self._big = world.setup.shape.nodes_count > BIG_NODES_COUNT

    def broken(self, which: str, what: str) -> None:
        """Raise, with all that a person needs."""
        raise InvariantBroken(f"{which}: {what}\n{self.world.story()}")

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
        self.witness.claimed(supervisor, term)
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
            attempt = int(act.args.get("attempt", act.args.get("seq", -1)))
            self._acts[record.term, act.kind, attempt] = act.n
            if act.kind in {"EndJob", "SubmitSuccessor"} and act.args.get("phase") != Phase.SUCCEEDED.value:
                self._takes_along(record)
        self._counted_once(record)
        self.witness.record(record)
        newest = (record.term, record.n)
        if newest <= self._plain_at:
            return  # a dead client's late write, or a deposed supervisor's: history, not state
        self._of_this_attempt(record)
        if record.kind == "Snapshot":
            self._plain = dict(record.patch)
        elif self._plain is not None:
            self._plain = wire_record.apply(self._plain, record.patch)
        self._plain_at = newest
        if record.at < self._at - 1e-6:
            self.broken("I10", f"the run clock went back from {self._at:.3f} to {record.at:.3f}")
        self._at = record.at
        if record.kind == "GangStopped" and record.outcome == "applied" and record.term == max(self.world.disk.claims):
            self.emptiness.presumed(record)
        if record.kind in {"CancelRequested", "ResumeRequested"} and record.outcome == "applied":
            self._cancelled_n = newest if record.kind == "CancelRequested" else None

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

    def _of_this_attempt(self, record: Record) -> None:
        if self._plain is None or record.outcome != "applied":
            return
        self.witness.speaks(record, self._plain["nodes"])
        if record.kind not in OF_AN_ATTEMPT:
            return
        named, newest = int(record.event["attempt"]), int(self._plain["attempt"])
        if named != newest and not self.journal_damaged:
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
        kind = {"seal": "SealAttempts", "choose": "ChooseResume", "submit": "SubmitSuccessor"}[what]
        self._has_ticket(term, kind, attempt)

    def _has_ticket(self, term: int, kind: str, attempt: int) -> None:
        n, acts = self._acts.get((term, kind, attempt)), self.world.disk.acts.get(term)
        if n is None:
            self.broken("I13", f"term {term} performs {kind}({attempt}) without a durable record")
        if acts is None or n not in acts.tickets:
            self.broken("I13", f"term {term} performs {kind}({attempt}) without ticket {n}")

    def turned(self, supervisor: SimSupervisor) -> None:
        """A loop turned: its state, and the journal's replay of it."""
        loop = supervisor.loop
        assert loop is not None
        state, before = loop.state, self._states.get(supervisor.pid)
        self._owner_seen_at = self.world.timeline.now
        self.witness.turned(supervisor)
        if state is before:
            return
        self._states[supervisor.pid] = state
        changed = before is None or before.phase is not state.phase or before.attempt != state.attempt
        if self._big and not changed:
            return
        for sentence in invariants.check(before, state, supervisor.policy):
            self.broken(sentence[:3] if sentence.startswith("I") else "state", sentence)
        durable = loop.ledger.durable
        if (
            durable is not None
            and self._plain is not None
            and self._plain_at[0] == supervisor.term
            and not len(loop.ledger)
            and wire_record.state_of(self._plain) != state
        ):
            self.broken("I11", "replaying the journal does not give the live state")

    def journal_refused(self, why: str) -> None:
        """A new term could not read what the last one wrote."""
        self.refused.append(why)

    def obeys(self, agent: SimAgent, command: Prepare | Launch | Stop) -> None:
        """An agent does what a supervisor told it."""
        known = agent.brain.term_max
        if command.term < max(known, self._known_terms.get(agent.incarnation, 0)):
            self.broken("I10", f"{agent.name} obeys term {command.term} though it knows of term {known}")
        self._known_terms[agent.incarnation] = known

    def rank_started(self, node: SimNode, rank: SimRank, command: Launch) -> None:
        """A rank was forked."""
        self._has_ticket(command.term, "StartGang", command.attempt)
        self.emptiness.forked(node, rank)
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
        later = [attempt for attempt in self.chosen if attempt > saved.name[1]]
        if later and not self.world.checkpoint_fs.seals:
            self.late.add(saved.nonce)  # nothing can keep it out of the directory there: it must not be chosen
        elif later:
            self.broken("I4", f"attempt {saved.name[1]} committed step {saved.step} after {later} had chosen")

    def chose(self, attempt: int, saved: Saved | None, told_so: bool, back: bool) -> None:
        """A resume point was chosen; ``back``: one before a poisoned one, as whose are the last attempt's in memory."""
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
        self._over_tiers(attempt, saved, told_so or back)
        if saved is not None and saved.name not in self._starts:
            self.broken("I5", f"attempt {attempt} resumes from {saved}, of an attempt that no record started")
        self.chosen[attempt] = self.world.timeline.now

    def _over_tiers(self, attempt: int, saved: Saved | None, told_so: bool) -> None:
        """I5 where nothing stood in the way of asking: no newer step is whole in the memory of nodes that are up."""
        newest = self._in_memory()
        if not told_so and newest > (saved.step if saved is not None else -1):
            self.broken("I5", f"attempt {attempt} resumes from {saved}, while step {newest} is whole in memory")

    def _takes_along(self, record: Record) -> None:
        """A job's end takes its memory along, so it may hold nothing that the disk has not."""
        newest = self._in_memory()
        back = [int(path.rpartition("-")[2]) for act in record.actions for path in act.args.get("put_back", ())]
        if newest > max([*self.world.checkpoint_fs.saved, *back], default=-1):
            self.broken("I5", f"the job ends ({record.reason}), and step {newest} is in its memory only")

    def _in_memory(self) -> int:
        """The newest step of the newest attempt that nodes have whole and could be asked for; -1: none."""
        world = self.world
        if not world.setup.script.memory_every_count or not self.chosen or world.memory_may_be_missed():
            return -1
        return newest_on([node for node in world.nodes if node.up], max(self.chosen), world.memory.names)

    def released(self, node: SimNode, key: tuple[int, int, str]) -> None:
        """A node lets a step in memory go."""
        if not any(other[0] == key[0] and other[1] > key[1] for other in self.world.memory.protected):
            self.broken("I17", f"{node.name} let step {key[1]} go before every node had a newer one")

    def replaced(self, saved: Saved) -> None:
        """A committed checkpoint was written over."""
        if saved.whole and saved.valid:
            self.broken("I6", f"the valid checkpoint of step {saved.step} (nonce {saved.nonce}) was written over")

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

    def owners(self) -> None:
        """Does anybody still decide? Asked from time to time."""
        world = self.world
        agents = [n for n in world.nodes if n.up and n.agent is not None and n.agent.awake]
        supervised = any(
            n.supervisor is not None and n.supervisor.alive and n.supervisor.loop is not None for n in world.nodes
        )
        now = world.timeline.now
        if supervised or not agents or now < world.plan.over_at_s:
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
        if phase in TERMINAL:
            if world.scheduler.running():
                self.broken("I14", f"the run is {state.phase.value if state else ''} and jobs still hold nodes")
            return
        if not world.scheduler.running():
            if world.enough_nodes() and world.anybody_was_left():
                self.broken("I14", f"the run is {phase} and no job is left")
            return
        if not any(gang.stepping for gang in world.gangs):
            self.broken(
                "I14", f"faults ended {world.timeline.now - world.plan.over_at_s:.0f} s ago, the run is {phase}"
            )
