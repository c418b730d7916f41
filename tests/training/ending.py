"""Two forked ranks end their training in every way, one way after the other; says what each of them heard and what is
on disk.  ending.py DIRECTORY

torch is imported once. A way is a function of the rank and its checkpointer; who returns has closed it by ``with``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gangrun
from gangrun.training import ranks
from tests.training.harness import forked
from tests.waiting import until

INTERVAL = 4
OTHER = Path(sys.argv[1], "done")


def steps(ckpt: gangrun.Checkpointer, count: int) -> None:
    for step in range(count):
        ckpt.step(step)


def between_two_saves(rank: int, ckpt: gangrun.Checkpointer) -> None:
    steps(ckpt, 6)


def when_it_is_saved(rank: int, ckpt: gangrun.Checkpointer) -> None:
    steps(ckpt, 8)


def after_different_steps(rank: int, ckpt: gangrun.Checkpointer) -> None:
    steps(ckpt, 1)
    if rank:
        ckpt._steps.last += 1


def at_the_end_of_the_other(rank: int) -> None:
    """Lets rank 1 go on once rank 0 has heard all that it is to hear of it."""
    if rank:
        until(OTHER.exists, 60, "the other rank to be done with its steps")
    else:
        OTHER.touch()


def one_is_killed(rank: int, ckpt: gangrun.Checkpointer) -> None:
    steps(ckpt, 2)
    at_the_end_of_the_other(rank)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)


def one_fails(rank: int, ckpt: gangrun.Checkpointer) -> None:
    steps(ckpt, 2)
    at_the_end_of_the_other(rank)
    if rank:
        raise KeyError("the script's own")


def steps_apart(rank: int, ckpt: gangrun.Checkpointer) -> None:
    for step in range(300):
        ckpt.step(step + rank)


def one_ends_sooner(rank: int, ckpt: gangrun.Checkpointer) -> None:
    steps(ckpt, 300 if rank else 1)


def one_makes_it_later(rank: int, ckpt: gangrun.Checkpointer) -> None:
    """Before it is made: see ``ended``."""


def one_makes_it_later_under_gangrun(rank: int, ckpt: gangrun.Checkpointer) -> None:
    """The same."""


def one_begins_later(rank: int, ckpt: gangrun.Checkpointer) -> None:
    late(rank)
    steps(ckpt, 4)


def one_steps_later(rank: int, ckpt: gangrun.Checkpointer) -> None:
    ckpt.step(0)
    late(rank, told_anyhow_after_s=0.5)
    for step in range(1, 4):
        ckpt.step(step)


def no_thread_can_be_had(rank: int, ckpt: gangrun.Checkpointer) -> None:
    before = threading.stack_size(1 << 47)  # as much as there are addresses
    ckpt.step(0)
    threading.stack_size(before)


def late(rank: int, told_anyhow_after_s: float = 0.0) -> None:
    """Rank 1 goes on when rank 0 has told that it waits, or has had the time to tell it many times over."""
    if rank:
        until(OTHER.exists, 60, "the other rank to tell that it waits")
    else:
        ranks.WAIT_TOLD_S = 0.01
        if told_anyhow_after_s:
            threading.Timer(told_anyhow_after_s, tell, [""]).start()


def tell(words: str) -> None:
    if OTHER.exists():
        return
    new = OTHER.with_suffix(f".{threading.get_ident()}")
    new.write_text(words)
    new.rename(OTHER)


def told(message: Warning | str, *_: object, **__: object) -> None:
    if "has waited" in str(message):
        tell(str(message))


WAYS: tuple[Callable[[int, gangrun.Checkpointer], None], ...] = (
    between_two_saves, when_it_is_saved, after_different_steps, one_is_killed, one_fails, steps_apart, one_ends_sooner,
    one_makes_it_later, one_makes_it_later_under_gangrun, one_begins_later, one_steps_later, no_thread_can_be_had,
)  # fmt: skip


def ended(way: Callable[[int, gangrun.Checkpointer], None], rank: int, directory: Path, world: int = 2) -> str:
    dist.init_process_group("gloo", store=dist.FileStore(f"{directory}.store", world), rank=rank, world_size=world)
    warnings.showwarning = told
    if way is one_makes_it_later:
        late(rank)
    if way is one_makes_it_later_under_gangrun:
        os.environ["GANGRUN_RUN"] = "run-1"
        late(rank, told_anyhow_after_s=0.5)
    try:
        with gangrun.Checkpointer(directory, model=nn.Linear(3, 2), every_steps=INTERVAL) as ckpt:
            own = [ckpt._ranks.group, ckpt._saver._ranks.group]
            assert len({id(group) for group in (dist.group.WORLD, *own)}) == 3 or world == 1, "training's is its own"
            way(rank, ckpt)
    except (gangrun.CheckpointError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    torch.set_num_threads(1)
    root, found = Path(sys.argv[1]), {}
    ended(between_two_saves, 0, root / "warm", 1)  # what is imported late is now, before ranks are forked
    dist.destroy_process_group()

    def rank_main(rank: int) -> None:
        heard = "an error that is none of the script's"
        try:
            heard = ended(way, rank, directory)
        finally:
            (root / f"{way.__name__}-{rank}").write_text(heard)

    for way in WAYS:
        directory = root / way.__name__
        OTHER.unlink(missing_ok=True)
        forked(2, rank_main)
        said = [root / f"{way.__name__}-{rank}" for rank in (0, 1)]
        heard_of_each = [one.read_text() if one.exists() else None for one in said]
        saved = sorted(int(path.name[5:]) for path in directory.glob("step-*"))
        warned = OTHER.read_text() if OTHER.exists() else ""
        found[way.__name__] = {"heard": heard_of_each, "warned": warned, "saved": saved}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
