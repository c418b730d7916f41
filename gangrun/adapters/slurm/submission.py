"""What a batch script holds, and what sbatch's answer means; ``launch.executor`` puts both together.

submitit writes the script. Overridden are its ways that would hurt a run: --signal (kills ranks), --wckey, a time limit
of five minutes, file names made after sbatch returned, setup lines whose failure nobody notices, and sbatch without a
deadline in whatever environment the caller has: ``commands`` starts it.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gangrun.adapters.slurm.commands import NOT_FOUND, Answer
from gangrun.core.nodeset import NodesetError, fold, unfold
from gangrun.wire.submission import Requeue, Submission, comment, refill_comment

SENT_WITHIN_S = 60.0
LINE_MAX_BYTES = 8000  # of an #SBATCH line; sbatch copies its words into a buffer of 8 KiB
HARMLESS_SIGNAL = "B:URG@60"  # to the batch shell alone, which ignores it: submitit would ask for one that kills ranks
FIRST_JOB_ONLY = frozenset({"begin", "hold"})  # a successor that waits for tomorrow, or for a person, is no successor
EXIT_SETUP = 3
STOPPED_WITHIN_S = 40  # to tell people

# sbatch had sent the request when it gave up: the job may exist. "connect failure" is not among them.
_HALFWAY = (
    "socket timed out", "zero bytes were transmitted", "send failure", "receive failure", "shutdown failure",
    "unexpected message", "header lengths", "insane message length", "message receive", "connection reset",
    "connection timed out", "broken pipe",
)  # fmt: skip
_PREFIX = re.compile(r"^(?:sbatch:\s*)?(?:(?:error|fatal|info):\s*)*", re.IGNORECASE)
_SUBMITTED = re.compile(r"^Submitted batch job ([0-9]+)", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ANY_JOB = "\0"  # stands for the job's number; no path holds it


class Unfit(ValueError):
    """A request that no batch script can carry; the message says which part, and why."""


class SbatchRefused(Exception):
    """sbatch said no, in these words: no job exists."""


class NoSbatch(SbatchRefused):
    """There is no sbatch on this host."""


class Unknown(Exception):
    """sbatch was cut short or spoke in riddles: the job may exist. Look for its comment before asking again."""


class Places(Protocol):
    """What of a run directory a batch script needs (``RunPaths`` has it)."""

    @property
    def run(self) -> str:
        """The run id."""

    @property
    def batch_scripts(self) -> Path:
        """Folder of the scripts as sent."""

    def job_log(self, job: str) -> Path:
        """What a job's batch script says."""

    def setup_failed(self, seq: int) -> Path:
        """Where a script that stops early says why."""

    def refill_failed(self, number: int) -> Path:
        """The same of a refill's script."""


def options(
    submission: Submission, places: Places, seq: int, *,
    exclude: Sequence[str] = (), dependency: str = "", when_stopped: Sequence[str] = (), refill: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """What submitit's executor is told for the script of job ``seq``; ``Unfit`` where no script can hold it.

    ``when_stopped``: the command that is run if the script stops early. ``refill``: it is for that one instead, and
    ``submission`` is a ``refill_submission``.
    """
    asked = _asked(submission, seq if not refill else seq + 1, exclude, dependency)  # as what is not the first job
    for key, value in {**asked, "job-name": submission.job_name, "chdir": submission.working_directory}.items():
        _fit(key, value)
    return {
        "job_name": _word(submission.job_name),
        "nodes": submission.nodes_count,
        "ntasks_per_node": 1,
        "comment": refill_comment(places.run, seq, refill) if refill else comment(places.run, seq),
        "time": None,
        "wckey": None,
        "use_srun": False,
        "stderr_to_stdout": True,
        "setup": _setup(submission, places.refill_failed(refill) if refill else places.setup_failed(seq), when_stopped),
        "additional_parameters": {
            **{key: True if value is None else _word(value) for key, value in asked.items()},
            "signal": HARMLESS_SIGNAL,
            "output": _output(places),
            "chdir": _word(submission.working_directory),
            "no-kill": True,
            "requeue" if submission.requeue is Requeue.SAME_JOB else "no-requeue": True,
        },
    }


def last_lines(submission: Submission, command: Sequence[str]) -> str:
    """The script becomes ``command``. submitit's mark is taken away: a script that uses submitit would heed it."""
    line = f' --directory "$PWD" -- {submission.line}' if submission.line else ""
    return f"unset SUBMITIT_EXECUTOR\nexec {shlex.join(command)}{line}"


def job_of(answer: Answer) -> str:
    """The job id that sbatch tells. ``SbatchRefused``: no job exists; ``Unknown``: one may."""
    found = _SUBMITTED.search(answer.out)
    if found is not None:  # even if it was cut short after that
        return found.group(1)
    words = words_of(answer)
    if answer.code == NOT_FOUND:
        raise NoSbatch(words)
    halfway = any(sign in words.lower() for sign in _HALFWAY)
    if answer.timed_out or answer.code <= 0 or halfway:
        raise Unknown(words)
    raise SbatchRefused(words)


def words_of(answer: Answer) -> str:
    """What sbatch said, without its prefixes, in one line."""
    said = answer.err.strip() or answer.out.strip()
    lines = (_PREFIX.sub("", line.strip()) for line in said.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line)) or f"exit code {answer.code}"


