"""Who ends well has the last step on disk, who ends in an error what was saved before; nobody waits for ever."""

from __future__ import annotations

import gc
import json
import os
import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import gangrun
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.node.boot import looks_collective
from gangrun.training import step as progress
from gangrun.wire.progress import ProgressPage, TrainingPhase
from tests.training.harness import json_lines, run_program, steps_in

torch = pytest.importorskip("torch")
DiskFull = Callable[[], AbstractContextManager[None]]


def made(directory: Path, **options: Any) -> gangrun.Checkpointer:
    return gangrun.Checkpointer(directory, model=torch.nn.Linear(3, 2), **{"every_steps": 4, **options})


def settled(ckpt: gangrun.Checkpointer) -> None:
    for save in ckpt._saves:
        save.done.wait()


def trained(ckpt: gangrun.Checkpointer, steps: range) -> None:
    for step in steps:
        ckpt.step(step)


def test_the_last_step_of_a_training_that_ended_well_is_saved_once(tmp_path: Path) -> None:
    with made(tmp_path) as ckpt:
        trained(ckpt, range(6))
    assert steps_in(tmp_path) == [3, 5]
    with made(tmp_path) as ckpt:
        assert ckpt.resume() == 6
        trained(ckpt, range(6, 8))
    assert steps_in(tmp_path) == [3, 5, 7]
    with made(tmp_path) as ckpt:
        ckpt.resume()
    made(tmp_path).close()
    assert steps_in(tmp_path) == [3, 5, 7]
    assert not list(tmp_path.glob(".gangrun/set-aside")), "nothing was saved twice"


def test_an_error_under_way_saves_nothing_and_one_that_was_there_before_hinders_nothing(tmp_path: Path) -> None:
    def train_within(leave: type[BaseException]) -> None:
        with made(tmp_path / "with") as ckpt:
            trained(ckpt, range(2))
            raise leave

    for leave in (KeyError, SystemExit, KeyboardInterrupt):
        with pytest.raises(leave):
            train_within(leave)
    ckpt = made(tmp_path / "finally")

    def train() -> None:
        try:
            trained(ckpt, range(2))
            raise KeyError
        finally:
            ckpt.close()

    words = r"step 1, the last one, is not saved: close\(\) was called while KeyError is under way or being"
    with pytest.warns(gangrun.CheckpointWarning, match=words), pytest.raises(KeyError):
        train()
    assert steps_in(tmp_path / "with") == steps_in(tmp_path / "finally") == []
    try:
        raise MemoryError
    except MemoryError:  # a script that tries again with less
        with made(tmp_path / "again") as ckpt:
            trained(ckpt, range(2))
    assert steps_in(tmp_path / "again") == [1]


def test_who_closes_where_the_end_of_training_is_handled_is_told_what_is_not_saved(tmp_path: Path) -> None:
    class EndedEarly(Exception):
        pass

    def trained_and_closed(ckpt: gangrun.Checkpointer, count: int) -> None:
        try:
            trained(ckpt, range(count))
            raise EndedEarly
        except EndedEarly:
            ckpt.close()

    with pytest.warns(gangrun.CheckpointWarning, match="step 1, the last one, is not saved: .* while EndedEarly is"):
        trained_and_closed(made(tmp_path), 2)
    assert steps_in(tmp_path) == []
    trained_and_closed(made(tmp_path), 4)  # step 3 is saved, or on its way: nothing is told
    assert steps_in(tmp_path) == [3]


def test_an_error_that_was_there_before_is_known_again_without_being_held(tmp_path: Path) -> None:
    class Before(Exception):
        pass

    def made_while_handled() -> tuple[gangrun.Checkpointer, int, weakref.ref[Before]]:
        try:
            raise Before
        except Before as error:
            return made(tmp_path), id(error), weakref.ref(error)

    ckpt, place, before = made_while_handled()
    gc.collect()
    assert before() is None, "its frames may hold a whole model"
    others = [Before()]
    while id(others[-1]) != place and len(others) < 10_000:
        others.append(Before())
    trained(ckpt, range(2))

    def closed_while_another_is_handled() -> None:
        try:
            raise others[-1]  # in the same place
        except Before:
            ckpt.close()

    with pytest.warns(gangrun.CheckpointWarning, match="while Before is under way"):
        closed_while_another_is_handled()
    assert steps_in(tmp_path) == []


