"""Rank output: prefixes, partial and hostile lines, caps, and disks that stand still or are full."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangrun.agent.ranks.logs import LINE_MAX_BYTES, LOST, CappedLog, RankLogs
from gangrun.runs.rank_output import rank_of
from gangrun.wire.spec import LogSpec
from tests.local_parts.gang import boottime
from tests.waiting import until

Start = Callable[..., "Pipes"]


def parts_of(log: Path) -> list[Path]:
    return [part for end in ("", ".tail.1", ".tail") if (part := log.with_name(log.name + end)).exists()]


class Pipes:
    """One rank's two pipes, and the log that they end in."""

    def __init__(self, directory: Path, spec: LogSpec, spool_max_bytes: int) -> None:
        self.path = directory / "n0.log"
        self.logs = RankLogs("n0", directory, spec, boottime, spool_max_bytes)
        out_read, self.out = os.pipe()
        err_read, self.err = os.pipe()
        self.logs.add(7, out_read, err_read)
        self.open = [self.out, self.err]

    def text(self) -> str:
        return b"".join(part.read_bytes() for part in parts_of(self.path)).decode()

    def is_written(self, sent_bytes: int) -> bool:
        return self.logs.output_bytes(7) == sent_bytes and not self.logs._spooled_bytes

    def hang_up(self) -> None:
        while self.open:
            os.close(self.open.pop())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Pipes] = []

    def begin(spec: LogSpec | None = None, spool_max_bytes: int = 1 << 20) -> Pipes:
        made.append(Pipes(tmp_path / "logs", spec or LogSpec(), spool_max_bytes))
        return made[-1]

    yield begin
    for pipes in made:
        pipes.hang_up()
        pipes.logs.close(4.0)


def test_a_line_bears_the_time_at_which_it_was_read_whenever_it_is_written(tmp_path: Path) -> None:
    logs = RankLogs("n0", tmp_path, LogSpec(per_rank=True), boottime, stamp=lambda: "18:27:03")
    out_read, out = os.pipe()
    err_read, err = os.pipe()
    logs.add(3, out_read, err_read)
    os.write(out, b"step 1\n")
    logs.say("a word of ours")
    os.close(out)
    os.close(err)
    assert logs.wait_read(3, 60)
    assert logs.close(60)
    found = (tmp_path / "n0.log").read_text().splitlines()
    assert sorted(found) == ["[n0:gangrun 18:27:03] a word of ours", "[n0:rank3 18:27:03] step 1"]
    assert [rank_of(line) for line in sorted(found)] == [None, 3]
    assert (tmp_path / "rank-3.log").read_text() == "step 1\n"


def test_lines_are_prefixed_and_the_tail_of_stderr_is_kept_apart(start: Start) -> None:
    pipes = start()
    os.write(pipes.out, b"one\ntw")
    os.write(pipes.err, b"bad \xff\xfe byte\n")
    os.write(pipes.out, b"o\n\n")
    pipes.hang_up()
    assert pipes.logs.wait_read(7, 60)
    assert pipes.logs.close(60)
    assert sorted(pipes.text().splitlines()) == [
        "[n0:rank7] ",
        "[n0:rank7] bad \\xff\\xfe byte",
        "[n0:rank7] one",
        "[n0:rank7] two",
    ]
    assert [line for _, line in pipes.logs.stderr_tail(7)] == ["bad \\xff\\xfe byte"]
    assert pipes.logs.output_bytes(7) == 21


def test_a_partial_line_is_shown_soon_and_a_progress_bar_once(start: Start) -> None:
    pipes = start()
    os.write(pipes.out, b"Password: ")
    os.write(pipes.err, b"\r 10%\r 20%\r 30%")
    until(lambda: "[n0:rank7] Password: \n" in pipes.text(), 4, "the prompt")
    until(lambda: "[n0:rank7]  30%\n" in pipes.text(), 4, "the bar")
    assert "20%" not in pipes.text()


