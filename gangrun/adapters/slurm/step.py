"""The one step of a job: srun, which starts a warden on each node.

srun gives up on all nodes when it cannot reach one, so whoever launches must know which: that is read from its words.
What keeps a node's task from beginning comes through srun as well. Files that slurmstepd shall open are not asked for:
where it cannot, the task ends without a word.

``on_each`` starts one command on each of some nodes: inside an allocation as a step beside all others, outside as a
small job of its own on exactly these nodes, with a time limit. srun gives up on all nodes when it cannot reach one:
that one is left out, and the others are asked again.
"""

from __future__ import annotations

import math
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gangrun.adapters.slurm.commands import NOT_FOUND, Answer, ToolProcess, Tools
from gangrun.adapters.slurm.scheduler import UNHEARD
from gangrun.core.nodeset import NodesetError, fold, natural_sort, unfold

# What srun takes from its surroundings and would bend our step: a user's habits, or the shape of the batch script's.
BENDS = (
    "SRUN_", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE",
    "SLURM_EXCLUSIVE", "SLURM_OVERLAP", "SLURM_EXACT", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_NO_KILL",
    "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE", "SLURM_OPEN_MODE", "SLURM_LABELIO", "SLURM_THREADS",
    "SLURM_MULTI_PROG", "SLURM_PROLOG", "SLURM_EPILOG", "SLURM_TASK_PROLOG", "SLURM_TASK_EPILOG", "SLURM_DEBUG",
)  # fmt: skip
_ERROR = re.compile(r"^srun: error: (?P<nodes>[^\s:]+): tasks? [^:]+: (?P<how>.+)$")
_UNREACHED = re.compile(r"^srun: error: Task launch for \S+ failed on node (?P<nodes>[^\s:]+): (?P<how>.+)$")
_QUIET = re.compile(r"^srun: (launch/slurm:|Job step|Force Terminated|Terminating|error: Timed out waiting)")
_TASK = re.compile(r"^ *(?P<task>\d+): ?(?P<said>.*)$")
LEAVES_WITHIN_S = 10.0
ASKED_FOR_S = 5.0
NAME = "gangrun"  # of the step, as squeue --steps shows it
KEPT_LINES_MAX = 200
KEPT_OF_TASK_COUNT = 2


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the step is asked to be."""

    nodes: tuple[str, ...]
    cpus_per_task: int | None
    extra: tuple[str, ...] = ()  # srun's own options, from the user


def argv(shape: StepShape, command: Sequence[str]) -> list[str]:
    """The command line. Nothing but its own end may end it: not a task's exit code, not a node that is gone."""
    count = len(shape.nodes)
    return [
        "srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={fold(shape.nodes)}",
        "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap", "--input=none", "--cpu-bind=none",
        f"--job-name={NAME}", "--label",
        *([f"--cpus-per-task={shape.cpus_per_task}"] if shape.cpus_per_task else []),
        *shape.extra,
        *command,
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Left:
    """A node whose warden is no longer, or never was: in srun's words. ``unreached``: nothing was started anywhere."""

    node: str
    how: str
    unreached: bool


def left_of(line: str) -> tuple[Left, ...]:
    """What one line of srun tells of nodes; nothing for any other line."""
    for pattern, unreached in ((_UNREACHED, True), (_ERROR, False)):
        match = pattern.match(line)
        if match is not None:
            try:
                nodes = unfold(match["nodes"])
            except NodesetError:
                return ()
            return tuple(Left(node, match["how"].strip(), unreached) for node in nodes)
    return ()


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """For srun: the job's own variables, without what would give the step another shape."""
    return {name: value for name, value in variables.items() if not name.startswith(BENDS)}


@dataclass(slots=True)
class Step:
    """One srun. ``hear`` is called from a thread for each line that it says, ``hear_task`` for each that a task says:
    is it the task's own word, or for somebody else?
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    job: str
    tools: Tools
    hear: Callable[[str], None] = lambda line: None
    hear_task: Callable[[str], bool] = lambda line: True
    left: list[Left] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # srun's own
    _said: dict[int, deque[str]] = field(default_factory=dict)
    _child: ToolProcess | None = None
    _pump: threading.Thread | None = None

    def start(self) -> None:
        """``OSError`` where there is no srun."""
        self._child = ToolProcess(self.argv, environment_of(self.environment))
        self._pump = threading.Thread(target=self._read, args=(self._child,), name="srun", daemon=True)
        self._pump.start()

    def _read(self, child: ToolProcess) -> None:
        for line in child.lines():
            task = _TASK.match(line)
            if task is not None:
                if task["said"].strip() and self.hear_task(task["said"]):
                    kept = self._said.setdefault(int(task["task"]), deque(maxlen=KEPT_OF_TASK_COUNT))
                    kept.append(task["said"].strip())
                continue
            self.left.extend(left_of(line))
            if not _QUIET.match(line) and len(self.words) < KEPT_LINES_MAX:
                self.words.append(line)
            self.hear(line)

    def last_words(self, task: int) -> str:
        """What a task said last through srun, in one line. Tasks are numbered in the order of the nodes."""
        return "; ".join([*self._said.get(task, ())])

    @property
    def ended(self) -> int | None:
        """Its exit code, once all that it said is read; None while it lives."""
        child = self._child
        if child is None or child.poll() is None:
            return None
        if self._pump is not None:
            self._pump.join(LEAVES_WITHIN_S)
        return child.poll()

    def cancel(self, signal_name: str = "") -> None:
        """Slurm sends this to all that the step has, on every node; without a name it ends it: TERM, KillWait, KILL."""
        shown = self.tools.run(["squeue", "--steps", "--noheader", f"--jobs={self.job}", "--format=%i|%j"], ASKED_FOR_S)
        rows = (line.strip().split("|", 1) for line in shown.out.splitlines())
        for step in (row[0] for row in rows if len(row) == 2 and row[1] == NAME):
            self.tools.run(["scancel", *([f"--signal={signal_name}"] if signal_name else []), step], ASKED_FOR_S)

    def kill(self) -> None:
        """Only srun: the wardens live on, until the job ends or their leases do."""
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)


ALL_NAMES = ("sinfo", "--noheader", "--Node", "--format=%N")
ASKED_WITHIN_S = 10.0
QUEUES_FOR_S = 60.0  # a job of its own gets its nodes within so long, or not at all
STARTS_WITHIN_S = 30.0
TRIES_MAX = 3
JOB_NAME = "gangrun-health"
PIECE_BYTES = 1024  # srun breaks longer lines into such pieces, each with its label
_LABELLED = re.compile(r"^ *(\d+): ?(.*)$")
_HEADS = re.compile(r"^srun: (error: )?")


class Unasked(Exception):
    """Nobody was asked, in Slurm's words."""


@dataclass(frozen=True, slots=True)
class Where:
    """Nodes, and under which roof: the job that holds them, or what a job of its own is asked for."""

    nodes: tuple[str, ...]
    job: str = ""
    options: tuple[str, ...] = ()  # of srun, for a job of its own: a partition, an account


@dataclass(frozen=True, slots=True)
class Heard:
    """Each line that came from any node (which one, the command must say itself), and why nodes were not heard."""

    lines: tuple[str, ...]
    silent: dict[str, str]
    otherwise: str  # why a node that is in neither was not heard


def once_argv(where: Where, command: Sequence[str], within_s: float) -> list[str]:
    """The command line of srun; tasks are numbered in the order of the nodes."""
    count = len(where.nodes)
    roof = [f"--jobid={where.job}", "--overlap"] if where.job else [f"--immediate={QUEUES_FOR_S:.0f}", *where.options]
    return [
        "srun", *roof, f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1",
        f"--nodelist={fold(where.nodes)}", f"--job-name={JOB_NAME}", f"--time={math.ceil(within_s / 60) + 1}",
        "--kill-on-bad-exit=0", "--wait=0",
        "--no-kill", "--input=none", "--cpu-bind=none", "--label", *command,
    ]  # fmt: skip


def on_each(tools: Tools, where: Where, command: Sequence[str], within_s: float) -> Heard:
    """Ask all; ``Unasked`` where Slurm let nothing begin."""
    silent: dict[str, str] = {}
    nodes = tuple(natural_sort(where.nodes))
    otherwise = "nothing was started there"
    for _ in range(TRIES_MAX):
        waits_s = within_s + STARTS_WITHIN_S + (0.0 if where.job else QUEUES_FOR_S)
        answer = tools.run(once_argv(Where(nodes, where.job, where.options), command, within_s), waits_s)
        lines = lines_of(answer.out)
        left = [one for line in answer.err.splitlines() for one in left_of(line)]
        unreached = {one.node: f"Slurm cannot start anything there: {one.how}" for one in left if one.unreached}
        silent |= unreached
        if lines or not unreached:
            if not lines and not left:
                raise Unasked(_words(answer))
            ended = {one.node: f"the command there: {one.how}" for one in left if not one.unreached}
            late = f"no answer within {waits_s:g} s" if answer.timed_out else "it said nothing"
            return Heard(lines, {**ended, **silent}, late)
        nodes = tuple(node for node in nodes if node not in unreached)
        if not nodes:
            break
    return Heard((), silent, otherwise)


def lines_of(out: str) -> tuple[str, ...]:
    """What tasks wrote, line by line; pieces of one line are put together, whatever came from others in between."""
    lines: list[str] = []
    begun: dict[str, str] = {}
    for raw in out.split("\n"):
        match = _LABELLED.match(raw)
        if match is None:
            continue
        task, piece = match.groups()
        begun[task] = begun.get(task, "") + piece
        if len(piece.encode("utf-8", "replace")) < PIECE_BYTES:
            lines.append(begun.pop(task))
    return (*lines, *begun.values())


def _words(answer: Answer) -> str:
    if answer.code == NOT_FOUND:
        return answer.words
    told = [_HEADS.sub("", line) for line in answer.err.splitlines() if line.startswith("srun: ")]
    told = [line for line in told if not line.startswith(("Job step", "Force Terminated"))]
    return "; ".join(dict.fromkeys(told)) or answer.words


def known_nodes(tools: Tools) -> tuple[str, ...]:
    """Every node that Slurm has; ``Unasked`` where it cannot be asked."""
    answer = tools.run(ALL_NAMES, ASKED_WITHIN_S)
    if answer.code != 0:
        silent = answer.timed_out or any(sign in answer.words.lower() for sign in UNHEARD)
        raise Unasked(f"Slurm does not answer: {answer.words}" if silent else answer.words)
    return tuple(dict.fromkeys(answer.out.split()))


def nodes_of_job(tools: Tools, job: str) -> tuple[str, ...]:
    """The nodes that a job holds; ``Unasked`` where Slurm does not say."""
    answer = tools.run(("squeue", "--noheader", f"--jobs={job}", "--format=%N"), ASKED_WITHIN_S)
    if answer.code != 0:
        raise Unasked(answer.words)
    try:
        return unfold(answer.out.strip()) if answer.out.strip() else ()
    except NodesetError as error:
        raise Unasked(str(error)) from error
