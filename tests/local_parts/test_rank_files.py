"""Small files in the node's memory: made, held, removed; what killed agents left is swept, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gangrun.agent.ranks.environment import HELD, AttemptFiles, sweep, top_of

ROOT = Path(__file__).parents[2]
HOLDS = """
import sys
from pathlib import Path
from gangrun.agent.ranks.environment import AttemptFiles
files = AttemptFiles(Path(sys.argv[1]), sys.argv[2], "n0", 0)
files.of(0).slot.write_bytes(b"x")
print("holds", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_an_attempt(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "r", "n0", 0)
    files.of(0).slot.write_bytes(b"x")
    assert files.base.stat().st_mode & 0o777 == 0o700
    files.remove()
    assert list(top_of(tmp_path).iterdir()) == []
    files.remove()


def test_a_new_agent_removes_what_the_one_before_it_left(tmp_path: Path) -> None:
    left = top_of(tmp_path) / "r" / "n0" / "3"
    left.mkdir(parents=True)
    files = AttemptFiles(tmp_path, "r", "n0", 4)
    assert not left.exists()
    files.remove()
    assert list(top_of(tmp_path).iterdir()) == []


def test_a_killed_agents_files_are_swept_and_a_live_ones_are_not(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path), "killed"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"holds\n"
        slot = top_of(tmp_path) / "killed" / "n0" / "0" / "rank-0.slot"
        assert sweep(tmp_path) == []
        assert slot.exists()
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    live = AttemptFiles(tmp_path, "live", "n0", 0)
    assert sweep(tmp_path) == ["killed"]
    assert [path.name for path in top_of(tmp_path).iterdir()] == ["live"]
    assert live.directory.is_dir()
    live.remove()


def test_what_nobody_marked_is_left_alone(tmp_path: Path) -> None:
    """Nothing says whose it is: it may be another version's, or another program's."""
    unmarked = top_of(tmp_path) / "r" / "n0" / "0"
    unmarked.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "n0").mkdir(parents=True)
    (elsewhere / "n0" / HELD).touch()
    (top_of(tmp_path) / "link").symlink_to(elsewhere)
    assert sweep(tmp_path) == []
    assert unmarked.is_dir()
    assert (elsewhere / "n0" / HELD).exists()


@pytest.mark.root
def test_another_users_files_are_never_touched(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "r", "n0", 0)
    files._let_go()
    os.chown(top_of(tmp_path), 65534, 65534)
    assert sweep(tmp_path) == []
    assert files.directory.is_dir()
    with pytest.raises(PermissionError, match="another user"):
        AttemptFiles(tmp_path, "r", "n0", 1)


def test_a_link_in_the_place_of_our_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "r" / "n0").mkdir(parents=True)
    (tmp_path / "theirs" / "r" / "n0" / HELD).touch()
    top_of(tmp_path).symlink_to(tmp_path / "theirs")
    assert sweep(tmp_path) == []
    assert (tmp_path / "theirs" / "r" / "n0" / HELD).exists()
    with pytest.raises(PermissionError, match="another user"):
        AttemptFiles(tmp_path, "r", "n0", 0)


def test_who_sweeps_never_takes_what_is_just_being_made(tmp_path: Path) -> None:
    done = threading.Event()
    swept: list[str] = []

    def sweeping() -> None:
        while not done.is_set():
            swept.extend(sweep(tmp_path))

    sweepers = [threading.Thread(target=sweeping) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for attempt in range(101):
            files = AttemptFiles(tmp_path, "r", "n0", attempt)
            files.of(0).slot.write_bytes(b"x")
            assert files.of(0).slot.exists()
            if attempt % 2:
                files.remove()
            else:
                files._let_go()  # as if it had been killed
    finally:
        done.set()
        for sweeper in sweepers:
            sweeper.join()
    assert swept or sweep(tmp_path) == ["r"]
