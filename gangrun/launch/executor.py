"""submitit and gangrun: the one module that knows submitit, and the table of its protected methods is decision 0009.

``BatchExecutor`` submits every batch job of every run. ``FunctionExecutor`` pickles a function for a run, whose ranks
unpickle and call it; its job is the run. What they submit with is given to them: this module makes no run.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core import core, job_environment, utils

from gangrun.adapters.fs.job_claims import note_job_id
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.submission import SENT_WITHIN_S, checked, job_of, last_lines, options, words_of, written
from gangrun.config import settings
from gangrun.config.layers import BY_NAME
from gangrun.core.model import Phase
from gangrun.entry.wiring import own_command
from gangrun.errors import UserError
from gangrun.launch import stop
from gangrun.runs.jobs import is_scheduler_here
from gangrun.runs.locate import find
from gangrun.runs.rank_output import Wanted, attempts_of, node_logs
from gangrun.runs.rank_output import written as lines_of
from gangrun.runs.snapshot import read
from gangrun.runs.state import PENDING, run_state
from gangrun.runs.times import wall_now
from gangrun.wire.submission import Submission, refill_submission

NAME = "gangrun"
MARK = "SUBMITIT_EXECUTOR"
LOOK_EVERY_S = 2
SAVED_EVERY_S = 0.2
# submitit's words for how a job is; it takes each other word for an end
STATES = {Phase.SUCCEEDED.value: "COMPLETED", PENDING: PENDING}
LOCAL = {row.name for row in settings.SETTINGS}
SETTINGS = {name: row for name, row in BY_NAME.items() if not row.in_files_only and name != "local_hosts"}


class BatchExecutor(submitit.SlurmExecutor):  # type: ignore[misc] # submitit has no types
    """Submits the batch jobs of one run that is made: the first, its successors and its refills. For one thread."""

    def __init__(
        self, paths: RunPaths, submission: Submission, tools: Tools, hear: Callable[[str], None] = lambda words: None
    ) -> None:
        """``hear`` gets what sbatch says beside the job's number."""
        super().__init__(paths.batch_scripts)
        self.paths, self.submission, self.tools, self._hear = paths, submission, tools, hear

    @classmethod
    def affinity(cls) -> int:
        """A script can be written on a host without Slurm."""
        return 2

    def script(self, seq: int, exclude: Sequence[str] = (), dependency: str = "") -> str:
        """The exact text for job ``seq``; ``Unfit`` if it cannot be written."""
        command = self._own_command("gangrun.entry.slurm_job", "--seq", seq)
        told = self._own_command("gangrun.entry.notifier", "--stopped", seq) if self.submission.tells_people else []
        return self.text(
            self.submission, command, options(
                self.submission, self.paths, seq, exclude=exclude, dependency=dependency, when_stopped=told,
            )
        )  # fmt: skip

    def submit_job(self, seq: int, exclude: Sequence[str] = (), dependency: str = "") -> str:
        """Send job ``seq``; its job id. Raises what ``adapters.slurm.submission`` names, or ``OSError``."""
        job = self.send(f"job-{seq}.sh", self.script(seq, exclude, dependency))
        note_job_id(self.paths, seq, job)
        return job

    def submit_refill(self, seq: int, number: int, exclude: Sequence[str], left_s: float | None) -> str:
        """Send refill ``number`` of job ``seq``, which has ``left_s`` until its time limit; the refill's job id."""
        asked = refill_submission(self.submission, left_s)
        command = [*self._own_command("gangrun.entry.slurm_refill", "--seq", seq), "--number", str(number)]
        told = options(asked, self.paths, seq, exclude=exclude, refill=number)
        return self.send(f"refill-{number}.sh", self.text(asked, command, told))

    def text(self, submission: Submission, command: Sequence[str], told: Mapping[str, Any]) -> str:
        """The script that becomes ``command``."""
        self.update_parameters(**told)
        return checked(self._make_submission_file_text(last_lines(submission, command), "").rstrip("\n") + "\n")

    def send(self, name: str, text: str) -> str:
        """Keep the script, and start sbatch with a deadline and in a clean environment; the job id."""
        command = self._make_submission_command(written(self.folder, name, text))
        answer = self.tools.run(command, SENT_WITHIN_S)
        job = job_of(answer)
        if answer.err.strip():
            self._hear(words_of(answer))
        return job

    def _own_command(self, module: str, option: str, value: int) -> list[str]:
        return own_command(module, ["--run-dir", str(self.paths.root), option, str(value)], self.submission.python)


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
        for task in tasks:  # submitit waits 15 s for a result that may be late: not once it is known that one failed
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
        lines = lines_of(paths, Wanted(frozenset({self.task_id or 0})), attempts[-1], None)
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


