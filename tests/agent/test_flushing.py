"""What a node writes out of its memory is for the newest question: whatever came before it ends, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangrun.agent.background_tasks import MemoryTasks
from gangrun.agent.brain.facts import DiskTaskDone
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName
from gangrun.checkpoint.memory_tier.recover_from_memory import GIVEN_UP
from gangrun.core.model import MemoryStep
from gangrun.node import memory_keeper
from gangrun.wire import protection
from gangrun.wire.manifest import MANIFEST_NAME
from gangrun.wire.messages import Recover
from gangrun.wire.protection import RECORD_NAME
from tests.checkpoint.test_parity import Step
from tests.waiting import until

NAME = StepName(0, 5, "ab" * 8)
STEP = Step([(300_000,), (200_000,), (100_000,)], 1)


class Node:
    """A keeper with a step of which it holds the first member, the record and its parity, and the agent's part."""

    def __init__(self, folder: Path) -> None:
        self.into = folder / "into"
        name = f"gangrun-test-{os.getpid()}-{os.urandom(6).hex()}"
        self.keeper = subprocess.Popen([sys.executable, "-E", "-s", "-S", memory_keeper.__file__, name, "0"])
        self.kept = until(lambda: _met(name), 60, "the keeper")
        self.kept.put(NAME, RECORD_NAME, protection.encode(STEP.record))
        for file, data in STEP.files[0].items():
            self.kept.put(NAME, file, data)
        self.agent = MemoryTasks(name)

    def answer(self, command: Recover) -> DiskTaskDone:
        """From a thread of its own, as an errand is: its priority is lowered for good."""
        told: list[DiskTaskDone] = []
        thread = threading.Thread(target=lambda: told.append(self.agent.answer(command)))
        thread.start()
        thread.join(60)
        return told[0]

    def write(self, act: tuple[int, int], *, pin: bool = False, rebuild: tuple[str, ...] = ()) -> DiskTaskDone:
        files = () if rebuild else tuple(STEP.files[0])
        return self.answer(Recover(1, act, 0, str(self.into), 5, NAME.nonce, files, rebuild, pin))

    def there(self) -> list[str]:
        return sorted(path.name for path in self.into.iterdir())


def _met(name: str) -> KeeperClient | None:
    try:
        return KeeperClient(name)
    except KeeperRefused:
        return None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kept.close()
    made.keeper.kill()
    made.keeper.wait()


def asks(node: Node, act: tuple[int, int]) -> None:
    """About the same ranks or others."""
    assert node.answer(Recover(1, act, 0)).ok


def lets_go(node: Node, act: tuple[int, int]) -> None:
    """The supervisor has given up what it asked for."""
    assert node.answer(Recover(1, act, 0, str(node.into.parent), pin=True)).ok


def starts_ranks(node: Node, act: tuple[int, int]) -> None:
    """Whoever begins has chosen where."""
    node.agent.give_up(act)


WAYS = [asks, lets_go, starts_ranks]


@pytest.mark.parametrize("later", WAYS)
def test_what_was_asked_for_before_ends_and_what_is_asked_after_is_done(
    node: Node, later: Callable[[Node, tuple[int, int]], None]
) -> None:
    """In whichever order their threads come to it."""
    missing = STEP.without(node.into, (1,))
    node.into.joinpath("__0_0.distcp").unlink()
    before = node.there()
    later(node, (3, 9))
    for act in ((3, 8), (2, 99)):
        told = node.write(act), node.write(act, rebuild=tuple(missing)), node.write(act, pin=True)
        assert [(one.ok, one.why) for one in told] == [(False, GIVEN_UP)] * 3
        assert node.there() == before
    assert node.write((3, 10)).ok
    assert node.write((3, 11), rebuild=tuple(missing)).ok
    assert (node.into / missing[0]).read_bytes() == STEP.files[1][missing[0]]
    assert node.there() == sorted([*before, "__0_0.distcp", *missing])


@pytest.mark.parametrize("later", WAYS)
def test_what_was_pinned_for_a_flush_may_go_then(node: Node, later: Callable[[Node, tuple[int, int]], None]) -> None:
    assert node.answer(Recover(1, (1, 1), 0, pin=True)).answer
    newer = StepName(0, 6, "cd" * 8)
    node.kept.put(newer, "file", b"x")
    node.kept.whole(newer)
    assert [one["step"] for one in node.kept.held(0)] == [5, 6]
    later(node, (1, 2))
    until(lambda: [one["step"] for one in node.kept.held(0)] == [6], 60, "the older step to go")
    node.into.mkdir()
    assert node.write((1, 3), pin=True).why == "what was asked for is not pinned any more"


