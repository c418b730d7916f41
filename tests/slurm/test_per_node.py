"""``--per-node`` on a cluster: torchrun once on each node, and gangrun's rendezvous and restarts around it."""

from __future__ import annotations

from pathlib import Path

from tests.slurm import reach
from tests.slurm.harness import Run

MEETS = """
    import os, pathlib, signal, sys
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    met = torch.ones(1)
    dist.all_reduce(met)
    attempt, node = os.environ["GANGRUN_ATTEMPT"], os.environ["GROUP_RANK"]
    pathlib.Path(sys.argv[1]).mkdir(exist_ok=True)
    pathlib.Path(sys.argv[1], f"{attempt}-{dist.get_rank()}").write_text(f"{int(met)} {node}")
    dist.barrier()
    if attempt == "0" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    os._exit(0)  # torch may abort as the interpreter ends
"""


def test_torchrun_on_each_node_meets_again_after_a_worker_was_killed(run: Run) -> None:
    torchrun = Path(reach.PYTHON).parent / "torchrun"
    run.submit("-N", "2", "--per-node", torchrun, "--nproc-per-node", "1", run.script(MEETS), run.steps)
    status = run.end(deadline_s=300)
    assert [len(one["nodes"]) for one in status["attempts"]] == [2, 2] and status["restarts"] == 1
    seen = {path.name: path.read_text() for path in run.steps.iterdir()}
    assert seen == {f"{attempt}-{rank}": f"2 {rank}" for attempt in (0, 1) for rank in (0, 1)}
