"""``gangrun run`` on this box: makes the run, starts its hosts and owns it to its end.

The owner decides nothing about the run; it reads the journal like any viewer. It does own the run's life: Ctrl-C
cancels, and when this process dies its wardens notice and kill all they have.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import click
import msgspec

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, Taken
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local import box
from gangrun.adapters.local.hosts import LocalHosts, OnHost, in_place
from gangrun.config.layers import Value
from gangrun.config.request import ResolvedRequest, ranks_of
from gangrun.core.text import counted
from gangrun.display.live_view import LiveView, Observer
from gangrun.display.text import clean, echo_json
from gangrun.entry.wiring import disk_of
from gangrun.errors import UserError
from gangrun.launch.create import make_run, put_in_index, unmade
from gangrun.launch.debugging import DebugTerminal
from gangrun.launch.exclusive import give_way, refuse_company
from gangrun.launch.node_spec import warden_killed, warden_spec
from gangrun.launch.owner import LAST_LOOK_WITHIN_S, Cancelling, hears, in_background, shown, tell_json
from gangrun.launch.sidecars import Sidecars, refuse_unusable_port
from gangrun.node import processes
from gangrun.runs.follow import JournalReplay
from gangrun.runs.locate import entries_of
from gangrun.runs.status import SCHEMA
from gangrun.wire.spec import RunSpec

LOOK_EVERY_S = 0.1
RESTARTS_MAX = 3  # of one host's warden: something outside kills it
EXIT_GOOD = 0
DRAIN_WITHIN_S = 1.0
LETS_GO_WITHIN_S = 5.0
EXPLAINED_WITHIN_S = 2.0
NEVER = float("inf")


class DetachedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--detach --json`` prints of ``run`` and ``resume``: the run that goes on in the background."""

    schema: int = SCHEMA
    run: str
    name: str
    directory: str


def start(wish: ResolvedRequest) -> int:
    """Make the run directory, start the hosts, stay until the end; the exit code."""
    request = wish.request
    if not wish.value("local_hosts") and not request.here:
        from gangrun.launch import slurm_allocation

        if (held := slurm_allocation.held_by(wish.variables)) is not None:
            if request.detach:
                words = "--detach is for this machine alone: in a Slurm job the run would end with the job's script"
                raise UserError("usage", words, "gangrun submit asks Slurm and returns")
            return slurm_allocation.run_in(held, wish)
        slurm_allocation.refuse_login_node(wish.variables)
    paths, spec = _made(wish)
    if not request.detach:
        return own(spec, paths, wish.everything, as_json=request.as_json, quiet=request.quiet)
    return own_in_background(spec, paths, wish.everything, as_json=request.as_json)


def begin(wish: ResolvedRequest, on_host: OnHost = in_place) -> RunPaths:
    """Make the run and have a child of this process own it. Nothing is shown, and the run dies with this process."""
    paths, spec = _made(wish)

    def owned(begun: Callable[[], None]) -> int:
        processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)  # its wardens then kill all that they have
        return own(spec, paths, wish.everything, quiet=True, begun=begun, on_host=on_host)

    in_background(paths.owner_log, owned)
    return paths


def _made(wish: ResolvedRequest) -> tuple[RunPaths, RunSpec]:
    """The run directory, with all that the run's processes read in it."""
    request, slots = wish.request, _slots(wish)
    ranks = slots.ranks_count
    disk, wall, nodes = Disk(), SystemClock().wall(), nodes_of(wish.settings)
    if request.debug_rank is not None and request.debug_rank >= ranks * len(nodes):
        last = ranks * len(nodes) - 1
        have = f"ranks 0 to {last}" if last else "only rank 0"
        words = f"--debug-rank {request.debug_rank}: this run has {have}"
        raise UserError("usage", words, "--nproc-per-node says how many ranks a node has")
    DebugTerminal.of(request.debug_rank, detached=request.detach)  # refused before anything is made
    draft = wish.draft(
        wall,
        world="local",
        nodes=nodes,
        slots_per_node=ranks,
        ranks_per_slot=1,
        slots_min_per_node=slots.min_count,
        rank_per_gpu=slots.are_gpus,
    )
    refuse_company(draft, lambda: entries_of(None))
    refuse_unusable_port(draft.metrics)
    return make_run(disk, wish.runs_dir, draft, wall, wish.value("notify"))


