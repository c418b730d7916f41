"""Slow ranks, slower training and growth, in real runs with real torch on gloo; GPUs are played by a driver of ours."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from gangrun.node.processes import host_name
from tests.local.harness import Box
from tests.local.test_broken_gpu import GPUS_COUNT, Driver
from tests.local.test_grow import signal_host

pytestmark = pytest.mark.no_warm

# ``HEALTHY`` steps first, of which now and then one takes much longer on a rank drawn by chance. From there on rank 1
# has more work in each step than its peers, so much that it is most of a step on a busy machine too. Rank 0 keeps
# memory, files, threads and /dev/shm.
TRAINS = """
    import os, random, tempfile, threading, time
    import torch, torch.distributed as dist
    import gangrun
    torch.set_num_threads(1)
    shared = tempfile.TemporaryFile(dir="/dev/shm", buffering=0)  # without a name: it ends with the process
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
            if rank == 0:
                kept += [torch.ones(500_000), open(os.devnull)]
                shared.write(bytes(10**6))
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            if rank == 1: time.sleep(0.3)
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.fill_(float(os.path.exists(os.environ["MAY_END"])))
        dist.all_reduce(ends)
        gangrun.step(step, loss)
        step += 1
"""
OWN_SHM = ["unshare", "-rm", "sh", "-ec", 'mount -t tmpfs -o size=8g none /dev/shm; exec "$@"', "sh"]
OPTIONS = ("--nproc-per-node", "2", "--trend-window", "20s", "--memory-within", "100h")


@pytest.mark.slow
def test_a_slow_rank_a_leak_and_fewer_steps_are_told_and_healthy_training_is_not(box: Box) -> None:
    """900 steps take over two windows; then everything goes wrong. /dev/shm is its own: others look at theirs."""
    box.through = OWN_SHM
    box.start(*OPTIONS, box.script(TRAINS), environment={"HEALTHY": "900"})
    healthy = box.until_status("most healthy steps", lambda found: (found["step"] or 0) >= 850, 300)
    assert healthy["alerts"] == [] and healthy["warning"] == "", healthy
    kinds = {"slow rank", "slower", "memory", "open files", "threads", "shared memory"}
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
    threads = by_kind["threads"]
    assert threads["rank"] == 0 and 0.5 < threads["per_s"] < 30, threads
    assert f"rank 0 on {here} will be out of threads in " in threads["words"], threads
    assert by_kind["shared memory"]["node"] == here and by_kind["shared memory"]["per_s"] > 1e5
    page = box.gangrun("status", "--runs-dir", str(box.runs)).stdout
    for one in found["alerts"]:
        assert " ".join(one["words"].split()[:6]) in " ".join(page.replace("!", "").split()), page
    box.may_end.touch()
    assert box.end() == 0, box.told()
    explained = " ".join(box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.split())
    assert f"seen rank 1 on {here}: slower than its peers" in explained, explained
    ended = box.status()["alerts"]
    assert len(ended) == len(kinds) and all(" is " not in one["words"] for one in ended)


# As with NCCL, all ranks look alike: each sleeps for as long as the slowest GPU of the box would take.
ALIKE = """
    import os, time
    from pathlib import Path
    import gangrun
    slow, ends, step = Path(os.environ["SLOW"]), Path(os.environ["MAY_END"]), 0
    while not ends.exists():
        time.sleep(0.16 if slow.exists() else 0.1)
        gangrun.step(step)
        step += 1
