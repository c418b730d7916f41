"""Hangs of a script that reports nothing: how soon each is suspected and found, and which rank is named.

    python benchmarks/hangs.py                     all cases, some minutes
    python benchmarks/hangs.py --cases stop,loop
    python benchmarks/hangs.py --healthy --hours 1    workloads without a hang, in turn; each alarm is printed
    python benchmarks/hangs.py --healthy --hours 1 --beside 10 --each 900    ten at a time: ten hours of training

Each case trains a small model with DDP and gloo (CPU), and breaks in the middle. Seconds count from the fault.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    "stop": ("SIGSTOP", 1, 60),
    "sleep": ("sleeps before a collective, at a new place", 1, 90),
    "known": ("C call without the GIL, at a known place", 1, 90),
    "lock": ("waits for a lock of another thread", 1, 90),
    "group": ("enters the collective of another group", 1, 60),
    "loop": ("Python loop", 1, 110),
    "spin": ("C call without the GIL, at a new place", 1, 110),
    "gil": ("C call that holds the GIL", 1, 110),
}
HEALTHY = ("steps", "straggler", "evaluation", "saves", "naps", "backward", "counts", "polls")
WAIT_S = 90.0
LOOK_EVERY_S = 5.0

SCRIPT = """
import hashlib, os, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
case, told, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=130))
other = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=130))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held = threading.Lock()

def work(iterations): hashlib.pbkdf2_hmac("sha256", b"x", b"y", iterations)

def fault():
    with open(told, "w") as file: file.write(repr(time.time()))
    if case == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if case == "sleep": time.sleep(1e6)
    if case == "loop":
        while True: pass
    if case == "spin": hashlib.pbkdf2_hmac("sha512", b"x", b"y", 2**31 - 1)
    if case == "gil": sum(range(10**13))
    if case == "lock":
        threading.Thread(target=lambda: (held.acquire(), time.sleep(1e6)), daemon=True).start()
        time.sleep(0.1)
        held.acquire()
    if case == "group": dist.all_reduce(torch.ones(1), group=other)

def healthy(step):
    if case == "straggler" and rank == 1 and step % 7 == 0: time.sleep(2)
    if case == "evaluation" and rank == 0 and step % 150 == 120:
        for _ in range(25): work(400_000); time.sleep(0.7)
    if case == "saves" and rank == 0 and step % 150 == 120: time.sleep(20)
    if case == "naps" and step % 20 == 10: time.sleep(15)
    if case == "backward" and step % 40 == 30: work(12_000_000)
    if case == "counts" and rank == 0 and step % 150 == 120:
        for _ in range(20): sum(range(40_000_000))
    if case == "polls" and step % 20 == 10:
        until = time.time() + 5
        while time.time() < until: time.sleep(0.01)

