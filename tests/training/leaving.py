"""Processes that end while a save is under way, one after the other; says what each leaves.  leaving.py DIRECTORY

Every child saves step 0, begins to save step 1, and is held inside fsync until it leaves. torch is imported once.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gangrun

HOLD_S = 60.0


def begun(directory: Path, go: threading.Event) -> gangrun.Checkpointer:
    """A checkpointer whose second save is under way, for certain, until ``go``."""
    held, real = threading.Event(), os.fsync
    ckpt = gangrun.Checkpointer(directory, model=nn.Linear(30, 20))
    ckpt.save(0, wait=True)

    def fsync(fd: Any) -> None:
        held.set()
        go.wait(HOLD_S)
        real(fd)

    os.fsync = fsync
    ckpt.save(1)
    assert held.wait(HOLD_S)
    return ckpt


def forgets_to_close(directory: Path, told: int) -> None:
    go = threading.Event()
    kept.append(begun(directory, go))
    atexit.register(go.set)  # comes before what the checkpointer registered: the process is leaving by now


def raises_inside(directory: Path, told: int) -> None:
    go = threading.Event()
    with begun(directory, go):
        go.set()
        raise KeyError("the script's own")


def is_terminated(directory: Path, told: int) -> None:
    kept.append(begun(directory, threading.Event()))
    os.write(told, b"x")
    signal.pause()


def gives_up(directory: Path, told: int) -> None:
    go = threading.Event()
    ckpt = begun(directory, go)
    ckpt.finish(0.01)  # as at an exit whose disk does not answer
    go.set()
    for thread in threading.enumerate():
        if thread.name == "gangrun-saver":
            thread.join(HOLD_S)


kept: list[gangrun.Checkpointer] = []


def child(what, directory: Path, told: int, number: int) -> None:
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    what(directory, told)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root, found = Path(sys.argv[1]), {}
    for what in (forgets_to_close, raises_inside, is_terminated, gives_up):
        directory = root / what.__name__
        reading, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(what, directory, told, 0)
            return  # as a script ends: with what was registered for it
        os.close(told)
        if what is is_terminated and os.read(reading, 1):
            os.kill(pid, signal.SIGTERM)
        ended = os.waitpid(pid, 0)[1]
        staged = [path.name.split("-")[1] for path in directory.glob(".gangrun/*/*/*/saving-*")]
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
        with gangrun.Checkpointer(directory, model=nn.Linear(30, 20)) as ckpt:
            start = ckpt.resume()
        left = len(list(directory.glob(".gangrun/*/*/*")))
        found[what.__name__] = {"ended": ended, "staged": staged, "start": start, "left": left}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
