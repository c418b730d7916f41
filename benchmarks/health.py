"""What watching a node's health costs its agent while ranks train: memory, and share of one core.

Run:  python benchmarks/health.py [--seconds 60] [--json FILE]

The agent and its watching process together, with `--no-health` and without, beside the bounds that they must keep.
With GPUs or InfiniBand in the machine their reading is in the figure; without them it is host, storage and names.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARM_S = 12.0
MEMORY_MAX_MB, SHARE_MAX = 60.0, 0.005
TICKS = os.sysconf("SC_CLK_TCK")


def family(root: int) -> dict[int, str]:
    """Every process below ``root``: pid -> command line."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, todo = {}, [root]
    while todo:
        parent = todo.pop()
        for pid in [pid for pid, above in parents.items() if above == parent]:
            todo.append(pid)
            try:
                found[pid] = (Path(f"/proc/{pid}/cmdline")).read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return found


def cost(pids: list[int]) -> tuple[float, float]:
    """(CPU seconds with those of children waited for, private and shared memory in MB) of all of them."""
    cpu_s = memory_mb = 0.0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s += sum(int(word) for word in words[11:15]) / TICKS
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
        memory_mb += int(rollup[rollup.index("Rss:") + 1]) / 1024
    return cpu_s, memory_mb


def measured(seconds: float, *flags: str) -> dict:
    """One run of one idle rank, watched for so long."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "idle.py"
        script.write_text(f"import time\ntime.sleep({seconds + WARM_S + 60})\n")
        environment = {name: value for name, value in os.environ.items() if name != "GANGRUN_NO_HEALTH"}
        environment |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": folder}
        command = [sys.executable, "-m", "gangrun", "run", "--nproc-per-node", "1", *flags, str(script)]
        run = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(WARM_S)
            pids = [pid for pid, line in family(run.pid).items() if is_ours(line)]
            before_s, _ = cost(pids)
            time.sleep(seconds)
            after_s, memory_mb = cost(pids)
        finally:
            run.terminate()
            run.wait(60)
    return {"processes": len(pids), "memory_mb": memory_mb, "cpu_share": (after_s - before_s) / seconds}


def is_ours(line: str) -> bool:
    """An agent or its watching process, and no warden, whose command line holds the agent's."""
    return "node/warden.py" not in line and ("entry.agent" in line or "entry.health_watch" in line)


def measure(seconds: float = 60.0) -> dict:
    """With and without."""
    without, with_health = measured(seconds, "--no-health"), measured(seconds)
    return {
        "without": without,
        "with": with_health,
        "health_cpu_share": with_health["cpu_share"] - without["cpu_share"],
        "bounds": {"memory_mb": MEMORY_MAX_MB, "health_cpu_share": SHARE_MAX},
    }


def table(result: dict) -> str:
    """For people."""
    lines = [
        f"{name:8} {one['processes']} processes, {one['memory_mb']:5.1f} MB, {100 * one['cpu_share']:.2f} % of a core"
        for name, one in (("without", result["without"]), ("with", result["with"]))
    ]
    return "\n".join([*lines, f"health alone: {100 * result['health_cpu_share']:.2f} % of a core"])


def main() -> None:
    """Measure and print; 1 where a bound is broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    result = measure(words.seconds)
    print(table(result))
    if words.json:
        words.json.write_text(json.dumps(result, indent=2) + "\n")
    broken = result["with"]["memory_mb"] > MEMORY_MAX_MB or result["health_cpu_share"] > SHARE_MAX
    raise SystemExit(int(broken))


if __name__ == "__main__":
    main()
