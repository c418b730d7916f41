"""FSDP2 with sharded checkpoints and one line of gangrun: ``gangrun.step`` tells where training is.

Every rank writes its own shard of the model and optimizer into one torch DCP directory per checkpoint. With the step
reported, gangrun shows live progress, notices a script that starts over, and asks for a last checkpoint before a stop.
Try it:  gangrun run --nproc-per-node 2 --checkpoint-dir /tmp/ckpt train.py --steps 50 --checkpoint-dir /tmp/ckpt
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gangrun


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds per step")
    return parser.parse_args()


def build() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4)), nn.Linear(128, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": step}


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = 0
    if path := os.environ.get("GANGRUN_RESUME"):
        state = state_of(model, optimizer, 0)
        dcp.load(state, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        start = int(state["step"])
    if rank == 0:
        print(f"training {args.steps} steps on {world_size} ranks, from step {start}", flush=True)
    for step in range(start, args.steps):
        began = time.monotonic()
        generator = torch.Generator().manual_seed(1_000_003 * step + rank)
        inputs = torch.randn(16, 128, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :8].sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = step + 1
        gangrun.step(done, loss=loss.item())
        if done % args.checkpoint_every == 0:
            dcp.save(state_of(model, optimizer, done), checkpoint_id=args.checkpoint_dir / f"step-{done}")
        time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
    if rank == 0:
        print(f"finished at step {args.steps}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
