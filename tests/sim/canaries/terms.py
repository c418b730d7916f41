"""Mutants of protocol sections 1 and 5: claims, tickets, records, seals, attempt numbers, stalls. Next: ``leases``."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import msgspec

from gangrun.agent.brain import line, orders
from gangrun.agent.brain.follow import Follow
from gangrun.core.actions import StopGang
from gangrun.core.events import TermTaken
from gangrun.core.machine import succession
from gangrun.core.protocol import takeover as core_takeover
from gangrun.core.recovery import choose
from gangrun.ports import Deposed, History
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.engine import disk
from gangrun.supervisor import loop, node_calls, takeover
from tests.sim.canaries.mutation import Swaps, mutant


def _open_any(self: disk.SimTerms, term: int) -> bool:
    self.disk.acts.setdefault(term, disk.Acts())
    return True


@mutant("a claim is linked, never overwritten", "1", "I1", "I11", "I13")
def claim_overwrites() -> Swaps:
    """A claim replaces one that is there (and a folder of tickets is taken over: alone, that stops it)."""

    def link_claim(self: disk.SimDisk, claim: Any) -> bool:
        self.claims[claim.term] = (self.timeline.now, claim)
        return True

    return (disk.SimDisk, "link_claim", link_claim), (disk.SimTerms, "open_acts", _open_any)


@mutant("an ambiguous error of the claim counts as lost", "1", "I1", "I11", "I13")
def ambiguous_claim_is_believed() -> Swaps:
    """Whoever gets an unclear error for its claim holds the term (and its folder of tickets: alone, that stops it)."""

    def claim(self: disk.SimTerms, claim: Any) -> bool:
        return original(self, claim) or self.mount.reply_lost()

    original = disk.SimTerms.claim
    return (disk.SimTerms, "claim", claim), (disk.SimTerms, "open_acts", _open_any)


@mutant("an existing folder of tickets (EEXIST) means deposed", "1", "I1", "I15")
def open_acts_twice() -> Swaps:
    """A holder that finds its folder of tickets made, and sealed, by a later term makes it anew."""

    def make_acts(self: disk.SimDisk, term: int) -> bool:
        self.acts[term] = disk.Acts()
        return True

    return ((disk.SimDisk, "make_acts", make_acts),)


@mutant("a ticket before each act", "1", "I13")
def no_tickets() -> Swaps:
    """Acts are performed with a record alone."""
    original = disk.SimStore.commit

    def commit(self: disk.SimStore, record: Any, tickets: Any) -> None:
        original(self, record, ())

    return ((disk.SimStore, "commit", commit),)


@mutant("the record is durable before its ticket is taken", "1", "I13")
def ticket_before_record() -> Swaps:
    """First the ticket, then the record."""

    def store(self: disk.SimStore, record: Any, tickets: tuple[int, ...]) -> bool:
        for n in tickets:
            self.mount.disk.take_ticket(record.term, n)
        self.mount.disk.append(record)
        return True

    return ((disk.SimStore, "_store", store),)


@mutant("nothing is performed before its record and ticket are there", "1", "I13")
def perform_at_once() -> Swaps:
    """Acts are performed as they are decided."""
    original = loop.Loop.decide

    def decide(self: Any, stamped: Any, now: float) -> None:
        original(self, stamped, now)
        _perform_pending(self, now)

    return ((loop.Loop, "decide", decide),)


def _perform_pending(self: Any, now: float) -> None:
    early = self.__dict__.setdefault("early", set())
    for written in list(self.journal._pending):
        for action, n in written.acts:
            if n and n not in early:
                early.add(n)
                self.dispatch.ready.append((action, n))
    self._drain_ready(now)


@mutant("while the journal is stalled nothing is started, submitted or pruned", "5", "I13")
def acts_in_a_stall() -> Swaps:
    """Once the stall is noticed, what waits for the disk is performed without it."""

    def decide(self: Any, stamped: Any, now: float) -> None:
        original(self, stamped, now)
        if self.stall.since is not None:
            _perform_pending(self, now)

    original = loop.Loop.decide
    return ((loop.Loop, "decide", decide),)


@mutant("a stop does not wait for the disk", "5", "I14")
def stop_waits_for_the_disk() -> Swaps:
    """Ranks are stopped only once the record of it is durable."""

    def drain(self: Any, now: float) -> None:
        held = [
            act
            for act in self.dispatch.ready
            if isinstance(act[0], StopGang) and act[1] == 0 and not _stored(self, act)
        ]
        for act in held:
            self.dispatch.ready.remove(act)
        original(self, now)
        for act in held:
            self.dispatch.ready.append(act)

    original = loop.Loop._drain_ready
    return ((loop.Loop, "_drain_ready", drain),)


def _stored(self: Any, act: Any) -> bool:
    return not any(act in written.acts for written in self.journal._pending)


@mutant("a claimant seals all earlier terms", "1", "I1")
def no_seal() -> Swaps:
    """Earlier folders of tickets stay open."""
    return ((disk.SimTerms, "seal_before", lambda self, term: ()),)


@mutant("seal first, then read the journals", "1", "I1", "I10", "I11", "I12", "I16", "I2", "I3")
def read_before_seal() -> Swaps:
    """The journals are read two seconds before the seal."""
    seal, history = disk.SimTerms.seal_before, disk.SimTerms.history

    def seal_before(self: Any, term: int) -> tuple[str, ...]:
        self.read_early = history(self, term)
        self.process.wait_until(self.process.timeline.now + 2.0)
        return seal(self, term)

    return (disk.SimTerms, "seal_before", seal_before), (disk.SimTerms, "history", lambda self, term: self.read_early)


@mutant("a refused ticket (EACCES, ENOENT, EEXIST) ends the supervisor", "1", "I13", "I1")
def deposed_goes_on() -> Swaps:
    """A refused ticket is taken for granted."""

    def store(self: disk.SimStore, record: Any, tickets: tuple[int, ...]) -> bool:
        if self.mount.trouble():
            return original(self, record, tickets)
        self.mount.disk.append(record)
        for n in tickets:
            with contextlib.suppress(OSError):
                self.mount.disk.take_ticket(record.term, n)
        return True

    original = disk.SimStore._store
    return ((disk.SimStore, "_store", store),)


@mutant("a record counts as stored only if its term is still open after the fsync", "1", "I12")
def stored_though_sealed() -> Swaps:
    """A record without an act is confirmed even where a later term has sealed and read without it."""

    def store(self: disk.SimStore, record: Any, tickets: tuple[int, ...]) -> bool:
        def post(item: Any) -> None:
            if not isinstance(item, Deposed) or tickets:
                told(item)

        told, self.post = self.post, post  # type: ignore[method-assign]
        try:
            return original(self, record, tickets) or (not tickets and not self.mount.trouble())
        finally:
            self.post = told  # type: ignore[method-assign]

    original = disk.SimStore._store
    return ((disk.SimStore, "_store", store),)


def _without_tickets() -> Swaps:
    history = disk.SimTerms.history

    def without(self: disk.SimTerms, before: int) -> History:
        return replace(history(self, before), ticketed_attempt=-1, started_attempt=-1)

    return ((disk.SimTerms, "history", without),)


@mutant("attempt numbers start above tickets, since a record may be torn", "1", "I10", "I13")
def attempt_without_tickets() -> Swaps:
    """A new term asks only journal and agents, who may be gone."""
    return _without_tickets()


@mutant("attempt numbers start above agents' reports (which tickets cover) and tickets", "1", "I10", "I13")
def attempt_from_journal_alone() -> Swaps:
    """A new term trusts the journal, whose last records may be damaged: agents are not asked, nor tickets counted."""
    events = takeover.TakeoverGather.events

    def without_reports(self: Any) -> Any:
        return [replace(e, highest_attempt=-1) if isinstance(e, TermTaken) else e for e in events(self)]

    return (*_without_tickets(), (takeover.TakeoverGather, "events", without_reports))


@mutant("a gang is never started under a number that was used before", "1", "I10", "I13", "I16", "state")
def attempt_number_used_again() -> Swaps:
    """Each attempt after the first has the number of the one before."""

    def begin_attempt(state: Any, *args: Any) -> Any:
        if state.attempts and state.attempts[-1].nodes:
            state = replace(
                state, attempts=state.attempts[:-1], attempt=replace(state.attempt, number=state.attempt.number - 1)
            )
        return original(state, *args)

    original = choose.begin_attempt
    return ((choose, "begin_attempt", begin_attempt),)


@mutant("a term is claimed with promises of a majority", "1", "I1")
def one_promise_is_enough() -> Swaps:
    """A candidate asks for a supervisor with any promise, and that one claims with it."""
    original = Follow._collect

    def collect(self: Any, *args: Any) -> Any:
        count, self.roster_count = self.roster_count, 1
        try:
            return original(self, *args)
        finally:
            self.roster_count = count

    return (Follow, "_collect", collect), (core_takeover, "has_majority", lambda promises, roster: bool(promises))


@mutant("without a majority: only if the holder's counter stood still for a minute", "1", "I1")
def claims_without_asking() -> Swaps:
    """Neither promises nor a counter that stands still are needed."""
    allowed = core_takeover.ClaimRuling(True, "because we can")
    return (
        (core_takeover, "may_claim", lambda *args, **kwargs: allowed),
        (takeover.CounterWatch, "look", lambda self, *rest: True),
    )


@mutant("a counter that stands still counts only while the candidate's own writes work", "1", "I1")
def judges_with_a_dead_disk() -> Swaps:
    """What cannot be read is taken for a counter that stands still."""

    def look(self: Any, count: Any, own_write_worked: bool, now: float) -> Any:
        return original(self, count if own_write_worked else self.count, True, now)

    original = takeover.CounterWatch.look
    return ((takeover.CounterWatch, "look", look),)


@mutant("law 3: a promise counts D(1 + drift) after the newest word that heartbeats echoed", "2", "I1")
def promises_after_a_welcome() -> Swaps:
    """An agent promises itself as soon as it is unacked for T, whatever it echoed lately."""

    def heard(self: Any, stamp: float, now: float) -> None:
        self.echo = max(self.echo, stamp)

    return ((line.LeaseKeeper, "heard", heard),)


@mutant("only agents unacked for T promise themselves", "1", "I1", given="promises_after_a_welcome")
def promises_too_early() -> Swaps:
    """An agent that missed one ack promises itself to somebody else, whatever others say of the supervisor."""

    def init(self: Any, me: Any, incarnation: str, timing: Any, *rest: Any, **more: Any) -> None:
        original(self, me, incarnation, replace(timing, takeover_after_s=1.2), *rest, **more)

    def on_pong(self: Any, pong: Any, *rest: Any) -> Any:
        return heard(self, msgspec.structs.replace(pong, unacked_s=99.0), *rest)

    original, heard = Follow.__init__, Follow.on_pong
    return (Follow, "__init__", init), (Follow, "on_pong", on_pong)


@mutant("an agent refuses commands of lower terms", "1", "I16", "I3", "I2", "I13", "I14", "I10")
def agents_hear_every_term() -> Swaps:
    """What an old supervisor says is obeyed."""

    def hear(self: Any, line: Any, message: Any) -> None:
        if self.alive:
            self.when_awake(lambda: SimAgent._hear(self, self.line, message) if self.line else None)

    def follows(self: Any, term: int) -> bool:
        return self.line is not None

    return (line.LeaseKeeper, "follows", follows), (SimAgent, "hear", hear)


@mutant("an agent launches an attempt once, and never one that was stopped", "1", "I16", "I2", "I3")
def launches_what_was_stopped() -> Swaps:
    """A launch is obeyed whatever was launched or stopped here before."""

    def launch(self: orders.Orders, command: Any, *rest: Any) -> Any:
        self.floor = -1
        self._prepared = (command.term, command.attempt)
        self.dirty = False
        return original(self, command, *rest)

    original = orders.Orders._launch
    return ((orders.Orders, "_launch", launch),)


@mutant("a new term adopts only a whole gang", "1", "I14")
def adopts_half_a_gang() -> Swaps:
    """What was being launched as the last supervisor died counts as running."""
    return ((succession, "_whole", lambda state, event: True),)


@mutant("RUNNING is said when every node has launched", "1", "I14")
def running_when_the_first_launched() -> Swaps:
    """The first node's word is enough."""

    def answered(self: Any, n: int, result: Any, now: float) -> Any:
        if isinstance(self, node_calls.StartCall) and self._launching and result.ok:
            self._open = {n: self._open[n]}
        return original(self, n, result, now)

    original = node_calls.NodeCall.answered
    return ((node_calls.NodeCall, "answered", answered),)
