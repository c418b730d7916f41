"""What a node's warden is told: which agent and which supervisor to start, and the times of its lease."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.text import signal_name
from gangrun.entry.wiring import own_command
from gangrun.wire.spec import JobLine, RunSpec

NODE = "{node}"  # stands for the name of the node, which the first process there puts in
EXIT_WAITED = 71  # of a task that only waited for a place that a living warden has
EXIT_NOBODY = 72  # of a task that was to wait beside a warden, and there was none
WARDEN_GONE = "its warden was killed or crashed"  # the warden said no exit code, and nobody heard of a signal


def warden_spec(
    spec: RunSpec,
    paths: RunPaths,
    job: str,
    seq: int,
    founder: str,
    *,
    node: str = NODE,
    roster: str = "",
    terminal: str = "",
    refill: int = 0,
) -> dict[str, object]:
    """The spec of one node's warden; with ``NODE`` it is the same for all.

    Args:
        spec: the run.
        paths: where the run lies.
        job: the token of the job that holds the run.
        seq: the place of this job among the run's jobs.
        founder: the node that has the job's first supervisor made.
        node: the node's name.
        roster: the nodes of the job, folded; "" for those of the spec.
        terminal: what the rank that is debugged gets, if it is on this node.
        refill: which refill brings this node; 0: it is the job's own.
    """
    common = ["--run-dir", str(paths.root), "--node", node, "--job", job, "--seq", str(seq)]
    common += ["--roster", roster] if roster else []
    line = JobLine(spec.working_directory, spec.command)
    told_line = ["--line", msgspec.json.encode(line).decode()] if spec.shell else []
    told_line += ["--terminal", terminal] if terminal else []
    told_line += ["--refill", str(refill)] if refill else []
    told: dict[str, object] = {
        "agent": own_command("gangrun.entry.agent", [*common, "--founder", founder, *told_line], sys.executable),
        "supervisor": own_command("gangrun.entry.supervisor", common, sys.executable),
        "node": node,
        "lease_s": spec.policy.timing.fence_after_s,
        "poll_s": spec.policy.timing.warden_wake_s,
        "memory_bytes": spec.checkpoint.memory_limit_bytes if spec.checkpoint.memory else None,
    }
    if roster:
        told["agent_start_s"] = spec.policy.join_within_s  # hundreds of agents import from one file system
    return told


def warden_killed(number: int) -> str:
    """How the agent before ended, told to the warden that takes a dead one's place."""
    return f"its warden was killed by {signal_name(number)}"


def filled(value: Any, node: str) -> Any:
    """The spec with this node's name in it."""
    if isinstance(value, str):
        return node if value == NODE else value
    if isinstance(value, list):
        return [filled(part, node) for part in value]
    return value
