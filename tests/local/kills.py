"""Seeded blows at whatever runs a training, before chosen file operations of its saves and prunes, and in flushes.

One round is one blow while ranks save, from inside the rank that is its victim, and perhaps one more from outside, as
soon as what is in memory is seen to be brought to the disk. Lines in ``blows`` say what came, so that whoever starts
later knows which round it is. Used in the processes of the run: without torch.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.local.harness import processes_of
from tests.training.killing import arm, judge

SAVE_OPERATIONS_COUNT = (1, 130)  # of rank 0, which commits and prunes: two cycles of saving to the disk
PART_OPERATIONS_COUNT = (1, 24)  # of the other rank, which writes its files
TARGETS = ("rank", "agent", "all", "rank", "warden")


@dataclass(frozen=True, slots=True)
class Round:
    """Before which operation of which rank, and at whom; and whom a flush afterwards costs its life, "" for nobody."""

    victim: int
    countdown: int
    target: str
    flush: str


def round_of(seed: int, number: int) -> Round:
    chance = random.Random(f"{seed}-{number}")
    victim = chance.randrange(2)
    countdown = chance.randint(*(PART_OPERATIONS_COUNT if victim else SAVE_OPERATIONS_COUNT))
    target = TARGETS[number % len(TARGETS)]
    flush = chance.choice(("agent", "warden", "all"))
    return Round(victim, countdown, target, flush if number % 2 == 0 and target in ("rank", "agent") else "")


class Blows:
    """The folder in which is noted what came. ``KILLS`` in the environment: folder, seed, rounds."""

    def __init__(self, told: str) -> None:
        folder, seed, rounds = told.rsplit(":", 2)
        self.folder, self.seed, self.rounds = Path(folder), int(seed), int(rounds)

    def lines(self) -> list[str]:
        try:
            return (self.folder / "blows").read_text().splitlines()
        except FileNotFoundError:
            return []

    def number(self) -> int:
        """The round that is on: how many blows came while ranks saved."""
        return sum(line.startswith("save") for line in self.lines())

    def arm(self, rank: int) -> None:
        """Called by each rank once its attempt has committed something."""
        number = self.number()
        if number < self.rounds and (one := round_of(self.seed, number)).victim == rank:
            log = os.open(self.folder / "blows", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            arm(one.countdown, partial(_strike, log, f"save {number} {one}", one.target))

    def flush_due(self, directory: Path) -> str:
        """Whom to strike, where a flush is on that this round has a blow for; "" otherwise."""
        number = self.number() - 1
        target = round_of(self.seed, number).flush if number >= 0 else ""
        if not target or any(line.startswith(f"flush {number} ") for line in self.lines()):
            return ""
        return target if any(directory.glob(".gangrun/*/*/*-memory/*/*")) else ""

    def flush_struck(self, target: str) -> None:
        with (self.folder / "blows").open("a") as file:
            file.write(f"flush {self.number() - 1} {target}\n")

    def judged(self, directory: Path) -> None:
        """Note what is wrong with the checkpoints; nobody writes there now."""
        trouble = judge(directory, self.committed())
        if trouble:
            self.note(trouble)

    def note(self, trouble: str) -> None:
        with (self.folder / "troubles").open("a") as file:
            file.write(f"round {self.number()}: {trouble}\n")

    def committed(self) -> int:
        try:
            return int.from_bytes((self.folder / "told").read_bytes(), "little")
        except FileNotFoundError:
            return -1

    def tell(self, step: int) -> None:
        """That this step was said to be committed."""
        fd = os.open(self.folder / "told", os.O_WRONLY | os.O_CREAT)
        os.pwrite(fd, step.to_bytes(8, "little"), 0)
        os.close(fd)


_write = os.write


def _strike(log: int, line: str, target: str) -> None:
    """Say it, then do it. What is killed takes the others with it, or has to be noticed by them."""
    own, agent = os.getpid(), int(os.environ.get("GANGRUN_AGENT_PID") or os.getpid())
    match target:
        case "rank":
            struck = [own]
        case "agent":
            struck = [agent]
        case "warden":
            struck = [int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])]
        case _:
            struck = [pid for pid in processes_of(os.environ["GANGRUN_TEST_MARK"]) if pid != own] + [own]
    _write(log, f"{line}\n".encode())
    for pid in struck:
        os.kill(pid, signal.SIGKILL)
