"""node/boot.py beside plain python: the same output, the same codes, and what it adds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gangrun.node import boot
from tests.local_parts.gang import lives
from tests.waiting import stays, until

SCRIPT = """
import multiprocessing as mp, pickle, sys
class Thing: pass
def double(n): return 2 * n
if __name__ == "__main__":
    print(sys.argv, sys.path[0], __file__, __spec__ and __spec__.name, sorted(globals()))
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].Thing is Thing)
    if sys.argv[1:]:
        exec(sys.argv[1])
"""
POOLS = """
for method in ("fork", "spawn", "forkserver"):
    with mp.get_context(method).Pool(1) as pool: print(method, pool.map(double, [1, 2]))
"""
ENDINGS = [
    "",
    POOLS,
    "raise ValueError('bad')",
    "raise KeyError('chained') from ValueError('first')",
    "sys.exit(7)",
    "sys.exit('said on stderr')",
    "raise KeyboardInterrupt",
    "import os; os._exit(4)",
    "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    "sys.excepthook = lambda kind, value, tb: print('hooked', kind, tb.tb_frame.f_code.co_name)\nraise ValueError('x')",
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(SCRIPT)
    return tmp_path


def environ(place: Path, **more: str) -> dict[str, str]:
    names = {
        "GANGRUN_AGENT_PID": str(os.getpid()),
        "GANGRUN_ERROR_FILE": str(place / "error.json"),
        "GANGRUN_STACK_FILE": str(place / "stack"),
        "GANGRUN_SIGNALS_FILE": str(place / "signals"),
        "RANK": "2",
    }
    return {**os.environ, **names, **more}


def run(place: Path, *argv: str, python: str = sys.executable, booted: bool = True) -> tuple[int, str, str]:
    command = [python, *([boot.__file__] if booted else []), *argv]
    done = subprocess.run(command, cwd=place, env=environ(place), capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr.replace("Exception in thread Thread-", "Exception in thread ")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_cannot_tell_the_difference(place: Path, ending: str) -> None:
    assert run(place, "script.py", ending) == run(place, "script.py", ending, booted=False)


@pytest.mark.parametrize(
    "argv", [("-m", "script", POOLS), ("-m", "package"), ("package", "sys.exit(3)"), ("broken.py",)]
)
def test_modules_packages_and_broken_files_too(place: Path, argv: tuple[str, ...]) -> None:
    assert run(place, *argv) == run(place, *argv, booted=False)


@pytest.mark.parametrize("argv", [("missing.py",), ("-m", "missing")])
def test_what_is_not_there_is_said_as_python_says_it(place: Path, argv: tuple[str, ...]) -> None:
    booted, plain = run(place, *argv), run(place, *argv, booted=False)
    assert booted[0] == plain[0]
    assert booted[2].splitlines()[-1].partition(": ")[2] == plain[2].splitlines()[-1].partition(": ")[2]


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_it_runs_on_every_python_a_user_may_have(place: Path, version: str) -> None:
    python = next(iter(sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))), None)
    if python is None:
        found = subprocess.run(
            ["sh", "-c", f"command -v python{version}"], capture_output=True, text=True
        ).stdout.strip()
        python = Path(found) if found else None
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        compile(Path(boot.__file__).read_text(), "node/boot.py", "exec", dont_inherit=True)
        return
    ending = "raise ValueError('bad')"
    assert run(place, "script.py", ending, python=str(python)) == run(
        place, "script.py", ending, python=str(python), booted=False
    )
    assert json.loads((place / "error.json").read_text())["type"] == "ValueError"


def test_the_exception_is_written_down(place: Path) -> None:
    run(place, "script.py", "import socket\nraise socket.timeout('no')")
    report = json.loads((place / "error.json").read_text())
    assert set(report) == {
        "type",
        "message",
        "traceback",
        "signature",
        "collective",
        "chain",
        "rank",
        "pid",
        "written_at",
    }
    assert (report["message"], report["rank"], report["collective"]) == ("no", 2, False)
    assert report["traceback"].startswith("Traceback (most recent call last):\n")
    assert "node/boot.py" not in report["traceback"]
    before = report["signature"]
    run(place, "script.py", "import socket\nraise socket.timeout('another message')")
    assert json.loads((place / "error.json").read_text())["signature"] == before
    run(place, "script.py", "\nimport socket\nraise socket.timeout('no')")
    assert json.loads((place / "error.json").read_text())["signature"] != before
    assert list(place.glob("error.json.*")) == []


CAUSES = """
def load():
    try:
        raise OSError(107, "Transport endpoint is not connected", "/mnt/data/shard-1")
    except OSError as error:
        raise ValueError("bad\\nshard") from error
