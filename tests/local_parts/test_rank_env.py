"""The environment of a rank, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gangrun.agent.ranks.environment import (
    GangSpec,
    RankFiles,
    RankPlace,
    is_set_at_launch,
    rank_environment,
)
from gangrun.agent.ranks.flight_dumps import WatchdogDump
from gangrun.wire.messages import Launch
from gangrun.wire.spec import CheckpointSpec
from tests.local_parts.gang import order

FILES = RankFiles(
    *map(Path, ("/m/slot", "/m/error", "/m/te", "/m/stack", "/m/signals", "/m/orders", "/m/place", "/m/imports"))
)
LAUNCH = order(
    world_size=8, node_rank=1, nodes_count=2, ranks=(4, 5, 6, 7), slots=(0, 1, 2, 3), master_addr="n3",
    master_port=23456, nodes=("n3", "n1"), resume_path="/ck/step-40", resume_step=40, attempt=2, term=6,
    failures_count=3,
)  # fmt: skip


def environment(
    inherited: dict[str, str], user: dict[str, str] | None = None, launch: Launch = LAUNCH, **spec: Any
) -> dict[str, str]:
    """What the last but two of the node's ranks sees, or its only one."""
    made = GangSpec(
        run="run-1", node="n1", command=("train",), through_boot=False, interpreter="", working_directory="/",
        inherited=inherited, environment=user or {}, local_root=Path("/m"), run_directory=Path("/run"),
        max_restarts_count=3, **spec,
    )  # fmt: skip
    return rank_environment(RankPlace(made, launch, min(1, len(launch.ranks) - 1)), FILES, 77)


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
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_TEMP_FILE": "/run/flight-recorder/attempt-2-rank-",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "GANGRUN_RUN": "run-1",
    "GANGRUN_ATTEMPT": "2",
    "GANGRUN_TERM": "6",
    "GANGRUN_FAILURES": "3",
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
    assert environment({}) == GOLDEN
    outer = {"GANGRUN_SAVE_SIGNAL": "1", "GANGRUN_TERM": "1"}
    assert environment(outer) == GOLDEN
    assert environment(outer, save_signal=10) == {**GOLDEN, "GANGRUN_SAVE_SIGNAL": "10"}
    told = environment({"GANGRUN_CHECKPOINT_DIR": "/outer"}, checkpoint=CheckpointSpec("/ck"))
    assert told == {**GOLDEN, "GANGRUN_CHECKPOINT_DIR": "/ck"}
    assert environment({"GANGRUN_CHECKPOINT_DIR": "/outer"}) == GOLDEN


