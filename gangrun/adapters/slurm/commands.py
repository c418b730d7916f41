"""Slurm's tools as processes: a clean environment, a deadline, an answer.

The only module here that starts a process. It reads no words of Slurm's: that is for ``scheduler`` and ``submission``.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KEPT = frozenset({"SLURM_CONF", "SLURM_JWT"})  # which cluster, and by what right where munge is not used
DROPPED = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "SUBMITIT_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SINFO_")
# What these print is read by us. sbatch is not among them: what it is given, it hands on to the job.
READ = frozenset({"scontrol", "squeue", "scancel", "sinfo", "sacct"})
PLAIN = {"LC_ALL": "C", "TZ": "UTC0"}
# scancel reaches every process of a step, whatever its session; a mask outlives exec, and SIGKILL comes later.
HELD_BACK = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT})
NOT_FOUND = 127
KILLED_WITHIN_S = 2.0


def clean(variables: Mapping[str, str]) -> dict[str, str]:
    """Without what a surrounding job or a user's defaults would make of a request: sbatch would obey both."""
    return {key: value for key, value in variables.items() if key in KEPT or not key.startswith(DROPPED)}


@dataclass(frozen=True, slots=True)
class Answer:
    """How a tool ended; ``code`` is negative for a signal, and 127 where the tool is not there."""

    code: int
    out: str = ""
    err: str = ""
    timed_out: bool = False

    @property
    def words(self) -> str:
        """What it had to say in one line, for a reason."""
        said = " ".join((self.err.strip() or self.out.strip()).split())
        return said or f"exit code {self.code}"


class Tools:
    """Starts one tool at a time per caller; used by several threads at once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = clean(environment)

    def run(self, argv: Sequence[str], within_s: float) -> Answer:
        """Run to the end, or kill it at the deadline: then nobody knows whether it did what it was asked."""
        tool = Path(argv[0]).name
        environment = {**self._environment, **PLAIN} if tool in READ else self._environment
        try:
            child = _started(argv, environment)
        except FileNotFoundError:
            return Answer(NOT_FOUND, err=f"there is no {tool} on this host")
        except OSError as error:
            return Answer(NOT_FOUND, err=f"{tool} cannot be started: {error.strerror}")
        try:
            out, err = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # its session's leader is not reaped yet: the group exists
            return Answer(-signal.SIGKILL, *_left_by(child, f"{tool} did not answer within {within_s:g} s"), True)
        return Answer(child.returncode, _text(out), _text(err))


class ToolProcess:
    """A tool that stays as long as its work lasts (srun). Its words come on stderr, to ``lines`` if they are ``heard``.

    Else they go where this process writes its own: nobody would read a pipe. In a session of its own: a terminal's
    Ctrl-C is for the one who owns the run, and srun would hand it on.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], heard: bool = True) -> None:
        """Start it; ``OSError`` where it is not there."""
        self._process = subprocess.Popen(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if heard else None,
            start_new_session=True,
        )

    def poll(self) -> int | None:
        """Its exit code; None while it lives."""
        return self._process.poll()

    def lines(self) -> Iterator[str]:
        """What it says, until its end."""
        assert self._process.stderr is not None
        with self._process.stderr as said:
            for raw in said:
                yield raw.decode("utf-8", "replace").rstrip()

    def send_signal(self, signum: int) -> None:
        """Nothing where it has ended."""
        self._process.send_signal(signum)


def _started(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Started with signals held back: the mask of this thread is the child's."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _left_by(child: subprocess.Popen[bytes], sentence: str) -> tuple[str, str]:
    """What a killed tool had said so far; where the kernel holds it, nobody waits for it."""
    try:
        out, err = child.communicate(timeout=KILLED_WITHIN_S)
    except subprocess.TimeoutExpired:
        return "", sentence
    return _text(out), f"{sentence}. {_text(err)}".strip()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
