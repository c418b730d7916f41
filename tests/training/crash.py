"""Kills saving ranks again and again, at seeded points between their file operations; says what that leaves each time.

    crash.py DIRECTORY ROUNDS SEED [WORLD]

SIGKILL comes before the n-th operation on files of one rank, and to the others once it is gone. After each round every
directory with a step's name must be whole and verified, and the newest must not be older than what was said to be
committed. In the end one attempt goes unharmed. torch is imported once, ranks are forked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gangrun
from tests.training.killing import arm, judge

OPERATIONS_MAX_COUNT = 220


def built() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 90).requires_grad_(requires_grad=False))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    return model, optimizer


def save_for_ever(directory: str, told: int, countdown: int, rank: int = 0, world: int = 1, store: str = "") -> None:
    if world > 1:
        dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    model, optimizer = built()
    if countdown:
        arm(countdown)
    ckpt = gangrun.Checkpointer(directory, model=model, optimizer=optimizer, keep=2, every_steps=2, full_every=4)
    start = ckpt.resume()
    for step in range(start, start + 400):
        with torch.no_grad():
            model[0].weight.fill_(step)
        ckpt.step(step)
        if step % 6 == 5:
            ckpt.save(step, wait=True)
            os.pwrite(told, step.to_bytes(8, "little"), 0)  # pwrite is not watched


def a_round(directory: Path, told: int, chance: random.Random, world: int, number: int) -> None:
    victim = chance.randrange(world)
    countdown = chance.randint(1, OPERATIONS_MAX_COUNT if victim == 0 else OPERATIONS_MAX_COUNT // 5)
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            try:
                save_for_ever(
                    str(directory), told, countdown if rank == victim else 0, rank, world, f"{directory}.store{number}"
                )
            finally:
                os._exit(0)
        children.append(pid)
    os.waitpid(children.pop(victim), 0)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    warnings.simplefilter("ignore")
    directory, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    world = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    torch.set_num_threads(1)
    warm = nn.Linear(2, 2)
    with gangrun.Checkpointer(f"{directory}.warm", model=warm, optimizer=torch.optim.SGD(warm.parameters())) as ckpt:
        ckpt.save(0, wait=True)  # whatever is imported late is now, before ranks are forked
    chance = random.Random(seed)
    told = os.open(f"{directory}.told", os.O_RDWR | os.O_CREAT)
    troubles, newest, linked = [], -1, 0
    for number in range(rounds):
        a_round(directory, told, chance, world, number)
        newest = int.from_bytes(os.pread(told, 8, 0), "little") if os.fstat(told).st_size else -1
        trouble = judge(directory, newest)
        linked += sum(b"linked_from" in path.read_bytes() for path in directory.glob("step-*/gangrun.json"))
        if trouble:
            troubles.append(f"round {number}: {trouble}")
    model, optimizer = built()
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(rounds)
    with gangrun.Checkpointer(directory, model=model, optimizer=optimizer) as ckpt:
        newest = ckpt.resume() - 1
    left = sorted(str(one.relative_to(directory)) for one in directory.glob(".gangrun/*/*/*"))
    sys.stdout.write(json.dumps({"troubles": troubles, "newest": newest, "linked": linked, "left": left}))


if __name__ == "__main__":
    main()