def test_what_the_user_set_stays_unless_it_names_another_rank() -> None:
    base = {"OMP_NUM_THREADS": "6", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "2,3", "API_TOKEN": "s", "RANK": "99"}
    user = {"PYTHONUNBUFFERED": "0", "NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    seen = environment(base, user)
    assert seen == {**GOLDEN, **base, **user, "RANK": "5"}


def where(environment: Mapping[str, str]) -> Path | None:
    """NCCL's watchdog writes in rank 5."""
    dump = WatchdogDump.of(environment, 5)
    return None if dump is None else dump.path


def test_what_the_user_says_of_nccls_flight_recorder_stays_under_any_name() -> None:
    """A second name would win over the user's: torch prefers its newer one."""
    older = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/trace_"}
    seen = environment(older, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"})
    told = {name: value for name, value in seen.items() if name.startswith("TORCH_") and "ASYNC" not in name}
    assert told == {**older, "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert where(seen) == Path("/mine/trace_5")
    newer = {"TORCH_FR_DUMP_TEMP_FILE": "/newer/", "TORCH_FR_BUFFER_SIZE": "7", **older}
    assert where(environment(newer)) == Path("/newer/5")
    assert where({}) is None
    assert is_set_at_launch("TORCH_FR_DUMP_TEMP_FILE"), "it changes with each attempt, and makes no standby stale"


def test_a_rank_alone_on_its_node_gets_all_threads() -> None:
    seen = environment({"GANGRUN_RESUME": "/of/an/outer/run"}, launch=order())
    assert "OMP_NUM_THREADS" not in seen
    assert not {"GANGRUN_RESUME", "GANGRUN_RESUME_STEP"} & set(seen)


def test_a_launcher_is_told_of_its_node_and_of_no_rank() -> None:
    seen = environment({"RANK": "3", "TORCHELASTIC_RUN_ID": "outer", "GANGRUN_PER_NODE": "1"}, per_node=True)
    node = {"MASTER_ADDR": "n3", "MASTER_PORT": "23456", "NODE_RANK": "1", "NNODES": "2", "GANGRUN_PER_NODE": "1"}
    kept = ("TORCHELASTIC_ERROR_FILE", "TORCH_", "OMP", "PYTHON", "GANGRUN")
    assert seen == {name: value for name, value in GOLDEN.items() if name.startswith(kept)} | node
    assert "GANGRUN_PER_NODE" not in environment({"GANGRUN_PER_NODE": "1"})


def test_slurms_names_take_the_gangs_shape_and_the_originals_are_kept() -> None:
    slurm = {
        "SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_NNODES": "3", "SLURM_GTIDS": "0",
        "SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_ON_NODE": "64",
    }  # fmt: skip
    seen = environment(slurm)
    bent = {
        "SLURM_JOB_ID": "9", "SLURM_CPUS_ON_NODE": "64",
        "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8",
        "SLURM_NNODES": "2", "SLURM_GTIDS": "4,5,6,7", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_NODELIST": "n3,n1",
        "GANGRUN_SLURM_PROCID": "0", "GANGRUN_SLURM_NTASKS": "3", "GANGRUN_SLURM_NNODES": "3",
        "GANGRUN_SLURM_GTIDS": "0", "GANGRUN_SLURM_TASKS_PER_NODE": "1(x3)", "GANGRUN_SLURM_JOB_NODELIST": "n[1-3]",
    }  # fmt: skip
    assert seen == {**GOLDEN, **bent}


def test_outside_a_job_no_slurm_name_appears() -> None:
    seen = environment({"SLURM_CONF": "/etc/slurm.conf"})
    assert {name for name in seen if "SLURM" in name} == {"SLURM_CONF"}


@pytest.mark.parametrize(
    ("argument", "added"),
    [
        ("--resume", ["--resume", "/ck/step-40"]),
        ("ckpt_path=", ["ckpt_path=/ck/step-40"]),
        ("--checkpoint.load_step={step}", ["--checkpoint.load_step=40"]),
        ("--load={path}/weights", ["--load=/ck/step-40/weights"]),
    ],
)
def test_the_argument_that_loads_a_checkpoint_comes_last_and_only_with_one(argument: str, added: list[str]) -> None:
    made = GangSpec(
        run="run-1", node="n1", command=("train", "--x"), through_boot=False, interpreter="", working_directory="/",
        inherited={}, environment={}, local_root=Path("/m"), run_directory=Path("/run"),
        checkpoint=CheckpointSpec(resume_argument=argument),
    )  # fmt: skip
    assert RankPlace(made, LAUNCH, 0).argv[-1 - len(added) :] == ["--x", *added]
    assert RankPlace(made, order(resume_path="", resume_step=-1), 0).argv[-1] == "--x"


@pytest.mark.parametrize(
    ("world", "added"),
    [(8, []), (6, ["--accum", "2", "--of=6/8", "--hosts", "2"]), (4, ["--accum", "2", "--of=4/8", "--hosts", "2"])],
)
def test_a_script_is_told_its_size_if_it_is_not_the_full_one(world: int, added: list[str]) -> None:
    """A factor that is no whole number is rounded up: scripts read it as a number of micro batches."""
    words = ("--accum", "{factor}", "--of={world_size}/{full_world_size}", "--hosts", "{nodes}")
    made = GangSpec(
        "r", "n0", ("train.py", "--x"), True, "/usr/bin/python", "/w", {}, {}, Path("/dev/shm"), Path("/runs/r"),
        full_world_size=8, on_resize=words,
    )  # fmt: skip
    argv = RankPlace(made, order(resume_path="", world_size=world, nodes_count=2), 0).argv
    assert argv[argv.index("--x") + 1 :] == added


def test_only_what_gangrun_wrote_itself_is_filled_in() -> None:
    words = (
        "torchrun",
        "--nnodes={NNODES}",
        "--num_processes={NNODES*8}",
        "--master-addr={MASTER_ADDR}",
        "--x={NNODES}",
    )
    made = GangSpec(
        run="r", node="n1", command=(*words, "{NODE_RANK}"), through_boot=False, interpreter="", working_directory="/",
        inherited={}, environment={}, local_root=Path("/m"), run_directory=Path("/run"),
    )  # fmt: skip
    filled = ["torchrun", "--nnodes=2", "--num_processes=16", "--master-addr=n3", "--x={NNODES}", "{NODE_RANK}"]
    assert RankPlace(made, LAUNCH, 1).argv[-6:] == filled
