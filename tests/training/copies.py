"""Saves once on four forked ranks, which compare their copies, for each (kind, rank) that its argument names: the rank
has one bit flipped, -1: none. Writes what the manifest and rank 0 say, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gangrun
from gangrun.checkpoint.formats.manifest import read_manifest
from gangrun.wire.progress import ProgressPage, read_findings
from tests.training.harness import forked

WORLD = 4


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 7), nn.BatchNorm1d(7), nn.Linear(7, 1, bias=False))
    with torch.no_grad():
        model[0].bias[2] = float("nan")
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def main(rank: int, kind: str, odd: int, folder: Path) -> None:
    os.environ.update(GANGRUN_COMPARES_SAVES="1", GANGRUN_RUN="r", GANGRUN_PROGRESS_SLOT=str(folder / f"slot-{rank}"))
    ProgressPage(str(folder / f"slot-{rank}"), rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with gangrun.Checkpointer(folder / "saves", model=model, optimizer=optimizer, every_steps=10) as saver:
        torch.manual_seed(rank)
        model(torch.randn(5, 33)).sum().backward()
        optimizer.step()
        if rank == odd:
            one = next(model.parameters())
            local = one.to_local() if hasattr(one, "to_local") else one.data
            local.view(torch.int32).view(-1)[11] ^= 1 << 31
        saver.save(3, wait=True)


for kind, odd in json.loads(sys.argv[1]):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert not any(forked(WORLD, lambda rank: main(rank, kind, odd, folder)))  # noqa: B023 - it is over by then
        found = read_findings(str(folder / "slot-0"))
        others = [read_findings(str(folder / f"slot-{rank}")) for rank in range(1, WORLD)]
        assert others == [b""] * 3
        said = read_manifest(str(folder / "saves" / "step-3")).replicas
        row = {"manifest": said, "found": json.loads(found)["divergence"] if found else None}
        sys.stdout.write(f"{json.dumps(row)}\n")