class FunctionExecutor(core.PicklingExecutor):  # type: ignore[misc]
    """Pickles a function, and has a run made whose ranks call it. ``submitit.GangExecutor`` says how."""

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

    def submit_run(self, words: Sequence[str], flags: Mapping[str, Any], env_pairs: Sequence[str]) -> RunPaths:
        """Submit a run that executes ``words`` on its ranks; ``UserError`` if that cannot be."""
        raise NotImplementedError

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

    def _flags(self) -> dict[str, Any]:
        """The settings as if typed; what only a cluster can be asked for is left out on this machine."""
        given = dict(self.parameters)
        ranks = int(given.pop("tasks_per_node", given.pop("nproc_per_node", 1)))
        minutes, memory_gb, cpus = given.pop("timeout_min", None), given.pop("mem_gb", None), given.get("cpus_per_task")
        given.pop("stderr_to_stdout", None)
        asked: dict[str, Any] = {"save_signal": job_environment.JobEnvironment.USR_SIG, "name": "submitit", **given}
        asked |= {"nproc_per_node": ranks}
        asked |= {"time": f"{minutes}"} if minutes is not None else {}
        asked |= {"mem": f"{memory_gb:g}G"} if memory_gb is not None else {}
        asked |= {"cpus_per_task": int(cpus) * ranks} if cpus is not None else {}
        if self._here:
            asked = {name: value for name, value in asked.items() if name in LOCAL}
            asked["local_hosts"] = int(given.get("nodes", 1)) > 1
        return {name: _typed(name, value) for name, value in asked.items() if value is not None and value is not False}

    def _submit_command(self, command: str) -> GangJob:
        try:
            if self._here:
                here: GangJob = super()._submit_command(command)
                return here
            paths = self.submit_run(shlex.split(command), self._flags(), (f"{MARK}={NAME}",))
        except utils.FailedJobError as error:
            raise utils.FailedSubmissionError(str(error)) from None
        except UserError as error:
            raise utils.FailedSubmissionError(f"gangrun: {error.message}\n  {error.hint}".rstrip()) from error
        job = GangJob(self.folder, paths.run, list(range(self._num_tasks())))
        job.paths.submission_file.symlink_to(paths.batch_scripts / "job-0.sh")
        return job

    # ---- a run on this machine outlives the caller, so a child begins it ----

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["sh", str(submission_file_path)]

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        del uid
        words = [sys.executable, "-m", NAME, "run", "--here", "--detach", "--env", f"{MARK}={NAME}"]
        for name, value in self._flags().items():
            flag = BY_NAME[name].flag
            words += [flag] if value is True else [word for one in _many(value) for word in (flag, one)]
        return f"exec {shlex.join(words)} {command}\n"

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        told = string.decode() if isinstance(string, bytes) else string
        match = re.search(r"^run (\S+) ", told, re.MULTILINE)
        if match is None:
            raise utils.FailedSubmissionError(f"gangrun did not name the run that it started: {told!r}")
        return match.group(1)


def _typed(name: str, value: Any) -> Any:
    """A value as the command line has it: True, a word, or a tuple of words."""
    if value is True:
        return True
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (str(value),) if BY_NAME[name].many else str(value)
    return tuple(map(str, value))


def _many(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
