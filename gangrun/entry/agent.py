"""The agent's process. Started by its warden.

Exit codes: what the run's farewell says; 71 the warden is gone; 78 the node cannot work for this run.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import insist
from gangrun.adapters.fs.probe import nearest_folder, probe
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_spec
from gangrun.adapters.fs.terms import FsTerms
from gangrun.adapters.local import box
from gangrun.adapters.net.agent_net import AgentNet
from gangrun.adapters.net.curve import KeyRefused, read_client_key
from gangrun.adapters.net.interface import addresses
from gangrun.agent.background_tasks import MemoryTasks
from gangrun.agent.brain import facts
from gangrun.agent.brain.decide import AgentBrain
from gangrun.agent.brain.facts import AgentConfig
from gangrun.agent.brain.line import LIMIT_S, ClockSkew
from gangrun.agent.loop import AgentLoop
from gangrun.agent.preflight import memory_limits, preflight
from gangrun.agent.ranks.environment import GangSpec, inherited, shared_memory_root, sweep
from gangrun.agent.ranks.gang_part import People, RankGang
from gangrun.agent.surroundings import AgentEnd
from gangrun.config import environment
from gangrun.core.model import OnDataChange
from gangrun.core.nodeset import unfold
from gangrun.entry.agent_health import AgentHealth, all_met
from gangrun.entry.wiring import clock_of, disk_of, own_address, tell, tell_dropped, tell_loss, tell_output
from gangrun.node import processes
from gangrun.node.warden import ENV_MEMORY
from gangrun.wire import job_variables
from gangrun.wire.messages import Dial, MeetPeer
from gangrun.wire.spec import JobLine, RunSpec

EXIT_UNUSABLE = 78
HELLO_WITHIN_MS = 2000


@dataclass(frozen=True, slots=True)
class AgentArguments:
    """What the warden's command line says."""

    run_dir: Path
    node: str
    job: str
    founder: bool
    roster: tuple[str, ...]  # the nodes of this job; empty: those of the spec
    line: JobLine | None = None
    terminal: str = ""  # for the rank that is debugged
    refill: int = 0  # which refill brought this node; 0: it is the job's own


def arguments_of(words: list[str]) -> AgentArguments:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="gangrun-agent")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--seq", type=int, default=0)
    parser.add_argument("--founder", default="", help="the node that has the job's first supervisor made")
    parser.add_argument("--roster", default="")
    parser.add_argument("--line", default="", help="what the job's shell made of the run's command, as JSON")
    parser.add_argument("--terminal", default="", help="terminal for the rank that is debugged")
    parser.add_argument("--refill", type=int, default=0, help="which refill brought this node")
    found = parser.parse_args(words)
    line = msgspec.json.decode(found.line, type=JobLine) if found.line else None
    is_founder = found.founder == found.node
    roster = unfold(found.roster)
    return AgentArguments(found.run_dir, found.node, found.job, is_founder, roster, line, found.terminal, found.refill)


def config_of(
    arguments: AgentArguments, spec: RunSpec, nodes_count: int, incarnation: str, net: AgentNet, previous_died: str
) -> AgentConfig:
    """Who this agent is."""
    return AgentConfig(
        node=arguments.node,
        incarnation=incarnation,
        boot_id=box.boot_id(),
        job=arguments.job,
        slots_count=spec.slots_per_node + spec.spare_slots_count,
        peer=net.address,
        timing=spec.policy.timing,
        roster_count=nodes_count,
        founder=arguments.founder,
        previous_died=previous_died,
        nofile_hard=net.nofile_hard,
        addresses=addresses(),
        refill=arguments.refill,
    )


