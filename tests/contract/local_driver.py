"""The contract's words on this box: real processes, signals and files, through the command line alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from gangrun.node import processes
from tests.contract.driver import Injection, Scenario, Status, Stepped
from tests.faults.inject import gangrun
from tests.local.evidence import alive
from tests.local.harness import Box
from tests.waiting import stays, until

TINY = Path(__file__).with_name(
    "tiny_dcp"
)  # a checkpoint as torch.distributed.checkpoint.save leaves it, of four numbers
PAYLOAD = "__0_0.distcp"
PACE_S = 0.05

# Runs in each rank before its first step (see harness.STEPPER, whose names it uses).
HOOK = """
import json, shutil, signal
does = json.loads(os.environ["CONTRACT_DOES"])
every, saves = int(os.environ["CONTRACT_EVERY"]), Path(os.environ["CONTRACT_SAVES"])
(meet / f"up.{rank}").touch()
def do(one):
    if one["how"] == "EXIT": os._exit(one["code"])
    if one["how"] == "RAISE": raise RuntimeError("boom")
    if one["how"] == "KILL": os.kill(os.getpid(), signal.SIGKILL)
    while True: time.sleep(0.05)
def hook(done):
    for one in does:
        if (one["rank"], one["step"]) == (rank, done) and (one["attempts"] is None or attempt in one["attempts"]):
            do(one)
    if rank == 0 and every and done > start and done % every == 0 and not (saves / f"step-{done}").exists():
        shutil.rmtree(saves / "unfinished", ignore_errors=True)
        shutil.copytree(os.environ["CONTRACT_TINY"], saves / "unfinished")
        (saves / "unfinished").rename(saves / f"step-{done}")
"""


class LocalDriver:
    """One run on this box."""

    name = "local"
    cannot: Mapping[Injection, str] = {}

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.box = Box(folder)
        self.saves = folder / "saves"
        self.saves.mkdir()
        self._wall = folder / "wall"
        self._wall.write_text("0")
        does = [
            {**asdict(one), "how": one.how.name, "attempts": one.attempts and sorted(one.attempts)}
            for one in scenario.does
        ]
        self.box.environment |= {
            "CONTRACT_DOES": json.dumps(does),
            "CONTRACT_EVERY": str(scenario.checkpoint_every),
            "CONTRACT_SAVES": str(self.saves),
            "CONTRACT_TINY": str(TINY),
            "FAULT_WALL_OFFSET": str(self._wall),
            "HOOK": HOOK,
        }

    def start(self) -> None:
        shape = self.scenario
        options = ["--silence-after", f"{shape.silence_after_s}", "--fence-after", f"{shape.fence_after_s}"]
        options += ["--max-restarts", f"{shape.max_restarts}"]
        if shape.nodes > 1:
            options += [
                "--nodes",
                f"{shape.nodes}",
                "--local-hosts",
                "--min-nodes",
                f"{shape.min_nodes or shape.nodes}",
            ]
        if shape.checkpoint_every:
            options += ["--checkpoint-dir", str(self.saves)]
        if shape.hang_timeout_s is not None:
            options += ["--hang-timeout", f"{shape.hang_timeout_s}"]
        self.box.step(shape.ranks_per_node, *options, steps=shape.steps, pace=PACE_S, hook=HOOK)

    # ---- seeing ----

    def status(self) -> Status:
        return self.box.status()

    def explain(self) -> str:
        return self.box.explain()

    def steps(self) -> list[Stepped]:
        rows = [(rank, row) for rank in range(self.scenario.world_size) for row in self.box.rows(rank)]
        return sorted(Stepped(at, attempt, step + 1, rank, pid) for rank, (attempt, step, at, pid) in rows)

    def alive(self, process: int) -> bool:
        return alive(process)

    def ranks(self) -> dict[int, int]:
        return self.box.ranks()

    def node(self, index: int) -> str:
        name: str = self.status()["nodes"][index]
        return name

    # ---- time ----

    def wait(self, what: str, condition: Callable[[Status], bool], deadline_s: float = 60.0) -> Status:
        return self.box.until_status(what, condition, deadline_s)

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        self.box.wait_for_step(step - 1, attempt, deadline_s=60.0)

    def wait_for_launch(self, attempt: int = 0) -> None:
        meet = self.box.work / "steps" / f"attempt-{attempt}"
        until(lambda: list(meet.glob("up.*")), 60, lambda: f"the launch of attempt {attempt}\n{self.told()}")

    def wait_until(self, what: str, condition: Callable[[], object], deadline_s: float = 60.0) -> None:
        until(condition, deadline_s, lambda: f"{what}\n{self.told()}")

    def pass_time(self, for_s: float) -> None:
        stays(lambda: True, for_s, "time")

    def end(self, deadline_s: float = 120.0) -> int:
        return self.box.end(deadline_s)

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

    def tear_newest_checkpoint(self) -> int:
        """Who saves is stopped, so that it stays the newest: it goes with its gang."""
        saver = self.ranks()[0]
        os.kill(saver, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{saver}/stat").read_text().rpartition(")")[2].split()[0] == "T", 10, "it is stopped")
        step = max(int(path.name.removeprefix("step-")) for path in self.saves.glob("step-*"))
        payload = self.saves / f"step-{step}" / PAYLOAD
        payload.write_bytes(payload.read_bytes()[: payload.stat().st_size // 2])
        return step

    def jump_wall(self, by_s: float) -> None:
        new = self._wall.with_suffix(".new")  # whoever reads it finds the one number or the other
        new.write_text(str(float(self._wall.read_text()) + by_s))
        new.replace(self._wall)

    def close(self) -> None:
        self.box.close()
        shutil.rmtree(self.saves, ignore_errors=True)

    def told(self) -> str:
        return self.box.told()
