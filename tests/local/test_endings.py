"""How a run is ended by people: Ctrl-C, cancel, resume, observe; what hangs, and what does not even begin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from gangrun.adapters.net.interface import addresses
from gangrun.errors import UserError
from gangrun.launch.local import LETS_GO_WITHIN_S
from gangrun.launch.owner import in_background
from gangrun.node.processes import is_alive, read_proc
from tests.faults.inject import PLAIN
from tests.health.test_nvml import Library, build, library  # noqa: F401 - fixtures
from tests.local.evidence import journal
from tests.local.harness import PACE_S, Box
from tests.stepper import STEPPER
from tests.waiting import until


def test_a_second_ctrl_c_does_not_wait_for_a_rank_that_will_not_stop(box: Box) -> None:
    box.step(2, "--stop-grace", "600", steps=1000, hook="import signal\nsignal.signal(signal.SIGTERM, lambda *a: None)")
    box.wait_for_step(5)
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    until(lambda: "stopping all ranks" in box.err.read_text(), 10, "the first Ctrl-C is heard")
    until(lambda: (box.run_dir() / "cancelled").exists(), 10, "the mark is there")
    box.process.send_signal(signal.SIGINT)
    assert box.end(30) == 130, box.told()
    assert f"gangrun resume {box.run_dir().name} continues the run" in box.err.read_text()
    assert not box.left()
    assert box.status()["state"] == "CANCELLED"
    joined = next(record.event for record in journal(box) if record.kind == "AgentJoined")
    assert tuple(joined.get("addresses", ())) == addresses(), "texts of ranks may name its node by these"


def test_ranks_that_are_killed_because_they_do_not_stop_in_time_are_named(box: Box) -> None:
    ignores = "import signal\nif rank == 1: signal.signal(signal.SIGTERM, lambda *a: None)"
    box.step(2, "--stop-grace", "1", steps=10_000, hook=ignores)
    box.wait_for_step(5)
    box.interrupt(deadline_s=60)
    words = "cancelled by Ctrl-C (rank 1 did not end within 1 s of SIGTERM and was killed)"
    assert words in box.err.read_text() + box.out.read_text()
    assert box.status()["reason"] == words


def test_cancel_now_waits_for_no_rank(box: Box) -> None:
    box.step(2, "--stop-grace", "600", steps=1000, hook="import signal\nsignal.signal(signal.SIGTERM, lambda *a: None)")
    box.wait_for_step(5)
    told = box.gangrun("cancel", "--now", "-y", "--runs-dir", str(box.runs))
    assert box.end(60) == 130, box.told()
    assert not box.left()
    assert "CANCELLED" in told.stdout or "all ranks were killed; the run is cancelled" in told.stdout
    assert box.status()["state"] == "CANCELLED"
    assert "gangrun cancel --now, or Ctrl-\\): killing all ranks" in box.err.read_text()


SAVES_AT_TERM = """
    import signal
    def saves(*_):
        time.sleep(1)
        (folder / f"saved-{rank}").touch()
        os._exit(0)
    signal.signal(signal.SIGTERM, saves)
"""


def test_a_terminal_that_is_closed_cancels_once_and_the_ranks_save(box: Box) -> None:
    """The kernel, the shell and the session's end may each send SIGHUP, and nothing more can be written there."""
    script = box.script(STEPPER)
    words = ["run", "-q", "--runs-dir", str(box.runs), "--nproc-per-node", "2", "--stop-grace", "60", str(script)]
    terminal = pexpect.spawn(
        PLAIN[0], [*PLAIN[1:], *words, str(box.work / "steps"), "1000", "0.05", "0"], cwd=str(box.work), timeout=60,
        env={**box.environment, "TERM": "xterm", "HOOK": textwrap.dedent(SAVES_AT_TERM)},
    )  # fmt: skip
    box.wait_for_step(5, deadline_s=60)
    os.kill(terminal.pid, signal.SIGHUP)
    until(lambda: (box.run_dir() / "cancelled").exists(), 20, "the mark")
    os.close(terminal.child_fd)
    for _ in range(2):
        os.kill(terminal.pid, signal.SIGHUP)
    status = box.until_status("the end", lambda status: status["state"] == "CANCELLED", 30)
    assert "SIGHUP (the terminal was closed)" in status["reason"]
    assert all((box.work / "steps" / f"saved-{rank}").exists() for rank in (0, 1)), box.told()
    until(lambda: not box.left(), 20, "all have left")


