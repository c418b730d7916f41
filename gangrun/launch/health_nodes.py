"""``gangrun health --nodes``: the same checks on other nodes, through srun.

What comes back is JSON from each node, read with care.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.step import Heard, Unasked, Where, known_nodes, nodes_of_job, on_each
from gangrun.core.nodeset import NodesetError, fold, unfold
from gangrun.display.health_fold import Said
from gangrun.entry.wiring import own_command
from gangrun.errors import SLURM, USAGE, UserError, did_you_mean

if TYPE_CHECKING:
    from gangrun.cli.health import Here

PASSIVE_WITHIN_S = 90.0
NODES_NAMED_COUNT = 5
WORDS = ("ok", "warn", "fail", "unknown")


@dataclass(frozen=True, slots=True)
class Queueing:
    """What a job of its own is asked for."""

    partition: str = ""
    account: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """For srun."""
        named = (("partition", self.partition), ("account", self.account))
        return tuple(f"--{name}={value}" for name, value in named if value)


def where_to_ask(text: str | None, variables: Mapping[str, str], tools: Tools, queueing: Queueing) -> Where:
    """The nodes that were named, or this job's; each is known to be one. Refused in words where none can be asked."""
    job = variables.get("SLURM_JOB_ID", "")
    if text is None and not job:
        raise UserError("usage", "which nodes? This is no Slurm job", "name them: --nodes n[1-4]")
    try:
        nodes = unfold(text) if text is not None else ()
    except NodesetError as error:
        raise UserError("usage", f"--nodes: {error}", "write names as Slurm does: n[1-4],n7") from error
    if not nodes and text is not None:
        raise UserError("usage", "--nodes names no node", "write names as Slurm does: n[1-4],n7")
    try:
        there = nodes_of_job(tools, job) if job else known_nodes(tools)
    except Unasked as error:
        hint = "--nodes asks other nodes through srun; without it this node is looked at"
        raise UserError("slurm", f"Slurm cannot be asked: {error}", hint, SLURM) from error
    strange = [node for node in nodes if node not in there]
    if strange:
        whose = f"job {job} has no" if job else "Slurm has no"
        hint = did_you_mean(strange[0], there) or (f"it has {fold(there)}" if there else "see sinfo")
        raise UserError("no such node", f"{whose} node {fold(strange)}", hint, USAGE)
    return Where(nodes or there, job, queueing.options)


def ask(where: Where, here: Here, tools: Tools) -> list[Said]:
    """Each node's verdicts."""
    within_s = PASSIVE_WITHIN_S + here.over + (600.0 if here.deep else 60.0 if here.active else 0.0)
    command = own_command("gangrun.cli.main", ["health", "--json", *words_of(here)], sys.executable)
    try:
        heard = on_each(tools, where, command, within_s)
    except Unasked as error:
        raise UserError("slurm", f"no node was asked: {error}", _busy_hint(where), SLURM) from error
    return said_by(heard, where.nodes)


def _busy_hint(where: Where) -> str:
    if where.job:
        return f"squeue --jobs={where.job} shows whether the job still has its nodes"
    return "nodes that a job holds are asked from inside that job, or by the name of its run: gangrun health RUN"


def words_of(here: Here) -> list[str]:
    """The options of the command line there."""
    words = [*(["--gpus", str(here.gpus)] if here.gpus is not None else []), *(["--active"] if here.active else [])]
    words += [f"--ib={one}" for one in here.devices] + [f"--path={one}" for one in here.paths]
    words += [f"--peer={one}" for one in here.peers] + (["--deep"] if here.deep else [])
    return [*words, *([f"--over={here.over:g}"] if here.over else [])]


def said_by(heard: Heard, nodes: Sequence[str]) -> list[Said]:
    """What each of these nodes said, or why it said nothing."""
    found = {said.node: said for line in heard.lines if (said := _parsed(line)) is not None}
    return [found.get(node) or Said(node, silent=heard.silent.get(node, heard.otherwise)) for node in nodes]


def _parsed(line: str) -> Said | None:
    try:
        plain = json.loads(line)
    except ValueError:
        return None  # a module's greeting, a warning
    if not isinstance(plain, dict) or not isinstance(plain.get("node"), str):
        return None
    if isinstance(plain.get("error"), dict):
        return Said(plain["node"], silent=str(plain["error"].get("message")))
    checks = [one for one in _list(plain.get("checks")) if isinstance(one, dict) and one.get("verdict") in WORDS]
    return Said(plain["node"], tuple(_findings(checks)), tuple(str(one["verdict"]) for one in checks), plain=plain)


def _findings(checks: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str, str]]:
    for one in checks:
        if one["verdict"] in ("warn", "fail"):
            yield str(one["verdict"]), str(one.get("check")), str(one.get("words"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
