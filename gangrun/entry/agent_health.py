"""A node's health as its agent has it: the watching process, set up for this run."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local.box import gpus_count
from gangrun.adapters.local.health_child import HealthChild
from gangrun.adapters.net.interface import unanswered
from gangrun.agent.brain.facts import Checked, FindingReported
from gangrun.config import environment
from gangrun.core.evidence import NodeFinding
from gangrun.core.model import BrokenSlot, Met
from gangrun.core.nodes.device_test import QUICK, THOROUGH
from gangrun.core.nodes.network_test import ROUND_S
from gangrun.core.recovery.gpu_rules import GpuUse, read_every_s
from gangrun.entry.health_children import exchanged
from gangrun.health.framework.evidence import bars_a_start
from gangrun.health.gpu import devices as gpu_devices
from gangrun.wire import job_variables
from gangrun.wire.messages import MeetPeer
from gangrun.wire.spec import RunSpec

ANSWERS_WITHIN_S = 5.0
_OWN_TROUBLE = re.compile(r"in use|out of memory|no module|not found", re.IGNORECASE)  # says nothing of a partner
GATE_SHARE = 0.5  # of the time for checks: where thousands of nodes load python from one disk, beginning takes long


class AgentHealth:
    """``agent.surroundings.Health``, and the gate before the first attempt."""

    def __init__(
        self,
        spec: RunSpec,
        node: str,
        run_directory: Path,
        variables: Mapping[str, str],
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._node = node
        self._slots_count = spec.slots_per_node + spec.spare_slots_count
        self._observe = spec.policy.observe
        self._gate_within_s = GATE_SHARE * spec.policy.check_within_s
        tests_s = spec.policy.tests_within_s
        self._tests_within_s = {QUICK: tests_s, THOROUGH: 2 * tests_s}
        self._one_at_a_time = threading.Lock()
        what = watch_spec(spec, node, run_directory, variables)
        command = [sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(what)]
        package = str(Path(__file__).resolve().parents[2])
        inherited = variables.get("PYTHONPATH")
        found = {**variables, "PYTHONPATH": f"{package}:{inherited}" if inherited else package}
        self._child = HealthChild(command, found, now, say)
        self._child.start()

    def fileno(self) -> int:
        """Readable when ``take`` has something."""
        return self._child.fileno()

    def take(self) -> list[FindingReported]:
        """What was found since."""
        return [FindingReported(found) for plain in self._child.take() if (found := self._finding(plain)) is not None]

    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that ranks may use, by slot; () until that is known."""
        return self._child.gpus

    def take_use(self) -> dict[int, GpuUse]:
        """How each GPU is used, by what CUDA calls it, if it was read since the last call."""
        try:
            rows = msgspec.convert(self._child.take_use(), list[list[int]])
            return {number: GpuUse(*values) for number, *values in rows}
        except (msgspec.ValidationError, TypeError, ValueError):
            return {}

    def gang(self, attempt: int, stopping: bool) -> None:
        """Pass it on."""
        self._child.gang(attempt, stopping)

    def pids(self) -> tuple[int, ...]:
        """Processes of its own."""
        return self._child.pids()

    def close(self) -> None:
        """End it."""
        self._child.close()

    def gate(self, before: Checked, tests: str) -> Checked:
        """What the preflight said, with a look at the hardware, and with devices at work where that is asked for; what
        is not seen in time is unknown, and not bad.
        """
        if not before.ok:
            return before
        with self._one_at_a_time:
            plains, unknown = self._child.look(self._gate_within_s)
            found = [one for one in map(self._finding, plains) if one is not None]
            tested = ""
            if tests and not any(map(bars_a_start, found)):
                plains, tested, untested = self._child.work(tests, self._tests_within_s[tests])
                found += [one for one in map(self._finding, plains) if one is not None]
                unknown = "; ".join(filter(None, (unknown, f"devices are not proven: {untested}" if untested else "")))
        bad = [one for one in found if bars_a_start(one) and one.slot < self._slots_count]
        broken = self._broken_slots(bad)
        fatal = [] if broken else [f"{one.sentence} ({one.check})" for one in bad]
        if fatal and self._observe:
            return Checked(True, f"the node is used although it failed, because of --observe: {'; '.join(fatal[:3])}")
        if fatal:
            return Checked(False, "; ".join(fatal[:3]))
        poor = [one.sentence for one in found if one.poor and one.slot not in {slot.index for slot in broken}]
        words = "; ".join([*filter(None, (before.why,)), *poor[:3], *filter(None, (unknown,))])
        return Checked(True, words, tested, broken=broken)

    def _broken_slots(self, bad: Sequence[NodeFinding]) -> tuple[BrokenSlot, ...]:
        """The slots that may not be used; () if something is about the whole node."""
        slots = {one.slot: BrokenSlot(one.slot, one.place, one.sentence) for one in reversed(bad)}
        return () if -1 in slots else tuple(slots[slot] for slot in sorted(slots))

    def _finding(self, plain: Mapping[str, Any]) -> NodeFinding | None:
        try:
            return replace(msgspec.convert({"node": self._node, **plain}, NodeFinding), node=self._node)
        except msgspec.ValidationError:
            return None


def all_met(
    meetings: Sequence[MeetPeer], python: str, variables: Mapping[str, str], now: Callable[[], float]
) -> tuple[Met, ...]:
    """How this node gets through to each of these: does the host answer, and with GPUs does NCCL exchange data? What
    could not be measured is left out. ``python``: the one with torch, "" if the script is not Python.
    """
    if not meetings:
        return ()
    began, reached = now(), {}
    with ThreadPoolExecutor(len(meetings)) as threads:
        words = threads.map(lambda one: unanswered(one.address, one.port, ANSWERS_WITHIN_S), meetings)
        reached = {one.partner: Met(one.partner, why) for one, why in zip(meetings, words, strict=True)}
    if not (gpus_count(variables) and python):
        return tuple(reached.values())
    for one in sorted(meetings, key=lambda one: one.turn):
        if reached[one.partner].error:
            continue
        within_s = max(1.0, began + (one.turn + 1) * ROUND_S - now())
        asked = {"rank": int(not one.is_first), "host": one.host, "port": one.port, "gpu": True}
        told = exchanged(python, {**asked, "within_s": within_s - 1.0}, within_s, variables, now)
        if told.get("began") and "error" in told and not _OWN_TROUBLE.search(str(told["error"])):
            reached[one.partner] = Met(one.partner, str(told["error"]))
        elif "error" in told:
            del reached[one.partner]
    return tuple(reached.values())


def watch_spec(spec: RunSpec, node: str, run_directory: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """What the watching process is told."""
    gpus_count = job_variables.gpus_count(variables)
    expected = {} if gpus_count is None else {"gpus_count": gpus_count}
    checkpoints = [spec.checkpoint.directory] if spec.checkpoint.directory else []
    return {
        "node": node,
        "root": "/",
        "directories": [str(run_directory), *checkpoints],
        "made_later": checkpoints,
        "kept": str(RunPaths(run_directory).counters(node)),
        "history": str(environment.state_home()),
        "policy": {
            **expected,
            "gpus_used": gpu_devices.wanted({**variables, **spec.environment}),
            **spec.health.bounds,
        },
        "off": list(spec.health.off),
        "python": spec.command[0] if spec.python else "",
        "slots": spec.rank_per_gpu,
        "commands": dict(spec.health.commands),
        "use_every_s": read_every_s(spec.policy.trends),
    }
