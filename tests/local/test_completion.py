"""Ranks that end with 0 before their training is done, as frameworks do when somebody asks them to stop."""

from __future__ import annotations

import json
import os
import signal

import torch

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


# The last lines come as the rank ends; then native code aborts a process whose Python has ended, as torch's threads do.
ABORTS = """
    import ctypes, sys
    for step in range(1, 61): print(f"step {step}/60 loss: {1 / step:.4f}", flush=step < 34)
    ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)
"""


def test_a_crash_after_the_scripts_end_costs_nothing_and_the_last_lines_count(box: Box) -> None:
    box.start(box.script(ABORTS))
    assert box.end() == 0, box.told()
    status = box.status()
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 0), box.told()
    assert "then 1 process crashed on the way out" in status["reason"]
    assert (status["log_step"], status["total_steps"], status["loss"]) == (60, 60, 0.0167)
    assert "60 of 60 (from the log)" in box.gangrun("status", status["run"]).stdout


# It is to resume, and begins again; its lines tell.
FORGETS = """
    import time
    for step in range(1, 41):
        print(f"step {step}/40", flush=True)
        time.sleep(0.2)
"""


def test_a_script_whose_lines_show_that_it_began_again_is_stopped(box: Box) -> None:
    save = box.work / "ckpt" / "checkpoint-20"
    save.mkdir(parents=True)
    (save / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        torch.save({}, save / name)
    (save / "trainer_state.json").write_text('{"global_step": 20, "max_steps": 40}')
    box.start("--total-steps", "40", "--framework", "hf", "--checkpoint-dir", save.parent, box.script(FORGETS))
    assert box.end() == 1, box.told()
    assert "it started over: the first step seen was 1" in box.status()["reason"], box.told()


def test_a_script_that_stops_early_on_purpose_is_done(box: Box) -> None:
    text = "import gangrun\nfor n in range(9): print(f'step {n}/60'); gangrun.step(n, loss=float('nan'))\n"
    box.start(box.script(text))
    assert box.end() == 0, box.told()
    status = box.status()
    assert (status["restarts"], status["step"], status["loss"]) == (0, 8, "NaN"), box.told()
    assert "finished at step 8" in status["reason"] and "before the 60 steps that it named" in status["reason"]


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
