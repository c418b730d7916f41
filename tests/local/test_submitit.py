"""gangrun as an executor of submitit: its own tests of executors, and what survives a failure and a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import submitit
import submitit.core.test_plugins
import submitit.local.test_local as theirs
from submitit.helpers import Checkpointable, CommandFunction, DelayedSubmission

from gangrun.submitit import GangExecutor, GangJob
from tests.faults.inject import PLAIN
from tests.waiting import until

pytestmark = pytest.mark.processes
WITHIN_S = 60


class Here(GangExecutor):
    """As submitit's tests make an executor."""

    def __init__(self, folder: str | Path, **more: Any) -> None:
        super().__init__(folder, here=True, **more)
        self.update_parameters(no_health=True, max_restarts=0)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and their index are this test's own; functions of this module can be imported by ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.parametrize(
    "test",
    [
        theirs.test_local_map_array, theirs.test_local_submit_array, theirs.test_local_error,
        theirs.test_pickle_output_from_main, theirs.test_get_first_task_error, theirs.test_stdout,
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
    """Waits to be stopped the first time, works the second."""

    def __call__(self, slack: bool = True) -> str:
        sys.stdout.write("begun\n")
        while slack:
            signal.pause()
        return "worked"

    def __submitit_checkpoint__(self, slack: bool = True) -> DelayedSubmission:
        return DelayedSubmission(self, slack=False)


def test_a_callable_that_can_be_saved_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    executor = Here(tmp_path / "folder")
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(Slacker(), True)
    until(lambda: (job.stdout() or "").count("begun") == 2, WITHIN_S, "both ranks")
    job.cancel()
    assert job.state == "CANCELLED"
    subprocess.run([*PLAIN, "resume", "--detach", job.job_id], check=True, capture_output=True, timeout=WITHIN_S)
    job.watcher.clear()
    assert job.results() == ["worked", "worked"]


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
