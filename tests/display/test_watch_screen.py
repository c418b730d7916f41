"""``status --watch`` on a terminal: what fits on it, what squares say, and that the keyboard is given back."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from datetime import timezone
from pathlib import Path

import pexpect
import pytest

from gangrun.core.events import NodeLost, ProgressMarked
from gangrun.display.status_page import PageFormat
from gangrun.display.watch_screen import COLUMNS_MIN, ROWS_MIN, Scrolled, keys_in, screen_lines, turned
from gangrun.runs.follow import Follower
from gangrun.runs.snapshot import read
from gangrun.runs.watched import NodeSquares, RankKind, WatchedLook, WatchedRun, squares_of
from tests.command_line import golden
from tests.runs.builder import ERROR, Builder
from tests.runs.stories import restarted, running

REPO = Path(__file__).parents[2]
LOST, RUNNING, SPARE = RankKind.LOST, RankKind.RUNNING, RankKind.SPARE


def looked(story: Builder) -> WatchedLook:
    return WatchedRun(story.paths, Follower(story.paths)).look()


def lines_of(run: WatchedLook, columns: int, rows: int, now: float, at: Scrolled | None = None) -> list[str]:
    return screen_lines(run, at or Scrolled(), PageFormat(now, columns, zone=timezone.utc), rows)


def longer(runs: Path) -> Builder:
    """It fell once, and trains on."""
    story = restarted(runs).owned_by_us()
    for k in range(1, 12):
        story.on(ProgressMarked(1, 31 + 30 * k, loss=3 - k / 8), 30)
    return story.live(step=400, loss=1.6, steps_per_s=1.02, total_steps=1000)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
def test_a_run_fits_the_screen(runs: Path, columns: int, rows: int) -> None:
    story = longer(runs)
    lines = lines_of(looked(story), columns, rows, story.now + 5)
    assert len(lines) == rows
    assert max(map(len, lines)) <= columns
    golden(f"watch-{columns}.txt", "\n".join(line.rstrip() for line in lines) + "\n")


@pytest.mark.parametrize(("columns", "rows"), [(40, 10), (80, 24), (200, 50)])
@pytest.mark.parametrize(("nodes_count", "ranks_count"), [(1, 1), (8, 8), (128, 8), (2048, 8)])
def test_any_number_of_ranks_fits(runs: Path, columns: int, rows: int, nodes_count: int, ranks_count: int) -> None:
    story = longer(runs)
    squares = [NodeSquares(f"n{k:04d}", (RUNNING,) * ranks_count) for k in range(nodes_count)]
    squares[nodes_count // 2] = NodeSquares("broken", (LOST,))
    run = replace(looked(story), nodes=tuple(squares))
    lines = lines_of(run, columns, rows, story.now + 5)
    assert len(lines) == rows
    assert max(map(len, lines)) <= columns
    if rows > 10:
        assert any("1 lost" in line and "broken" in line for line in lines)
        squares_drawn = [line for line in lines if re.search(r"(^|\s)[■ ]*x[■ ]*$", line)]
        assert squares_drawn, lines  # the broken one is seen, however many share a square


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (9, 3), (15, 5), (20, 200)])
def test_a_terminal_that_is_too_small_shows_a_part(runs: Path, columns: int, rows: int) -> None:
    """As it is made smaller under a viewer; 0 where nobody set a size."""
    story = longer(runs)
    lines = lines_of(looked(story), columns, rows, story.now + 5)
    assert len(lines) == max(ROWS_MIN, rows) and max(map(len, lines)) <= COLUMNS_MIN


def test_squares_tell_lost_ranks_from_others(runs: Path) -> None:
    story = Builder(runs, nodes=("n0", "n1", "n2")).supervisor().up()
    before = squares_of(read(story.paths))
    assert before == tuple(NodeSquares(f"n{k}", (RUNNING, RUNNING)) for k in range(3))
    story.exit(3, error=ERROR)
    assert squares_of(read(story.paths))[1].ranks == (RankKind.WAITING, LOST)
    story.on(NodeLost("n2", 1.0, "no heartbeat"))
    assert squares_of(read(story.paths))[2].ranks == (LOST, LOST)


def test_decisions_scroll_and_stay_in_bounds(runs: Path) -> None:
    story = restarted(runs)
    run = looked(story)
    count = len(run.decisions)
    at = Scrolled()
    for key in "kkj":
        at = turned(at, key, 5, count)
    assert at == Scrolled(1)
    newest, second = run.decisions[-1][1], run.decisions[-2][1]
    shown = "\n".join(lines_of(run, 200, 50, story.now, at)[10:])
    assert second[:40] in shown
    assert newest[:40] not in shown
    for _ in range(20):
        at = turned(at, " ", 5, count)
    assert at.decisions_count == count - 1
    assert turned(at, "g", 5, count) == Scrolled()
    assert "older decisions" in "\n".join(lines_of(run, 80, 24, story.now, turned(at, "?", 5, count)))


def test_keys_come_by_name() -> None:
    assert list(keys_in(b"j\x1b[A\x1b[B\x1bOB\x1b[5~\x1b[6~q")) == ["j", "k", "j", "j", "b", " ", "q"]
    assert list(keys_in(b"\x1b[200~rm")) == []


def test_foreign_words_cannot_move_the_cursor(runs: Path) -> None:
    story = Builder(runs, name="a\x1b[2Jb\nc", nodes=("n0", "n\x07")).supervisor().up()
    story.on(NodeLost("n\x07", 1.0, "why\x1b]0;x\x07\n"))
    for line in lines_of(looked(story), 80, 24, story.now):
        assert not [char for char in line if unicodedata.category(char)[0] == "C"]


# ---- on a real terminal ----


def watching(story: Builder) -> pexpect.spawn:
    environment = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    words = ["-m", "gangrun", "status", "--watch", "--runs-dir", str(story.runs)]
    return pexpect.spawn(sys.executable, words, env=environment, timeout=300, encoding="utf-8", dimensions=(24, 80))


def by_key(child: pexpect.spawn) -> None:
    child.send("?")
    child.expect("the run goes on")
    child.send("q")


def by_interrupt(child: pexpect.spawn) -> None:
    child.sendintr()


def by_signal(child: pexpect.spawn) -> None:
    os.kill(child.pid, signal.SIGTERM)


def by_hang_up(child: pexpect.spawn) -> None:
    os.kill(child.pid, signal.SIGHUP)


@pytest.mark.processes
@pytest.mark.parametrize(("leave", "code"), [(by_key, 0), (by_interrupt, 130), (by_signal, 143), (by_hang_up, 129)])
def test_every_exit_gives_the_keyboard_and_the_screen_back(
    runs: Path, home: Path, leave: Callable[[pexpect.spawn], None], code: int
) -> None:
    story = running(runs)
    child = watching(story)
    before = termios.tcgetattr(child.child_fd)
    child.expect("q leaves")
    assert termios.tcgetattr(child.child_fd) != before
    leave(child)
    child.expect(re.escape("\x1b[?1049l"))  # the screen that was there before
    child.expect(pexpect.EOF)
    assert termios.tcgetattr(child.child_fd) == before
    child.close()
    assert child.exitstatus == code
    assert not story.paths.cancelled.exists()
