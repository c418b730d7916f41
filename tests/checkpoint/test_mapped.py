"""Bytes in the page cache are proven by a child that maps them: it may die of them, and then they are read instead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.checkpoint import mapped_crc
from gangrun.checkpoint.formats import dcp
from gangrun.checkpoint.formats import manifest as manifest_verify
from gangrun.checkpoint.mapped_crc import Lane, MappingChild
from gangrun.checkpoint.mapped_crc_child import REQUEST
from gangrun.core.model import Level
from gangrun.node.processes import read_proc
from gangrun.wire.manifest import FileRow, Manifest, crcs_text, encode
from tests.local import saves
from tests.waiting import until

pytestmark = pytest.mark.processes
FILE_BYTES = 5 * 1024 * 1024 + 77
CHUNK_BYTES = 2 * 1024 * 1024
NOTED = """
import os, sys
with open({note!r}, "a") as file: print(os.getpid(), file=file)
"""
AT_THE_WORST_MOMENT = """
import mmap
class Shrinking(mmap.mmap):
    def __new__(cls, file, *args, **options):
        made = super().__new__(cls, file, *args, **options)
        os.truncate(f"/proc/self/fd/{{file}}", 4096)
        return made
mmap.mmap = Shrinking
"""
DEAF = """
lane = int(sys.argv[3])
while os.read(lane, 24):
    with open({note!r}, "a") as file: print("asked", file=file)
os.read(0, 1)
os._exit(0)
"""
OWNER = """
import os, sys
from gangrun.checkpoint.mapped_crc import Lane, MappingChild
from gangrun.checkpoint.mapped_crc_child import REQUEST
with MappingChild(1) as child, open(sys.argv[1], "rb") as file:
    Lane(child, 0).crc(file.fileno(), 0, 3_000_000, 0)
    child.lane(0)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(os.urandom(FILE_BYTES))
    return path


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Everything is worth a child, and each that starts is noted."""
    return Started(tmp_path / "started", monkeypatch)


class Started:
    def __init__(self, note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._note, self._monkeypatch = note, monkeypatch
        monkeypatch.setattr(mapped_crc, "WORTH_BYTES", 1)
        monkeypatch.setattr(mapped_crc, "ASK_MIN_BYTES", 1)
        self.with_("")

    def with_(self, more: str) -> None:
        """The very program, after these lines of Python."""
        program = self._note.with_suffix(".py")
        program.write_text(NOTED.format(note=str(self._note)) + more + mapped_child_text())
        self._monkeypatch.setattr(mapped_crc, "PROGRAM", program)

    def pids(self) -> list[int]:
        return [int(line) for line in self._note.read_text().split()] if self._note.exists() else []

    def only_one_and_it_is_gone(self, folder: Path) -> bool:
        """Or none, where the file system does not tell what is in its cache."""
        pids = self.pids()
        return len(pids) == tells_of_its_cache(folder) and not any(read_proc(pid) for pid in pids)


def mapped_child_text() -> str:
    return (
        Path(mapped_crc.__file__)
        .with_name("mapped_crc_child.py")
        .read_text()
        .replace("from __future__ import annotations", "")
    )


def tells_of_its_cache(folder: Path) -> bool:
    path = folder / "probe"
    path.write_bytes(b"probe")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)
        path.unlink()


@pytest.fixture
def descriptor(content: Path) -> Iterator[int]:
    number = os.open(content, os.O_RDONLY)
    yield number
    os.close(number)


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 2_000_001])
def test_it_is_the_checksum_of_these_bytes_gone_on_with(
    offset: int, content: Path, descriptor: int, started: Started
) -> None:
    with MappingChild(2) as child:
        found = [Lane(child, i).crc(descriptor, offset, 3_000_000, 7) for i in (0, 1)]
    right = zlib.crc32(content.read_bytes()[offset : offset + 3_000_000], 7)
    assert found == ([right] * 2 if tells_of_its_cache(content.parent) else [None] * 2)
    assert started.only_one_and_it_is_gone(content.parent)


def own(directory: Path) -> Path:
    """A save of two shards of several chunks each."""
    save = directory / "step-7"
    save.mkdir()
    rows = []
    for name, data in ((".metadata", b"m"), ("a", os.urandom(FILE_BYTES)), ("b", os.urandom(FILE_BYTES))):
        (save / name).write_bytes(data)
        crcs = [zlib.crc32(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]
        rows.append(FileRow(name, len(data), crcs_text(crcs)))
    manifest = Manifest(step=7, nonce="0123456789abcdef", chunk_bytes=CHUNK_BYTES, files=tuple(rows))
    (save / "gangrun.json").write_bytes(encode(manifest))
    return save


def test_a_save_is_proven_through_it_and_every_byte_is_told_once(tmp_path: Path, started: Started) -> None:
    ticks: list[int] = []
    save = own(tmp_path)
    assert manifest_verify.verify(str(save), 7, ticks.append).level is Level.VERIFIED
    assert sum(ticks) == 2 * FILE_BYTES + 1
    saves.flip(save, "b")
    assert (
        manifest_verify.verify(str(save), 7).why == "b is damaged: the checksum of its bytes from 2097152 on is wrong"
    )
    assert len(started.pids()) == 2 * tells_of_its_cache(tmp_path)


def test_so_is_a_plain_one(tmp_path: Path, started: Started) -> None:
    save = saves.plain(tmp_path, 7, 6)
    assert dcp.verify(str(save)).level is Level.VERIFIED
    saves.flip(save, saves.files_of(save)[3])
    assert "__0_3.distcp is damaged: checksum of 'archive/data/0' is wrong" in dcp.verify(str(save)).why
    assert len(started.pids()) == 2 * tells_of_its_cache(tmp_path)


def test_a_file_that_shrinks_under_it_kills_it_alone_and_the_reason_is_told(tmp_path: Path, started: Started) -> None:
    started.with_(AT_THE_WORST_MOMENT.format())
    save = own(tmp_path)
    found = manifest_verify.verify(str(save), 7, threads_count=1)
    said = {True: "a is damaged: the file ends in the middle of it", False: ""}
    assert found.why == said[tells_of_its_cache(tmp_path)]
    assert started.only_one_and_it_is_gone(tmp_path)


def test_it_dies_by_sigbus_there(content: Path, started: Started) -> None:
    """So that the test above is of what it says."""
    started.with_(AT_THE_WORST_MOMENT.format() + "sys.argv[1:] = ['self', sys.argv[1]]\n")
    asks = REQUEST.pack(3, 0, FILE_BYTES, 0)
    text = mapped_crc.PROGRAM.read_text().replace(
        "    main()\n", "    sys.path.append(sys.argv[2]); answer('self', 0)\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" "$2" 3< "$3"', sys.executable, text, mapped_crc.PACKAGES, content],
        input=asks, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGBUS


def test_what_does_not_answer_in_time_is_not_asked_again(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late answer to one question would be taken for the answer to the next."""
    monkeypatch.setattr(mapped_crc, "ANSWER_WITHIN_S", 0.05)
    questions = tmp_path / "questions"
    started.with_(DEAF.format(note=str(questions)))
    assert manifest_verify.verify(str(own(tmp_path)), 7, threads_count=1).level is Level.VERIFIED
    assert not questions.exists() or questions.read_text() == "asked\n"
    assert not any(read_proc(pid) for pid in started.pids())


