"""Hosts are powered off between two saves to disk: their part of the last step in memory is with the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangrun.core.wording import counted
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import until

# FSDP2, a rank a host. Ranks never save to the disk; every third step goes to memory. In the first attempt
# all wait after step 12, of which 11 was kept, until somebody breaks something.
TRAIN = """
import hashlib, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun

saves, folder, waits = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "waits"
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, attempt = dist.get_rank(), int(os.environ["GANGRUN_ATTEMPT"])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 4))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = gangrun.GlobalBatchSampler(64, 64, seed=3)
inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
torch.manual_seed(100 + rank)
with gangrun.Checkpointer(
    saves, model=model, optimizer=optimizer, data=data, interval=10**6, memory_interval=3
) as ckpt:
    for step in range(ckpt.resume(), 20):
        optimizer.zero_grad()
        model(inputs[next(iter(data))]).square().mean().backward()
        optimizer.step()
        ckpt.step(step)
        while ckpt.saving:
            time.sleep(0.001)
        if waits and attempt == 0 and step == 12:
            (folder / f"waits-{rank}").touch()
            while True:
                time.sleep(0.1)
found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.full_tensor().numpy().tobytes())
if rank == 0:
    (folder / "final").write_text(found.hexdigest())
dist.destroy_process_group()
"""


def train(run: Run, *options: str, waits: bool, hosts_count: int = 2) -> None:
    """A rank a host, all waiting after step 12 if they are to."""
    saves = run.saves_made()
    run.submit("-N", str(hosts_count), "--exclusive", "--checkpoint-dir", saves, "--memory-checkpoints", *options,
               run.script(TRAIN), saves, run.steps, "waits" if waits else "goes on")  # fmt: skip


def calm(folder: Path, ranks_count: int) -> subprocess.Popen[str]:
    """As many ranks on this machine, which nobody disturbs."""
    (folder / "steps").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "gangrun", "run", "--nproc-per-node", str(ranks_count), "--no-health", "train.py"]
    environment = {**os.environ, "GANGRUN_RUNS_DIR": str(folder / "runs"), "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [*command, "saves", "steps", "goes on"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("hosts_count", "protection", "lost_count"),
    [(2, "copy", 1), (4, "3+1", 1), (4, "2+2", 2)],
    ids=["a copy", "parity of one", "parity of two"],
)
def test_hosts_that_lost_their_power_cost_no_step_that_was_in_memory(
    cluster: Cluster, run: Run, tmp_path: Path, hosts_count: int, protection: str, lost_count: int
) -> None:
    options = ("--spares", str(lost_count), "--memory-protection", protection)
    train(run, *options, waits=True, hosts_count=hosts_count)
    with calm(tmp_path / "calm", hosts_count) as other:
        until(lambda: len(list(run.steps.glob("waits-*"))) == hosts_count, 180, lambda: f"all at step 12\n{run.told()}")
        assert run.saved() == []
        (job,) = run.jobs()
        lost = sorted({host for host, _ in run.ranks().values()} - {job["BatchHost"]})[:lost_count]
        for host in lost:
            cluster.power_off(host)
        status = run.end(deadline_s=240)
        assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 11]
        told = run.explain()
        assert "brought to the disk from the memory of" in told, told
        again = f"{counted(lost_count, 'file')} of lost nodes made again of parity"
        assert (again in told) == (protection != "copy"), told
        for host in lost:
            cluster.tool("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test")
        said, _ = other.communicate(timeout=240)
        assert other.returncode == 0, said
        assert (run.steps / "final").read_text() == (tmp_path / "calm" / "steps" / "final").read_text()
    cluster.assert_clean(20)
