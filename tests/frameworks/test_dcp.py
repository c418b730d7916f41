"""Directories of torch.distributed.checkpoint, under any name and under torchtitan's; all saved by torch itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from gangrun.checkpoint.store import Depth
from gangrun.config.request import Request, resolved, resume_argument_of
from gangrun.core.checkpoints.resume import Chosen, FromZero, NothingValid, ResumeRequest
from gangrun.core.model import Level
from gangrun.frameworks.framework import frameworks_of
from tests.frameworks.damage import NUMBERS, Damage, cut, emptied, flipped, gone, room


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """One whole save, and one of the model alone, with torchtitan's keys."""
    root, made = tmp_path_factory.mktemp("saved"), {}
    for whole in (True, False):
        state = {"layers.0.weight": NUMBERS, "norm.weight": torch.ones(3)}
        if whole:
            state |= {"optimizer": {"exp_avg": NUMBERS + 1}, "train_state": {"step": torch.tensor(4)}}
        made[whole] = root / str(whole)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(state, checkpoint_id=str(made[whole]))
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


TORN: dict[str, tuple[Damage, str]] = {
    "not finished": (gone(".metadata"), "unfinished (never committed): it has no .metadata"),
    "finished by half": (lambda made: (made / ".metadata").rename(made / ".metadata.tmp"), "it has no .metadata"),
    "metadata empty": (emptied(".metadata"), ".metadata is empty (torn)"),
    "metadata cut": (cut(".metadata"), ".metadata"),
    "shard missing": (gone("__0_0.distcp"), "__0_0.distcp is missing"),
    "shard cut": (cut("__0_0.distcp"), "truncated"),
    "shard flipped": (flipped("__0_0.distcp"), "checksum"),
}


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize(
    ("naming", "name", "title"),
    [
        ("torchtitan", "step-{}", "torchtitan"),
        ("auto", "step-{}", "torchtitan"),
        ("dcp", "step-{}", "torch.distributed.checkpoint"),
        ("dcp", "global_step{}", "torch.distributed.checkpoint"),
        ("auto", "ckpt_{}", "torch.distributed.checkpoint"),
    ],
)
def test_a_torn_newest_is_moved_out_of_the_folder_and_the_one_before_is_resumed_from(
    out: Path, saved: dict[bool, Path], torn: str, naming: str, name: str, title: str
) -> None:
    damage, words = TORN[torn]
    for step in (2, 4, 6):
        shutil.copytree(saved[True], out / name.format(step))
    damage(out / name.format(6))
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(out / name.format(4)), found
    assert found.choice.checkpoint.level is Level.VERIFIED
    assert words in found.choice.passed_over[0].why
    assert f"taken for a checkpoint of {title}" in found.choice.reason
    assert sorted(os.listdir(out)) == [name.format(2), name.format(4)]
    subprocess.run(found.moved[0].undo, shell=True, check=True)
    assert (out / name.format(6)).is_dir()


def test_a_save_of_the_model_alone_is_said(out: Path, saved: dict[bool, Path]) -> None:
    shutil.copytree(saved[False], out / "step-4")
    choice = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen) and "it holds the model alone" in choice.reason
    shutil.rmtree(out / "step-4")
    shutil.copytree(saved[True], out / "step-4")
    choice = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen) and "model alone" not in choice.reason


def test_unfinished_ones_alone_mean_begin_anew_and_damaged_ones_never_do(out: Path, saved: dict[bool, Path]) -> None:
    made = shutil.copytree(saved[True], out / "step-4")
    flipped("__0_0.distcp")(made)
    assert isinstance(room(out, "torchtitan").choose_and_set_aside(ResumeRequest(), "run-1").choice, NothingValid)
    gone(".metadata")(made)
    found = room(out, "torchtitan").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and not os.listdir(out)


def test_a_save_of_safetensors_is_judged_by_its_index(out: Path) -> None:
    """torchtitan's last save may be one of Hugging Face's: without its index, torchtitan does not see it either."""
    (out / "step-4").mkdir()
    (out / "step-4" / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-1.safetensors"}}')
    (one,) = room(out, "torchtitan").survey(Depth.ALL)
    assert not one.valid and "model-1.safetensors is missing" in one.why_not


@pytest.mark.parametrize(
    "name", ["step-5", "global_step5", "checkpoint_5", "iter-5", "ckpt5", "globalstep_5", "epoch=5"]
)
def test_names_of_any_script(name: str) -> None:
    (table,) = frameworks_of("dcp")
    assert table.step_of(name) == 5 and table.step_of(f"{name}.tmp") is None and table.step_of(f"my{name}") is None


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (("-m", "torchtitan.train", "--module", "llama3"), "--checkpoint.load_step={step}"),
        (("-m", "another.module"), ""),
        (("mine.py",), "--checkpoint.load_step={step}"),
        (("others.py",), ""),
    ],
)
def test_torchtitan_is_told_the_step_and_other_scripts_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], added: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from torchtitan.train import main\n")
    Path("others.py").write_text("import torch\n")
    module = words[1] if words[0] == "-m" else ""
    request = Request(
        words[2:] if module else words, module, flags={"framework": "auto", "checkpoint_dir": str(tmp_path)}
    )
    done = resolved(request, {})
    assert resume_argument_of(done.settings, done.argv)[0] == added
    assert any("adds --checkpoint.load_step=STEP to the script's" in told for told in done.warnings) is bool(added)
    assert any("unless a tracker file of its framework does" in told for told in done.warnings) is not bool(added)


def test_a_framework_with_a_tracker_needs_no_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import deepspeed\n")
    done = resolved(Request(("train.py",), flags={"framework": "deepspeed", "checkpoint_dir": str(tmp_path)}), {})
    told = "--framework deepspeed: before each attempt, gangrun lets latest name the checkpoint to load"
    assert told in done.warnings and not resume_argument_of(done.settings, done.argv)[0]
