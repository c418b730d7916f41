"""All nodes of a job read a checkpoint together; whoever does not, or finds damage, leaves its share to this host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gangrun.core.events import CancelRequested, Stamped
from gangrun.ports import ReadingAsked
from gangrun.wire.messages import VerifyShare
from tests.supervisor.desk import Desk, HandAgent

ASKED = ReadingAsked(1, "/ckpt/step-7", "ab", 100)


class Readers:
    """A desk of four nodes, of which n0 is the supervisor's; the others read as they are told here."""

    def __init__(self, does: Callable[[HandAgent, VerifyShare], None], **facts: Any) -> None:
        self.desk = Desk(nodes=4, **facts)
        for agent in self.desk.agents.values():
            self._listen(agent, does)
        self.desk.running()

    def _listen(self, agent: HandAgent, does: Callable[[HandAgent, VerifyShare], None]) -> None:
        hear = agent.hear

        def hearing(message: Any) -> None:
            if isinstance(message, VerifyShare):
                agent.got.append(message)
                does(agent, message)
            else:
                hear(message)

        agent.hear = hearing  # type: ignore[method-assign]

    def ask(self, asked: ReadingAsked = ASKED) -> None:
        self.desk.mailbox.post(asked)
        self.desk.turn_all()

    def own_share_is_read(self, left_s: float) -> None:
        self.ask(ReadingAsked(ASKED.number, ASKED.directory, ASKED.nonce, ASKED.readers_max_count, left_s))

    def told(self) -> list[tuple[str, int]]:
        """What the checkpoint thread was answered."""
        return [one for one in self.desk.checkpoints.asked if one[0].startswith(("dealt", "proven"))]

    def shares(self) -> dict[str, set[tuple[int, int]]]:
        """Which share each node was asked for, of how many."""
        return {
            node: {(m.share, m.readers_count) for m in agent.heard(VerifyShare)}
            for node, agent in self.desk.agents.items()
        }


def obey(agent: HandAgent, message: VerifyShare) -> None:
    agent.answer(message)


def test_every_other_node_reads_a_share_of_its_own() -> None:
    readers = Readers(obey)
    readers.ask()
    assert readers.shares() == {"n0": set(), "n1": {(3, 4)}, "n2": {(0, 4)}, "n3": {(1, 4)}}
    asked = {(m.directory, m.nonce) for agent in readers.desk.agents.values() for m in agent.heard(VerifyShare)}
    assert asked == {("/ckpt/step-7", "ab")}
    assert readers.told() == [("dealt 1: share 2", 4), ("proven 1 {}", -1)]
    readers.own_share_is_read(5.0)
    readers.desk.pass_s(10.0)
    assert len(readers.told()) == 2, "said once"
    kinds = readers.desk.kinds()
    assert not any("Read" in kind or "VerifyShare" in kind for kind in kinds), "a question leaves no record"


def test_no_more_are_asked_than_it_is_worth() -> None:
    readers = Readers(obey)
    readers.ask(ReadingAsked(1, "/ckpt/step-7", "ab", 2))
    assert readers.shares() == {"n0": set(), "n1": {(0, 2)}, "n2": set(), "n3": set()}
    readers.ask(ReadingAsked(2, "/ckpt/step-7", "ab", 1))
    assert readers.told() == [("dealt 1: share 1", 2), ("proven 1 {}", -1), ("dealt 2: share 0", 1)]


def test_what_one_sick_node_finds_condemns_nothing() -> None:
    def sick(agent: HandAgent, message: VerifyShare) -> None:
        agent.answer(message, ok=agent.node != "n2", why="__2_0.distcp is damaged")

    readers = Readers(sick)
    readers.ask()
    assert readers.told() == [("dealt 1: share 2", 4), ("proven 1 {0: 'n2: __2_0.distcp is damaged'}", -1)]


