"""The living line of ``gangrun run``: what it shows, and that it fits."""

from __future__ import annotations

import io
import os
import re
import tty
from pathlib import Path

import pytest

from gangrun.display.live_view import LiveView
from gangrun.display.text import packed
from gangrun.runs.snapshot import read
from tests.runs.builder import Builder
from tests.runs.stories import failed, restarted, running

FIGURES = {"step": 3120, "total_steps": 120000, "steps_per_s": 3.24, "loss": 2.3125}


def drawn(story: Builder, monkeypatch: pytest.MonkeyPatch, **live: object) -> list[str]:
    """The lines on a terminal 83 seconds after the view began."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    tty.setraw(slave)  # without echo
    now = [story.now]
    with os.fdopen(slave, "w") as err, os.fdopen(master, "rb", buffering=0) as screen:
        view = LiveView(story.paths.node_log, lambda term: live, lambda: now[0], io.StringIO(), err, terminal=True)
        for record in read(story.paths, timeline=True).records:
            view.note(record)
        view.tick(story.state)
        now[0] += 83
        view.tick(story.state)
        err.write("THE END")
        err.flush()
        seen = b""
        while not seen.endswith(b"THE END"):
            seen += screen.read(65536)
        view.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode().removesuffix("THE END"))
    return [line.strip() for line in text[text.rindex("RUNNING") :].splitlines()]


def test_it_shows_step_rate_loss_and_time_left(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = " ".join(drawn(running(runs), monkeypatch, **FIGURES))
    assert "RUNNING 1:23 · step 3120/120000 · 3.24 steps/s · loss 2.312 · 10h01m left" in found


def test_it_shows_how_busy_gpus_are_if_there_are_any(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = " ".join(drawn(running(runs), monkeypatch, **FIGURES, gpu={"count": 8, "busy_percent": 93.4}))
    assert "loss 2.312 · GPU 93 %" in found


def test_after_a_failure_it_shows_the_checkpoints_age_and_what_was_lost(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = restarted(runs)
    lines = drawn(story, monkeypatch, **{**FIGURES, "attempt": 1, "loss": "NaN"})
    assert "loss NaN" in lines[0]
    age = int(
        story.now + 83 - next(r.wall for r in read(story.paths, timeline=True).records if r.kind == "CheckpointSeen")
    )
    lost = lost_in(story)
    assert f"checkpoint 20 {age // 60}m{age % 60:02d}s old · 1 restart, {lost} lost" in " · ".join(lines)
    assert all(len(line) < 80 for line in lines)


def lost_in(story: Builder) -> str:
    """Steps 21 to 31 of attempt 0 were lost, and the time until attempt 1 began."""
    first, second = story.state.attempts
    assert first.ended is not None
    lost_s = (first.ended - first.started) * (31 - 20) / (31 - -1) + second.started - first.ended
    return f"{int(lost_s)}s"


def test_figures_of_an_attempt_that_is_over_are_not_shown(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "3120" not in " ".join(drawn(restarted(runs), monkeypatch, **FIGURES, attempt=0))


def test_facts_share_lines_as_long_as_they_fit() -> None:
    assert packed(["a" * 30, "b" * 30, "c" * 30], 80) == ["a" * 30 + " · " + "b" * 30, "c" * 30]
    assert packed(["a" * 100, "b"], 80) == ["a" * 100, "b"]


def test_a_victims_traceback_is_folded_on_a_terminal(runs: Path) -> None:
    """Rank 2 fails first, rank 0 only notices."""
    story = failed(runs)
    folder = story.paths.logs / "1"
    folder.mkdir()
    victim = ["Traceback (most recent call last):", "  File x", "DistBackendError: peer closed"]
    lines = ["step 31", *victim]
    (folder / "n0.log").write_text("".join(f"[n0:rank0 11:09:01] {line}\n" for line in lines))
    out = io.StringIO()
    view = LiveView(story.paths.node_log, lambda term: {}, lambda: story.now, out, io.StringIO(), terminal=True)
    records = read(story.paths, timeline=True).records
    view.tick(story.state)
    for record in records:
        view.record(record)
    view.tick(story.state)
    view.close()
    told = ["[n0:rank0 11:09:01] step 31", "[n0:rank0 11:09:01] (3 lines folded: rank 2 failed first)"]
    assert out.getvalue().splitlines() == told