def test_an_older_question_neither_ends_nor_unpins_what_the_newest_one_asked_for(node: Node) -> None:
    assert node.answer(Recover(1, (2, 5), 0, pin=True)).ok
    for older in (Recover(1, (2, 4), 0), Recover(1, (1, 9), 0, pin=True), Recover(1, (2, 4), 0, "elsewhere", pin=True)):
        told = node.answer(older)
        assert (told.ok, told.why) == (False, GIVEN_UP)
    node.agent.give_up((2, 3))
    assert node.write((2, 6), pin=True).ok
    assert node.there() == ["__0_0.distcp"]


def waits_for_the_keeper(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not KeeperClient._heard.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize("pin", [True, False], ids=["for a flush", "for a rescue"])
def test_ranks_start_and_agents_beat_while_the_keeper_takes_its_time_to_say_what_it_has(node: Node, pin: bool) -> None:
    """It is the agent's one loop that gives up."""
    told: list[DiskTaskDone] = []
    asking = threading.Thread(
        target=lambda: told.append(node.agent.answer(Recover(1, (1, 1), 0, pin=pin))), daemon=True
    )
    loop = threading.Thread(target=lambda: node.agent.give_up((1, 2)), daemon=True)
    node.keeper.send_signal(signal.SIGSTOP)
    try:
        asking.start()
        until(lambda: waits_for_the_keeper(asking), 20, "the question")
        loop.start()
        until(lambda: not loop.is_alive(), 8, "the loop to go on")
        assert asking.is_alive()
    finally:
        node.keeper.send_signal(signal.SIGCONT)
    asking.join(60)
    if pin:
        assert [(one.ok, one.why) for one in told] == [(False, GIVEN_UP)]
    newer = StepName(0, 6, "cd" * 8)
    node.kept.put(newer, "file", b"x")
    node.kept.whole(newer)
    until(lambda: [one["step"] for one in node.kept.held(0)] == [6], 20, "nothing to be pinned")


BASE = MemoryStep(NAME.attempt, NAME.step, NAME.nonce)


def test_ranks_read_what_their_attempt_begins_from_until_one_of_its_own_is_whole(node: Node) -> None:
    """A save that is not whole yet, and a question about the attempt, leave it there."""
    node.kept.put(NAME, MANIFEST_NAME, b"{}")
    older = StepName(0, 3, "cd")
    node.kept.put(older, "x", b"x")
    paths = node.agent.paths(BASE, 2)
    for file, data in STEP.files[0].items():
        assert Path(paths[file]).read_bytes() == data
    own = StepName(2, 8, "ef")
    node.kept.put(own, "x", b"x")
    found = {one["nonce"] for one in node.kept.held(2, NAME)}
    assert found == {NAME.nonce, own.nonce}, "all else of older attempts went at that save"
    node.kept.whole(own)
    assert [one["nonce"] for one in node.kept.held(2, NAME)] == [own.nonce]
    for step in range(9, 40):
        node.kept.put(StepName(2, step, "gh"), "x", b"x")
    assert not [path for path in paths.values() if Path(path).exists()], "no file of another step takes its place"


def test_a_later_attempt_that_began_elsewhere_lets_it_go(node: Node) -> None:
    node.kept.put(NAME, MANIFEST_NAME, b"{}")
    node.agent.paths(BASE, 2)
    node.kept.put(StepName(3, 8, "ef"), "x", b"x")
    assert [one["nonce"] for one in node.kept.held(3)] == ["ef"]


def test_a_flush_pins_what_the_attempt_began_from_too(node: Node) -> None:
    node.kept.put(NAME, MANIFEST_NAME, b"{}")
    node.agent.paths(BASE, 2)
    assert node.answer(Recover(1, (1, 1), 2, pin=True, base=BASE)).ok
    own = StepName(2, 8, "ef")
    node.kept.put(own, "x", b"x")
    node.kept.whole(own)
    written = node.answer(Recover(1, (1, 2), 0, str(node.into), 5, NAME.nonce, tuple(STEP.files[0]), (), True, BASE))
    assert written.ok, written.why
    assert node.there() == sorted(STEP.files[0])


def test_a_step_without_a_manifest_is_not_begun_from(node: Node) -> None:
    with pytest.raises(KeeperRefused, match="step 5 is not in this node's memory any more"):
        node.agent.paths(BASE, 2)
