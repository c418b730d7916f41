"""Launchers' lines: what each asks of its launcher is asked of gangrun, and what cannot be asked is said."""

from __future__ import annotations

import re

import pytest

from gangrun.config.launchers import (
    TORCHRUN,
    VALUELESS,
    LauncherLine,
    launched_per_node,
    meant_for_gangrun,
    taken_apart,
)
from gangrun.errors import UserError
from gangrun.wire.spec import LOCAL_RANK


def taken(line: str) -> LauncherLine:
    found = taken_apart(tuple(line.split()), "python")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("torchrun train.py --lr 3", "--nproc-per-node 1 train.py --lr 3"),
        ("torchrun --nproc_per_node=8 --max-restarts 2 train.py", "--nproc-per-node 8 --max-restarts 2 train.py"),
        ("torchrun --nnodes 2:4 --nproc-per-node gpu -m app", "--nproc-per-node gpu --nodes 4 --min-nodes 2 -m app"),
        ("torchrun --nnodes=3:3 --no-python ./go --tee", "--nproc-per-node 1 --nodes 3 --no-python ./go --tee"),
        ("torchrun -t3 --log-dir logs train.py", "--nproc-per-node 1 --log-per-rank train.py"),
        ("/env/bin/torchrun --nproc-per-node 2 train.py", "--nproc-per-node 2 train.py"),
        ("python3 -m torch.distributed.run --nproc-per-node 2 train.py", "--nproc-per-node 2 python3 train.py"),
        ("/env/bin/python -m torch.distributed.run -m my.app", "--nproc-per-node 1 /env/bin/python -m my.app"),
        ("python -m torch.distributed.launch --use-env train.py", "--nproc-per-node 1 python train.py"),
        ("deepspeed --num_gpus 4 --no_local_rank train.py --ds x", "--nproc-per-node 4 train.py --ds x"),
        ("deepspeed --num_nodes=-1 --hostfile h --no_local_rank train.py", "train.py"),
        ("fabric run --devices 2 --num-nodes 2 train.py --lr 3", "--nproc-per-node 2 --nodes 2 train.py --lr 3"),
        ("lightning run model --devices auto train.py", "--nproc-per-node 1 train.py"),
    ],
)  # fmt: skip
def test_a_line_becomes_gangruns(line: str, instead: str) -> None:
    told = taken(line).told
    assert f"gangrun run {instead}" == told.partition("as by: ")[2].partition(";")[0]


@pytest.mark.parametrize(
    ("launcher", "word"), [("python -m torch.distributed.launch", "--local-rank"), ("deepspeed", "--local_rank")]
)
def test_a_launcher_that_tells_the_local_rank_by_argument_is_replaced_with_it(launcher: str, word: str) -> None:
    line = taken(f"{launcher} train.py --lr 3")
    assert line.words[-4:] == ("train.py", f"{word}={LOCAL_RANK}", "--lr", "3")
    assert f"'{word}=$LOCAL_RANK'" in line.told


def test_what_gangrun_does_itself_or_lacks_is_said() -> None:
    told = taken("torchrun --rdzv-backend c10d --rdzv_endpoint h:1 --numa-binding node --node-rank 0 train.py").told
    assert told.endswith(
        "; not needed: --rdzv-backend, --rdzv-endpoint; ignored, since gangrun has nothing like it: --numa-binding"
        " (with --per-node torchrun does it)"
    )


PER_NODE = (
    "--nnodes={NNODES} --node-rank={NODE_RANK} --master-addr={MASTER_ADDR} --master-port={MASTER_PORT}"
    " --max-restarts=0 --rdzv-backend=static --rdzv-endpoint="
)
FABRIC = "--num-nodes={NNODES} --node-rank={NODE_RANK} --main-address={MASTER_ADDR} --main-port={MASTER_PORT}"