def _without(nodelist: str, exclude: Sequence[str]) -> str:
    """The user's nodes as far as they are to be had: Slurm refuses a job that must have a node and must not."""
    try:
        return fold(node for node in unfold(nodelist) if node not in exclude) if exclude else nodelist
    except NodesetError:
        return nodelist  # a file's name, say


def _asked(submission: Submission, seq: int, exclude: Sequence[str], dependency: str) -> dict[str, str | None]:
    """Options by Slurm's names; None is a flag without value. What gangrun itself must set comes later."""
    texts = {
        "partition": submission.partition,
        "account": submission.account,
        "qos": submission.qos,
        "time": submission.time,
        "gpus-per-node": submission.gpus_per_node,
        "gres": submission.gres,
        "cpus-per-task": submission.cpus_per_task,
        "mem": submission.mem,
        "constraint": submission.constraint,
        "reservation": submission.reservation,
        "nodelist": _without(submission.nodelist, exclude),
        "exclude": ",".join(part for part in (submission.exclude, fold(exclude)) if part),
        "dependency": dependency or (submission.dependency if seq == 0 else ""),
    }
    asked: dict[str, str | None] = {key: value for key, value in texts.items() if value}
    if submission.exclusive:
        asked["exclusive"] = None
    passed = {key: value for key, value in submission.sbatch if seq == 0 or key not in FIRST_JOB_ONLY}
    return {**asked, **passed}


def _fit(what: str, value: str | None) -> None:
    if value is not None and _CONTROL.search(value):
        raise Unfit(f"{what} {value!r} holds a line break or another control character, which no #SBATCH line can")


def checked(text: str) -> str:
    """The script, unless sbatch would refuse it, or read it otherwise than we wrote it: ``Unfit``."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Unfit(f"{error.object[error.start - 20 : error.end]!r} is not valid UTF-8") from error
    if "\0" in text or "\r\n" in text:
        raise Unfit("a NUL or a DOS line break in the setup lines or the command: sbatch refuses such scripts")
    for line in text.splitlines():
        if line.startswith("#SBATCH") and len(line.encode()) > LINE_MAX_BYTES:
            raise Unfit(f"{line[8:40]}... is longer than the {LINE_MAX_BYTES} bytes that sbatch reads of an option")
    return text


def _word(value: str) -> str:
    """For sbatch a backslash is an escape even within quotes, unlike for the shell."""
    return value.replace("\\", "\\\\")


def _output(places: Places) -> str:
    """Slurm puts the job's number for %j, so each other % is doubled; a backslash would switch that off."""
    text = str(places.job_log(_ANY_JOB))
    _fit("run directory", text.replace(_ANY_JOB, ""))
    if "\\" in text:
        where = str(places.job_log("").parent)
        raise Unfit(f"the run directory's path {where!r} holds a backslash, which Slurm takes for a sign of its own")
    return text.replace("%", "%%").replace(_ANY_JOB, "%j")


def _setup(submission: Submission, note: Path, when_stopped: Sequence[str]) -> list[str]:
    """Shell lines that run before anything of ours, each checked; why they stopped is left in the run directory."""
    lines = [
        f"gangrun_note={shlex.quote(str(note))}",
        "gangrun_stop() {",
        "  trap - EXIT",
        "  printf 'gangrun: %s\\n' \"$1\" >&2",
        '  printf \'%s\\n\' "$1" >"$gangrun_note"',
        *(
            [f"  timeout {STOPPED_WITHIN_S} {shlex.join(when_stopped)} </dev/null >/dev/null 2>&1"]
            if when_stopped
            else []
        ),
        f"  exit {EXIT_SETUP}",
        "}",
        'rm -f "$gangrun_note"',
    ]
    if submission.setup:
        lines += [
            "gangrun_setup=(",
            *(f"  {shlex.quote(line)}" for line in submission.setup),
            ")",
            "trap 'gangrun_stop \"the setup line [$gangrun_line] ended the job (exit code $?)\"' EXIT",
            'for gangrun_line in "${gangrun_setup[@]}"; do',
            '  eval "$gangrun_line"',
            "  gangrun_code=$?",
            '  [ "$gangrun_code" -eq 0 ] || gangrun_stop "the setup line [$gangrun_line] failed (exit code $gangrun_code)"',  # noqa: E501 - as in the script
            "done",
            "trap - EXIT",
        ]
    if submission.script:
        lines += [
            "trap 'gangrun_stop \"the batch script ended before its gangrun run line (exit code $?)\"' EXIT",
            *submission.script.split("\n"),
            "trap - EXIT",
        ]
    lines += [
        f"gangrun_python={shlex.quote(submission.python)}",
        '[ -x "$gangrun_python" ] || gangrun_stop "there is no $gangrun_python on ${SLURMD_NODENAME:-$HOSTNAME}: it runs gangrun"',  # noqa: E501 - as in the script
    ]
    if submission.needs_python:
        lines.append("command -v python >/dev/null || gangrun_stop 'the setup lines leave no python on PATH'")
    return lines


def written(folder: Path, name: str, text: str) -> Path:
    """Whole or not at all, as two may write the same one."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    temporary = folder / f".{name}.{os.getpid()}.{threading.get_ident()}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
