"""FSDP2 written for torchrun, in the manner of torch's own examples: full state dicts in its own, numbered folders."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

MODEL_CHECKPOINT = "model_state_dict.pt"
OPTIM_CHECKPOINT = "optim_state_dict.pt"


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.last = max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=None)

    def is_empty(self):
        return self.last is None

    def load_model(self, model):
        path = f"{self.folder}/{self.last}/{MODEL_CHECKPOINT}"
        full = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model=model, model_state_dict=full, options=options)

    def load_optim(self, model, opt):
        path = f"{self.folder}/{self.last}/{OPTIM_CHECKPOINT}"
        full = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_optimizer_state_dict(model=model, optimizers=opt, optim_state_dict=full, options=options)

    def save(self, number, model, optim):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model_state = get_model_state_dict(model=model, options=options)
        optim_state = get_optimizer_state_dict(model=model, optimizers=optim, options=options)
        if dist.get_rank() == 0:
            new = f"{self.folder}/{number}"
            os.makedirs(new + ".tmp", exist_ok=True)
            torch.save(model_state, f"{new}.tmp/{MODEL_CHECKPOINT}")
            torch.save(optim_state, f"{new}.tmp/{OPTIM_CHECKPOINT}")
            os.rename(new + ".tmp", new)
            print(f"saved {number}")
        dist.barrier()


def main(args):
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    vocab, dim, batch, length = 64, 32, 4, 8
    blocks = [nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(vocab, dim), *blocks, nn.Linear(dim, vocab))
    for layer in blocks:
        fully_shard(layer)
    fully_shard(model)
    assert isinstance(next(model.parameters()), DTensor)
    checkpointer = Checkpointer(args.folder)
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    done = 0
    if checkpointer.last is not None:
        checkpointer.load_model(model)
        checkpointer.load_optim(model, optim)
        done = checkpointer.last
        print(f"Resuming from {done}")
    for number in range(done + 1, args.iterations + 1):
        generator = torch.Generator().manual_seed(1000 * number + rank)
        x = torch.randint(0, vocab, (batch, length), generator=generator)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()
        time.sleep(0.1)
        if number % args.save_every == 0:
            checkpointer.save(number, model, optim)
    if rank == 0:
        print(f"all {args.iterations} iterations done")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PyTorch FSDP2 example")
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=2)
    main(parser.parse_args())