def test_a_detached_run_goes_on_and_attach_shows_it_to_its_end(box: Box) -> None:
    script = box.script(STEPPER)
    steps = (script, box.work / "steps", "30", "0.05", "0")
    words = ("--runs-dir", str(box.runs), "--nproc-per-node", "2", "--json", *steps)
    told = json.loads(box.gangrun("run", "--detach", *map(str, words)).stdout)
    assert told.keys() == {"schema", "run", "name", "directory"}
    box.wait_for_step(5, deadline_s=60)
    with subprocess.Popen(
        [*PLAIN, "attach", told["run"], "--runs-dir", str(box.runs)], cwd=box.work, env=box.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as viewer:  # fmt: skip
        assert viewer.stdout is not None
        assert viewer.stdout.readline().startswith("["), "what a rank printed"
        os.kill(viewer.pid, signal.SIGINT)
        assert viewer.wait(100) == 130
    assert box.status()["state"] == "RUNNING", "who looks is not who owns"
    box.may_end.touch()
    end = box.gangrun("attach", told["run"], "--runs-dir", str(box.runs))
    assert (end.returncode, "step 29" in end.stdout, "SUCCEEDED" in end.stdout) == (0, True, True), end
    until(lambda: not box.left(), 20, "all have left")
    assert "finished" in (Path(told["directory"]) / "logs" / "owner.out").read_text()
    again = box.gangrun("run", "--detach", *map(str, ("--nodes", "2", *words)), check=False)
    assert again.returncode == 2 and "--local-hosts" in again.stdout


def test_what_a_run_in_the_background_is_refused_is_told_at_the_terminal(tmp_path: Path) -> None:
    def own(begun: object) -> int:
        raise UserError("busy", "another process runs this run already", "gangrun status shows it", 3)

    with pytest.raises(UserError) as told:
        in_background(tmp_path / "log", own)
    assert (told.value.kind, told.value.hint, told.value.code) == ("busy", "gangrun status shows it", 3)


def test_ctrl_c_before_a_run_goes_on_in_the_background_starts_nothing(tmp_path: Path) -> None:
    def own(begun: Callable[[], None]) -> int:
        (tmp_path / "coming").write_text(str(os.getpid()))
        (tmp_path / "coming").rename(tmp_path / "waits")
        threading.Event().wait(60)  # for another run that may save to the same directory
        (tmp_path / "trains").touch()
        begun()
        return 0

    def interrupt() -> None:
        until((tmp_path / "waits").exists, 10, "the wait")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        in_background(tmp_path / "log", own)
    pid = int((tmp_path / "waits").read_text())
    until(lambda: (proc := read_proc(pid)) is None or not is_alive(proc), 20, "it has ended")
    assert not (tmp_path / "trains").exists()


def test_an_error_after_a_run_has_begun_in_the_background_is_in_its_log_only(tmp_path: Path) -> None:
    def own(begun: Callable[[], None]) -> int:
        begun()
        raise UserError("busy", "no more", "", 3)

    in_background(tmp_path / "log", own)
    until(lambda: (tmp_path / "log").read_text() == "no more\n", 20, "its last words")


def test_agents_that_join_after_the_run_has_ended_leave_with_it(box: Box) -> None:
    """No supervisor lives that could tell them, and no other is asked for within a minute."""
    box.step(1, "--nodes", "2", "--local-hosts", steps=1000)
    until(lambda: len(box.process_ids("entry.agent")) == 2 and box.process_ids("entry.supervisor"), 30, box.told)
    agents = box.process_ids("entry.agent")
    for pid in agents:  # before the supervisor listens: it has python to load
        os.kill(pid, signal.SIGSTOP)
    assert box.process is not None
    box.process.terminate()
    box.until_status("the end", lambda status: status["state"] == "CANCELLED", 30)
    until(lambda: not box.process_ids("entry.supervisor"), 30, box.told)
    for pid in agents:
        os.kill(pid, signal.SIGCONT)
    assert box.end(30) == 143, box.told()
    assert not box.left()


def test_cancel_from_elsewhere_then_resume_on_another_host(box: Box) -> None:
    box.step(2, steps=int(1.5 * LETS_GO_WITHIN_S / PACE_S))  # that it had ended is no reason to end it again
    box.wait_for_step(5)
    run = box.status()["run"]
    done = box.gangrun("cancel", run, "--runs-dir", str(box.runs))
    assert done.returncode == 0, done.stderr
    assert box.end(30) == 130, box.told()
    assert box.status()["state"] == "CANCELLED"
    claim = box.run_dir() / ".gangrun" / "jobs" / "0.json"
    claim.write_text(json.dumps({**json.loads(claim.read_text()), "host": "far-away"}))  # as if it had been run there
    again = box.gangrun("resume", run, "--runs-dir", str(box.runs), check=False)
    assert again.returncode == 0, again.stderr + box.told()
    assert "far-away" in again.stderr
    status = box.status()
    assert status["state"] == "SUCCEEDED"
    assert len(status["attempts"]) == 2


def test_observing_stops_nothing_and_restarts_nothing(box: Box) -> None:
    box.step(2, "--observe", "--hang-timeout", "8", steps=1000)
    box.wait_for_step(5)
    os.kill(box.pid_of(1), signal.SIGSTOP)
    reason = box.until_status("a hang that is told", lambda found: "observing only" in found["reason"], 60)["reason"]
    assert "rank 1" in reason, reason
    assert "restarting in place" in reason, reason
    os.kill(box.pid_of(1), signal.SIGCONT)
    until(lambda: "training goes on" in box.explain(), 60, lambda: f"word that it goes on\n{box.told()}")
    os.kill(box.pid_of(1), signal.SIGKILL)
    assert box.end(60) == 1, box.told()
    status = box.status()
    assert status["state"] == "FAILED"
    assert "SIGKILL" in status["reason"]
    assert "observing" in status["reason"]
    assert len(status["attempts"]) == 1


@pytest.mark.compiler
def test_no_rank_starts_beside_a_broken_gpu(box: Box, library: Callable[..., Library]) -> None:  # noqa: F811
    driver = library()
    driver.say(changes={"gpu1.field230": 2})
    hardware = {name: driver.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML")}
    script = box.script("print('a rank')")
    (box.work / "gangrun.toml").write_text("[health]\npreflight_within_s = 60\n")  # however busy the machine is
    box.start("--nproc-per-node", "1", script, environment={**hardware, "GANGRUN_NO_HEALTH": "0"})
    assert box.end(60) == 1
    told = box.told()
    assert "gpu 1: the GPU asks for a reboot of the node (gpu_recovery)" in told
    assert "a rank\n" not in told
    box.start("--nproc-per-node", "1", "--no-health", script, environment=hardware)
    assert box.end(60) == 0
