"""The supervisor's process: takes a term, then runs the loop.

Started by the warden of the node that is to hold the term. Exit codes: 0 the run (or job) ended as decided, 74 the file
system gave no answer, so that an agent asks for the next one, 75 deposed or not entitled to claim, 78 the journal
cannot be used and a person must look.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, insist
from gangrun.adapters.fs.journal import read_counter
from gangrun.adapters.fs.run_dir import (
    ResumeOrder,
    RunPaths,
    read_cancelled,
    read_resume_order,
    read_save_order,
    read_spec,
)
from gangrun.adapters.fs.store import FsStore
from gangrun.adapters.fs.terms import FsTerms
from gangrun.adapters.local.validator import validator_of
from gangrun.adapters.net.curve import read_client_key
from gangrun.adapters.net.router import QueueMailbox, RouterRadio
from gangrun.checkpoint.memory_tier.recover_from_memory import staging_of
from gangrun.checkpoint.scan import naming_of
from gangrun.config import environment
from gangrun.core.actions import Action, EndJob
from gangrun.core.events import (
    ActDone,
    ActFailed,
    CancelRequested,
    DrainRequested,
    ResumeRequested,
    SaveRequested,
    Stamped,
)
from gangrun.core.model import RunState, Shape
from gangrun.core.nodeset import unfold
from gangrun.core.policy import Policy
from gangrun.core.protocol import takeover as rules
from gangrun.entry.checkpoint_service import CheckpointService, NodesVerification
from gangrun.entry.wiring import STORAGE, clock_of, disk_of, local_addresses, own_address, tell, tell_dropped
from gangrun.launch.node_history import OtherRuns
from gangrun.node import processes
from gangrun.ports import Item
from gangrun.supervisor.loop import Loop
from gangrun.supervisor.opening import EXIT_DEPOSED, EXIT_NOT_KNOWN, EXIT_REFUSED, RunFacts
from gangrun.supervisor.takeover import CounterWatch, Greeter, JournalRefused, TermLost, take
from gangrun.wire.record import Claim, RecordError
from gangrun.wire.spec import RunSpec

if TYPE_CHECKING:
    from gangrun.entry.supervisor_slurm import SlurmSide

T = TypeVar("T")

CANCEL_LOOK_S = 0.25
PUT_BACK_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class SupervisorArguments:
    """What the warden's command line says."""

    run_dir: Path
    node: str
    job: str
    seq: int
    term_min: int
    promises: tuple[str, ...]
    roster: tuple[str, ...]  # the nodes of this job; empty: those of the spec
    last_resort: bool  # no agent of this job lives


def arguments_of(words: list[str]) -> SupervisorArguments:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="gangrun-supervisor")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--seq", type=int, default=0)
    parser.add_argument("--term-min", type=int, default=1)
    parser.add_argument("--promises", default="[]")
    parser.add_argument("--roster", default="")
    parser.add_argument("--last-resort", action="store_true")
    found = parser.parse_args(words)
    promises = tuple(str(node) for node in json.loads(found.promises))
    return SupervisorArguments(
        found.run_dir, found.node, found.job, found.seq, found.term_min, promises, unfold(found.roster),
        found.last_resort,
    )  # fmt: skip


class NoScheduler:
    """``ports.Jobs`` where there is none: every request is refused, in words."""

    def __init__(self, mailbox: QueueMailbox) -> None:
        self._mailbox = mailbox

    ask_why: Callable[[], None] | None = None
    mark_cancel: Callable[[str], None] | None = None

    def start(self) -> None:
        """Nothing to watch."""

    def close(self) -> None:
        """Nothing to end."""

    def submit(self, act: tuple[int, int], action: Action) -> None:
        """Answer with ``ActFailed``."""
        self._mailbox.post(Stamped(ActFailed(act, type(action).__name__, "there is no scheduler on this box")))

    def end(self, act: tuple[int, int], action: EndJob, lost: tuple[str, ...]) -> None:
        """Nothing but its owner holds this job."""
        del lost
        self._mailbox.post(Stamped(ActDone(act, type(action).__name__)))

    def look(self) -> None:
        """Nobody takes a node out of this job."""

    def looked_at(self) -> float:
        """Nothing is waited for."""
        return float("inf")

    def runs_at(self) -> float:
        """Only this job's own end lets another begin."""
        return float("inf")

    def left_s(self) -> float | None:
        """No time limit."""
        return None