def test_a_last_step_that_failed_is_tried_once_more_and_then_told(tmp_path: Path, disk_full: DiskFull) -> None:
    ckpt = made(tmp_path, every_steps=1)
    with disk_full():
        ckpt.step(0)
        settled(ckpt)
    with pytest.warns(gangrun.CheckpointWarning, match="step 0 was not saved: rank 0: No space left"):
        ckpt.close()
    assert steps_in(tmp_path) == [0]
    ckpt = made(tmp_path, every_steps=100)
    trained(ckpt, range(3))
    with disk_full(), pytest.raises(gangrun.CheckpointError, match="step 2 was not saved: rank 0: No space left"):
        ckpt.close()
    ckpt.close()
    assert steps_in(tmp_path) == [0]


def test_an_older_step_on_disk_is_not_written_again_with_what_came_after_it(
    tmp_path: Path, disk_full: DiskFull
) -> None:
    def fails(ckpt: gangrun.Checkpointer, step: int) -> None:
        with disk_full():
            ckpt.save(step)
            settled(ckpt)

    ckpt = made(tmp_path, every_steps=10)
    trained(ckpt, range(10))
    ckpt.save(9, wait=True)
    fails(ckpt, 10)
    with pytest.raises(gangrun.CheckpointError, match="step 10 was not saved: rank 0: No space left"):
        ckpt.close()
    before = (tmp_path / "step-9").stat().st_ino
    ckpt = made(tmp_path)
    assert ckpt.resume() == 10
    fails(ckpt, 500)
    ckpt.save(9)
    with pytest.raises(gangrun.CheckpointError, match="step 500 was not saved: rank 0: No space left"):
        ckpt.close()
    ckpt = made(tmp_path, every_steps=100)
    assert ckpt.resume() == 10
    ckpt.step(10)
    fails(ckpt, 11)
    with pytest.raises(gangrun.CheckpointError, match="step 11 was not saved: rank 0: No space left"):
        ckpt.close()  # the state is no longer that of step 10
    ckpt = made(tmp_path, every_steps=100)
    assert ckpt.resume() == 10
    fails(ckpt, 10)
    with pytest.warns(gangrun.CheckpointWarning, match="step 10 was not saved: rank 0: No space left"):
        ckpt.step(11)
    ckpt.close()
    assert steps_in(tmp_path) == [9, 11] and (tmp_path / "step-9").stat().st_ino == before
    assert not list(tmp_path.glob(".gangrun/set-aside")), "nothing was saved twice"


def test_a_closed_one_says_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    ckpt = made(tmp_path)
    ckpt.close()
    for late in (lambda: ckpt.save(7, wait=True), lambda: ckpt.step(7)):
        with pytest.raises(gangrun.CheckpointError, match="is closed: nothing is saved any more"):
            late()


def test_who_waits_for_a_save_is_not_taken_for_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = ProgressPage(str(tmp_path / "slot"), 0)
    monkeypatch.setenv("GANGRUN_PROGRESS_SLOT", str(tmp_path / "slot"))
    monkeypatch.setattr(progress, "_state", None)
    real, phases = os.fsync, []

    def watched(descriptor: int) -> None:
        phases.append(slot.read().phase)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with made(tmp_path / "c") as ckpt:
        trained(ckpt, range(2))
    assert phases[-1] == TrainingPhase.CHECKPOINT
    assert slot.read().phase == TrainingPhase.TRAIN, "and again what it was"
    slot.close()


