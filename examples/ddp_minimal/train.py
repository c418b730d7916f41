"""A small DDP training script as one writes it for torchrun; gangrun needs nothing of it.

It saves a plain torch DCP directory every few steps and, when started again, resumes from the one that gangrun names in
GANGRUN_RESUME. Each step's batch is a function of (step, rank), so a resumed run sees the same data as an undisturbed
one. Try it:  gangrun run --nproc-per-node 2 --checkpoint-dir /tmp/ckpt train.py --steps 50 --checkpoint-dir /tmp/ckpt
"""

import argparse
import gc
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds per step")
    parser.add_argument("--final", type=Path, help="where rank 0 writes the digest of the final weights")
    return parser.parse_args()


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs, inputs[:, :8].sin()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, directory: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=directory / f"step-{step}")


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    path = os.environ.get("GANGRUN_RESUME")
    if not path:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def train(args: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # DDP regroups its buckets after the first step, which changes the order of additions and so the last bits of a sum.
    # With find_unused_parameters it does not, and a resumed run equals an undisturbed one bit for bit.
    model = DistributedDataParallel(build(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = resume(model, optimizer)
    if rank == 0:
        print(f"training {args.steps} steps on {world_size} ranks, from step {start}", flush=True)
    for step in range(start, args.steps):
        began = time.monotonic()
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = step + 1
        if rank == 0 and done % 5 == 0:
            print(f"step {done} loss {loss.item():.4f}", flush=True)
        if done % args.checkpoint_every == 0:
            save(model, optimizer, done, args.checkpoint_dir)
        time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
    if rank == 0 and args.final:
        args.final.write_text(digest(model.module) + "\n")
    dist.barrier()


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    train(args)
    # The model goes first, whoever still refers to it in a circle: one that outlives its process group joins gloo's
    # threads while it holds the interpreter's lock, for which such a thread may be waiting. That rank would never end.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