def jobs_of(
    spec: RunSpec,
    paths: RunPaths,
    disk: Disk,
    clock: SystemClock,
    mailbox: QueueMailbox,
    policy: Policy,
    all_heard: Callable[[], bool],
    roster: tuple[str, ...],
) -> NoScheduler | SlurmSide:
    """The scheduler, if this world has one."""
    if spec.world == "local":
        return NoScheduler(mailbox)
    from gangrun.entry.supervisor_slurm import side_of, survive_signals

    survive_signals()
    holder = _holder(paths, disk)
    assert holder is not None, "the batch script claims the job's place before it starts anything"
    return side_of(paths, disk, clock, mailbox, policy, spec.checkpoint.directory, holder, all_heard, _say, roster)


def _hears_all(loop: Loop, arguments: SupervisorArguments) -> bool:
    """Does every node of the job answer now? Asked from another thread: it reads, and may be a beat late."""
    return not loop.silence.suspects and set(arguments.roster) <= set(loop.beats.rows)


class OrderWatch(threading.Thread):
    """Looks for what people ask through the run directory: a save, a drain, and the mark that every cancel makes first.

    One reader, whatever the number of nodes.
    """

    def __init__(self, paths: RunPaths, disk: Disk, mailbox: QueueMailbox) -> None:
        super().__init__(name="order-watch", daemon=True)
        self._paths, self._disk, self._mailbox = paths, disk, mailbox
        self._known = ""  # the newest order to save
        self.over = threading.Event()

    def run(self) -> None:
        """Until the mark is there."""
        while not self.over.wait(CANCEL_LOOK_S):
            try:
                mark = read_cancelled(self._disk, self._paths)
                order = read_save_order(self._disk, self._paths)
            except OSError:
                continue  # not known: look again
            if order is not None and order.key != self._known:
                self._known = order.key
                drains = DrainRequested(order.drain, order.by, order.key) if order.drain else None
                self._mailbox.post(Stamped(drains or SaveRequested(order.by, order.key)))
            if mark is not None and not self.over.is_set():
                self._mailbox.post(Stamped(CancelRequested(mark.by, mark.now)))
                return


def entitled(
    arguments: SupervisorArguments, spec: RunSpec, paths: RunPaths, disk: Disk, terms: FsTerms, clock: SystemClock
) -> int:
    """The newest term, above which this process may claim (``core.takeover.may_claim``); ``TermLost`` says why not."""
    newest = terms.newest()
    _holds_the_run(arguments, paths, disk)  # after looking: whoever takes the run over from here on claims above us
    judged = newest.term if newest is not None else 0
    if newest is None or newest.job != arguments.job:
        return judged  # nobody holds one, or the holder's job is over: its owner's place was taken by ours
    roster = arguments.roster or spec.nodes
    watch = CounterWatch(spec.policy.timing)
    pause = threading.Event()
    while True:
        still_s, verdict, dead = 0.0, None, _is_dead(newest, arguments.node)
        if not rules.has_majority(arguments.promises, roster) and not dead:
            found = read_counter(disk, paths, newest.term)
            verdict = watch.look(found.count if found else None, _can_write(disk, paths), clock.now())
            still_s = spec.policy.timing.counter_still_s if verdict else 0.0
            dead = verdict is None and spec.is_scheduled and _is_down(newest.node)
        ruling = rules.may_claim(
            arguments.promises, roster, counter_still_s=still_s, own_writes_ok=True, holder_down=dead,
            timing=spec.policy.timing,
        )  # fmt: skip
        if ruling.allowed:
            _holds_the_run(arguments, paths, disk)
            return judged
        if verdict is False:
            raise TermLost(ruling.sentence)
        pause.wait(spec.policy.timing.counter_every_s)
        if terms.highest() > judged:
            raise TermLost(f"term {terms.highest()} was claimed while it was found out whether we may")


