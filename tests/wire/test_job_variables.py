"""What a job's environment tells, and what it does not."""

import pytest

from gangrun.wire import job_variables

MIB = 1 << 20


@pytest.mark.parametrize(
    ("variables", "mebibytes"),
    [
        ({}, None),
        ({"SLURM_MEM_PER_NODE": "2000"}, 2000),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_NODE": "2G"}, None),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "8"}, 800),
        ({"SLURM_MEM_PER_CPU": "100"}, None),
        ({"SLURM_MEM_PER_GPU": "4000", "SLURM_GPUS_ON_NODE": "2"}, 8000),
    ],
)
def test_memory_asked_for(variables: dict[str, str], mebibytes: int | None) -> None:
    assert job_variables.memory_bytes(variables) == (None if mebibytes is None else mebibytes * MIB)


@pytest.mark.parametrize(
    ("said", "count"), [("4", 4), ("0", 0), ("", None), ("h100:4(S:0)", None), ("99999", None), ("²", None)]
)
def test_gpus_of_this_node(said: str, count: int | None) -> None:
    assert job_variables.gpus_count({"SLURM_GPUS_ON_NODE": said}) == count


def test_names_and_addresses_are_as_they_are_said() -> None:
    said = {"SLURMD_NODENAME": "n1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "SLURM_CPUS_PER_TASK": "7"}
    assert job_variables.node_name(said, "host-1.example") == "n1"
    assert job_variables.launch_address(said) == "10.0.0.1"
    assert job_variables.cpus_per_rank(said) == "7"
    assert job_variables.node_name({}, "host-1.example") == "host-1.example"
    assert job_variables.launch_address({}) == job_variables.cpus_per_rank({}) == ""
