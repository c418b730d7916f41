"""One command on each of some nodes, to its end, and what each said.

Inside an allocation it is a step beside all others; outside, a small job of its own on exactly these nodes, with a time
limit. srun gives up on all nodes when it cannot reach one: that one is left out, and the others are asked again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gangrun.adapters.slurm.commands import NOT_FOUND, Answer, Tools
from gangrun.adapters.slurm.scheduler import UNHEARD
from gangrun.adapters.slurm.step import left_of
from gangrun.core.nodeset import NodesetError, fold, natural_sort, unfold

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


def argv(where: Where, command: Sequence[str], within_s: float) -> list[str]:
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
        answer = tools.run(argv(Where(nodes, where.job, where.options), command, within_s), waits_s)
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