def test_who_says_nothing_is_asked_again_and_waited_for_only_so_long() -> None:
    readers = Readers(lambda agent, message: None if agent.node == "n3" else agent.answer(message))
    readers.ask()
    readers.desk.pass_s(60.0)
    assert readers.told() == [("dealt 1: share 2", 4)], "this host reads still"
    assert len(readers.desk.agents["n3"].heard(VerifyShare)) > 10
    readers.own_share_is_read(7.0)
    readers.desk.pass_s(6.0)
    assert readers.told() == [("dealt 1: share 2", 4)]
    readers.desk.pass_s(2.0)
    assert readers.told()[1:] == [("proven 1 {1: 'n3: no answer'}", -1)]
    said = len(readers.desk.agents["n3"].heard(VerifyShare))
    readers.desk.pass_s(5.0)
    assert len(readers.desk.agents["n3"].heard(VerifyShare)) == said, "nobody waits for it any more"


def test_a_node_that_is_lost_is_not_waited_for() -> None:
    def dies(agent: HandAgent, message: VerifyShare) -> None:
        if agent.node == "n1":
            agent.beating = agent.obeys = False
        else:
            agent.answer(message)

    readers = Readers(dies)
    readers.ask()
    readers.desk.pass_s(1.0)
    assert readers.told() == [("dealt 1: share 2", 4)]
    for _ in range(120):
        readers.desk.pass_s(1.0 if len(readers.told()) == 1 else 0.0)
    assert readers.told()[1:] == [("proven 1 {3: 'n1: lost'}", -1)]
    readers.ask(ReadingAsked(2, "/ckpt/step-7", "ab", 100))
    assert readers.told()[2:] == [("dealt 2: share 1", 3), ("proven 2 {}", -1)], "nor asked"


def test_an_agent_that_came_back_reads_what_the_one_before_it_was_asked_for() -> None:
    def dies(agent: HandAgent, message: VerifyShare) -> None:
        if agent.node != "n1" or agent.incarnation == "i2":
            agent.answer(message)

    readers = Readers(dies)
    readers.ask()
    agent = readers.desk.agents["n1"]
    agent.incarnation, agent.attempt, agent.ranks = "i2", -1, ()
    agent.hello(previous_died="signal 9")
    readers.desk.pass_s(3.0)
    assert readers.told() == [("dealt 1: share 2", 4), ("proven 1 {}", -1)]


def test_the_next_reading_ends_the_one_before_and_late_words_of_it_count_for_nothing() -> None:
    readers = Readers(lambda agent, message: agent.answer(message) if message.nonce == "ef" else None)
    readers.ask()
    readers.ask(ReadingAsked(2, "/ckpt/step-5", "cd", 100))
    late = readers.desk.agents["n2"]
    late.answer(late.heard(VerifyShare)[0], ok=False, why="late")
    readers.own_share_is_read(0.0)
    readers.desk.pass_s(3.0)
    assert readers.told() == [("dealt 1: share 2", 4), ("dealt 2: share 2", 4)]
    assert [m.nonce for m in readers.desk.agents["n1"].heard(VerifyShare)] == ["ab", "cd", "cd", "cd", "cd"]
    readers.ask(ReadingAsked(3, "/ckpt/step-3", "ef", 100))
    assert readers.told()[2:] == [("dealt 3: share 2", 4), ("proven 3 {}", -1)]


@pytest.mark.parametrize("nodes", [1, 4])
def test_alone_it_reads_alone(nodes: int) -> None:
    desk = Desk(nodes=nodes)
    desk.running()
    if nodes == 4:
        desk.mailbox.post(Stamped(CancelRequested("a person")))
        desk.pass_s(1.0)
    desk.mailbox.post(ASKED)
    desk.turn_all()
    assert ("dealt 1: share 0", 1) in desk.checkpoints.asked or desk.loop.exit_code is not None
    assert not any(agent.heard(VerifyShare) for agent in desk.agents.values())
