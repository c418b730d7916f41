"""The script under test in restart.py: one all-reduce per step, each step written down with its time."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(os.path.join(sys.argv[1], f"rank-{dist.get_rank()}"), "a", buffering=1) as out:
    for step in range(100_000):
        dist.all_reduce(value)
        value.fill_(1.0)
        out.write(f"{generation} {step} {time.monotonic()} {os.getpid()}\n")
        time.sleep(0.05)
