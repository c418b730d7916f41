"""``gangrun health --network``: nodes in pairs, then in other pairs, so that a slow one can be named.

Here srun starts one process a node; that one meets its partners in ``pair_child``, a program with torch, one process a
meeting, killed at its deadline. ``core.nodes.meetings`` says who meets whom, and what follows.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.local.box import gpus_count
from gangrun.adapters.net.interface import unanswered
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.step import Heard, Unasked, Where, on_each
from gangrun.config import environment
from gangrun.core.nodes.meetings import Conclusion, Meeting, Pair, conclusion, confirming, rounds_of
from gangrun.display.health_page import NodeReport
from gangrun.entry.health_children import exchanged
from gangrun.entry.wiring import own_command
from gangrun.errors import SCHEDULER, UserError
from gangrun.supervisor.node_calls import FIRST_PORT, PORTS_COUNT
from gangrun.wire import job_variables

MEETS_WITHIN_S = 40.0  # one meeting, and python and torch begin in that time, too
STARTS_WITHIN_S = 15.0
ANSWERS_WITHIN_S = 5.0
SHARE = 0.5
ERROR_MAX_CHARS = 160
Rounds = Sequence[Sequence[Pair]]


def measured(where: Where, tools: Tools, within_s: float = MEETS_WITHIN_S) -> tuple[list[NodeReport], Conclusion]:
    """All rounds, and if somebody is suspected those that make sure."""
    rounds = rounds_of(where.nodes)
    first = _met(rounds, where, tools, within_s, 0) if rounds else []
    confirms = confirming(first, SHARE)
    again: list[Meeting] = []
    if confirms:
        nodes = tuple(node for node in where.nodes if any(node in pair for one in confirms for pair in one))
        again = _met(confirms, Where(nodes, where.job, where.options), tools, within_s, len(rounds))
    found = conclusion(first, SHARE, again)
    return _told(where.nodes, found), found


def _told(nodes: Sequence[str], found: Conclusion) -> list[NodeReport]:
    named = {one.node: one.sentence for one in found.named}
    return [
        NodeReport(node, (("fail", "network", named[node]),))
        if node in named
        else NodeReport(node, silent="all its pairs were bad, and with no good node it could be told apart")
        if node in found.doubtful
        else NodeReport(node, verdicts=("ok",))
        for node in nodes
    ]


def _met(rounds: Rounds, where: Where, tools: Tools, within_s: float, first: int) -> list[Meeting]:
    """What both sides of each pair say of it."""
    plan = json.dumps(
        {"rounds": [[list(pair) for pair in one] for one in rounds], "within_s": within_s, "first": first}
    )
    command = own_command("gangrun.launch.slurm_health_network", [plan], sys.executable)
    try:
        heard = on_each(tools, where, command, len(rounds) * within_s + STARTS_WITHIN_S)
    except Unasked as error:
        raise UserError("slurm", f"no node was asked: {error}", "see squeue and sinfo", SCHEDULER) from error
    return gathered(rounds, heard)


def gathered(rounds: Rounds, heard: Heard) -> list[Meeting]:
    """Each pair once: the lower of both speeds, or the first of both errors."""
    said: dict[tuple[int, Pair, str], dict[str, Any]] = {}
    for line in heard.lines:
        try:
            plain = json.loads(line)
            key = (int(plain["round"]), (str(plain["pair"][0]), str(plain["pair"][1])), str(plain["node"]))
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # a module's greeting
        said[key] = plain
    return [_meeting(number, pair, said, heard) for number, one in enumerate(rounds) for pair in one]


def _meeting(number: int, pair: Pair, said: dict[tuple[int, Pair, str], dict[str, Any]], heard: Heard) -> Meeting:
    speeds, latencies = [], []
    for node in pair:
        plain = said.get((number, pair, node), {})
        speed, latency = plain.get("bytes_per_s"), plain.get("latency_s")
        if not isinstance(speed, (int, float)) or not isinstance(latency, (int, float)) or not math.isfinite(speed):
            why = plain.get("error") or heard.silent.get(node) or heard.otherwise
            return Meeting(pair, error=f"failed ({str(why)[:ERROR_MAX_CHARS]})")
        speeds.append(float(speed))
        latencies.append(float(latency))
    return Meeting(pair, min(speeds), max(latencies))


# ---- on each node ----------------------------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    """One node's meetings, one after the other; a line for each."""
    plan, variables, clock = json.loads(words[0]), environment.all_variables(), SystemClock()
    node = job_variables.node_name(variables, "")
    job = variables.get("SLURM_JOB_ID", "0")
    began = clock.now()
    for number, pairs in enumerate(plan["rounds"]):
        pair = next((one for one in pairs if node in one), None)
        if pair is None:
            continue
        ends_at = began + (number + 1) * plan["within_s"]  # a partner whose earlier meeting hung comes later
        peer = pair[1 - pair.index(node)]
        port = FIRST_PORT + (int(job) * 31 + (plan["first"] + number) * 7) % PORTS_COUNT
        asked = {
            "rank": pair.index(node),
            "host": pair[0],
            "port": port,
            "within_s": max(1.0, ends_at - clock.now() - ANSWERS_WITHIN_S),
            "gpu": bool(gpus_count(variables)),
        }
        told: dict[str, Any] = {"error": unanswered(peer, port, ANSWERS_WITHIN_S)}
        if not told["error"]:
            within_s = max(1.0, ends_at - clock.now())
            told = exchanged(environment.python_of(variables), asked, within_s, variables, clock.now)
        sys.stdout.write(json.dumps({"round": number, "pair": pair, "node": node, **told}) + "\n")
        sys.stdout.flush()
    return 0
