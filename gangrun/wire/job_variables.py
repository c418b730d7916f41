"""What Slurm tells the processes of a job through their environment.

Source: the output environment of sbatch(1) and srun(1). A variable that is missing or odd says nothing: sites set what
they like, and outside a job there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

MIB = 1 << 20


def cpus_per_rank(variables: Mapping[str, str]) -> str:
    """The processors asked for each rank, as the job's user wrote them; "" if nobody asked."""
    return variables.get("SLURM_CPUS_PER_TASK", "")


def memory_bytes(variables: Mapping[str, str]) -> int | None:
    """The memory asked for on this node; None where nothing is said. 0 means all that there is, which says nothing."""
    for each, count in (
        ("SLURM_MEM_PER_NODE", ""),
        ("SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"),
        ("SLURM_MEM_PER_GPU", "SLURM_GPUS_ON_NODE"),
    ):
        mebibytes, times = variables.get(each, ""), variables.get(count, "") if count else "1"
        if mebibytes.isdecimal() and times.isdecimal() and int(mebibytes) * int(times):
            return int(mebibytes) * int(times) * MIB
    return None


def gpus_count(variables: Mapping[str, str]) -> int | None:
    """How many GPUs the job has on this node; None if it does not say a number."""
    said = variables.get("SLURM_GPUS_ON_NODE", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 5 else None


def node_name(variables: Mapping[str, str], host: str) -> str:
    """This node as the scheduler calls it, which need not be what it calls itself (``host``)."""
    return variables.get("SLURMD_NODENAME") or host


def launch_address(variables: Mapping[str, str]) -> str:
    """The address from which this node was reached when the step was launched; "" if nothing is said."""
    return variables.get("SLURM_LAUNCH_NODE_IPADDR", "")