began, step = time.time(), 0
while True:
    loss = model(torch.randn(32, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    work(2**31 - 1 if case == "known" and step >= 150 and rank == 1 else 40_000)
    dist.all_reduce(loss.detach(), group=other)
    step += 1
    if case == "known" and step == 150 and rank == 1:
        with open(told, "w") as file: file.write(repr(time.time()))
    if step == 150 and rank == 1 and seconds == 0 and case != "known": fault()
    healthy(step)
    if seconds and step % 50 == 0:
        over = torch.tensor(float(time.time() - began > seconds))
        dist.all_reduce(over)
        if over > 0: break
dist.destroy_process_group()
"""


def start(folder: Path, case: str, seconds: float, ranks: int, *options: str) -> subprocess.Popen[bytes]:
    """``gangrun run`` of the script in the background."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "gangrun", "run", "--runs-dir", str(folder / "runs"), "--no-health"]
    command += ["--nproc-per-node", str(ranks), "--max-restarts", "0", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "out").open("wb") as out:
        return subprocess.Popen(
            [*command, str(script), case, str(folder / "fault"), str(seconds)],
            cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def status(folder: Path) -> dict[str, object]:
    """``gangrun status --json``; {} before there is a run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "gangrun", "status", "--json", "--runs-dir", str(folder / "runs")],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return dict(json.loads(done.stdout)) if done.returncode == 0 and done.stdout else {}


def one(case: str, ranks: int = 2) -> dict[str, object]:
    """Seconds until the case was suspected and found, and whether the right rank was named."""
    _, culprit, within_s = CASES[case]
    found: dict[str, object] = {"case": case, "suspected_s": None, "hung_s": None, "named": "", "said": ""}
    with tempfile.TemporaryDirectory(prefix="hangs-") as name:
        folder = Path(name)
        process = start(folder, case, 0.0, ranks)
        fault, began = folder / "fault", time.monotonic()
        try:
            while not fault.exists() and time.monotonic() < began + WAIT_S and process.poll() is None:
                time.sleep(0.2)
            fault_at = float(fault.read_text())
            while time.time() < fault_at + within_s:
                seen = status(folder)
                warning = str(seen.get("warning", ""))
                if warning and found["suspected_s"] is None and "rank" in warning:
                    found["suspected_s"] = round(time.time() - fault_at, 1)
                    found["said"] = warning
                    found["named"] = f"rank {culprit} on" in warning
                if process.poll() is not None or "hung" in str(seen.get("reason", "")):
                    found["hung_s"] = round(time.time() - fault_at, 1)
                    break
            process.wait(60)
            found["verdict"] = str(status(folder).get("reason", ""))
            if found["suspected_s"] is None:  # where no time heals it, both come at once
                found["suspected_s"], found["named"] = found["hung_s"], f"rank {culprit} on" in str(found["verdict"])
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
    return found


def watch_healthy(hours: float, ranks: int, each_s: float, first: int = 0, beside: int = 1) -> dict[str, Any]:
    """Healthy workloads in turn, for that long in all: what was suspected, and what the watch stopped (an alarm)."""
    began, trained_s, turn = time.monotonic(), 0.0, first
    suspicions: list[tuple[str, str]] = []
    alarms: list[tuple[str, str, str]] = []
    others: list[tuple[str, str, str]] = []  # ended in another way than by the watch
    while time.monotonic() - began < hours * 3600:
        case = HEALTHY[turn % len(HEALTHY)]
        turn += 1
        with tempfile.TemporaryDirectory(prefix="hangs-") as name:
            folder, started = Path(name), time.monotonic()
            left_s = hours * 3600 - (started - began)
            process, said = start(folder, case, max(60.0, min(each_s, left_s)), ranks), set()
            while process.poll() is None:
                warning = str(status(folder).get("warning", ""))
                if warning:
                    said.add(warning)
                time.sleep(LOOK_EVERY_S * beside)  # each look costs a third of a second of a core
            trained_s += time.monotonic() - started
            suspicions += [(case, max(said))] if said else []
            reason = str(status(folder).get("reason", "")) if process.returncode else ""
            if process.returncode != 0:
                ended = (case, reason, (folder / "out").read_text()[-1500:])
                (alarms if "hung" in reason or "hang" in reason else others).append(ended)
            print(f"{case}: exit {process.returncode}, {reason!r}, suspicions {sorted(said)[-1:]}", flush=True)
    return {
        "hours": round(trained_s / 3600, 2),
        "runs": turn - first,
        "suspicions": suspicions,
        "alarms": alarms,
        "others": others,
    }


def watch_many(hours: float, ranks: int, each_s: float, beside: int) -> dict[str, Any]:
    """The same, so many beside each other, which is also the load under which none may alarm."""
    loads: list[float] = []
    with ThreadPoolExecutor(beside) as pool:
        each = [pool.submit(watch_healthy, hours, ranks, each_s, first, beside) for first in range(beside)]
        while not all(one.done() for one in each):
            wait(each, timeout=60.0)
            loads.append(os.getloadavg()[0])
    found = [one.result() for one in each]
    return {
        "hours": round(sum(one["hours"] for one in found), 2),
        "runs": sum(one["runs"] for one in found),
        "load": (min(loads), statistics.median(loads), max(loads)),
        **{name: [row for one in found for row in one[name]] for name in ("suspicions", "alarms", "others")},
    }


def table(rows: list[dict[str, object]]) -> str:
    """For people."""
    lines = ["| the rank | suspected after s | stopped after s | right rank named |", "|---|---|---|---|"]
    lines += [
        f"| {CASES[str(row['case'])][0]} | {row['suspected_s']} | {row['hung_s']} | {'yes' if row['named'] else 'no'} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--hours", type=float, default=0.5, help="of the clock")
    parser.add_argument("--beside", type=int, default=1, metavar="N", help="so many healthy workloads at a time")
    parser.add_argument("--each", type=float, default=120.0, metavar="SECONDS", help="of one healthy run")
    args = parser.parse_args()
    if args.healthy:
        print(json.dumps(watch_many(args.hours, args.ranks, args.each, args.beside), indent=1))
        return
    rows = []
    for case in args.cases.split(","):
        rows.append(one(case, args.ranks))
        print(json.dumps(rows[-1]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
