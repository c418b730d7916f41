"""Real ranks for the tests of this folder: scripts, a gang that runs them, and a look at what is left of them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gangrun.agent.brain import facts
from gangrun.agent.ranks.environment import GangSpec, inherited
from gangrun.agent.ranks.gang_part import RankGang
from gangrun.node.processes import become_subreaper, is_alive, kill_until_none, read_proc
from gangrun.wire.messages import Launch, Stop
from gangrun.wire.spec import LogSpec
from tests.waiting import PATIENCE, until

Fact = TypeVar("Fact")
GRACE_S = 120.0  # that a stop would cost if it waited for it
NO_GRACE_S = 60.0  # what costs less did not wait; on an idle machine it is a tenth of a second
ROOT = str(Path(__file__).parents[2])

# A child that left its parent, its group and its session, as a daemon does.
STRAY = """
import os, sys, time, pathlib
def stray(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            pathlib.Path(name + '.new').write_text(str(os.getpid()))
            os.rename(name + '.new', name)
            time.sleep(600)
        os._exit(0)
    os.wait()
"""


def boottime() -> float:
    """CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lives(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    proc = read_proc(pid)
    return proc is not None and is_alive(proc)


def order(ranks_count: int = 1, attempt: int = 0, **changes: object) -> Launch:
    """A launch of ``ranks_count`` ranks on this one node."""
    fields: dict[str, object] = {
        "term": 1,
        "act": (1, 1),
        "attempt": attempt,
        "world_size": ranks_count,
        "node_rank": 0,
        "nodes_count": 1,
        "ranks": tuple(range(ranks_count)),
        "slots": tuple(range(ranks_count)),
        "master_addr": "127.0.0.1",
        "master_port": 29999,
        "nodes": ("n0",),
        **changes,
    }
    return Launch(**fields)  # type: ignore[arg-type]


def stop_order(
    grace_s: float = 10.0, checkpoint_first: bool = False, checkpoint_grace_s: float = 30.0, settle_s: float = 0.0,
    peer_gone_grace_s: float | None = None,
) -> Stop:  # fmt: skip
    """Stop everything."""
    return Stop(
        1, (1, 2), 99, grace_s, checkpoint_first, checkpoint_grace_s, "test", settle_s,
        peer_gone_grace_s=peer_gone_grace_s,
    )  # fmt: skip


class Harness:
    """A gang under test; this process is the agent and, as a subreaper, plays the warden's part for orphans."""

    def __init__(self, directory: Path, command: tuple[str, ...], through_boot: bool = True, **changes: object) -> None:
        self.directory = directory
        fields: dict[str, object] = {
            "run": f"test-{os.getpid()}-{directory.name}",
            "node": "n0",
            "command": command,
            "through_boot": through_boot,
            "interpreter": sys.executable,
            "working_directory": str(directory),
            "inherited": {**inherited(), "PYTHONPATH": ROOT},
            "environment": {},
            "local_root": directory,
            "run_directory": directory / "run",
            "log": LogSpec(),
            **changes,
        }
        self.gang = RankGang(GangSpec(**fields), boottime)  # type: ignore[arg-type]
        self.seen: list[object] = []

    def next_fact(
        self, kind: type[Fact], within_s: float = 10.0, which: Callable[[Fact], bool] = lambda _: True
    ) -> Fact:
        """The next fact of a kind; others are kept in ``seen``."""
        end = boottime() + within_s * PATIENCE
        while True:
            for fact in self.seen:
                if isinstance(fact, kind) and which(fact):
                    self.seen.remove(fact)
                    return fact
            left_s = end - boottime()
            assert left_s > 0, f"no {kind.__name__} within {within_s} s; seen {self.seen}"
            select.select([self.gang], [], [], left_s)
            self.seen += self.gang.take()

    def ready(self, ranks_count: int = 1) -> None:
        """Until so many ranks have printed that they are."""
        until(lambda: self.log().count("ready\n") == ranks_count, 20, lambda: f"ranks to be ready: {self.log()}")

    def log(self, attempt: int = 0) -> str:
        """What is in the node's log."""
        path = self.directory / "run" / "logs" / str(attempt) / "n0.log"
        return path.read_text() if path.exists() else ""


@contextmanager
def gang(directory: Path, script: str, *arguments: str, **changes: Any) -> Iterator[Harness]:
    """A harness for a script's text; whatever it left is killed at the end."""
    path = directory / "script.py"
    path.write_text(STRAY + script)
    with harness(Harness(directory, (str(path), *arguments), **changes)) as made:
        yield made


@contextmanager
def harness(made: Harness) -> Iterator[Harness]:
    """Kill what is left at the end, and reap it."""
    become_subreaper()
    family = made.gang._family
    try:
        yield made
    finally:
        kill_until_none(lambda: family.find(()), 5.0, reap)
        made.gang.close()


def reap() -> None:
    """Collect adopted orphans, but no child that a Popen waits for."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (proc := read_proc(int(name))) and proc.parent == os.getpid() and proc.state == "Z":
            try:
                os.waitpid(proc.pid, os.WNOHANG)
            except ChildProcessError:
                continue


def number_in(path: Path) -> int:
    """A pid that a script wrote, 0 if not yet."""
    return int(path.read_text()) if path.exists() else 0


__all__ = [
    "GRACE_S",
    "NO_GRACE_S",
    "ROOT",
    "Harness",
    "boottime",
    "facts",
    "gang",
    "harness",
    "lives",
    "number_in",
    "order",
    "stop_order",
]
