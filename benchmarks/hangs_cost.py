"""What the sampler of ``node/sampler.py`` adds to steps: paired blocks, with a look each 20 ms and with none.

    python benchmarks/hangs_cost.py [BLOCKS]

A look costs what it costs however seldom it comes, so the slope of many looks tells the price of two a second. The
order within each pair changes; the medians of the pairs' differences are told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from gangrun.node import place_page, sampler

STEPS_COUNT = 150
LOOK_EVERY_S = 0.02
LOOKS_PER_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="?", type=int, default=40)
    blocks_count = parser.parse_args().blocks
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    page = place_page.PlacePage(str(Path(tempfile.mkdtemp()) / "place"), create=True)
    looks = sampler.Sampler(page, place_page, threading.get_ident())
    on, done = threading.Event(), [0]

    def run() -> None:
        while True:
            on.wait()
            looks.look(time.monotonic_ns())
            done[0] += 1
            time.sleep(LOOK_EVERY_S)

    threading.Thread(target=run, daemon=True).start()

    def block(sampled: bool) -> tuple[float, float, int]:
        """(CPU seconds of the process, wall seconds, looks) of one block of steps."""
        (on.set if sampled else on.clear)()
        before, wall, cpu = done[0], time.perf_counter(), time.process_time()
        for _ in range(STEPS_COUNT):
            model(torch.ones(32, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - cpu, time.perf_counter() - wall, done[0] - before

    block(sampled=True)
    wall_shares, look_us = [], []
    for number in range(blocks_count):
        first = number % 2 == 0
        pair = {first: block(first), not first: block(not first)}
        (cpu, wall, count), (bare_cpu, bare_wall, _) = pair[True], pair[False]
        looks_per_s = count / wall
        wall_shares.append((wall - bare_wall) / bare_wall * LOOKS_PER_S / looks_per_s)
        look_us.append((cpu - bare_cpu) / count * 1e6)
    wall = [100 * share for share in statistics.quantiles(wall_shares, n=4)]
    us = statistics.median(look_us)
    told = {
        "blocks": blocks_count,
        "us_of_cpu_per_look": round(us, 1),
        "cpu_per_cent_of_a_busy_core": round(us * LOOKS_PER_S / 1e4, 4),
        "wall_per_cent_of_a_step_quartiles": [round(one, 3) for one in wall],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
