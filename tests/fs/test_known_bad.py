"""The file of known bad nodes: two writers at once, damage, and the command that shows and clears it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gangrun.adapters.fs.known_bad import NAME, KnownBadFile
from gangrun.core.evidence import Reported
from gangrun.core.model import Exclusion, RunState, Shape
from gangrun.launch.node_history import OtherRuns
from tests.command_line import Call, Said
from tests.waiting import until


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


GPU = Reported("n3", "GPU-7", 94, ((time.time(), "r 0"),))


def test_what_drivers_reported_is_known_to_other_runs_and_the_well_are_taken_off(tmp_path: Path) -> None:
    file, now = KnownBadFile(tmp_path), time.time()
    file.note({"n1": "XID 79", "n2": "gpu lost"}, (), [GPU], "r", now)
    again = replace(GPU, seen=((now + 90.0, "s 4"),))
    file.note({}, ["n1"], [again, replace(GPU, gpu="GPU-8")], "s", now + 90.0)
    assert set(file.read()) == {"n2"}
    assert file.reports() == (replace(GPU, seen=GPU.seen + again.seen), replace(GPU, gpu="GPU-8"))
    file.note({}, (), (), "t", now + 2 * 86400.0)
    assert file.reports() == ()


def test_a_run_tells_others_and_hears_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file, said, now = KnownBadFile(tmp_path / "gangrun"), list[str](), time.time()
    before = RunState(run="r", shape=Shape(1, 1, 1, 1))
    first = OtherRuns("r", lambda: now, said.append)
    assert first.added(before, now) is before
    out = Exclusion("XID 79", now, now + 9.0, True)
    first.note(before, replace(before, health=replace(before.health, excluded={"n1": out}, reports={"k": GPU})))
    until(lambda: file.reports() == (GPU,) and set(file.read()) == {"n1"}, 20, lambda: f"the file: {file.read()}")
    first.note(before, before)
    second = OtherRuns("s", lambda: now, said.append).added(before, now)
    assert list(second.health.reports.values()) == [GPU]
    back = replace(out, until=now, hardware=False, returns_count=1)
    first.note(
        replace(before, health=replace(before.health, excluded={"n1": out})),
        replace(before, health=replace(before.health, excluded={"n1": back})),
    )
    until(lambda: not file.read(), 20, lambda: f"the file: {file.read()}")
    assert said == []


def test_the_command_shows_and_clears(home: Path, gangrun: Call) -> None:
    file = KnownBadFile(home / "state" / "gangrun")
    assert gangrun("nodes") == Said(0, "no node is excluded\n", "")
    file.add({"n1": "XID 79 on gpu 1\x1b[31m", "n2": "gpu lost"}, "r", time.time())
    said = gangrun("nodes")
    assert said.code == 0
    assert "n1" in said.out and "excluded for 24 h more" in said.out and "\x1b" not in said.out
    shown = gangrun("nodes", "--json").json["nodes"]
    assert {(one["node"], one["times"], one["left_out"]) for one in shown} == {("n1", 1, True), ("n2", 1, True)}
    said = gangrun("nodes", "clear", "n[1-3]")
    assert said.code != 0
    assert "n3 is not on the list" in said.err
    assert gangrun("nodes", "clean").code != 0
    assert gangrun("nodes", "clear", "n[1").code != 0
    assert gangrun("nodes", "clear", "n1") == Said(0, "removed from the list: n1\n", "")
    file.note({}, (), [GPU], "r", time.time())
    said = gangrun("nodes")
    assert "n3    used" in said.out and "XID 94 on GPU-7" in said.out
    (seen,) = gangrun("nodes", "--json").json["reports"]
    assert (seen["node"], seen["gpu"], seen["xid"], seen["times"]) == ("n3", "GPU-7", 94, 1)
    assert gangrun("nodes", "clear", "all") == Said(0, "removed from the list: n[2-3]\n", "")
    assert gangrun("nodes") == Said(0, "no node is excluded\n", "")
