"""FSDP2 whose whole state is saved in the background and resumed by any number of ranks: ``gangrun.Checkpointer``.

Three lines do it: make it, ask it where to go on, and tell it each step. Weights, moments, the data's position and
every rank's random numbers go into one ordinary torch DCP directory per checkpoint, with a manifest that proves it
whole.
Try it:  gangrun run --nproc-per-node 2 --checkpoint-dir /tmp/ckpt train.py --steps 50 --checkpoint-dir /tmp/ckpt
It runs as it is under torchrun too.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import gangrun


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps; leave it to gangrun with 0")
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds per step")
    return parser.parse_args()


def build() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4)), nn.Linear(128, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def dataset() -> TensorDataset:
    inputs = torch.randn(1000, 128, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :8].sin())


def batches(loader: DataLoader):
    while True:
        yield from loader  # the sampler knows where the epoch stands


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = dataset()
    sampler = gangrun.GlobalBatchSampler(data, global_batch=16 * dist.get_world_size())
    with gangrun.Checkpointer(
        args.checkpoint_dir,
        model=model,
        optimizer=optimizer,
        data=sampler,
        every_steps=args.checkpoint_every or None,
        keep=5,
    ) as ckpt:
        start = ckpt.resume()
        if dist.get_rank() == 0:
            print(f"training {args.steps} steps on {dist.get_world_size()} ranks, from step {start}", flush=True)
        loader = batches(DataLoader(data, batch_sampler=sampler))
        for step in range(start, args.steps):
            began = time.monotonic()
            inputs, wanted = next(loader)
            loss = nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if ckpt.step(step, loss=loss.item()).stop:
                break
            time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
        else:
            if dist.get_rank() == 0:
                print(f"finished after step {args.steps - 1}, which is saved next", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
