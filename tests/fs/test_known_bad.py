"""The file of known bad nodes: two writers at once, damage, and the command that shows and clears it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangrun.adapters.fs.known_bad import NAME, KnownBadFile


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: KnownBadFile(tmp_path / "new").add({f"n{k}": "XID 79"}, "r", float(k)), range(24)))
    known = KnownBadFile(tmp_path / "new").read()
    assert set(known) == {f"n{k}" for k in range(24)}
    assert [path.name for path in (tmp_path / "new").iterdir() if path.name.endswith(".tmp")] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 2, "nodes": []}', '{"v": 1, "nodes": [{"node": 3}]}', "\xff"])
def test_damage_is_an_empty_list_and_is_written_over(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text, "latin-1")
    file = KnownBadFile(tmp_path)
    assert file.read() == {}
    file.add({"n1": "XID 79"}, "r", 5.0)
    assert file.read()["n1"].reason == "XID 79"


def test_the_command_shows_and_clears(tmp_path: Path) -> None:
    def gangrun(*words: str) -> tuple[int, str, str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "gangrun", "nodes", *words], env=environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    assert gangrun() == (0, "no node is known to be bad\n", "")
    import time

    KnownBadFile(tmp_path / "gangrun").add({"n1": "XID 79 on gpu 1\x1b[31m", "n2": "gpu lost"}, "r", time.time())
    code, out, _ = gangrun()
    assert code == 0
    assert "n1" in out and "left out for 24 h more" in out and "\x1b" not in out
    shown = json.loads(gangrun("--json")[1])["nodes"]
    assert {(one["node"], one["times"], one["left_out"]) for one in shown} == {("n1", 1, True), ("n2", 1, True)}
    code, _, error = gangrun("clear", "n[1-3]")
    assert code != 0
    assert "nothing is known against n3" in error
    assert gangrun("clean")[0] != 0
    assert gangrun("clear", "n[1")[0] != 0
    assert gangrun("clear", "n1") == (0, "forgotten: n1\n", "")
    assert gangrun("clear", "all") == (0, "forgotten: n2\n", "")