"""


def working(driver: Driver, **changes: object) -> None:
    """All GPUs train; ``gpu1__clock=1200``: of GPU 1 the driver says that."""
    usual = {"busy": 96, "clock": 1980, "power": 650_000, "generation": 5, "memory_used": 60 << 30, "reasons": 0}
    lines = {f"gpu{n}.{key}": value for n in range(GPUS_COUNT) for key, value in usual.items()}
    driver.say(lines | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_gpus_say_of_themselves_names_the_one_that_slows_all_ranks_down(box: Box) -> None:
    """Two windows are healthy, then GPU 1 is throttled and steps take longer. Memory of GPU 2 grows; then all idle."""
    driver, slow = Driver(box.folder), box.work / "slow"
    working(driver)
    box.environment |= driver.environment("0,1,2,3")
    script = box.script(ALIKE)
    options = ("--nproc-per-node", "4", "--trend-window", "20s", "--memory-within", "100h")
    box.start(*options, script, environment={"SLOW": str(slow)})
    healthy = box.until_status("most healthy steps", lambda found: (found["step"] or 0) >= 450, 300)
    assert healthy["alerts"] == [], healthy
    assert (healthy["gpu"]["count"], healthy["gpu"]["busy_percent"], healthy["gpu"]["slowed_count"]) == (4, 96, 0)
    working(driver, gpu1__clock=1200, gpu1__reasons=0x48)
    slow.touch()

    def told(kind: str, deadline_s: float, rank: int | None = None) -> dict[str, Any]:
        def those(found: dict[str, Any]) -> list[dict[str, Any]]:
            alerts = [one for one in found["alerts"] if one["kind"] == kind and one["until"] is None]
            return [one for one in alerts if rank is None or one["rank"] == rank]

        return those(box.until_status(kind, lambda found: bool(those(found)), deadline_s))[0]

    found = told("slow GPU", 120)
    here = host_name()
    assert (found["rank"], found["node"]) == (1, here) and 0.3 < found["share"] < 0.8, found
    assert f"rank 1 (GPU 1 on {here}) is " in found["words"], found
    assert "for 20 s: its clock is 1,200 MHz, the others' 1,980 (HW thermal slowdown)" in found["words"], found
    ranks = json.loads(box.gangrun("status", "--runs-dir", str(box.runs), "--ranks", "--json").stdout)["ranks"]
    assert [one["gpu"]["gpu"] for one in ranks] == [0, 1, 2, 3]
    grown = [60 << 30]

    def grows(found: dict[str, Any]) -> bool:
        grown[0] += 5 << 20
        working(driver, gpu2__memory_used=grown[0])
        return any(one["kind"] == "GPU memory" for one in found["alerts"])

    full = next(one for one in box.until_status("GPU memory", grows, 120)["alerts"] if one["kind"] == "GPU memory")
    assert (full["rank"], full["per_s"] > 1e6) == (2, True) and f"rank 2 (GPU 2 on {here}) will be out" in full["words"]
    working(driver, **{f"gpu{n}__busy": 75 for n in range(3)})
    awaited = told("slow GPU", 120, rank=3)
    assert "it is busy for 96 % of the time, the others for 75 %" in awaited["words"], awaited
    working(driver, **{f"gpu{n}__busy": 30 for n in range(GPUS_COUNT)})
    idle = told("idle GPU", 120)
    assert "is busy for 30 % of the time" in idle["words"] and "and so are those of 3 other ranks" in idle["words"], (
        idle
    )
    kinds = {one["kind"] for one in box.status()["alerts"]}
    assert kinds == {"slow GPU", "slower", "GPU memory", "idle GPU"}
    box.may_end.touch()
    assert box.end() == 0, box.told()
    assert f"seen rank 1 on {here}: a GPU that slows all ranks down" in " ".join(box.explain().split())


# One rank on each node; in attempt 1 rank 1 has more work where it begins, and not where it is moved to.
ONE_IS_SLOW = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import os, time
    import torch, torch.distributed as dist
    import gangrun
    dist.init_process_group("gloo")
    slow, ends = dist.get_rank() == 1 and os.environ["GANGRUN_ATTEMPT"] == "1", torch.zeros(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gangrun.Checkpointer(os.environ["SAVES"], model=model, optimizer=optimizer, every_steps=10**9) as checkpointer:
        step = checkpointer.resume()
        while not ends.item():
            time.sleep(0.15 if slow else 0.05)
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.fill_(float(os.path.exists(os.environ["MAY_END"])))
            dist.all_reduce(ends)
            if checkpointer.step(step, loss=float(loss)).stop:
                break
            step += 1
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_whose_rank_is_faster_on_the_spare_is_told_as_slow_with_both_figures(box: Box) -> None:
    """Four nodes train; one falls silent. Of the other three only two can take part, so the third is a spare. In
    attempt 1 a step takes three times as long as in attempt 2, and the slow rank is the same.
    """
    options = ("--nodes", "4", "--min-nodes", "2", "--world-multiple-of", "2", "--local-hosts", "--trend-window", "20s")
    saves, nodes = box.work / "saves", [f"{host_name()}-{k}" for k in range(4)]
    box.start(
        *options, "--nproc-per-node", "1", "--race-stragglers", "--checkpoint-dir", saves, box.script(ONE_IS_SLOW),
        environment={"SAVES": str(saves)},
    )  # fmt: skip
    box.until_status("steps", lambda found: (found["step"] or 0) > 20, 90)
    signal_host(box, signal.SIGSTOP, nodes[3])
    box.until_status("the outcome", lambda found: "a step took" in found["reason"], 120)
    raced = box.status()
    assert [one["nodes"] for one in raced["attempts"]] == [nodes, nodes[:2], [nodes[0], nodes[2]]], raced
    assert [one["outcome"] for one in raced["attempts"]] == ["node silent", "moved", "running"], raced
    figures = re.search(
        rf"a step took (.+) s with rank 1 on {nodes[1]} and (.+) s with it on {nodes[2]}"
        rf" \(medians of (\d+) and (\d+) steps\): {nodes[1]} is slow",
        raced["reason"],
    )
    assert figures is not None, raced["reason"]
    before_s, after_s, before_count, after_count = map(float, figures.groups())
    assert 0.15 <= before_s > 1.5 * after_s, figures
    assert after_count >= before_count > 0, figures
    assert nodes[1] not in str(raced["excluded"])
    signal_host(box, signal.SIGCONT, nodes[3])
    assert box.end() == 0, box.told()
    explained = " ".join(box.explain().split())
    assert f"then the speed is compared with {figures[1]} s for a step on {nodes[1]}" in explained, explained
    assert figures[0] in explained, explained
