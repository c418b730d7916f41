"""Megatron and NeMo, by the layouts that their sources write; the directories in them are saved by torch itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from gangrun.checkpoint.store import Depth
from gangrun.core.checkpoints.resume import Chosen, FromZero, NothingValid, ResumeRequest
from gangrun.core.model import Level
from gangrun.frameworks import megatron
from tests.frameworks.damage import NUMBERS, Damage, all_gone, cut, emptied, flipped, gone, room

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What megatron-core 0.16.1 writes with torch_dist."""
    made = tmp_path_factory.mktemp("core") / "core"
    made.mkdir()
    torch.save({"args": Namespace(iteration=3), "iteration": 4, "state": NUMBERS}, made / "common.pt")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save({"decoder.weight": NUMBERS, "optimizer.state.exp_avg": NUMBERS + 2}, checkpoint_id=str(made))
    config = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    (made / "metadata.json").write_text(json.dumps(config))
    return made


def iteration(out: Path, step: int, core: Path) -> Path:
    made = shutil.copytree(core, out / f"iter_{step:07d}")
    (out / TRACKER).write_text(str(step))
    return made


def old(out: Path, step: int, parallel: tuple[int, int] = (2, 2)) -> Path:
    """``--ckpt-format torch``, of a model cut into tensor and pipeline parts."""
    made = out / f"iter_{step:07d}"
    tensor, pipeline = parallel
    args = Namespace(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, iteration=0)
    args.expert_model_parallel_size = 1
    for t in range(tensor):
        for p in range(pipeline):
            part = made / (f"mp_rank_{t:02d}_{p:03d}" if pipeline > 1 else f"mp_rank_{t:02d}")
            part.mkdir(parents=True)
            torch.save({"args": args, "iteration": step, "model": NUMBERS}, part / "model_optim_rng.pt")
            torch.save({"optimizer": NUMBERS}, part / "distrib_optim.pt")
    (out / TRACKER).write_text(str(step))
    return made


CORE: dict[str, tuple[Damage, str]] = {
    "metadata missing": (gone(".metadata"), "it has no .metadata"),
    "metadata cut": (cut(".metadata"), ".metadata"),
    "config missing": (gone("metadata.json"), "it has no metadata.json, which comes last"),
    "config empty": (emptied("metadata.json"), "metadata.json is empty (torn)"),
    "common cut": (cut("common.pt"), "common.pt"),
    "common flipped": (flipped("common.pt"), "common.pt"),
    "shard missing": (gone("__0_0.distcp"), "__0_0.distcp is missing"),
    "shard cut": (cut("__0_0.distcp"), "truncated"),
    "shard flipped": (flipped("__0_0.distcp"), "checksum"),
    "all gone": (all_gone("*"), "it has no .metadata"),
}
OLD: dict[str, tuple[Damage, str]] = {
    "a part's file missing": (gone("mp_rank_01_000/model_optim_rng.pt"), "it has no model_optim_rng.pt of part 1_0"),
    "a part missing": (lambda made: shutil.rmtree(made / "mp_rank_00_001"), "of part 0_1"),
    "the last parts missing": (
        all_gone("mp_rank_0?_001"),
        "it has 2 of 4 parts",
    ),
    "a part cut": (cut("mp_rank_01_001/model_optim_rng.pt"), "model_optim_rng.pt"),
    "a part flipped": (flipped("mp_rank_00_000/model_optim_rng.pt"), "checksum"),
    "optimizer missing": (gone("mp_rank_01_001/distrib_optim.pt"), "it has no mp_rank_01_001/distrib_optim.pt"),
    "optimizer empty": (emptied("mp_rank_01_001/distrib_optim.pt"), "empty"),
    "two saves": (lambda made: shutil.copytree(made / "mp_rank_00_000", made / "mp_rank_00"), "two saves are mixed"),
}


@pytest.mark.parametrize("naming", ["megatron", "auto"])
@pytest.mark.parametrize(("form", "torn"), [*(("core", one) for one in CORE), *(("old", one) for one in OLD)])
def test_a_torn_newest_is_moved_away_and_the_tracker_names_the_one_before(
    tmp_path: Path, core: Path, naming: str, form: str, torn: str
) -> None:
    damage, words = (CORE if form == "core" else OLD)[torn]
    out = tmp_path / "out"
    _, good, bad = (iteration(out, step, core) if form == "core" else old(out, step) for step in (2, 4, 6))
    damage(bad)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert words in found.choice.passed_over[0].why
    assert "taken for a checkpoint of Megatron" in found.choice.reason
    assert (out / TRACKER).read_text() == "4"
    assert sorted(os.listdir(out)) == ["iter_0000002", "iter_0000004", TRACKER]
    for undo in (found.moved[0].undo, found.retold[0].undo):
        subprocess.run(undo, shell=True, check=True)
    assert bad.is_dir() and (out / TRACKER).read_text() == "6"


