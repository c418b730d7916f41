"""What is said between agents and supervisor: every message round-trips; everything else is dropped with a reason."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.checkpoints.memory import HeldCode, HeldStripe, Holding
from gangrun.core.evidence import RankStack
from gangrun.wire import messages as wire
from gangrun.wire.messages import (
    Ack,
    AgentEvent,
    AskSave,
    Beat,
    CheckAnswer,
    CheckNode,
    CommandResult,
    Dial,
    Farewell,
    Hello,
    Launch,
    LiveRank,
    MemoryAnswer,
    Message,
    PeerAddress,
    Ping,
    Pong,
    Prepare,
    Probe,
    ProbeResult,
    Promise,
    RankSample,
    Recover,
    Rejected,
    SaveAnswer,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    StopAnswer,
    VerifyShare,
    Welcome,
    WireError,
)

PEER = PeerAddress("n1", "tcp://10.0.0.1:4711", "key")
HOLDING = Holding(7, "ab", ("0", "m"), 3, ("p0",), (HeldCode((("0",), ("1",)), (HeldStripe((0, 1), ("p0",)),)),))
SAMPLES: tuple[Message, ...] = (
    Hello("n1", "j", "b", "i", 3, 8, 2, (LiveRank(0, 17, 99),), PEER, True, "signal 9", 4096, ("10.0.0.1",)),
    Beat(
        "n1",
        "i",
        7,
        1.5,
        3,
        2,
        False,
        (RankSample(0, 12, 2, 9, 100, 1.25, "R"),),
        (AgentEvent(1, "x", {"a": [1]}),),
        2.0,
    ),
    Beat("n1", "i", 7, 1.5, 3, 2, False, is_brief=True),
    CommandResult("n1", "i", (3, 4), False, "no room"),
    CommandResult("n1", "i", (3, 4), True, answer=StartAnswer(29501, True)),
    CommandResult("n1", "i", (3, 4), True, answer=StopAnswer(("pid 7",))),
    CommandResult("n1", "i", (3, 4), True, answer=StopAnswer((), (0, 3), 30.0)),
    CommandResult("n1", "i", (3, 4), True, answer=StacksAnswer((RankStack(0, "n1", "train.py:1 in f", "/s"),))),
    CommandResult("n1", "i", (3, 4), True, answer=CheckAnswer("4 products")),
    CommandResult("n1", "i", (3, 4), True, answer=SaveAnswer(40)),
    CommandResult("n1", "i", (3, 4), True, answer=MemoryAnswer((HOLDING,))),
    ProbeResult("n1", "n2", True),
    Welcome(3, "n1", 2.0, whole_every_s=15.0),
    Ack(3, 7, 1.5, 1, (PEER,), 4, 2.0, asks_for_all=True),
    Prepare(3, (3, 4), 2, True),
    Launch(3, (3, 4), 2, 4, 1, 2, (2, 3), (0, 1), "n0", 29501, ("n0", "n1"), "/c/step-4", 4),
    Stop(3, (3, 4), 2, 10.0, True, 60.0, "naïve ☃"),
    Stacks(3, (3, 4), 2),
    AskSave(3, (3, 4), 2, 40),
    CheckNode(3, (3, 4)),
    Recover(3, (3, 4), 2, "/ckpt/.gangrun/r/3/2-memory/40-ab", 40, "ab", ("__0_0.distcp",)),
    VerifyShare(3, (3, 4), "/ckpt/step-40", "ab", 1, 4),
    Probe(3, PEER),
    Farewell(3, (3, 4), 1, "failed"),
    Rejected(3, "deposed"),
    Promise("n1", "i", 3, 5.5),
    Dial(4, "tcp://10.0.0.2:1", "key"),
    Ping("n1", 3),
    Pong("n1", "i", 3, 5.5),
)


def test_there_is_a_sample_of_every_message() -> None:
    assert {type(sample) for sample in SAMPLES} == set(get_args(Message))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    assert wire.decode("r", wire.encode("r", message)) == message


def test_an_envelope_in_another_order_or_of_an_older_version_is_read_as_well() -> None:
    body = msgspec.Raw(msgspec.msgpack.encode(SAMPLES[0]))
    assert wire.encode("r", SAMPLES[0]) == packed(v=wire.SCHEMA, run="r", body=body)
    for data in (packed(body=body, run="r", v=wire.SCHEMA), packed(v=1, run="r", body=body)):
        assert wire.decode("r", data) == SAMPLES[0]


def packed(**envelope: Any) -> bytes:
    return msgspec.msgpack.encode(envelope)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (wire.encode("other", SAMPLES[0]), "of run 'other', not 'r'"),
        (packed(v=wire.SCHEMA + 1, run="r", body={"type": "Brand new"}), "schema 3, newer"),
        (packed(v=1, run="r", body={"type": "Nonsense"}), "not a message"),
        (packed(v=1, run="r", body={"type": "Ping"}), "not a message"),
        (packed(v=1, run="r", body={"type": "Ping", "node": 7}), "not a message"),
        (packed(v=1, run="r", body=[1, 2]), "not a message"),
        (packed(v=1, run="r"), "not a message"),
        (packed(v="1", run="r", body={}), "not a message"),
        (wire.encode("r", SAMPLES[0]) + b"\x01", "not a message"),
        (b"", "not a message"),
        (b"\xc1", "not a message"),
        (wire.encode("r", SAMPLES[0])[:-1], "not a message"),
        (b"\x83\xa1v\x01\xa3run\xa1\xff\xa4body\xc0", "not a message"),
        (b"\x83\xa1v\x01\xa3run\xa1r\xa4body" + b"\x91" * 200_000, "not a message"),
        (b"\x00" * (wire.SIZE_MAX_BYTES + 1), "more than a message may have"),
    ],
    ids=range(15),
)
def test_what_is_no_message_for_us_is_dropped_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        wire.decode("r", data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_dropped(data: bytes) -> None:
    for letter in (data, packed(v=1, run="r", body=msgspec.Raw(data or b"\xc0"))):
        with suppress(WireError):
            wire.decode("r", letter)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_hurt_message_is_a_message_or_dropped(message: Message, data: st.DataObject) -> None:
    letter = bytearray(wire.encode("r", message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(letter) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                letter[at] = data.draw(st.integers(0, 255))
            case 1:
                del letter[at : at + data.draw(st.integers(1, 8))]
            case _:
                letter[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        if not letter:
            break
    with suppress(WireError):
        wire.decode("r", bytes(letter))
