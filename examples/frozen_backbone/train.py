"""Fine-tuning with a frozen backbone and small adapters (LoRA) under DDP: what is frozen is written to disk once.

Nothing is said to ``gangrun.Checkpointer`` about it: it compares bytes. Each checkpoint is a whole torch DCP directory;
the frozen files in it are hard links to those of the one before, and every fifth time they are written anew.
Try it:  gangrun run --nproc-per-node 2 --checkpoint-dir /tmp/ckpt train.py --steps 50 --checkpoint-dir /tmp/ckpt
At its end it shows what each checkpoint added to the disk; ``du -sh /tmp/ckpt/step-*`` says the same.
"""

import argparse
import gc
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gangrun


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps")
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds per step")
    return parser.parse_args()


class Adapted(nn.Module):
    """A frozen layer and what is learnt beside it."""

    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.frozen(x) + self.up(self.down(x)))


def shown(directory: Path) -> None:
    """What each checkpoint holds, and what of it is not an older one's too."""
    known: set[int] = set()
    for path in sorted(directory.glob("step-*"), key=lambda path: int(path.name.partition("-")[2])):
        files = [one.stat() for one in path.iterdir()]
        new = sum(one.st_size for one in files if one.st_ino not in known)
        known.update(one.st_ino for one in files)
        print(f"{path.name}: {sum(one.st_size for one in files):,} bytes, {new:,} of them new on the disk", flush=True)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(Adapted(512) for _ in range(8)), nn.Linear(512, 8)))
    learnt = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=1e-3)
    inputs = torch.randn(1000, 512, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs[:, :8].sin())
    sampler = gangrun.GlobalBatchSampler(data, global_batch=16 * dist.get_world_size())
    with gangrun.Checkpointer(
        args.checkpoint_dir,
        model=model,
        optimizer=optimizer,
        data=sampler,
        every_steps=args.checkpoint_every,
        full_every=5,
    ) as ckpt:
        start = ckpt.resume()
        if dist.get_rank() == 0:
            print(f"training {args.steps} steps on {dist.get_world_size()} ranks, from step {start}", flush=True)
        loader = iter(())
        for step in range(start, args.steps):
            began = time.monotonic()
            batch = next(loader, None)
            if batch is None:  # the next epoch; the sampler knows where it stands
                loader = iter(DataLoader(data, batch_sampler=sampler))
                batch = next(loader)
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if ckpt.step(step, loss=loss.item()).stop:
                break
            time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
    if dist.get_rank() == 0:
        shown(args.checkpoint_dir)


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    train(args)
    gc.collect()  # the model goes before its process group: see ddp_minimal
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
