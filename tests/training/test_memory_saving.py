"""Saves to the node's memory by one process: what is kept, what is refused, and what becomes of it on disk."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gangrun  # noqa: E402
from gangrun.agent.background_tasks import MemoryTasks, recover  # noqa: E402
from gangrun.agent.brain.facts import DiskTaskDone  # noqa: E402
from gangrun.checkpoint.memory_tier import keeper_client as kept  # noqa: E402
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName  # noqa: E402
from gangrun.checkpoint.memory_tier.recover_from_memory import adopt, bring, discard, open_staging, staging_of  # noqa: E402
from gangrun.checkpoint.store import CheckpointRoom  # noqa: E402
from gangrun.core.checkpoints.memory import Holding  # noqa: E402
from gangrun.core.checkpoints.resume import Chosen, ResumeRequest  # noqa: E402
from gangrun.training import step as progress  # noqa: E402
from gangrun.training.checkpointer import CheckpointWarning  # noqa: E402
from gangrun.training.save import saver  # noqa: E402
from gangrun.wire.manifest import MANIFEST_NAME  # noqa: E402
from gangrun.wire.messages import MemoryAnswer, Recover  # noqa: E402
from gangrun.wire.progress import ProgressPage  # noqa: E402
from tests.training.harness import steps_in  # noqa: E402
from tests.training.nodes import started_keeper  # noqa: E402
from tests.waiting import until  # noqa: E402


def steps_of(fact: DiskTaskDone) -> tuple[Holding, ...]:
    return fact.answer.steps if isinstance(fact.answer, MemoryAnswer) else ()


class Node:
    """A keeper, and a process that trains under it."""

    def __init__(self, directory: Path, limit_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.model = directory, torch.nn.Linear(3, 4)
        self.name, self.keeper = started_keeper(limit_bytes)
        monkeypatch.setenv("GANGRUN_RUN", "r1")
        monkeypatch.setenv("GANGRUN_MEMORY", self.name)
        monkeypatch.setenv("GANGRUN_CHECKPOINT_DIR", str(directory))

    def held(self, attempt: int = 0) -> list[int]:
        return [one.step for one in self.steps(attempt) if one.wanted_count]

    def steps(self, attempt: int = 0) -> tuple[Holding, ...]:
        return steps_of(self.answer(Recover(1, (1, 1), attempt)))

    def answer(self, command: Recover) -> DiskTaskDone:
        return recover(self.name, command)

    def checkpointer(self, **options: Any) -> gangrun.Checkpointer:
        given = {"model": self.model, "every_steps": 1000, "memory_every_steps": 2, **options}
        return gangrun.Checkpointer(self.directory, **given)

    def train(self, ckpt: gangrun.Checkpointer, steps: range) -> None:
        for step in steps:
            with torch.no_grad():
                self.model.weight.add_(1.0)
            ckpt.step(step)
            until(lambda: not ckpt.saving, 30, "all saves to end")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path / "ckpt", 10_000_000, monkeypatch)
    yield made
    made.keeper.kill()
    made.keeper.wait()


def test_a_step_in_memory_becomes_an_ordinary_checkpoint_that_is_resumed_from(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(6))
        assert node.held() == [5]  # the older ones went
        assert not list(node.directory.glob("step-*"))
        kept = node.model.weight.detach().clone()
        step = node.steps()[0]
        into = os.path.join(staging_of(str(node.directory), "r1")(1, 0), "5-x")
        wanted = Recover(1, (1, 2), 0, into, 5, step.nonce, tuple(step.files))
        assert node.answer(wanted).why == "No such file or directory", "nobody but the supervisor makes the staging"
        assert open_staging(os.path.dirname(into)) == ""
        brought = node.answer(wanted)
        assert brought.ok
        assert adopt(into, str(node.directory), 5, step.nonce) == ""
        assert adopt(into, str(node.directory), 5, step.nonce) == ""  # said again
        assert adopt(into, str(node.directory), 5, "0" * 32) == "step 5 is on disk already"
    choice = CheckpointRoom(str(node.directory)).choose_and_set_aside(ResumeRequest(), "x").choice
    assert isinstance(choice, Chosen) and choice.checkpoint.step == 5 and "verified" in choice.reason
    other = torch.nn.Linear(3, 4)
    monkeypatch.setenv("GANGRUN_RESUME", choice.checkpoint.path)
    with node.checkpointer(model=other) as ckpt:
        assert ckpt.resume() == 6
    assert torch.equal(other.weight, kept)


def test_a_step_of_which_a_file_is_missing_or_short_is_never_made_a_checkpoint(node: Node) -> None:
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(2))
        step = node.steps()[0]
        assert open_staging(str(node.directory / ".gangrun" / "r1" / "1" / "0-memory")) == ""
        for lacking in step.files:
            into = str(node.directory / ".gangrun" / "r1" / "1" / "0-memory" / f"without {lacking}")
            files = tuple(name for name in step.files if name != lacking)
            assert node.answer(Recover(1, (1, 2), 0, into, 1, step.nonce, files)).ok
            assert adopt(into, str(node.directory), 1, step.nonce) != ""
            if lacking != MANIFEST_NAME:
                Path(into, lacking).write_bytes(b"x")
                assert "bytes long" in adopt(into, str(node.directory), 1, step.nonce)
        assert not list(node.directory.glob("step-*"))


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/b", "", "__9_9.distcp"])
def test_files_that_are_no_files_of_the_step_are_refused(node: Node, tmp_path: Path, name: str) -> None:
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(2))
        step = node.steps()[0]
        answer = node.answer(Recover(1, (1, 2), 0, str(tmp_path / "into"), 1, step.nonce, (name,)))
        assert not answer.ok and answer.why
        assert not list((tmp_path / "into").iterdir())


def test_what_does_not_fit_is_told_once_and_the_disk_gets_its_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "ckpt", 100, monkeypatch)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with node.checkpointer(every_steps=5) as ckpt:
                node.train(ckpt, range(9))
        said = [str(one.message) for one in told if one.category is CheckpointWarning]
        assert len(said) == 1 and "saved to disk only, not to memory" in said[0] and "limit of 100 bytes" in said[0]
        assert saved(node) == [4, 8]
        assert node.held() == []
    finally:
        node.keeper.kill()
        node.keeper.wait()


def test_a_keeper_that_died_costs_its_steps_and_nothing_else(node: Node) -> None:
    with node.checkpointer(every_steps=5) as ckpt:
        node.train(ckpt, range(2))
        node.keeper.kill()
        node.keeper.wait()
        with pytest.warns(CheckpointWarning, match="not to memory"):
            node.train(ckpt, range(2, 8))
    assert saved(node) == [4, 7]
    assert node.steps() == ()
    with pytest.warns(UserWarning, match="saved to disk only, not to memory"):
        node.checkpointer().close()


def test_a_keeper_that_answers_too_late_costs_that_step_and_the_next_one_is_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "ANSWER_WITHIN_S", 0.2)
    with node.checkpointer() as ckpt:
        node.keeper.send_signal(signal.SIGSTOP)
        with pytest.warns(CheckpointWarning, match="does not answer: timed out"):
            node.train(ckpt, range(3))
        monkeypatch.setattr(kept, "ANSWER_WITHIN_S", 60.0)
        node.keeper.send_signal(signal.SIGCONT)
        until(lambda: not node.steps(), 20, "what was begun to go")
        node.train(ckpt, range(3, 6))
        assert node.held() == [5]


def test_the_newest_step_in_memory_is_shown(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = ProgressPage(str(tmp_path / "slot"), 0)
    monkeypatch.setenv("GANGRUN_PROGRESS_SLOT", str(tmp_path / "slot"))
    monkeypatch.setattr(progress, "_state", None)
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(1))
        assert slot.read().kept_step == -1
        node.train(ckpt, range(1, 7))
        assert slot.read().kept_step == 5
    slot.close()


def test_memory_is_for_the_directory_that_gangrun_brings_it_to(node: Node, tmp_path: Path) -> None:
    with gangrun.Checkpointer(tmp_path / "elsewhere", model=node.model, every_steps=1000, memory_every_steps=1) as ckpt:
        node.train(ckpt, range(3))
    assert node.held() == []


class Flush:
    """What the supervisor does, with one node: ask, have it written, make a checkpoint of it."""

    def __init__(self, node: Node) -> None:
        self.node, self.agent, self.acts_count = node, MemoryTasks(node.name), 0
        self.staging = staging_of(str(node.directory), "r1")(1, 0)

    def act(self) -> tuple[int, int]:
        self.acts_count += 1
        return 1, self.acts_count

    def ask(self) -> Holding:
        assert open_staging(self.staging) == ""
        steps = steps_of(self.agent.answer(Recover(1, self.act(), 0, pin=True)))
        return max(steps, key=lambda one: (one.wanted_count > 0, one.step))

    def write(self, found: Holding, files: tuple[str, ...] | None = None) -> str:
        into = os.path.join(self.staging, f"{found.step}-{found.nonce}")
        wanted = tuple(found.files) if files is None else files
        told = self.agent.answer(Recover(1, self.act(), 0, into, found.step, found.nonce, wanted, pin=True))
        if told.ok:
            assert adopt(into, str(self.node.directory), found.step, found.nonce) == ""
        discard(into)
        return told.why


def saved(node: Node) -> list[int]:
    return steps_in(node.directory)


def test_ranks_save_on_while_a_step_is_flushed_which_stays_until_it_is_on_disk(node: Node) -> None:
    flush = Flush(node)
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(4))
        found = flush.ask()
        assert found.step == 3
        node.train(ckpt, range(4, 8))
        assert flush.write(found) == ""
        assert saved(node) == [3]
        assert node.held() == [7], "what was pinned has gone"
        assert not os.path.exists(flush.staging)
        assert flush.write(found) == "what was asked for is not pinned any more"
        choice = CheckpointRoom(str(node.directory)).choose_and_set_aside(ResumeRequest(), "x").choice
        assert isinstance(choice, Chosen) and choice.checkpoint.step == 3 and "verified" in choice.reason


def test_a_question_about_ranks_that_died_ends_the_flush_before_it(node: Node) -> None:
    flush = Flush(node)
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(2))
        found = flush.ask()
        node.train(ckpt, range(2, 4))
        assert [one.step for one in steps_of(flush.agent.answer(Recover(1, flush.act(), 0)))] == [3]
        assert flush.write(found) == "what was asked for is not pinned any more"
        assert (saved(node), node.held()) == ([], [3])
        nothing = flush.ask()
        into = os.path.join(flush.staging, "x")
        assert flush.agent.answer(Recover(1, flush.act(), 0, into, pin=True)).ok, "nothing is wanted"
        assert flush.write(nothing) == "what was asked for is not pinned any more"


def test_what_is_being_written_is_given_up_between_two_pieces(node: Node) -> None:
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(2))
        name = StepName(0, 1, node.steps()[0].nonce)
        kept = KeeperClient(node.name)
        with pytest.raises(KeeperRefused, match="gangrun stopped writing"):
            bring(kept, name, [MANIFEST_NAME], str(node.directory / "into"), lambda: True)
        kept.close()


def test_steps_that_gangrun_brought_are_pruned_like_those_that_ranks_wrote(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "LOOK_EVERY_S", 0.0)
    flush = Flush(node)
    with node.checkpointer(keep=gangrun.Keep(2, every_steps=6)) as ckpt:
        for at in range(0, 20, 2):
            node.train(ckpt, range(at, at + 2))
            assert flush.write(flush.ask()) == ""
        node.train(ckpt, range(20, 22))
        until(lambda: len(saved(node)) <= 4, 20, lambda: f"older ones to go: {saved(node)}")
        assert saved(node)[-2:] == [17, 19]
        ckpt.save(21, wait=True)
        assert saved(node)[-2:] == [19, 21]


def test_with_no_interval_the_disk_is_left_to_gangrun_but_for_the_last_step(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGRUN_FLUSH_EVERY", "300")
    with node.checkpointer(every_steps=None, every_s=None) as ckpt:
        assert "gangrun writes" in ckpt.interval_reason
        node.train(ckpt, range(7))
        assert (saved(node), node.held()) == ([], [5])
    assert saved(node) == [6]
    monkeypatch.delenv("GANGRUN_FLUSH_EVERY")
    with node.checkpointer(every_steps=None, every_s=None) as ckpt:
        assert "wastes least" in ckpt.interval_reason


def test_a_step_that_gangrun_brought_meanwhile_is_no_failure_of_the_same_save(node: Node) -> None:
    flush = Flush(node)
    with node.checkpointer() as ckpt:
        node.train(ckpt, range(4))
        assert flush.write(flush.ask()) == ""
        ckpt.save(3, wait=True)
        assert saved(node) == [3]
