"""The environment of a rank, name by name.

torchrun's names, so that its scripts run unmodified; Slurm's names bent to the gang's shape, so that libraries which
read those see the same world; gangrun's own. What the user set stays, save where it would name another rank.
Nothing here may be written to a disk: names like KEY or TOKEN travel by inheritance alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangrun.agent.ranks.files import RankFiles
from gangrun.wire.messages import Launch

TAG = "GANGRUN_RANK_TAG"
_OF_THIS_RUN = (
    "GANGRUN_RESUME", "GANGRUN_RESUME_STEP", "GANGRUN_SAVE_SIGNAL", "GANGRUN_CHECKPOINT_DIR", "GANGRUN_MEMORY_PARITY",
    "GANGRUN_FLUSH_EVERY",
)  # fmt: skip
ROLE = "default"
INTERNAL = ("GANGRUN_LEASE_FD", "GANGRUN_WARDEN_FD", "GANGRUN_AGENT_INCARNATION")


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of one attempt."""

    run: str
    node: str
    order: Launch
    local_rank: int
    max_restarts_count: int

    @property
    def rank(self) -> int:
        """Its number in the world."""
        return self.order.ranks[self.local_rank]

    @property
    def tag(self) -> str:
        """What marks it and every descendant of it."""
        return f"{tag_prefix(self.run, self.node)}{self.order.attempt}:{self.rank}"


def tag_prefix(run: str, node: str) -> str:
    """What all tags of this run on this node begin with."""
    return f"{run}:{node}:"


def inherited() -> dict[str, str]:
    """The agent's own environment, less what its warden gave it."""
    return {name: value for name, value in os.environ.items() if name not in INTERNAL}


def shared_memory_root() -> Path:
    """Where node-local small files go: memory if there is any, else the temporary directory."""
    for candidate in (os.environ.get("GANGRUN_LOCAL_DIR"), "/dev/shm", os.environ.get("TMPDIR"), "/tmp"):  # noqa: S108
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path.cwd()


def rank_environment(
    base: Mapping[str, str],
    user: Mapping[str, str],
    place: Place,
    files: RankFiles,
    agent_pid: int,
    save_signal: int = 0,
    checkpoint_directory: str = "",
    memory_parity: str = "",
    flush_every_s: float = 0.0,
) -> dict[str, str]:
    """All that the rank sees. ``base``: inherited; ``user``: ``--env`` and ``--env-file``, which win over it."""
    environment = {**base, **user}
    order, local_size = place.order, len(place.order.ranks)
    if local_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: ranks that share a node must not flood it
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    environment.update(_torchrun_names(place, local_size))
    environment["TORCHELASTIC_ERROR_FILE"] = str(files.torchelastic_error)
    if "SLURM_JOB_ID" in environment:  # inside a job; SLURM_CONF alone says nothing
        environment.update(_slurm_names(environment, place, local_size))
    environment.update(
        {
            "GANGRUN_RUN": place.run,
            "GANGRUN_ATTEMPT": str(order.attempt),
            "GANGRUN_TERM": str(order.term),
            "GANGRUN_PROGRESS_SLOT": str(files.slot),
            "GANGRUN_ERROR_FILE": str(files.error),
            "GANGRUN_STACK_FILE": str(files.stack),
            "GANGRUN_SIGNALS_FILE": str(files.signals),
            "GANGRUN_ORDERS_FILE": str(files.orders),
            "GANGRUN_AGENT_PID": str(agent_pid),
            TAG: place.tag,
        }
    )
    for name in _OF_THIS_RUN:
        environment.pop(name, None)  # of a run in which this one was started, for all we know
    if memory_parity:
        environment["GANGRUN_MEMORY_PARITY"] = memory_parity
    if flush_every_s:
        environment["GANGRUN_FLUSH_EVERY"] = f"{flush_every_s:g}"
    if save_signal:
        environment["GANGRUN_SAVE_SIGNAL"] = str(save_signal)
    if checkpoint_directory:  # without a resume point, it tells "begin anew" from "nobody has looked"
        environment["GANGRUN_CHECKPOINT_DIR"] = checkpoint_directory
    if order.resume_path:
        environment.update(GANGRUN_RESUME=order.resume_path, GANGRUN_RESUME_STEP=str(order.resume_step))
    return environment


def _torchrun_names(place: Place, local_size: int) -> dict[str, str]:
    order = place.order
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(order.node_rank),
        "GROUP_WORLD_SIZE": str(order.nodes_count),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "ROLE_NAME": ROLE,
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RUN_ID": place.run,
        "TORCHELASTIC_RESTART_COUNT": str(order.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(place.max_restarts_count),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store: a new one for each attempt
    }


def _slurm_names(environment: Mapping[str, str], place: Place, local_size: int) -> dict[str, str]:
    """Slurm's variables in the gang's shape; what stood there before goes to ``GANGRUN_SLURM_*``."""
    order = place.order
    nodes = ",".join(order.nodes)
    per_node = f"{local_size}(x{order.nodes_count})" if order.nodes_count > 1 else str(local_size)
    ours = {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_NODEID": str(order.node_rank),
        "SLURM_NTASKS": str(order.world_size),
        "SLURM_NPROCS": str(order.world_size),
        "SLURM_NNODES": str(order.nodes_count),
    }
    where_present = {
        "SLURM_JOB_NUM_NODES": str(order.nodes_count),
        "SLURM_STEP_NUM_NODES": str(order.nodes_count),
        "SLURM_STEP_NUM_TASKS": str(order.world_size),
        "SLURM_NTASKS_PER_NODE": str(local_size),
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_GTIDS": ",".join(map(str, order.ranks)),
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_STEP_NODELIST": nodes,
    }
    ours |= {name: value for name, value in where_present.items() if name in environment and value}
    originals = {f"GANGRUN_{name}": environment[name] for name in ours if name in environment}
    return ours | originals
