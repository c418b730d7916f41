"""``gangrun health --nodes`` and ``gangrun health RUN``: the same checks on other nodes, through srun.

What comes back is JSON from each node, read with care. A run's journal has what was found at each of its nodes and
which are excluded; a run that holds nodes in Slurm has them asked too. ``--schedule`` asks nobody: it gives the lines
with which cron or Slurm asks every day.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.step import Heard, Unasked, Where, known_nodes, nodes_of_job, on_each
from gangrun.config import environment
from gangrun.core.events import FindingRaised
from gangrun.core.nodes.standing import active
from gangrun.core.nodeset import NodesetError, fold, natural_sort, unfold
from gangrun.display.health_page import VERDICTS, NodeReport
from gangrun.entry.wiring import own_command
from gangrun.errors import SCHEDULER, USAGE, UserError, did_you_mean
from gangrun.runs.jobs import scheduler_of
from gangrun.runs.locate import find
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.wire.kinds import event_of
from gangrun.wire.record import Record, RecordError

if TYPE_CHECKING:
    from gangrun.launch.health_here import HealthQuery

PASSIVE_WITHIN_S = 90.0
KEPT_FOR_S = 24 * 3600.0  # an older finding says little of today
CRON_LINE_MAX_BYTES = 998  # longer ones are refused by cron
CRON_HOUR = 3
CRON_PATH = "/usr/bin:/bin"
CRON_LACKS = (  # what this shell has and cron has not: where gangrun's and Slurm's files lie, and which python trains
    "SLURM_CONF", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH",
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
)  # fmt: skip
SCRONTAB_LIMIT = "00:30:00"
SCRONTAB_NODES_COUNT = 2  # if none are named: Slurm's choice, so that over the days many nodes are tested


def where_to_ask(text: str | None, variables: Mapping[str, str], tools: Tools, options: tuple[str, ...] = ()) -> Where:
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
        hint = "check only this node: gangrun health without --nodes"
        raise UserError("slurm", f"Slurm cannot be asked: {error}", hint, SCHEDULER) from error
    strange = [node for node in nodes if node not in there]
    if strange:
        whose = f"job {job} has no" if job else "Slurm has no"
        hint = did_you_mean(strange[0], there) or (f"it has {fold(there)}" if there else "see sinfo")
        raise UserError("no such node", f"{whose} node {fold(strange)}", hint, USAGE)
    return Where(nodes or there, job, options)


def ask(where: Where, here: HealthQuery, tools: Tools) -> list[NodeReport]:
    """Each node's verdicts."""
    within_s = PASSIVE_WITHIN_S + here.over + (600.0 if here.deep else 60.0 if here.active else 0.0)
    command = own_command("gangrun.cli.main", ["health", "--json", *words_of(here)], sys.executable)
    try:
        heard = on_each(tools, where, command, within_s)
    except Unasked as error:
        raise UserError("slurm", f"no node was asked: {error}", _busy_hint(where), SCHEDULER) from error
    return said_by(heard, where.nodes)


def _busy_hint(where: Where) -> str:
    if where.job:
        return f"squeue --jobs={where.job} shows whether the job still has its nodes"
    return "nodes that a job holds are asked from inside that job, or by the name of its run: gangrun health RUN"


def words_of(here: HealthQuery) -> list[str]:
    """The options of the command line there."""
    words = [*(["--gpus", str(here.gpus)] if here.gpus is not None else []), *(["--active"] if here.active else [])]
    words += [f"--ib={one}" for one in here.devices] + [f"--path={one}" for one in here.paths]
    words += [f"--peer={one}" for one in here.peers] + (["--deep"] if here.deep else [])
    return [*words, *([f"--over={here.over:g}"] if here.over else [])]


def said_by(heard: Heard, nodes: Sequence[str]) -> list[NodeReport]:
    """What each of these nodes said, or why it said nothing."""
    found = {said.node: said for line in heard.lines if (said := _parsed(line)) is not None}
    return [found.get(node) or NodeReport(node, silent=heard.silent.get(node, heard.otherwise)) for node in nodes]


def _parsed(line: str) -> NodeReport | None:
    try:
        plain = json.loads(line)
    except ValueError:
        return None  # a module's greeting, a warning
    if not isinstance(plain, dict) or not isinstance(plain.get("node"), str):
        return None
    if isinstance(plain.get("error"), dict):
        return NodeReport(plain["node"], silent=str(plain["error"].get("message")))
    checks = [one for one in _list(plain.get("checks")) if isinstance(one, dict) and one.get("verdict") in VERDICTS]
    return NodeReport(
        plain["node"], tuple(_findings(checks)), tuple(str(one["verdict"]) for one in checks), plain=plain
    )


