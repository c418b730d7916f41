"""Children that ask what may hang: deadlines, one at a time, none after one that cannot be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gangrun.adapters.local.children import ProbeChildren
from tests.waiting import until

pytestmark = pytest.mark.processes


def children(tmp_path: Path, code: str) -> ProbeChildren:
    script = tmp_path / "probe.py"
    script.write_text(code, "utf-8")
    return ProbeChildren([sys.executable, str(script)], {})


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('[1]')", [1]),
        ("import sys\nprint('\"' + ' '.join(sys.argv[1:]) + '\"')", "kind a b"),
        ("print('no json')", {"absent": "the answer made no sense"}),
        ("print('[' * 200000)", {"absent": "the answer made no sense"}),
        ("import sys\nsys.exit('it\\nbroke')", {"absent": "the process that asked ended with 1: broke"}),
        ("import os\nos.kill(os.getpid(), 11)", {"absent": "the process that asked was killed by signal 11"}),
        ("pass", {"absent": "the answer made no sense"}),
    ],
)
def test_answers(tmp_path: Path, code: str, answer: object) -> None:
    assert children(tmp_path, code).ask("kind", ("a", "b"), 30.0) == answer


def test_a_child_that_hangs_is_killed(tmp_path: Path) -> None:
    asking = children(tmp_path, "import signal\nsignal.pthread_sigmask(0, [15])\nsignal.pause()")
    assert asking.ask("x", (), 0.5) == {"absent": "no answer within 0.5 s"}
    assert asking.left_count == 0


class Stuck(subprocess.Popen[str]):
    """A child in the kernel's hands, as far as a test can make one: kill does nothing."""

    killed = False

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None and self.killed:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return super().wait()


def test_after_a_child_that_cannot_be_killed_no_second_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    begun = tmp_path / "begun"
    asking = children(
        tmp_path, f"import sys\nopen({str(begun)!r}, 'a').write('x')\n"
        f"open({str(gate)!r}).read() if sys.argv[1] == 'bad' else None\nprint('1')"
    )  # fmt: skip
    monkeypatch.setattr("gangrun.adapters.local.children.subprocess.Popen", Stuck)
    first = asking.ask("bad", (), 0.5)
    assert "cannot be killed" in first["absent"]
    assert asking.left_count == 1
    assert "no second one is sent" in asking.ask("bad", (), 0.7)["absent"]
    assert until(lambda: begun.exists() and begun.read_text(), 20, "the first to begin") == "x"
    assert asking.ask("good", (), 30.0) == 1, "another question is asked all the same"
    left = next(iter(asking._left.values()))
    with gate.open("w"):
        pass
    left.wait()
    assert asking.left_count == 0


def test_never_two_at_once(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    held = f"import os, select\nos.mkdir({str(marker)!r})\nselect.select([], [], [], 0.3)\nos.rmdir({str(marker)!r})"
    asking = children(tmp_path, f"{held}\nprint('1')")  # a second one in that time would find the marker there
    answers: list[object] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(asking.ask("x", (str(n),), 30.0))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [1] * 3


def test_nothing_to_start() -> None:
    assert "could be started" in ProbeChildren(["/not/there"], {}).ask("x", (), 1.0)["absent"]


def test_a_question_about_files_or_names_loads_no_checks() -> None:
    code = """
import sys
from gangrun.entry.health_probe import answer
answer("directory", ("/nowhere",)), answer("names", ())
print(sorted(name for name in sys.modules if name.startswith("gangrun.health") or name in ("dataclasses", "pathlib")))
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", ""), "one is started for each directory, again and again"
