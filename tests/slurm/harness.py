"""A run on the test cluster, driven as its user drives it: the command line, sbatch, files. No part of it is replaced.

``Run`` has what a test asks of gangrun, ``cluster`` what it asks of Slurm and how hosts are broken.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.inject import PLAIN, gangrun
from tests.local.harness import whole_lines
from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.stepper import FIRST_WEIGHTS, STEPPER, trained
from tests.waiting import seldom, until

GANGRUN = PLAIN
TINY = reach.ROOT / "tests" / "contract" / "tiny_dcp"
SHORT = ("--silence-after", "2", "--fence-after", "15")
OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIME_UP"})
TRAINS = r"train\.py"


class Row(NamedTuple):
    """A step that a rank completed, as it wrote it down itself."""

    at: float
    attempt: int
    step: int
    rank: int
    pid: int
    host: str


class Run:
    """One run and the folder in which its user stands."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.folder = cluster.folder(name)
        self.steps = self.folder / "steps"
        self.saves = self.steps / "saves"
        self.id = ""
        self.root = self.folder
        self.may_end = self.folder / "may-end"

    # ---- doing, as the user ----

    def gangrun(self, *words: str | Path, check: bool = True, **more: Any) -> str:
        """Any command of gangrun's to its end; what it printed."""
        done = self.cluster.user_run([*gangrun(more.get("env")), *words], cwd=self.folder, check=False, **more)
        assert not check or done.returncode == 0, (
            f"{words}: {done.returncode}: {done.stdout}{done.stderr}\n{self.told()}"
        )
        return done.stdout

    def script(self, text: str, name: str = "train.py") -> Path:
        """A script in the user's folder."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def submit(self, *words: str | Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """``gangrun submit --json`` with short times; what it printed."""
        told: dict[str, Any] = json.loads(self.gangrun("submit", "--json", *SHORT, *words, env=env))
        self.id, self.root = told["run"], Path(told["directory"])
        return told

    def step(
        self, nodes: int, ranks: int, *options: str, steps: int = 40, pace: float = 0.1, every: int = 0, hook: str = "",
        env: Mapping[str, str] | None = None, stays: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Submit the gang without torch. With ``every``, rank 0 leaves a checkpoint each so many steps; one that
        ``stays`` does its last step once ``end`` is called.
        """
        saves = self.saves_made()
        saved = ["--checkpoint-dir", str(saves)] if every else []
        return self.submit(
            "-N", str(nodes), "--nproc-per-node", str(ranks), *saved, *options,
            self.script(STEPPER), self.steps, str(steps), str(pace), str(every),
            env={
                "HOOK": textwrap.dedent(hook), "TINY": str(TINY), "MAY_END": str(self.may_end) if stays else "",
                **(env or {}),
            },
        )  # fmt: skip

    def saves_made(self) -> Path:
        """The folder for checkpoints, which is there now."""
        self.saves.mkdir(parents=True, exist_ok=True)
        for path in (self.steps, self.saves):
            os.chown(path, self.cluster.site.uid, self.cluster.site.uid)
        return self.saves

    # ---- seeing: gangrun ----

    def status(self) -> dict[str, Any]:
        """``gangrun status --json``."""
        found: dict[str, Any] = json.loads(self.gangrun("status", self.id, "--json"))
        return found

    def _journal(self) -> tuple[object, ...]:
        """Changes whenever the journal does."""
        return tuple((path.name, path.stat().st_size) for path in sorted(self.root.glob(".gangrun/journal/*")))

    def wait(
        self, what: str, condition: Callable[[dict[str, Any]], object], deadline_s: float = 60.0
    ) -> dict[str, Any]:
        """The status, once it fulfils a condition; a run that is over is not waited for any longer."""
        asked, seen = seldom(self.status, self._journal), dict[str, Any]()

        def look() -> bool:
            found = asked()
            if found is None:
                return False
            seen.update(found)
            is_so = bool(condition(found))
            assert is_so or found["state"] not in OVER, f"the run ended before there was {what}\n{self.told()}\n{found}"
            return is_so

        until(look, deadline_s, lambda: f"{what}, but: {seen}\n{self.told()}")
        return seen

    def end(self, state: str = "SUCCEEDED", deadline_s: float = 90.0) -> dict[str, Any]:
        """The status once the run is over, which must be so."""
        self.may_end.touch()
        return self.wait(f"the end {state}", lambda status: status["state"] == state, deadline_s)

    def explain(self) -> str:
        """``gangrun explain``, each run of blanks as one."""
        return " ".join(self.gangrun("explain", self.id).split())

    def saved(self) -> list[int]:
        """Steps of the checkpoints that are there."""
        return sorted(
            int(path.name.removeprefix("step-")) for path in self.saves.glob("step-*") if (path / ".metadata").exists()
        )

    # ---- seeing: the ranks ----

    def rows(self) -> list[Row]:
        """All steps of all ranks, in the order of time."""
        found = []
        for path in self.steps.glob("rank-*.log"):
            rank = int(path.stem.removeprefix("rank-"))
            for line in whole_lines(path):
                attempt, step, at, pid, host = line.split()
                found.append(Row(float(at), int(attempt), int(step), rank, int(pid), host))
        return sorted(found)

    def wait_for_step(self, step: int, attempt: int = 0, deadline_s: float = 60.0) -> Row:
        """Until some rank has done ``step`` in ``attempt`` or a later one."""

        def found() -> list[Row]:
            return [row for row in self.rows() if row.attempt >= attempt and row.step >= step]

        return until(found, deadline_s, lambda: f"step {step} of attempt {attempt}\n{self.told()}")[0]

    def ranks(self) -> dict[int, tuple[str, int]]:
        """Rank -> (host, pid on this machine) of the processes that train, on hosts that are on: of the newest attempt,
        whatever a host that is cut off still has.
        """
        newest: dict[int, tuple[int, str, int]] = {}
        for host in self.cluster.names:
            if not self.cluster.room.is_on(host):
                continue
            for process in self.cluster.processes_on(host, TRAINS):
                variables = _environment(process.pid)
                if "RANK" in variables and variables.get("GANGRUN_RUN") == self.id:
                    rank, attempt = int(variables["RANK"]), int(variables["GANGRUN_ATTEMPT"])
                    if rank not in newest or newest[rank][0] < attempt:
                        newest[rank] = attempt, host, process.pid
        return {rank: (host, pid) for rank, (_, host, pid) in newest.items()}

    def assert_undisturbed(self) -> None:
        """No rank's final weights differ in a bit from those of a run that did each step once."""
        expected = FIRST_WEIGHTS
        for step in range(max(row.step for row in self.rows()) + 1):
            expected = trained(expected, step)
        left = {path.name: json.loads(path.read_text()) for path in self.steps.glob("final-*")}
        assert left == {f"final-{row.rank}": expected for row in self.rows()}

    def host_of(self, rank: int) -> str:
        """Where a rank did its newest step."""
        return next(row.host for row in reversed(self.rows()) if row.rank == rank)

    # ---- seeing: Slurm ----

    def jobs(self) -> list[dict[str, str]]:
        """What Slurm says of each job of the run that it remembers, the first one first."""
        lines = self.cluster.tool("squeue", "--noheader", "--states=all", "--format=%A %k").splitlines()
        ids = sorted({int(line.split()[0]) for line in lines if line.split()[-1].startswith(f"gr:{self.id}:")})
        return [found for job in ids if (found := self.cluster.job(job))]

    def told(self) -> str:
        """All logs' ends, for a failing test."""
        places = ("logs/job-*", ".gangrun/processes-*", ".gangrun/jobs/*", ".gangrun/setup-failed-*")
        files = [path for place in places for path in sorted(self.root.glob(place)) if path.is_file()]
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in files]
        rows = "\n".join(map(str, self.rows()[-5:]))
        jobs = "\n".join(str({key: job.get(key) for key in JOB_FACTS}) for job in self.jobs())
        nodes = f"{self.cluster.nodes()}\n{self.cluster.tool('sinfo', '--list-reasons', '--noheader')}"
        return "\n".join([*texts, "--- steps", rows, "--- jobs", jobs, nodes, self.cluster.told()])


JOB_FACTS = ("JobId", "JobState", "Reason", "ExitCode", "Restarts", "NodeList", "BatchHost", "ExcNodeList", "StartTime",
             "EndTime", "Comment", "Dependency")  # fmt: skip


def attempts_that_stepped(rows: Sequence[Row]) -> list[int]:
    """Never two gangs: no rank did a step of an older attempt after any rank's first step of a newer one."""
    newest = -1
    for row in rows:
        assert row.attempt >= newest, f"{row} came after attempt {newest} began"
        newest = row.attempt
    return sorted({row.attempt for row in rows})


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(word.partition("=")[::2] for word in words)
