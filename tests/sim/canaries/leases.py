"""Mutants of protocol section 2: lease, warden, the laws, the fragment rule. Next: ``saves``."""

from __future__ import annotations

from typing import Any

from gangrun.agent.brain import line
from gangrun.core.machine import transitions
from gangrun.core.model import Savers
from gangrun.core.protocol import lease
from gangrun.sim import faults
from gangrun.sim.body import node, scheduler
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.engine.disk import SimStandardError
from gangrun.sim.engine.process import ProcessKilled
from gangrun.sim.faults import Kind
from gangrun.supervisor import heartbeats, node_calls
from gangrun.wire.messages import Ack
from tests.sim.canaries.mutation import Swaps, mutant

# ---- who renews, and how long ----------------------------------------------------------------------------------------


@mutant("a lease ends by when the acked beat was sent, not by when the ack came", "2", "I16")
def lease_from_receipt() -> Swaps:
    """The lease runs from the ack's arrival."""
    original = line.LeaseKeeper.renewed
    return ((line.LeaseKeeper, "renewed", lambda self, sent_at, now: original(self, now, now)),)


@mutant(
    "only an ack of the newest known term, to a beat that was sent to it, renews the lease",
    "2",
    "I16",
    given="lease_from_receipt",
)
def any_ack_renews() -> Swaps:
    """Late acks of an old term renew as well; that a lease runs from the beat's send time makes them harmless."""

    def hear(self: SimAgent, line: Any, message: Any) -> None:
        if self.alive and isinstance(message, Ack) and line is not self.line and self.line is not None:
            deadline = self.brain.lease.renewed(self.boot(), self.boot())
            self.node.warden.lease_written(deadline or 0.0)
        original(self, line, message)

    original = SimAgent.hear
    return ((SimAgent, "hear", hear),)


@mutant("law 3: a supervisor with no majority of beats within D neither acks nor acts", "2", "I16", "I14", "I1")
def leads_without_majority() -> Swaps:
    """A supervisor leads as long as it lives."""
    return ((heartbeats.Leadership, "holds", lambda self, now: True),)


@mutant("law 5: who does not hear all of its roster acks only for so long after its term was seen open", "2", "I16")
def acks_behind_a_still_disk() -> Swaps:
    """A majority is enough, whatever the holder's disk does."""
    return ((heartbeats.Leadership, "holds", heartbeats.Leadership._has_majority),)


@mutant(
    "law 5: who hears all of its roster acks only for so long after Slurm held its job for running", "2", "I3", "I16"
)
def acks_for_ever_if_all_are_heard() -> Swaps:
    """Neither Slurm nor the run directory is needed while all nodes answer."""

    def holds(self: heartbeats.Leadership, now: float) -> bool:
        return self._has_majority(now) and (now <= self._proof_until or self._hears_all(now))

    return ((heartbeats.Leadership, "holds", holds),)


@mutant("law 5: Slurm's word that a job runs ends with the job's step", "2", "I3", "I16")
def slurms_word_outlives_the_step() -> Swaps:
    """It counts as long as the job has its nodes, whatever its batch script says of their step."""
    return ((scheduler.SimScheduler, "runs", lambda self, token: self.world.job_lives(token)),)


@mutant("law 5: the next job waits for as long as a holder that hears everybody may have acked", "2", "I3", "I16")
def next_job_waits_for_a_proof_only() -> Swaps:
    """It waits as if every holder needed to see that it is not sealed."""

    def after_seal_s(timing: Any) -> float:
        return lease.last_ack_after_seal_s(timing) + timing.leader_lease_s + lease.fence_wait_s(timing)

    return ((transitions, "fence_after_seal_s", after_seal_s),)


@mutant("law 3: D(1 + drift) < T", "2", "I1", "I16")
def leader_lease_outlasts_patience() -> Swaps:
    """The leader lease is thrice as long as agents are patient."""

    def ends_at(acked_at: Any, roster_count: int, timing: Any) -> Any:
        ends = original(acked_at, roster_count, timing)
        return None if ends is None else ends + 3 * timing.takeover_after_s

    original = lease.leader_lease_ends_at
    return ((heartbeats, "leader_lease_ends_at", ends_at),)


