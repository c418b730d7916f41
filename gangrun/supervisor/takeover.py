"""Taking a term: claim, open, seal, read; then gather what the roster still holds.

The order is the protection (``docs/protocol.md`` section 1): a supervisor that claimed seals first and reads
afterwards, so that nothing the last supervisor may still do is missing from what was read.

Then the loop begins with ``TakeoverGather``: who of the roster is still there, and what do they hold. It ends when
all of the roster have said hello, when most have and no more came for half a second (unless ranks were being launched),
or some time before agents lose patience with it (``takeover_after_s``), whichever comes first, with the events that the
term begins with. A fresh run, and a new job, expect nobody. A job that only
ends has no roster, and waits for the agents that are still there, to let them go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gangrun.core.events import Event, TermTaken
from gangrun.core.machine.succession import first_state
from gangrun.core.machine.transitions import is_unlaunched
from gangrun.core.model import TERMINAL, Inventory, RunState, SavedProgress, StartStage
from gangrun.core.policy import Policy, Timing
from gangrun.core.protocol import lease
from gangrun.ports import AgentsSaid, Clock, History, Item, Radio, Terms
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.opening import Opening, RunClock, RunFacts
from gangrun.wire import record as wire_record
from gangrun.wire.messages import Hello, Welcome
from gangrun.wire.record import Claim, Record

CLAIMS_MAX = 8  # ambiguous errors in a row before this is left to another candidate


class TermLost(Exception):
    """Another supervisor has the term, or may: leave with ``EXIT_DEPOSED``."""


class JournalRefused(Exception):
    """What earlier terms wrote cannot be used; the message says why, and what a person can do."""


def take(
    terms: Terms,
    clock: Clock,
    facts: RunFacts,
    policy: Policy,
    *,
    offer: Callable[[int], Claim],
    term_min: int = 1,
    promised: Collection[str] = (),
    judged: int | None = None,
) -> Opening:
    """Claim the next term and learn the state it starts from. ``offer(n)`` is our claim to term n.

    ``judged``: the newest term when it was found that this process may claim; whoever claimed since was not judged.

    ``TermLost`` or ``JournalRefused`` otherwise; an ``OSError`` of the file system goes through: nothing was taken.
    """
    term = _claim(terms, offer, max(1, term_min), judged)
    opened = clock.now()
    if not terms.open_acts(term):
        raise TermLost(f"term {term} was sealed by a newer one before it began")
    warnings = terms.seal_before(term)
    try:
        history = terms.history(term)
    except wire_record.RecordError as error:
        raise JournalRefused(str(error)) from error
    state = _replayed(history)
    boot, wall = clock.now(), clock.wall()
    last_recorded = max((record.at for record in history.records), default=0.0)
    quiet_s = None if history.quiet_s is None else history.quiet_s + boot - opened
    run_clock = RunClock.starting(last_recorded, wall, boot, quiet_s)
    notes = (*warnings, *history.notes)
    opened_at = run_clock.at(opened)
    if state is None:
        fresh = RunState(
            run=facts.run,
            shape=facts.shape,
            seq=facts.seq,
            checkpoints=SavedProgress(resume_request=facts.resume_request),
        )
        state = first_state(fresh, run_clock.run_start, policy)
        highest = history.ticketed_attempt
        lost = history.lost()
        return Opening(term, state, run_clock.run_start, boot, highest, lost=lost, notes=notes, opened_at=opened_at)
    if state.run != facts.run:
        raise JournalRefused(f"the journal is of run {state.run}, not of {facts.run}: the run directory was mixed up")
    state = _fence_kept(state, last_recorded, run_clock.run_start)
    highest = max(state.attempt.number, history.ticketed_attempt)
    return Opening(
        term, state, run_clock.run_start, boot, highest, frozenset(promised), history.started_attempt,
        (lost := history.lost()), notes, opened_at, _witnesses(state, lost) if state.job == facts.job else frozenset(),
    )  # fmt: skip


class Greeter:
    """Answers agents while earlier terms are read, so that they do not take a slow disk for a dead supervisor.

    What they said is the loop's to hear afterwards. It renews no lease.
    """

    def __init__(self, job: str) -> None:
        self.term = 0  # the one that is claimed; 0: none yet, or the loop answers by itself
        self._job = job

    def hear(self, item: Item, radio: Radio) -> None:
        """One item of mail, which stays in the mailbox."""
        if not isinstance(item, AgentsSaid) or not self.term:
            return
        for peer, said in item.letters:
            if isinstance(said, Hello) and said.job == self._job:
                radio.bind_peer(said.node, peer)
                radio.send(said.node, Welcome(self.term, said.node, reading=True))


def _witnesses(state: RunState, lost: tuple[str, ...] | None) -> frozenset[str]:
    """The nodes that no supervisor so far has counted as lost: each must have them in its hearing to go on acking.

    None where something of the journals cannot be read, and not one that was ever lost: some supervisor that does not
    know yet that its time is over may count it as lost still.
    """
    if lost is None:
        return frozenset()
    return frozenset(name for name, node in state.roster.nodes.items() if node.counts and name not in lost)


def refusal(terms: Terms, before: int) -> str:
    """Why whoever claims term ``before`` could not go on from what earlier terms wrote; empty where it can."""
    try:
        _replayed(terms.history(before))
    except (wire_record.RecordError, JournalRefused) as error:
        return str(error)
    return ""


def _claim(terms: Terms, offer: Callable[[int], Claim], term_min: int, judged: int | None) -> int:
    """A claim that fails and is not seen to be our own is another's: whoever that is was not judged, so it has won."""
    newest = terms.newest()
    if judged is not None and newest is not None and newest.term > judged:
        raise TermLost(f"{newest.node} claimed term {newest.term} while it was found out whether we may")
    term = max(term_min, newest.term + 1 if newest else 1)
    for _ in range(CLAIMS_MAX):
        ours = offer(term)
        if terms.claim(ours):
            return term
        seen = terms.newest()
        if seen is not None and seen.term >= term and not _same_claimant(seen, ours):
            raise TermLost(f"{seen.node} claimed term {seen.term} first")
        if seen is None or seen.term < term:
            raise TermLost(f"term {term} is taken, or was not confirmed, and who has it cannot be seen from here")
        term = max(term, seen.term) + 1
    raise TermLost(f"no claim up to term {term - 1} was confirmed by the file system")