@pytest.mark.parametrize("program", ["absent", "broken"])
def test_without_it_all_is_read(
    program: str, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program == "broken":
        started.with_("raise SystemExit(1)\n")
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    assert manifest_verify.verify(str(own(tmp_path)), 7).level is Level.VERIFIED


def test_what_is_small_or_whose_cache_is_not_told_of_is_read(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MappingChild(1) as child, open("/proc/self/maps", "rb") as file:
        assert Lane(child, 0).crc(file.fileno(), 0, 4096, 0) is None
    monkeypatch.setattr(mapped_crc, "WORTH_BYTES", 3 * FILE_BYTES)
    assert manifest_verify.verify(str(own(tmp_path)), 7).level is Level.VERIFIED
    assert not started.pids()


class GivenUpError(Exception):
    pass


def test_a_reading_that_is_given_up_leaves_none_behind(tmp_path: Path, started: Started) -> None:
    def tick(_: int) -> None:
        raise GivenUpError

    with pytest.raises(GivenUpError):
        manifest_verify.verify(str(own(tmp_path)), 7, tick)
    assert started.only_one_and_it_is_gone(tmp_path)


def test_it_ends_with_its_owner(content: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(content)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None and owner.stdin is not None
    pid = int(owner.stdout.readline())
    assert read_proc(pid) is not None
    owner.kill()
    owner.wait()
    until(lambda: (proc := read_proc(pid)) is None or proc.state == "Z", 30.0, "it lives on")
    owner.stdin.close()
    owner.stdout.close()
