"""The local world's processes, put together: from a spec and a run directory to a launcher."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import terms_seen
from gangrun.adapters.fs.live import read_counter
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local.hosts import LocalHosts
from gangrun.display.live_view import LiveView
from gangrun.entry.wiring import disk_of, own_command
from gangrun.launch.local_owner import Launcher
from gangrun.launch.process_log import urgent_part
from gangrun.wire.spec import RunSpec

PROCESS_LOG = "processes-{node}.log"


def warden_spec(spec: RunSpec, paths: RunPaths, node: str, job: str, seq: int) -> dict[str, object]:
    """What one host's warden is told."""
    common = ["--run-dir", str(paths.root), "--node", node, "--job", job, "--seq", str(seq)]
    return {
        "agent": own_command("gangrun.entry.agent", [*common, "--founder", spec.nodes[0]], sys.executable),
        "supervisor": own_command("gangrun.entry.supervisor", common, sys.executable),
        "node": node,
        "lease_s": spec.policy.timing.fence_after_s,
        "poll_s": spec.policy.timing.warden_wake_s,
        "memory_bytes": spec.checkpoint.memory_limit_bytes if spec.checkpoint.memory else None,
    }


def process_log(paths: RunPaths, node: str) -> Path:
    """Where our own processes of a host say what no rank and no journal holds."""
    return paths.machine / PROCESS_LOG.format(node=node)


def launcher(
    spec: RunSpec, paths: RunPaths, environment: Mapping[str, str], view: LiveView, *, job: str, seq: int
) -> Launcher:
    """The owner of this run's processes on this box."""
    urgent: deque[str] = deque()

    def hear(line: str) -> None:
        if sentence := urgent_part(line):
            urgent.append(sentence)

    hosts = LocalHosts(
        python=sys.executable,
        specs={node: warden_spec(spec, paths, node, job, seq) for node in spec.nodes},
        environment={**environment, "GANGRUN_RUN_DIR": str(paths.root)},
        logs={node: process_log(paths, node) for node in spec.nodes},
        hear=hear,
    )
    return Launcher(paths, hosts, spec.nodes, view, urgent=urgent, disk=disk_of(paths))


def live_of(paths: RunPaths, disk: Disk, term: int) -> Mapping[str, Any]:
    """The newest figures of the run's supervisor; empty where there are none."""
    for number in (term, max(terms_seen(disk, paths), default=term)):
        found = read_counter(disk, paths, number)
        if found is not None:
            return found.live
    return {}