def test_a_line_without_end_is_split(start: Start) -> None:
    pipes = start()
    writer = threading.Thread(target=os.write, args=(pipes.out, b"x" * (3 * LINE_MAX_BYTES) + b"\n"))
    writer.start()
    writer.join()
    pipes.hang_up()
    assert pipes.logs.close(60)
    lines = pipes.text().splitlines()
    assert sum(line.count("x") for line in lines) == 3 * LINE_MAX_BYTES
    assert max(map(len, lines)) < 2 * LINE_MAX_BYTES


def test_a_log_keeps_its_head_and_its_tail_and_says_what_went(start: Start) -> None:
    pipes = start(LogSpec(per_rank=True, head_max_bytes=4_000, tail_max_bytes=4_000))
    written = 0
    for number in range(2_000):
        os.write(pipes.out, b"line %d\n" % number)
        written = written + len(b"line %d\n" % number)
        if number % 50 == 0:  # small pieces, as they come in life: a cap is kept to within one
            until(lambda sent=written: pipes.is_written(sent), 5, "it to be written")  # type: ignore[misc]
    pipes.hang_up()
    assert pipes.logs.close(60)
    text = pipes.text()
    assert text.startswith("[n0:rank7] line 0\n[n0:rank7] line 1\n")
    assert text.endswith("[n0:rank7] line 1999\n")
    assert "bytes were dropped between the head of this log and its tail" in text
    assert len(text) < 14_000
    assert sum(part.stat().st_size for part in parts_of(pipes.path.with_name("rank-7.log"))) < 14_000


def test_what_is_kept_and_what_is_dropped_is_the_whole(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "x.log", 100, 100)
    for number in range(200):
        log.write(b"%03d\n" % number)
    log.close()
    names = [part.name for part in parts_of(tmp_path / "x.log")]
    assert names == ["x.log", "x.log.tail.1", "x.log.tail"]
    numbers = [
        int(line) for part in parts_of(tmp_path / "x.log") for line in part.read_text().split("\n") if line.isdigit()
    ]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] == 199


def test_a_disk_that_stands_still_blocks_no_rank_and_the_gap_is_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "n0.log")  # opening it for writing blocks until somebody reads
    pipes = start(spool_max_bytes=64 * 1024)
    for number in range(20_000):  # a rank that waited for this disk would never come to the end of it
        os.write(pipes.out, b"line %06d of many\n" % number)
    until(lambda: pipes.logs.output_bytes(7) == 20_000 * 20, 5, "all to be read")
    read = os.open(tmp_path / "logs" / "n0.log", os.O_RDONLY | os.O_NONBLOCK)
    seen = bytearray()

    def more() -> bytearray:
        try:
            seen.extend(os.read(read, 1 << 20))
        except BlockingIOError:
            pass
        return seen

    until(lambda: b"line 000100 of many" in more(), 5, "the writer to wake")
    until(lambda: more() and not pipes.logs._lines, 5, "the spool to empty")
    os.write(pipes.out, b"after\n")
    until(lambda: b"after" in more(), 5, "the next line")
    assert b"lines (" in seen
    assert b"were dropped here: the disk stood still" in seen
    os.close(read)


def test_a_disk_that_refuses_is_tried_again_and_the_loss_is_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    pipes = start()
    os.write(pipes.out, b"lost\n")
    until(lambda: pipes.logs.output_bytes(7) == 5, 5, "it to be read")
    os.write(pipes.err, b"heard\n")  # what is read next is read when that is on its way to the disk
    until(lambda: pipes.logs.stderr_tail(7) and not pipes.logs._spooled_bytes, 5, "it to be tried")
    (tmp_path / "logs").unlink()
    os.write(pipes.out, b"kept\n")
    until(lambda: (tmp_path / "logs" / "n0.log").exists() and "kept" in pipes.text(), 5, "the next try")
    assert "bytes were lost here: " in pipes.text()
    assert "[n0:rank7] lost" not in pipes.text()


