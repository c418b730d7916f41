"""Checkpoints of the Hugging Face Trainer: what makes one whole, which one is chosen, where a torn one goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gangrun.checkpoint.store import Depth
from gangrun.core.checkpoints.resume import Candidate, Chosen, FromZero, NothingValid, ResumeRequest
from gangrun.core.model import Level
from gangrun.frameworks.framework import frameworks_of, known_names
from tests.command_line import Call
from tests.frameworks.damage import cut, flipped, gone, room


def save(out: Path, step: int, ranks: int = 1, *, only_model: bool = False) -> Path:
    """What the Trainer of transformers 5.23 leaves, in its order."""
    made = out / f"checkpoint-{step}"
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    data = bytes(range(64))
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    (made / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    torch.save({"max_steps": 9, "save_only_model": only_model, "seed": 1}, made / "training_args.bin")
    if not only_model:
        for name in ("optimizer.pt", "scheduler.pt"):
            torch.save({"state": torch.arange(64)}, made / name)
        for name in ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]:
            torch.save({"cpu": torch.arange(64)}, made / name)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 9}))
    return made


TORN = {
    "weights missing": (gone("model.safetensors"), "no weights"),
    "weights cut": (cut("model.safetensors"), "truncated"),
    "weights empty": (lambda made: os.truncate(made / "model.safetensors", 0), "empty"),
    "optimizer missing": (gone("optimizer.pt"), "no optimizer.pt: the Trainer would begin with a fresh optimizer"),
    "optimizer cut": (cut("optimizer.pt"), "optimizer.pt"),
    "optimizer flipped": (flipped("optimizer.pt"), "checksum"),
    "scheduler missing": (gone("scheduler.pt"), "no scheduler.pt"),
    "scheduler flipped": (flipped("scheduler.pt"), "checksum"),
    "random state flipped": (flipped("rng_state_1.pth"), "checksum"),
    "a rank's random state missing": (gone("rng_state_1.pth"), "rank 1 had not finished its save"),
    "state missing": (gone("trainer_state.json"), "it has no trainer_state.json"),
    "state empty": (lambda made: os.truncate(made / "trainer_state.json", 0), "trainer_state.json is torn"),
    "state of another step": (
        lambda made: (made / "trainer_state.json").write_text('{"global_step": 4}'),
        "tells step 4",
    ),
    "its own mark": (lambda made: (made / "checkpoint-is-incomplete.txt").touch(), "its save was cut off"),
    "optimizer's directory unfinished": (
        lambda made: ((made / "optimizer_0").mkdir(), (made / "optimizer_0" / "__0_0.distcp").touch()),
        "optimizer_0/",
    ),
}


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("naming", ["hf", "auto", "pattern"])
def test_a_torn_newest_is_moved_out_of_the_trainers_folder_and_the_one_before_is_resumed_from(
    tmp_path: Path, torn: str, naming: str
) -> None:
    """As a pattern names it too: gangrun once took weights alone for a checkpoint, and resumed from it twice."""
    damage, words = TORN[torn]
    out = tmp_path / "out"
    save(out, 2, 2)
    good, bad = save(out, 4, 2), save(out, 6, 2)
    damage(bad)
    there = room(out, "", r"checkpoint-(\d+)") if naming == "pattern" else room(out, naming)
    found = there.choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert words in found.choice.passed_over[0].why
    assert "taken for a checkpoint of Hugging Face Trainer" in found.choice.reason
    (moved,) = found.moved
    assert moved.path == str(bad) and not bad.exists()
    if naming == "pattern":
        return
    assert sorted(os.listdir(out)) == ["checkpoint-2", "checkpoint-4"], "nothing is left in the Trainer's folder"
    subprocess.run(moved.undo, shell=True, check=True)
    assert bad.exists()


def only(out: Path) -> Candidate:
    (one,) = room(out, "hf").survey(Depth.ALL)
    return one


def test_a_whole_one_is_complete_as_safetensors_carry_no_checksums(tmp_path: Path) -> None:
    save(tmp_path / "out", 6, 2)
    one = only(tmp_path / "out")
    assert one.valid and one.level is Level.COMPLETE and one.why_not == "safetensors carry no checksums"


def test_a_resume_without_optimizer_state_is_said(tmp_path: Path) -> None:
    save(tmp_path / "out", 6, only_model=True)
    choice = room(tmp_path / "out", "hf").choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen)
    assert "no optimizer state (save_only_model), so the Trainer begins with a fresh optimizer" in choice.reason


def test_without_random_state_it_counts_and_that_is_said(tmp_path: Path) -> None:
    gone("rng_state.pth")(save(tmp_path / "out", 6))
    one = only(tmp_path / "out")
    assert one.valid and "no random state" in one.why_not


def test_a_folder_of_the_trainer_with_unfinished_saves_only_begins_anew(tmp_path: Path) -> None:
    gone("trainer_state.json")(save(tmp_path / "out", 6))
    found = room(tmp_path / "out", "hf").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and len(found.moved) == 1
    assert not os.listdir(tmp_path / "out")


def test_one_that_was_finished_and_is_damaged_never_means_zero(tmp_path: Path) -> None:
    flipped("optimizer.pt")(save(tmp_path / "out", 6))
    found = room(tmp_path / "out", "hf").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, NothingValid) and not found.moved


def test_a_save_in_place_behind_the_old_marker_is_seen(tmp_path: Path) -> None:
    made = save(tmp_path / "out", 6)
    there = room(tmp_path / "out", "hf")
    assert [one.valid for one in there.survey(Depth.ALL)] == [True]
    flipped("optimizer.pt")(made)
    (one,) = there.survey(Depth.ALL)
    assert not one.valid and "checksum" in one.why_not


def test_an_index_names_shards_that_must_be_there(tmp_path: Path) -> None:
    made = save(tmp_path / "out", 6)
    (made / "model.safetensors").rename(made / "model-00001-of-00002.safetensors")
    shards = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    one = only(tmp_path / "out")
    assert not one.valid and "model-00002-of-00002.safetensors" in one.why_not


def test_nothing_in_a_checkpoint_is_unpickled(tmp_path: Path) -> None:
    made = save(tmp_path / "out", 6)
    torch.save(Bomb(), made / "training_args.bin")
    torch.save(Bomb(), made / "optimizer.pt")
    assert only(tmp_path / "out").valid
    assert not Path("bomb").exists()


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("bomb",)


def test_another_directory_of_that_name_is_no_trainers(tmp_path: Path) -> None:
    """By a pattern: only the Trainer's own files make it the Trainer's."""
    made = save(tmp_path / "out", 6)
    for name in ("trainer_state.json", "training_args.bin", "optimizer.pt"):
        (made / name).unlink()
    (one,) = room(tmp_path / "out", "", r"checkpoint-(\d+)").survey(Depth.ALL)
    assert one.valid and one.kind.value == "safetensors"


def test_the_command_lists_them(tmp_path: Path, gangrun: Call) -> None:
    save(tmp_path / "out", 4)
    gone("optimizer.pt")(save(tmp_path / "out", 6))
    shown = gangrun("checkpoints", str(tmp_path / "out"), "--framework", "auto", "--json")
    listed = shown.json
    assert listed["resume_from"]["step"] == 4
    assert [one["kind"] for one in listed["checkpoints"]] == ["framework", "framework"]
    shown = gangrun("checkpoints", str(tmp_path / "out"))
    assert "--framework hf lets gangrun judge them" in shown.out
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("name", ["verl", "layouts", "../hf", "HF Trainer"])
def test_a_framework_that_gangrun_does_not_know_is_refused(tmp_path: Path, gangrun: Call, name: str) -> None:
    done = gangrun("checkpoints", str(tmp_path), "--framework", name)
    assert done.code == 2 and f"it knows auto, {', '.join(known_names())}" in done.err


NAMED = {
    "checkpoint-5": "hf",
    "global_step5": "deepspeed",
    "step-5": "torchtitan",
    "iter_0000005": "megatron",
    "m--step=5-consumed_samples=1.0": "nemo",
    "ep1-ba5": "composer",
    "ep1-ba5-rank0.pt": "composer",
    "epoch_5": "torchtune",
    "dist_epoch_5": "torchtune",
    "ckpt_5": "dcp",
}


def test_every_name_is_of_one_table_and_of_the_last_at_most() -> None:
    for name in known_names():
        (table,) = frameworks_of(name)
        assert table.name == name
    for name, whose in NAMED.items():
        takers = [one.name for one in frameworks_of("auto") if one.names.fullmatch(name)]
        assert takers[0] == whose and set(takers[1:]) <= {"dcp"}
