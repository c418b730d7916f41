"""The contract's words on this box: real processes, signals and files, through the command line alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from gangrun.node import processes
from tests.contract.driver import Scenario, Status, Stepped
from tests.contract.real_driver import HOOK, PACE_S, RealDriver
from tests.faults.inject import gangrun
from tests.local.harness import Box
from tests.waiting import until


class LocalDriver(RealDriver):
    """One run on this box."""

    name = "local"

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.box = Box(folder)
        super().__init__(scenario, self.box, folder / "saves", self.box.work / "steps", folder / "wall")
        self._saves.mkdir()
        self.box.environment |= {**self._told_to_ranks(), "FAULT_WALL_OFFSET": str(self._wall)}

    def start(self) -> None:
        shape, options = self.scenario, self._options()
        if shape.nodes > 1:
            options += ["--nodes", f"{shape.nodes}", "--local-hosts"]
            options += ["--min-nodes", f"{shape.min_nodes or shape.nodes}"]
        self.box.step(shape.ranks_per_node, *options, steps=shape.steps, pace=PACE_S, hook=HOOK)

    # ---- seeing ----

    def steps(self) -> list[Stepped]:
        rows = [(rank, row) for rank in range(self.scenario.world_size) for row in self.box.rows(rank)]
        return sorted(Stepped(at, attempt, step + 1, rank, pid) for rank, (attempt, step, at, pid) in rows)

    def ranks(self) -> dict[int, int]:
        return self.box.ranks()

    # ---- time ----

    def wait(self, what: str, condition: Callable[[Status], bool], deadline_s: float = 60.0) -> Status:
        return self.box.until_status(what, condition, deadline_s)

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        self.box.wait_for_step(step - 1, attempt, deadline_s=60.0)

    def end(self, deadline_s: float = 120.0) -> int:
        return self.box.end(deadline_s)

    # ---- doing ----

    def _supervisor(self) -> int:
        return until(lambda: self.box.process_ids("entry.supervisor"), 20, "a supervisor")[-1]

    def _of_node(self, part: str, node: int) -> int:
        name = self.node(node)
        marks = (f"\0--node\0{name}\0".encode(), f'"--node", "{name}"'.encode(), f'"--node","{name}"'.encode())

        def found() -> list[int]:
            commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.box.process_ids(part)}
            return [pid for pid, command in commands.items() if any(mark in command for mark in marks)]

        return until(found, 10, f"the {part} of node {node}")[0]

    def _whole_node(self, node: int) -> list[int]:
        """The warden first, so that nobody sees the others fall."""
        warden = self._of_node("node/warden.py", node)
        below = processes.descendants([warden], processes.process_table(), [])
        return [warden, *(proc.pid for proc in below)]

    def reboot_node(self, node: int) -> None:
        self._signal(self._whole_node(node), signal.SIGKILL)

    def freeze_node(self, node: int) -> None:
        self._signal(self._whole_node(node), signal.SIGSTOP)

    def thaw_node(self, node: int) -> None:
        self._signal(self._whole_node(node), signal.SIGCONT)

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _run_id(self) -> str:
        def ready() -> list[str]:
            return [path.parent.parent.name for path in self.box.runs.glob("*/.gangrun/spec.json")]

        return until(ready, 20, lambda: f"a run directory\n{self.told()}")[0]

    def cancel(self) -> None:
        done = self.box.gangrun("cancel", self._run_id(), "--no-wait", "--runs-dir", str(self.box.runs), check=False)
        assert done.returncode == 0, done.stderr

    def resume(self) -> None:
        with self.box.out.open("ab") as out, self.box.err.open("ab") as err:
            self.box.process = subprocess.Popen(
                [*gangrun(self.box.environment), "resume", self._run_id(), "--runs-dir", str(self.box.runs)],
                cwd=self.box.work, env=self.box.environment, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        self.box.close()
        shutil.rmtree(self._saves, ignore_errors=True)
