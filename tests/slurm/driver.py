"""The contract's words on a real Slurm cluster: an ordinary user with ``gangrun submit`` and the command line alone.

The processes of a run are found and broken from outside, by host and by command line. Next: ``harness`` for a run,
``cluster`` for the hosts.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.contract.driver import Injection, Scenario, Status, Stepped
from tests.contract.local_driver import HOOK
from tests.local.evidence import alive
from tests.slurm.cluster import Cluster, shared
from tests.slurm.harness import GANGRUN, STEPPER, TINY, Run
from tests.slurm.place import missing
from tests.slurm.room import Process, look, tell
from tests.waiting import stays, until

PACE_S = 0.05
NOT_WARDEN = r"^(?!.*warden\.py)(?!\S*srun ).*"  # their command lines hold those of the agent and the supervisor too
NUMBERS = itertools.count()

# From the warden down a run on Slurm is made of the same processes as one on a box, and each test takes seconds here.
# So CI runs what lies between Slurm and them: which process is where, what a job's end means, files seen by all hosts.
WHOLE = os.environ.get("GANGRUN_TEST_WHOLE_CONTRACT", "") not in {"", "0"}
IN_CI = {
    "test_an_exit_code_is_laid_to_its_rank_and_to_no_node",
    "test_a_killed_agent_takes_its_ranks_along_and_the_gang_comes_back",
    "test_a_killed_supervisor_is_replaced_and_the_gang_adopted",
    "test_a_torn_newest_checkpoint_is_passed_over_with_its_reason",
    "test_a_cancelled_run_is_taken_up_again_from_its_checkpoint",
}


def runs_on_slurm(test: str) -> bool:
    """Is a test of the contract made for this world? All are, with GANGRUN_TEST_WHOLE_CONTRACT=1."""
    return WHOLE or test in IN_CI


class SlurmDriver:
    """One run on the cluster."""

    name = "slurm"
    cannot: Mapping[Injection, str] = {
        Injection.REBOOT_NODE: "Slurm starts nothing again on a node that was off: the run goes on with another one, "
        "or in another job. What follows is for tests/slurm/test_nodes.py",
        Injection.KILL_WARDEN: "the warden is what srun started: without it the node is silent for the rest of its "
        "job, and is left out as every silent node is",
    }

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        if absent := missing():
            pytest.skip(f"needs {', '.join(absent)}: see `make system`")
        self.scenario = scenario
        self.cluster: Cluster = shared()
        self.run = Run(self.cluster, f"contract-{next(NUMBERS)}")
        self.job = ""
        self._wall = self.run.folder / "wall"
        self._wall.write_text("0")
        does = [
            {**asdict(one), "how": one.how.name, "attempts": one.attempts and sorted(one.attempts)}
            for one in scenario.does
        ]
        self._environment = {
            "CONTRACT_DOES": json.dumps(does),
            "CONTRACT_EVERY": str(scenario.checkpoint_every),
            "CONTRACT_SAVES": str(self.run.saves),
            "CONTRACT_TINY": str(TINY),
            "MAY_END": str(self.run.may_end),
            "TINY": str(TINY),  # HOOK sets what the harness names ``every`` too
            "FAULT_WALL_OFFSET": str(self._wall),
            "HOOK": HOOK,
        }

    def start(self) -> None:
        shape, run = self.scenario, self.run
        options = ["--silence-after", f"{shape.silence_after_s}", "--fence-after", f"{shape.fence_after_s}"]
        options += ["--max-restarts", f"{shape.max_restarts}", "--min-nodes", f"{shape.min_nodes or shape.nodes}"]
        if shape.checkpoint_every:
            options += ["--checkpoint-dir", str(run.saves)]
        if shape.hang_timeout_s is not None:
            options += ["--hang-timeout", f"{shape.hang_timeout_s}"]
        for path in (run.steps, run.saves):
            path.mkdir()
            os.chown(path, self.cluster.site.uid, self.cluster.site.uid)
        words = ["-N", f"{shape.nodes}", "--nproc-per-node", f"{shape.ranks_per_node}", *options]
        words += [str(run.script(STEPPER)), str(run.steps), str(shape.steps), str(PACE_S), "0"]
        told = json.loads(run.gangrun("submit", "--json", *words, env=self._environment))
        run.id, run.root = told["run"], Path(told["directory"])

    # ---- seeing ----

    def status(self) -> Status:
        return self.run.status()

    def explain(self) -> str:
        return self.run.explain()

    def steps(self) -> list[Stepped]:
        return [Stepped(row.at, row.attempt, row.step + 1, row.rank, row.pid) for row in self.run.rows()]

    def alive(self, process: int) -> bool:
        return alive(process)

    def ranks(self) -> dict[int, int]:
        return {rank: pid for rank, (_, pid) in self.run.ranks().items()}

    def node(self, index: int) -> str:
        nodes: list[str] = self.status()["nodes"]
        return nodes[index]

    # ---- time ----

    def wait(self, what: str, condition: Callable[[Status], bool], deadline_s: float = 60.0) -> Status:
        return self.run.wait(what, condition, deadline_s)

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        def done() -> bool:
            return any(row.rank == 0 and row.attempt >= attempt and row.step + 1 >= step for row in self.run.rows())

        until(done, 60, lambda: f"step {step} of attempt {attempt}\n{self.told()}")

    def wait_for_launch(self, attempt: int = 0) -> None:
        meet = self.run.steps / f"attempt-{attempt}"
        until(lambda: list(meet.glob("up.*")), 60, lambda: f"the launch of attempt {attempt}\n{self.told()}")

    def wait_until(self, what: str, condition: Callable[[], object], deadline_s: float = 60.0) -> None:
        until(condition, deadline_s, lambda: f"{what}\n{self.told()}")

    def pass_time(self, for_s: float) -> None:
        stays(lambda: True, for_s, "time")

    def end(self, deadline_s: float = 120.0) -> int:
        """What ``gangrun wait`` says, once Slurm has no job of the run's any more."""
        self.run.may_end.touch()
        until(lambda: not self._jobs(), deadline_s, lambda: f"no job of the run is left\n{self.told()}")
        waiting = [*GANGRUN, "wait", self.run.id, "--timeout", "20s"]
        return self.cluster.user_run(waiting, cwd=self.run.folder, env=self._environment, check=False).returncode

    def _jobs(self) -> list[dict[str, str]]:
        return [row for row in self.cluster.squeue() if row["comment"].startswith(f"gr:{self.run.id}:")]

    # ---- doing ----

    def _found(self, pattern: str, hosts: tuple[str, ...]) -> list[Process]:
        return [one for host in hosts for one in self.cluster.processes_on(host, pattern)]

    def kill_rank(self, rank: int) -> None:
        os.kill(self.ranks()[rank], signal.SIGKILL)

    def kill_agent(self, node: int) -> None:
        self._kill_on(node, NOT_WARDEN + "entry.agent")

    def kill_warden(self, node: int) -> None:
        self._kill_on(node, r"warden\.py")

    def _kill_on(self, node: int, pattern: str) -> None:
        host = (self.node(node),)
        found = until(lambda: self._found(pattern, host), 10, lambda: f"{pattern} on {host}\n{self.told()}")
        assert len(found) == 1, found
        tell(found[0].pid, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        tell(self._supervisor(), signal.SIGKILL)

    def pause_supervisor(self) -> int:
        pid = self._supervisor()
        tell(pid, signal.SIGSTOP)
        return pid

    def wake(self, process: int) -> None:
        tell(process, signal.SIGCONT)

    def _supervisor(self) -> int:
        """The newest."""
        found = until(
            lambda: self._found(NOT_WARDEN + "entry.supervisor", self.cluster.names), 20, lambda: f"one\n{self.told()}"
        )
        return max(one.pid for one in found)

    def reboot_node(self, node: int) -> None:
        raise NotImplementedError(self.cannot[Injection.REBOOT_NODE])

    def freeze_node(self, node: int) -> None:
        self.cluster.stall(self.node(node))

    def thaw_node(self, node: int) -> None:
        self.cluster.resume(self.node(node))

    def cancel(self) -> None:
        self.run.gangrun("cancel", self.run.id, "--no-wait", env=self._environment)

    def resume(self) -> None:
        self.run.gangrun("resume", self.run.id, env=self._environment)

    def tear_newest_checkpoint(self) -> int:
        """Who saves is stopped, so that it stays the newest: it goes with its gang."""
        saver = self.ranks()[0]
        tell(saver, signal.SIGSTOP)
        until(lambda: look(Path(f"/proc/{saver}")).state == "T", 10, "it is stopped")
        return self.run.tear_newest()

    def jump_wall(self, by_s: float) -> None:
        new = self._wall.with_suffix(".new")  # whoever reads it finds the one number or the other
        new.write_text(str(float(self._wall.read_text()) + by_s))
        new.chmod(self._wall.stat().st_mode)
        new.replace(self._wall)

    def close(self) -> None:
        self.cluster.reset()

    def told(self) -> str:
        return self.run.told()
