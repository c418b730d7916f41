"""gangrun as an executor of submitit: a function runs on every rank of a run that survives failures.

``submitit.AutoExecutor(folder, cluster="gangrun")`` finds it by its entry points; ``GangExecutor(folder)`` is the same
by name. A job of submitit is a run of gangrun: its id is the run's, it may live through several jobs of the scheduler,
and it is done when the run has ended. The run is started as a person would start it, by ``gangrun submit``, or on this
machine by ``gangrun run --detach`` if no scheduler is installed.

After a failure the function begins anew on every rank. A callable with a ``checkpoint`` method (submitit's
``Checkpointable``) says what to run instead: rank 0 asks it whenever gangrun stops the ranks and they may save.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, job_environment, utils

from gangrun.config import settings
from gangrun.config.layers import BY_NAME
from gangrun.core.model import Phase
from gangrun.errors import UserError
from gangrun.launch import stop
from gangrun.runs.jobs import is_scheduler_here
from gangrun.runs.locate import find
from gangrun.runs.rank_output import Wanted, attempts_of, node_logs, written
from gangrun.runs.snapshot import read
from gangrun.runs.state import PENDING, run_state
from gangrun.runs.times import wall_now

NAME = "gangrun"
MARK = "SUBMITIT_EXECUTOR"
LOOK_EVERY_S = 2
SAVED_EVERY_S = 0.2
# submitit's words for how a job is; it takes each other word for an end
STATES = {Phase.SUCCEEDED.value: "COMPLETED", PENDING: PENDING}
LOCAL = {row.name for row in settings.SETTINGS}
SETTINGS = {name: row for name, row in BY_NAME.items() if not row.in_files_only and name != "local_hosts"}


class RunWatcher(core.InfoWatcher):  # type: ignore[misc] # submitit has no types
    """Reads the journals of all runs that somebody waits for."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """The run's state in submitit's words."""
        return str(self.get_info(job_id, mode).get("jobState", "UNKNOWN"))

    def update(self) -> None:
        """Look at each run that has not ended yet."""
        self._num_calls += 1
        for run in self._registered - self._finished:
            self._info_dict[run] = _look(run)
        self._last_status_check = wall_now()
        self._finished |= {run for run in self._registered if self.is_done(run, mode="cache")}


def _look(run: str) -> dict[str, str]:
    try:
        now = run_state(read(find(run), scheduler=True), wall_now())
    except (UserError, OSError) as error:
        return {"jobState": "UNKNOWN", "reason": str(error)}
    state = "INTERRUPTED" if now.abandoned else STATES.get(now.state, now.state if now.ended else "RUNNING")
    return {"jobState": state, "reason": now.reason}


class GangJob(core.Job[Any]):  # type: ignore[misc]
    """A run of gangrun; task N is rank N."""

    watcher = RunWatcher(delay_s=LOOK_EVERY_S)

    def done(self, force_check: bool = False) -> bool:
        """Has the run ended? Results of ranks that failed do not count before: they may be run again."""
        return bool(self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"))

    def cancel(self, check: bool = True) -> None:
        """End the run for good; ``check`` waits until it has ended."""
        stop.cancel(read(find(self.job_id)), None, lambda words: None, waits=check, now=False)

    def results(self) -> list[Any]:
        """What the function returned on each rank; raises ``exception()`` if the job has one."""
        if self._sub_jobs and (failed := self.exception()) is not None:
            raise failed
        return list(super().results())

    def exception(self) -> utils.UncompletedJobError | None:
        """The error of the first task that has a traceback: once a rank has failed, the others are stopped."""
        if not self._sub_jobs:
            return super().exception()
        self.wait()
        found: list[utils.UncompletedJobError] = []
        tasks = sorted(self._sub_jobs, key=lambda task: not task.paths.result_pickle.exists())
        for (
            task
        ) in tasks:  # submitit waits 15 s for a result that may lie in a cache: not once it is known that one failed
            if (not found or task.paths.result_pickle.exists()) and (one := task.exception()) is not None:
                found.append(one)
        return next((one for one in found if isinstance(one, utils.FailedJobError)), found[0] if found else None)

    def _get_logs_string(self, name: str) -> str | None:
        """What this rank printed in its last attempt; gangrun keeps both streams together."""
        del name
        paths = find(self.job_id)
        attempts = attempts_of(paths)
        if not attempts or not node_logs(paths, attempts[-1]):
            return None  # no rank has printed anything yet
        lines = written(paths, Wanted(frozenset({self.task_id or 0})), attempts[-1], None)
        return "".join(f"{line.partition('] ')[2]}\n" for line in lines)


class GangJobEnvironment(job_environment.JobEnvironment):  # type: ignore[misc]
    """What a rank of such a run knows of its place."""

    _env = {  # noqa: RUF012 - submitit's own name and form
        "job_id": "GANGRUN_RUN",
        "num_tasks": "WORLD_SIZE",
        "num_nodes": "GROUP_WORLD_SIZE",
        "node": "GROUP_RANK",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
    }

    @classmethod
    def name(cls) -> str:
        """By which submitit knows it."""
        return NAME

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        """The signal that gangrun sends before a stop saves; whether and where the run goes on, gangrun decides."""
        handler = job_environment.SignalHandler(self, paths, submission)
        pickle = paths.submitted_pickle
        before = pickle.stat().st_ino

        def follow(signum: int, frame: object) -> None:
            """Rank 0 alone saves; the others wait until it has, and leave."""
            del signum, frame
            saves = hasattr(submission.function, "checkpoint")
            threading.Thread(target=_leave, args=(pickle, before if saves else -1), daemon=True).start()

        signal.signal(self._usr_sig(), handler.checkpoint_and_exit if self.global_rank == 0 else follow)

    def _requeue(self, countdown: int) -> None:
        """Nothing: the run goes on by itself."""


def _leave(pickle: Path, before: int) -> None:
    """End this process once the file is another one."""
    pause = threading.Event()
    while pickle.exists() and pickle.stat().st_ino == before:
        pause.wait(SAVED_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


class GangExecutor(core.PicklingExecutor):  # type: ignore[misc]
    """Runs functions on all ranks of a run.

    Args:
        folder: Where submitit keeps pickles and results; all nodes must see it.
        here: Run on this machine (True), or on the cluster (False); by default on the cluster if one can be asked.
        max_num_timeout: Not used: a run goes on until its function returns, or gangrun gives it up.
        max_pickle_size_gb: As submitit has it.

    Parameters for ``update_parameters`` are submitit's (``nodes``, ``tasks_per_node``, ``timeout_min``, ``mem_gb``,
    ``cpus_per_task``, ``gpus_per_node``, ``name``) and every setting of gangrun by name, such as ``spares``,
    ``max_restarts`` or ``checkpoint_dir``; ``AutoExecutor`` wants ``gangrun_`` before these.
    """

    job_class = GangJob

    def __init__(
        self, folder: str | Path, here: bool | None = None, max_num_timeout: int = 3, max_pickle_size_gb: float = 1.0
    ) -> None:
        super().__init__(folder, max_num_timeout, max_pickle_size_gb)
        self._here = not is_scheduler_here() if here is None else here
        self._throttling = 0.0

    @classmethod
    def name(cls) -> str:
        """By which submitit knows it."""
        return NAME

    @classmethod
    def affinity(cls) -> int:
        """Available, and only used when asked for."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(SETTINGS)

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = {*SETTINGS, "name", "timeout_min", "mem_gb", "tasks_per_node", "stderr_to_stdout"}
        if unknown := sorted(kwargs.keys() - known):
            raise NameError(f"gangrun has no parameter {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
        super()._internal_update_parameters(**kwargs)

    def _num_tasks(self) -> int:
        given = self.parameters
        return int(given.get("nodes", 1)) * int(given.get("tasks_per_node", given.get("nproc_per_node", 1)))

    @property
    def _submitit_command_str(self) -> str:
        return shlex.join([sys.executable, "-m", "submitit.core._submit", str(self.folder)])

    def _options(self) -> list[str]:
        """The settings as flags; what only a cluster can be asked for is left out on this machine."""
        given = dict(self.parameters)
        ranks = int(given.pop("tasks_per_node", given.pop("nproc_per_node", 1)))
        minutes, memory_gb, cpus = given.pop("timeout_min", None), given.pop("mem_gb", None), given.get("cpus_per_task")
        given.pop("stderr_to_stdout", None)
        asked: dict[str, Any] = {"save_signal": job_environment.JobEnvironment.USR_SIG, "name": "submitit", **given}
        asked |= {"time": f"{minutes}"} if minutes is not None else {}
        asked |= {"mem": f"{memory_gb:g}G"} if memory_gb is not None else {}
        asked |= {"cpus_per_task": int(cpus) * ranks} if cpus is not None else {}
        words = ["--nproc-per-node", str(ranks), "--env", f"{MARK}={NAME}"]
        for name, value in asked.items():
            if self._here and name not in LOCAL:
                continue
            words += _flags(BY_NAME[name].flag, value)
        return [*words, "--local-hosts"] if self._here and int(given.get("nodes", 1)) > 1 else words

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["sh", str(submission_file_path)]

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        del uid
        how = ["run", "--here", "--detach"] if self._here else ["submit"]
        return f"exec {shlex.join([sys.executable, '-m', NAME, *how, *self._options()])} {command}\n"

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        told = string.decode() if isinstance(string, bytes) else string
        match = re.search(r"^run (\S+) ", told, re.MULTILINE)
        if match is None:
            raise utils.FailedSubmissionError(f"gangrun did not name the run that it started: {told!r}")
        return match.group(1)

    def _submit_command(self, command: str) -> GangJob:
        try:
            job: GangJob = super()._submit_command(command)
        except utils.FailedJobError as error:
            raise utils.FailedSubmissionError(str(error)) from None
        return job


def _flags(flag: str, value: Any) -> Iterator[str]:
    if value is None or value is False:
        return
    if value is True:
        yield flag
    elif isinstance(value, str) or not isinstance(value, Sequence | Mapping):
        yield from (flag, str(value))
    else:
        for one in value:
            yield from (flag, str(one))
