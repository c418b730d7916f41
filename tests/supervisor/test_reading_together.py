"""All nodes of a job read a checkpoint together; whoever does not, or finds damage, leaves its share to this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gangrun.core.events import CancelRequested, Stamped
from gangrun.ports import VerifyAsked
from gangrun.wire.messages import VerifyShare
from tests.supervisor.desk import Desk, HandAgent


class Asked:
    """The checkpoint thread's side of one reading."""

    def __init__(self, nonce: str = "ab", readers_max_count: int = 100) -> None:
        self.dealt: list[tuple[int, Mapping[int, str]]] = []
        self.read: dict[int, str] = {}
        self.over = False
        self.item = VerifyAsked(
            "/ckpt/step-7", nonce, readers_max_count, lambda *dealt: self.dealt.append(dealt),
            self.read.__setitem__, lambda: self.over,
        )  # fmt: skip


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

    def ask(self, nonce: str = "ab", readers_max_count: int = 100) -> Asked:
        asked = Asked(nonce, readers_max_count)
        self.desk.mailbox.post(asked.item)
        self.desk.turn_all()
        return asked

    def shares(self) -> dict[str, set[tuple[int, int]]]:
        """Which share each node was asked for, of how many."""
        return {
            node: {(m.share, m.readers_count) for m in agent.heard(VerifyShare)}
            for node, agent in self.desk.agents.items()
        }


def obey(agent: HandAgent, message: VerifyShare) -> None:
    agent.answer(message)


OTHERS = {0: "n2", 1: "n3", 3: "n1"}


def test_every_other_node_reads_a_share_of_its_own() -> None:
    readers = Readers(obey)
    asked = readers.ask()
    assert readers.shares() == {"n0": set(), "n1": {(3, 4)}, "n2": {(0, 4)}, "n3": {(1, 4)}}
    said = {(m.directory, m.nonce) for agent in readers.desk.agents.values() for m in agent.heard(VerifyShare)}
    assert said == {("/ckpt/step-7", "ab")}
    assert asked.dealt == [(2, OTHERS)]
    assert asked.read == dict.fromkeys(OTHERS, "")
    assert not any("Read" in kind or "Verify" in kind for kind in readers.desk.kinds()), "a question leaves no record"


def test_no_more_are_asked_than_it_is_worth() -> None:
    readers = Readers(obey)
    assert readers.ask(readers_max_count=2).dealt == [(1, {0: "n1"})]
    assert readers.shares() == {"n0": set(), "n1": {(0, 2)}, "n2": set(), "n3": set()}
    assert readers.ask(readers_max_count=1).dealt == [(0, {})]


def test_what_one_sick_node_finds_condemns_nothing() -> None:
    def sick(agent: HandAgent, message: VerifyShare) -> None:
        agent.answer(message, ok=agent.node != "n2", why="__2_0.distcp is damaged")

    assert Readers(sick).ask().read == {0: "n2: __2_0.distcp is damaged", 1: "", 3: ""}


def test_a_node_that_says_nothing_is_asked_again_until_nobody_waits_for_it() -> None:
    readers = Readers(lambda agent, message: None if agent.node == "n3" else agent.answer(message))
    asked = readers.ask()
    readers.desk.pass_s(60.0)
    assert asked.read == {0: "", 3: ""}
    assert len(readers.desk.agents["n3"].heard(VerifyShare)) > 10
    asked.over = True
    readers.desk.pass_s(2.0)
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
    asked = readers.ask()
    readers.desk.pass_s(1.0)
    assert asked.read == {0: "", 1: ""}
    for _ in range(120):
        readers.desk.pass_s(0.0 if 3 in asked.read else 1.0)
    assert asked.read[3] == "n1: lost"
    assert readers.ask().dealt == [(1, {0: "n3", 2: "n2"})], "nor asked"


def test_an_agent_that_came_back_reads_what_the_one_before_it_was_asked_for() -> None:
    def dies(agent: HandAgent, message: VerifyShare) -> None:
        if agent.node != "n1" or agent.incarnation == "i2":
            agent.answer(message)

    readers = Readers(dies)
    asked = readers.ask()
    agent = readers.desk.agents["n1"]
    agent.incarnation, agent.attempt, agent.ranks = "i2", -1, ()
    agent.hello(previous_died="signal 9")
    readers.desk.pass_s(3.0)
    assert asked.read == dict.fromkeys(OTHERS, "")


def test_the_next_reading_ends_the_one_before_and_late_words_of_it_count_for_nothing() -> None:
    readers = Readers(lambda agent, message: agent.answer(message) if message.nonce == "ef" else None)
    first, second = readers.ask(), readers.ask("cd")
    late = readers.desk.agents["n2"]
    late.answer(late.heard(VerifyShare)[0], ok=False, why="late")
    readers.desk.pass_s(3.0)
    assert first.read == second.read == {}
    assert [m.nonce for m in readers.desk.agents["n1"].heard(VerifyShare)] == ["ab", "cd", "cd", "cd", "cd"]
    assert readers.ask("ef").read == dict.fromkeys(OTHERS, "")


@pytest.mark.parametrize("nodes", [1, 4])
def test_alone_it_reads_alone(nodes: int) -> None:
    desk = Desk(nodes=nodes)
    desk.running()
    if nodes == 4:
        desk.mailbox.post(Stamped(CancelRequested("a person")))
        desk.pass_s(1.0)
    asked = Asked()
    desk.mailbox.post(asked.item)
    desk.turn_all()
    assert asked.dealt == [(0, {})] or desk.loop.exit_code is not None
    assert not any(agent.heard(VerifyShare) for agent in desk.agents.values())
