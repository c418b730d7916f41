"""Slow ranks, slower training and growth, in real runs with real torch on gloo."""

from __future__ import annotations

import pytest

from gangrun.node.processes import host_name
from tests.local.harness import Box

# ``HEALTHY`` steps first, of which now and then one takes much longer on a rank drawn by chance. From there on rank 1
# has more work in each step than its peers, and rank 0 keeps memory and files.
TRAINS = """
    import os, random, time
    import torch, torch.distributed as dist
    import gangrun
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, healthy, drawn, kept = int(os.environ["RANK"]), int(os.environ["HEALTHY"]), random.Random(7), []
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    cache = [torch.ones(250_000) for _ in range(20)]
    step, ends = 0, torch.zeros(1)
    while not ends.item():
        slow = drawn.randrange(50) == 0 and drawn.randrange(2) == rank
        time.sleep(0.3 if slow else 0.05)
        if step >= healthy:
            if rank == 0: kept += [torch.ones(250_000), open(os.devnull)]
            if rank == 1: time.sleep(0.1)
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.fill_(float(os.path.exists(os.environ["MAY_END"])))
        dist.all_reduce(ends)
        gangrun.step(step, loss)
        step += 1
"""
OPTIONS = ("--nproc-per-node", "2", "--trend-window", "20s", "--memory-within", "100h")


@pytest.mark.slow
def test_a_slow_rank_a_leak_and_fewer_steps_are_told_and_healthy_training_is_not(box: Box) -> None:
    """900 steps take over two windows; then everything goes wrong at once."""
    box.start(*OPTIONS, box.script(TRAINS), environment={"HEALTHY": "900"})
    healthy = box.until_status("most healthy steps", lambda found: (found["step"] or 0) >= 850, 300)
    assert healthy["alerts"] == [] and healthy["warning"] == "", healthy
    kinds = {"slow rank", "slower", "memory", "open files"}
    found = box.until_status("all alerts", lambda found: {one["kind"] for one in found["alerts"]} == kinds, 240)
    by_kind = {one["kind"]: one for one in found["alerts"]}
    here = host_name()
    slow = by_kind["slow rank"]
    assert (slow["node"], slow["rank"], slow["until"]) == (here, 1, None)
    assert slow["share"] > 0.5 and f"rank 1 on {here} is " in slow["words"] and "slower than its peers" in slow["words"]
    assert 0.3 < by_kind["slower"]["share"] < 0.9, by_kind["slower"]
    assert (by_kind["memory"]["node"], by_kind["memory"]["rank"]) == (here, 0)
    assert 1e6 < by_kind["memory"]["per_s"] < 3e7 and by_kind["memory"]["full"] > by_kind["memory"]["since"]
    assert by_kind["open files"]["rank"] == 0
    page = box.gangrun("status", "--runs-dir", str(box.runs)).stdout
    for one in found["alerts"]:
        assert " ".join(one["words"].split()[:6]) in " ".join(page.replace("!", "").split()), page
    box.may_end.touch()
    assert box.end() == 0, box.told()
    explained = " ".join(box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.split())
    assert f"seen rank 1 on {here}: slower than its peers" in explained, explained
    ended = box.status()["alerts"]
    assert len(ended) == len(kinds) and all(" is " not in one["words"] for one in ended)
