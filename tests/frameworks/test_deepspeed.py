"""Checkpoints of DeepSpeed: all ranks' files must be there, and ``latest`` is a hint that gangrun sets right."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gangrun.checkpoint.store import Depth
from gangrun.core.checkpoints.resume import Chosen, FromZero, NothingValid, ResumeRequest
from gangrun.core.model import Level
from gangrun.frameworks import deepspeed
from tests.command_line import Call
from tests.frameworks.damage import NUMBERS, all_gone, cut, emptied, flipped, gone, room


def save(out: Path, step: int, ranks: int = 2, stage: int = 1, *, parts: int = 1, bf16: bool = False) -> Path:
    """What DeepSpeed 0.19.8 left of real saves with gloo on a CPU, names and keys, in its order; ``latest`` comes last.

    ``parts``: of a model that is cut (tensor parallel), by its sources.
    """
    made = out / f"global_step{step}"
    made.mkdir(parents=True)
    state: dict[str, object] = {
        "module": {"0.weight": NUMBERS}, "optimizer": None if stage else {"state": {}},
        "param_shapes": [{"0.weight": NUMBERS.shape}] if stage else None, "global_steps": step,
        "dp_world_size": ranks, "mp_world_size": parts, "ds_config": {"optimizer": {"type": "Adam"}},
        "ds_version": "0.19.8",
    }  # fmt: skip
    for part in range(parts):
        for rank in range(ranks):
            if stage == 3:
                torch.save(state, made / f"zero_pp_rank_{rank}_mp_rank_{part:02d}_model_states.pt")
        if stage != 3:
            torch.save(state, made / f"mp_rank_{part:02d}_model_states.pt")
        for rank in range(ranks if stage else 0):
            name = f"zero_pp_rank_{rank}_mp_rank_{part:02d}_optim_states.pt"
            torch.save({"optimizer_state_dict": NUMBERS}, made / (f"bf16_{name}" if bf16 else name))
    (out / "latest").write_text(made.name)
    if stage:
        (out / "zero_to_fp32.py").touch()
    return made


SHARD = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
MODEL = "mp_rank_00_model_states.pt"
TORN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a rank's shard missing": (gone(SHARD), f"it has no {SHARD}: 2 ranks saved"),
    "all shards missing": (
        all_gone("*optim*"),
        "it has no zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ),
    "a shard cut": (cut(SHARD), SHARD),
    "a shard empty": (emptied(SHARD), "empty"),
    "a shard flipped": (flipped(SHARD), "checksum"),
    "model states missing": (gone(MODEL), "it has no model states"),
    "model states cut": (cut(MODEL), MODEL),
    "model states flipped": (flipped(MODEL), "checksum"),
    "model states of another step": (
        lambda made: torch.save({"global_steps": 4, "dp_world_size": 2, "mp_world_size": 1}, made / MODEL),
        "global_steps tells step 4",
    ),
    "empty directory": (all_gone("*"), "it has no model states"),
}


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("naming", ["deepspeed", "auto"])
def test_a_torn_newest_is_moved_away_and_latest_names_the_one_before(tmp_path: Path, torn: str, naming: str) -> None:
    damage, words = TORN[torn]
    out = tmp_path / "out"
    save(out, 2)
    good, bad = save(out, 4), save(out, 6)
    damage(bad)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert words in found.choice.passed_over[0].why
    assert "taken for a checkpoint of DeepSpeed" in found.choice.reason
    assert (out / "latest").read_text() == "global_step4"
    assert sorted(os.listdir(out)) == ["global_step2", "global_step4", "latest", "zero_to_fp32.py"]
    (retold,) = found.retold
    assert retold.words == "latest now names step 4 (it named global_step6)"
    for undo in (found.moved[0].undo, retold.undo):
        subprocess.run(undo, shell=True, check=True)
    assert bad.is_dir() and (out / "latest").read_text() == "global_step6"


@pytest.mark.parametrize(
    ("before", "words"), [("", "was empty (torn)"), (None, "was missing"), ("gone7", "named gone7")]
)
def test_latest_is_a_hint_and_the_directories_are_looked_at(tmp_path: Path, before: str | None, words: str) -> None:
    out = tmp_path / "out"
    good = save(out, 4)
    (out / "latest").unlink()
    if before is not None:
        (out / "latest").write_text(before)
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good)
    assert (out / "latest").read_text() == "global_step4"
    assert found.retold[0].words == f"latest now names step 4 (it {words})"


def test_latest_that_names_the_choice_is_not_touched(tmp_path: Path) -> None:
    save(tmp_path / "out", 4)
    before = (tmp_path / "out" / "latest").stat()
    assert not room(tmp_path / "out", "auto").choose_and_set_aside(ResumeRequest(), "run-1").retold
    assert (tmp_path / "out" / "latest").stat() == before


def test_an_older_step_that_is_asked_for_is_named_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    save(out, 2), save(out, 4)
    found = room(out, "deepspeed").choose_and_set_aside(ResumeRequest(kind=ResumeRequest().kind.STEP, step=2), "run-1")
    assert isinstance(found.choice, Chosen) and (out / "latest").read_text() == "global_step2"


def test_a_first_save_that_was_cut_off_means_begin_anew(tmp_path: Path) -> None:
    """``latest`` was not written: no save was ever whole."""
    out = tmp_path / "out"
    gone(SHARD)(save(out, 4))
    (out / "latest").write_text("")
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and len(found.moved) == 1
    assert os.listdir(out) == ["zero_to_fp32.py"], "an empty latest would make DeepSpeed raise"
    assert "was moved away (it was empty" in found.retold[0].words
    assert "no checkpoint was ever committed" in found.choice.reason


@pytest.mark.parametrize("tracked", ["global_step4", "global_step6"])
def test_one_that_latest_vouched_for_never_means_zero(tmp_path: Path, tracked: str) -> None:
    out = tmp_path / "out"
    flipped(SHARD)(save(out, 4))
    (out / "latest").write_text(tracked)
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, NothingValid) and not found.moved and not found.retold
    assert (out / "latest").read_text() == tracked


def test_a_kill_in_the_middle_of_the_runs_first_save_means_begin_anew(tmp_path: Path) -> None:
    """Rank 0 has written ``latest`` while rank 1 still writes: seen with the real DeepSpeed."""
    out = tmp_path / "out"
    cut(SHARD)(save(out, 4))
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1", journal_best_step=4, first=False)
    assert isinstance(found.choice, NothingValid) and not found.moved, "the journal knows that it was whole"
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1", first=False)
    assert isinstance(found.choice, FromZero) and len(found.moved) == 1
    assert os.listdir(out) == ["zero_to_fp32.py"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("bf16", [False, True])
def test_each_stage_is_verified_by_its_checksums(tmp_path: Path, stage: int, bf16: bool) -> None:
    save(tmp_path, 4, 2, stage, bf16=bf16)
    (one,) = room(tmp_path, "deepspeed").survey(Depth.ALL)
    assert one.valid and one.level is Level.VERIFIED, one


@pytest.mark.parametrize(
    ("stage", "lost"),
    [
        (1, "mp_rank_01_model_states.pt"),
        (1, "zero_pp_rank_1_mp_rank_01_optim_states.pt"),
        (3, "zero_pp_rank_1_mp_rank_01_model_states.pt"),
        (3, "zero_pp_rank_0_mp_rank_01_optim_states.pt"),
        (0, "mp_rank_01_model_states.pt"),
    ],
)
def test_each_rank_of_a_cut_model_is_counted(tmp_path: Path, stage: int, lost: str) -> None:
    made = save(tmp_path, 4, 2, stage, parts=2)
    assert room(tmp_path, "deepspeed").survey(Depth.ALL)[0].valid
    gone(lost)(made)
    (one,) = room(tmp_path, "deepspeed").survey(Depth.ALL)
    assert not one.valid and lost in one.why_not


FACTS = {"dp_world_size": 1, "mp_world_size": 2, "optimizer": "", "param_shapes": None}
BOTH = {f"mp_rank_0{part}_model_states.pt" for part in range(2)}


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ({"layer_01-model_00-model_states.pt"}, "layer_01-model_01-model_states.pt"),
        ({"layer_0_expert_1_mp_rank_00_model_states.pt"}, "layer_0_expert_0_mp_rank_00_model_states.pt"),
        (
            {
                "layer_0_expert_0_mp_rank_00_model_states.pt",
                "layer_0_expert_1_mp_rank_00_model_states.pt",
                "layer_0_expert_0_mp_rank_01_model_states.pt",
            },
            "layer_0_expert_1_mp_rank_01_model_states.pt",
        ),
    ],
)
def test_layers_and_experts_are_counted_by_their_numbers(names: set[str], missing: str) -> None:
    """By DeepSpeed's sources: its pipelines and experts do not train on a CPU here."""
    assert deepspeed.FRAMEWORK.flaw(BOTH | names, FACTS) == f"it has no {missing}"
    assert not deepspeed.FRAMEWORK.flaw(BOTH | names | {missing}, FACTS)


