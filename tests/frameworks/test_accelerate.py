"""Checkpoints of Accelerate's save_state: numbered directories without a marker of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from gangrun.checkpoint.store import Depth
from gangrun.core.checkpoints.resume import Chosen, FromZero, ResumeRequest
from tests.frameworks.damage import NUMBERS, Damage, cut, emptied, flipped, gone, room


def save(out: Path, number: int, ranks: int = 2) -> Path:
    """What accelerate 1.15 leaves, in its order."""
    made = out / f"checkpoint_{number}"
    made.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    (made / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    for name in ("optimizer.bin", "scheduler.bin", *(f"random_states_{rank}.pkl" for rank in range(ranks))):
        torch.save({"state": NUMBERS}, made / name)
    return made


TORN: dict[str, tuple[Damage, str]] = {
    "weights missing": (gone("model.safetensors"), "no weights"),
    "weights cut": (cut("model.safetensors"), "truncated"),
    "optimizer cut": (cut("optimizer.bin"), "optimizer.bin"),
    "optimizer empty": (emptied("optimizer.bin"), "empty"),
    "optimizer flipped": (flipped("optimizer.bin"), "checksum"),
    "scheduler flipped": (flipped("scheduler.bin"), "checksum"),
    "random state cut": (cut("random_states_0.pkl"), "random_states_0.pkl"),
    "random state of another rank flipped": (flipped("random_states_1.pkl"), "checksum"),
    "random state of rank 0 missing": (gone("random_states_0.pkl"), "which Accelerate writes last"),
}


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("naming", ["accelerate", "auto"])
def test_a_torn_newest_is_moved_out_and_the_one_before_is_chosen(tmp_path: Path, torn: str, naming: str) -> None:
    damage, words = TORN[torn]
    out = tmp_path / "checkpoints"
    save(out, 0)
    good, bad = save(out, 1), save(out, 2)
    damage(bad)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert words in found.choice.passed_over[0].why
    assert "taken for a checkpoint of Accelerate" in found.choice.reason
    assert "the next save_state() fails unless the script sets project_configuration.iteration" in found.choice.reason
    assert sorted(os.listdir(out)) == ["checkpoint_0", "checkpoint_1"], "load_state trips over any other name"
    subprocess.run(found.moved[0].undo, shell=True, check=True)
    assert bad.exists()


def test_a_rank_between_others_that_did_not_finish_is_seen(tmp_path: Path) -> None:
    gone("random_states_1.pkl")(save(tmp_path, 3, ranks=3))
    (one,) = room(tmp_path, "accelerate").survey(Depth.ALL)
    assert not one.valid and "rank 1 had not finished its save" in one.why_not


def test_a_first_save_that_was_cut_off_means_begin_anew(tmp_path: Path) -> None:
    out = tmp_path / "checkpoints"
    made = save(out, 0)
    for name in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl", "random_states_1.pkl"):
        (made / name).unlink()
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and not os.listdir(out)


def test_a_directory_of_torch_distributed_checkpoint_with_that_name_is_no_accelerates(tmp_path: Path) -> None:
    made = tmp_path / "checkpoint_3"
    made.mkdir()
    (made / "__0_0.distcp").touch()
    (one,) = room(tmp_path, "auto").survey(Depth.ALL)
    assert not one.valid and "it has no .metadata" in one.why_not