@mutant("a beat counts by when it was sent, not by when it arrived", "7", "I1", "I16")
def late_beats_count() -> Swaps:
    """Beats that lay in a queue prove their agents' trust now."""

    def beat(self: Any, said: Any, now: float) -> Any:
        row = original(self, said, now)
        if row is not None:
            row.sent_after = now
        return row

    original = heartbeats.Heartbeats.beat
    return ((heartbeats.Heartbeats, "beat", beat),)


# ---- who kills -------------------------------------------------------------------------------------------------------


@mutant("the warden kills at the deadline", "2", "I16")
def warden_never_kills() -> Swaps:
    """A lease that ends has no consequence."""
    return ((node, "warden_must_kill", lambda deadline, *rest: lease.KillRule(False, deadline + 1e6)),)


def _waits_for_the_disk(self: SimStandardError, fd: int, data: bytes) -> int:
    del fd
    self.process.wait_until(self.mount.ready_at())
    return len(data)


@mutant("the supervisor speaks into a pipe that does not block, not into a file of the run directory", "5", "I18")
def supervisor_waits_for_its_log() -> Swaps:
    """Standard error is a file in the run directory, and whoever speaks waits for it."""
    return ((SimStandardError, "write", _waits_for_the_disk),)


@mutant("the warden kills before it speaks, and speaks into a pipe that does not block", "2", "I16")
def warden_speaks_first() -> Swaps:
    """It says that the lease has ended before it kills, into a file in the run directory."""

    def end_lease(self: node.SimWarden) -> None:
        try:
            self.voice.say("the lease has ended: killing all ranks")
        except ProcessKilled:
            return
        self.node.kill_ranks("lease ended")

    return ((SimStandardError, "write", _waits_for_the_disk), (node.SimWarden, "end_lease", end_lease))


def _agent_dies_alone(of: Any, at: Any, fault: Any) -> None:
    if at.agent is not None and at.agent.alive:
        at.agent.kill()
        at.warden.agent_died("signal SIGKILL")


def _faults(**kinds: Any) -> Any:
    return {**faults._NODE, **{Kind[name]: how for name, how in kinds.items()}}


@mutant("when the agent dies its ranks die, before it is started again", "2", "I16", "I2", "I3", "I14")
def ranks_outlive_the_agent() -> Swaps:
    """Neither the kernel nor the warden kills them, and the next agent is started beside them."""

    def agent_died(self: node.SimWarden, how: str) -> None:
        self.deadline = 0.0
        self.start_agent(how)

    return (
        (node.SimWarden, "agent_died", agent_died),
        (faults, "_NODE", _faults(KILL_AGENT=_agent_dies_alone)),
    )


@mutant("ranks have a death signal: they end with their agent even while the warden sleeps", "2", "I16")
def no_death_signal() -> Swaps:
    """Only the warden kills what a dead agent left."""
    return ((faults, "_NODE", _faults(KILL_AGENT=_agent_dies_alone)),)


@mutant("the warden starts the next agent only once no rank is left", "2", "I16", "I2", "I3", "I14")
def agent_starts_beside_old_ranks() -> Swaps:
    """The next agent is started at once, and says that the node is empty."""

    def agent_died(self: node.SimWarden, how: str) -> None:
        self.node.kill_ranks("agent died")
        self.deadline = 0.0
        self.start_agent(how)

    return ((node.SimWarden, "agent_died", agent_died),)


@mutant("when the warden dies agent and ranks die too", "2", "I16")
def all_outlive_the_warden() -> Swaps:
    """They live on, and nobody is left to end their lease."""

    def kill_warden(of: Any, at: Any, fault: Any) -> None:
        at.warden.kill()

    return ((faults, "_NODE", _faults(KILL_WARDEN=kill_warden)),)


