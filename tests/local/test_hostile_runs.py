"""Whatever a user, a script or a stranger throws at a run: a clear error or right behaviour, never a traceback."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.evidence import never_two_gangs
from tests.local.harness import ROOT, Box
from tests.waiting import until


def refused(box: Box, *arguments: str | Path, words: str) -> None:
    """Ends at once with a usage error that says ``words``, makes no run and shows no traceback."""
    box.err.write_text("")
    box.start(*arguments)
    assert box.end(20) == 2, box.told()
    told = box.err.read_text()
    assert words in told, told
    assert "Traceback" not in told, told
    assert not box.left()


def test_a_place_for_runs_that_cannot_be_used_is_refused_with_a_hint(box: Box) -> None:
    script = box.script("print('hello')")
    box.runs.mkdir()
    box.runs.chmod(0o777)
    refused(box, script, words="world-writable")
    assert "chmod o-w" in box.err.read_text()
    box.runs.rmdir()
    box.runs.write_text("a file")
    refused(box, script, words="choose another with --runs-dir")
    box.runs.unlink()
    box.runs.symlink_to(box.runs)
    refused(box, script, words="--runs-dir")
    box.runs.unlink()
    box.runs.symlink_to(box.folder / "nowhere" / "at all")
    refused(box, script, words="--runs-dir")
    box.runs.unlink()
    refused(box, "--runs-dir", str(box.folder / ("x" * 300)), script, words="too long")


@pytest.mark.root
def test_a_read_only_place_for_runs_is_refused_with_a_hint(box: Box) -> None:
    box.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", box.runs], check=True)
    try:
        refused(box, box.script("print('hello')"), words="read-only")
    finally:
        subprocess.run(["umount", box.runs], check=True)


def test_what_cannot_be_run_is_refused_before_there_is_a_run(box: Box) -> None:
    refused(box, "no such script.py", words="no such script")
    refused(box, "no-such-command", words="no such command")
    plain = box.script("#!/bin/sh\nexit 0\n", "plain.sh")
    refused(box, plain, words="executable")
    refused(box, box.work, words="no such command")
    refused(box, words="no script or command was given")
    refused(box, "-m", words="-m needs a module")
    refused(
        box,
        "--validator",
        "no-such-judge",
        "--checkpoint-dir",
        "saves",
        "true",
        words="there is no command 'no-such-judge'",
    )
    refused(box, "--validator", "true", "true", words="--validator needs a checkpoint directory")
    refused(box, "--checkpoint-dir", plain, "true", words="is not a directory")
    assert not box.runs.exists() or not list(box.runs.iterdir())


def test_a_command_that_the_kernel_will_not_execute_stops_the_run_with_the_reason(box: Box) -> None:
    broken = box.script("#!/no/such/interpreter\n", "broken")
    broken.chmod(0o755)
    box.start("--max-restarts", "0", broken)
    assert box.end(30) == 1, box.told()
    status = box.status()
    assert status["state"] == "FAILED"
    assert "cannot run" in status["reason"], status["reason"]
    assert status["excluded"] == []


NAMES = "a b'\"$(touch never);`x`\n\tü 名 %s {0} --"


def test_names_paths_and_arguments_of_any_kind_arrive_as_they_are(box: Box, tmp_path: Path) -> None:
    home = box.work / NAMES.replace("/", "")
    home.mkdir()
    box.runs = home / "runs here"
    script = home / "train $(me) 名.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1]).write_bytes(b'\\0'.join(map(os.fsencode, sys.argv[2:])))\n"
        "print(os.environ['HOSTILE'], flush=True)\n"
    )
    words = [NAMES, "", "-", "--", "--nproc-per-node", "x" * 100_000, "*", "~", "\\", "\r\n", "\u202e", "é", "e\u0301"]
    got = home / "got"
    box.start("--name", NAMES * 40, "--checkpoint-dir", home / "ckpt", "--env", f"HOSTILE={NAMES}", script, got, *words)
    assert box.end(30) == 0, box.told()
    assert got.read_bytes() == b"\0".join(map(os.fsencode, words))
    assert not list(tmp_path.rglob("never"))
    for command in (["status"], ["explain"], ["logs"], ["status", "--json"]):
        shown = box.gangrun(*command, "--runs-dir", str(box.runs))
        assert "Traceback" not in shown.stderr
        assert "\u202e" not in shown.stdout
    assert box.status()["name"] == NAMES * 40


VICES = """
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.closerange(0, 64)
            time.sleep(3600)
        os._exit(0)
if rank == 0:
    os.close(1)
elif rank == 1:
    block = (b"x" * 99 + b"\\n") * 10_000
    for _ in range(30):
        os.write(1, block); time.sleep(0.1)
elif rank == 2:
    os.write(1, b"nul \\0 and \\xff\\xfe not utf-8 \\x1b[31mred\\n" * 100)
elif rank == 3:
    os.write(1, b"y" * 5_000_000)
elif rank == 4:
    daemon(); daemon()
elif rank == 5:
    os.chdir("/")
    os.write(2, (b"e" * 200 + b"\\n") * 50_000)
elif rank == 6:
    os.closerange(0, 1024)
elif rank == 7:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


