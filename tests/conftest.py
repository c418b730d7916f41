"""Which tests run where, and what all of them share.

Markers ``root``, ``compiler`` and ``browser`` skip where that is missing. In CI (``CI`` set) a skip is a failure,
whatever its reason, unless the test is marked ``gpu``: a test that did not run has shown nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.command_line"]

TESTS = Path(__file__).parent
IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}

# Folders whose tests start real processes. They wait more than they compute, so several run at once.
PROCESS_FOLDERS = frozenset({"local", "local_parts", "cli", "entry", "launch", "runs", "contract", "examples", "docs"})
# Those on a real Slurm cluster wait for it more than they compute: they run beside all others but the serial ones.
CLUSTER_FOLDERS = frozenset({"slurm"})

# The parts of `make test` that are chosen by a marker of this name.
MARKED_PARTS = ("processes", "cluster", "serial", "sweep")

# What a fresh machine may lack even in CI.
MAY_SKIP_IN_CI = frozenset({"gpu"})

# The same examples each time, on a machine as slow as it may be; others with pytest --hypothesis-profile=others.
settings.register_profile(
    "same", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("others", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

os.environ.setdefault("GANGRUN_NO_HEALTH", "1")  # a process more for each agent; the tests of it turn it on


RECORD = "GANGRUN_TEST_RECORD"  # names the file for a Recorder; set by the Makefile
TEMPORARY: list[str] = []
SWEPT_AFTER_S = 2 * 3600


@pytest.hookimpl(tryfirst=True)  # before pytest asks where its own directories shall be
def pytest_configure(config: pytest.Config) -> None:
    """What the tests start has a temporary directory of its own: killed ranks cannot remove what torch put there.
    So have the tests: sessions beside each other that clean one up together end in an error now and then.

    Ctrl-C reaches them, even if the suite runs in the background of a shell, which has it ignored; and so does the
    end of a terminal, which nohup has ignored.
    """
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)
    record = os.environ.pop(RECORD, "")  # not for the sessions that tests start
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist has the one of its session
        tempfile.gettempdir()  # remembered: what the tests themselves make stays where it is looked for
        sweep(Path(tempfile.gettempdir()))
        if record:
            config.pluginmanager.register(Recorder(Path(record).absolute()))
        TEMPORARY.append(tempfile.mkdtemp(prefix=f"gt-{os.getpid()}-"))  # short: sockets have their paths in it
        Path(TEMPORARY[0]).chmod(0o1777)
        os.environ["TMPDIR"] = TEMPORARY[0]
        if config.option.basetemp is None:
            config.option.basetemp = f"{TEMPORARY[0]}/t"


class Recorder:
    """Writes what tests/unsteady.py reads of a session: its exit status, how many passed, each first failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed_count, self._seconds = 0, 0.0
        self._failures: dict[str, str] = {}
        self._crashed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        self._passed_count += report.when == "call" and report.passed
        self._crashed |= report.when not in {"setup", "call", "teardown"}  # pytest-xdist's report of a dead worker
        if report.failed:
            sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
            self._failures.setdefault(report.nodeid, f"{report.longreprtext}{sections}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        found = {"exit_status": int(exitstatus), "passed_count": self._passed_count, "seconds": self._seconds,
                 "failures": self._failures, "crashed": self._crashed}  # fmt: skip
        self._path.write_text(json.dumps(found), "utf-8")


def sweep(folder: Path) -> None:
    """Take away what a session that was killed hours ago could not."""
    for path in folder.glob("gt-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):  # another session sweeps too
                if path.stat().st_mtime < time.time() - SWEPT_AFTER_S:  # or it has processes of its own, elsewhere
                    remove(path)


def remove(path: Path) -> None:
    """With all folders in it that nobody was to write to any more."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def pytest_sessionfinish(exitstatus: int) -> None:
    """Where something failed it can be looked at for a while."""
    if exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        TEMPORARY.clear()


def pytest_unconfigure() -> None:
    """Nothing stays of it."""
    for path in TEMPORARY:
        remove(Path(path))


@pytest.hookimpl(trylast=True)  # when those that do not run are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several run at once, long ones come first, or the last of them would run alone."""
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def dealt(items: list[pytest.Item], workers_count: int) -> list[pytest.Item]:
    """One part after another for each worker, as pytest-xdist cuts them, and the slow tests first in each."""
    if workers_count == 1:
        return items
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = [item for item in items if not item.get_closest_marker("slow")]
    dealt: list[pytest.Item] = []
    for number in range(workers_count):
        mine = slow[number::workers_count]
        till = max(0, len(items) * (number + 1) // workers_count - len(dealt) - len(mine))
        dealt += [*mine, *rest[:till]]
        del rest[:till]
    return dealt


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part of `make test` imports only the files that may have tests of it: all of them take each worker long."""
    chosen = config.option.markexpr
    if not collection_path.match("test_*.py") or TESTS not in collection_path.parents:
        return None
    if chosen in MARKED_PARTS:
        return None if may_have(collection_path, chosen) else True
    is_quick = all(f"not {part}" in chosen for part in MARKED_PARTS)
    return True if is_quick and folder_of(collection_path) in PROCESS_FOLDERS | CLUSTER_FOLDERS else None


def folder_of(path: Path) -> str:
    """Of the folders beside this file, the one that a file of tests is in."""
    return path.relative_to(TESTS).parts[0]


def may_have(path: Path, part: str) -> bool:
    """Can a file have tests of this part: by its folder, or as it or the conftest.py beside it names the marker?"""
    by_folder = {"processes": PROCESS_FOLDERS, "cluster": CLUSTER_FOLDERS}
    beside = path.with_name("conftest.py")
    texts = [one.read_text("utf-8") for one in (path, beside) if one.exists()]
    return folder_of(path) in by_folder.get(part, ()) or any(f"mark.{part}" in text for text in texts)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set ``processes`` and ``cluster`` by folder, so that no test of real processes forgets it."""
    if TESTS not in item.path.parents:
        return
    folder = folder_of(item.path)
    if folder in CLUSTER_FOLDERS:
        item.add_marker(pytest.mark.cluster)
    elif folder in PROCESS_FOLDERS and not any(map(item.get_closest_marker, ("cluster", "serial"))):
        item.add_marker(pytest.mark.processes)
    for part in filter(item.get_closest_marker, MARKED_PARTS):
        if not may_have(item.path, part):
            raise pytest.UsageError(f"{item.path} must name the marker as pytest.mark.{part}: make test looks for that")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, in words, what this machine cannot run."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    if item.get_closest_marker("compiler") and not shutil.which("cc"):
        pytest.skip("needs a C compiler (cc)")
    if item.get_closest_marker("browser") and not shutil.which("chromium"):
        pytest.skip("needs chromium")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, turn a skip into a failure that carries the skip's reason."""
    report = yield
    allowed = any(item.get_closest_marker(name) for name in MAY_SKIP_IN_CI)
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and not allowed:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, and in CI a skip is a failure: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself while it is imported."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped as a whole, and in CI a skip is a failure: {report.longrepr}"
    return report


@pytest.fixture
def tmp_runs(tmp_path: Path) -> Path:
    """An empty, private directory for runs, with a name that breaks careless quoting."""
    runs = tmp_path / "runs 'of' $HOME ü"
    runs.mkdir(mode=stat.S_IRWXU)
    return runs
