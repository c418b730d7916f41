"""Ranks that end with 0 before their training is done, as frameworks do when somebody asks them to stop."""

from __future__ import annotations

import json
import os
import signal

from tests.local.harness import Box
from tests.waiting import until

# As a framework's own handler leaves: with 0, and with nothing said. The third attempt reaches the goal.
LEAVES = """
    import gangrun, os, pathlib
    attempt, done = int(os.environ["GANGRUN_ATTEMPT"]), pathlib.Path("done" + os.environ["RANK"])
    first = int(done.read_text()) if done.exists() else 0
    for step in range(first, 30):
        gangrun.step(step)
        done.write_text(str(step + 1))
        if step == {leaves}.get(attempt): raise SystemExit(0)
"""
# Rank 1 has a handler that leaves with 0; rank 0 waits for it in a collective. No boot file shields them.
WAITS = """
    import os, pathlib, signal, sys, time
    rank, attempt, peer = os.environ["RANK"], os.environ["GANGRUN_ATTEMPT"], pathlib.Path("peer")
    signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
    def barrier():
        while not peer.exists(): time.sleep(0.02)
    if rank == "1" and attempt == "0": pathlib.Path("pid").write_text(str(os.getpid()))
    if rank == "1": time.sleep(600 if attempt == "0" else 0); peer.touch()
    barrier()
"""


def test_an_exit_code_of_0_before_the_goal_is_not_the_end(box: Box) -> None:
    box.start("--nproc-per-node", "2", "--total-steps", "30", box.script(LEAVES.format(leaves={0: 7, 1: 19})))
    assert box.end() == 0, box.told()
    status = box.status()
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 2), box.told()
    assert "at step 29" in status["reason"]
    assert "all 2 ranks ended with exit code 0 at step 7 of 30" in status["attempts"][0]["reason"]


def test_a_script_that_leaves_at_the_same_step_again_has_failed(box: Box) -> None:
    box.start("--total-steps", "30", box.script("import gangrun\nfor step in range(8): gangrun.step(step)\n"))
    assert box.end() == 1, box.told()
    status = box.status()
    assert (status["state"], status["failure"], status["restarts"]) == ("FAILED", "script", 1), box.told()
    assert "exit code 0 at step 7 of 30" in status["reason"]


def test_ranks_that_leave_with_0_on_a_cancel_are_cancelled(box: Box) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(0))\nopen('up', 'w')\n"
    box.start("--total-steps", "30", box.script(text + "time.sleep(600)\n"))
    box.until((box.work / "up").exists, "a rank with a handler")
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    assert box.end() == 130, box.told()
    assert box.status()["state"] == "CANCELLED"


def test_one_rank_that_somebody_asked_to_stop_leaves_with_0_while_the_other_waits(box: Box) -> None:
    script = box.script(WAITS)
    box.start("--nproc-per-node", "2", "--no-python", "--hang-timeout", "4", "python3", script)
    pid = box.work / "pid"
    box.until(lambda: pid.exists() and pid.read_text(), "a rank that may be asked")
    os.kill(int(pid.read_text()), signal.SIGTERM)
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["restarts"] == 1, box.told()
    assert "rank 1) had ended with exit code 0" in status["attempts"][0]["reason"], json.dumps(status, indent=1)
    until(lambda: not box.ranks(), 10, "no rank is left")
