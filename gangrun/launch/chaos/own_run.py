"""A small run of one's own for each drill: made, struck, ended, removed.

It has what no other run may have: mounts and a network that nobody else sees, a driver and ports that are played, a
sample script.
Nothing of it stays: processes that outlive its end are counted, then killed. If this process is killed, the run's owner
dies with it and a child removes the rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.local.hosts import in_place
from gangrun.adapters.local.played_network import ASK, PlayedNetwork, own_networks
from gangrun.adapters.local.played_ports import PlayedPorts
from gangrun.adapters.local.played_world import (
    NotPossibleHere,
    PlayedClock,
    PlayedDriver,
    also_at,
    mount_memory,
    own_mounts,
    unmount,
)
from gangrun.agent.ranks.environment import shared_memory_root, sweep
from gangrun.config import environment
from gangrun.config.request import Request, ResolvedRequest, resolved
from gangrun.errors import UserError
from gangrun.launch.chaos.kinds import DISK_KINDS, MOUNT_KINDS, NETWORK_KINDS, DrillKind
from gangrun.launch.chaos.plan import Drill, DrillPlan
from gangrun.launch.chaos.score import DrillScore, Rehearsal, not_done
from gangrun.launch.chaos.stage import (
    GONE_WITHIN_S,
    LOOK_EVERY_S,
    Stage,
    guarded,
    one_drill,
    run_processes,
    settled,
    with_count,
    with_leaks,
)
from gangrun.launch.chaos.strike import OwnWorld
from gangrun.launch.create import unmade
from gangrun.launch.local import begin, nodes_of
from gangrun.launch.stop import cancel
from gangrun.node import processes
from gangrun.runs.snapshot import read
from gangrun.runs.times import pause, steady_now

ENDS_WITHIN_S = 60.0
MOUNT_BYTES = 48 * 1024 * 1024
DRIVEN = frozenset({DrillKind.XID, DrillKind.ECC})
CHECKED = DRIVEN | {DrillKind.IB_DOWN}  # a check of hardware has to find what is broken
NO_COMPILER = "install a C compiler, or leave this kind out"
SAMPLE = Path(__file__).resolve().parent / "sample.py"
_HOSTS = {"nodes": "3", "min_nodes": "2", "nproc_per_node": "1", "local_hosts": True}
_GPUS = {"nproc_per_node": "2:3", "spare_gpus": "1"}
_BOTH = {
    "max_restarts": "50", "hang_timeout": "8", "fence_after": "15", "trend_window": "40", "on_anomaly": "rollback",
    "name": "drill",
}  # fmt: skip


def rehearse_local(plan: DrillPlan, command: tuple[str, ...], say: Callable[[str], None]) -> Rehearsal:
    """Each drill on a small run of its own, on this machine. Nothing of it stays."""
    for kinds, enter, hint in ((MOUNT_KINDS, own_mounts, ""), (NETWORK_KINDS, own_networks, f"{ASK}, or ")):
        if not plan.kinds & kinds:
            continue
        try:
            enter()
        except NotPossibleHere as error:
            names = ", ".join(sorted(kind.value for kind in plan.kinds & kinds))
            words = f"{names} cannot be done here: {error.strerror}"
            raise UserError("refused", words, f"{hint}leave them out") from error
    scores: list[DrillScore] = []
    for number, drill in enumerate(plan.drills, 1):
        try:
            with own_run(drill, command) as stage:
                one = one_drill(number, stage, drill, say)
        except UserError as error:
            if not scores:
                raise
            say(f"drill {number}, {drill.kind.value}: {error.message}")
            scores.append(not_done(number, "", drill, error.message))
            continue
        score = with_leaks(one, 0, drill)  # without a scheduler there is nothing to leak
        count = (score.orphans or 0) + stage.left_count
        judged = with_count(score, "orphans", count, drill.sla.orphans_count)
        scores.append(msgspec.structs.replace(judged, orphans=count))
    return Rehearsal(seed=plan.seed, holds=all(one.holds for one in scores), drills=tuple(scores))


@contextlib.contextmanager
def own_run(drill: Drill, command: tuple[str, ...]) -> Iterator[Stage]:
    """A small run that trains ``command``, or the sample script; ended and removed at the end."""
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="gangrun-drill-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        runs, drill_folder, checkpoints = (folder / name for name in ("runs", "drill", "checkpoints"))
        for one in (runs, drill_folder):
            one.mkdir(mode=0o700)
        view, driver, clock, network, ports, has_mounts = runs, None, None, None, None, drill.kind in DISK_KINDS
        if has_mounts:
            view = folder / "view"
            view.mkdir()
            mount_memory(runs, MOUNT_BYTES)
            undo.callback(_unmount, runs)
            also_at(runs, view)
            undo.callback(_unmount, view)
        variables = {**environment.all_variables(), "GANGRUN_DRILL_DIR": str(drill_folder)}
        with _possible(drill.kind, "leave this kind out" if shutil.which("cc") else NO_COMPILER):
            if drill.kind in DRIVEN:
                driver = PlayedDriver(drill_folder, gpus_count=4)
                driver.build()
                variables |= driver.environment()
            if drill.kind is DrillKind.CLOCK_JUMP:
                clock = PlayedClock(drill_folder)
                clock.build()
                variables |= clock.environment(variables)
        words = command or (str(SAMPLE), str(checkpoints))
        flags = {**_BOTH, **(_GPUS if driver else _HOSTS), "runs_dir": str(runs)}
        flags["no_health"] = drill.kind not in CHECKED
        if not command:
            flags["checkpoint_dir"] = str(checkpoints)
        wish, on_host = resolved(Request(words=words, flags=flags, here=True), variables), in_place
        if drill.kind in NETWORK_KINDS:
            network = PlayedNetwork.of(nodes_of(wish.settings), steady_now)
            undo.callback(network.close)
            wish, on_host = _with(wish, network.environment()), network.on_host
        if drill.kind is DrillKind.IB_DOWN:
            ports = PlayedPorts(drill_folder / "ports", nodes_of(wish.settings))
            with _possible(drill.kind, "leave this kind out"):
                ports.build()
            wish, on_host = _with(wish, ports.environment()), ports.on_host
        begun = begin(wish, on_host)
        if network is not None:
            network.carry()
        paths = replace(begun, root=view / begun.run)
        stage = Stage(paths, OwnWorld(drill_folder, begun.root, not command, driver, clock, network, ports, has_mounts))
        undo.callback(unmade, Disk(), begun)
        undo.callback(_end, stage)
        with guarded(undo):
            yield stage


@contextlib.contextmanager
def _possible(kind: DrillKind, hint: str) -> Iterator[None]:
    try:
        yield
    except NotPossibleHere as error:
        raise UserError("refused", f"{kind.value} cannot be done here: {error.strerror}", hint) from error


def _with(wish: ResolvedRequest, variables: Mapping[str, str]) -> ResolvedRequest:
    return replace(wish, variables={**wish.variables, **variables})


def _unmount(folder: Path) -> None:
    with contextlib.suppress(OSError):
        unmount(folder)


def _end(stage: Stage) -> None:
    """End the run and count what is still there; that is killed, whatever it is."""
    with contextlib.suppress(UserError, OSError):
        cancel(read(stage.paths), ENDS_WITHIN_S, lambda words: None, waits=True, now=True)
    with contextlib.suppress(ChildProcessError):  # the owner, with all that it reaps
        give_up_at = steady_now() + GONE_WITHIN_S
        while os.waitpid(-1, os.WNOHANG) == (0, 0) and steady_now() < give_up_at:
            pause(LOOK_EVERY_S)
    run = stage.paths.run
    stage.left_count = settled(lambda: len(list(run_processes(run)))) or 0

    def there() -> list[processes.Proc]:
        return [proc for pid in run_processes(run) if (proc := processes.read_proc(pid)) is not None]

    processes.kill_until_none(there, GONE_WITHIN_S, lambda: None)
    sweep(shared_memory_root())  # small files of ranks, which agents that are killed at once leave
