"""``gangrun run --debug-rank``: a real debugger on a real terminal, with another rank beside it."""

from __future__ import annotations

import json
import signal

import pexpect
import pytest

from tests.faults.inject import PLAIN
from tests.local.harness import Box
from tests.waiting import until

SCRIPT = """
    import os, pathlib, sys, time
    rank, looked = int(os.environ["RANK"]), pathlib.Path("looked-at")
    print("rank", rank, "is here")
    if rank == 0:
        answer = 41
        breakpoint()
        print("terminal:", sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty(), answer)
        looked.touch()
        while len(sys.argv) > 1:
            time.sleep(0.05)
    while not looked.exists():
        time.sleep(0.05)
"""
PDB = r"\(Pdb\) "


def terminal_of(box: Box, *words: str) -> pexpect.spawn:
    script = box.script(SCRIPT)
    options = ["run", "--debug-rank", "0", "--runs-dir", str(box.runs), "--nproc-per-node", "2"]
    return pexpect.spawn(
        PLAIN[0], [*PLAIN[1:], *options, str(script), *words], cwd=str(box.work), timeout=100, encoding="utf-8",
        env={**box.environment, "TERM": "xterm"},
    )  # fmt: skip


def test_a_breakpoint_gets_the_terminal_and_ctrl_c(box: Box) -> None:
    terminal = terminal_of(box)
    terminal.expect(PDB)
    assert "rank 0 has this terminal" in str(terminal.before) and "rank 1 is here" not in str(terminal.before)
    for _ in range(2):  # one more, and it would mean the run
        terminal.sendintr()
        terminal.expect(PDB)
    terminal.sendline("answer = answer + 1")
    terminal.expect(PDB)
    status = box.status()
    assert (status["state"], status["debug_rank"], status["restarts"]) == ("RUNNING", 0, 0)
    page = box.gangrun("status", "--runs-dir", str(box.runs)).stdout
    assert "rank 0 has the terminal, so the hang watch is suspended" in page
    terminal.sendline("continue")
    terminal.expect("terminal: True 42")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert (terminal.exitstatus, box.status()["state"]) == (0, "SUCCEEDED")
    log = "".join(path.read_text() for path in box.run_dir().glob("logs/0/*.log"))
    assert "rank 1 is here" in log and "rank 0 is debugged" in log


def test_leaving_the_debugger_ends_the_run_without_a_restart(box: Box) -> None:
    terminal = terminal_of(box)
    terminal.expect(PDB)
    terminal.sendline("quit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    status = box.status()
    assert (terminal.exitstatus, status["state"], status["restarts"]) == (1, "FAILED", 0)
    assert "BdbQuit" in status["reason"]


def test_three_times_ctrl_c_cancel_and_the_terminal_is_as_before(box: Box) -> None:
    terminal = terminal_of(box, "deaf")
    terminal.expect(PDB)
    terminal.sendline("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    terminal.expect(PDB)
    until(lambda: not terminal.getecho(), 20, "readline has the terminal")

    def cancelled() -> bool:
        terminal.sendintr()  # two that come at once are one signal
        return terminal.expect(["Ctrl-C: stopping all ranks", pexpect.TIMEOUT], timeout=0.3) == 0

    until(cancelled, 60, "a cancel")
    terminal.expect(pexpect.EOF)
    assert terminal.getecho(), "as it was before the run"
    terminal.close()
    assert (terminal.exitstatus, box.status()["state"]) == (130, "CANCELLED")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--debug-rank", "0"), "--debug-rank 0 needs a terminal, and standard input is none"),
        (("--debug-rank", "0", "--detach"), "--detach leaves it"),
        (("--debug-rank", "2"), "this run has ranks 0 to 1"),
        (("--debug-rank", "-1"), "--debug-rank"),
    ],
)
def test_what_cannot_be_debugged_is_refused_before_a_run_is_made(box: Box, words: tuple[str, ...], told: str) -> None:
    script = box.script(SCRIPT)
    refused = box.gangrun(
        "run", *words, "--json", "--runs-dir", str(box.runs), "--nproc-per-node", "2", str(script), check=False
    )  # fmt: skip
    assert refused.returncode == 2 and told in json.loads(refused.stdout)["error"]["message"]
    assert not box.runs.exists() or not any(box.runs.iterdir())


def test_in_a_slurm_job_it_is_refused(box: Box) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    box.environment |= {**job, "SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_RESTART_COUNT": "0"}
    folder = box.folder / "bin"
    folder.mkdir()
    (folder / "srun").symlink_to("/bin/true")
    box.environment["PATH"] = f"{folder}:{box.environment['PATH']}"
    refused = box.gangrun("run", "--debug-rank", "0", "--json", str(box.script(SCRIPT)), check=False)
    assert refused.returncode == 2 and "the ranks of a Slurm job have none" in refused.stdout


def test_ctrl_c_reaches_what_runs_after_the_prompt(box: Box) -> None:
    terminal = terminal_of(box, "loop")
    terminal.expect(PDB)
    terminal.sendline("continue")
    terminal.expect("terminal: True 41")
    terminal.sendintr()
    terminal.expect(PDB)  # pdb stops where the script was
    assert box.process is None and not box.run_dir().joinpath("cancelled").exists()
    terminal.kill(signal.SIGTERM)
    terminal.expect(pexpect.EOF)
    terminal.close()
