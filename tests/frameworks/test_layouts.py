"""Names as frameworks give them, and what is said of a directory that holds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangrun.checkpoint.scan import step_pattern
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.core.checkpoints.resume import FromZero, ResumeRequest
from gangrun.frameworks.layouts import LAYOUTS, Entry, layout_of, told
from tests.command_line import Call

# As each framework names them, from its sources or from a real save: name, whether a directory, framework, step.
NAMED = [
    ("checkpoint-500", True, "Hugging Face Trainer", 500),
    ("checkpoint_0", True, "Accelerate", 0),
    ("step-500", True, "torchtitan", 500),
    ("global_step500", True, "DeepSpeed", 500),
    ("iter_0000500", True, "Megatron", 500),
    ("llama--val_loss=2.31-step=999-consumed_samples=512000.0-last", True, "NeMo", 999),
    ("epoch=0-step=500.ckpt", True, "Lightning", 500),
    ("epoch_3", True, "torchtune", 3),
    ("dist_epoch_3", True, "torchtune", 3),
    ("step_500", True, "a script with Accelerate", 500),
    ("ep1-ba200", True, "Composer", 200),
    ("latest", False, "DeepSpeed", None),
    ("latest_checkpointed_iteration.txt", False, "Megatron", None),
    ("ep1-ba200-rank0.pt", False, "Composer", None),
    ("epoch=0-step=500-v1.ckpt", False, "Lightning", None),
    ("last.ckpt", False, "Lightning", None),
    ("latest.pt", False, "torch.save", None),
    ("latest.pt.1", False, "torch.save", None),
    ("pytorch_model.bin", False, "torch.save", None),
    ("checkpoint.pth.tar", False, "torch.save", None),
    ("model.safetensors", False, "safetensors", None),
    (".metadata", False, "torch.distributed.checkpoint in this very directory", None),
]


@pytest.mark.parametrize(("name", "is_directory", "framework", "step"), NAMED, ids=[row[0] for row in NAMED])
def test_a_name_tells_its_framework_and_the_pattern_its_step(
    name: str, is_directory: bool, framework: str, step: int | None
) -> None:
    layout = layout_of(Entry(name, is_directory))
    assert layout is not None and layout.framework == framework
    assert (step_pattern(layout.pattern).step_of(name) if layout.pattern else None) == step
    assert layout_of(Entry(name, not is_directory)) is None or name.endswith(".ckpt")


def test_every_row_of_the_table_has_an_example() -> None:
    seen = {id(layout_of(Entry(name, is_directory))) for name, is_directory, _, _ in NAMED}
    assert seen == {id(layout) for layout in LAYOUTS}


@pytest.mark.parametrize("name", ["train.log", "events.out.tfevents.1", "config.yaml", "runs"])
def test_other_names_are_nobodys_and_said(name: str) -> None:
    assert layout_of(Entry(name, name == "runs")) is None
    assert told([Entry(name, name == "runs"), Entry(".nfs01", False)]) == (
        f"the directory holds {name}, and no checkpoint that gangrun knows"
    )
    assert not told([Entry(".nfs01", False)])


def test_a_directory_of_such_names_is_told_with_framework_and_option(tmp_path: Path) -> None:
    for step in (20, 30, 40, 50):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "latest.pt").touch()
    choice = CheckpointRoom(str(tmp_path)).choose_and_set_aside(ResumeRequest(), "r-0").choice
    assert isinstance(choice, FromZero)
    assert choice.reason == (
        "the script itself decides what to load: gangrun cannot judge checkpoint-20, checkpoint-30, checkpoint-40 and "
        "1 more (looks like Hugging Face Trainer; --framework hf lets gangrun judge them), "
        "nor latest.pt (looks like torch.save; --checkpoint-file FILE lets gangrun judge one that the script "
        "overwrites)"
    )
    assert len(list(tmp_path.iterdir())) == 5 + (tmp_path / ".gangrun").exists()


def test_gangrun_checkpoints_says_it_too(home: Path, gangrun: Call) -> None:
    (home / "ckpt" / "global_step7").mkdir(parents=True)
    (home / "ckpt" / "latest").touch()
    told = gangrun("checkpoints", str(home / "ckpt"), "--json").json
    found = re.findall(r"(\S+) \(looks like (\w+)", told["reason"])
    assert found == [("global_step7", "DeepSpeed"), ("latest", "DeepSpeed")]
    assert "no checkpoint was ever committed" not in told["reason"]
