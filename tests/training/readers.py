"""Forked ranks choose among checkpoints together; each says, as a line of JSON, what was chosen and what it read.

Arguments: a new file for the answers, how many ranks, and, as often as wanted, a folder of checkpoints and which of the
ranks cannot open a shard (-1: none).
"""

from __future__ import annotations

import errno
import json
import os
import sys
from functools import partial

import torch.distributed as dist

from gangrun.training.load import find
from gangrun.training.ranks import RankGroup
from tests.training.harness import forked


def rank_main(directory: str, out: str, world: int, blind: int, number: int, rank: int) -> None:
    store = dist.FileStore(f"{out}.store{number}", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    seen: list[str] = []
    preadv, opened = os.preadv, os.open

    def watched_preadv(descriptor, buffers, offset):
        seen.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(directory + "/"))
        return preadv(descriptor, buffers, offset)

    def blind_open(path, *args):
        if rank == blind and str(path).endswith(".distcp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *args)

    for name, one in (("preadv", watched_preadv), ("open", blind_open)):
        setattr(os, name, one)
    point = find(directory, RankGroup(), "0123456789abcdef")
    chosen = point.step if point else -1
    row = json.dumps({"phase": number, "rank": rank, "chosen": chosen, "read": sorted(set(seen))}) + "\n"
    log = opened(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, row.encode())
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    out, world, folders = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    for number, (folder, blind) in enumerate(zip(folders[::2], folders[1::2], strict=True)):
        failed = forked(world, partial(rank_main, folder, out, world, int(blind), number))
        if any(failed):
            sys.exit(f"phase {number} failed: {failed}")


if __name__ == "__main__":
    main()
