"""What --sdc-check saves adds to a save: checksums of the weights and of AdamW's state, against the whole save.

    python benchmarks/sdc_check.py [MB]

One process on the CPU, or on a GPU if there is one. A save is as long as ``save(wait=True)`` takes. Medians of five.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import gangrun
from gangrun.training.save.replicas import copies_of
from gangrun.training.state import Parts

ROUNDS_COUNT = 5
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
    sums, saves = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        gangrun.Checkpointer(folder, model=model, optimizer=optimizer, every_steps=10**6, keep=2) as saver,
    ):
        for step in range(ROUNDS_COUNT + 1):
            began = time.perf_counter()
            copies = copies_of(parts)
            between = time.perf_counter()
            saver.save(step, wait=True)
            sums.append(between - began)
            saves.append(time.perf_counter() - between)
    tensors_count = sum(len(one.names) for one in copies)
    size = sum(p.numel() * 12 for p in model.parameters())
    summed, saved = statistics.median(sums[1:]), statistics.median(saves[1:])
    found = {
        "device": str(device), "tensors": tensors_count, "mb": round(size / 1e6), "checksum_s": round(summed, 4),
        "gb_per_s": round(size / summed / 1e9, 1), "save_s": round(saved, 3), "share": round(summed / saved, 4),
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
