"""What the contract's two worlds of real processes share: this box and the Slurm cluster."""

from __future__ import annotations

import json
import os
import signal
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tests.contract.driver import Injection, Scenario, Status
from tests.local.evidence import alive
from tests.waiting import stays, until

TINY = Path(__file__).with_name("tiny_dcp")  # a checkpoint of four numbers, as torch.distributed.checkpoint.save makes
PAYLOAD = "__0_0.distcp"
PACE_S = 0.05

# Runs in each rank before its first step (see tests.stepper, whose names it uses).
HOOK = """
does = json.loads(os.environ["CONTRACT_DOES"])
every, saves = int(os.environ["CONTRACT_EVERY"]), Path(os.environ["CONTRACT_SAVES"])
def do(one):
    if one["how"] == "EXIT": os._exit(one["code"])
    if one["how"] == "RAISE": raise RuntimeError("boom")
    if one["how"] == "KILL": os.kill(os.getpid(), signal.SIGKILL)
    while True: time.sleep(0.05)
def hook(done):
    for one in does:
        if (one["rank"], one["step"]) == (rank, done) and (one["attempts"] is None or attempt in one["attempts"]):
            do(one)
"""


class RealRun(Protocol):
    """A run as its user sees it: ``Box`` of tests/local, ``Run`` of tests/slurm."""

    def status(self) -> dict[str, Any]: ...
    def explain(self) -> str: ...
    def told(self) -> str: ...


class RealDriver:
    """One run of real processes."""

    cannot: Mapping[Injection, str] = {}

    def __init__(self, scenario: Scenario, run: RealRun, saves: Path, steps: Path, wall: Path) -> None:
        self.scenario = scenario
        self._run, self._saves, self._steps, self._wall = run, saves, steps, wall
        wall.write_text("0")

    def _told_to_ranks(self) -> dict[str, str]:
        """The environment of HOOK."""
        shape = self.scenario
        does = [
            {**asdict(one), "how": one.how.name, "attempts": one.attempts and sorted(one.attempts)}
            for one in shape.does
        ]
        return {
            "CONTRACT_DOES": json.dumps(does), "CONTRACT_EVERY": str(shape.checkpoint_every),
            "CONTRACT_SAVES": str(self._saves), "TINY": str(TINY), "HOOK": HOOK,
        }  # fmt: skip

    def _options(self) -> list[str]:
        """What ``gangrun run`` and ``gangrun submit`` are told alike."""
        shape = self.scenario
        options = ["--silence-after", f"{shape.silence_after_s}", "--fence-after", f"{shape.fence_after_s}"]
        options += ["--max-restarts", f"{shape.max_restarts}"]
        if shape.checkpoint_every:
            options += ["--checkpoint-dir", str(self._saves)]
        if shape.hang_timeout_s is not None:
            options += ["--hang-timeout", f"{shape.hang_timeout_s}"]
        return options

    # ---- seeing ----

    def status(self) -> Status:
        return self._run.status()

    def explain(self) -> str:
        return self._run.explain()

    def told(self) -> str:
        return self._run.told()

    def alive(self, process: int) -> bool:
        return alive(process)

    @abstractmethod
    def ranks(self) -> dict[int, int]: ...

    def node(self, index: int) -> str:
        name: str = self.status()["nodes"][index]
        return name

    @abstractmethod
    def _of_node(self, part: str, node: int) -> int:
        """The only process of this kind on a node."""

    @abstractmethod
    def _supervisor(self) -> int:
        """The newest."""

    # ---- time ----

    def wait_for_launch(self, attempt: int = 0) -> None:
        meet = self._steps / f"attempt-{attempt}"
        self.wait_until(f"the launch of attempt {attempt}", lambda: list(meet.glob("up.*")))

    def wait_until(self, what: str, condition: Callable[[], object], deadline_s: float = 60.0) -> None:
        until(condition, deadline_s, lambda: f"{what}\n{self.told()}")

    def pass_time(self, for_s: float) -> None:
        stays(lambda: True, for_s, "time")

    # ---- doing ----

    def kill_rank(self, rank: int) -> None:
        os.kill(self.ranks()[rank], signal.SIGKILL)

    def kill_agent(self, node: int) -> None:
        os.kill(self._of_node("entry.agent", node), signal.SIGKILL)

    def kill_warden(self, node: int) -> None:
        os.kill(self._of_node("node/warden.py", node), signal.SIGKILL)

    def kill_supervisor(self) -> None:
        os.kill(self._supervisor(), signal.SIGKILL)

    def pause_supervisor(self) -> int:
        pid = self._supervisor()
        os.kill(pid, signal.SIGSTOP)
        return pid

    def wake(self, process: int) -> None:
        os.kill(process, signal.SIGCONT)

    def tear_newest_checkpoint(self) -> int:
        """Who saves is stopped, so that it stays the newest: it goes with its gang."""
        saver = self.ranks()[0]
        os.kill(saver, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{saver}/stat").read_text().rpartition(")")[2].split()[0] == "T", 10, "it is stopped")
        step = max(int(path.name.removeprefix("step-")) for path in self._saves.glob("step-*"))
        payload = self._saves / f"step-{step}" / PAYLOAD
        payload.write_bytes(payload.read_bytes()[: payload.stat().st_size // 2])
        return step

    def jump_wall(self, by_s: float) -> None:
        new = self._wall.with_suffix(".new")  # whoever reads it finds the one number or the other
        new.write_text(str(float(self._wall.read_text()) + by_s))
        new.chmod(self._wall.stat().st_mode)
        new.replace(self._wall)
