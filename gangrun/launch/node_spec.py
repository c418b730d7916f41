"""A Slurm job's processes, put together: from a spec and an allocation to what srun starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gangrun.adapters.fs.job_claims import JobClaim
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm import step
from gangrun.core.nodeset import fold, unfold
from gangrun.entry.node import NODE
from gangrun.entry.wiring import own_command
from gangrun.wire.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job that we are in, as its environment tells."""

    job: str
    restart: int
    nodes: tuple[str, ...]
    host: str  # this node's name in Slurm's words
    cpus_per_task: int | None


def allocation_of(variables: Mapping[str, str], host: str) -> Allocation:
    """``KeyError`` or ``NodesetError`` where this is no job's environment."""
    cpus = variables.get("SLURM_CPUS_PER_TASK", "")
    return Allocation(
        job=variables["SLURM_JOB_ID"],
        restart=int(variables.get("SLURM_RESTART_COUNT") or 0),
        nodes=unfold(variables["SLURM_JOB_NODELIST"]),
        host=variables.get("SLURMD_NODENAME") or host,
        cpus_per_task=int(cpus) if cpus.isdecimal() else None,
    )


def warden_spec(spec: RunSpec, paths: RunPaths, claim: JobClaim, roster: str, founder: str) -> dict[str, object]:
    """What every node's warden is told; each puts its own name in."""
    common = ["--run-dir", str(paths.root), "--node", NODE, "--job", claim.token, "--seq", str(claim.seq)]
    common += ["--roster", roster]
    return {
        "agent": own_command("gangrun.entry.agent", [*common, "--founder", founder], sys.executable),
        "supervisor": own_command("gangrun.entry.supervisor", common, sys.executable),
        "node": NODE,
        "lease_s": spec.policy.timing.fence_after_s,
        "poll_s": spec.policy.timing.warden_wake_s,
        "memory_bytes": spec.checkpoint.memory_limit_bytes if spec.checkpoint.memory else None,
        "agent_start_s": spec.policy.join_within_s,  # hundreds of agents import from one file system
    }


def step_argv(
    spec: RunSpec,
    paths: RunPaths,
    claim: JobClaim,
    allocation: Allocation,
    nodes: tuple[str, ...],
    extra: tuple[str, ...],
) -> list[str]:
    """The command line of srun for these nodes of the allocation; all of it are the roster."""
    told = warden_spec(spec, paths, claim, fold(allocation.nodes), nodes[0])
    command = own_command("gangrun.entry.node", [json.dumps(told), str(paths.root)], sys.executable)
    return step.argv(step.Shape(nodes, allocation.cpus_per_task, extra), command)


def last_resort_argv(paths: RunPaths, claim: JobClaim, allocation: Allocation) -> list[str]:
    """The supervisor that the batch script starts when nobody else is left to decide."""
    words = ["--run-dir", str(paths.root), "--node", allocation.host, "--job", claim.token, "--seq", str(claim.seq)]
    words += ["--roster", fold(allocation.nodes), "--last-resort"]
    return own_command("gangrun.entry.supervisor", words, sys.executable)