def _same_claimant(a: Claim, b: Claim) -> bool:
    """Our own claim, of which only the confirmation was lost: it counts as lost too."""
    return (a.node, a.pid, a.start_ticks, a.job) == (b.node, b.pid, b.start_ticks, b.job)


def _replayed(history: History) -> RunState | None:
    """The state that the records make; only what follows the newest snapshot counts, and it may not have a gap."""
    start = max((i for i, record in enumerate(history.records) if record.kind == "Snapshot"), default=-1)
    if start < 0:
        if history.records:
            raise JournalRefused("the journal has records but no snapshot to read them by: its beginning is lost")
        if history.ticketed_attempt >= 0:
            raise JournalRefused("an earlier term started ranks and its journal is gone: nothing is known of them")
        return None
    newest = history.records[start:]
    _without_gap(newest)
    try:
        return wire_record.replay(newest)
    except wire_record.RecordError as error:
        raise JournalRefused(f"the journal of term {newest[0].term} cannot be replayed: {error}") from error


def _without_gap(records: Sequence[Record]) -> None:
    term = records[0].term
    for expected, record in enumerate(records, start=records[0].n):
        if record.term != term:
            raise JournalRefused(f"the journal of term {record.term} begins without a snapshot")
        if record.n != expected:
            raise JournalRefused(f"the journal of term {term} jumps from record {expected - 1} to {record.n}")


def _fence_kept(state: RunState, last_recorded: float, run_start: float) -> RunState:
    """A wall clock that jumped between two terms must not make a fence shorter."""
    left_s = state.fence.until - last_recorded
    return replace(state, fence=replace(state.fence, until=run_start + left_s)) if left_s > 0 else state


@dataclass(slots=True)
class CounterWatch:
    """Without promises of a majority: has the holder's counter file stood still for ``counter_still_s``?

    That counts only while our own writes worked. Feed it with fresh reads; it says when.
    """

    timing: Timing
    since: float | None = None
    count: int | None = None

    def look(self, count: int | None, own_write_worked: bool, now: float) -> bool | None:
        """True: it stood still long enough. False: the holder lives, leave. None: look again in ``counter_every_s``."""
        if not own_write_worked:
            self.since = None
            return None
        if self.since is None:
            self.since, self.count = now, count
            return None
        if count != self.count:
            return False
        return True if now - self.since >= self.timing.counter_still_s else None


GATHER_SHARE = 0.6  # the rest is for the first beat that may be acked, and its ack
ENDED_SHARE = 0.5
QUIET_S = 0.5  # those who promised themselves come at once: who has not come by then may not come at all
NEVER = float("inf")