def test_a_copy_that_alone_is_refused_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "rank-7.log").mkdir()
    logs = RankLogs("n0", tmp_path, LogSpec(per_rank=True), boottime, say=said.append)
    read, write = os.pipe()
    err_read, err_write = os.pipe()
    logs.add(7, read, err_read)
    for number in range(3):
        os.write(write, b"line %d\n" % number)
        until(lambda: logs.output_bytes(7) == 7 * (number + 1) and not logs._spooled_bytes, 5, "it to be tried")  # noqa: B023
    os.close(write)
    os.close(err_write)
    assert logs.close(5)
    assert (tmp_path / "n0.log").read_text() == "".join(f"[n0:rank7] line {number}\n" for number in range(3))
    assert not (tmp_path / f"n0.log{LOST}").exists()
    assert len(said) == 1 and said[0].startswith("cannot write ") and "rank-7.log (" in said[0]


@pytest.mark.root
def test_a_full_disk_loses_no_line_of_a_rank_that_is_shown(tmp_path: Path) -> None:
    """It takes a part of what is written, then nothing, then all again: each line is in the log or was shown, once."""
    disk, handed, said = tmp_path / "disk", list[str](), list[str]()
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 128 * 1024)
        logs = RankLogs(
            "n0", disk / "logs", LogSpec(), boottime, shown={0, 3},
            show=lambda line: handed.append(line.decode()), say=said.append,
        )  # fmt: skip
        read, write = os.pipe()
        err_read, err_write = os.pipe()
        logs.add(3, read, err_read)

        def prints(numbers: range) -> None:
            for number in numbers:
                os.write(write, b"line %05d of many\n" % number)
            until(lambda: logs.output_bytes(3) == 19 * numbers.stop and not logs._spooled_bytes, 10, "it to be tried")

        prints(range(8000))  # 240 KB of the 120 that are left
        assert len(said) == 1 and "No space left on device" in said[0]
        ballast.unlink()
        prints(range(8000, 8100))
        os.close(write)
        os.close(err_write)
        assert logs.close(20)
        text = (disk / "logs" / "n0.log").read_text()
        whole = [line for line in text.splitlines() if line.endswith(" of many") and len(line) == len(handed[0])]
        assert sorted(handed + whole) == [f"[n0:rank3] line {number:05} of many" for number in range(8100)]
        assert len(handed) > 1000 and len(whole) > 1000
        assert "bytes were lost here: No space left on device" in text
        lost_bytes = sum(len(line) + 1 for line in handed)
        assert (disk / "logs" / f"n0.log{LOST}").read_text().startswith(f"{lost_bytes} bytes")
        assert f"{lost_bytes} bytes of what ranks printed are missing in" in said[-1]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_pipes_that_something_else_holds_hold_up_neither_the_last_words_nor_the_end(start: Start) -> None:
    pipes = start()
    os.write(pipes.err, b"x" * 300_000 + b"\nlast words\nand no newline")
    assert pipes.logs.wait_read(7, 60)
    assert [line for _, line in pipes.logs.stderr_tail(7)[-2:]] == ["last words", "and no newline"]
    assert pipes.logs.close(60)
    assert "last words\n[n0:rank7] and no newline\n" in pipes.text()
    assert pipes.logs.wait_read(7, 60), "who asks afterwards does not wait"


def test_ranks_that_end_while_others_are_being_started_cost_nobody_a_line(tmp_path: Path) -> None:
    """A file number is given away again as soon as it is free."""
    logs, count, interval_s = RankLogs("n0", tmp_path, LogSpec(), boottime), 10_000, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for rank in range(count):
            out_read, out = os.pipe()
            err_read, err = os.pipe()
            logs.add(rank, out_read, err_read)
            os.write(out, b"at once\n")
            os.close(out)
            os.close(err)
    finally:
        sys.setswitchinterval(interval_s)
    assert logs.close(60)
    assert (tmp_path / "n0.log").read_text().count(" at once\n") == count
