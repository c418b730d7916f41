"""Sees a rank's death the moment it happens and says how it was.

One thread per rank waits in waitpid: nothing is polled, no kernel feature is needed, and the order of deaths, which
blame needs, is the order in which the kernel tells them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gangrun.agent.ranks.errors import OomCounter, read_error
from gangrun.agent.ranks.files import RankFiles
from gangrun.agent.ranks.logs import RankLogs
from gangrun.core.model import RankExit

READ_WITHIN_S = 5.0  # for its last lines, which lie in its pipes: only a node that hardly runs needs longer


class Child(Protocol):
    """What is needed of a ``Popen``."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Block until it ends; its code, negative for a signal."""


@dataclass(slots=True)
class Watched:
    """One rank under watch."""

    rank: int
    node: str
    child: Child
    files: RankFiles
    ended: threading.Event = field(default_factory=threading.Event)
    exit: RankExit | None = None


def watch(
    rank: Watched,
    logs: RankLogs,
    oom: OomCounter,
    by_us: Callable[[], bool],
    now: Callable[[], float],
    step: Callable[[], int],
    tell: Callable[[RankExit], None],
    orphaned: Callable[[], None] = lambda: None,
) -> None:
    """Start the thread; ``tell`` is called from it, once. ``orphaned``, too, at the very moment of the death: workers
    that end because their rank did must be noted before they are gone.
    """

    def wait() -> None:
        code = rank.child.wait()
        at, ours, last_step = now(), by_us(), step()
        orphaned()
        rank.ended.set()
        logs.wait_read(rank.rank, READ_WITHIN_S)
        failed = code != 0
        rank.exit = RankExit(
            rank=rank.rank,
            node=rank.node,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            oom_kill=code == -9 and oom.killed_since(),
            by_us=ours,
            error=read_error(rank.files, logs.stderr_tail(rank.rank)) if failed else None,
            at=at,
            step=last_step,
        )
        tell(rank.exit)

    threading.Thread(target=wait, name=f"rank {rank.rank}", daemon=True).start()
