"""Trains on ``DataStreams`` of real ``StatefulDataLoader``s on forked ranks; its argument is a list of phases, each
(ranks, step after which all of them die or -1, workers of each loader). Writes what was trained on, JSON by line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

import gangrun
from tests.training.harness import forked

SAMPLES_COUNT, STREAMS_COUNT, STEPS_COUNT = 96, 4, 24


def main(rank: int, world: int, dies_after: int, workers: int, folder: Path, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/{rendezvous}", rank=rank, world_size=world)
    model = torch.nn.Linear(1, 1)

    def make(stream: int, streams: int) -> StatefulDataLoader:
        part = torch.utils.data.Subset(range(SAMPLES_COUNT), range(stream, SAMPLES_COUNT, streams))
        chance = torch.Generator().manual_seed(stream)  # what loaders draw must not depend on the number of ranks
        return StatefulDataLoader(part, batch_size=2, shuffle=True, generator=chance, num_workers=workers)

    data = gangrun.DataStreams(make, STREAMS_COUNT)
    with gangrun.Checkpointer(folder / "saves", model=model, data=data, every_steps=100) as saver:
        step = saver.resume()
        while step < STEPS_COUNT:
            for batches in data:
                assert len(batches) == len(data.mine) == STREAMS_COUNT // world
                with (folder / f"trained-{rank}").open("a") as file:
                    for stream, batch in zip(data.mine, batches, strict=True):
                        file.write(json.dumps([step, stream, batch.tolist()]) + "\n")
                if step == dies_after:
                    saver.save(step, wait=True)
                    os._exit(7)
                saver.step(step)
                step += 1
                if step == STEPS_COUNT:
                    break


folder = Path(sys.argv[2])
for number, (world, dies_after, workers) in enumerate(json.loads(sys.argv[1])):
    forked(world, lambda rank: main(rank, world, dies_after, workers, folder, f"meet-{number}"))  # noqa: B023
for path in folder.glob("trained-*"):
    sys.stdout.write(path.read_text())