def _holder(paths: RunPaths, disk: Disk) -> JobClaim | None:
    jobs = JobClaims(paths, disk)
    return jobs.holder(jobs.highest())


def _holds_the_run(arguments: SupervisorArguments, paths: RunPaths, disk: Disk) -> None:
    place = _holder(paths, disk)
    if place is not None and place.token != arguments.job:
        raise TermLost(f"{arguments.job} is not the job that holds this run: that is {place.token}")


def _is_dead(claim: Claim, node: str) -> bool:
    """Is the holder's process gone, as far as this host can tell for sure?"""
    if claim.node != node and not claim.job.startswith(f"local-{processes.host_name()}-"):
        return False
    return processes.has_ended(claim.pid, claim.start_ticks)


def _is_down(node: str) -> bool:
    """Does Slurm say so of the holder's node? One question, of one node."""
    from gangrun.entry.supervisor_slurm import is_down

    return is_down(node)


def _can_write(disk: Disk, paths: RunPaths) -> bool:
    mine = paths.machine / f"candidate-{os.getpid()}"
    try:
        disk.replace(mine, b"alive\n", mine.with_suffix(".new"))
        disk.discard((mine,))
    except OSError:
        return False
    return True


def facts_of(
    arguments: SupervisorArguments,
    spec: RunSpec,
    order: ResumeOrder | None,
    asks_why: Callable[[], None] | None = None,
    mark_cancel: Callable[[str], None] | None = None,
    note_nodes: Callable[[RunState, RunState], None] | None = None,
) -> RunFacts:
    """What the loop is told of the run."""
    return RunFacts(
        run=spec.run,
        shape=Shape(
            spec.nodes_count or len(spec.nodes),
            spec.nodes_min_count,
            spec.slots_per_node,
            spec.ranks_per_slot,
            spec.slots_min_per_node,
            spec.world_multiple,
        ),
        job=arguments.job,
        seq=arguments.seq,
        node=arguments.node,
        addresses={node: node for node in arguments.roster} or local_addresses(spec, environment.all_variables()),
        resume_request=spec.resume,
        resumed=ResumeRequested(order.by, arguments.job, arguments.seq, order.request) if order else None,
        checkpoint=spec.checkpoint,
        expected=arguments.roster,
        asks_why=asks_why,
        mark_cancel=mark_cancel,
        note_nodes=note_nodes,
        memory_staging=_memory_staging(spec),
        loads_memory=not spec.checkpoint.validator,
        total_steps=spec.total_steps,
        alone=arguments.last_resort,
    )


def _memory_staging(spec: RunSpec) -> Callable[[int, int], str] | None:
    found = spec.checkpoint
    return staging_of(found.directory, spec.run) if found.memory and found.directory else None


def policy_of(spec: RunSpec, order: ResumeOrder | None) -> Policy:
    """The run's policy, with what a person asked for when taking it up again."""
    if order is None or order.restarts_max_count is None:
        return spec.policy
    return replace(spec.policy, restarts_max_count=order.restarts_max_count)


def radio_of(
    spec: RunSpec, node: str, client_public: str, greeter: Greeter, mailbox: QueueMailbox, now: Callable[[], float]
) -> RouterRadio:
    """The radio; what it hears goes into the mailbox, past the greeter."""

    def heard(items: Sequence[Item]) -> None:
        for item in items:
            greeter.hear(item, radio)
        mailbox.post_many(items)

    address = own_address(spec, node, environment.all_variables())
    radio = RouterRadio(spec.run, client_public, address, heard, now)
    return radio


def claim_of(spec: RunSpec, arguments: SupervisorArguments, radio: RouterRadio, term: int, wall: float) -> Claim:
    """This process's claim to a term."""
    me = processes.read_proc(os.getpid())
    assert me is not None
    return Claim(
        term, spec.run, arguments.job, arguments.node, me.pid, me.start_ticks, radio.endpoint, radio.server_key, wall
    )