try:
    load()
except ValueError:
    raise RuntimeError("epoch 3")
"""


def test_the_causes_are_written_down_and_an_os_error_keeps_its_number_and_file(place: Path) -> None:
    (place / "two.py").write_text(CAUSES)
    run(place, "two.py")
    report = json.loads((place / "error.json").read_text())
    assert report["message"] == "epoch 3"
    assert report["chain"] == [
        "ValueError: bad shard",
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data/shard-1'",
    ]
    (place / "two.py").write_text(CAUSES.replace('"epoch 3")', '"epoch 3") from None'))
    run(place, "two.py")
    assert json.loads((place / "error.json").read_text())["chain"] == []
    told = "class Gone(OSError):\n  def __str__(self): return 'the shard is gone'\nraise Gone(110, 'x', '/mnt/a')"
    run(place, "script.py", told)
    assert json.loads((place / "error.json").read_text())["message"] == "[Errno 110] the shard is gone: '/mnt/a'"
    run(place, "script.py", "e = KeyError('k')\nf = ValueError('v')\ne.__cause__, f.__cause__ = f, e\nraise e")
    assert json.loads((place / "error.json").read_text())["chain"] == ["ValueError: v"], "a circle ends"


HANDLING = """
import contextlib, sys
class GroupError(RuntimeError): pass
def destroy(): raise GroupError("NCCL communicator was aborted, torch.distributed")
@contextlib.contextmanager
def group():
    try: yield
    finally: destroy()
class Group:
    def __enter__(self): pass
    def __exit__(self, *why): destroy()
