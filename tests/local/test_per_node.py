"""``gangrun run --per-node``: the real launchers, once per node, whose ranks die and come back."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.local.harness import Box
from tests.waiting import until

pytestmark = pytest.mark.no_warm

# One line per step: attempt of gangrun's, rank, step, pid. ``MAY_END`` holds the last step open, so a test can kill.
SCRIPT = """
    import os, pathlib, sys, time
    import torch, torch.distributed as dist
    import gangrun
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ["GANGRUN_ATTEMPT"]
    assert dist.get_world_size() == int(sys.argv[1]), dist.get_world_size()
    with open(f"rank-{rank}.log", "a") as log:
        step = 0
        while step < 10 or not os.path.exists(os.environ["MAY_END"]):
            agreed = torch.ones(1)
            dist.all_reduce(agreed)
            asked = gangrun.step(step)
            if asked.checkpoint:
                pathlib.Path(f"saved-{rank}").write_text(str(step))
            print(attempt, step, os.getpid(), os.environ["TORCHELASTIC_RESTART_COUNT"], file=log, flush=True)
            step += 1
            time.sleep(0.05)
            done = torch.tensor([float(os.path.exists(os.environ["MAY_END"]))])
            dist.all_reduce(done, dist.ReduceOp.MIN)
            if step >= 10 and done.item():
                break
    sys.stdout.flush()
    os._exit(0)  # torch may abort as the interpreter ends, under any launcher
"""
OPTIONS = ("--per-node", "--no-health", "--max-restarts", "3")


def lines(box: Box, rank: int) -> list[list[str]]:
    path = box.work / f"rank-{rank}.log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def started(box: Box, *line: str, nodes: int = 2, ranks: int = 2) -> None:
    script = box.script(SCRIPT)
    box.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    where = ("--nodes", str(nodes), "--local-hosts") if nodes > 1 else ()
    box.start(*OPTIONS, *where, *line, script, str(ranks))


def test_a_killed_worker_of_torchrun_restarts_all_nodes(box: Box) -> None:
    started(
        box, "torchrun", "--nproc-per-node", "1", "--standalone", "--rdzv-endpoint", "nowhere:1", "--max-restarts=9"
    )
    box.until(lambda: all(len(lines(box, rank)) > 3 for rank in (0, 1)), "steps of both ranks")
    assert box.status()["world_size"] == 2
    before = int(lines(box, 1)[-1][2])
    os.kill(before, signal.SIGKILL)
    box.until(lambda: all(lines(box, rank)[-1][0] == "1" for rank in (0, 1)), "steps of attempt 1")
    box.may_end.touch()
    assert box.end(120) == 0, box.told()
    status = box.status()
    assert (status["state"], status["restarts"], len(status["attempts"])) == ("SUCCEEDED", 1, 2)
    assert status["name"] == "train"
    assert {line[3] for rank in (0, 1) for line in lines(box, rank)} == {"0"}, "torchrun itself restarted nothing"
    assert "gangrun starts torchrun once per node and makes the restarts itself" in box.told()
    until(lambda: not box.left(), 20, "all have left")


def test_every_rank_of_a_node_is_asked_to_save(box: Box) -> None:
    started(box, "torchrun", "--nproc-per-node", "2", nodes=1)
    box.until(lambda: all(len(lines(box, rank)) > 3 for rank in (0, 1)), "steps of both ranks")
    box.gangrun("checkpoint", "--runs-dir", str(box.runs))
    saved = [box.work / f"saved-{rank}" for rank in (0, 1)]
    until(lambda: all(path.exists() for path in saved), 30, "a save of each")
    assert saved[0].read_text() == saved[1].read_text(), "at the same step"
    box.may_end.touch()
    assert box.end(120) == 0, box.told()


def test_the_error_of_a_rank_is_told_and_not_the_launchers(box: Box) -> None:
    script = box.script("""
        import os, time
        if os.environ["RANK"] == "1":
            raise ValueError("the learning rate is a banana")
        time.sleep(100)
    """)
    box.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    box.start("--per-node", "--no-health", "--max-restarts", "0", "torchrun", "--nproc-per-node=2", script)
    assert box.end(120) == 1
    assert "ValueError: the learning rate is a banana" in box.status()["reason"], box.told()
    until(lambda: not box.left(), 20, "all have left")


def test_accelerate_starts_its_ranks_on_each_node(box: Box) -> None:
    started(box, "accelerate", "launch", "--num_processes", "2", "--use_fsdp", "--fsdp_version", "2", nodes=1)
    box.may_end.touch()
    assert box.end(200) == 0, box.told()
    assert all(len(lines(box, rank)) >= 10 for rank in (0, 1))


def test_any_command_learns_its_node_and_is_no_rank(box: Box) -> None:
    told = "$NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT, rank ${RANK:-none}${TORCHELASTIC_RUN_ID}"
    words = ("sh", "-c", f'echo "$1 {told}" > "node-$NODE_RANK"; sleep 0', "sh", "{NODE_RANK}")
    box.start(*OPTIONS, "--nodes", "2", "--local-hosts", *words)
    assert box.end(60) == 0, box.told()
    nodes = [(box.work / f"node-{rank}").read_text() for rank in (0, 1)]
    assert [line.split(" at ")[0] for line in nodes] == ["{NODE_RANK} 0 of 2", "{NODE_RANK} 1 of 2"]
    assert all(line.endswith("rank none\n") for line in nodes)
    assert nodes[0].split(" at ")[1] == nodes[1].split(" at ")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--nproc-per-node", "2", "torchrun", "train.py"), "with --per-node the command starts the ranks of its node"),
        (("deepspeed", "train.py"), "deepspeed starts the other nodes itself, by ssh"),
        (("srun", "torchrun", "train.py"), "srun starts a copy of the command for each task"),
    ],
)
def test_what_cannot_run_once_per_node_is_refused(box: Box, words: tuple[str, ...], told: str) -> None:
    refused = box.gangrun("run", "--per-node", *words, check=False)
    assert refused.returncode == 2 and told in refused.stderr
