"""How Slurm's tools are started: environment, deadline, signals, answers."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest

from gangrun.adapters.slurm.commands import NOT_FOUND, Answer, ToolProcess, Tools, clean
from gangrun.node.processes import read_proc
from tests.waiting import until

pytestmark = pytest.mark.processes


def tool(folder: Path, name: str, shell: str) -> Tools:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Tools({"PATH": f"{folder}:{os.defpath}", "HOME": "/root"})


def test_what_a_surrounding_job_or_a_users_defaults_say_is_dropped() -> None:
    kept = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "secret",
        "SLURMX": "mine",
        "MY_SLURM_NOTE": "a",
    }
    dropped = """SLURM_JOB_ID SLURM_TIME_FORMAT SBATCH_PARTITION SRUN_DEBUG PMI_RANK PMIX_RANK SUBMITIT_EXECUTOR
        SALLOC_ACCOUNT SQUEUE_FORMAT SCANCEL_USER SCONTROL_ALL"""
    assert clean({**kept, **dict.fromkeys(dropped.split(), "1")}) == kept


def test_a_tool_gets_the_clean_environment_and_its_answer_comes_back(tmp_path: Path) -> None:
    tool(tmp_path, "squeue", 'echo "[$SLURM_JOB_ID] $*"; echo "$TZ $LC_ALL" >&2; exit 3')
    tools = Tools({"PATH": f"{tmp_path}:{os.defpath}", "SLURM_JOB_ID": "7", "TZ": "Asia/Tokyo"})
    assert tools.run(("squeue", "-h", "a b"), 100) == Answer(3, "[] -h a b\n", "UTC0 C\n")


def test_what_sbatch_hands_on_to_the_job_is_left_as_it_is(tmp_path: Path) -> None:
    tool(tmp_path, "sbatch", 'echo "$TZ [$LC_ALL]"')
    tools = Tools({"PATH": f"{tmp_path}:{os.defpath}", "TZ": "Asia/Tokyo"})
    assert tools.run(("sbatch",), 100).out == "Asia/Tokyo []\n"


def test_a_tool_that_is_not_there_or_cannot_be_started_is_an_answer_too(tmp_path: Path) -> None:
    tools = Tools({"PATH": str(tmp_path)})
    assert tools.run(("sbatch", "x"), 100) == Answer(NOT_FOUND, err="there is no sbatch on this host")
    (tmp_path / "scontrol").write_text("no program")
    assert tools.run(("scontrol",), 100) == Answer(NOT_FOUND, err="scontrol cannot be started: Permission denied")


def test_a_tool_that_hangs_is_killed_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    tools = tool(tmp_path, "squeue", f'sleep 600 & echo $! >"{tmp_path}/pid"; echo some; echo words >&2; wait')
    answer = tools.run(("squeue",), 2.0)
    assert answer.timed_out and answer.code == -signal.SIGKILL and answer.out == "some\n"
    assert answer.words == "squeue did not answer within 2 s. words"
    child = int((tmp_path / "pid").read_text())
    until(lambda: (proc := read_proc(child)) is None or proc.state == "Z", 10, f"{child} is gone")


STUBBORN = """
import os, pathlib, time
folder = pathlib.Path(os.environ["FOLDER"])
(folder / "new").write_text(str(os.getpid()))
(folder / "new").rename(folder / "pid")
while not (folder / "go").exists():
    time.sleep(0.01)
print(5)
"""


def test_signals_that_reach_every_process_of_a_job_do_not_end_a_tool_midway(tmp_path: Path) -> None:
    answers: list[Answer] = []
    tools = Tools({"FOLDER": str(tmp_path)})
    thread = threading.Thread(target=lambda: answers.append(tools.run((sys.executable, "-c", STUBBORN), 200)))
    thread.start()
    until((tmp_path / "pid").exists, 10, "it runs")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        os.kill(int((tmp_path / "pid").read_text()), number)
    (tmp_path / "go").touch()
    thread.join(100)
    assert answers == [Answer(0, "5\n")]


def test_the_callers_own_signals_are_as_before(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    tool(tmp_path, "squeue", "true").run(("squeue",), 100)
    Tools({"PATH": ""}).run(("squeue",), 100)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_tool_is_not_in_the_callers_session_and_reads_nothing(tmp_path: Path) -> None:
    tools = tool(tmp_path, "squeue", "cut -d' ' -f6 /proc/$$/stat; cat")
    answer = tools.run(("squeue",), 100)
    assert answer.code == 0 and int(answer.out) != os.getsid(0)


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    assert tool(tmp_path, "squeue", "printf 'n\\377m'").run(("squeue",), 100).out == "n\ufffdm"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(1, "out\n", "sbatch: error: no\n  way\n"), "sbatch: error: no way"),
        (Answer(1, "said here\n", " \n"), "said here"),
        (Answer(-9), "exit code -9"),
    ],
)
def test_words_are_one_line(answer: Answer, words: str) -> None:
    assert answer.words == words


def test_a_process_whose_words_nobody_reads_speaks_where_we_do_and_never_waits(
    capfd: pytest.CaptureFixture[str],
) -> None:
    process = ToolProcess(["sh", "-c", "yes said | head -c 200000 >&2"], os.environ, heard=False)
    until(lambda: process.poll() == 0, 10, "its end")
    assert capfd.readouterr().err.count("said") == 40000
