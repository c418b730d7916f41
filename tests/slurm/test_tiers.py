"""Hosts are powered off between two saves to disk: their part of the last step in memory is with the others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import until

# FSDP2, a rank a host. Ranks never save to the disk; every third step goes to memory. In each attempt that has a step
# to wait after, all do so until somebody breaks something: after step 12, 11 was kept, and after step 15, 14.
TRAIN = """
import hashlib, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun

saves, folder, waits = sys.argv[1], Path(sys.argv[2]), [int(step) for step in sys.argv[3:]]
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
    saves, model=model, optimizer=optimizer, data=data, every_steps=10**6, memory_every_steps=3
) as ckpt:
    for step in range(ckpt.resume(), 20):
        optimizer.zero_grad()
        model(inputs[next(iter(data))]).square().mean().backward()
        optimizer.step()
        ckpt.step(step)
        while ckpt.saving:
            time.sleep(0.001)
        if [step] == waits[attempt : attempt + 1]:
            (folder / f"waits-{attempt}-{rank}").touch()
            while True:
                time.sleep(0.1)
found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.full_tensor().numpy().tobytes())
if rank == 0:
    (folder / "final").write_text(found.hexdigest())
dist.destroy_process_group()
os._exit(0)  # as in tests/local/test_memory_checkpoints.py: gloo's threads may abort an interpreter at its end
"""


def train(run: Run, *options: str, waits: tuple[int, ...] = (12,), hosts_count: int = 2) -> None:
    """A rank a host; after which step all wait, in the first attempt and in those that follow."""
    saves = run.saves_made()
    run.submit("-N", str(hosts_count), "--exclusive", "--checkpoint-dir", saves, "--memory-checkpoints", *options,
               run.script(TRAIN), saves, run.steps, *map(str, waits))  # fmt: skip


def wait(run: Run, attempt: int, hosts_count: int) -> None:
    """Until all ranks of it wait."""
    there = f"waits-{attempt}-*"
    until(lambda: len(list(run.steps.glob(there))) == hosts_count, 180, lambda: f"all of {attempt}\n{run.told()}")


def calm(folder: Path, ranks_count: int) -> subprocess.Popen[str]:
    """As many ranks on this machine, which nobody disturbs."""
    (folder / "steps").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "gangrun", "run", "--nproc-per-node", str(ranks_count), "--no-health", "train.py"]
    environment = {**os.environ, "GANGRUN_RUNS_DIR": str(folder / "runs"), "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [*command, "saves", "steps"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_two_hosts_that_lost_their_power_cost_no_step_that_was_in_memory(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    train(run, "--spares", "2", "--memory-protection", "2+2", hosts_count=4)
    with calm(tmp_path / "calm", 4) as other:
        wait(run, 0, 4)
        assert run.saved() == []
        (job,) = run.jobs()
        lost = sorted({host for host, _ in run.ranks().values()} - {job["BatchHost"]})[:2]
        for host in lost:
            cluster.power_off(host)
        status = run.end(deadline_s=240)
        assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 11]
        told = run.explain()
        assert "written to disk from the memory of" in told, told
        assert "2 files of lost nodes rebuilt from parity" in told, told
        cluster.declare_down(*lost)
        said, _ = other.communicate(timeout=240)
        assert other.returncode == 0, said
        assert (run.steps / "final").read_text() == (tmp_path / "calm" / "steps" / "final").read_text()
    cluster.assert_clean(20)


def test_neither_a_rank_that_dies_nor_a_lost_host_with_a_spare_costs_a_step_or_a_way_through_the_disk(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    """No host has the whole step. Ranks send each other what is missing: first where they were, then to the spare."""
    train(run, "--spares", "1", waits=(12, 15), hosts_count=3)
    with calm(tmp_path / "calm", 3) as other:
        wait(run, 0, 3)
        os.kill(run.ranks()[1][1], signal.SIGKILL)
        wait(run, 1, 3)
        (job,) = run.jobs()
        lost = min({host for host, _ in run.ranks().values()} - {job["BatchHost"]})
        cluster.power_off(lost)
        status = run.end(deadline_s=240)
        assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 11, 14]
        told = run.explain()
        assert len(re.findall(r"resuming from step 1[14], which n\[\S+\] together have in memory", told)) == 2, told
        cluster.declare_down(lost)
        said, _ = other.communicate(timeout=240)
        assert other.returncode == 0, said
        assert (run.steps / "final").read_text() == (tmp_path / "calm" / "steps" / "final").read_text()
    cluster.assert_clean(20)
