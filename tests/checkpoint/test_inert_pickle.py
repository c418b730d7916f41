"""Whatever a ``.metadata`` holds, reading it executes nothing, ends soon and fails by one kind of error only."""

from __future__ import annotations

import io
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangrun.checkpoint.formats.dcp_metadata import (
    METADATA_MAX_BYTES,
    GlobalName,
    Inert,
    MetadataRefused,
    Pairs,
    PickleRefused,
    parse_metadata,
    read,
)


class Runs:
    """Unpickling this would run a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_hostile_pickle_is_refused_by_name_and_never_runs(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"state": Runs(tmp_path / "ran")}, protocol)
    with pytest.raises(
        MetadataRefused, match=r"posix\.system, which no plain checkpoint needs and which loading would run"
    ):
        parse_metadata(data)
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)  # the same bytes do run when they are unpickled: the test would see it
    assert (tmp_path / "ran").exists()


def test_the_protocol_of_cpp_code_is_read_only_if_asked_for() -> None:
    data = pickle.dumps([{"a": (1, 2), "b": "a"}, {"a": 2.5}], 2)
    with pytest.raises(PickleRefused, match="protocol 2; torch writes 4 or 5"):
        read(data, ())
    value = read(data, (), (2,))
    assert isinstance(value, list)
    assert [one.pairs for one in value] == [[("a", (1, 2)), ("b", "a")], [("a", 2.5)]]
    with pytest.raises(PickleRefused, match="do not fit together"):
        read(b"\x80\x02]q\x05.", (), (2,))


def test_even_an_allowed_global_is_only_a_name(tmp_path: Path) -> None:
    value = read(pickle.dumps(Runs(tmp_path / "ran"), 4), {"posix.system"})
    assert isinstance(value, Inert) and value.name == "posix.system"
    assert value.args == (f"touch {tmp_path / 'ran'}",)
    assert not (tmp_path / "ran").exists()


def test_plain_values_read_as_they_are() -> None:
    value: list[object] = [1, -5, 300, 70000, 2**40, -(2**70), 1.5, None, True, False, "ü" * 300, b"x", (), (1,)]
    value += [(1, 2), (1, 2, 3), (1, 2, 3, 4), "s", b"y" * 300, [1]]
    assert read(pickle.dumps(value, 4), ()) == value
    pairs = read(pickle.dumps({"a": 1, "b": {"c": 2}}, 4), ())
    assert isinstance(pairs, Pairs) and pairs.field("a") == 1 and pairs.field("z") is None
    assert sorted(read(pickle.dumps([{3, 4}], 4), ())[0]) == [3, 4]  # type: ignore[index]
    assert read(pickle.dumps(frozenset([7]), 4), ()) == (7,)
    assert read(pickle.dumps(io.BytesIO, 4), {"_io.BytesIO"}) == GlobalName("_io.BytesIO")
    shared = ["x"] * 300  # more than 256 memo places
    assert read(pickle.dumps([[n, str(n)] for n in range(300)] + [shared, shared], 4), ())[-1] == shared  # type: ignore[index]


def _nested_tuples(depth: int) -> bytes:
    return b"\x80\x04)" + b"\x85" * depth + b"."


def _doubling() -> bytes:
    """t1 = (t0, t0), t2 = (t1, t1), … as a dictionary's key: hashing it would take for ever."""
    body = b"\x80\x04}(K\x00\x94"
    for place in range(60):
        body += b"h" + bytes([place]) + b"h" + bytes([place]) + b"\x86\x94"
    return body + b"K\x01u."


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04N",
        b"\x80\x02}.",
        b"garbage that is no pickle",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",  # bytes of 2**63
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a bytearray of 2**63
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",  # a frame of 2**63
        b"\x80\x04Nr\xff\xff\xff\x7f.",  # a memo of 2**31 places
        b"\x80\x04j\xff\xff\xff\x7f.",
        b"\x80\x04\x8b\xff\xff\xff\x7f.",  # a number of 2**31 digits
        b"\x80\x04\x8a\xff" + b"\1" * 255 + b".",
        b"\x80\x04\x8c\x02\xff\xfe.",  # not utf-8
        b"\x80\x04" + b"}" * 100_000 + b".",
        b"\x80\x04" + b"]" * 100_000 + b"0.",
        b"\x80\x04K\x01K\x02\x93.",
        b"\x80\x04K\x01)R.",
        b"\x80\x04K\x01K\x02b.",
        b"\x80\x04K\x01K\x02a.",
        b"\x80\x04K\x01(K\x02e.",
        b"\x80\x04K\x01(K\x02u.",
        b"\x80\x04}(K\x02u.",
        b"\x80\x04K\x01K\x02K\x03s.",
        b"\x80\x04(.",
        b"\x80\x04K\x01t.",
        b"\x80\x04NN.",
        b"\x80\x04}((a.",
        _nested_tuples(200_000),
    ],
)
def test_bombs_and_nonsense_are_refused(data: bytes) -> None:
    with pytest.raises(PickleRefused):
        read(data, ())
    with pytest.raises(MetadataRefused):
        parse_metadata(data)


def test_nothing_is_hashed_and_depth_is_harmless() -> None:
    assert isinstance(read(_doubling(), ()), Pairs)
    assert isinstance(read(_nested_tuples(3000), ()), tuple)
    with pytest.raises(MetadataRefused):
        parse_metadata(_doubling())


def test_too_large_is_refused_unread() -> None:
    with pytest.raises(MetadataRefused, match="larger than"):
        parse_metadata(bytes(METADATA_MAX_BYTES + 1))


def test_an_ordered_dictionary_is_a_dictionary() -> None:
    from collections import OrderedDict

    value = read(pickle.dumps(OrderedDict(a=1), 4), {"collections.OrderedDict"})
    assert isinstance(value, Pairs) and value.field("a") == 1


@given(st.binary(max_size=400))
def test_random_bytes_are_only_ever_refused(data: bytes) -> None:
    for prefix in (b"", b"\x80\x04"):
        with pytest.raises(MetadataRefused):
            parse_metadata(prefix + data)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 6))
def test_damaged_real_metadata_is_read_or_refused(written: Path, seed: int, changes: int) -> None:
    chance = random.Random(seed)
    data = bytearray((written / "step-40" / ".metadata").read_bytes())
    for _ in range(changes):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randrange(40)]
            case 2:
                data[place:place] = data[chance.randrange(len(data)) :][: chance.randrange(60)]
            case _:
                data[place] ^= 1 << chance.randrange(8)
    try:
        for entry in parse_metadata(bytes(data)).entries:
            assert ".." not in entry.path.split("/") and not entry.path.startswith("/")
            assert entry.offset >= 0 and entry.length >= 0
    except MetadataRefused:
        pass


def test_every_prefix_of_real_metadata_is_torn(written: Path) -> None:
    data = (written / "step-10" / ".metadata").read_bytes()
    parse_metadata(data)
    for end in range(len(data)):
        with pytest.raises(MetadataRefused):
            parse_metadata(data[:end])


def test_the_whole_room_imports_without_torch_and_numpy() -> None:
    code = "import sys, gangrun.checkpoint.store; print([m for m in ('torch', 'numpy', 'pickle') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.strip() == "[]"
