"""An attempt that was to resume and begins anew: its first save tells, whichever framework makes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.checkpoint.store import CheckpointRoom
from gangrun.core.checkpoints.resume import Chosen, ResumeRequest
from tests.frameworks import test_accelerate, test_composer, test_deepspeed, test_hf, test_lightning, test_megatron
from tests.frameworks.damage import room
from tests.frameworks.test_megatron import core

__all__ = ["core"]
Save = Callable[[Path, int], Path]


def dcp(out: Path, number: int, core: Path) -> Path:
    return shutil.copytree(core, out / f"step-{number}", dirs_exist_ok=True)


def stamped(made: Path, at: int) -> Path:
    for path in [made, *made.rglob("*"), *(made.parent / "recipe_state").glob("*")]:
        os.utime(path, (at, at))
    return made


@pytest.fixture(
    params=["hf", "lightning", "deepspeed", "megatron", "old megatron", "nemo", "composer", "torchtune", "dcp"]
)
def save(request: pytest.FixtureRequest, core: Path) -> Save:
    """Saves as the framework does, later than all that is there; over what bears the name, if it does that."""
    makers: dict[str, Save] = {
        "hf": test_hf.save, "lightning": test_lightning.save, "deepspeed": test_deepspeed.save,
        "megatron": lambda out, number: test_megatron.iteration(out, number, core), "old megatron": test_megatron.old,
        "nemo": lambda out, number: test_megatron.nemo(out, number, core), "composer": test_composer.one_file,
        "torchtune": test_composer.epoch, "dcp": lambda out, number: dcp(out, number, core),
    }  # fmt: skip
    times = iter(range(10**9, 2 * 10**9, 1000))

    def saved(out: Path, number: int) -> Path:
        made = makers[request.param](out, number)
        return stamped(made, next(times))

    return saved


def resumes(out: Path, *, at: int, framework: str = "auto") -> CheckpointRoom:
    made = room(out, framework)
    choice = made.choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen) and choice.checkpoint.step == at
    assert made.expect_above(choice.checkpoint) == ""
    assert made.began_anew() is None, "nothing was saved yet"
    return made


def test_a_first_save_at_a_lower_step_tells_once(tmp_path: Path, save: Save) -> None:
    out = tmp_path / "out"
    out.mkdir()
    save(out, 4)
    looked = resumes(out, at=4)
    save(out, 2)
    assert looked.began_anew() == 2
    save(out, 3)
    assert looked.began_anew() is None


def test_a_first_save_at_a_higher_step_shows_that_it_resumed(tmp_path: Path, save: Save) -> None:
    out = tmp_path / "out"
    out.mkdir()
    save(out, 4)
    looked = resumes(out, at=4)
    save(out, 6)
    assert looked.began_anew() is None
    save(out, 3)  # a copy, or one that came back
    assert looked.began_anew() is None


def lightning(out: Path, step: int, at: int, name: str = "") -> Path:
    return stamped(test_lightning.save(out, step, name), at)


def test_a_file_of_a_lower_step_that_the_attempt_did_not_save_tells_nothing(tmp_path: Path) -> None:
    """A copy under a name of the user's, and an older one that somebody moved back."""
    back = lightning(tmp_path / "elsewhere", 3, at=1000)
    lightning(tmp_path, 2, at=900), lightning(tmp_path, 4, at=2000)
    looked = resumes(tmp_path, at=4)
    lightning(tmp_path, 2, at=3000, name="best.ckpt")
    back.rename(tmp_path / back.name)
    assert looked.began_anew() is None
    lightning(tmp_path, 1, at=4000, name="last.ckpt")
    assert looked.began_anew() == 1


def test_a_save_that_is_not_finished_does_not_count_yet(tmp_path: Path) -> None:
    stamped(test_hf.save(tmp_path, 4), 1000)
    looked = resumes(tmp_path, at=4)
    state = stamped(test_hf.save(tmp_path, 2), 2000) / "trainer_state.json"
    state.rename(tmp_path / "not yet")
    assert looked.began_anew() is None
    (tmp_path / "not yet").rename(state)
    assert looked.began_anew() == 2


def test_where_a_later_save_has_a_lower_step_nobody_can_tell(tmp_path: Path) -> None:
    """As of a second stage that saves into the same directory."""
    lightning(tmp_path, 100, at=1000), lightning(tmp_path, 5, at=2000)
    looked = room(tmp_path, "auto")
    choice = looked.choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen)
    assert "epoch=0-step=5.ckpt was saved after it" in looked.expect_above(choice.checkpoint)
    lightning(tmp_path, 10, at=3000)
    assert looked.began_anew() is None


def test_a_file_that_an_evaluation_leaves_in_an_older_checkpoint_is_no_save(tmp_path: Path) -> None:
    for step, at in ((500, 1000), (1000, 2000)):
        stamped(test_hf.save(tmp_path / "made", step), at)
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / "made" / f"checkpoint-{step}" / "model.safetensors").rename(
            tmp_path / f"step-{step}" / "model.safetensors"
        )
    looked = resumes(tmp_path, at=1000)
    (tmp_path / "step-500" / "eval_results.json").write_text("{}")
    assert looked.began_anew() is None
    stamped(tmp_path / "step-500" / "model.safetensors", 3000)
    assert looked.began_anew() == 500


def test_names_that_are_written_in_turn_tell_no_step(tmp_path: Path, core: Path) -> None:
    for number in range(3):
        stamped(dcp(tmp_path, number, core), 1000 * (number + 1))
    looked = room(tmp_path, "auto")
    choice = looked.choose_and_set_aside(ResumeRequest(), "run-1").choice
    assert isinstance(choice, Chosen)
    assert "step-2 may be one of several names that the script writes in turn" in looked.expect_above(choice.checkpoint)
    stamped(dcp(tmp_path, 0, core), 4000)
    assert looked.began_anew() is None


def test_a_number_that_counts_saves_may_begin_at_0_again(tmp_path: Path) -> None:
    """After ``load_state`` of Accelerate, where the old ones were deleted meanwhile."""
    stamped(test_accelerate.save(tmp_path, 4), 1000)
    looked = resumes(tmp_path, at=4)
    stamped(test_accelerate.save(tmp_path, 0), 2000)
    assert looked.began_anew() is None


def test_an_attempt_that_is_to_begin_anew_may(tmp_path: Path) -> None:
    lightning(tmp_path, 4, at=1000)
    looked = resumes(tmp_path, at=4)
    assert looked.expect_above(None) == ""
    lightning(tmp_path, 2, at=2000)
    assert looked.began_anew() is None


@pytest.mark.parametrize("framework", ["auto", "dcp"])
def test_another_count_is_not_compared(tmp_path: Path, core: Path, framework: str) -> None:
    """A script saves each thousand steps, and at the end of each epoch."""
    for name, at in (("epoch_1", 1000), ("step-1000", 2000)):
        stamped(shutil.copytree(core, tmp_path / name), at)
    looked = resumes(tmp_path, at=1000, framework=framework)
    stamped(shutil.copytree(core, tmp_path / "epoch_2"), 3000)
    assert looked.began_anew() is None
    stamped(shutil.copytree(core, tmp_path / "step-500"), 4000)
    assert looked.began_anew() == 500