@dataclass(frozen=True, slots=True)
class _Slots:
    """How many ranks each node holds, how many are enough if GPUs break (0: all), and whether each has its own GPU."""

    ranks_count: int
    min_count: int = 0
    are_gpus: bool = False


def _slots(wish: ResolvedRequest) -> _Slots:
    """One rank per GPU, less the spare ones, unless ``--nproc-per-node`` says otherwise."""
    asked, spare_count = wish.value("nproc_per_node"), wish.value("spare_gpus")
    gpus_count = box.gpus_count(wish.variables)
    least, colon, _ = (asked or "").rpartition(":")
    if not spare_count and not colon:
        return _Slots(ranks_of(asked, gpus_count, box.cpus_count()))
    flag = f"--nproc-per-node {asked}" if colon else f"--spare-gpus {spare_count}"
    if not gpus_count:
        raise UserError("usage", f"{flag}: this machine has no GPU that could be left out", f"leave {flag} out")
    if wish.value("local_hosts"):
        raise UserError("usage", f"{flag}: nodes that are simulated share the GPUs", "leave --local-hosts out")
    if wish.value("per_node"):
        raise UserError("usage", f"{flag}: with --per-node the launcher places the ranks", "leave one of them out")
    ranks = gpus_count - spare_count if asked is None else ranks_of(asked, gpus_count, box.cpus_count())
    if ranks < 1 or ranks + spare_count > gpus_count:
        more = f" and {counted(spare_count, 'spare GPU')}" if spare_count else ""
        words = f"{flag}: this machine has {counted(gpus_count, 'GPU')} for {counted(max(ranks, 1), 'rank')}{more}"
        raise UserError("usage", words, "each rank needs a GPU of its own; ask for fewer")
    return _Slots(ranks, int(least or 0), are_gpus=True)


def own_in_background(
    spec: RunSpec,
    paths: RunPaths,
    variables: Mapping[str, str],
    *,
    as_json: bool,
    over: JobClaim | None = None,
    ready: Callable[[int], None] | None = None,
) -> int:
    """``own`` by a process without a terminal; returns once that has begun."""

    def owned(begun: Callable[[], None]) -> int:
        return own(spec, paths, variables, quiet=True, over=over, ready=ready, begun=begun)

    in_background(paths.owner_log, owned)
    if as_json:
        echo_json(DetachedRun(run=paths.run, name=spec.name, directory=str(paths.root)))
    else:
        click.echo(f"run {paths.run} ({clean(spec.name)}) goes on in the background, in {paths.root}")
        click.echo(f"  gangrun attach {paths.run} shows it; gangrun cancel {paths.run} ends it")
    return EXIT_GOOD


