"""The paths that are walked often, each beside a yardstick measured in the same run.

Run:  python benchmarks/hot_paths.py [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def per_call_s(call: Callable[[], object], number: int, repeats: int = 7) -> float:
    """Median seconds per call."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - began) / number)
    return statistics.median(times)


def process_s(command: list[str], repeats: int = 9) -> float:
    """Median seconds of a whole process."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def step_report() -> dict:
    """gangrun.step() beside a system call (os.getppid) and one write of the same bytes."""
    from gangrun.wire import progress

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slot"
        code = (
            "import time, os, gangrun\n"
            "step = gangrun.step\n"
            "for k in range(20000): step(k, 1.0)\n"
            "best = []\n"
            "for _ in range(7):\n"
            "    t = time.perf_counter()\n"
            "    for k in range(100000): step(k, 1.0)\n"
            "    best.append((time.perf_counter() - t) / 100000)\n"
            "print(sorted(best)[3])\n"
        )
        slot = progress.ProgressPage(str(path), 0)
        environment = {**os.environ, "GANGRUN_PROGRESS_SLOT": str(path), "PYTHONPATH": str(ROOT)}
        ours = float(
            subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
            ).stdout
        )
        del slot
    return {"ours_s": ours, "yardstick_s": per_call_s(os.getppid, 100_000), "yardstick": "one system call (getppid)"}


def journal_record() -> dict:
    """A record appended and fsynced beside a bare write and fsync of as many bytes."""
    from gangrun.adapters.fs.disk import Disk
    from gangrun.adapters.fs.journal import JournalWriter
    from gangrun.wire.record import SCHEMA, Record, encode

    line = encode(Record(v=SCHEMA, term=1, n=1, at=1.0, wall=1.0, kind="ProgressMarked", reason="step 100"))
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        writer = JournalWriter(Disk(), Path(folder) / "1.jsonl")
        ours = per_call_s(lambda: writer.append(line), 50)
        fd = os.open(Path(folder) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def bare() -> None:
            os.write(fd, line)
            os.fsync(fd)

        yardstick = per_call_s(bare, 50)
        os.close(fd)
    return {"ours_s": ours, "yardstick_s": yardstick, "yardstick": "write + fsync of the same bytes"}


def start_up() -> dict:
    """``gangrun --version`` beside an empty python."""
    return {
        "ours_s": process_s([sys.executable, "-m", "gangrun", "--version"]),
        "yardstick_s": process_s([sys.executable, "-c", "pass"]),
        "yardstick": "python -c pass",
    }


def look() -> dict:
    """All that ``gangrun status`` loads beside the libraries that it stands on."""
    return {
        "ours_s": process_s([sys.executable, "-c", "import gangrun.cli.main, gangrun.cli.view"]),
        "yardstick_s": process_s([sys.executable, "-c", "import click, msgspec, dataclasses"]),
        "yardstick": "import click, msgspec, dataclasses",
    }


def decision() -> dict:
    """One core decision on a run of 2,048 nodes beside building its state once."""
    from dataclasses import replace

    from gangrun.core.events import ProgressMarked, Stamped
    from gangrun.core.machine.lifecycle import step
    from gangrun.core.model import Attempt, Node, Phase, Roster, RunState, Shape
    from gangrun.core.policy import Policy

    nodes = {f"n{k}": Node(f"n{k}", "i", "b", 1) for k in range(2048)}
    shape = Shape(2048, 2048, 1, 8)
    state = RunState("r", shape, phase=Phase.RUNNING, roster=Roster(nodes), attempt=Attempt(0))
    policy = Policy()
    event = Stamped(ProgressMarked(0, 10))
    return {
        "ours_s": per_call_s(lambda: step(state, event, 1.0, policy), 2000),
        "yardstick_s": per_call_s(lambda: replace(state, term=1), 2000),
        "yardstick": "one dataclasses.replace of the state",
    }


def printed_line() -> dict:
    """The search for a step in a line that a rank printed, beside the pass through the log writer's splitting."""
    from gangrun.agent.ranks.log_steps import LogSteps

    lines = [
        b"2025-01-02 10:11:12,345 INFO torch.distributed: rank 3 has joined the process group at 10.0.0.7:29500",
        b'[rank3]:   File "/home/a/train.py", line 118, in forward: hidden = self.norm(hidden + residual)',
        b"GPU 0: 71 C, 640 W, memory 71.3 GiB of 79.1 GiB used; batch shape (8, 4096), dtype bfloat16, lr 3.0e-4",
    ]
    steps = LogSteps()
    data = b"\n".join(lines)
    return {
        "ours_s": per_call_s(lambda: [steps.read(line) for line in lines], 20000) / len(lines),
        "yardstick_s": per_call_s(lambda: [line.decode() for line in data.split(b"\n")], 20000) / len(lines),
        "yardstick": "splitting off and decoding the line",
    }


# A process that does nothing but wake so often, to be told its number of wake-ups in a second.
SLEEPER = "import sys, time\nwhile True: time.sleep(1 / float(sys.argv[1]))\n"
IDLE_WARM_S, IDLE_S = 12.0, 20.0


def _threads(pid: int) -> tuple[float, int]:
    """(Processor seconds, times that it went to sleep) of all threads of a process."""
    cpu_ns = slept_count = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((thread / "schedstat").read_text().split()[0])
        lines = (thread / "status").read_text().splitlines()
        slept_count += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return cpu_ns / 1e9, slept_count


def _over_s(pid: int, seconds: float) -> tuple[float, float]:
    """The same, in a second."""
    before, began = _threads(pid), time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    after = _threads(pid)
    return (after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s


def idle_agent() -> dict:
    """A second of an agent whose two ranks sleep, beside a python process that wakes as often."""
    from health import family

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "idle.py"
        script.write_text(f"import time\ntime.sleep({2 * IDLE_S + IDLE_WARM_S + 60})\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": folder}
        words = ["-m", "gangrun", "run", "--no-health", "--nproc-per-node", "2", str(script)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        run = subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, **quiet)
        try:
            time.sleep(IDLE_WARM_S)
            lines = family(run.pid).items()
            agent = next(pid for pid, line in lines if "entry.agent" in line and "node/warden.py" not in line)
            ours_s, per_s = _over_s(agent, IDLE_S)
        finally:
            run.terminate()
            run.wait(60)
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER, str(per_s)])
    try:
        time.sleep(1.0)
        yardstick_s, _ = _over_s(sleeper.pid, IDLE_S)
    finally:
        sleeper.kill()
        sleeper.wait(60)
    return {"ours_s": ours_s, "yardstick_s": yardstick_s, "yardstick": f"python that wakes {per_s:.1f} times a second"}


def measure() -> dict:
    rows = {
        "gangrun.step()": step_report,
        "journal record": journal_record,
        "start-up": start_up,
        "status loaded": look,
        "decision": decision,
        "printed line": printed_line,
        "idle agent, 1 s": idle_agent,
    }
    return {name: call() for name, call in rows.items()}


def table(result: dict) -> str:
    lines = [f"{'path':16} {'ours':>12} {'yardstick':>12} {'ratio':>7}  beside"]
    for name, row in result.items():
        ratio = row["ours_s"] / row["yardstick_s"]
        lines.append(
            f"{name:16} {row['ours_s'] * 1e6:10.2f}us {row['yardstick_s'] * 1e6:10.2f}us {ratio:7.2f}"
            f"  {row['yardstick']}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure()
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
