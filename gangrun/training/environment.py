"""What a training process is given from outside: gangrun's variables in its environment, and the time.

No torch: a script may ask before it imports anything heavy.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class RealClock:
    """``ports.Clock`` of this process; tests pass another one."""

    def now(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()


class ResumePoint(NamedTuple):
    """The checkpoint to resume from: the newest one that was verified before this attempt started.

    Attributes:
        path: Its directory, the same on all ranks.
        step: The step that it was saved after; -1 if gangrun does not know.
    """

    path: str
    step: int


def slot_path() -> str:
    """The progress slot of this rank; "" outside gangrun."""
    return os.environ.get("GANGRUN_PROGRESS_SLOT", "")


def follows_rank_of_node() -> bool:
    """Does another rank of this node report? A launcher's ranks share one slot, in which local rank 0 writes."""
    return bool(os.environ.get("GANGRUN_PER_NODE")) and os.environ.get("LOCAL_RANK", "0") != "0"


def resume_info() -> ResumePoint | None:
    """Return the checkpoint to load. Any thread of any rank may call it; it reads the environment only.

    Returns:
        The path and the step, the same on all ranks, or None to start from the beginning. Always None outside gangrun.
    """
    path = os.environ.get("GANGRUN_RESUME", "")
    if not path:
        return None
    step = os.environ.get("GANGRUN_RESUME_STEP", "")
    return ResumePoint(path, int(step) if step else -1)


def skipped_batches() -> tuple[tuple[int, int], ...]:
    """After a rollback with ``--skip-batches``, which global batches to leave out. Reads the environment only.

    Returns:
        Pairs, in order: train on so many global batches after the resume point, then leave out so many.
    """
    pairs = [pair.split(":") for pair in os.environ.get("GANGRUN_SKIP_BATCHES", "").split(",") if pair]
    return tuple((int(after), int(count)) for after, count in pairs)


def compares_saves() -> bool:
    """Do ranks that hold copies of the same weights compare them at each save (``--sdc-check``)?"""
    return os.environ.get("GANGRUN_COMPARES_SAVES", "") == "1"


def replay_every() -> int:
    """Every so many steps two ranks compute the same batch (``--sdc-check every=N``); 0: never."""
    return int(os.environ.get("GANGRUN_REPLAY_EVERY", "") or 0)


def compares_data() -> bool:
    """Are samples compared with those of the checkpoint (``--data-checksums``)?"""
    return os.environ.get("GANGRUN_COMPARES_DATA", "") == "1"


def run_id() -> str:
    """The run's id; "" outside gangrun."""
    return os.environ.get("GANGRUN_RUN", "")


def attempt() -> int:
    """How often all ranks were started before in this run; 0 outside gangrun."""
    return int(os.environ.get("GANGRUN_ATTEMPT", "0") or 0)


def failures() -> int:
    """How often this run failed before; starts after a move or a preemption do not count. 0 outside gangrun."""
    return int(os.environ.get("GANGRUN_FAILURES", "0") or 0)


def nodes_count() -> int:
    """How many nodes train; 1 if no launcher told."""
    here, everywhere = local_world_size(), os.environ.get("WORLD_SIZE", "")
    return max(1, int(everywhere) // here) if here > 0 and everywhere.isdecimal() else 1


def memory_keeper() -> str:
    """The name of what keeps checkpoints in this node's memory; "" where nothing does."""
    return os.environ.get("GANGRUN_MEMORY", "")


def memory_parity() -> tuple[int, int] | None:
    """Nodes whose data are coded together, and how many of a group may be lost; None: copies are kept instead."""
    data_count, _, parity_count = os.environ.get("GANGRUN_MEMORY_PARITY", "").partition("+")
    return (int(data_count), int(parity_count)) if parity_count else None


def resume_is_shared() -> bool:
    """Is the resume point in memory, and no node need have all of it?"""
    return os.environ.get("GANGRUN_RESUME_SHARED", "") == "1"


def flush_every_s() -> float:
    """So often gangrun brings what is in the nodes' memory to the disk; 0: it does not."""
    return float(os.environ.get("GANGRUN_FLUSH_EVERY", "0") or 0)


def local_rank() -> int:
    """This rank's number on its node; 0 where nobody said."""
    return int(os.environ.get("LOCAL_RANK", "0") or 0)


def local_world_size() -> int:
    """How many ranks a node has; 0 where nobody said."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0)


def checkpoint_directory() -> str:
    """The directory that gangrun chooses the resume point from; "" where it knows of none."""
    return os.environ.get("GANGRUN_CHECKPOINT_DIR", "")


def term() -> int:
    """The supervisor's term in which this attempt began; 0 outside gangrun."""
    return int(os.environ.get("GANGRUN_TERM", "0") or 0)


def launch_name() -> tuple[str, int]:
    """What this launch is called where gangrun did not start it, and how often it was restarted."""
    names = (os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ.get("SLURM_JOB_ID", ""))
    name = next((one for one in names if one not in ("", "none")), "unmanaged")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return name, int(restarts) if restarts.isdecimal() else 0
