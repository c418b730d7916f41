"""A script of Accelerate, as its users write one: killed in the middle of a save, resumed from a whole checkpoint."""

from __future__ import annotations

import json
import os

import pytest

from tests.local.harness import Box

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.no_warm]
LONG_S = 200.0

SCRIPT = """
import os
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

names = ProjectConfiguration(project_dir="out", automatic_checkpoint_naming=True)
accelerator = Accelerator(cpu=True, project_config=names)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
names_there = os.listdir("out/checkpoints") if os.path.isdir("out/checkpoints") else []
saved = sorted(int(name.split("_")[1]) for name in names_there)
if saved:
    accelerator.load_state()
    names.iteration = saved[-1] + 1
print("BEGAN", saved[-1] if saved else None, flush=True)
accelerator.wait_for_everyone()
for number in range(saved[-1] + 1 if saved else 0, 4):
    accelerator.backward(model(torch.randn(4, 8)).mean())
    optimizer.step()
    optimizer.zero_grad()
    accelerator.save_state()
    accelerator.wait_for_everyone()
print("DONE", flush=True)
import os, sys
sys.stdout.flush()
os._exit(0)  # torch may abort as the interpreter ends, under any launcher
"""
# The kernel ends rank 0 while it writes the optimizer of checkpoint_2, by a hook of the interpreter's start: the script
# knows nothing of it. The weights are smaller than the limit.
KILL = """
import os, sys
if os.environ.get("RANK") == "0" and os.environ.get("GANGRUN_ATTEMPT") == "0":
    import resource, signal
    def hook(event, arguments):
        if event == "os.mkdir" and str(arguments[0]).endswith("checkpoint_2"):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.addaudithook(hook)
"""


def test_a_rank_is_killed_in_the_middle_of_a_save_and_the_run_goes_on_from_the_one_before(box: Box) -> None:
    (box.folder / "site").mkdir()
    (box.folder / "site" / "sitecustomize.py").write_text(KILL)
    path = f"{box.folder / 'site'}{os.pathsep}{box.environment['PYTHONPATH']}"
    options = ("--nproc-per-node", "2", "--checkpoint-dir", "out/checkpoints", "--framework", "auto")
    box.start(*options, box.script(SCRIPT), environment={"PYTHONPATH": path})
    assert box.end(LONG_S) == 0, box.told()
    shown, out = box.out.read_text(), box.work / "out" / "checkpoints"
    assert shown.count("BEGAN 1") == 2 and shown.count("DONE") == 2, box.told()
    assert box.outcomes() == ["killed", "succeeded"], box.told()
    assert sorted(os.listdir(out)) == [f"checkpoint_{number}" for number in range(4)]
    (aside,) = (box.work / "out" / ".gangrun").rglob("checkpoint_2")
    assert (aside / "model.safetensors").exists() and not (aside / "random_states_0.pkl").exists()
    told = " ".join(box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.split())
    assert "taken for a checkpoint of Accelerate" in told
    assert "project_configuration.iteration" in told


# All ranks take part in each step, as with a collective, so that none is ahead of another by more than one.
TRACKED = """
import time
from pathlib import Path
import torch
from accelerate import Accelerator
import gangrun

accelerator = Accelerator(cpu=True)
tracker = gangrun.AccelerateTracker(accelerator)
accelerator.init_trackers("run", config={"max_train_steps": 100_000})
model = accelerator.prepare(torch.nn.Linear(8, 1))
for step in range(100_000):
    loss = model(torch.randn(4, 8)).mean()
    accelerator.backward(loss)
    accelerator.log({"loss": loss.item()}, step=step)
    if tracker.asked.checkpoint:
        accelerator.save_state(f"saved-{step}")
        Path(f"saved-{step}", f"told-{accelerator.process_index}").touch()
    if tracker.asked.stop:
        break
    time.sleep(0.02)
import os
os._exit(0)  # torch may abort as the interpreter ends, under any launcher
"""


def test_the_tracker_tells_all_ranks_to_save_at_the_same_step(box: Box) -> None:
    box.start("--nproc-per-node", "2", box.script(TRACKED))
    words = "step 5 of a script that logs through Accelerate"
    seen = box.until_status(words, lambda found: found["state"] == "FAILED" or (found["step"] or -1) >= 5, LONG_S)
    assert seen["state"] == "RUNNING", box.told()
    assert seen["total_steps"] == 100_000 and seen["loss"] is not None, seen
    told = json.loads(box.gangrun("checkpoint", "--json", "--runs-dir", str(box.runs)).stdout)
    saved = box.work / f"saved-{told['step']}"
    box.until(lambda: len(list(saved.glob("told-*"))) == 2, f"a save of both ranks in {saved}")
    box.interrupt(deadline_s=60)
    assert len(list(box.work.glob("saved-*"))) == 2, "one when asked, one before the stop"
