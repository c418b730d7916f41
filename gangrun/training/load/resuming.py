"""Which checkpoint to go on from: chosen and proven before a byte reaches the model.

Under gangrun the supervisor has chosen before this process began. Elsewhere rank 0 chooses by the same rules, all read
what it wants read, and it tells them.
"""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

from gangrun.checkpoint.scan import StorageUnreadable
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.core.checkpoints.resume import Chosen, NoneValid, ResumeRequest
from gangrun.training import environment
from gangrun.training.load.loading import Reading
from gangrun.training.load.shared_verification import ReadingTogether
from gangrun.training.ranks import Ranks
from gangrun.training.state import (
    RANDOM_KEY,
    STATE_KEY,
    CheckpointError,
    Parts,
    put_back,
    put_back_chance,
    put_back_small,
    tensors_of,
)


def find(directory: str, ranks: Ranks, nonce: str) -> environment.ResumePoint | None:
    """The checkpoint to load, the same on all ranks; None: begin at the beginning. ``CheckpointError`` in words."""
    told = environment.resume_info()
    known = environment.checkpoint_directory()
    if told is not None or (known and os.path.realpath(known) == os.path.realpath(directory)):
        return told
    path, step, trouble = "", -1, ""
    together = ReadingTogether(ranks)
    if ranks.rank != 0:
        together.help()
    else:
        try:
            with together:
                room = CheckpointRoom(directory, prove_all=together.prove_all)
                choice = room.choose_and_set_aside(ResumeRequest(), f"unmanaged-{nonce}").choice
            if isinstance(choice, NoneValid):
                trouble = choice.reason
            elif isinstance(choice, Chosen):
                path, step = choice.checkpoint.path, choice.checkpoint.step
        except StorageUnreadable as error:
            trouble = str(error)
    path, step, trouble = ranks.from_first((path, step, trouble))
    if trouble:
        raise CheckpointError(trouble)
    return environment.ResumePoint(path, step) if path else None


def load(point: environment.ResumePoint, parts: Parts, data: Any, rank: int, world_size: int) -> tuple[int, float]:
    """Load everything; the step that the checkpoint was taken after, and the seconds that were trained up to it.

    A plain DCP checkpoint gives model and optimizer, under the keys "model" and "optimizer", and a warning.
    """
    reading = Reading(point.path)
    state = tensors_of(parts)
    saved = reading.object_of(STATE_KEY)
    reading.fill(state)
    put_back(parts, state)
    if saved is None:
        warnings.warn(
            f"{point.path} was not written by gangrun: model and optimizer are loaded, and schedule, data position and "
            "random numbers begin anew",
            stacklevel=3,
        )
        return point.step, 0.0
    absent = put_back_small(parts, saved)
    if absent:
        warnings.warn(f"{point.path} has no state of {', '.join(absent)}: they begin anew", stacklevel=3)
    first = reading.object_of(f"{RANDOM_KEY}0")
    # with another number of ranks each draws other samples: chance of its own is as good, and is repeatable
    same = saved["world_size"] == world_size
    chance = partial(put_back_chance, reading.object_of(f"{RANDOM_KEY}{rank}") if same else None, first, rank)
    chance()
    if same and hasattr(data, "at_first_batch"):
        data.at_first_batch(chance)
    return int(saved["step"]), float(saved["trained_s"])