@pytest.mark.parametrize(
    ("line", "instead", "settings"),
    [
        (
            "torchrun --nnodes 2:4 --nproc-per-node 8 --standalone --tee 3 -m my.app --standalone",
            f"torchrun --nnodes 2:4 --nproc-per-node 8 --tee 3 -m {PER_NODE} my.app --standalone",
            {"nodes": "4", "min_nodes": "2"},
        ),
        (
            "/env/bin/python -m torch.distributed.run --max-restarts=9 --log-dir d train.py",
            f"/env/bin/python -m torch.distributed.run --max-restarts=9 --log-dir d {PER_NODE} train.py",
            {"max_restarts": "9"},
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node 2 train.py --lr 3",
            f"python -m torch.distributed.launch --nproc_per_node 2 {PER_NODE} train.py --lr 3",
            {},
        ),
        (
            "fabric run --devices 2 --num-nodes 3 train.py",
            f"fabric run --devices 2 --num-nodes 3 {FABRIC} train.py",
            {"nodes": "3"},
        ),
    ],
)
def test_a_launcher_that_runs_once_per_node_gets_gangruns_rendezvous(
    line: str, instead: str, settings: dict[str, str]
) -> None:
    found = launched_per_node(tuple(line.split()), "python")
    assert found is not None
    assert (" ".join(found.words), found.settings) == (instead, settings)
    assert "--master-port=$MASTER_PORT" in found.told or "--main-port=$MASTER_PORT" in found.told
    assert launched_per_node(("./go", "torchrun"), "python") is None


def test_fabrics_options_travel_by_its_variables() -> None:
    line = taken("fabric run --accelerator cpu --strategy ddp --devices 2 --precision bf16-mixed train.py")
    assert line.variables == {
        "LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_DEVICES": "2", "LT_NUM_NODES": "1",
        "LT_PRECISION": "bf16-mixed",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line", ["train.py torchrun", "python train.py", "python -m my.torchrun x", "./go", "lightning fit"]
)
def test_other_commands_are_left_as_they_are(line: str) -> None:
    assert taken_apart(tuple(line.split()), "python") is None
    assert taken_apart((), "python") is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("uv run torchrun --nproc-per-node 8 a.py", "uv would start torchrun in each rank, and each of them all"),
        (
            "conda run -n env python -m torch.distributed.run a.py",
            "conda would start python -m torch.distributed.run in each",
        ),
        ("numactl -N 0 accelerate launch a.py", "numactl would start accelerate launch in each rank"),
        ("apptainer exec a.sif torchrun a.py", "apptainer would start torchrun in each rank"),
        ("env A=1 deepspeed a.py", "env would start deepspeed in each rank"),
        ("srun -n8 train.py", "srun starts a copy of the command for each task"),
        ("/usr/bin/mpirun -np 8 python train.py", "mpirun starts a copy"),
        ("torchrun --frob train.py", "torchrun: unrecognized arguments: --frob"),
        ("torchrun --nproc-per-node 2", "torchrun: the following arguments are required: script"),
        ("torchrun --nnodes 2 --node_rank 1 train.py", "torchrun --node-rank 1: gangrun starts the ranks of all nodes"),
        ("fabric run --devices 0,1 train.py", "gangrun takes a number of devices"),
    ],
)
def test_a_line_that_cannot_be_replaced_is_refused(line: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as told:
        taken(line)
    assert told.value.hint


def test_accelerate_must_be_here_to_be_asked() -> None:
    with pytest.raises(UserError, match="accelerate is not here"):
        taken_apart(("accelerate", "launch", "train.py"), None)


def test_every_option_of_torchrun_is_known() -> None:
    from torch.distributed.run import get_args_parser

    theirs = {
        tuple(dict.fromkeys(name.lstrip("-").replace("_", "-") for name in one.option_strings)): one.nargs == 0
        for one in get_args_parser()._actions
        if one.option_strings and "--help" not in one.option_strings
    }
    ours = {frozenset(spelled.split()): spelled in VALUELESS for spelled in TORCHRUN}
    assert {frozenset(names): bare for names, bare in theirs.items()} == ours


def test_options_after_the_script_that_gangrun_knows_are_found() -> None:
    words = ("train.py", "--max_restarts=3", "x", "--checkpoint-dir", "c", "--lr", "--resume", "--nnodes=2", "--role")
    found = meant_for_gangrun(words, ["--max-restarts", "--checkpoint-dir", "--resume"])
    assert found == ("--max_restarts", "--checkpoint-dir", "--nnodes")


@pytest.mark.parametrize(
    "line",
    [
        "uv run --with deepspeed python train.py",
        "uv run train.py torchrun",
        "uv run python -m app torchrun",
        "env A=1 x",
    ],
)
def test_a_wrapper_without_a_launcher_is_a_command(line: str) -> None:
    assert taken_apart(tuple(line.split()), "python") is None


def test_a_launcher_behind_a_wrapper_runs_once_per_node_as_it_is() -> None:
    assert launched_per_node(("uv", "run", "torchrun", "train.py"), "python") is None
