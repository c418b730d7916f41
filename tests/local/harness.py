"""A real run on this box, driven as a user would: the command line, signals, files. Nothing of gangrun is
replaced, but where a test asks for faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import call
from tests.faults.inject import PREFIX, gangrun
from tests.stepper import STEPPER
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
PACE_S = 0.05


def processes_of(mark: str) -> dict[int, dict[str, str]]:
    """Every process whose environment names ``mark``: pid -> its GANGRUN_* and rank variables."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            raw = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in raw and state != "Z":
            pairs = (word.partition(b"=") for word in raw.split(b"\0"))
            found[int(entry.name)] = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, _, v in pairs}
    return found


def whole_lines(path: Path) -> list[str]:
    """Without the one that is just being written."""
    return path.read_text().rpartition("\n")[0].splitlines()


class Box:
    """One run and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.work = folder / "work"
        self.work.mkdir()
        self.out, self.err, self.may_end = folder / "out.txt", folder / "err.txt", folder / "may-end"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "GANGRUN_TEST_MARK": str(folder),
            "OMP_NUM_THREADS": "1",
            "MAY_END": str(self.may_end),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.through: list[str] = []

    def script(self, text: str, name: str = "train.py") -> Path:
        """A script in the work folder."""
        path = self.work / name
        path.write_text(textwrap.dedent(text))
        return path

    def start(self, *arguments: str | Path, environment: dict[str, str] | None = None) -> None:
        """``gangrun run`` with these arguments, in the background, started by the command ``through``."""
        environment = {**self.environment, **(environment or {})}
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [*self.through, *gangrun(environment), "run", "--runs-dir", str(self.runs), *map(str, arguments)],
                cwd=self.work, env=environment, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    def step(self, ranks: int, *options: str, steps: int = 40, pace: float = PACE_S, hook: str = "") -> None:
        """Start the torch-free gang."""
        script = self.script(STEPPER)
        self.start(
            "--nproc-per-node", str(ranks), *options, script, self.work / "steps", str(steps), str(pace), "0",
            environment={"HOOK": textwrap.dedent(hook)},
        )  # fmt: skip

    def rows(self, rank: int = 0) -> list[tuple[int, int, float, int]]:
        """(attempt, step, monotonic time, pid) as rank ``rank`` wrote them."""
        try:
            lines = whole_lines(self.work / "steps" / f"rank-{rank}.log")
        except OSError:
            return []
        return [(int(a), int(s), float(t), int(p)) for a, s, t, p, _ in (line.split() for line in lines)]

    def wait_for_step(self, step: int, attempt: int = 0, rank: int = 0, deadline_s: float = 30.0) -> None:
        """Until ``rank`` has done ``step`` in ``attempt`` (or a later one)."""
        until(
            lambda: any(a >= attempt and s >= step for a, s, _, _ in self.rows(rank)),
            deadline_s, lambda: f"step {step} of attempt {attempt}\n{self.told()}",
        )  # fmt: skip

    def pid_of(self, rank: int) -> int:
        """The newest process of a rank."""
        return self.rows(rank)[-1][3]

    def gangrun(self, *arguments: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        """Any other command, to its end; one that goes on with a run is given that run's end."""
        if "resume" in arguments:
            self.may_end.touch()
        return subprocess.run(
            [*gangrun(self.environment), *arguments],
            cwd=self.work, env=self.environment, check=check, capture_output=True, text=True, timeout=300, **more,
        )  # fmt: skip

    def outcomes(self) -> list[str]:
        """How the attempts ended, but for torch's own aborts after a script's last line, once in ten busy runs."""
        return [one["outcome"] for one in self.status()["attempts"] if one["outcome"] != "teardown"]

    def status(self) -> dict[str, Any]:
        """``gangrun status --json`` of the newest run."""
        found: dict[str, Any] = json.loads(self._seen("status", "--json"))
        return found

    def _seen(self, *words: str) -> str:
        """What a command prints, asked in this process unless a fault of the run would change its words: a process of
        its own costs a fifth of a second of a core, and tests that wait ask many times.
        """
        words = (*words, "--runs-dir", str(self.runs))
        faults = {name: value for name, value in self.environment.items() if name.startswith(PREFIX)}
        offset = faults.pop("FAULT_WALL_OFFSET", "")
        if faults or (offset and Path(offset).read_text("ascii") != "0"):
            return self.gangrun(*words).stdout
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.work)
            for name in set(os.environ) - set(self.environment):
                patch.delenv(name)
            for name, value in self.environment.items():
                patch.setenv(name, value)
            said = call(*words)
        if said.code:
            raise subprocess.CalledProcessError(said.code, words, said.out, said.err)
        return said.out

    def until(self, condition: Callable[[], object], what: str, deadline_s: float = 150.0) -> None:
        """Until the condition holds, while the run goes on: a run that ended will not fulfil it any more."""

        def over() -> bool:
            return self.process is not None and self.process.poll() is not None

        until(lambda: over() or condition(), deadline_s, lambda: f"{what}\n{self.told()}")
        assert condition(), f"the run ended before there was {what}\n{self.told()}"

    def until_status(
        self, what: str, condition: Callable[[dict[str, Any]], bool], deadline_s: float = 30.0
    ) -> dict[str, Any]:
        """Until the status fulfils a condition."""
        seen: dict[str, Any] = {}

        def look() -> bool:
            try:
                seen.update(self.status())
            except subprocess.CalledProcessError:
                return False
            return condition(seen)

        until(look, deadline_s, lambda: f"{what}\n{self.told()}\n{seen}")
        return seen

    def process_ids(self, part: str) -> list[int]:
        """Our own processes whose command line names ``part`` (entry.agent, entry.supervisor, node/warden.py)."""
        found = []
        for pid in processes_of(str(self.folder)):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            # a warden's command line holds those of the agent and the supervisor that it is to start
            if part.encode() in command and (part == "node/warden.py" or b"node/warden.py" not in command):
                found.append(pid)
        return sorted(found)

    def one(self, part: str) -> int:
        """The only process of this kind."""
        return until(lambda: self.process_ids(part), 10, f"a process {part}")[0]

    def stepping(self, count: int = 2) -> list[int]:
        """The processes of the first ranks, once the run is in the middle."""
        self.wait_for_step(5, deadline_s=60)
        return [self.pid_of(rank) for rank in range(count)]

    def interrupt(self, deadline_s: float = 40.0) -> None:
        """Ctrl-C, and the end that it brings."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.end(deadline_s) == 130, self.told()

    def end(self, deadline_s: float = 60.0) -> int:
        """Let the script end and wait for ``gangrun run``; its exit code."""
        assert self.process is not None
        self.may_end.touch()
        within_s = deadline_s * PATIENCE
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"gangrun run did not end within {within_s:.0f} s\n{self.told()}") from None

    def told(self) -> str:
        """Everything it printed, for a failing test."""
        streams = [path for path in (self.out, self.err) if path.exists()]
        text = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in streams]
        logs = self.runs.glob("*/.gangrun/processes-*.log")
        return "\n".join(text + [f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs])

    def run_dir(self) -> Path:
        """The newest run directory."""
        return max(path for path in self.runs.iterdir() if path.is_dir() and (path / ".gangrun").is_dir())

    def ranks(self) -> dict[int, int]:
        """Rank -> pid of the live ranks: agents' children, of the newest attempt whatever a frozen node still has."""
        agents = set(self.process_ids("entry.agent"))
        newest: dict[int, tuple[int, int]] = {}
        for pid, variables in self.left().items():
            try:
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in agents and variables.get("GANGRUN_ATTEMPT"):
                rank, attempt = int(variables["RANK"]), int(variables["GANGRUN_ATTEMPT"])
                newest[rank] = max(newest.get(rank, (attempt, pid)), (attempt, pid))
        return {rank: pid for rank, (_, pid) in newest.items()}

    def explain(self, *options: str) -> str:
        """``gangrun explain`` of the newest run, each run of blanks as one."""
        return " ".join(self._seen("explain", *options).split())

    def left(self) -> dict[int, dict[str, str]]:
        """Processes of this run that live."""
        return processes_of(str(self.folder))

    def close(self) -> None:
        """Whatever the test did, nothing of it stays."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