def _findings(checks: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str, str]]:
    for one in checks:
        if one["verdict"] in ("warn", "fail"):
            yield str(one["verdict"]), str(one.get("check")), str(one.get("words"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# ---- the nodes of a run ----------------------------------------------------------------------------------------------


def look_at_run(token: str, here: HealthQuery, tools: Tools, now: float) -> tuple[str, list[NodeReport], str]:
    """The run's name, its nodes, and a word about what could not be asked."""
    reading = read(find(token), timeline=True, scheduler=True)
    nodes, note = recorded(reading, now), ""
    held = [job for job in (reading.queue.busy if reading.queue else ()) if job.nodes]
    if not held:
        note = "" if reading.ended else "no node of this run could be asked now: shown is what the run's journal holds"
        return (
            reading.spec.run,
            nodes,
            "this run has ended: shown is what the run's journal holds" if reading.ended else note,
        )
    job = held[-1]
    try:
        said = {one.node: one for one in ask(Where(job.nodes, job.job), here, tools)}
    except UserError as error:
        return reading.spec.run, nodes, f"{error.message}: shown is what the run's journal holds"
    return reading.spec.run, merged(nodes, said.values()), note


def recorded(reading: RunSnapshot, now: float) -> list[NodeReport]:
    """Every node that the run knows, with what was found there."""
    wrong = dict(_found(reading.records, now - KEPT_FOR_S))
    state = reading.state
    names = {*reading.spec.nodes, *wrong}
    excluded: dict[str, str] = {}
    if state is not None:
        out = active(state.health.excluded, state.updated_at)
        names |= {*state.roster.nodes, *state.roster.expected, *out}
        excluded = {node: why.reason for node, why in out.items()}
    nodes = []
    for name in natural_sort(names):
        known = state.roster.nodes.get(name) if state is not None else None
        checked = ("ok",) if known is not None and known.checked else ()
        silent = "" if checked or name in wrong or name in excluded else "the journal holds no check of it"
        nodes.append(NodeReport(name, wrong.get(name, ()), checked, silent, excluded.get(name, "")))
    return nodes


def _found(records: Iterable[Record], since: float) -> Iterable[tuple[str, tuple[tuple[str, str, str], ...]]]:
    """Of each node the newest finding of each check."""
    found: dict[str, dict[str, tuple[str, str, str]]] = {}
    for record in records:
        if record.kind != FindingRaised.__name__ or record.wall < since:
            continue
        try:
            event = event_of(record.kind, record.event)
        except RecordError:
            continue
        if isinstance(event, FindingRaised):
            one = event.finding
            found.setdefault(one.node, {})[one.check] = ("fail" if one.fatal else "warn", one.check, one.sentence)
    return ((node, tuple(checks.values())) for node, checks in found.items())


def merged(nodes: list[NodeReport], said: Iterable[NodeReport]) -> list[NodeReport]:
    """What nodes say now beside what was found: a check that speaks now has the word."""
    known = {one.node: one for one in nodes}
    for one in said:
        old = known.get(one.node, NodeReport(one.node))
        if one.silent:
            known[one.node] = replace(old, silent=one.silent)
            continue
        now = {check for _, check, _ in one.wrong}
        earlier = tuple((v, c, f"earlier: {words}") for v, c, words in old.wrong if c not in now)
        known[one.node] = replace(one, wrong=one.wrong + earlier, excluded=old.excluded)
    return [known[name] for name in natural_sort(known)]


# ---- every day -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DailyTest:
    """What to ask every day, and when: ``at`` is HH:MM, or "" for a minute of this user's own after three."""

    at: str
    nodes: str | None
    partition: str
    account: str
    here: HealthQuery


def scheduled(test: DailyTest, variables: Mapping[str, str], tools: Tools) -> tuple[list[str], str]:
    """Lines for crontab and, if this cluster takes them, for scrontab; and why not for both, or ""."""
    minute, hour = _time_of(test.at)
    path = variables.get("PATH")
    nodes = where_to_ask(test.nodes, {}, tools).nodes if test.nodes is not None else ()
    has_crontab = shutil.which("crontab", path=path) is not None
    has_scrontab = shutil.which("scrontab", path=path) is not None
    takes_scrontab = has_scrontab and scheduler_of(tools).controller().takes_scrontab
    without = "scrontab is not enabled on this cluster (ScronParameters=enable in slurm.conf)"
    if not has_crontab and not takes_scrontab:
        words = "this host has no crontab" + (f", and {without}" if has_scrontab else " and no scrontab")
        daily = shlex.join(["gangrun", "health", "--quiet", *words_of(test.here), *_there(test, nodes)])
        hint = "log in to a host that has one of them, and call gangrun health --schedule there; or let a systemd timer"
        hint += f" call this every day: {daily}"
        raise UserError("schedule", f"{words}: nothing here would start a daily test", hint)
    when, prefix, lines = f"{minute} {hour} * * *", _surroundings(variables), list[str]()
    if has_crontab:
        crontab = f"{when} {_each_day(_tests(test, nodes, prefix))}".replace("%", "\\%")
        _check_line(crontab)
        idle = "" if nodes else ", at a time at which nothing trains here"
        lines += [f"# crontab -e, on this host{idle}:", crontab]
    if takes_scrontab:
        command = _each_day(_tests_of_job(test, prefix, is_alone=len(nodes) == 1))
        _check_line(command)
        lines += ["# scrontab -e, on any host of this cluster:", *_options_of_job(test, nodes, variables)]
        lines.append(f"{when} {command}")
    return lines, without if has_scrontab and not takes_scrontab else ""


def _time_of(at: str) -> tuple[int, int]:
    """(minute, hour)."""
    if not at:
        return zlib.crc32(environment.user_name().encode()) % 60, CRON_HOUR
    found = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", at)
    if found is None:
        raise UserError("usage", f"--schedule: {at!r} is no time of day", "write it as HH:MM: --schedule 03:30")
    return int(found[2]), int(found[1])


def _surroundings(variables: Mapping[str, str]) -> list[str]:
    """What makes cron's shell find what this one finds."""
    kept = [f"{name}={variables[name]}" for name in CRON_LACKS if variables.get(name)]
    srun = shutil.which("srun", path=variables.get("PATH"))
    folder = str(Path(srun).parent) if srun is not None else ""
    path = [f"PATH={folder}:{CRON_PATH}"] if folder and folder not in CRON_PATH.split(":") else []
    return ["env", *kept, *path] if kept or path else []


def _tests(test: DailyTest, nodes: Sequence[str], prefix: Sequence[str]) -> list[str]:
    """The device tests of this host or of these nodes, and of nodes also the test in pairs."""
    found = [_command(prefix, [*words_of(test.here), *_there(test, nodes)])]
    return found + ([_command(prefix, ["--network", *_there(test, nodes)])] if len(nodes) > 1 else [])


def _there(test: DailyTest, nodes: Sequence[str]) -> list[str]:
    queue = [*(["-p", test.partition] if test.partition else []), *(["-A", test.account] if test.account else [])]
    return ["--nodes", fold(nodes), *queue] if nodes else []


def _tests_of_job(test: DailyTest, prefix: Sequence[str], *, is_alone: bool) -> list[str]:
    """The same of whatever nodes the job has."""
    devices = _command(prefix, words_of(test.here)) + ' --nodes "$SLURM_JOB_NODELIST"'
    return [devices] if is_alone else [devices, _command(prefix, ["--network"])]


def _command(prefix: Sequence[str], words: Sequence[str]) -> str:
    return shlex.join([*prefix, *own_command("gangrun.cli.main", ["health", "--quiet", *words], sys.executable)])


def _each_day(tests: Sequence[str]) -> str:
    """One line of sh, which says nothing if all is well: what it says becomes a mail, or the job's output."""
    first, *more = [f"{one} 2>&1" for one in tests]
    both = "".join(f"; first=$?; {one} && exit $first" for one in more)
    return f'out=$({first}{both}) || {{ echo "$out"; exit 1; }}'


def _options_of_job(test: DailyTest, nodes: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    options = {
        "job-name": "gangrun-health", "nodes": str(len(nodes) or SCRONTAB_NODES_COUNT), "nodelist": fold(nodes),
        "partition": test.partition, "account": test.account, "ntasks-per-node": "1", "time": SCRONTAB_LIMIT,
        "output": f"{variables.get('HOME', '').rstrip('/')}/gangrun-health.log", "open-mode": "append",
    }  # fmt: skip
    given = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
    return [f"#SCRON {option}" for option in (*given, "--exclusive", "--no-requeue")]


def _check_line(line: str) -> None:
    if "\n" in line:
        words = "a path or a variable of yours has a line break in it, which no line for cron can hold"
        raise UserError("schedule", words, "call gangrun by another path, or without that variable")
    if (size := len(line.encode("utf-8", "surrogateescape"))) > CRON_LINE_MAX_BYTES:
        words = f"the line would have {size} bytes, and cron takes {CRON_LINE_MAX_BYTES} at most"
        raise UserError("schedule", words, "name fewer nodes, or unset LD_LIBRARY_PATH if the tests work without it")