@pytest.mark.parametrize("tracked", ["", "\0\0\0", "garbage", "7", None])
def test_the_tracker_is_a_hint_that_is_set_right(tmp_path: Path, core: Path, tracked: str | None) -> None:
    iteration(tmp_path, 4, core)
    (tmp_path / TRACKER).unlink()
    if tracked is not None:
        (tmp_path / TRACKER).write_text(tracked)
    room(tmp_path, "megatron").choose_and_set_aside(ResumeRequest(), "run-1")
    assert (tmp_path / TRACKER).read_text() == "4"


def test_a_first_save_that_was_cut_off_leaves_the_weights_to_begin_with(tmp_path: Path, core: Path) -> None:
    out = tmp_path / "out"
    gone(".metadata")(iteration(out, 4, core))
    (out / TRACKER).write_text("release")
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and len(found.moved) == 1
    assert (out / TRACKER).read_text() == "release", "it names converted weights"


def test_an_empty_tracker_is_moved_away_as_megatron_would_exit_with_0(tmp_path: Path, core: Path) -> None:
    out = tmp_path / "out"
    gone(".metadata")(iteration(out, 4, core))
    (out / TRACKER).write_text("")
    assert isinstance(room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1").choice, FromZero)
    assert not os.listdir(out)


def test_one_that_the_tracker_vouched_for_never_means_zero(tmp_path: Path, core: Path) -> None:
    gone(".metadata")(iteration(tmp_path, 4, core))
    found = room(tmp_path, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, NothingValid) and not found.moved


@pytest.mark.parametrize("parallel", [(1, 1), (2, 1), (2, 2)])
def test_whole_ones_are_verified(tmp_path: Path, core: Path, parallel: tuple[int, int]) -> None:
    iteration(tmp_path, 4, core)
    old(tmp_path, 6, parallel)
    levels = [one.level for one in room(tmp_path, "megatron").survey(Depth.ALL)]
    assert levels == [Level.VERIFIED, Level.COMPLETE], "metadata.json carries no checksum"


def test_plain_directories_of_torch_dcp_count(tmp_path: Path, core: Path) -> None:
    """``--ckpt-format torch_dcp`` and ``fsdp_dtensor`` write no metadata.json."""
    made = iteration(tmp_path, 4, core)
    gone("common.pt")(made), gone("metadata.json")(made)
    assert room(tmp_path, "megatron").survey(Depth.ALL)[0].level is Level.VERIFIED


def test_a_whole_one_without_common_state_is_said(tmp_path: Path, core: Path) -> None:
    gone("common.pt")(iteration(tmp_path, 4, core))
    (one,) = room(tmp_path, "megatron").survey(Depth.ALL)
    assert one.valid and "it has no common.pt" in one.why_not


def test_parts_are_counted_by_the_arguments_in_them() -> None:
    paths = {"mp_rank_00", "mp_rank_00/model_optim_rng.pt"}
    assert megatron.MEGATRON.flaw(paths, {"tensor_model_parallel_size": 2}).startswith("it has 1 of 2 parts")
    assert not megatron.MEGATRON.flaw(paths, {"tensor_model_parallel_size": 1})
    assert "nothing in it tells how many parts" in megatron.MEGATRON.remark(paths, {})


def nemo(out: Path, step: int, core: Path, last: str = "-last") -> Path:
    made = out / f"llama--val_loss=2.31-step={step}-consumed_samples={step * 8}.0{last}"
    shutil.copytree(core, made / "weights")
    (made / "context").mkdir()
    (made / "context" / "io.json").write_text("{}")
    return made


NEMO: dict[str, tuple[Damage, str]] = {
    "its own mark": (lambda made: Path(f"{made}-unfinished").touch(), "-unfinished is there"),
    "weights missing": (lambda made: shutil.rmtree(made / "weights"), "it has no weights/"),
    "weights unfinished": (gone("weights/.metadata"), "it has no weights/.metadata"),
    "context missing": (lambda made: shutil.rmtree(made / "context"), "it has no context/"),
    "shard flipped": (flipped("weights/__0_0.distcp"), "checksum"),
    "shard cut": (cut("weights/__0_0.distcp"), "truncated"),
    "common cut": (cut("weights/common.pt"), "common.pt"),
    "config empty": (emptied("weights/metadata.json"), "metadata.json is empty"),
}


@pytest.mark.parametrize("torn", NEMO)
@pytest.mark.parametrize("naming", ["nemo", "auto"])
def test_a_torn_newest_of_nemo_is_moved_away(tmp_path: Path, core: Path, naming: str, torn: str) -> None:
    damage, words = NEMO[torn]
    out = tmp_path / "out"
    good, bad = nemo(out, 499, core, ""), nemo(out, 999, core)
    damage(bad)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert words in found.choice.passed_over[0].why and not bad.exists()
    assert "taken for a checkpoint of NeMo" in found.choice.reason
    assert "does not end in -last, so NeMo loads it only if resume.resume_from_path names it" in found.choice.reason


def test_nemo_that_was_cut_off_alone_means_begin_anew(tmp_path: Path, core: Path) -> None:
    """The mark stays: NeMo removes it when it starts."""
    out = tmp_path / "out"
    made = nemo(out, 499, core)
    Path(f"{made}-unfinished").touch()
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, FromZero) and "no checkpoint was ever committed" in found.choice.reason
    assert os.listdir(out) == [f"{made.name}-unfinished"]
