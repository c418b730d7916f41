"""Run as one of two gloo ranks by the tests: saves an FSDP2-style sharded state with torch's own ``dcp.save``."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def main(folder: str, rank: int) -> None:
    store = dist.FileStore(os.path.join(folder, "rendezvous"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    state = {
        "even": distribute_tensor(torch.randn(64, 33), mesh, [Shard(0)]),
        "uneven": distribute_tensor(torch.randn(7, 5), mesh, [Shard(0)]),
        "one_row": distribute_tensor(torch.randn(1, 9), mesh, [Shard(0)]),  # the second rank's shard is empty
        "columns": distribute_tensor(torch.randn(6, 11), mesh, [Shard(1)]),
        "everywhere": distribute_tensor(torch.randn(3), mesh, [Replicate()]),
        "plain": torch.arange(10),
        "step": 40,
        f"random_{rank}": torch.get_rng_state(),
    }
    dcp.save(state, checkpoint_id=os.path.join(folder, "step-40"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
