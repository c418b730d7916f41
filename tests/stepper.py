"""A gang without torch: every rank steps until all files of the step are there, as a collective would make it.

Its words: the folder for what ranks leave, the number of steps, seconds between steps, steps between saves (0: none).
"""

from __future__ import annotations

import inspect
import math


def trained(weights: list[float], step: int) -> list[float]:
    """A step's work on the weights: each depends on all steps before it, in their order, to the last bit."""
    return [0.9 * weight + math.sin(step + weight) for weight in weights]


FIRST_WEIGHTS = [1.0, 2.0, 3.0]

# The clock is one for all hosts of the cluster, so that the lines of all ranks can be put in order. If MAY_END names a
# file, the last step is done once that is there: however slow the machine, no run is over before the test did its part.
# The weights come from the checkpoint that is resumed from, if it has any, and each rank leaves what became of them.
STEPPER = """
import json, math
TRAINED
import os, shutil, signal, sys, time
from pathlib import Path
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt, host = int(os.environ["GANGRUN_ATTEMPT"]), os.uname().nodename
folder, steps, pace, every = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
meet, saves = folder / f"attempt-{attempt}", folder / "saves"
meet.mkdir(parents=True, exist_ok=True)
start = int(os.environ.get("GANGRUN_RESUME_STEP") or 0)
loaded = Path(os.environ.get("GANGRUN_RESUME") or "/", "weights")
if loaded.exists(): weights = json.loads(loaded.read_text())
def hook(step): pass
exec(os.environ.get("HOOK", ""))
(meet / f"up.{rank}").touch()
for step in range(start, steps):
    while step == steps - 1 and not os.path.exists(os.environ.get("MAY_END") or "/"):
        time.sleep(0.01)
    hook(step)
    (meet / f"{step}.{rank}").touch()
    while not all((meet / f"{step}.{r}").exists() for r in range(world)):
        time.sleep(0.01)
    with open(folder / f"rank-{rank}.log", "a", buffering=1) as log:
        log.write(f"{attempt} {step} {time.monotonic()} {os.getpid()} {host}\\n")
    if pace: print(f"step {step}", flush=True)
    weights, done = trained(weights, step), step + 1
    if rank == 0 and every and done % every == 0 and not (saves / f"step-{done}").exists():
        shutil.rmtree(saves / "unfinished", ignore_errors=True)
        shutil.copytree(os.environ["TINY"], saves / "unfinished")
        (saves / "unfinished" / "weights").write_text(json.dumps(weights))
        (saves / "unfinished").rename(saves / f"step-{done}")
    time.sleep(pace)
(folder / f"final-{rank}").write_text(json.dumps(weights))
""".replace("TRAINED", f"{inspect.getsource(trained)}\nweights = {FIRST_WEIGHTS}")
