"""Composer and torchtune, by the layouts that their sources write; and the one file that a script overwrites."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from gangrun.checkpoint.store import Depth
from gangrun.core.checkpoints.resume import Chosen, FromZero, NothingValid, ResumeRequest
from gangrun.core.model import Level
from tests.command_line import Call
from tests.frameworks.damage import NUMBERS, Damage, all_gone, cut, emptied, flipped, gone, room

LINK = "latest-rank0.pt"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sharded") / "one"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save({"state": {"model": {"w": NUMBERS}}}, checkpoint_id=str(made))
    return made


def link(out: Path, target: str) -> None:
    (out / LINK).unlink(missing_ok=True)
    (out / LINK).symlink_to(target)


def one_file(out: Path, batch: int) -> Path:
    out.mkdir(exist_ok=True)
    made = out / f"ep1-ba{batch}-rank0.pt"
    torch.save({"state": {"model": NUMBERS}, "rng": []}, made)
    link(out, made.name)
    return made


def damaged(path: Path, damage: str) -> None:
    {"cut": cut, "emptied": emptied, "flipped": flipped}[damage](path.name)(path.parent)


@pytest.mark.parametrize("naming", ["composer", "auto"])
@pytest.mark.parametrize("torn", ["cut", "emptied", "flipped"])
def test_a_torn_newest_file_of_composer_is_moved_away_and_the_link_names_the_one_before(
    tmp_path: Path, naming: str, torn: str
) -> None:
    out = tmp_path / "out"
    _, good, bad = (one_file(out, batch) for batch in (9, 10, 11))
    damaged(bad, torn)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert found.choice.checkpoint.level is Level.VERIFIED and found.choice.checkpoint.step == 10
    assert "taken for a checkpoint of Composer" in found.choice.reason
    assert os.readlink(out / LINK) == good.name
    assert sorted(os.listdir(out)) == ["ep1-ba10-rank0.pt", "ep1-ba9-rank0.pt", LINK]
    for undo in (found.moved[0].undo, found.retold[0].undo):
        subprocess.run(undo, shell=True, check=True)
    assert bad.is_file() and os.readlink(out / LINK) == bad.name


@pytest.mark.parametrize(
    ("damage", "words"),
    [(gone(".metadata"), "no .metadata"), (cut("__0_0.distcp"), "truncated"), (flipped("__0_0.distcp"), "checksum")],
)
def test_a_torn_sharded_save_of_composer_is_moved_away(
    tmp_path: Path, sharded: Path, damage: Damage, words: str
) -> None:
    out = tmp_path / "out"
    good, bad = (shutil.copytree(sharded, out / f"ep1-ba{batch}") for batch in (10, 11))
    link(out, bad.name)
    damage(bad)
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good)
    assert words in found.choice.passed_over[0].why and os.readlink(out / LINK) == good.name


def test_a_missing_link_is_made_anew_as_composer_would_begin_at_0(tmp_path: Path) -> None:
    good = one_file(tmp_path, 10)
    (tmp_path / LINK).unlink()
    found = room(tmp_path, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert os.readlink(tmp_path / LINK) == good.name
    subprocess.run(found.retold[0].undo, shell=True, check=True)
    assert not os.path.lexists(tmp_path / LINK)


def test_a_first_file_that_was_cut_off_means_begin_anew_and_one_that_was_linked_never_does(tmp_path: Path) -> None:
    out = tmp_path / "out"
    damaged(one_file(out, 10), "cut")
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, NothingValid) and not found.moved
    (out / LINK).unlink()
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and not os.listdir(out)


def epoch(out: Path, number: int, *, shards: int = 2) -> Path:
    """An epoch of torchtune before the last: weights, index, and then the state that all epochs share."""
    made = out / f"epoch_{number}"
    made.mkdir(parents=True)
    names = [f"ft-model-{shard:05d}-of-{shards:05d}.safetensors" for shard in range(1, shards + 1)]
    for name in names:
        header = json.dumps({name: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
        (made / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(64)))
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: name for name in names}}))
    (out / "recipe_state").mkdir(exist_ok=True)
    torch.save({"optimizer": NUMBERS, "epochs_run": number + 1, "seed": 1}, out / "recipe_state" / "recipe_state.pt")
    return made


def last_epoch(out: Path, number: int) -> Path:
    """Without a state."""
    kept = (out / "recipe_state" / "recipe_state.pt").read_bytes()
    made = epoch(out, number)
    (out / "recipe_state" / "recipe_state.pt").write_bytes(kept)
    return made


STATE = "../recipe_state/recipe_state.pt"
SHARD = "ft-model-00002-of-00002.safetensors"


@pytest.mark.parametrize("naming", ["torchtune", "auto"])
def test_weights_without_the_state_of_their_epoch_are_passed_over(tmp_path: Path, naming: str) -> None:
    """A kill between the two, or the last epoch of a run."""
    out = tmp_path / "out"
    good = epoch(out, 0)
    last_epoch(out, 1)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert "recipe_state.pt tells step 0, and the directory is named for step 1" in found.choice.passed_over[0].why
    assert "taken for a checkpoint of torchtune" in found.choice.reason
    assert sorted(os.listdir(out)) == ["epoch_0", "recipe_state"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (gone(SHARD), "1 of 2 shards"),
        (cut(SHARD), SHARD),
        (emptied(SHARD), "empty"),
        (gone("model.safetensors.index.json"), "no index"),
        (all_gone("*"), "no weights"),
        (gone(STATE), "recipe_state.pt is missing"),
        (cut(STATE), "recipe_state.pt"),
        (flipped(STATE), "checksum"),
    ],
)
def test_each_kind_of_damage_of_torchtunes_only_pair_stops_the_run(tmp_path: Path, damage: Damage, words: str) -> None:
    out = tmp_path / "out"
    epoch(out, 0)
    made = epoch(out, 1)
    (one, _) = room(out, "torchtune").survey(Depth.ALL)
    assert one.valid and one.level is Level.COMPLETE
    damage(made)
    found = room(out, "torchtune").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, NothingValid) and not found.moved
    assert words in found.choice.passed_over[0].why, found


def test_asynchronous_epochs_of_torchtune_are_dcp(tmp_path: Path, sharded: Path) -> None:
    out = tmp_path / "out"
    good, bad = (shutil.copytree(sharded, out / f"dist_epoch_{number}") for number in (0, 1))
    flipped("__0_0.distcp")(bad)
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good)
    assert found.choice.checkpoint.level is Level.VERIFIED


@pytest.mark.parametrize("name", ["epoch_4", "checkpoint-4", "global_step4"])
def test_auto_looks_into_a_directory_whose_name_many_give(tmp_path: Path, sharded: Path, name: str) -> None:
    """It was saved by torch.distributed.checkpoint, so it is neither torchtune's nor the Trainer's."""
    shutil.copytree(sharded, tmp_path / "out" / name)
    choice = room(tmp_path / "out", "auto").choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen) and choice.checkpoint.level is Level.VERIFIED


@pytest.mark.parametrize("framework", ["", "auto", "file"])
def test_file_is_what_checkpoint_file_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, gangrun: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": NUMBERS}, "latest.pt")
    flags = ["--framework", framework] if framework else []
    listed = gangrun("checkpoints", "latest.pt", *flags, "--json", "--verify").json
    assert listed["resume_from"]["level"] == "verified"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--framework", "file", "--checkpoint-dir", "."), "--framework file judges one file, and no file is named"),
        (("--framework", "hf", "--checkpoint-file", "a.pt"), "is one file, and --framework hf saves many"),
    ],
)
def test_file_needs_a_file_and_a_file_needs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str, gangrun: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    done = gangrun("run", *flags, "--no-python", "true")
    assert done.code == 2 and words in done.err, done
    if "file" in flags:
        done = gangrun("checkpoints", ".", "--framework", "file")
        assert done.code == 2 and words in done.err, done