def gang_of(spec: RunSpec, paths: RunPaths, node: str, terminal: str, health: AgentHealth | None = None) -> GangSpec:
    """What every attempt on this node has in common."""
    interpreter, command = (spec.command[0], spec.command[1:]) if spec.python else ("", spec.command)
    return GangSpec(
        run=spec.run,
        node=node,
        command=command,
        through_boot=spec.python,
        interpreter=interpreter,
        working_directory=spec.working_directory,
        inherited=inherited(),
        environment=spec.environment,
        local_root=shared_memory_root(),
        run_directory=paths.root,
        log=spec.log,
        max_restarts_count=spec.policy.restarts_max_count,
        warden_pid=os.getppid(),
        checkpoint=spec.checkpoint,
        save_signal=signal.Signals[f"SIG{spec.save_signal}"].value if spec.save_signal else 0,
        per_node=spec.per_node,
        full_world_size=spec.full_world_size,
        on_resize=spec.on_resize,
        warm=spec.warm,
        shared_imports=paths.imports,
        debug_rank=spec.debug_rank,
        terminal=terminal,
        slots_count=spec.slots_per_node + spec.spare_slots_count if spec.rank_per_gpu else 0,
        gpus=tuple if health is None else health.gpus,
        gpu_use=dict if health is None else health.take_use,
        hang_watch=spec.policy.hang.timeout_s != 0,
        compares_saves=spec.policy.compares_saves,
        replay_every_count=spec.policy.replay_every_count,
        compares_data=spec.policy.data_checksums is not OnDataChange.OFF,
        trends=spec.policy.trends,
    )


def people_of(node: str, clock: SystemClock) -> People:
    """Whoever sees what the launcher shows."""
    return People(
        tell_output,
        lambda sentence: tell(f"{node}:agent", sentence, urgent=True),
        lambda attempt, words: tell_loss(attempt, node, words),
        lambda: f"{datetime.fromtimestamp(clock.wall(), tz=timezone.utc).astimezone():%H:%M:%S}",
    )


def find_term(paths: RunPaths, clock: SystemClock, disk: Disk, node: str) -> facts.TermFound:
    """The newest claim, as an address."""
    claim = FsTerms(paths, clock, disk).newest()
    if claim is None:
        return facts.TermFound(None)
    ended = claim.node == node and processes.has_ended(claim.pid, claim.start_ticks)
    return facts.TermFound(Dial(claim.term, claim.endpoint, claim.server_key), claim.job, ended)


def check(
    paths: RunPaths,
    clock: SystemClock,
    nofile_hard: int,
    nodes_count: int,
    ranks_count: int,
    nonce: str,
    skew: Callable[[], str],
    checkpoint_directory: str,
) -> facts.Checked:
    """This node's preflight; may take as long as the file system does."""

    def lacking() -> str:
        report = probe(paths.machine, clock, nonce)
        return "" if report.usable else "; ".join(report.lacks)

    def unsafe_for_saves() -> str:
        if not checkpoint_directory:
            return ""
        return "; ".join(probe(nearest_folder(Path(checkpoint_directory)), clock, nonce).unsafe_for_saves)

    variables = environment.all_variables()
    return preflight(
        nofile_hard=nofile_hard, agents_count=nodes_count, probe=lacking, clock=skew,
        checkpoint_probe=unsafe_for_saves,
        cpus_asked=job_variables.cpus_per_rank(variables), cpus_allowed=len(os.sched_getaffinity(0)),
        memory=memory_limits(variables), ranks_count=ranks_count,
    )  # fmt: skip


def skew_limit_s(spec: RunSpec) -> float:
    """How far clocks may be apart before it is told: the bound of the check of the clock itself."""
    bound = spec.health.bounds.get("clock_error_warn_s", LIMIT_S)
    return LIMIT_S if isinstance(bound, tuple) else float(bound)


def main(words: list[str]) -> int:
    """Serve one node until the run says farewell."""
    arguments = arguments_of(words)
    warden = AgentEnd.attach(environment.attachable())
    if warden is None:
        _say(arguments.node, "an agent is started by its warden, not by hand: see gangrun run")
        return EXIT_UNUSABLE
    with warden.telling_a_crash():
        return _serve(arguments, warden)


