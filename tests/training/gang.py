"""Trains a small model on forked ranks, as often as its argument says; torch is imported once for all of them.

Each phase is a dictionary: world, steps, kind ("fsdp" or "ddp"), directory, and after which step a rank is killed.
Results are lines of JSON, one a rank; digests of the whole state are rank 0's.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import signal
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gangrun
from tests.training.harness import forked

SAMPLES = 101
GLOBAL_BATCH = 12


def build(kind: str, world: int) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(37, 61), nn.ReLU(), nn.Dropout(0.1), nn.Linear(61, 5, bias=False))
    model.append(nn.Linear(5, 4000, bias=False).requires_grad_(requires_grad=False))
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (world,))
    for layer in (model[0], model[3], model[4]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of the whole weights and moments, whatever rank holds what."""
    states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    found = hashlib.sha256()
    for name, value in sorted(leaves(states), key=lambda pair: pair[0]):
        found.update(name.encode())
        found.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


def leaves(value, at=""):
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{at}.{key}")
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from leaves(one, f"{at}.{i}")
    else:
        yield at, value


def train(phase: dict, rank: int) -> dict:
    world, folder = phase["world"], phase["directory"]
    dist.init_process_group("gloo", store=dist.FileStore(phase["store"], world), rank=rank, world_size=world)
    model = build(phase["kind"], world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    data = gangrun.GlobalBatchSampler(SAMPLES, GLOBAL_BATCH, seed=3)
    inputs = torch.randn(SAMPLES, 37, generator=torch.Generator().manual_seed(1))
    seen, loads = [], ""
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    np.random.seed(100 + rank)
    with gangrun.Checkpointer(
        folder, model=model, optimizer=optimizer, scheduler=scheduler, data=data, every_steps=phase.get("interval", 3)
    ) as ckpt:
        start = ckpt.resume()
        loads = digest(model, optimizer)
        loader = iter(torch.utils.data.DataLoader(range(SAMPLES), batch_sampler=data))
        for step in range(start, phase["steps"]):
            batch = next(loader, None)
            if batch is None:
                loader = iter(torch.utils.data.DataLoader(range(SAMPLES), batch_sampler=data))
                batch = next(loader)
            loss = model(inputs[batch]).square().mean() * (1 + random.random() + np.random.rand())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            seen.append([step, batch.tolist()])
            ckpt.step(step, loss.item())
            if step == phase.get("kill_after"):
                ckpt.save(step, wait=True)
                if rank == world - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        ckpt.save(phase["steps"] - 1, wait=True)
    ends = digest(model, optimizer)
    del model, ckpt
    gc.collect()  # DDP goes before its process group does: freed later, it may wait for gloo's threads forever
    dist.destroy_process_group()
    return {"start": start, "loads": loads, "ends": ends, "seen": seen}


def main() -> None:
    torch.set_num_threads(1)

    def rank_main(rank: int) -> None:
        row = {"world": phase["world"], "rank": rank, **train(phase, rank)}
        with open(phase["out"], "a") as out:
            out.write(json.dumps(row) + "\n")

    for number, phase in enumerate(json.loads(sys.argv[1])):
        phase["store"] = f"{phase['out']}.store{number}"
        failed = forked(phase["world"], rank_main)
        if any(failed) and "kill_after" not in phase:
            sys.exit(f"phase {number} failed: {failed}")


if __name__ == "__main__":
    main()
