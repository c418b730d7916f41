"""A host is powered off between two saves to disk: its part of the last step in memory is in another host's memory."""

from __future__ import annotations

import pytest

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


def train(run: Run, *options: str, waits: bool) -> None:
    saves = run.saves_made()
    run.submit("-N", "2", "--exclusive", "--checkpoint-dir", saves, "--memory-checkpoints", *options,
               run.script(TRAIN), saves, run.steps, "waits" if waits else "goes on")  # fmt: skip


@pytest.mark.timeout(900)
def test_a_host_that_lost_its_power_costs_no_step_that_was_in_memory(cluster: Cluster, run: Run) -> None:
    cluster.reconfigure(SlurmdTimeout=600)
    other = Run(cluster, "never interrupted")
    train(run, "--spares", "1", waits=True)
    train(other, waits=False)
    until(lambda: len(list(run.steps.glob("waits-*"))) == 2, 120, lambda: f"both ranks at step 12\n{run.told()}")
    assert run.saved() == []
    (job,) = run.jobs()
    lost = next(host for host, _ in run.ranks().values() if host != job["BatchHost"])
    cluster.power_off(lost)
    status = run.end(deadline_s=180)
    assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 11]
    told = run.explain()
    assert "brought to the disk from the memory of" in told, told
    cluster.tool("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    assert other.end(deadline_s=180)["restarts"] == 0
    assert (run.steps / "final").read_text() == (other.steps / "final").read_text()
    cluster.assert_clean(20)
