"""Ranks of several nodes read files of which each node has some: what came of it, a line for each rank.

    python sharing.py FOLDER CASES     (JSON: nodes of the ranks, and what each wants, as [file, begins, ends])

FOLDER/NODE holds the files of a node. A rank that wants null fails before it can say what it wants.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.training.memory import loading
from gangrun.training.memory.loading import ByteRange, CheckpointFiles, SharedFiles
from gangrun.training.ranks import RankGroup
from gangrun.training.state import CheckpointError
from tests.training.harness import forked
from tests.waiting import PATIENCE

loading.PIECE_BYTES = 1000
ENDS_WITHIN_S = 120.0 * PATIENCE


def rank_main(folder: Path, number: int, nodes: list[str], wanted: list[list[Any] | None], rank: int) -> None:
    faulthandler.dump_traceback_later(ENDS_WITHIN_S, exit=True)
    store = dist.FileStore(str(folder / f"store-{os.getppid()}-{number}"), len(nodes))  # an old one has old addresses
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(nodes))
    os.environ["LOCAL_RANK"] = str(nodes[:rank].count(nodes[rank]))
    found: dict[str, Any] = {}
    try:
        with SharedFiles(str(folder / nodes[rank]), RankGroup()) as files:
            found["read"] = _brought(files, wanted[rank])
            with files.opened(METADATA_NAME) as descriptor:
                found["metadata"] = os.pread(descriptor, 10**6, 0).hex()
    except CheckpointError as error:
        found["error"] = str(error)
    (folder / f"out-{number}-{rank}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _brought(files: CheckpointFiles, wanted: list[Any] | None) -> list[str]:
    if wanted is None:
        raise CheckpointError("the model is another one")
    pieces = [ByteRange(*one) for one in wanted]
    files.bring(pieces)
    return [_read(files, one) for one in pieces]


def _read(files: CheckpointFiles, one: ByteRange) -> str:
    with files.opened(one.file) as descriptor:
        return os.pread(descriptor, one.ends - one.begins, one.begins).hex()


def main() -> None:
    folder = Path(sys.argv[1])
    for number, (nodes, wanted) in enumerate(json.loads(sys.argv[2])):
        failed = forked(len(nodes), partial(rank_main, folder, number, nodes, wanted))
        assert not any(failed), failed
        told = [json.loads((folder / f"out-{number}-{rank}").read_text()) for rank in range(len(nodes))]
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
