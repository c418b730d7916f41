"""Checkpoints of Lightning: one file each, which tells its own step; a script loads ``last.ckpt``."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gangrun.checkpoint.formats.framework_directory import judge_single
from gangrun.checkpoint.store import Depth
from gangrun.core.checkpoints.resume import Chosen, FromZero, NothingValid, ResumeRequest
from gangrun.core.model import Level
from gangrun.frameworks.framework import frameworks_of
from tests.command_line import Call
from tests.frameworks.damage import NUMBERS, Damage, room


def save(out: Path, step: int, name: str = "", **more: object) -> Path:
    """What lightning 2.6.6 left of a real fit, names and keys."""
    out.mkdir(exist_ok=True)
    made = out / (name or f"epoch=0-step={step}.ckpt")
    held = {
        "epoch": 0, "global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": {"l.weight": NUMBERS},
        "loops": {"fit_loop": {"global_step": 77}}, "callbacks": {}, "optimizer_states": [{"state": {0: NUMBERS}}],
        "lr_schedulers": [], **more,
    }  # fmt: skip
    torch.save({key: value for key, value in held.items() if value is not None}, made)
    at = time.time_ns() - 10**9 * (1000 - step) + (name != "")
    os.utime(made, ns=(at, at))
    return made


def flip(made: Path) -> None:
    data = bytearray(made.read_bytes())
    data[data.index(NUMBERS.numpy().tobytes())] ^= 1
    made.write_bytes(data)


TORN: dict[str, tuple[Damage, str]] = {
    "cut": (lambda made: os.truncate(made, made.stat().st_size - 1), "torn or damaged"),
    "half": (lambda made: os.truncate(made, made.stat().st_size // 2), "torn or damaged"),
    "empty": (lambda made: os.truncate(made, 0), "empty"),
    "zeros": (lambda made: made.write_bytes(b"\0" * 4096), "zeros"),
    "flipped": (flip, "checksum"),
    "weights only": (lambda made: save(made.parent, 6, made.name, optimizer_states=None), "weights only"),
}


def chosen(out: Path, framework: str = "auto") -> Chosen:
    found = room(out, framework).choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(found, Chosen), found
    return found


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("naming", ["lightning", "auto"])
def test_a_torn_newest_is_moved_out_and_last_becomes_the_one_before(tmp_path: Path, torn: str, naming: str) -> None:
    """The kill came while ``last.ckpt`` was copied from another file system: the old one is gone too."""
    damage, words = TORN[torn]
    out = tmp_path / "out"
    save(out, 2)
    good, bad, last = save(out, 4), save(out, 6), save(out, 6, "last.ckpt")
    damage(bad), damage(last)
    found = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good), found
    assert found.choice.checkpoint.step == 4 and "taken for a checkpoint of Lightning" in found.choice.reason
    assert all(words in one.why for one in found.moved) and len(found.moved) == 2
    assert sorted(os.listdir(out)) == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt", "last.ckpt"]
    assert last.read_bytes() == good.read_bytes() and last.stat().st_ino != good.stat().st_ino
    assert found.retold[0].words == "last.ckpt is now a copy of epoch=0-step=4.ckpt"
    again = room(out, naming).choose_and_set_aside(ResumeRequest(), "run-2")
    assert isinstance(again.choice, Chosen) and again.choice.checkpoint.path == str(last)
    assert not again.moved and not again.retold
    for undo in (found.retold[0].undo, *(one.undo for one in found.moved)):
        subprocess.run(undo, shell=True, check=True)
    assert bad.exists() and last.exists()


def test_a_last_that_is_older_than_the_newest_would_go_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    older, newest = save(out, 4, "last.ckpt"), save(out, 6)
    content = older.read_bytes()
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.step == 6
    assert "the script would load it instead of step 6" in found.moved[0].why
    assert older.read_bytes() == newest.read_bytes() and Path(found.moved[0].now_at).read_bytes() == content


def test_a_crash_before_the_copy_is_made_up_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    last, good = save(out, 6, "last.ckpt"), save(out, 4)
    os.truncate(last, 100)
    room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    last.unlink()
    room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-2")
    assert last.read_bytes() == good.read_bytes()


def test_the_step_is_the_one_inside_as_a_logged_metric_may_name_the_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    save(out, 500, "epoch=0-step=1.ckpt"), save(out, 400, "epoch=3-val_loss=0.20.ckpt")
    listed = [(one.step, os.path.basename(one.path)) for one in room(out, "auto").survey(Depth.ALL)]
    assert listed == [(500, "epoch=0-step=1.ckpt"), (400, "epoch=3-val_loss=0.20.ckpt")]
    assert not (out / "last.ckpt").exists(), "none was there"


def test_a_file_of_another_program_is_said_to_hold_no_step(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "x.ckpt")
    judged = judge_single(str(tmp_path / "x.ckpt"), 21, frameworks_of("lightning")[0])
    assert (judged.level, judged.why) == (None, "it holds no global_step, as each checkpoint of Lightning does")


def test_a_whole_one_is_verified_by_its_checksums(tmp_path: Path) -> None:
    save(tmp_path / "out", 70_000)
    (one,) = room(tmp_path / "out", "lightning").survey(Depth.ALL)
    assert (one.valid, one.level, one.step) == (True, Level.VERIFIED, 70_000)


def test_a_first_save_that_was_cut_off_means_begin_anew_and_an_older_torn_one_does_not(tmp_path: Path) -> None:
    out = tmp_path / "out"
    os.truncate(save(out, 2), 100)
    stops = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-0")
    assert isinstance(stops.choice, NothingValid) and not stops.moved
    anew = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1", first=False)
    assert isinstance(anew.choice, FromZero) and len(anew.moved) == 1 and not os.listdir(out)


def test_a_sharded_one_is_a_directory_whose_meta_comes_last(tmp_path: Path) -> None:
    out = tmp_path / "out"
    good = save(out, 2)
    (out / "epoch=0-step=4.ckpt").mkdir()
    for name in ("__0_0.distcp", ".metadata"):
        (out / "epoch=0-step=4.ckpt" / name).write_bytes(b"x")
    found = room(out, "auto").choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(good)
    assert "it has no meta.pt" in found.moved[0].why


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    save(tmp_path / "out", 2, callbacks=Bomb())
    assert chosen(tmp_path / "out").checkpoint.step == 2
    assert not Path("bomb").exists()


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("bomb",)


def test_the_argument_is_added_for_scripts_that_take_it_on_the_command_line() -> None:
    (lightning,) = frameworks_of("lightning")
    assert lightning.takes_argument('parser.add_argument("--ckpt_path")')
    assert lightning.takes_argument("LightningCLI(Model)")
    assert not lightning.takes_argument('trainer.fit(model, ckpt_path="last")')


def test_the_command_lists_them(tmp_path: Path, gangrun: Call) -> None:
    save(tmp_path / "out", 4)
    os.truncate(save(tmp_path / "out", 6), 100)
    listed = gangrun("checkpoints", str(tmp_path / "out"), "--framework", "auto", "--json").json
    assert listed["resume_from"]["step"] == 4
