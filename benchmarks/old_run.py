"""Taking over an old run, and a big failure: ``python benchmarks/old_run.py``.

An old run had 1,000 supervisors, each of which wrote a journal and took tickets. Each file operation takes 1 ms more:
``slow_files.c``, built by the C compiler, is preloaded into a process that takes a term and into ``gangrun status``.
The budget of a takeover is 3 s, and that of the whole command 0.3 s; both should cost the same as in a new run.

In the big failure all ranks fall at once, each with a traceback of 3 kB. What it leaves in the journal may have 10 MB;
a takeover of it may take 3 s and 200 MB of memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.fs.terms import FsTerms, Ticket
from gangrun.core.events import RankExited
from gangrun.core.evidence import ErrorReport, RankExit
from gangrun.core.model import Phase, Shape
from gangrun.core.policy import Policy
from gangrun.supervisor.opening import RunFacts
from gangrun.supervisor.takeover import take
from gangrun.wire import record as wire_record
from gangrun.wire.record import Act, Claim, Inherited, Record
from tests.runs.builder import Builder
from tests.supervisor.desk import Desk

ACTS_COUNT = 9  # tickets of one term
TRIES_COUNT = 9
RANKS_PER_NODE = 8
TRACEBACK = "Traceback (most recent call last):\n" + "  a line of some file of torch\n" * 100


def slowly(slow: Path, paths: RunPaths, words: list[str]) -> tuple[str, int]:
    """What a process prints for which each file operation in the run directory takes longer, and their number."""
    root = Path(__file__).resolve().parents[1]
    environment = {
        **os.environ, "PYTHONPATH": str(root), "HOME": str(slow.parent),
        "LD_PRELOAD": str(slow), "SLOW_DIR": str(paths.root), "SLOW_TELL": "1",
    }  # fmt: skip
    done = subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True, text=True)
    return done.stdout, int(done.stderr.splitlines()[-1])


def take_term(paths: RunPaths, run: str) -> float:
    """Seconds from the claim to the state that a loop would begin with."""
    clock, facts, disk = SystemClock(), RunFacts(run, Shape(1, 1, 1, 1), "j1"), Disk()
    began = time.monotonic()
    opening = take(
        FsTerms(paths, clock, disk), clock, facts, Policy(),
        offer=lambda term: Claim(term, run, "j1", "n1", os.getpid(), 7, "tcp://127.0.0.1:1", "key", clock.wall()),
    )  # fmt: skip
    assert opening.state.run == run
    return time.monotonic() - began


def grow_old(folder: Path, terms_count: int) -> Builder:
    """A run whose last term runs, after that many others."""
    built = Builder(folder).supervisor().up()
    snapshot = wire_record.snapshot(built.state)
    for term in range(1, terms_count + 1):
        paths = built.paths
        claim = Claim(term, built.run, "j1", "n1", 1, 7, "tcp://127.0.0.1:1", "key", 1.7e9)
        paths.claim(term).write_bytes(wire_record.encode_claim(claim))
        paths.acts(term).mkdir(exist_ok=True)
        acts = [Act("SealAttempts", {"attempt": term}, n) for n in range(1, ACTS_COUNT + 1)]
        for act in acts:
            paths.ticket(term, act.n).write_bytes(Ticket.of(term, act).note)
        carried = wire_record.builtins(Inherited(term - 1, term - 1, ()))
        first = Record(wire_record.SCHEMA, term, 0, 1.0, 1.7e9, "Snapshot", carried, patch=snapshot)
        other = [Record(wire_record.SCHEMA, term, act.n, 1.0, 1.7e9, "Looking", actions=(act,)) for act in acts]
        paths.journal(term).write_bytes(b"".join(wire_record.encode(one) for one in (first, *other)))
    return built


@dataclass
class Cost:
    """The best of some tries: seconds of a takeover and of the whole ``gangrun status``, and their file operations."""

    takeover_s: float = math.inf
    takeover_count: int = 0
    status_s: float = math.inf
    status_count: int = 0

    def try_once(self, slow: Path, built: Builder) -> None:
        """One of each; the takeover adds a term, which is nothing beside those that are there."""
        runs = str(built.paths.root.parent)
        began = time.monotonic()
        _, self.status_count = slowly(slow, built.paths, ["-m", "gangrun", "status", built.run, "--runs-dir", runs])
        self.status_s = min(self.status_s, time.monotonic() - began)
        told, self.takeover_count = slowly(slow, built.paths, [__file__, "--take", str(built.paths.root), built.run])
        self.takeover_s = min(self.takeover_s, json.loads(told)[0])


def ages(*terms_counts: int) -> list[Cost]:
    """A run of each age, tried in turn: what else the machine does slows all of them."""
    with tempfile.TemporaryDirectory() as name:
        slow = Path(name) / "slow.so"
        source = Path(__file__).with_name("slow_files.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", slow, source, "-ldl"], check=True)
        runs = [grow_old(Path(name) / f"runs-{count}", count) for count in terms_counts]
        costs = [Cost() for _ in runs]
        for _ in range(TRIES_COUNT):
            for cost, built in zip(costs, runs, strict=True):
                cost.try_once(slow, built)
    return costs


def fail_all(nodes_count: int) -> tuple[list[bytes], int]:
    """A journal's lines of a run all of whose ranks fell, and how many bytes of it are the failure."""
    shape = Shape(nodes_count, nodes_count, RANKS_PER_NODE, 1)
    policy = Policy(join_within_s=1e6, check_within_s=1e6, start_within_s=1e6)
    desk = Desk(nodes=nodes_count, policy=policy, addresses={}, shape=shape)
    loop = desk.open()
    for agent in desk.agents.values():
        agent.hello(slots_count=RANKS_PER_NODE)
    for _ in range(60):
        desk.pass_s(1.0)
        if loop.state.phase is Phase.RUNNING:
            break
    assert loop.state.phase is Phase.RUNNING, loop.state.reason
    before = sum(map(len, desk.disk.journals[1]))
    error = ErrorReport("torch.distributed.DistBackendError", "peer closed", "DistBackendError@t.py:7", TRACEBACK, True)
    for agent in desk.agents.values():
        for seq, rank in enumerate(agent.ranks, start=1):
            died = RankExited(0, RankExit(rank, agent.node, 1, error=error, at=desk.clock.boot))
            agent.tell(seq, "RankExited", msgspec.to_builtins(died))
        agent.ranks = ()
        agent.beat()
    desk.turn_all()
    lines = desk.disk.journals[1]
    return lines, sum(map(len, lines)) - before


