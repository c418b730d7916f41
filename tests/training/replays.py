"""Forked ranks compute each other's batches, for each (kind, world, odd ranks) that the argument names: odd ranks get
other gradients. Writes a line of JSON each: what rank 0 told gangrun, its warnings, and whether training was disturbed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gangrun
from gangrun.wire.progress import ProgressPage, read_findings
from tests.training.harness import forked


def build(kind: str, world: int, rank: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 7), nn.BatchNorm1d(7), nn.Dropout(0.5), nn.Linear(7, 1, bias=False))
    model.append(nn.Linear(1, 2).requires_grad_(requires_grad=False))
    if kind == "fsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    if kind == "one alone" and rank == 1:
        model.append(nn.Linear(2, 2))
    return model if kind == "one alone" else nn.parallel.DistributedDataParallel(model)


def main(rank: int, kind: str, world: int, odd: list[int], folder: Path) -> None:
    os.environ.update(GANGRUN_REPLAY_EVERY="3", GANGRUN_RUN="r", GANGRUN_PROGRESS_SLOT=str(folder / f"slot-{rank}"))
    ProgressPage(str(folder / f"slot-{rank}"), rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    model = build(kind, world, rank)
    steps: list[int] = []

    def compute(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        steps.append(step)
        loss = module(batch["x"]).sum() * batch["scale"]
        if kind == "not deterministic":
            torch.zeros(4).put_(torch.tensor([1]), torch.tensor([2.0]))
        return loss * 1.001 if rank in odd and step > 3 else loss

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check = gangrun.ReplayCheck(model, compute)
        torch.manual_seed(rank)
        for step in range(9):
            batch = {"x": torch.randn(5, 33), "scale": torch.tensor(2.0)}
            before = (
                {name: one.clone() for name, one in model.state_dict().items() if kind != "fsdp"},
                torch.get_rng_state(),
            )
            check.step(step, batch)
            after = model.state_dict()
            same = all(torch.equal(one, after[name]) for name, one in before[0].items())
            calm = (
                same
                and torch.equal(before[1], torch.get_rng_state())
                and all(p.grad is None for p in model.parameters())
            )
            assert calm, "training was disturbed"
            assert not torch.are_deterministic_algorithms_enabled()
    told = [str(one.message) for one in said if "--sdc-check" in str(one.message)]
    (folder / f"told-{rank}").write_text(json.dumps([steps, told]))
    dist.destroy_process_group()


for kind, world, odd in json.loads(sys.argv[1]):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert not any(forked(world, lambda rank: main(rank, kind, world, odd, folder)))  # noqa: B023 - it is over by then
        found = read_findings(str(folder / "slot-0"))
        assert not any(read_findings(str(folder / f"slot-{rank}")) for rank in range(1, world))
        steps, told = json.loads((folder / "told-0").read_text())
        assert all(json.loads((folder / f"told-{rank}").read_text())[1] == [] for rank in range(1, world))
        row = {"found": json.loads(found)["divergence"] if found else None, "steps": steps, "told": told}
        sys.stdout.write(f"{json.dumps(row)}\n")
