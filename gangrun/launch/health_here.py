"""Looking at this node: every check once or twice, and devices at work beside the best that they have shown.

The best is kept for the next time in the user's state directory. Devices are put to work only on nodes on which no rank
runs: by ``gangrun health --active`` and, before a run's first attempt, by ``entry.health_watch``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.counter_history import CounterHistory
from gangrun.adapters.local.children import ProbeChildren
from gangrun.config import environment
from gangrun.config.health_table import site_commands
from gangrun.errors import UserError
from gangrun.health.active import devices
from gangrun.health.catalogue import ACTIVE_CHECKS, ACTIVE_FAMILIES, FAMILIES
from gangrun.health.framework.check import CheckVerdict, HealthPolicy, NodeFacts, Reading, Severity
from gangrun.health.framework.readings import facts_from, plain_reading, reading_from, text_of, wear_counters
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings, Rounds
from gangrun.health.gpu import dcgm
from gangrun.health.gpu.devices import named
from gangrun.health.host import site
from gangrun.node.processes import host_name
from gangrun.planning.trends import KINDS
from gangrun.wire import job_variables

if TYPE_CHECKING:
    from gangrun.ports import Clock

KEPT_MAX_BYTES = 1_000_000
REMEMBERS_WITHIN_S = 2.0
LEAST_S = 5.0  # a test for which less time is left is not begun


@dataclass(frozen=True, slots=True)
class HealthQuery:
    """What is asked of one node."""

    gpus: int | None = None
    devices: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    over: float = 0.0
    fs_root: str = "/"
    active: bool = False
    deep: bool = False


class HealthProbes:
    """``health.framework.rounds.Probes``: questions that may hang, each asked in a child that can be left behind.

    Args:
        variables: The children's environment.
        python: The Python that trains, with whose torch devices are tested; "": ours.
        in_process: The kind of question that is asked in this process, as this process may hang itself.
    """

    def __init__(self, variables: Mapping[str, str], python: str = "", in_process: str = "") -> None:
        self._python, self._in_process = (python,) if python else (), in_process
        package, inherited = str(Path(__file__).resolve().parents[2]), variables.get("PYTHONPATH")
        found = {**variables, "PYTHONPATH": f"{package}{os.pathsep}{inherited}" if inherited else package}
        self._children = ProbeChildren((sys.executable, "-m", "gangrun.entry.health_probe"), found)

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        """One question; a call that hangs takes the thread of its family along, and no other."""
        if kind == self._in_process:
            from gangrun.entry.health_probe import answer

            return facts_from(answer(kind, words))
        return facts_from(self._children.ask(kind, words + (self._python if kind == devices.NAME else ()), within_s))


def families_of(off: frozenset[str], commands: Mapping[str, Any]) -> tuple[CheckFamily, ...]:
    """The catalogue without the checks that the user turned off, and a site's own commands."""
    own = site.family(site_commands(commands))
    left = (replace(one, checks=tuple(c for c in one.checks if c.name not in off)) for one in FAMILIES)
    return (*(one for one in left if one.checks), *([own] if own is not None else []))


def node_name(variables: Mapping[str, str]) -> str:
    """As the scheduler calls this host, which need not be what it calls itself."""
    return job_variables.node_name(variables, host_name())


def looked(query: HealthQuery, variables: Mapping[str, str]) -> tuple[tuple[CheckVerdict, ...], dict[str, str], str]:
    """Every check of this node, and the tests of devices if they are asked for.

    Args:
        query: What is asked.
        variables: The environment.

    Returns:
        The verdicts, what the GPUs are called, and why the devices' best could not be kept, or "".
    """
    from gangrun.config.layers import layered, usual_files

    table = layered({}, variables, usual_files())["health"].value
    policy = policy_of(query, variables, table.bounds)
    directories = tuple(dict.fromkeys(os.path.abspath(path) for path in query.paths or _usual()))
    around = HealthSurroundings(Path(query.fs_root), HealthProbes(variables), directories, query.peers)
    rounds = Rounds(families_of(frozenset(table.off), table.commands), around, policy, SystemClock())
    verdicts, why_not = rounds.look(), ""
    if query.over > 0:
        threading.Event().wait(query.over)
        verdicts = rounds.look()
    _remember_counters(node_name(variables), rounds.readings())
    names = {place: name for one in rounds.readings() for place, name in named(one).items()}
    if query.active:
        families = (devices.DEEP_FAMILY, dcgm.DEEP_TEST_FAMILY) if query.deep else ACTIVE_FAMILIES
        tested, why_not = measured(families, around, policy, node_name(variables), SystemClock())
        verdicts += tested
    return verdicts, names, why_not