@mutant("a node has one warden of a job", "2", "I16")
def second_warden_beside_the_first() -> Swaps:
    """What the next srun starts begins at once on each node, whoever lives there."""
    return ((scheduler.SimScheduler, "has_places", False),)


@mutant("a warden begins only once nothing of the last one lives", "2", "I16")
def warden_begins_beside_old_ranks() -> Swaps:
    """It begins at once, and its agent says that the node is empty."""
    return ((scheduler.SimScheduler, "clears_nodes", False),)


# ---- law 1 -----------------------------------------------------------------------------------------------------------


@mutant("law 1: a silent node is presumed empty only after its lease", "2", "I16")
def presume_at_once() -> Swaps:
    """Presumed empty as soon as it is silent."""
    return ((lease, "presumed_empty_at", lambda last_beat, timing: last_beat + timing.silence_after_s),)


@mutant("law 1: the wait has room for the drift of clocks", "2", "I16")
def wait_without_drift() -> Swaps:
    """The wait is L + K + P."""
    waits = lambda timing: timing.fence_after_s + timing.kill_within_s + timing.warden_wake_s  # noqa: E731
    return ((lease, "fence_wait_s", waits),)


@mutant("law 1: the wait has room for the warden's wake and the kill", "2", "I16")
def wait_without_kill() -> Swaps:
    """The wait is L(1 + drift)."""
    return ((lease, "fence_wait_s", lambda timing: timing.fence_after_s * (1 + timing.drift)),)


@mutant("law 1 after a takeover counts from the majority's promises + D", "2", "I16")
def presume_from_the_journal() -> Swaps:
    """The wait counts from long before the promises."""
    return ((lease, "presumed_empty_after_takeover", lambda promised_at, timing: promised_at - 20.0),)


@mutant("a gang counts as stopped only when every node is accounted for", "2", "I16")
def stopped_when_most_are() -> Swaps:
    """The last node that does not answer is left out."""
    original = node_calls.StopCall.tick

    def tick(self: Any, now: float, silent: Any, lost: Any) -> Any:
        if len(self._waiting) <= 1:
            self._waiting.clear()
        return original(self, now, silent, lost)

    return ((node_calls.StopCall, "tick", tick),)


# ---- the fragment rule -----------------------------------------------------------------------------------------------


def _fragment(**given: Any) -> Swaps:
    original = lease.fragment_allows
    return ((lease, "fragment_allows", lambda **kwargs: original(**{**kwargs, **given})),)


@mutant("fragment rule: one rank of the old gang is confirmed dead", "2", "I2", "I3", "I16")
def fragment_without_a_dead_rank() -> Swaps:
    """Silence is death enough (with the two other conditions taken out: each of them alone would still say no)."""
    original = lease.fragment_allows

    def allows(**kwargs: Any) -> bool:
        seats = [seat for seat in kwargs["placement"].seats if seat.slot.node in kwargs["silent"]]
        held = {rank for s in seats for rank in range(s.first_rank, s.first_rank + s.ranks_count)}
        size = kwargs["placement"].world_size
        free = next((rank for rank in range(size) if rank not in held), size)
        given = {
            "dead_ranks": {*kwargs["dead_ranks"], free},
            "replica_ranks_count": 10**6,
            "savers": Savers.CHECKPOINTER,
        }
        return original(**{**kwargs, **given})

    return ((lease, "fragment_allows", allows),)


@mutant("fragment rule: the silent node holds no whole replica group", "2", "I2")
def fragment_with_a_whole_replica() -> Swaps:
    """Even ranks that hold a whole copy of the model are left alone."""
    return _fragment(replica_ranks_count=10**6)


@mutant("fragment rule: the silent node does not hold rank 0 of a script that saves for itself", "2", "I4")
def fragment_with_a_saver() -> Swaps:
    """Even a rank 0 that saves by itself is left alone."""
    return _fragment(savers=Savers.CHECKPOINTER)
