"""A script of the Hugging Face Trainer, as its users write one: killed in the middle of a save, resumed from a whole
checkpoint."""

from __future__ import annotations

import os

import pytest

from tests.local.harness import Box

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.no_warm]
LONG_S = 200.0

SCRIPT = """
import torch
from transformers import HfArgumentParser, PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

class Tiny(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(8, 1)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x=None, labels=None):
        guess = self.linear(x).squeeze(-1)
        return {"loss": ((guess - labels) ** 2).mean(), "logits": guess}

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return {"x": x, "labels": x.sum()}

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
trainer = Trainer(model=Tiny(PretrainedConfig()), args=args, train_dataset=Numbers())
print("ASKED", args.resume_from_checkpoint, flush=True)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
print("DONE", trainer.state.global_step, flush=True)
import os, sys
sys.stdout.flush()
os._exit(0)  # torch may abort as the interpreter ends, under any launcher
"""
ARGUMENTS = (
    "--output_dir", "out", "--max_steps", "8", "--save_steps", "2", "--logging_steps", "1", "--report_to", "none",
    "--use_cpu", "True", "--disable_tqdm", "True",
)  # fmt: skip
# Rank 0 dies between the weights of checkpoint-6 and its state, by a hook of the interpreter's start: the script knows
# nothing of it.
KILL = """
import os, sys
if os.environ.get("RANK") == "0" and os.environ.get("GANGRUN_ATTEMPT") == "0":
    import signal
    def hook(event, arguments):
        if event == "open" and str(arguments[0]).endswith("checkpoint-6/trainer_state.json"):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
"""


def test_a_rank_is_killed_in_the_middle_of_a_save_and_the_run_goes_on_from_the_one_before(
    box: Box,
) -> None:
    (box.folder / "site").mkdir()
    (box.folder / "site" / "sitecustomize.py").write_text(KILL)
    path = f"{box.folder / 'site'}{os.pathsep}{box.environment['PYTHONPATH']}"
    script = box.script(SCRIPT)
    options = ("--nproc-per-node", "2", "--checkpoint-dir", "out", "--framework", "auto")
    box.start(*options, script, *ARGUMENTS, environment={"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})
    assert box.end(LONG_S) == 0, box.told()
    shown, out = box.out.read_text(), box.work / "out"
    assert f"ASKED {out / 'checkpoint-4'}" in shown and "DONE 8" in shown, shown
    assert box.outcomes() == ["killed", "succeeded"]
    assert sorted(os.listdir(out)) == [f"checkpoint-{step}" for step in (2, 4, 6, 8)]
    (aside,) = (box.work / ".gangrun" / "out" / "set-aside").glob("*/checkpoint-6")
    assert (aside / "model.safetensors").exists() and not (aside / "trainer_state.json").exists()
    assert "adds --resume_from_checkpoint PATH" in box.err.read_text()
    told = " ".join(box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.split())
    assert "taken for a checkpoint of Hugging Face Trainer" in told
    for name in ("optimizer.pt", "trainer_state.json"):  # weights alone: gangrun once gave them out twice
        (out / "checkpoint-8" / name).unlink()
    box.start(*options, script, *ARGUMENTS, environment={"HF_HUB_OFFLINE": "1"})
    assert box.end(LONG_S) == 0, box.told()
    assert f"ASKED {out / 'checkpoint-6'}" in box.out.read_text()
    assert box.outcomes() == ["succeeded"]
