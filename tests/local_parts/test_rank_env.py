"""The environment of a rank, exactly."""

from __future__ import annotations

from pathlib import Path

from gangrun.agent.ranks.environment import RankFiles, RankPlace, rank_environment
from tests.local_parts.gang import order

FILES = RankFiles(*map(Path, ("/m/slot", "/m/error", "/m/te", "/m/stack", "/m/signals", "/m/orders")))
LAUNCH = order(
    world_size=8, node_rank=1, nodes_count=2, ranks=(4, 5, 6, 7), slots=(0, 1, 2, 3), master_addr="n3",
    master_port=23456, nodes=("n3", "n1"), resume_path="/ck/step-40", resume_step=40, attempt=2, term=6,
)  # fmt: skip
PLACE = RankPlace("run-1", "n1", LAUNCH, local_rank=1, max_restarts_count=3)

GOLDEN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "5",
    "ROLE_WORLD_SIZE": "8",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "n3",
    "MASTER_PORT": "23456",
    "TORCHELASTIC_RUN_ID": "run-1",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_ERROR_FILE": "/m/te",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "GANGRUN_RUN": "run-1",
    "GANGRUN_ATTEMPT": "2",
    "GANGRUN_TERM": "6",
    "GANGRUN_RESUME": "/ck/step-40",
    "GANGRUN_RESUME_STEP": "40",
    "GANGRUN_PROGRESS_SLOT": "/m/slot",
    "GANGRUN_ERROR_FILE": "/m/error",
    "GANGRUN_STACK_FILE": "/m/stack",
    "GANGRUN_SIGNALS_FILE": "/m/signals",
    "GANGRUN_ORDERS_FILE": "/m/orders",
    "GANGRUN_AGENT_PID": "77",
    "GANGRUN_RANK_TAG": "run-1:n1:2:5",
}


def test_a_rank_sees_exactly_this() -> None:
    assert rank_environment({}, {}, PLACE, FILES, 77) == GOLDEN
    outer = {"GANGRUN_SAVE_SIGNAL": "1", "GANGRUN_TERM": "1"}
    assert rank_environment(outer, {}, PLACE, FILES, 77) == GOLDEN
    assert rank_environment(outer, {}, PLACE, FILES, 77, 10) == {**GOLDEN, "GANGRUN_SAVE_SIGNAL": "10"}
    told = rank_environment({"GANGRUN_CHECKPOINT_DIR": "/outer"}, {}, PLACE, FILES, 77, 0, "/ck")
    assert told == {**GOLDEN, "GANGRUN_CHECKPOINT_DIR": "/ck"}
    assert rank_environment({"GANGRUN_CHECKPOINT_DIR": "/outer"}, {}, PLACE, FILES, 77) == GOLDEN


def test_what_the_user_set_stays_unless_it_names_another_rank() -> None:
    base = {"OMP_NUM_THREADS": "6", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "2,3", "API_TOKEN": "s", "RANK": "99"}
    user = {"PYTHONUNBUFFERED": "0", "NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    seen = rank_environment(base, user, PLACE, FILES, 77)
    assert seen == {**GOLDEN, **base, **user, "RANK": "5"}


def test_a_rank_alone_on_its_node_gets_all_threads() -> None:
    alone = RankPlace("run-1", "n1", order(), 0, 3)
    seen = rank_environment({"GANGRUN_RESUME": "/of/an/outer/run"}, {}, alone, FILES, 77)
    assert "OMP_NUM_THREADS" not in seen
    assert not {"GANGRUN_RESUME", "GANGRUN_RESUME_STEP"} & set(seen)


def test_slurms_names_take_the_gangs_shape_and_the_originals_are_kept() -> None:
    slurm = {
        "SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_NNODES": "3", "SLURM_GTIDS": "0",
        "SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_ON_NODE": "64",
    }  # fmt: skip
    seen = rank_environment(slurm, {}, PLACE, FILES, 77)
    bent = {
        "SLURM_JOB_ID": "9", "SLURM_CPUS_ON_NODE": "64",
        "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8",
        "SLURM_NNODES": "2", "SLURM_GTIDS": "4,5,6,7", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_NODELIST": "n3,n1",
        "GANGRUN_SLURM_PROCID": "0", "GANGRUN_SLURM_NTASKS": "3", "GANGRUN_SLURM_NNODES": "3",
        "GANGRUN_SLURM_GTIDS": "0", "GANGRUN_SLURM_TASKS_PER_NODE": "1(x3)", "GANGRUN_SLURM_JOB_NODELIST": "n[1-3]",
    }  # fmt: skip
    assert seen == {**GOLDEN, **bent}


def test_outside_a_job_no_slurm_name_appears() -> None:
    seen = rank_environment({"SLURM_CONF": "/etc/slurm.conf"}, {}, PLACE, FILES, 77)
    assert {name for name in seen if "SLURM" in name} == {"SLURM_CONF"}