def checkpoints_of(
    spec: RunSpec, paths: RunPaths, mailbox: QueueMailbox, clock: SystemClock, term: int
) -> CheckpointService:
    """The checkpoint directory, which all nodes read."""
    found = spec.checkpoint

    def holds_term() -> bool:
        try:
            return FsTerms(paths, clock, disk_of(paths)).highest() <= term
        except OSError:
            return False  # nobody can tell

    return CheckpointService(
        found.directory, naming_of(found), spec.run, str(paths.root), mailbox.post,
        validator_of(found.validator, found.validator_within_s, environment.all_variables(), spec.working_directory),
        NodesVerification(mailbox.post, found.reading_share_bytes, clock.now),
        holds_term,
    )  # fmt: skip


def main(words: list[str]) -> int:
    """Take a term and hold it to the end."""
    arguments = arguments_of(words)
    clock, paths = clock_of(), RunPaths(arguments.run_dir)
    disk, mailbox = disk_of(paths), QueueMailbox(clock)
    terms, watch = FsTerms(paths, clock, disk), OrderWatch(paths, disk, mailbox)
    loop: Loop | None = None
    greeter = Greeter(arguments.job)

    def known(operation: Callable[[], T]) -> T:
        """Agents ask for another supervisor, with promises that are fresh. After the last resort there is nobody."""
        return insist(operation, _say) if arguments.last_resort else operation()

    def offer(term: int) -> Claim:
        greeter.term = term
        return claim_of(spec, arguments, radio, term, clock.wall())

    def all_heard() -> bool:
        return loop is not None and _hears_all(loop, arguments)

    def mark_cancel(by: str) -> None:
        watch.over.set()  # our own mark is not another asking, for which ranks would get no more time to save
        if jobs.mark_cancel is not None:
            jobs.mark_cancel(by)

    try:
        spec, keys = known(lambda: (read_spec(disk, paths), read_client_key(paths.client_key)))
        order = known(lambda: read_resume_order(disk, paths, arguments.seq))
        policy = policy_of(spec, order)
        jobs = known(lambda: jobs_of(spec, paths, disk, clock, mailbox, policy, all_heard, arguments.roster))
        radio = radio_of(spec, arguments.node, keys.public, greeter, mailbox, clock.now)
        excludes = spec.is_scheduled and spec.health.enabled  # on one box there is no other node to take
        others = OtherRuns(spec.run, clock.wall, _say) if excludes else None
        facts = facts_of(arguments, spec, order, jobs.ask_why, mark_cancel, others.note if others else None)
        radio.start()
        opening = known(
            lambda: take(
                terms, clock, facts, policy,
                offer=offer, term_min=arguments.term_min, promised=arguments.promises,
                judged=entitled(arguments, spec, paths, disk, terms, clock),
            )
        )  # fmt: skip
    except TermLost as error:
        return _leave(EXIT_DEPOSED, str(error))
    except (JournalRefused, RecordError) as error:
        return _leave(EXIT_REFUSED, str(error))
    except OSError as error:
        return _leave(EXIT_NOT_KNOWN, f"cannot tell how the run stands, so nothing is taken over: {error}")
    greeter.term = 0
    if others is not None:
        opening = replace(opening, state=others.added(opening.state, opening.run_start))
    store = FsStore(paths, opening.term, mailbox.post, clock, disk, policy.timing.counter_every_s)
    checkpoints = checkpoints_of(spec, paths, mailbox, clock, opening.term)
    loop = Loop(
        clock=clock, mailbox=mailbox, store=store, radio=radio, checkpoints=checkpoints, jobs=jobs,
        policy=policy, facts=facts, opening=opening, say=_say,
    )  # fmt: skip
    watch.start()
    jobs.start()
    code = loop.run()
    jobs.close()
    watch.over.set()
    has_more = loop.state.checkpoints.cleared or policy.keeps_memory  # what nodes did not bring whole is removed
    checkpoints.close(PUT_BACK_WITHIN_S if has_more and code != EXIT_DEPOSED else 0.0)
    radio.close(flush_s=0.5)
    tell_dropped("supervisor", radio.dropped)
    store.close(10.0)
    return code


def _say(sentence: str) -> None:
    tell("supervisor", sentence, urgent=sentence.startswith(STORAGE))


def _leave(code: int, why: str) -> int:
    tell("supervisor", why, urgent=code == EXIT_REFUSED)
    return code
