"""A script of Lightning, as its users write one: killed in the middle of a save, resumed from a whole checkpoint."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.local.harness import Box

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.no_warm]
LONG_S = 200.0

SCRIPT = """
import signal, sys
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

class Tiny(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        if index == 0:
            print("REQUEUES", signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL, flush=True)
        return ((self.linear(batch).squeeze(-1) - batch.sum(-1)) ** 2).mean()

    def on_train_start(self):
        print("BEGAN", self.trainer.global_step, flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

asked = {asked}
saves = ModelCheckpoint(dirpath="out", every_n_train_steps=2, save_top_k=-1, save_last=True)
trainer = L.Trainer(
    max_steps=8, accelerator="cpu", devices=2, strategy="ddp", logger=False, callbacks=[saves],
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Tiny(), torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=4), ckpt_path=asked)
print("DONE", trainer.global_step, flush=True)
import os, sys
sys.stdout.flush()
os._exit(0)  # torch may abort as the interpreter ends, under any launcher
"""
TAKES_PATH = 'sys.argv[sys.argv.index("--ckpt_path") + 1] if "--ckpt_path" in sys.argv else None'
# The kernel ends rank 0 while it copies that file from $TMPDIR, which is another file system, to its final name: by a
# hook of the interpreter's start, the script knows nothing of it.
KILL = """
import os, sys
if os.environ.get("RANK") == "0" and os.environ.get("GANGRUN_ATTEMPT") == "0":
    import glob, resource, signal
    def hook(event, arguments):
        if event == "shutil.copyfile" and str(arguments[1]).endswith("out/{name}"):
            if glob.glob("out/*step=4.ckpt") and ({at_once} or glob.glob("out/*step=6.ckpt")):
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.addaudithook(hook)
"""


@pytest.mark.parametrize(
    ("torn", "asked", "began", "told"),
    [
        ("last.ckpt", '"last"', 6, "last.ckpt is now a copy of epoch=0-step=6.ckpt"),
        ("epoch=0-step=6.ckpt", TAKES_PATH, 4, "adds --ckpt_path PATH"),
    ],
)
def test_a_rank_is_killed_in_the_middle_of_a_save_and_the_run_goes_on_from_a_whole_one(
    box: Box, torn: str, asked: str, began: int, told: str
) -> None:
    (box.folder / "site").mkdir()
    hook = KILL.replace("{name}", torn).replace("{at_once}", str(torn != "last.ckpt"))
    (box.folder / "site" / "sitecustomize.py").write_text(hook)
    path = f"{box.folder / 'site'}{os.pathsep}{box.environment['PYTHONPATH']}"
    script = box.script(SCRIPT.replace("{asked}", asked))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != os.stat(box.work).st_dev, "another file system"
        inside_slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train"}  # Lightning would requeue such a job itself
        options = ("--nproc-per-node", "2", "--checkpoint-dir", "out", "--framework", "auto")
        box.start(*options, script, environment={"PYTHONPATH": path, "TMPDIR": elsewhere, **inside_slurm})
        assert box.end(LONG_S) == 0, box.told()
    shown, out = box.out.read_text(), box.work / "out"
    assert f"BEGAN {began}" in shown and shown.count("DONE 8") == 2, box.told()
    assert "REQUEUES False" in shown and "REQUEUES True" not in shown
    assert box.outcomes() == ["killed", "succeeded"], box.told()
    steps = sorted(os.listdir(out))
    assert steps == [*(f"epoch=0-step={step}.ckpt" for step in (2, 4, 6, 8)), "last.ckpt"]
    aside = next((box.work / ".gangrun" / "out" / "set-aside").rglob(torn))
    assert 0 < aside.stat().st_size <= 3000
    explained = " ".join(box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.split())
    assert "taken for a checkpoint of Lightning" in explained
    assert told in explained + box.told() + logs_of(box.runs), explained + box.told()


# It takes no path, so each start begins at step 0. Rank 0 is killed at the third save, and then waits there for a stop.
ENDS = """
import os
if os.environ.get("RANK") == "0":
    import signal, sys
    def hook(event, arguments):
        if event == "os.rename" and "step=6" in str(arguments[1]):
            os.kill(os.getpid(), signal.SIGKILL) if os.environ["GANGRUN_ATTEMPT"] == "0" else signal.pause()
    sys.addaudithook(hook)
"""


def test_a_script_that_writes_no_log_and_begins_anew_is_stopped_at_its_first_save(box: Box) -> None:
    (box.folder / "site").mkdir()
    (box.folder / "site" / "sitecustomize.py").write_text(ENDS)
    path = f"{box.folder / 'site'}{os.pathsep}{box.environment['PYTHONPATH']}"
    script = box.script(SCRIPT.replace("{asked}", "None"))
    options = ("--nproc-per-node", "2", "--checkpoint-dir", "out", "--framework", "auto")
    box.start(*options, script, environment={"PYTHONPATH": path, "TMPDIR": str(box.folder)})
    assert box.end(LONG_S) == 1, box.told()
    status = box.status()
    assert box.out.read_text().count("BEGAN 0") == 4 and "DONE" not in box.out.read_text(), box.told()
    assert (status["state"], status["failure"], box.outcomes()[0]) == ("FAILED", "script", "killed"), box.told()
    assert (
        "it started over: the first step seen was 2 although it was given the checkpoint of step 4" in status["reason"]
    )
    assert "the first step that it wrote to a file is 2" in " ".join(box.explain().split())


def logs_of(runs: Path) -> str:
    """All that a run's own processes wrote down."""
    files = (path for path in runs.rglob("*") if path.is_file() and path.suffix in {"", ".log", ".out"})
    return "\n".join(path.read_text("utf-8", "replace") for path in files)
