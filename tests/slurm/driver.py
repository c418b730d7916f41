"""The contract's words on a real Slurm cluster: an ordinary user with ``gangrun submit`` and the command line alone.

The processes of a run are found and broken from outside, by host and by command line.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.contract.driver import Injection, Scenario, Status, Stepped
from tests.contract.real_driver import PACE_S, RealDriver
from tests.slurm.cluster import Cluster, shared
from tests.slurm.harness import GANGRUN, Run
from tests.slurm.place import missing
from tests.stepper import STEPPER
from tests.waiting import until

NOT_WARDEN = r"^(?!.*warden\.py)(?!\S*srun ).*"  # their command lines hold those of the agent and the supervisor too
NUMBERS = itertools.count()

# From the warden down a run on Slurm is made of the same processes as one on a box, and each test takes seconds here.
# So CI runs what lies between Slurm and them: which process is where, what a job's end means, files seen by all hosts.
WHOLE = os.environ.get("GANGRUN_TEST_WHOLE_CONTRACT", "") not in {"", "0"}
IN_CI = {
    "test_a_killed_agent_takes_its_ranks_along_and_the_gang_comes_back",
    "test_a_killed_supervisor_is_replaced_and_the_gang_adopted",
    "test_a_cancelled_run_is_taken_up_again_from_its_checkpoint",
}


def runs_on_slurm(test: str) -> bool:
    """Is a test of the contract made for this world? All are, with GANGRUN_TEST_WHOLE_CONTRACT=1."""
    return WHOLE or test in IN_CI


class SlurmDriver(RealDriver):
    """One run on the cluster."""

    name = "slurm"
    cannot: Mapping[Injection, str] = {
        Injection.REBOOT_NODE: "Slurm starts nothing again on a node that was off: the run goes on with another one, "
        "or in another job. What follows is for tests/slurm/test_nodes.py",
    }

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        if absent := missing():
            pytest.skip(f"needs {', '.join(absent)}: see `make system`")
        self.cluster: Cluster = shared()
        self.cluster.ready()
        self.run = run = Run(self.cluster, f"contract-{next(NUMBERS)}")
        super().__init__(scenario, run, run.saves, run.steps, run.folder / "wall")
        self._environment = {
            **self._told_to_ranks(),
            "MAY_END": str(run.may_end),
            "FAULT_WALL_OFFSET": str(self._wall),
        }

    def start(self) -> None:
        shape, run = self.scenario, self.run
        run.saves_made()
        words = ["-N", f"{shape.nodes}", "--nproc-per-node", f"{shape.ranks_per_node}", *self._options()]
        words += ["--min-nodes", f"{shape.min_nodes or shape.nodes}"]
        words += [str(run.script(STEPPER)), str(run.steps), str(shape.steps), str(PACE_S), "0"]
        told = json.loads(run.gangrun("submit", "--json", *words, env=self._environment))
        run.id, run.root = told["run"], Path(told["directory"])

    # ---- seeing ----

    def steps(self) -> list[Stepped]:
        return [Stepped(row.at, row.attempt, row.step + 1, row.rank, row.pid) for row in self.run.rows()]

    def ranks(self) -> dict[int, int]:
        return {rank: pid for rank, (_, pid) in self.run.ranks().items()}

    # ---- time ----

    def wait(self, what: str, condition: Callable[[Status], bool], deadline_s: float = 60.0) -> Status:
        return self.run.wait(what, condition, deadline_s)

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        def done() -> bool:
            return any(row.rank == 0 and row.attempt >= attempt and row.step + 1 >= step for row in self.run.rows())

        until(done, 60, lambda: f"step {step} of attempt {attempt}\n{self.told()}")

    def end(self, deadline_s: float = 120.0) -> int:
        """What ``gangrun wait`` says, once Slurm has no job of the run's any more."""
        self.run.may_end.touch()
        until(lambda: not self._jobs(), deadline_s, lambda: f"no job of the run is left\n{self.told()}")
        waiting = [*GANGRUN, "wait", self.run.id, "--timeout", "20s"]
        return self.cluster.user_run(waiting, cwd=self.run.folder, env=self._environment, check=False).returncode

    def _jobs(self) -> list[dict[str, str]]:
        return [row for row in self.cluster.squeue() if row["comment"].startswith(f"gr:{self.run.id}:")]

    # ---- doing ----

    def _of_node(self, part: str, node: int) -> int:
        host, pattern = self.node(node), NOT_WARDEN + re.escape(part)
        (one,) = until(lambda: self.cluster.processes_on(host, pattern), 10, lambda: f"{part} on {host}\n{self.told()}")
        return one.pid

    def _supervisor(self) -> int:
        def found() -> list[int]:
            pattern = NOT_WARDEN + "entry.supervisor"
            return [one.pid for host in self.cluster.names for one in self.cluster.processes_on(host, pattern)]

        return max(until(found, 20, lambda: f"a supervisor\n{self.told()}"))

    def kill_warden(self, node: int) -> None:
        os.kill(self.cluster.warden_on(self.node(node)), signal.SIGKILL)

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

    def close(self) -> None:
        self.cluster.reset()