def own(
    spec: RunSpec,
    paths: RunPaths,
    variables: Mapping[str, str],
    *,
    as_json: bool = False,
    quiet: bool = False,
    over: JobClaim | None = None,
    ready: Callable[[int], None] | None = None,
    begun: Callable[[], None] = lambda: None,
    on_host: OnHost = in_place,
) -> int:
    """Hold the next job of this run on this box until it ends. ``over``: the owner of the last one, wherever it was, if
    that has ended. ``ready(seq)``, of a run that is taken up again, is called before anything is started,
    ``begun()`` once nothing can be refused any more.
    """
    disk, terminal = Disk(), DebugTerminal.of(spec.debug_rank)
    host, me = processes.host_name(), processes.read_proc(os.getpid())
    assert me is not None

    def wish(seq: int) -> JobClaim:
        return JobClaim(seq, f"local-{host}-{me.pid}-{me.start_ticks}", 0, host, me.pid, me.start_ticks)

    claimed = JobClaims(paths, disk).claim_next(wish, lambda claim: claim == over or _owner_gone(claim))
    if isinstance(claimed, Taken):
        raise UserError("busy", f"another process runs this run already: {claimed.why}", "gangrun status shows it")
    put_in_index(paths, spec, claimed.claim.job, (me.pid,))
    try:
        give_way(spec, lambda: entries_of(None))
    except UserError:
        if ready is None:
            unmade(disk, paths)
        raise
    if ready is not None:
        ready(claimed.claim.seq)
    begun()
    view = shown(paths, variables, as_json=as_json, quiet=quiet or terminal is not None)
    view.terminal = view.terminal and terminal is None  # a live line would overwrite the debugger's
    view.say(f"run {paths.run} ({spec.name}) in {paths.root}")
    if terminal is not None:
        view.say(terminal.words(paths.run))
    if over is not None and over.host != host:
        view.say(f"the run was on {over.host} before; its nodes keep their names: {', '.join(spec.nodes)}")
    job, seq = claimed.claim.job, claimed.claim.seq
    sidecars = Sidecars.of(spec, paths, variables, view.say)
    owner = launcher(
        spec, paths, variables, view, job=job, seq=seq, terminal=terminal, spared=sidecars.pids, on_host=on_host
    )
    code, signals = owner.run(), owner.cancelling.signals
    view.let_go()
    if as_json:
        tell_json(paths)
    heard_count = len(signals)
    sidecars.notifier.over(
        code, leaves=lambda: len(signals) > heard_count, say=lambda words: click.echo(f"gangrun: {words}", err=True)
    )
    sidecars.close()
    return code


