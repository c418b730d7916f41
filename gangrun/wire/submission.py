"""What Slurm is asked for each job of a run: ``submission.json`` in the run directory, written once.

The first job is submitted from it by ``gangrun submit``, every successor by the supervisor of the job before.
"""

from __future__ import annotations

import math
import re
from enum import Enum

import msgspec

SCHEMA = 1


class SubmissionError(ValueError):
    """A submission that cannot be used; the message says why and what to do."""


class Requeue(Enum):
    """How the run gets other nodes once its job has too few."""

    RESUBMIT = "resubmit"  # a new job, with --exclude
    SAME_JOB = "same-job"  # scontrol requeue, where compute nodes may not submit
    NONE = "none"  # it stops, with the story


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Texts are Slurm's own words, "" where nothing was asked: the site's default holds."""

    schema: int = SCHEMA
    job_name: str  # of every job of this run and of no other
    nodes_count: int  # with the spares
    python: str  # the interpreter that runs gangrun
    working_directory: str
    gpus_per_node: str = ""
    gres: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    exclude: str = ""  # what the user excluded; the run's own exclusions come on top
    nodelist: str = ""
    constraint: str = ""
    cpus_per_task: str = ""
    mem: str = ""
    exclusive: bool = False
    reservation: str = ""
    dependency: str = ""  # of the first job only
    sbatch: tuple[tuple[str, str | None], ...] = ()  # passed on as they are; None: a flag without value
    srun: tuple[tuple[str, str | None], ...] = ()
    setup: tuple[str, ...] = ()  # shell lines, run before anything of ours
    script: str = ""  # shell text of the user's batch script up to its gangrun run line, run after the setup lines
    line: str = ""  # COMMAND as the job's shell is to expand it, if there is such a script
    needs_python: bool = False  # the ranks' command is whatever ``python`` the setup lines leave on PATH
    requeue: Requeue = Requeue.RESUBMIT
    tells_people: bool = False  # a batch script that stops before anything of ours runs has them told
    refills: bool = False  # may one-node jobs be asked for besides


def comment(run: str, seq: int) -> str:
    """By which a job is known for job ``seq`` of this run, whoever submitted it."""
    return f"gr:{run}:{seq}"


_REFILL = re.compile(r"gr:(?P<run>.+):(?P<seq>[0-9]+)\+(?P<number>[0-9]+)")


def refill_comment(run: str, seq: int, number: int) -> str:
    """By which a refill of job ``seq`` is known: no number comes twice in a run, whichever job it is for."""
    return f"{comment(run, seq)}+{number}"


def refill_of(found: str) -> tuple[str, int] | None:
    """The run and the number of a refill, from its comment; None if it is none."""
    match = _REFILL.fullmatch(found)
    return (match["run"], int(match["number"])) if match else None


def refill_submission(submission: Submission, left_s: float | None = None) -> Submission:
    """What is asked of Slurm for one node more: a job of another name, so that nobody takes it for a job of the run.

    Nodes that the user named are in the run's own job. ``left_s``: until that job's time limit, after which nobody
    needs the node; Slurm finds a place for a short job sooner. None: not known.
    """
    minutes = "" if left_s is None else str(max(1, math.ceil(left_s / 60)))
    return msgspec.structs.replace(
        submission, job_name=refill_name(submission.job_name), nodes_count=1, nodelist="", dependency="",
        requeue=Requeue.RESUBMIT, time=minutes or submission.time,
    )  # fmt: skip


def refill_name(job_name: str) -> str:
    """The name of all refills of a run."""
    return f"{job_name}-refill"


def encode(submission: Submission) -> bytes:
    """As indented JSON, for people too."""
    return msgspec.json.format(msgspec.json.encode(submission), indent=2) + b"\n"


def decode(data: bytes) -> Submission:
    """Read a submission; ``SubmissionError`` with the reason if it is torn, misshapen or newer."""
    try:
        raw = msgspec.json.decode(data)
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            words = f"the submission has schema {schema}, newer than this gangrun's {SCHEMA}: upgrade gangrun"
            raise SubmissionError(words)
        return msgspec.convert(raw, Submission)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SubmissionError(f"submission.json is not a run's submission: {error}") from error
