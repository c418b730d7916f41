"""gangrun as an executor of submitit: its own tests of executors, and what survives a failure and a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import submitit
import submitit.core.test_plugins
import submitit.local.test_local as theirs
from submitit.helpers import Checkpointable, CommandFunction, DelayedSubmission

from gangrun.runs.locate import find
from gangrun.submitit import GangExecutor, GangJob
from tests.faults.inject import PLAIN
from tests.local.harness import processes_of
from tests.waiting import until

pytestmark = pytest.mark.processes
WITHIN_S = 60


class Here(GangExecutor):
    """As submitit's tests make an executor."""

    def __init__(self, folder: str | Path, **more: Any) -> None:
        super().__init__(folder, here=True, **more)
        self.update_parameters(no_health=True, max_restarts=0)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs and their index are this test's own, and end with it; functions of this module can be imported by ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    yield
    for pid in processes_of(str(tmp_path / "state")):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "test",
    [
        theirs.test_local_map_array, theirs.test_local_submit_array, theirs.test_local_error,
        theirs.test_pickle_output_from_main, theirs.test_stdout,
        theirs.test_load_submission,
    ],
)  # fmt: skip
def test_submitits_own_tests_of_an_executor(test: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs.local, "LocalExecutor", Here)
    monkeypatch.setattr(theirs.local, "LocalJob", GangJob)
    test(tmp_path / "folder")


def test_submitit_finds_it_and_its_own_tests_of_plugins_pass() -> None:
    plugins = submitit.core.test_plugins.plugins
    assert plugins.get_executors()["gangrun"] is GangExecutor
    submitit.core.test_plugins.test_executors(GangExecutor)
    submitit.core.test_plugins.test_env(plugins.get_job_environments()["gangrun"])
    assert submitit.AutoExecutor.which() != "gangrun"


def dies_once(mark: str, factor: int) -> tuple[int, int, str]:
    env = submitit.JobEnvironment()
    if env.global_rank == 1 and not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return factor * env.global_rank, env.num_tasks, env.job_id


def test_a_function_survives_the_death_of_a_rank(tmp_path: Path) -> None:
    executor = submitit.AutoExecutor(tmp_path / "folder", cluster="gangrun", gangrun_here=True)
    executor.update_parameters(nodes=1, tasks_per_node=3, timeout_min=5, mem_gb=1, gangrun_no_health=True)
    job = executor.submit(dies_once, str(tmp_path / "mark"), 2)
    assert job.results() == [(0, 3, job.job_id), (2, 3, job.job_id), (4, 3, job.job_id)]
    assert job.state == "COMPLETED"
    assert job.exception() is None


class Slacker(Checkpointable):
    """Waits to be stopped the first time; dies on one rank the second, and works the third."""

    def __call__(self, mark: str, slack: bool = True) -> str:
        sys.stdout.write("begun\n")
        while slack:
            signal.pause()
        if submitit.JobEnvironment().global_rank == 1 and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "worked"

    def __submitit_checkpoint__(self, mark: str, slack: bool = True) -> DelayedSubmission:
        return DelayedSubmission(self, mark, slack=False)


def test_a_callable_that_can_be_saved_goes_on_where_it_was_stopped_also_after_a_failure(tmp_path: Path) -> None:
    executor = submitit.AutoExecutor(tmp_path / "folder", cluster="gangrun", gangrun_here=True)
    executor.update_parameters(tasks_per_node=2, gangrun_no_health=True)
    job = executor.submit(Slacker(), str(tmp_path / "mark"))
    until(lambda: (job.stdout() or "").count("begun") == 2, WITHIN_S, "both ranks")
    job.cancel()
    assert job.state == "CANCELLED"
    subprocess.run([*PLAIN, "resume", "--detach", job.job_id], check=True, capture_output=True, timeout=WITHIN_S)
    job.watcher.clear()
    assert job.results() == ["worked", "worked"]
    assert job.state == "COMPLETED" and (tmp_path / "mark").exists()


def fails_beside_one_that_waits() -> None:
    if submitit.JobEnvironment().global_rank == 1:
        raise RuntimeError("failed on purpose")
    while True:
        signal.pause()


def test_the_error_of_a_job_is_that_of_the_rank_that_failed_not_of_those_that_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for results of ranks that were stopped: of a thousand ranks that would take hours."""
    monkeypatch.setattr(GangJob, "_results_timeout_s", 3600)
    executor = Here(tmp_path / "folder")
    executor.update_parameters(tasks_per_node=3, stop_grace=1)
    job = executor.submit(fails_beside_one_that_waits)
    found = job.exception()
    assert isinstance(found, submitit.core.utils.FailedJobError), found
    assert "Traceback" in found.args[0] and "failed on purpose" in found.args[0]
    with pytest.raises(submitit.core.utils.FailedJobError, match="failed on purpose"):
        job.results()


def waits_for(path: str) -> None:
    until(Path(path).exists, WITHIN_S, "the end")


def test_what_a_rank_prints_is_none_until_it_has_printed_something(tmp_path: Path) -> None:
    job = Here(tmp_path / "folder").submit(waits_for, str(tmp_path / "end"))
    logs = find(job.job_id).logs
    for text in (job.stdout(), job.stderr()):
        assert text is None or "ERROR" not in text
    (logs / "7").mkdir(parents=True)  # an attempt whose nodes have not opened their logs
    assert job.stdout() is None and job.stderr() is None
    (logs / "7").rmdir()
    (tmp_path / "end").touch()
    assert job.results() == [None]


def test_a_command_runs_on_every_rank(tmp_path: Path) -> None:
    executor = Here(tmp_path / "folder")
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(CommandFunction(["sh", "-c", "echo rank $RANK"]))
    assert [one.strip() for one in job.results()] == ["rank 0", "rank 1"]


def test_what_gangrun_refuses_is_told_and_starts_nothing(tmp_path: Path) -> None:
    executor = Here(tmp_path / "folder")
    with pytest.raises(NameError, match="gangrun has no parameter spare;"):
        executor.update_parameters(spare=1)
    executor.update_parameters(hang_timeout="soon")
    with pytest.raises(submitit.core.utils.FailedSubmissionError, match="--hang-timeout: 'soon' is not a time"):
        executor.submit(dies_once, "", 1)
    assert not (tmp_path / "gangrun_runs").exists()
