"""``gangrun health``: what this node's checks read, and what it means (room: cli; reads, and writes one small file a
directory that is asked for). Nothing is repaired: that takes an administrator, and the sentence says which.

A check that could not look is unknown, and is no failure: a box without GPUs is as healthy as the rest of it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangrun.cli import environment
from gangrun.cli.errors import DONE, RUN_FAILED, UNKNOWN, UserError
from gangrun.cli.options import echo_json, json_option
from gangrun.cli.terminal import clean, styled, table, welcomes_color, width, wrapped

if TYPE_CHECKING:
    from gangrun.health.check import Facts, Finding, Verdict
    from gangrun.health.policy import HealthPolicy

SCHEMA = 1
STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim"}
WAIT_MAX_S = 600.0
LOST_AT_ONCE = 3


@click.command("health")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs that must be here (default: Slurm's word).")
@click.option("--ib", "devices", multiple=True, metavar="DEVICE", help="A network device the job uses, as mlx5_0.")
@click.option("--path", "paths", multiple=True, metavar="DIR", help="A directory to write to (default: here and tmp).")
@click.option("--peer", "peers", multiple=True, metavar="HOST", help="A name that must resolve.")
@click.option(
    "--over",
    type=click.FloatRange(0.0, WAIT_MAX_S),
    default=0.0,
    metavar="SECONDS",
    help="Look twice, this far apart: counters are judged by how they grow.",
)
@click.option("-a", "--all", "everything", is_flag=True, help="A row for each check that could not look, too.")
@click.option("-q", "--quiet", is_flag=True, help="Only what is wrong.")
@click.option("--fs-root", default="/", hidden=True, help="Where /sys and /proc are looked for.")
@json_option
def command(
    gpus: int | None,
    devices: tuple[str, ...],
    paths: tuple[str, ...],
    peers: tuple[str, ...],
    over: float,
    everything: bool,
    quiet: bool,
    fs_root: str,
    as_json: bool,
) -> int:
    """Whether this node can be trusted: GPUs, network ports, memory, clock, names, file systems.

    Exits 0 where nothing failed, 1 where something did, 3 where nothing at all could be measured. What is unknown is
    no failure.
    """
    from gangrun.adapters.clock import SystemClock
    from gangrun.health.catalogue import FAMILIES
    from gangrun.health.rounds import Rounds, Surroundings

    variables = environment.all_variables()
    policy = _policy(gpus, devices, variables)
    directories = tuple(dict.fromkeys(os.path.abspath(path) for path in paths or _usual()))
    around = Surroundings(Path(fs_root), _Asking(variables), directories, peers)
    rounds = Rounds(FAMILIES, around, policy, SystemClock())
    verdicts = rounds.look()
    if over > 0:
        threading.Event().wait(over)
        verdicts = rounds.look()
    if as_json:
        echo_json(as_plain(verdicts))
    else:
        shown = [one for one in verdicts if not quiet or one.severity.value in ("warn", "fail")]
        click.echo(
            "\n".join(page(shown, verdicts, width(), color=welcomes_color(variables), everything_told=everything))
        )
    return exit_code(verdicts)


def _policy(gpus: int | None, devices: tuple[str, ...], variables: Mapping[str, str]) -> HealthPolicy:
    from gangrun.health.policy import HealthPolicy

    if gpus is None:
        said = variables.get("SLURM_GPUS_ON_NODE", "")
        gpus = int(said) if said.isascii() and said.isdigit() and len(said) < 5 else None
    for device in devices:
        if not device or "/" in device:
            raise UserError("usage", f"--ib: {device!r} names no device", "as in /sys/class/infiniband: mlx5_0")
    return HealthPolicy(gpus_count=gpus, ib_devices=devices)


def _usual() -> tuple[str, ...]:
    try:
        here = os.getcwd()
    except OSError:
        return (tempfile.gettempdir(),)
    return (here, tempfile.gettempdir())


class _Asking:
    """``health.rounds.Probes``: children that answer in JSON, read with care."""

    def __init__(self, variables: dict[str, str]) -> None:
        from gangrun.adapters.local.probe_children import ProbeChildren

        package = str(Path(__file__).resolve().parents[2])
        inherited = variables.get("PYTHONPATH")
        found = {**variables, "PYTHONPATH": f"{package}{os.pathsep}{inherited}" if inherited else package}
        self._children = ProbeChildren((sys.executable, "-m", "gangrun.cli.health_probe"), found)

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> Facts:
        """One question, in a process of its own."""
        from gangrun.health.recorded import facts_from

        return facts_from(self._children.ask(kind, words, within_s))


def exit_code(verdicts: tuple[Verdict, ...]) -> int:
    """1: something failed; 3: nobody knows anything; else 0."""
    seen = {one.severity.value for one in verdicts}
    if "fail" in seen:
        return RUN_FAILED
    return DONE if seen & {"ok", "warn"} else UNKNOWN


def page(
    shown: list[Verdict], verdicts: tuple[Verdict, ...], columns: int, *, color: bool, everything_told: bool = False
) -> list[str]:
    """The table, the sentences of what is wrong, why the rest is unknown, and one line of sum."""
    lost = _lost_at_once(shown)
    rows = [
        (one.severity.value, one.check, clean(one.shown), clean(one.limit))
        for one in shown
        if everything_told or one.words not in lost
    ]
    lines = table(("", "check", "reading", "limit"), rows, columns, "") if rows else []
    lines = [_coloured(line, color) for line in lines]
    for one in shown:
        for finding in one.findings:
            if finding.severity.value in ("warn", "fail"):
                lines += ["", *_told(finding, columns, color)]
    reasons: dict[str, list[str]] = {}
    for one in shown:
        if one.severity.value == "unknown":
            reasons.setdefault(one.words, []).append(one.check)
    if reasons:
        lines.append("")
    for why, checks in reasons.items():
        names = f"{len(checks)} checks ({checks[0]} to {checks[-1]})" if why in lost else ", ".join(checks)
        lines += wrapped(clean(f"unknown: {names}: {why}"), columns, "", "  ")
    return [*lines, *([""] if lines else []), _sum(verdicts)]


def _lost_at_once(shown: list[Verdict]) -> set[str]:
    """Reasons for which so many checks are unknown that one line for all says more than a row for each."""
    reasons = [one.words for one in shown if one.severity.value == "unknown"]
    return {why for why in reasons if reasons.count(why) > LOST_AT_ONCE}


def _coloured(line: str, color: bool) -> str:
    word = line.split(" ", 1)[0]
    return styled(word, STYLES[word], color) + line[len(word) :] if word in STYLES else line


def _told(finding: Finding, columns: int, color: bool) -> list[str]:
    word = finding.severity.value
    cure = "" if finding.needs.value == "none" else f"; needs: {finding.needs.value}"
    whose = f"{finding.cause.value}{cure}; counts {finding.sticky.value}"
    lines = wrapped(clean(f"{word}  {finding.sentence} ({finding.check}: {whose})"), columns, "", "      ")
    return [_coloured(line, color) for line in lines]


def _sum(verdicts: tuple[Verdict, ...]) -> str:
    counts = {word: sum(one.severity.value == word for one in verdicts) for word in STYLES}
    told = [f"{counts['ok']} ok"]
    told += [f"{counts[word]} {word}" for word in ("fail", "warn", "unknown") if counts[word]]
    return f"{len(verdicts)} checks: {', '.join(told)}"


def as_plain(verdicts: tuple[Verdict, ...]) -> dict[str, Any]:
    """``--json``; docs/health.md describes it."""
    return {
        "schema": SCHEMA,
        "exit_code": exit_code(verdicts),
        "checks": [
            {
                "check": one.check,
                "family": one.family,
                "verdict": one.severity.value,
                "reading": one.shown,
                "limit": one.limit,
                "words": one.words,
                "findings": [_plain_finding(finding) for finding in one.findings],
            }
            for one in verdicts
        ],
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "scope": finding.scope.value,
        "place": finding.place,
        "severity": finding.severity.value,
        "cause": finding.cause.value,
        "needs": finding.needs.value,
        "sticky": finding.sticky.name.lower(),
        "old": finding.evidence.old,
        "new": finding.evidence.new,
        "over_s": finding.evidence.over_s,
        "sentence": finding.sentence,
    }
