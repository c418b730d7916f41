"""The rules of tests/conftest.py and tests/waiting.py, seen at work in a small suite of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RECORD, sweep
from tests.unsteady import Part
from tests.waiting import stays, until

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent
SUITE = """
import pytest
@pytest.mark.compiler
def test_compiler(): pass
def test_reason(): pytest.skip("why not")
@pytest.mark.gpu
def test_gpu(): pytest.skip("no gpu here")
@pytest.mark.xfail
def test_expected(): assert 0
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> pytest.RunResult:
    pytester.makeconftest((HERE / "conftest.py").read_text("utf-8"))
    pytester.makefile(".toml", pyproject=(HERE.parent / "pyproject.toml").read_text("utf-8"))
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "test_some.py").write_text(SUITE, "utf-8")
    (pytester.path / "tests" / "test_whole.py").write_text("import pytest\npytest.importorskip('not_there')\n", "utf-8")
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(pytester.path))  # no compiler there
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--continue-on-collection-errors")


@pytest.mark.processes
def test_a_skip_is_visible_on_a_laptop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(pytester, monkeypatch, "")
    result.assert_outcomes(skipped=4, xfailed=1)
    result.stdout.fnmatch_lines(["*needs a C compiler*"])


@pytest.mark.processes
def test_a_skip_is_a_failure_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(pytester, monkeypatch, "true")
    assert result.ret != 0
    result.stdout.fnmatch_lines_random(
        ["*a skip is a failure*not_there*", "*a skip is a failure*C compiler*", "*a skip is a failure*why not*"]
    )
    result.stdout.fnmatch_lines(["*no gpu here*"])


RECORDED = """
import os
import pytest
def test_right(): assert "GANGRUN_TEST_RECORD" not in os.environ
@pytest.mark.parametrize("what", ["a b"])
def test_wrong(what): print("its log"); assert 0, "wrong"
@pytest.fixture
def broken(): raise RuntimeError("no world")
def test_no_world(broken): pass
def test_death():
    if os.environ.get("DIES"): os._exit(1)
"""


@pytest.mark.processes
@pytest.mark.parametrize("dies", ["", "yes"])
def test_a_session_records_its_failures(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, dies: str) -> None:
    pytester.makeconftest((HERE / "conftest.py").read_text("utf-8"))
    pytester.makepyfile(test_some=RECORDED)
    monkeypatch.setenv(RECORD, "part.json")
    monkeypatch.setenv("DIES", dies)
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n1").ret == 1
    part = Part(**json.loads((pytester.path / "part.json").read_text("utf-8")))
    assert (part.exit_status, part.passed_count, part.crashed) == (1, 1 if dies else 2, bool(dies))
    wrong = part.failures["test_some.py::test_wrong[a b]"]
    assert "AssertionError: wrong" in wrong and "its log" in wrong
    assert "no world" in part.failures["test_some.py::test_no_world"]


def test_what_a_killed_session_left_is_taken_away_and_a_live_ones_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    stay = sorted([f"gt-{os.getpid()}-x", "gt-old", "gt-some-thing", "other"])
    for name in (f"gt-{ended.pid}-x", *stay):
        (tmp_path / name / "in it").mkdir(parents=True)
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / f"gt-{ended.pid}-new").mkdir()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*stay, f"gt-{ended.pid}-new"])


def test_waiting_gives_the_value_or_says_what_did_not_come() -> None:
    assert until([0, 0, 3].pop, 1, "a three") == 3
    with pytest.raises(AssertionError, match="in vain: the moon"):
        until(lambda: False, 0.01, "the moon")
    with pytest.raises(AssertionError, match="in vain: seen 2"):
        until(lambda: False, 0.01, lambda: "seen 2")


def test_staying_gives_up_at_the_first_change() -> None:
    stays(lambda: True, 0.02, "as it is")
    with pytest.raises(AssertionError, match="did not last"):
        stays([False, True].pop, 5, "as it is")


PARTS = {
    "local/test_waits.py": "def test_waits(): pass\n",
    "agent/test_serial.py": "import pytest\n@pytest.mark.serial\ndef test_alone(): pass\ndef test_not(): pass\n",
    "agent/test_quick.py": "def test_quick(): pass\n",
}
QUICK = "not processes and not serial and not cluster and not sweep"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("part", "imports", "chosen_count"),
    [("serial", "agent/test_serial.py", 1), ("processes", "local/test_waits.py", 1), (QUICK, "agent", 2)],
)
def test_a_part_imports_only_files_that_may_have_tests_of_it(
    pytester: pytest.Pytester, part: str, imports: str, chosen_count: int
) -> None:
    """A file that cannot be imported ends a session that imports it."""
    pytester.makeconftest((HERE / "conftest.py").read_text("utf-8"))
    pytester.makefile(".toml", pyproject=(HERE.parent / "pyproject.toml").read_text("utf-8"))
    for name, text in PARTS.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if name.startswith(imports) else "import not_there_at_all", "utf-8")
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-m", part, ".").assert_outcomes(passed=chosen_count)


@pytest.mark.processes
def test_a_marker_that_a_part_cannot_find_ends_the_session(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((HERE / "conftest.py").read_text("utf-8"))
    pytester.makepyfile(
        test_some="import pytest\npytestmark = getattr(pytest.mark, 'ser' + 'ial')\ndef test_it(): pass"
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*test_some.py must name the marker as pytest.mark.serial*"])
