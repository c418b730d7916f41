"""What befalls files of a checkpoint, and a room that judges them as a framework's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from gangrun.checkpoint.scan import naming_of
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.wire.spec import CheckpointSpec

Damage = Callable[[Path], object]
NUMBERS = torch.arange(64)  # what ``flipped`` finds in a file and changes


def room(out: Path, framework: str, pattern: str = r"step-(\d+)") -> CheckpointRoom:
    return CheckpointRoom(str(out), naming_of(CheckpointSpec(framework=framework, pattern=pattern)))


def cut(name: str) -> Damage:
    return lambda made: os.truncate(made / name, (made / name).stat().st_size - 1)


def gone(name: str) -> Damage:
    return lambda made: (made / name).unlink()


def all_gone(pattern: str) -> Damage:
    def remove(made: Path) -> None:
        for one in made.glob(pattern):
            shutil.rmtree(one) if one.is_dir() else os.unlink(one)

    return remove


def emptied(name: str) -> Damage:
    return lambda made: os.truncate(made / name, 0)


def flipped(name: str) -> Damage:
    def flip(made: Path) -> None:
        data = bytearray((made / name).read_bytes())
        at = data.index(NUMBERS.numpy().tobytes())
        data[at] ^= 1
        (made / name).write_bytes(data)

    return flip