def nodes_of(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Names of the local hosts."""
    host, count = processes.host_name(), settings["nodes"].value
    if count == 1 and not settings["local_hosts"].value:
        return (host,)
    least = settings["min_nodes"].value
    if not settings["local_hosts"].value:
        if least == 1:  # as torchrun's MIN:MAX: what is there is enough
            return (host,)
        raise UserError(
            "usage",
            f"--nodes {count}, but this machine is one node",
            "--local-hosts simulates nodes on this machine; gangrun submit gets real ones from Slurm",
        )
    return tuple(f"{host}-{k}" for k in range(count))


def _owner_gone(claim: JobClaim) -> bool:
    return claim.host == processes.host_name() and processes.has_ended(claim.pid, claim.start_ticks)


def launcher(
    spec: RunSpec,
    paths: RunPaths,
    environment: Mapping[str, str],
    view: LiveView,
    *,
    job: str,
    seq: int,
    terminal: DebugTerminal | None = None,
    spared: tuple[int, ...] = (),
    on_host: OnHost = in_place,
) -> Launcher:
    """The owner of this run's processes on this box."""
    urgent: deque[str] = deque()
    path = terminal.path if terminal is not None else ""
    hosts = LocalHosts(
        python=sys.executable,
        specs={
            node: warden_spec(spec, paths, job, seq, spec.nodes[0], node=node, terminal=path) for node in spec.nodes
        },
        environment={**environment, "GANGRUN_RUN_DIR": str(paths.root)},
        logs={node: paths.process_log(node) for node in spec.nodes},
        hear=hears(view, urgent),
        spared=spared,
        on_host=on_host,
    )
    return Launcher(paths, hosts, spec.nodes, view, urgent=urgent, disk=disk_of(paths), terminal=terminal)


@dataclass(slots=True)
class Launcher:
    """One ``gangrun run`` (or ``resume``) on this box."""

    paths: RunPaths
    hosts: LocalHosts
    nodes: tuple[str, ...]
    view: LiveView
    disk: Disk = field(default_factory=Disk)
    clock: SystemClock = field(default_factory=SystemClock)
    observer: Observer = field(init=False)
    urgent: deque[str] = field(default_factory=deque)  # filled from the threads that hear the hosts
    terminal: DebugTerminal | None = None
    cancelling: Cancelling = field(init=False)
    _removed: bool = False
    _let_go_by: float = NEVER
    _dismissed: bool = False
    _restarts: dict[str, int] = field(default_factory=dict)
    _ended_badly: deque[tuple[float, str]] = field(default_factory=deque)  # until when the run's end may explain it

    def __post_init__(self) -> None:
        """Its eyes are its own."""
        self.observer = Observer(JournalReplay(self.paths, self.disk), self.clock, self.view)
        self.cancelling = Cancelling(
            self.paths, self.disk, self.clock, self.view.say, self.observer.state,
            insist=lambda: self.hosts.signal(signal.SIGINT),  # means cancel; of SIGTERM nobody knows what it means
            kill=self._kill, urgent=self.urgent,
            passed_on=self.terminal.interrupt if self.terminal is not None else lambda: False,
        )  # fmt: skip

    def run(self) -> int:
        """Until every warden has gone; the run's exit code."""
        self.observer.catch_up()
        wake = self.cancelling.listen()
        self.hosts.open()
        try:
            self.observer.start()
            for node in self.nodes:
                self.hosts.start(node)
            with selectors.DefaultSelector() as selector:
                selector.register(wake, selectors.EVENT_READ)
                while self.hosts.running():
                    for _ in selector.select(LOOK_EVERY_S):
                        wake.recv(4096)
                    self.cancelling.turn()
                    self._heed_removal()
                    self._bury()
                    self._tell_bad_ends(self.clock.now())
                    self._dismiss()
        finally:
            self.hosts.close()
            self.hosts.sweep()
            self.hosts.drain(DRAIN_WITHIN_S)
            self.cancelling.say_urgent()
            self.cancelling.keep_mark()
            heard_count = len(self.cancelling.signals)
            if not self.observer.leave(LAST_LOOK_WITHIN_S, lambda: len(self.cancelling.signals) > heard_count):
                self.view.say(f"some of the last lines are missing here: gangrun logs {self.paths.run} shows all")
            self._tell_bad_ends(NEVER)
            if self.cancelling.meant and not self.observer.ended and not self._removed:
                self.view.say(f"all ranks were killed; gangrun resume {self.paths.run} continues the run")
            if self.terminal is not None:
                self.terminal.restore()
        return self.cancelling.code()

    def _heed_removal(self) -> None:
        if self.observer.removed and not self._removed:
            self._removed = True
            self._kill()
            words = f"the run directory {self.paths.root} was removed"
            self.view.say(f"{words}, so nothing can be recorded any more: killing all ranks")

    def _kill(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):  # two of one kind would be one
            self.hosts.signal(signum)

    def _bury(self) -> None:
        for gone in self.hosts.ended():
            if gone.code == EXIT_GOOD or self.cancelling.signals or self._removed or self.observer.ended:
                continue
            count = self._restarts[gone.node] = self._restarts.get(gone.node, 0) + 1
            how = f"signal {signal.Signals(-gone.code).name}" if gone.code < 0 else f"exit code {gone.code}"
            if gone.code > 0 or count > RESTARTS_MAX:
                log = self.hosts.logs[gone.node]
                words = f"the warden of {gone.node} ended ({how}); see the end of {log}"
                self._ended_badly.append((self.clock.now() + EXPLAINED_WITHIN_S, words))
                continue
            self.view.say(f"the warden of {gone.node} was killed ({how}): starting it again")
            self.hosts.start(gone.node, warden_killed(-gone.code))

    def _tell_bad_ends(self, before: float) -> None:
        """A warden whose run failed ends with the run's own code, mostly before its last record is read here."""
        if self.observer.ended:
            self._ended_badly.clear()
        while self._ended_badly and self._ended_badly[0][0] <= before:
            self.view.say(self._ended_badly.popleft()[1])

    def _dismiss(self) -> None:
        """Who joined too late to hear the supervisor's farewell would look for one that is gone: perhaps all did."""
        if not self.observer.ended:
            self._let_go_by = NEVER
        elif self._let_go_by == NEVER:
            self._let_go_by = self.clock.now() + LETS_GO_WITHIN_S
        if not self._dismissed and self.clock.now() >= self._let_go_by:
            self._dismissed = True
            self._kill()
