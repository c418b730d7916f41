"""Two nodes send each other tensors: ``python pair_child.py '{...}'`` on both.

Standard library and torch only, as ``device_child``: gloo, or NCCL with the first GPU. The sizes grow until one takes
long enough to be measured; the first of the two says when to stop. One line of JSON at the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from datetime import timedelta
from time import perf_counter
from typing import Any

PR_SET_PDEATHSIG = 1
SIZES = tuple(1 << power for power in range(16, 29, 2))  # 64 KiB to 256 MiB
ENOUGH_S = 0.2
PINGS = 20


def meet(torch: Any, asked: dict[str, Any]) -> dict[str, float]:
    """What the way between the two is worth."""
    from torch import distributed

    rank, within = asked["rank"], timedelta(seconds=asked["within_s"])
    device = "cuda:0" if asked["gpu"] and torch.cuda.is_available() else "cpu"
    store = distributed.TCPStore(asked["host"], asked["port"], 2, rank == 0, within)
    distributed.init_process_group(
        "nccl" if device != "cpu" else "gloo", store=store, rank=rank, world_size=2, timeout=within
    )

    def there_and_back(data: Any) -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        began = perf_counter()
        for sender in (0, 1):
            (distributed.send if rank == sender else distributed.recv)(data, 1 - rank)
        if device != "cpu":
            torch.cuda.synchronize()
        return max(perf_counter() - began, 1e-9)

    small = torch.zeros(1, device=device)
    for _ in range(3):
        there_and_back(small)
    latency_s = min(there_and_back(small) for _ in range(PINGS)) / 2
    best, go_on = 0.0, torch.ones(1, device=device)
    for size in SIZES:
        data = torch.ones(size // 4, device=device)
        took_s = there_and_back(data)
        best = max(best, 2 * size / took_s)
        go_on.fill_(1 if took_s < ENOUGH_S else 0)
        (distributed.send if rank == 0 else distributed.recv)(go_on, 1 - rank)
        if not go_on.item():
            break
    distributed.destroy_process_group()
    return {"bytes_per_s": best, "latency_s": latency_s}


def main() -> None:
    """Meet, say, and end at once."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    told: dict[str, Any]
    try:
        import torch

        sys.stdout.write(json.dumps({"began": True}) + "\n")
        sys.stdout.flush()
        told = meet(torch, json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - whatever it was, the other rounds need its words
        told = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