def test_a_missing_optimizer_state_is_said(tmp_path: Path) -> None:
    made = save(tmp_path, 4, stage=0)
    state = {"optimizer": None, "param_shapes": None, "global_steps": 4, "dp_world_size": 2, "mp_world_size": 1}
    torch.save(state, made / MODEL)
    choice = room(tmp_path, "deepspeed").choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen) and "it holds no optimizer state" in choice.reason


def test_a_pickle_of_before_torch_1_6_is_unknown_and_never_called_torn(tmp_path: Path) -> None:
    made = save(tmp_path, 4, stage=0)
    torch.save({"global_steps": 4}, made / MODEL, _use_new_zipfile_serialization=False)
    (one,) = room(tmp_path, "deepspeed").survey(Depth.ALL)
    assert one.kind.value == "unknown" and "does not tell dp_world_size" in one.why_not


def test_the_command_lists_them_and_names_the_framework(tmp_path: Path, gangrun: Call) -> None:
    out = tmp_path / "out"
    save(out, 4)
    gone(SHARD)(save(out, 6))
    assert gangrun("checkpoints", str(out), "--framework", "auto", "--json").json["resume_from"]["step"] == 4
    assert "--framework deepspeed lets gangrun judge them" in gangrun("checkpoints", str(out)).out
    assert (out / "latest").read_text() == "global_step6", "looking changes nothing"
