"""Train on four ranks, kill one in the middle, and watch the run come back.

Two runs of the same script (examples/ddp_minimal): one undisturbed, one in which a rank is killed with SIGKILL. Then
the story as gangrun tells it, and the proof that both ended with the same weights, bit for bit.
Run it with  make demo  or  python examples/kill_a_rank/demo.py
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAIN = HERE.parent / "ddp_minimal" / "train.py"
GANGRUN = [sys.executable, "-m", "gangrun"]
RANKS, STEPS, KILL_AT = 4, 60, 30
PATIENCE_S = 120.0
QUIET = ["--env", "TORCH_CPP_LOG_LEVEL=ERROR"]  # DDP warns at length of what train.py asks for on purpose


def say(text: str) -> None:
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def start(work: Path, name: str) -> subprocess.Popen:
    command = [
        *GANGRUN, "run", "--nproc-per-node", str(RANKS), "--name", name, "--runs-dir", str(work / "runs"),
        "--checkpoint-dir", str(work / name), *QUIET, str(TRAIN),
        "--steps", str(STEPS), "--step-time", "0.1", "--checkpoint-dir", str(work / name),
        "--final", str(work / f"{name}.sha256"),
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=work)


def ranks_of(work: Path, name: str) -> dict[int, int]:
    """Rank -> pid, found as a person would find them: by what the processes were given."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        environment = dict(word.split(b"=", 1) for word in words if b"=" in word)
        if str(work / name).encode() in command and b"GANGRUN_RUN" in environment:
            found[int(environment[b"RANK"])] = int(entry.name)
    return found


def wait_for_step(work: Path, name: str, step: int) -> None:
    """Until a checkpoint of ``step`` is there, which is when a death is worth showing."""
    deadline = time.monotonic() + PATIENCE_S
    while not (work / name / f"step-{step}" / ".metadata").exists():
        if time.monotonic() > deadline:
            sys.exit(f"no checkpoint of step {step} within {PATIENCE_S:.0f} s")
        time.sleep(0.05)


def main() -> int:
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="gangrun-demo-"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    say(f"1. {RANKS} ranks, {STEPS} steps, nothing goes wrong")
    if start(work, "calm").wait() != 0:
        return 1
    say("2. The same again, and a rank is killed in the middle")
    run = start(work, "killed")
    wait_for_step(work, "killed", KILL_AT)
    victim = ranks_of(work, "killed")[2]
    print(f"\n>>> kill -9 {victim}   (rank 2, after the checkpoint of step {KILL_AT})\n", flush=True)
    os.kill(victim, signal.SIGKILL)
    if run.wait() != 0:
        return 1
    say("3. What happened, as gangrun tells it")
    subprocess.run([*GANGRUN, "explain", "killed", "--runs-dir", str(work / "runs")], check=True)
    status = json.loads(
        subprocess.run(
            [*GANGRUN, "status", "killed", "--json", "--runs-dir", str(work / "runs")],
            check=True, capture_output=True, text=True,
        ).stdout
    )  # fmt: skip
    say("4. The proof")
    calm, killed = ((work / f"{name}.sha256").read_text().strip() for name in ("calm", "killed"))
    print(f"undisturbed run: {calm}\nkilled run:      {killed}")
    print(f"restarts: {status['restarts']}, resumed from step {status['attempts'][-1]['resumed_from_step']}")
    if calm != killed or status["restarts"] != 1:
        print("NOT EQUAL: this is a bug in gangrun, please report it")
        return 1
    print(f"The weights are equal bit for bit. {time.monotonic() - began:.0f} s in all; files in {work}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
