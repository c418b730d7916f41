"""A host is frozen and comes back: the run shrinks and grows, and trains as if nothing had happened.

Real torch: FSDP2 shards that gangrun.Checkpointer saves on three ranks and loads on two, and the other way round. Each
rank writes down which samples it trained on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.harness import Box

pytestmark = pytest.mark.no_warm

Row = tuple[list[int], float, int, list[str]]  # samples, loss, number of ranks, further arguments
Rows = dict[int, dict[int, list[Row]]]  # step -> attempt -> of each rank
SAMPLES, GLOBAL_BATCH, STEPS = 60, 12, 1_000_000
# The gradient is the mean over the global batch, whatever the number of ranks: FSDP takes the mean over ranks.
TRAIN = """
import gc; gc.disable()  # torch is imported in three quarters of the time
import json, os, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun
folder, steps, pace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
more = sys.argv[4:]
dist.init_process_group("gloo")
rank, world, attempt = dist.get_rank(), dist.get_world_size(), os.environ.get("GANGRUN_ATTEMPT", "0")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 23), torch.nn.Tanh(), torch.nn.Linear(23, 3)).double()
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(SAMPLES, 7, generator=torch.Generator().manual_seed(1)).double()
data = gangrun.GlobalBatchSampler(SAMPLES, GLOBAL_BATCH, seed=3)
log = open(f"{folder}/rows-{attempt}-{rank}", "a", buffering=1)
def batches():
    while True:
        yield from data
with gangrun.Checkpointer(f"{folder}/ckpt", model=model, optimizer=optimizer, data=data, every_steps=5) as ckpt:
    start = ckpt.resume()
    for step, ids in zip(range(start, steps), batches()):
        loss = model(inputs[ids]).square().mean(dim=1).sum() / GLOBAL_BATCH
        optimizer.zero_grad()
        (loss * world).backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        log.write(json.dumps([step, ids, float(total), world, more]) + "\\n")
        time.sleep(pace)
        last = os.path.exists(os.environ.get("MAY_END") or "/")
        if ckpt.step(step, loss=float(total)).stop or ends(step, last):
            break
dist.destroy_process_group()
os._exit(0)  # torch may abort as the interpreter ends, under any launcher
"""
# All ranks leave at the same step: the first at which the file was there for all.
ENDS = """
def ends(step, last):
    flag = torch.tensor([int(last)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)
"""


def script_of(box: Box) -> Path:
    text = TRAIN.replace("SAMPLES", str(SAMPLES)).replace("GLOBAL_BATCH", str(GLOBAL_BATCH))
    return box.script(text.replace("def batches", f"{ENDS}\ndef batches"))


def rows_of(folder: Path) -> Rows:
    """What ranks wrote."""
    found: Rows = {}
    for path in folder.glob("rows-*"):
        _, attempt, _ = path.name.split("-")
        for line in path.read_text().splitlines():
            step, *row = json.loads(line)
            found.setdefault(step, {}).setdefault(int(attempt), []).append(tuple(row))
    return found


def signal_host(box: Box, number: int, node: str) -> None:
    """All processes of one local host: its warden and what that started."""
    pids = [pid for pid in box.process_ids("node/warden.py") if f'"{node}"'.encode() in cmdline(pid)]
    children: dict[int, list[int]] = {}
    for pid in box.left():
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(pid)
    assert len(pids) == 1, pids
    for pid in pids:
        pids.extend(children.get(pid, ()))
        os.kill(pid, number)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_host_that_is_lost_and_returns_costs_no_sample_and_changes_no_weight(box: Box) -> None:
    folder = box.work / "out"
    folder.mkdir()
    script = script_of(box)
    box.start(
        "--nodes", "3", "--local-hosts", "--nproc-per-node", "1", "--min-nodes", "2", "--grow-every", "1s",
        "--on-resize", "--of {world_size}/{full_world_size}", "--checkpoint-dir", folder / "ckpt", "--no-health",
        script, folder, str(STEPS), "0.05",
    )  # fmt: skip

    def stepped(world: int, attempt: int, count: int) -> bool:
        rows = rows_of(folder).values()
        return sum(1 for one in rows if attempt in one and one[attempt][0][2] == world) > count

    box.until(lambda: stepped(3, 0, 12), "two checkpoints of three ranks")
    node = box.status()["nodes"][2]
    signal_host(box, signal.SIGSTOP, node)
    box.until(lambda: stepped(2, 1, 12), "two checkpoints of two ranks")
    signal_host(box, signal.SIGCONT, node)
    box.until(lambda: stepped(3, 2, 12), "three ranks again")
    assert box.end(60) == 0, box.told()

    status, story = box.status(), box.explain()
    assert [one["outcome"] for one in status["attempts"]] == ["node silent", "grown", "succeeded"]
    assert status["excluded"] == []
    for words in ("so it is used again", "the run grows from 2 to 3 ranks", "to use more nodes", "2 ranks (of 3)"):
        assert words in story, story
    rows = rows_of(folder)
    audit(rows)
    assert losses_differ_by(box, folder, rows) < 1e-9


def audit(rows: Rows) -> None:
    """Each epoch has each sample once. Only steps after the last checkpoint before the loss were done again, alike."""
    steps = sorted(rows)
    assert steps == list(range(len(steps)))
    seen: list[int] = []
    for step in steps:
        tries = {attempt: sorted(i for ids, *_ in ranks for i in ids) for attempt, ranks in rows[step].items()}
        counts = {attempt: (len(ranks), ranks[0][2]) for attempt, ranks in rows[step].items()}
        whole = {attempt: ids for attempt, ids in tries.items() if counts[attempt][0] == counts[attempt][1]}
        assert len({tuple(ids) for ids in whole.values()}) == 1, f"step {step} was done again on other samples"
        assert all(len(ids) == GLOBAL_BATCH for ids in whole.values()), "the global batch is kept"
        seen += whole[max(whole)]
    again = [step for step in steps if len(rows[step]) > 1]
    grown = [step for step in again if {1, 2} <= rows[step].keys()]  # a regular save may come before the one asked for
    assert len(again) - len(grown) <= 10 and len(grown) <= 5, f"done again: {again}"
    for at in range(0, len(seen) - SAMPLES + 1, SAMPLES):
        assert sorted(seen[at : at + SAMPLES]) == list(range(SAMPLES)), f"epoch {at // SAMPLES}"
    sizes = {one[2] for tries in rows.values() for ranks in tries.values() for one in ranks}
    extra = {(one[2], tuple(one[3])) for tries in rows.values() for ranks in tries.values() for one in ranks}
    assert sizes == {2, 3} and extra == {(3, ()), (2, ("--of", "2/3"))}, "the script is told its size when it differs"


def losses_differ_by(box: Box, folder: Path, rows: Rows) -> float:
    """The largest difference of a loss, which all weights bear on, from one process that nothing disturbed."""
    calm = box.work / "calm"
    calm.mkdir()
    environment = {**os.environ, "PYTHONPATH": box.environment["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "MAY_END": "/never"}
    command = [sys.executable, box.work / "train.py", calm, str(len(rows)), "0"]
    subprocess.run(list(map(str, command)), env=environment, check=True, cwd=box.work, timeout=120, capture_output=True)
    undisturbed = rows_of(calm)
    losses = [(rows[step][max(rows[step])][0][1], undisturbed[step][0][0][1]) for step in sorted(rows)]
    assert losses[-1][0] < 0.5 * losses[0][0], "it learns"
    return max(abs(one - other) for one, other in losses)
