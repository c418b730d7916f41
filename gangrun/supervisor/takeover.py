"""Taking a term: claim, open, seal, read, and no loop before that.

The order is the protection (``docs/protocol.md`` section 1): whoever claimed seals first and reads afterwards, so
that nothing the last supervisor may still do is missing from what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from gangrun.core.machine.succession import first_state
from gangrun.core.model import RunState
from gangrun.core.policy import Policy, Timing
from gangrun.ports import Clock, History, Terms
from gangrun.supervisor.facts import Facts, Opening
from gangrun.supervisor.run_clock import RunClock
from gangrun.wire import record as wire_record
from gangrun.wire.record import Claim, Record

CLAIMS_MAX = 8  # ambiguous errors in a row before this is left to another candidate


class TermLost(Exception):
    """Another supervisor has the term, or may: leave with ``EXIT_DEPOSED``."""


class JournalRefused(Exception):
    """What earlier terms wrote cannot be used; the message says why, and what a person can do."""


def take(
    terms: Terms,
    clock: Clock,
    facts: Facts,
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
    run_clock = RunClock.starting(last_recorded, wall, boot)
    notes = (*warnings, *history.notes)
    opened_at = run_clock.at(opened)
    if state is None:
        fresh = RunState(run=facts.run, shape=facts.shape, seq=facts.seq, resume_request=facts.resume_request)
        state = first_state(fresh, run_clock.run_start, policy)
        highest = history.ticketed_attempt
        return Opening(term, state, run_clock.run_start, boot, highest, notes=notes, opened_at=opened_at)
    if state.run != facts.run:
        raise JournalRefused(f"the journal is of run {state.run}, not of {facts.run}: the run directory was mixed up")
    state = _fence_kept(state, last_recorded, run_clock.run_start)
    highest = max(state.attempt, history.ticketed_attempt)
    return Opening(
        term, state, run_clock.run_start, boot, highest, frozenset(promised), history.started_attempt, notes,
        opened_at, _witnesses(state, history) if state.job == facts.job else frozenset(),
    )  # fmt: skip


def _witnesses(state: RunState, history: History) -> frozenset[str]:
    """The nodes that no supervisor so far has counted as lost: each must have them in its hearing to go on acking.

    None where something of the journals cannot be read, and not one that was ever lost: some supervisor that does not
    know yet that its time is over may count it as lost still.
    """
    if history.notes:
        return frozenset()
    lost = {str(record.event.get("node")) for record in history.records if record.kind == "NodeLost"}
    return frozenset(name for name, node in state.nodes.items() if not node.lost and name not in lost)


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
    left_s = state.fence_until - last_recorded
    return replace(state, fence_until=run_start + left_s) if left_s > 0 else state


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
