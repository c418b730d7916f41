"""cancel, wait and resume: what they do to a run that lives, has ended, or that nobody holds any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import mark_cancelled, read_cancelled
from gangrun.core.events import CancelRequested
from gangrun.runs.snapshot import read
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.stories import cancelled, failed, running, succeeded
from tests.waiting import until

OWNER = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("up", flush=True)
signal.sigwait([signal.SIGTERM])
print("told", flush=True)
sys.stdin.read()
sys.exit(0 if os.path.exists(sys.argv[1]) else 9)
"""
MARK = "gangrun_runs/20261118-110640-abcde/cancelled"


@pytest.fixture
def owner(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a run and may leave once it was told to: with 0 if the mark was there by then."""
    command = [sys.executable, "-c", OWNER, str(home / MARK)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.communicate()


def reap(process: subprocess.Popen[bytes], story: Builder) -> None:
    """As a launcher would: hears SIGTERM, lets the run end, leaves."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"told\n"
    story.on(CancelRequested("eve")).stopped()
    process.communicate(timeout=300)


def test_cancel_marks_first_then_tells_the_owner_and_waits(
    runs: Path, gangrun: Call, owner: subprocess.Popen[bytes]
) -> None:
    story = Builder(runs).supervisor().up().owner(pid=owner.pid)
    ending = threading.Thread(target=reap, args=(owner, story))
    ending.start()
    said = gangrun("cancel", "train")
    ending.join()
    assert owner.returncode == 0
    assert said.code == 0
    assert "CANCELLED" in said.out
    mark = read_cancelled(Disk(), story.paths)
    assert mark is not None
    assert mark.by.endswith("(gangrun cancel)")


def test_cancel_without_waiting(runs: Path, gangrun: Call, owner: subprocess.Popen[bytes]) -> None:
    story = Builder(runs).supervisor().up().owner(pid=owner.pid)
    said = gangrun("cancel", "train", "--no-wait", "--json")
    assert said.json["message"] == f"{story.run} is asked to stop"
    owner.communicate(timeout=300)
    assert owner.returncode == 0


def test_cancel_gives_up_waiting_in_time(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up().owner(host="another-host")
    said = gangrun("cancel", "train", "--timeout", "0.1")
    assert said.code == 3
    assert "another-host" in said.err
    assert "the cancel stays in force" in said.err
    assert story.paths.cancelled.exists()


def test_a_process_that_only_has_the_owners_number_is_not_signalled(
    runs: Path, gangrun: Call, owner: subprocess.Popen[bytes]
) -> None:
    Builder(runs).supervisor().up().owner(pid=owner.pid, ticks=1)
    said = gangrun("cancel", "train")
    assert said.code == 0
    assert "no process runs it" in said.out
    assert owner.poll() is None


def test_cancel_now_sends_the_signal_that_kills_at_once_also_after_a_cancel(
    runs: Path, gangrun: Call, owner: subprocess.Popen[bytes]
) -> None:
    story = Builder(runs).supervisor().up().owner(pid=owner.pid)
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    assert gangrun("cancel", "train", "--now", "--no-wait").code == 0
    assert owner.wait(300) == -signal.SIGQUIT


def test_cancel_now_of_a_run_on_another_host_is_told_to_its_supervisor(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up().owner(host="another-host")
    said = gangrun("cancel", "train", "--now", "--timeout", "0.1")
    assert said.code == 3
    assert "--now after a cancel kills only on that host" not in said.err, "its supervisor is told by the mark"
    mark = read_cancelled(Disk(), story.paths)
    assert mark is not None and mark.now and mark.by.endswith("(gangrun cancel --now)")
    assert "--now after a cancel kills only on that host" in gangrun("cancel", "train", "--now", "--timeout", "0.1").err


def test_cancel_of_a_run_that_nobody_holds_marks_it(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up().owner()
    assert gangrun("cancel", "train").code == 0
    assert story.paths.cancelled.exists()


def test_cancel_of_a_run_that_has_ended_changes_nothing(runs: Path, gangrun: Call) -> None:
    story = succeeded(runs)
    said = gangrun("cancel", "train")
    assert said.code == 0
    assert "has ended already: SUCCEEDED" in said.out
    assert not story.paths.cancelled.exists()


def test_cancel_without_a_run_is_not_guessed_where_nobody_can_be_asked(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up().owner()
    assert gangrun("cancel", "--runs-dir", str(runs)).code == 2
    assert not story.paths.cancelled.exists()
    assert gangrun("cancel", "-y", "--runs-dir", str(runs)).code == 0
    assert story.paths.cancelled.exists()


@pytest.mark.parametrize(("life", "code"), [(succeeded, 0), (failed, 1), (cancelled, 130)])
def test_wait_ends_with_the_runs_own_code(runs: Path, gangrun: Call, life, code: int) -> None:
    story = life(runs)
    said = gangrun("wait", "train")
    assert said.code == code
    assert story.state.reason in " ".join(said.out.split())
    assert gangrun("wait", "--json").json["exit_code"] == code


def test_wait_waits(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    timer = threading.Timer(0.3, story.finished)
    timer.start()
    assert gangrun("wait").code == 0
    timer.join()


def test_wait_gives_up_when_asked_to_and_where_it_is_in_vain(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    said = gangrun("wait", "--timeout", "0.1")
    assert said.code == 3
    assert "has not ended within 0.1" in said.err
    story.owner()
    said = gangrun("wait")
    assert said.code == 3
    assert "no process runs it any more" in said.err
    assert gangrun("wait", "--timeout", "soon").code == 2


def test_resume_leaves_alone_what_runs_or_has_succeeded(runs: Path, gangrun: Call) -> None:
    running(runs, run="20261118-100000-aaaaa", name="alive")
    succeeded(runs, run="20261118-100000-bbbbb", name="done")
    Builder(runs, run="20261118-100000-ccccc", name="far").supervisor().up().owner(host="another-host")
    for name, kind in (("alive", "busy"), ("done", "ended"), ("far", "busy")):
        said = gangrun("resume", name, "--json")
        assert said.code == 2
        assert said.error["kind"] == kind, name
    assert gangrun("resume", "--runs-dir", str(runs)).code == 2
    assert gangrun("resume", "done", "--max-restarts", "many").code == 2


def test_resume_asks_for_secrets_again(runs: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    story = cancelled(runs, secret_names=("HF_TOKEN",))
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    said = gangrun("resume", "train", "--json")
    assert said.error["kind"] == "secrets"
    assert "HF_TOKEN" in said.error["hint"]
    assert story.paths.cancelled.exists()


def test_a_run_that_is_taken_up_again_goes_on_before_its_supervisor_has_begun(runs: Path, gangrun: Call) -> None:
    """``gangrun wait`` right after ``gangrun resume --detach`` once answered with the end before."""
    story = cancelled(runs).owner(seq=1, pid=os.getpid())
    assert gangrun("status", "--json").json["state"] == "CANCELLED"
    (story.paths.machine / "resume-1.json").write_text("{}")
    found = gangrun("status", "--json").json
    assert (found["state"], found["exit_code"], found["abandoned"]) == ("PENDING", None, False)
    story.owner(seq=1)  # which is gone: nothing began
    assert gangrun("status", "--json").json["state"] == "CANCELLED"


def test_a_resumed_run_goes_on_as_the_same_run(home: Path, gangrun: Call) -> None:
    """With real processes: fails, is resumed after the fix, succeeds; its history is one."""
    script = home / "train.py"
    script.write_text("import pathlib, sys\nprint('up')\nsys.exit(0 if pathlib.Path('fixed').exists() else 3)\n")
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "gangrun", "run", "--max-restarts", "0", "--json", "train.py"]
    first = subprocess.run(command, cwd=home, env=here, capture_output=True, timeout=300, check=False)
    assert first.returncode == 1, first.stderr
    run = json.loads(first.stdout)["run"]  # one object and nothing else: what ranks print goes elsewhere
    assert b"up" in first.stderr
    (home / "fixed").touch()
    again = [sys.executable, "-m", "gangrun", "resume", run, "--max-restarts", "2", "--json"]
    second = subprocess.run(again, cwd=home, env=here, capture_output=True, timeout=300, check=False)
    assert second.returncode == 0, second.stderr
    status = json.loads(second.stdout)
    assert (status["run"], status["state"]) == (run, "SUCCEEDED")
    assert [attempt["number"] for attempt in status["attempts"]] == list(range(len(status["attempts"])))
    said = gangrun("explain", run)
    assert said.code == 0
    assert "resumed the run (from: auto)" in said.out
    request = json.loads((home / "gangrun_runs" / run / ".gangrun" / "resume-1.json").read_text())
    assert request["seq"] == 1
    assert request["restarts_max_count"] == 2


def test_ctrl_c_leaves_the_viewer_only(runs: Path, home: Path) -> None:
    story = running(runs)
    (story.paths.logs / "0").mkdir()
    (story.paths.logs / "0" / "n0.log").write_text("[n0:rank0] here\n")
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for words in (["logs", "-f"], ["status", "--watch"]):
        with subprocess.Popen(
            [sys.executable, "-m", "gangrun", *words],
            cwd=home,
            env=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as viewer:
            assert viewer.stdout is not None
            until(viewer.stdout.readline, 20, "the first line")
            viewer.send_signal(signal.SIGINT)
            _, err = viewer.communicate(timeout=300)
        assert viewer.returncode == 130
        assert b"Traceback" not in err
    assert not story.paths.cancelled.exists()
    assert read(story.paths).owner_alive
