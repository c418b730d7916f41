"""Which run is meant: id, prefix, name, job id, path or none; and what is said where nothing or too much fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.wire import record as wire_record
from gangrun.wire import spec as wire_spec
from tests.command_line import Call
from tests.runs.builder import BEGAN, Builder
from tests.runs.stories import cancelled, running, succeeded


def test_by_id_prefix_name_job_path_and_none(runs: Path, gangrun: Call, home: Path) -> None:
    one = succeeded(runs, run="20261118-100000-aaaaa", name="alpha", job="4711")
    one.indexed(home / "state" / "gangrun" / "runs")
    two = succeeded(runs, run="20261118-120000-bbbbb", name="beta", now=BEGAN + 9)
    for word in ("20261118-100000-aaaaa", "20261118-10", "alpha", "alp", "4711", str(one.paths.root)):
        assert gangrun("status", word, "--json").json["run"] == one.run, word
    assert gangrun("status", "--json").json["run"] == two.run
    assert gangrun("status", "./gangrun_runs/20261118-100000-aaaaa", "--json").json["run"] == one.run


def test_a_prefix_of_several_lists_them(runs: Path, gangrun: Call) -> None:
    succeeded(runs, run="20261118-100000-aaaaa", name="alpha")
    succeeded(runs, run="20261118-100000-bbbbb", name="beta")
    said = gangrun("status", "20261118")
    assert said.code == 5
    assert "20261118-100000-aaaaa" in said.err
    assert "20261118-100000-bbbbb" in said.err
    assert gangrun("status", "20261118", "--json").error["kind"] == "ambiguous run"


def test_nearest_names_are_offered(runs: Path, gangrun: Call) -> None:
    succeeded(runs, name="pretrain")
    said = gangrun("status", "pretrian")
    assert said.code == 5
    assert "did you mean pretrain?" in said.err
    assert gangrun("explain", "pretrian", "--json").error["kind"] == "no such run"


def test_looking_takes_the_newest_of_a_name_and_says_so(runs: Path, gangrun: Call) -> None:
    succeeded(runs, run="20261118-100000-aaaaa")
    newest = succeeded(runs, run="20261118-100000-bbbbb", now=BEGAN + 9)
    said = gangrun("status", "train", "--json")
    assert said.json["run"] == newest.run
    assert "2 runs are named train; this is the newest" in said.err


def test_steering_takes_the_only_run_of_a_name_that_is_alive(runs: Path, gangrun: Call) -> None:
    alive = Builder(runs, run="20261118-100000-aaaaa").supervisor().up().owner(host="another-host")
    lost = Builder(runs, run="20261118-100000-bbbbb", now=BEGAN + 5).supervisor().up().owner()
    succeeded(runs, run="20261118-100000-ccccc", now=BEGAN + 9)
    said = gangrun("cancel", "train", "--no-wait")
    assert said.code == 0
    assert f"3 runs are named train; {alive.run} is the only one that is alive" in said.err
    assert (alive.paths.cancelled.exists(), lost.paths.cancelled.exists()) == (True, False)
    assert f"{alive.run} may still be run by process {2**22 + 7} on another-host" in gangrun("resume", "train").err


def test_steering_takes_the_only_run_of_a_name_that_has_not_ended(runs: Path, gangrun: Call) -> None:
    lost = Builder(runs, run="20261118-100000-aaaaa").supervisor().up().owner()
    ended = succeeded(runs, run="20261118-100000-bbbbb", now=BEGAN + 9)
    said = gangrun("cancel", "train")
    assert (said.code, lost.paths.cancelled.exists()) == (0, True)
    assert f"{lost.run} is the only one that has not ended" in said.err
    said = gangrun("cancel", "train")  # cancelled, so both have ended
    assert f"all have ended; this is the newest, {ended.run}" in said.err
    assert f"{ended.run} has ended already" in said.out


def test_steering_refuses_to_choose_among_several_that_are_alive(runs: Path, gangrun: Call) -> None:
    stories = [Builder(runs, run=f"20261118-100000-{x * 5}").supervisor().up().owner(host="another-host") for x in "ab"]
    for command in ("cancel", "resume"):
        said = gangrun(command, "train")
        assert said.code == 5
        assert "several runs named 'train' are alive; name one by its id:" in said.err
        assert all(story.run in said.err for story in stories)
    assert not any(story.paths.cancelled.exists() for story in stories)


def test_without_a_name_the_newest_run_of_this_directory_is_meant(
    runs: Path, gangrun: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = home / "here", home / "elsewhere" / "gangrun_runs"
    here.mkdir()
    elsewhere.mkdir(parents=True)
    index = home / "state" / "gangrun" / "runs"
    mine = cancelled(here, run="20261118-100000-aaaaa", name="mine").indexed(index)
    newest = cancelled(elsewhere, run="20261118-100000-bbbbb", name="other", now=BEGAN + 9).indexed(index)
    assert gangrun("status", "--json").json["run"] == newest.run
    for steer in (("cancel", "-y"), ("resume", "-q")):
        said = gangrun(*steer)
        assert (said.code, "no run was started in this directory" in said.err) == (5, True), steer
        assert f"name the run (the newest is {newest.run} (other))" in said.err
    monkeypatch.chdir(here)
    for command in ("status", "explain"):
        assert gangrun(command, "--json").json["run"] == mine.run
    for words in (("cancel", "-y"), ("resume", "--resume", "7")):
        assert f"taking {mine.run} (mine), the newest run that was started in this directory" in gangrun(*words).err
    assert gangrun("cancel", "-y", "--json", "--runs-dir", str(elsewhere)).json["status"]["run"] == newest.run


def test_cancel_without_a_name_takes_the_only_run_of_this_directory_that_is_alive(
    runs: Path, gangrun: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(letter: str) -> Builder:
        return Builder(runs, run=f"20261118-100000-{letter * 5}").supervisor().up().owner(host="another-host")

    alive, ended = older("a"), cancelled(runs, run="20261118-100000-ccccc", now=BEGAN + 9)
    monkeypatch.chdir(runs)
    monkeypatch.setenv("GANGRUN_RUNS_DIR", str(runs))
    assert f"taking {ended.run} (train), the newest run" in gangrun("resume", "--resume", "7").err
    said = gangrun("cancel", "-y", "--no-wait", "--runs-dir", str(runs))
    assert f"taking {alive.run} (train), the only run in {runs} that is alive" in said.err
    assert alive.paths.cancelled.exists()
    other = older("b")
    said = gangrun("cancel", "-y")
    assert (said.code, other.paths.cancelled.exists()) == (5, False)
    assert "is not alive, and several older ones are; name one by its id:" in said.err
    assert alive.run in said.err and other.run in said.err


def test_runs_dir_looks_there_only(runs: Path, gangrun: Call, home: Path) -> None:
    succeeded(runs)
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    assert gangrun("status", "--runs-dir", "elsewhere").code == 5
    assert gangrun("status", "--runs-dir", "gangrun_runs").code == 0


def test_the_configured_runs_dir_is_looked_into(runs: Path, gangrun: Call, home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    story = succeeded(elsewhere)
    assert gangrun("status").code == 5
    (home / "gangrun.toml").write_text('runs_dir = "elsewhere"\n')
    assert gangrun("status", "--json").json["run"] == story.run


def test_a_broken_config_does_not_stop_a_viewer(runs: Path, gangrun: Call, home: Path) -> None:
    succeeded(runs)
    (home / "gangrun.toml").write_text("nonsense = 1\n")
    said = gangrun("status")
    assert said.code == 0
    assert "unknown key 'nonsense'" in said.err


def test_a_spec_of_a_newer_gangrun(runs: Path, gangrun: Call) -> None:
    story = succeeded(runs)
    data = wire_spec.encode(story.spec).replace(b'"schema": 1', b'"schema": 99')
    story.paths.spec.write_bytes(data)
    said = gangrun("status", story.run, "--json")
    assert said.code == 3
    assert "newer than this gangrun" in said.error["message"]


def test_a_journal_of_a_newer_gangrun(runs: Path, gangrun: Call) -> None:
    story = succeeded(runs)
    line = wire_record.encode(wire_record.Record(v=99, term=1, n=0, at=0.0, wall=0.0, kind="Future"))
    story.paths.journal(1).write_bytes(line)
    for words in (("status",), ("explain",), ("logs",), ("wait",), ("cancel", story.run)):
        said = gangrun(*words)
        assert said.code == 3, words
        assert "newer than this gangrun" in said.err, words


def test_a_newer_gangrun_that_took_over_is_a_note(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    with story.paths.journal(1).open("ab") as file:
        file.write(wire_record.encode(wire_record.Record(v=99, term=1, n=story.n, at=0.0, wall=0.0, kind="Future")))
    status = gangrun("status", "--json").json
    assert status["state"] == "RUNNING"
    assert "newer than this gangrun" in status["notes"][0]


def test_a_journal_that_is_not_a_directory(runs: Path, gangrun: Call) -> None:
    story = Builder(runs)
    story.paths.journals.rmdir()
    story.paths.journals.write_text("in the way")
    said = gangrun("status", "--json")
    assert said.code == 3
    assert said.error["kind"] == "system"


def test_a_folder_that_is_no_run(home: Path, gangrun: Call) -> None:
    (home / "some" / ".gangrun").mkdir(parents=True)
    said = gangrun("status", "./some")
    assert said.code == 5
    assert "cannot read" in said.err