def test_ranks_agree_on_their_end_and_wait_for_none_that_is_gone(tmp_path: Path) -> None:
    found = json.loads(run_program("ending.py", tmp_path))
    ended = {way: (one["heard"], one["saved"]) for way, one in found.items()}
    assert ended["between_two_saves"] == (["", ""], [3, 5])
    assert ended["when_it_is_saved"] == (["", ""], [3, 7])
    words = "CheckpointError: no last step was saved: one rank ended after step 0 and another after step 1"
    assert ended["after_different_steps"] == ([words, words], [])
    gone = "CheckpointError: step 1, the last one, was not saved: another rank is gone or does not answer ("
    for way, other in (("one_is_killed", None), ("one_fails", 'KeyError: "the script\'s own"')):
        heard, saved_steps = ended[way]
        assert heard[0].startswith(gone) and ".cc" not in heard[0], heard
        assert (heard[1], saved_steps) == (other, []), way
        assert looks_collective("gangrun.training.state.CheckpointError", heard[0]), "a victim's error is no culprit's"
    steps = ("Checkpointer.step(0)", "Checkpointer.step(1)")
    for rank, heard in enumerate(found["steps_apart"]["heard"]):
        assert heard.startswith(
            f"ValueError: rank {rank} is in {steps[rank]} and another rank in {steps[1 - rank]}: all"
        )
    sooner, later = found["one_ends_sooner"]["heard"]
    assert re.match(
        r"ValueError: rank 0 is in Checkpointer.close\(\) and another rank in Checkpointer.step\([1-9]", sooner
    )
    assert re.match(
        r"ValueError: rank 1 is in Checkpointer.step\([1-9]\d*\) and another rank in Checkpointer.close\(\)", later
    )
    for way, where in (("one_makes_it_later", r"\(\.\.\.\)"), ("one_begins_later", r"\.step\(0\)")):
        assert ended[way] == (["", ""], [3] if "begins" in way else []), way
        words = f"rank 0 has waited 0 s for other ranks in Checkpointer{where}: another rank is slow or stuck, or"
        assert re.match(words, found[way]["warned"]), found[way]
    for way in ("one_makes_it_later_under_gangrun", "one_steps_later"):
        assert ended[way] == (["", ""], [3] if "steps" in way else []), way
        assert not found[way]["warned"], "output is a sign of life to whoever looks for hangs"
    assert ended["no_thread_can_be_had"] == (["", ""], [0])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("rounds", "world"), [(30, 1), (4, 2)])
def test_a_kill_at_any_point_leaves_whole_steps(tmp_path: Path, rounds: int, world: int) -> None:
    found = json.loads(run_program("crash.py", tmp_path / "saves", rounds, 5, world))
    assert found["troubles"] == []
    assert found["newest"] > 0, "saves were committed meanwhile"
    assert found["linked"] > 0, "and some of them shared what does not change"
    assert found["left"] == [], "each attempt removes what those before it left unfinished"


def test_a_save_in_flight_is_finished_or_abandoned_whole(tmp_path: Path) -> None:
    found = json.loads(run_program("leaving.py", tmp_path))
    assert found == {
        "forgets_to_close": {"ended": 0, "staged": [], "start": 2, "left": 0},
        "raises_inside": {"ended": 256, "staged": [], "start": 2, "left": 0},  # exit code 1: its error was not hidden
        "is_terminated": {"ended": 15, "staged": ["1"], "start": 1, "left": 0},
        "gives_up": {"ended": 0, "staged": [], "start": 1, "left": 0},
    }


@pytest.mark.timeout(600)
def test_what_rank_1_cannot_write_is_no_checkpoint_and_both_ranks_are_told(tmp_path: Path) -> None:
    saves, out = tmp_path / "saves", tmp_path / "out"
    run_program("one_writer.py", saves, out)
    rows = json_lines(out)
    for at, words in enumerate(("No space left on device", "Input/output error", "File too large")):
        whole = [f"step-{step}" for step in range(1, 2 * at + 1, 2)]
        why = f"step {2 * at} was not saved: rank 1: {words}"
        both = [row for row in rows if row["failing"] == 2 * at]
        assert sorted(row["rank"] for row in both) == [0, 1]
        for row in both:
            assert [one[: len(why)] for one in row["told"]] == [why], row
            assert (row["status"][0], row["status"][1][: len(why)], row["status"][2]) == (2 * at, why, 1)
            assert (row["stood"], row["then"]) == (whole, [*whole, f"step-{2 * at + 1}"])
            assert row["left"] == []
    raised = [row["raised"] for row in rows if "raised" in row]
    assert len(raised) == 2
    assert all("step 6 was not saved: rank 1: No space left on device" in one for one in raised)
    found = CheckpointRoom(str(saves)).survey(Depth.ALL)
    assert {one.step: one.valid for one in found} == {1: True, 3: True, 5: True, 6: True}
