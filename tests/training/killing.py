"""Lets a process be struck before its n-th operation on files, and judges what that leaves. Without torch."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

from gangrun.checkpoint.formats import manifest

WATCHED = (
    "open", "write", "writev", "fsync", "rename", "mkdir", "rmdir", "unlink", "replace", "scandir", "chmod", "link",
    "sendfile",
)  # fmt: skip


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(countdown: int, strike: Callable[[], None] = kill_myself) -> None:
    """Let ``strike`` come before this process's n-th file operation from now on."""
    done = itertools.count(1)  # two threads of a process never get the same number, and none is left out

    def watched(real):
        def call(*args, **kwargs):
            if next(done) == countdown:
                strike()
            return real(*args, **kwargs)

        return call

    for name in WATCHED:
        setattr(os, name, watched(getattr(os, name)))


def judge(directory: Path, committed: int) -> str:
    """What is wrong with what is there; "" if nothing is."""
    steps = []
    for path in directory.glob("step-*"):
        step = int(path.name.split("-")[1])
        judged = manifest.verify(str(path), step)
        if not judged.valid:
            return f"{path.name} is not whole: {judged.why}"
        steps.append(step)
    if committed >= 0 and (not steps or max(steps) < committed):
        return f"step {committed} was committed, and now there are {sorted(steps)}"
    return ""