def _serve(arguments: AgentArguments, warden: AgentEnd) -> int:
    """From the run's specification to the end of the loop; the exit code."""
    clock, paths = clock_of(), RunPaths(arguments.run_dir)
    disk = disk_of(paths)
    try:
        # A dead agent is started again a few times only, and the node leaves the job then.
        spec, keys = insist(
            lambda: (read_spec(disk, paths), read_client_key(paths.client_key)), lambda why: _say(arguments.node, why)
        )
    except (OSError, RunDirError, KeyRefused) as error:
        _say(arguments.node, str(error))
        return EXIT_UNUSABLE
    spec = spec.with_line(arguments.line) if arguments.line is not None else spec
    threading.Thread(target=_sweep, args=(arguments.node,), name="sweep", daemon=True).start()
    incarnation = os.urandom(6).hex()
    nodes_count = len(arguments.roster or spec.nodes)
    address = own_address(spec, arguments.node, environment.all_variables())
    net = AgentNet(spec.run, keys, arguments.node, incarnation, address)
    told = _hello(warden)
    keeper = environment.all_variables().get(ENV_MEMORY, "")
    brain = AgentBrain(config_of(arguments, spec, nodes_count, incarnation, net, told.previous_died), clock.now())
    loop: AgentLoop | None = None
    health: AgentHealth | None = None
    skew = ClockSkew(arguments.node, skew_limit_s(spec))
    if spec.health.enabled:
        variables = environment.all_variables()
        health = AgentHealth(spec, arguments.node, paths.root, variables, clock.now, lambda w: _say(arguments.node, w))

    def no_ranks() -> tuple[int, ...]:
        ours = (*told.supervisor_pids, *told.own_pids) if loop is None else (*loop.supervisor_pids, *loop.own_pids)
        return ours if health is None else (*ours, *health.pids())

    def checked(tests: str, meetings: tuple[MeetPeer, ...]) -> facts.Checked:
        python = spec.command[0] if spec.python else ""
        met = all_met(meetings, python, environment.all_variables(), clock.now)  # first: others wait for it
        ranks_count = spec.slots_per_node * spec.ranks_per_slot
        directory = spec.checkpoint.directory
        found = check(paths, clock, net.nofile_hard, nodes_count, ranks_count, incarnation, skew.words, directory)
        return replace(found if health is None else health.gate(found, tests), met=met)

    loop = AgentLoop(
        brain=brain,
        clock=clock,
        net=net,
        warden=warden,
        ranks=RankGang(
            gang_of(spec, paths, arguments.node, arguments.terminal, health),
            clock.now,
            no_ranks,
            people_of(arguments.node, clock),
        ),
        find_term=lambda: find_term(paths, clock, disk, arguments.node),
        check=checked,
        say=lambda sentence: _say(arguments.node, sentence),
        health=health,
        skew=skew if spec.health.enabled and "host_clock" not in spec.health.off else None,
        memory=MemoryTasks(keeper) if keeper else None,
        stacks_within_s=spec.policy.stacks_within_s * 0.8,
    )
    loop.supervisor_pids.update(told.supervisor_pids)
    loop.own_pids = told.own_pids
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = loop.run()
    tell_dropped(f"{arguments.node}:agent", net.dropped)
    return code


@dataclass(frozen=True, slots=True)
class WardenHello:
    """The warden's first message."""

    previous_died: str = ""
    supervisor_pids: tuple[int, ...] = ()
    own_pids: tuple[int, ...] = ()


def _hello(warden: AgentEnd) -> WardenHello:
    poller = select.poll()
    poller.register(warden.fileno(), select.POLLIN)
    poller.poll(HELLO_WITHIN_MS)
    for message in warden.receive():
        if message.get("op") == "hello":
            return WardenHello(
                str(message.get("previous_died") or ""),
                tuple(message.get("supervisor_pids") or ()),
                tuple(message.get("own_pids") or ()),
            )
    return WardenHello()


def _sweep(node: str) -> None:
    """Small files of runs whose agent and warden were killed at once: nobody else would ever remove them."""
    root = shared_memory_root()
    if swept := sweep(root):
        _say(node, f"removed from {root} the files left by {', '.join(swept)}")


def _say(node: str, sentence: str) -> None:
    tell(f"{node}:agent", sentence)