@pytest.mark.slow
def test_scripts_with_every_vice_end_as_they_should_and_leave_nothing(box: Box) -> None:
    box.start("--nproc-per-node", "8", "--max-restarts", "0", box.script(VICES))
    assert box.end(60) == 0, box.told()
    assert box.status()["state"] == "SUCCEEDED"
    assert not box.left(), "daemons outlived the run"
    log = b"".join(path.read_bytes() for path in box.run_dir().glob("logs/0/*"))
    log.decode()
    assert b"\\xff\\xfe not utf-8" in log
    assert re.search(rb"rank5 [\d:]+\] eeee", log)
    assert len(log) < 80_000_000
    shown = box.gangrun("logs", "--rank", "2", "--runs-dir", str(box.runs)).stdout
    assert "\x1b" not in shown
    assert "\0" not in shown


def test_a_script_that_deletes_the_run_directory_ends_the_run_and_leaves_nothing(box: Box) -> None:
    box.step(
        2, steps=100_000,
        hook="""
            import shutil
            def hook(step):
                while rank == 1 and step == 20 and os.path.exists(os.environ["GANGRUN_RUN_DIR"]):
                    shutil.rmtree(os.environ["GANGRUN_RUN_DIR"], ignore_errors=True)  # somebody may write meanwhile
        """,
    )  # fmt: skip
    box.wait_for_step(30)
    os.kill(box.pid_of(0), signal.SIGKILL)
    code = box.end(60)
    assert code == 1, box.told()
    told = box.err.read_text()
    assert "Traceback" not in told, told
    assert "was removed" in told, told
    until(lambda: not box.left(), 10, f"nothing is left {box.left()}")
    assert never_two_gangs(box, 2) == [0]


SECRETS = {
    "MY_API_KEY": "sesame-1-never-written",
    "HF_TOKEN": "sesame-2-never-written",
    "DB_PASSWORD": "sesame-3-never-written",
    "AWS_SECRET_ACCESS_KEY": "sesame-4-never-written",
    "Credentials": "sesame-5-never-written",
    "SSH_PASSPHRASE": "sesame-6-never-written",
    "DATABASE_URL": "postgres://me:sesame-7-never@db/never-written",
    "WANDB_PASS": "sesame-8-never-written",
}


def test_no_secret_is_ever_written_and_every_rank_has_it(box: Box) -> None:
    names = sorted(SECRETS)
    told = [word for name in names[:6] for word in ("--env", f"{name}={SECRETS[name]}")]
    env_file = box.folder / "secrets.env"
    env_file.write_text(f"{names[6]}={SECRETS[names[6]]}\n")
    inherited = {name: SECRETS[name] for name in names[7:]}
    script = box.script(
        f"import os, sys\nassert all(os.environ[n].endswith('never-written') for n in {names}), 'missing'\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n"
        "    raise RuntimeError('the first attempt fails')\n"
        "print('has all of them', flush=True)\n"
    )
    argument = "kept-and-never-shown"
    typed = ("--api-key", argument, f"TOKEN={argument}")
    box.start("--nproc-per-node", "2", *told, "--env-file", env_file, script, *typed, environment=inherited)
    assert box.end(40) == 0, box.told()
    assert "has all of them" in box.out.read_text()
    assert "--api-key, TOKEN" in box.err.read_text()
    shown = [box.gangrun(word).stdout for word in ("status", "explain", "logs")]
    assert not any(argument in text for text in shown)
    holds = [path for path in box.folder.rglob("*") if path.is_file() and argument.encode() in path.read_bytes()]
    assert [path.name for path in holds] == ["spec.json"]  # the next job must start it with the very same words
    env_file.unlink()
    wrote = [path for path in box.folder.rglob("*") if path.is_file() and b"never-written" in path.read_bytes()]
    wrote = [path for path in wrote if path != script]
    assert wrote == []


def limited(box: Box, soft: int, hard: int, *arguments: str | Path) -> int:
    """``gangrun run`` under a limit of open files."""
    with box.out.open("ab") as out, box.err.open("ab") as err:
        box.process = subprocess.Popen(
            ["prlimit", f"--nofile={soft}:{hard}", sys.executable, "-m", "gangrun", "run",
             "--runs-dir", str(box.runs), *map(str, arguments)],
            cwd=box.work, env=box.environment, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
    return box.end(40)


def test_a_low_limit_of_open_files_is_raised_or_refused_in_words(box: Box) -> None:
    script = box.script("print('hello')")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 4096
    assert limited(box, 64, 4096, "--nproc-per-node", "4", script) == 0, box.told()
    assert limited(box, 64, 256, script) != 0
    told = box.err.read_text()
    assert "ulimit -Hn" in told, box.told()
    assert "Traceback" not in told, told
    assert str(ROOT) not in told


ELSEWHERE = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh"]


@pytest.mark.root
@pytest.mark.parametrize("ahead_s", [-21600, 21600])
def test_a_run_of_a_host_whose_clock_is_wrong_is_not_joined(boxes: Callable[[str], Box], ahead_s: int) -> None:
    first, second = boxes("first"), boxes("second")
    first.through = ELSEWHERE  # its processes cannot be looked for by those of another host
    saves, wall = first.work / "saves", first.folder / "wall"
    saves.mkdir()
    wall.write_text(str(ahead_s))
    first.environment["FAULT_WALL_OFFSET"] = str(wall)
    second.environment["XDG_STATE_HOME"] = first.environment["XDG_STATE_HOME"]
    first.step(1, "--checkpoint-dir", str(saves), steps=10_000)
    first.wait_for_step(5, deadline_s=60)
    second.step(1, "--checkpoint-dir", str(saves), steps=10)
    assert second.end(90) != 0, second.told()
    assert f"saves to {saves}, and has not ended" in second.err.read_text()
    assert not second.rows(), "no rank of the second run began"
    first.interrupt()
