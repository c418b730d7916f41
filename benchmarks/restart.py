"""kill -9 of a random rank -> first step of the next attempt: gangrun and torchrun in turn, same script, same machine.

torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it, it hangs in some rounds on a stale store.
Ranks of both train for ``--warm-up`` seconds before the kill: gangrun's standbys have imported their modules by then.
Run:  python benchmarks/restart.py [--rounds 20] [--ranks 2] [--warm-up 25] [--json FILE]
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60.0


def rows(folder: Path, rank: int) -> list[tuple[int, int, float, int]]:
    try:
        lines = (folder / f"rank-{rank}").read_text().splitlines()
    except OSError:
        return []
    return [
        (int(g), int(s), float(t), int(p)) for g, s, t, p in (line.split() for line in lines if line.count(" ") == 3)
    ]


def until(condition, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise TimeoutError(f"{what}: nothing within {PATIENCE_S:.0f} s")


def command(tool: str, folder: Path, ranks: int) -> list[str]:
    script = [str(HERE / "stepper.py"), str(folder)]
    if tool == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                "--max-restarts=3", *script]  # fmt: skip
    return [
        sys.executable,
        "-m",
        "gangrun",
        "run",
        f"--nproc-per-node={ranks}",
        "--runs-dir",
        str(folder / "runs"),
        *script,
    ]


def one_round(tool: str, ranks: int, draw: random.Random, warm_up_s: float) -> float:
    """Seconds from the kill to rank 0's first step in the next attempt."""
    with tempfile.TemporaryDirectory(prefix="gangrun-bench-") as name:
        folder = Path(name)
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "out").open("wb") as out:
            run = subprocess.Popen(
                command(tool, folder, ranks),
                stdout=out,
                stderr=out,
                env=environment,
                cwd=HERE.parent,
                start_new_session=True,
            )
            try:
                until(lambda: all(len(rows(folder, rank)) > 10 for rank in range(ranks)), f"{tool} start")
                time.sleep(warm_up_s)
                victim = rows(folder, draw.randrange(ranks))[-1][3]
                killed_at = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                again = until(
                    lambda: [row for row in rows(folder, 0) if row[2] > killed_at and row[0] > 0], f"{tool} restart"
                )
                return again[0][2] - killed_at
            finally:
                run.send_signal(signal.SIGINT)
                try:
                    run.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(run.pid, signal.SIGKILL)
                    run.wait()


def measure(rounds: int, ranks: int, seed: int = 1, warm_up_s: float = 25.0) -> dict:
    draw = random.Random(seed)
    times: dict[str, list[float]] = {"gangrun": [], "torchrun": []}
    failed = dict.fromkeys(times, 0)
    for number in range(rounds):
        for tool, taken in times.items():
            try:
                taken.append(one_round(tool, ranks, draw, warm_up_s))
            except TimeoutError as error:
                failed[tool] += 1
                print(f"round {number}: {error}", file=sys.stderr)
            else:
                print(f"round {number}: {tool} {taken[-1]:.2f} s", file=sys.stderr, flush=True)
    result = {"rounds": rounds, "ranks": ranks, "warm_up_s": warm_up_s, "failed": failed}
    for tool, seconds in times.items():
        result[tool] = (
            {"median_s": statistics.median(seconds), "min_s": min(seconds), "max_s": max(seconds)} if seconds else {}
        )
    result["ratio"] = result["gangrun"]["median_s"] / result["torchrun"]["median_s"]
    return result


def table(result: dict) -> str:
    rounds = result["rounds"]
    lines = [f"{'kill -9 -> step':16} {'median':>8} {'min':>8} {'max':>8}  came back"]
    for tool in ("gangrun", "torchrun"):
        row, back = result[tool], rounds - result["failed"][tool]
        lines.append(f"{tool:16} {row['median_s']:7.2f}s {row['min_s']:7.2f}s {row['max_s']:7.2f}s  {back}/{rounds}")
    lines.append(f"ratio of medians (gangrun / torchrun): {result['ratio']:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--warm-up", type=float, default=25.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.rounds, args.ranks, warm_up_s=args.warm_up)
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