def bug(): raise ValueError("bad label -7")
def missing(): raise ImportError("No module named flash_attn")
def nan(): raise RuntimeError("loss became NaN")
"""


@pytest.mark.parametrize(
    ("body", "kind", "chain"),
    [
        ("try: bug()\nfinally:\n  destroy()", "ValueError", ["GroupError"]),
        ("with group(): bug()", "ValueError", ["GroupError"]),
        ("with Group(): bug()", "ValueError", ["GroupError"]),
        ("try: bug()\nexcept Exception:\n  destroy()\n  raise", "ValueError", ["GroupError"]),
        ("try: bug()\nexcept Exception:\n  destroy()\n  sys.exit(1)", "ValueError", ["GroupError"]),
        ("try: missing()\nexcept ImportError:\n  nan()", "RuntimeError", []),
        ("try: missing()\nexcept ImportError:\n  try: nan()\n  finally: destroy()", "RuntimeError", ["GroupError"]),
        ("try: missing()\nexcept ImportError:\n  if 0: raise\n  nan()", "RuntimeError", []),
        ("try: missing()\nexcept ImportError:\n  x = 1 / 0", "ZeroDivisionError", []),
        ("try: missing()\nexcept ImportError:\n  raise KeyError('x')", "KeyError", ["ImportError"]),
        ("try: missing()\nexcept ImportError:\n  raise KeyError('x') from None", "KeyError", []),
        ("try: missing()\nexcept ImportError as e:\n  raise KeyError('x') from e", "KeyError", ["ImportError"]),
        ("try: missing()\nexcept ImportError: print('shown')\nnan()", "RuntimeError", []),
        ("try: missing()\nexcept ImportError:\n  for x in 1,:\n    raise KeyError(x)", "KeyError", []),
        ("try: bug()\nexcept ValueError:\n  print('shown'); sys.exit(3)", "ValueError", []),
    ],
)
def test_which_error_judges_when_one_follows_another(place: Path, body: str, kind: str, chain: list[str]) -> None:
    (place / "two.py").write_text(HANDLING + body + "\n")
    assert run(place, "two.py") == run(place, "two.py", booted=False)
    report = json.loads((place / "error.json").read_text())
    assert (report["type"], [cause.partition(":")[0] for cause in report["chain"]]) == (kind, chain)
    assert not report["collective"]


@pytest.mark.parametrize("left", ["sys.exit(0)", "sys.exit()", "sys.exit(2)", "raise SystemExit(1) from None"])
def test_who_leaves_without_a_failure_or_has_said_why_reports_none(place: Path, left: str) -> None:
    (place / "two.py").write_text(HANDLING + f"try: bug()\nexcept ValueError:\n  {left}\n")
    assert run(place, "two.py") == run(place, "two.py", booted=False)
    assert not (place / "error.json").exists()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup")
def test_a_group_is_told_by_its_members_and_a_victim_comes_last(place: Path) -> None:
    victim = "ConnectionResetError('connection reset by peer')"
    nested = "ExceptionGroup('in', [KeyError('k')])"
    (place / "two.py").write_text(f"raise ExceptionGroup('out', [{victim}, {nested}, ValueError('v')])")
    run(place, "two.py")
    report = json.loads((place / "error.json").read_text())
    assert (report["type"], report["chain"]) == (
        "KeyError", ["ValueError: v", "ConnectionResetError: connection reset by peer"],
    )  # fmt: skip
    assert "ExceptionGroup: out (3 sub-exceptions)" in report["traceback"]


def test_no_child_inherits_where_the_error_is_reported(place: Path) -> None:
    body = (
        "import os, subprocess\nassert 'GANGRUN_ERROR_FILE' not in os.environ\nos.execv('/bin/sh', ['sh', '-c', 'env'])"
    )
    (place / "two.py").write_text(body)
    assert "GANGRUN_ERROR_FILE" not in run(place, "two.py")[1]
    assert "GANGRUN_ERROR_FILE" not in run(place, "--exec", "env")[1]


def test_when_the_error_was_written_is_on_the_agents_clock(place: Path) -> None:
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    run(place, "script.py", "import atexit, time\natexit.register(time.sleep, 0.2)\nraise ValueError('bad')")
    written_at = json.loads((place / "error.json").read_text())["written_at"]
    assert began <= written_at <= time.clock_gettime(time.CLOCK_BOOTTIME) - 0.2, "not when the process ended"


def test_an_error_file_that_cannot_be_written_changes_nothing_but_a_line(place: Path) -> None:
    (place / "error.json").mkdir()
    code, _, err = run(place, "script.py", "raise ValueError('bad')")
    assert code == 1
    assert "could not write the error report" in err
    assert err.endswith("ValueError: bad\n")


@pytest.mark.parametrize(
    ("kind", "message", "victim"),
    [
        ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 1", True),
        ("torch.distributed.DistNetworkError", "The client socket has timed out after 60s", True),
        ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]", True),
        ("RuntimeError", "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv", True),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", True),
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:446] writev: Broken pipe", True),
        ("BrokenPipeError", "[Errno 32] Broken pipe", False),
        ("BrokenPipeError", "[Errno 108] Cannot send after transport endpoint shutdown: '/mnt/data/shard-1'", False),
        ("TimeoutError", "[Errno 110] Connection timed out: '/mnt/data/shard-1'", False),
        ("torch.distributed.DistNetworkError", "port: 1 EADDRINUSE: address already in use", False),
        ("torch.distributed.DistBackendError", "NCCL error: invalid usage", False),
        ("torch.OutOfMemoryError", "CUDA out of memory", False),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed", False),
        ("ValueError", "loss is NaN", False),
        ("TimeoutError", "my own service timed out after 3 s", False),
    ],
)
def test_a_victims_error_is_told_from_an_own_one(kind: str, message: str, victim: bool) -> None:
    assert boot.looks_collective(kind, message) is victim


AFTER_A_SIGNAL = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{{number}}})
os.kill(os.getpid(), {number})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start(place: Path, body: str, early: int = 0) -> subprocess.Popen[str]:
    """``early``: a signal that came before Python ran, while the agent held it back."""
    (place / "waits.py").write_text(body)
    before = ["-c", AFTER_A_SIGNAL.format(number=early)] if early else []
    command = [sys.executable, *before, boot.__file__, "waits.py"]
    child = subprocess.Popen(command, cwd=place, env=environ(place), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        end(child)
        raise AssertionError("the script did not come to its waiting place")
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_stray_signal_is_survived_and_written_down(place: Path, number: signal.Signals) -> None:
    child = start(place, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    child.send_signal(number)
    until(lambda: "waits.py" in (place / "signals").read_text(), 5, "the note")
    stays(lambda: child.poll() is None, 0.2, "it lives")
    end(child)


@pytest.mark.parametrize("number", [int(signal.SIGTERM), int(signal.SIGUSR1), int(signal.SIGUSR2)])
def test_a_signal_that_came_before_python_ran_is_written_down_too(place: Path, number: int) -> None:
    """Else the agent would wait the whole grace for a rank that never heard of the stop."""
    child = start(place, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n", early=number)
    until(lambda: (place / "signals").read_text(), 5, "the note")
    assert child.poll() is None
    end(child)


def test_stacks_can_be_taken_again_and_again(place: Path) -> None:
    child = start(place, "import time\ndef here():\n    print('ready', flush=True)\n    time.sleep(600)\nhere()\n")
    for count in (1, 2):
        child.send_signal(signal.SIGRTMIN + boot.STACK_SIGNAL_OFFSET)
        until(lambda wanted=count: stacks(place) == wanted, 5, "the stack")  # type: ignore[misc]
    end(child)


def stacks(place: Path) -> int:
    return (place / "stack").read_text().count(" in here\n")


def test_it_dies_with_the_process_that_started_it(place: Path) -> None:
    (place / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    for argv in (["waits.py"], ["--exec", "sh", "-c", "echo $$; exec sleep 600"]):
        code = (
            "import os, subprocess, sys, time\nos.environ['GANGRUN_AGENT_PID'] = str(os.getpid())\n"
            f"subprocess.Popen([sys.executable, {boot.__file__!r}, *{argv!r}])\ntime.sleep(600)\n"
        )
        agent = subprocess.Popen([sys.executable, "-c", code], cwd=place, stdout=subprocess.PIPE, text=True)
        assert agent.stdout is not None
        rank = int(agent.stdout.readline())
        agent.kill()
        until(lambda pid=rank: not lives(pid), 2, "the rank to die")  # type: ignore[misc]
        agent.communicate()


def test_it_does_not_start_for_an_agent_that_is_gone(place: Path) -> None:
    command = [sys.executable, boot.__file__, "script.py"]
    done = subprocess.run(
        command, cwd=place, env=environ(place, GANGRUN_AGENT_PID="1"), capture_output=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (boot.EXIT_ORPHANED, b"")


def test_other_commands_become_themselves(place: Path) -> None:
    code, out, _ = run(place, "--exec", "sh", "-c", 'echo "$0|$RANK"; exit 9', "a 'b' $(c)\n")
    assert (code, out) == (9, "a 'b' $(c)\n|2\n")
    assert run(place, "--exec", "/no/such")[0] == 127
    assert run(place, "--exec", "/etc")[0] == 126
    assert run(place)[0] == 2