class TakeoverGather:
    """Waits for the roster's inventories, and knows when the last supervisor can have acked for the last time."""

    def __init__(self, facts: RunFacts, opening: Opening, timing: Timing, rows: Mapping[str, Row]) -> None:
        self.gathering = True  # until the term's first events
        state = opening.state
        same_job = state.job == facts.job and not facts.alone
        self.roster = frozenset(state.roster.nodes) if same_job else frozenset()
        # Agents are patient for ``takeover_after_s`` with a term that does not ack, and where most of the roster was
        # lost it cannot ack before this is over. An ended run must let them go sooner still.
        share = ENDED_SHARE if state.phase in TERMINAL or state.ending.leaving else GATHER_SHARE
        self.until = opening.run_start + share * timing.takeover_after_s
        self.floor: float | None = None  # by then the last supervisor had acked for the last time
        if facts.alone:  # the launcher lost all tasks, which may live on; it told the scheduler so before this seal
            self.floor = opening.run_start + lease.last_ack_of_lost_job_s(timing)
        self._facts = facts
        self._opening = opening
        self._timing = timing
        self._rows = rows
        self._counted = frozenset(n for n in self.roster if state.roster.nodes[n].counts)
        self._wanted = frozenset(n for n in self.roster if not state.roster.nodes[n].lost)
        self._lets_go = same_job and state.ending.leaving  # no roster any more, but agents that do not know it yet
        self._may_be_quiet = state.underway.stage is not StartStage.LAUNCHING  # there all ranks must be seen
        self._newest_at = opening.run_start  # when the last agent came
        self._dialled: set[str] = set()  # a promise may have been taken back since, a hello to this term not
        self._settle(opening.run_start)

    def _settle(self, now: float) -> None:
        """Without half of its roster the last supervisor has no majority left."""
        half = 2 * (len(self._counted) - len(self._dialled)) <= len(self._counted)
        if half and (self.floor is None or now < self.floor):
            self.floor = now

    def dialled(self, node: str, now: float) -> None:
        """An agent that says hello to this term does not listen to the last one any more.

        One alone is enough where the last supervisor counts it: whoever does not hear all acks only for so long after
        it was last seen that nobody sealed it (``leadership``), and we sealed it before we began.
        """
        if node in self._opening.witnesses and self.floor is None:
            unheard_at = now + lease.all_heard_within_s(self._timing) * (1 + self._timing.drift)
            self.floor = max(unheard_at, self._opening.run_start + lease.last_ack_after_seal_s(self._timing))
        if node in self._counted - self._dialled:
            self._dialled.add(node)
            self._newest_at = now
        self._settle(now)

    def empty_at(self, node: str) -> float:
        """Law 1: from when on a node that says nothing holds no ranks; infinity where it cannot be said."""
        row = self._rows.get(node)
        if row is not None:
            return lease.presumed_empty_at(row.arrived_at, self._timing)
        return NEVER if self.floor is None else lease.presumed_empty_after_takeover(self.floor, self._timing)

    def over(self, now: float) -> bool:
        """Is there nobody left to wait for?"""
        return now >= self.due()

    def due(self) -> float:
        """When it is over if nobody comes."""
        if self._all_here():
            return -NEVER
        majority = 2 * len(self._dialled) > len(self._counted)
        return min(self.until, self._newest_at + QUIET_S) if majority and self._may_be_quiet else self.until

    def _all_here(self) -> bool:
        return not self._lets_go and self._wanted <= self._rows.keys()

    def events(self) -> list[Event]:
        """What the term begins with; the gathering is over."""
        self.gathering = False
        facts, state, rows = self._facts, self._opening.state, self._rows
        held: tuple[Inventory, ...] = tuple(rows[name].inventory() for name in sorted(rows))
        missing = tuple(sorted(self.roster - rows.keys()))
        started = max((self._opening.started_attempt, *(row.attempt for row in rows.values())))
        if started == state.attempt.number and is_unlaunched(state):
            started += 1  # the record of its start was lost: its ranks may live, so its number is used up
        highest = max(self._opening.highest_attempt, started)
        expected = facts.expected or tuple(facts.addresses)
        taken = TermTaken(self._opening.term, facts.job, held, missing, highest, expected, facts.alone, facts.seq)
        is_new = state.phase in TERMINAL or state.seq < facts.seq  # a job that began again was asked once
        if facts.resumed is not None and is_new and state.job != facts.job:
            return [facts.resumed, taken]
        return [taken]