def failure(nodes_count: int) -> dict[str, float]:
    """Bytes, and what a takeover of them costs a process of its own."""
    lines, size = fail_all(nodes_count)
    with tempfile.TemporaryDirectory() as name:
        built = Builder(Path(name)).supervisor()
        built.paths.journal(1).write_bytes(b"".join(lines))
        built.paths.acts(1).mkdir(exist_ok=True)
        run = wire_record.decode(lines[0]).patch["run"]
        words = [sys.executable, __file__, "--take", str(built.paths.root), run]
        seconds, peak = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return {"megabytes": size / 1e6, "seconds": seconds, "peak_megabytes": peak}


def main() -> None:
    """Print seconds, megabytes and their ratios."""
    parser = argparse.ArgumentParser(description="Measure takeovers of an old run, and of one that failed.")
    parser.add_argument("--terms", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--take", nargs=2, metavar=("RUN_DIR", "RUN"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.take:
        seconds = take_term(RunPaths(Path(given.take[0])), given.take[1])
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        print(json.dumps([seconds, int(peak.split()[1]) / 1e3]))
        return
    new, old = ages(1, given.terms)
    print(
        f"takeover after {given.terms} terms: {old.takeover_s:.2f} s, {old.takeover_count} file operations; after one:"
        f" {new.takeover_s:.2f} s, {new.takeover_count} (ratio {old.takeover_s / new.takeover_s:.2f}); gangrun status:"
        f" {old.status_s:.3f} s, {old.status_count} operations, and {new.status_s:.3f} s, {new.status_count}"
        f" (ratio {old.status_s / new.status_s:.2f})"
    )
    found = failure(given.nodes)
    print(
        f"all {given.nodes * RANKS_PER_NODE} ranks fall: {found['megabytes']:.1f} MB of journal, takeover"
        f" {found['seconds']:.1f} s, peak {found['peak_megabytes']:.0f} MB"
    )


if __name__ == "__main__":
    main()
