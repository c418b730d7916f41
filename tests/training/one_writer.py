"""Two forked ranks save while only rank 1 cannot write; each says, as a line of JSON, what it was told.

Arguments: the directory of checkpoints and a new file for the answers. The last of the faults is the kernel's own.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gangrun
from gangrun.wire.saves import decode
from tests.training.harness import forked
from tests.waiting import until

WORLD = 2
FAULTS = (errno.ENOSPC, errno.EIO, errno.EFBIG)
LIMIT_BYTES = 256 * 1024  # less than what either rank has to write, and more than anything else here


@contextmanager
def fault(code: int, here: bool) -> Iterator[None]:
    """Whatever the saver writes to a file meanwhile fails with that."""
    real, limits = os.writev, resource.getrlimit(resource.RLIMIT_FSIZE)

    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    if here and code == errno.EFBIG:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, limits[1]))
    elif here:
        os.writev = failing
    try:
        yield
    finally:
        os.writev = real
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def committed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))


def rank_main(directory: Path, out: Path, rank: int) -> None:
    store = dist.FileStore(f"{out}.store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    torch.manual_seed(rank)
    parts = nn.ModuleList(nn.Linear(400, 400) for _ in range(4))
    rows = []
    with gangrun.Checkpointer(directory, model=parts, every_steps=1) as ckpt:
        for at, code in enumerate(FAULTS):
            failing, after = 2 * at, 2 * at + 1
            with fault(code, rank == 1):
                ckpt.step(failing)
                until(lambda: not ckpt.saving, 120, "the save to end")
            dist.barrier()  # rank 0 tells people before its own save ends, which need not be the first to end
            news = decode((directory / ".gangrun" / "run-1" / "saves.json").read_bytes())
            stands = committed(directory)
            dist.barrier()  # nobody looks too late
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                ckpt.step(after)
            until(lambda: not ckpt.saving, 120, "the save to end")
            assert news is not None
            rows.append(
                {
                    "rank": rank,
                    "failing": failing,
                    "told": [str(one.message) for one in told if one.category is gangrun.CheckpointWarning],
                    "status": [news.failed_step, news.failed_why, news.failures_count],
                    "stood": stands,
                    "then": committed(directory),
                    "left": [str(path) for path in directory.glob(".gangrun/*/*/*/saving-*")],
                }
            )
            dist.barrier()
        with fault(errno.ENOSPC, rank == 1):
            try:
                ckpt.save(2 * len(FAULTS), wait=True)
            except gangrun.CheckpointError as error:
                rows.append({"rank": rank, "failing": 2 * len(FAULTS), "raised": str(error)})
        ckpt.step(2 * len(FAULTS))
    with out.open("a") as log:
        log.write("".join(json.dumps(row) + "\n" for row in rows))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    os.environ.update({"GANGRUN_RUN": "run-1", "GANGRUN_TERM": "1", "GANGRUN_ATTEMPT": "0"})
    failed = forked(WORLD, lambda rank: rank_main(Path(sys.argv[1]), Path(sys.argv[2]), rank))
    if any(failed):
        sys.exit(f"ranks ended with {failed}")


if __name__ == "__main__":
    main()