def _remember_counters(node: str, readings: Iterable[Reading]) -> None:
    """For ``gangrun nodes``, which tells what gets worse over days. A home directory that stands still costs little."""
    counted, wall = wear_counters(readings, KINDS.keys()), SystemClock().wall()
    if not counted:
        return

    def work() -> None:
        with contextlib.suppress(OSError):
            CounterHistory(environment.state_home()).add(node, counted, wall)

    thread = threading.Thread(target=work, name="counter-history", daemon=True)
    thread.start()
    thread.join(REMEMBERS_WITHIN_S)


def policy_of(query: HealthQuery, variables: Mapping[str, str], bounds: Mapping[str, Any]) -> HealthPolicy:
    """The user's bounds, and what the query or else the job says that the node has."""
    gpus = query.gpus if query.gpus is not None else job_variables.gpus_count(variables)
    for device in query.devices:
        if not device or "/" in device:
            raise UserError("usage", f"--ib: {device!r} names no device", "as in /sys/class/infiniband: mlx5_0")
    asked = {"gpus_count": gpus, "ib_devices": query.devices}
    return HealthPolicy(**{**bounds, **{name: value for name, value in asked.items() if value not in (None, ())}})


def _usual() -> tuple[str, ...]:
    from tempfile import gettempdir

    try:
        return (os.getcwd(), gettempdir())
    except OSError:
        return (gettempdir(),)


# ---- devices at work -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceTestResult:
    """Every verdict, what was done and came out right ("" if not all of it did), and why not."""

    verdicts: tuple[CheckVerdict, ...]
    tested: str = ""
    untested: str = ""


def measured(
    families: Iterable[CheckFamily], around: HealthSurroundings, policy: HealthPolicy, node: str, clock: Clock
) -> tuple[tuple[CheckVerdict, ...], str]:
    """Every check of these families once; and why their best could not be kept, or ""."""
    before, why_not = baseline_of(node), ""
    rounds = Rounds(families, around, policy, clock)
    rounds.begin_from([before] if before is not None else [])
    verdicts = rounds.look()
    for now in rounds.readings():
        if now.family == devices.NAME and now is not before:
            why_not = keep_baseline(node, devices.best_of(now, before))
    return verdicts, why_not


def at_the_gate(
    tests: str,
    until: float,
    around: HealthSurroundings,
    policy: HealthPolicy,
    node: str,
    clock: Clock,
    off: frozenset[str],
) -> DeviceTestResult:
    """The quick tests, and DCGM's own if they are to be thorough; what is not done at ``until`` is unknown."""
    from gangrun.core.nodes.device_test import THOROUGH

    began = clock.now()
    verdicts: tuple[CheckVerdict, ...] = ()
    making: list[Callable[[float], CheckFamily]] = [devices.quick, *([dcgm.short_test] if tests == THOROUGH else [])]
    for make in making:
        left_s = until - clock.now()
        if left_s < LEAST_S:
            break
        family = make(left_s)
        family = replace(family, checks=tuple(one for one in family.checks if one.name not in off))
        verdicts += measured([family], around, policy, node, clock)[0]
    return summed_up(verdicts, clock.now() - began)


def summed_up(verdicts: tuple[CheckVerdict, ...], took_s: float) -> DeviceTestResult:
    """In words. A device is proven only by results that are known to the bit, all of them."""
    by_name = {one.check: one for one in verdicts}
    told = []
    for check in ACTIVE_CHECKS:
        one = by_name.get(check.name)
        if check.proves is None:
            continue
        if one is None or one.severity is Severity.UNKNOWN:
            why = one.words if one is not None else "the test is turned off, or there was no time for it"
            return DeviceTestResult(verdicts, "", why)
        told.append(one.shown + check.proves)
    bad = next((one.words for one in verdicts if one.severity is Severity.FAIL), "")
    if bad:
        return DeviceTestResult(verdicts, "", bad)
    of_dcgm = (one for one in verdicts if one.family == dcgm.TEST_NAME and one.severity is not Severity.UNKNOWN)
    told += [f"DCGM's test: {one.shown}" for one in of_dcgm]
    return DeviceTestResult(verdicts, f"{', '.join(told)}, in {took_s:.0f} s")


def baseline_of(node: str) -> Reading | None:
    """What the devices of this node reached before; None if nothing was kept, or nothing that makes sense."""
    try:
        return reading_from(json.loads(text_of(_kept(node), KEPT_MAX_BYTES)))
    except (ValueError, RecursionError):
        return None


def keep_baseline(node: str, reading: Reading) -> str:
    """Keep it for the next call; why it could not be kept, or ""."""
    path = _kept(node)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(json.dumps(plain_reading(reading)) + "\n", "ascii")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        return f"{path} cannot be written: {error.strerror}"
    return ""


def _kept(node: str) -> Path:
    return environment.state_home() / "health" / f"{node}.json"
