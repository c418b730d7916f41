"""What --sdc-check saves adds to a save: checksums of the weights and of AdamW's state, against the whole save.

    python benchmarks/sdc_check.py [MB]

One process on the CPU, or on a GPU if there is one. A save is as long as ``save(wait=True)`` takes. ``share`` is of its
time, ``cpu_share`` of its processor time. ``times_a_read``: processor time against that of one bare sum of the same
bytes. Medians of rounds in which all of them come one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import gangrun
from gangrun.training.save.replicas import copies_of
from gangrun.training.state import Parts

ROUNDS_COUNT = 9
LAYERS_COUNT = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mb", nargs="?", type=int, default=600)
    state_bytes = parser.parse_args().mb * 10**6
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width = int((state_bytes / 12 / LAYERS_COUNT) ** 0.5)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(LAYERS_COUNT)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width, device=device)).mean().backward()
    optimizer.step()
    parts = Parts(model, (optimizer,))
    rounds: list[Round] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        gangrun.Checkpointer(folder, model=model, optimizer=optimizer, every_steps=10**6, keep=2) as saver,
    ):
        for step in range(ROUNDS_COUNT + 1):
            read = spent(lambda: torch.stack([one.sum() for one in words_of(model, optimizer)]).tolist())
            summed = spent(lambda: copies_of(parts))
            saved = spent(partial(saver.save, step, wait=True))
            rounds.append(
                Round(
                    summed.wall_s, summed.wall_s / saved.wall_s, summed.cpu_s / saved.cpu_s, summed.cpu_s / read.cpu_s
                )
            )
    middle = Round(*(statistics.median(column) for column in zip(*rounds[1:], strict=True)))
    size = sum(p.numel() * 12 for p in model.parameters())
    found = {
        "device": str(device), "tensors": sum(len(one.names) for one in copies_of(parts)), "mb": round(size / 1e6),
        **{name: round(value, 4) for name, value in middle._asdict().items()},
    }  # fmt: skip
    print(json.dumps(found))


class Spent(NamedTuple):
    """By the clock, and by all threads of this process."""

    wall_s: float
    cpu_s: float


class Round(NamedTuple):
    """Of one round: see above."""

    checksum_s: float
    share: float
    cpu_share: float
    times_a_read: float


def spent(work: Callable[[], object]) -> Spent:
    """What it takes."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - began, time.process_time() - used)


def words_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The same bytes, as the whole numbers that torch adds up fastest: those of 32 bits take over 30 times as long."""
    state = [one for of in optimizer.state.values() for one in of.values() if one.numel() > 1]
    flat = [one.detach().view(-1) for one in (*model.parameters(), *state)]
    return [one[: one.numel() // 2 * 2].view(torch.int64) for one in flat]


if __name__ == "__main__":
    main()
