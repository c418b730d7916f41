"""Watches one node's health while a run lives: ``python -m gangrun.entry.health_watch SPEC``.

The agent starts it and reads its lines. Whatever a sick driver or a dead file server does to it, the agent goes on
without: NVML is loaded here and nowhere else. It ends when its standard input does. One JSON object a line:

    out  {"op": "watching", "trouble": ...}  {"op": "finding", ...}  {"op": "looked", "n": ..., "late": ...}
         {"op": "alive"}  {"op": "gpus", "names": ...}  {"op": "use", "gpus": ...}
    in   {"op": "look", "n": ...}  {"op": "work", "n": ..., "tests": ..., "until": ...}
         {"op": "gang", "attempt": ..., "stopping": ...}
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.counter_history import EVERY_S, CounterHistory
from gangrun.adapters.fs.disk import Disk
from gangrun.config import environment
from gangrun.health.framework.check import CauseClass, HealthPolicy, Needs, Reading, as_warning
from gangrun.health.framework.evidence import DEVICES, News, in_core, travels
from gangrun.health.framework.readings import boot_id, plain_reading, reading_from, wear_counters
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings, Rounds
from gangrun.health.gpu.devices import is_beside, own_gpus
from gangrun.health.gpu.xid import GpuWord, XidStory, XidWatch, report_of
from gangrun.health.gpu.xid_table import XidClass, row_of
from gangrun.health.host import site
from gangrun.launch.health_here import HealthProbes, at_the_gate, families_of
from gangrun.planning.trends import KINDS

if TYPE_CHECKING:
    from gangrun.core.evidence import DriverReport
    from gangrun.health.framework.check import CheckVerdict, Finding, NodeFacts

OPEN_WITHIN_S = 5.0
FIRST_LOOK_S = 5.0  # where nobody asks for one: an agent that came back, say
ALIVE_EVERY_S = 30.0
LATE_FIRST_S = 1.0  # after which is seen whether a look that was not back in time has come back, and so on, doubled
# Of one core: a family that costs more is looked at less often, so that all of them together stay under 0.5 %.
COST_SHARES, COST_SHARE = {"gpu": 0.002}, 0.0003
GPU = "gpu"
_OF_GPU = re.compile(r"gpu \d+\b")
KEPT_EVERY_S = 600.0
KEPT_WITHIN_S = 3.0
KEPT_MAX_BYTES = 2_000_000
KEPT_SCHEMA = 1
USE_NAMES = (  # in the order of ``GpuUse``, and what one of its units is
    ("busy_percent", 1), ("memory_used_bytes", 1 << 20), ("memory_bytes", 1 << 20), ("sm_clock_mhz", 1),
    ("clock_reasons", 1), ("power_w", 1), ("power_limit_w", 1), ("pcie_width", 1), ("pcie_generation", 1),
    ("temperature_c", 1),
)  # fmt: skip
Readings = tuple[Reading, ...]


class KeptCounters:
    """A node's counters as they were at the last look, kept in the run's directory for the next one.

    So what rose while nobody looked (between attempts and jobs, after a checker that died) is seen to have risen, and
    in what time. One small file a node, written when a look was asked for, when something was found, and every ten
    minutes. The shared file system may stand still, so both reading and writing are a thread's. What cannot be read,
    makes no sense or is of another boot is no baseline; what cannot be written is written the next time.

    Args:
        path: The node's file.
        boot_id: Of the boot that counts; "" if it is not known: then nothing is kept.
        now: Seconds of a clock that never goes back.
        disk: The disk, for tests.
    """

    def __init__(self, path: Path, boot_id: str, now: Callable[[], float], disk: Disk | None = None) -> None:
        self._path, self._boot_id, self._now = path, boot_id, now
        self._disk = disk or Disk()
        self._written_at = now()
        self._found: queue.SimpleQueue[Readings] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[Readings] = queue.SimpleQueue()
        if boot_id:
            threading.Thread(target=self._work, name="kept-counters", daemon=True).start()

    def readings(self, within_s: float = KEPT_WITHIN_S) -> Readings:
        """What was kept in this boot; nothing where the file system does not answer in time."""
        if not self._boot_id:
            return ()
        try:
            return self._found.get(timeout=within_s)
        except queue.Empty:
            return ()

    def keep(self, readings: Callable[[], Readings], *, at_once: bool) -> None:
        """Have these written now, or where it is time to; returns at once."""
        now = self._now()
        if self._boot_id and (at_once or now - self._written_at >= KEPT_EVERY_S):
            self._written_at = now
            self._to_write.put(readings())

    def _work(self) -> None:
        self._found.put(_read_kept(self._disk, self._path, self._boot_id))
        while True:
            newest = self._to_write.get()
            while not self._to_write.empty():
                newest = self._to_write.get()
            try:
                self._write(newest)
            except OSError:
                continue

    def _write(self, readings: Readings) -> None:
        plain = {"v": KEPT_SCHEMA, "readings": [plain_reading(one) for one in readings]}
        if not self._disk.is_dir(self._path.parent):
            os.makedirs(self._path.parent, mode=0o700, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._disk.replace(self._path, json.dumps(plain).encode("ascii") + b"\n", part)


def _read_kept(disk: Disk, path: Path, boot_id: str) -> Readings:
    """The readings of this boot in a file that may be anything."""
    try:
        plain = json.loads(disk.read(path, limit=KEPT_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return ()
    if not isinstance(plain, dict) or plain.get("v") != KEPT_SCHEMA or not isinstance(plain.get("readings"), list):
        return ()
    found = [reading_from(one) for one in plain["readings"]]
    return tuple(one for one in found if one is not None and one.boot_id == boot_id)


class HealthWatch:
    """Looks when it is time, and says what is new."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._node = str(spec["node"])
        self._clock = SystemClock()
        self._heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._off = frozenset(spec.get("off", ()))
        self._families = families_of(self._off, spec.get("commands", {}))
        self._around = HealthSurroundings(
            Path(spec.get("root", "/")),
            HealthProbes(environment.all_variables(), str(spec.get("python", "")), in_process=GPU),
            tuple(spec.get("directories", ())),
            tuple(spec.get("peers", ())),
            frozenset(spec.get("made_later", ())),
        )
        self._policy = HealthPolicy(**{name: _value(found) for name, found in spec.get("policy", {}).items()})
        self._rounds = Rounds(self._families, self._around, self._policy, self._clock)
        boot = boot_id(self._around.root) if spec.get("kept") else ""
        self._history = CounterHistory(Path(str(spec["history"]))) if spec.get("history") else None
        self._noted_at: float | None = None
        self._kept = KeptCounters(Path(str(spec.get("kept"))), boot, self._clock.now)
        self._news, self._xids = News(), XidStory(self._node)
        self._slots_told: list[str] = []
        self._has_slots = bool(spec.get("slots"))
        self._due = {one.name: self._clock.now() + FIRST_LOOK_S for one in self._families}
        self._patience_s: dict[str, float] = {}
        self._said_at = self._clock.now()
        self._use_every_s = float(spec.get("use_every_s", 0.0))
        self._trains = threading.Event()  # ranks run here: how they use their GPUs is of interest

    def run(self) -> None:
        """Until standard input ends."""
        threading.Thread(target=self._listen, name="from-the-agent", daemon=True).start()
        trouble = self._watch_events()
        if self._use_every_s:
            threading.Thread(target=self._read_use, name="gpu-use", daemon=True).start()
        self._rounds.go_on_from(self._kept.readings())
        self._say({"op": "watching", "trouble": trouble})
        while True:
            now = self._clock.now()
            until = min([*self._due.values(), self._said_at + ALIVE_EVERY_S])
            try:
                kind, what = self._heard.get(timeout=max(0.0, until - now))
            except queue.Empty:
                self._look_where_due()
                continue
            if kind == "end":
                return
            if kind == "xid":
                self._xid(*what)
            elif kind == "use":
                self._tell_use(what)
            else:
                self._told(what)

    # ---- what comes in ----

    def _listen(self) -> None:
        for line in sys.stdin:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                self._heard.put(("said", said))
        self._heard.put(("end", None))

    def _watch_events(self) -> str:
        """Opened before anything else, and so before any rank: what came before is lost."""
        try:
            from gangrun.adapters.nvml import EventWatch
        except ImportError:
            return "the python package nvidia-ml-py is not installed"
        watch = XidWatch(EventWatch(), lambda *event: self._heard.put(("xid", event)), self._clock)
        watch.start()
        return (
            watch.trouble
            if watch.opened(OPEN_WITHIN_S)
            else f"the NVIDIA driver has not answered for {OPEN_WITHIN_S:g} s"
        )

    def _read_use(self) -> None:
        """A few values of each GPU every few seconds, in a thread of its own: any of them may hang in the driver."""
        try:
            from gangrun.adapters import nvml
        except ImportError:
            return
        try:
            nvml.start()
        except nvml.NvmlRefused:
            return  # no GPU here
        silent = set[tuple[str, str]]()
        pause = threading.Event()
        while self._trains.wait():
            before_s = _spent_s(resource.RUSAGE_THREAD)
            try:
                self._heard.put(("use", nvml.in_use(silent)))
            except nvml.NvmlRefused:
                pass  # the next reading may do better
            spent_s = _spent_s(resource.RUSAGE_THREAD) - before_s
            pause.wait(max(self._use_every_s, spent_s / COST_SHARES[GPU]))

    def _told(self, said: Mapping[str, Any]) -> None:
        if said.get("op") == "gang":
            trains = int(said.get("attempt", -1)) >= 0 and not said.get("stopping")
            self._trains.set() if trains else self._trains.clear()
            self._xids.gang(int(said.get("attempt", -1)), bool(said.get("stopping")), self._clock.now())
        elif said.get("op") == "look":
            self._news.forget()
            late = self._look_at_all()
            self._kept.keep(self._rounds.kept, at_once=True)
            self._note_counters()
            self._say({"op": "looked", "n": said.get("n"), "late": late})
        elif said.get("op") == "work":
            self._work(said)

    def _work(self, said: Mapping[str, Any]) -> None:
        tests, until = str(said.get("tests")), float(said.get("until", 0.0))
        worked = at_the_gate(tests, until, self._around, self._policy, self._node, self._clock, self._off)
        for finding in filter(travels, (one for verdict in worked.verdicts for one in verdict.findings)):
            self._say_finding(finding)
        self._say({"op": "looked", "n": said.get("n"), "tested": worked.tested, "untested": worked.untested})

    # ---- looking ----

    def _look_at_all(self) -> str:
        """What a gang waits for: every family at once, and no longer than the policy says; then a site's own commands.
        What was not back in time is told as soon as it is. Returns why not all is known.
        """
        within_s = self._policy.preflight_within_s
        listed = [family for family in self._families if family.name != site.NAME]
        looked = self._rounds.look_at_once([family.name for family in listed], within_s)
        for family in listed:
            self._told_of(family, looked[family.name], 0.0)
        for family in self._families:
            if family.name == site.NAME:
                self._look(family)
        late = [family.name for family in listed if family.name in self._rounds.late]
        return f"not looked at within {within_s:g} s: {', '.join(late)}" if late else ""

    def _look_where_due(self) -> None:
        now = self._clock.now()
        told = [self._look(family) for family in self._families if now >= self._due[family.name]]
        self._kept.keep(self._rounds.kept, at_once=any(told))
        self._note_counters()
        if now >= self._said_at + ALIVE_EVERY_S:
            self._say({"op": "alive"})

    def _note_counters(self) -> None:
        """Every few hours, what hardware has counted so far: for ``gangrun nodes``, which tells what gets worse."""
        now = self._clock.now()
        if self._noted_at is None or now - self._noted_at >= EVERY_S:
            self._noted_at = now
            counted, wall = wear_counters(self._rounds.readings(), KINDS.keys()), self._clock.wall()
            self._in_history(lambda history: history.add(self._node, counted, wall))

    def _in_history(self, write: Callable[[CounterHistory], None]) -> None:
        """In a thread, as a home directory may stand still; what cannot be written is not known later."""
        history = self._history
        if history is None:
            return

        def work() -> None:
            with contextlib.suppress(OSError):
                write(history)

        threading.Thread(target=work, name="counter-history", daemon=True).start()

    def _look(self, family: CheckFamily) -> bool:
        """True where something was new."""
        before_s = _spent_s()
        looked = self._rounds.look_at(family.name)
        return self._told_of(family, looked, _spent_s() - before_s)

    def _told_of(self, family: CheckFamily, looked: Iterable[CheckVerdict], spent_s: float) -> bool:
        """Say what is new, and when to look again: of what is still to come back soon, and then less and less often."""
        if family.name == GPU:
            self._tell_gpus()
        found = [self._xids.weighed(one) for verdict in looked for one in verdict.findings]
        fresh = self._news.fresh(filter(travels, found), self._clock.now())
        for finding in fresh:
            self._say_finding(finding)
        afforded_s = spent_s / COST_SHARES.get(family.name, COST_SHARE)
        pause_s = max(min(check.every_s for check in family.checks), afforded_s)
        if self._rounds.is_out(family.name):
            patience_s = self._patience_s[family.name] = 2 * self._patience_s.get(family.name, LATE_FIRST_S / 2)
            pause_s = min(pause_s, patience_s)
        else:
            self._patience_s.pop(family.name, None)
        self._due[family.name] = self._clock.now() + pause_s
        return bool(fresh)

    def _xid(self, uuid: str, xid: int, at: float) -> None:
        # Which GPU it is must have been asked once, and what some events mean only it says. The others wait for nobody.
        if self._gpu_facts() is None or row_of(xid).kind is XidClass.ASK:
            for family in self._families:
                if family.name == GPU:
                    self._look(family)
        gpu = self._place_of(uuid)
        event = self._xids.event(gpu, xid, at)
        if event is None:
            return
        finding = self._xids.finding(event, self._word_of(gpu), self._clock.now())
        if finding is not None:
            if finding.cause is CauseClass.HARDWARE:
                wall = self._clock.wall()
                self._in_history(lambda history: history.add_event(self._node, uuid, gpu, wall))
            facts = self._gpu_facts()
            if facts is not None and is_beside(facts, self._policy.gpus_used, uuid):
                self._say_finding(as_warning(finding))
            else:
                self._say_finding(finding, report_of(event, uuid, finding))
            if finding.needs is Needs.RESET and GPU in self._due:
                self._due[GPU] = self._clock.now()  # does the GPU ask for it? That stays to be seen until it was reset

    def _gpu_facts(self) -> NodeFacts | None:
        return next((one.facts for one in self._rounds.readings() if one.family == GPU), None)

    def _place_of(self, uuid: str) -> str:
        facts = self._gpu_facts()
        places = facts.places_with("uuid") if facts is not None else ()
        return next((place for place in places if facts is not None and facts.get(place, "uuid") == uuid), uuid or GPU)

    def _word_of(self, gpu: str) -> GpuWord:
        facts = self._gpu_facts()
        if facts is None:
            return GpuWord()
        action = facts.number(gpu, "recovery_action")
        links = [facts.number(place, "active") for place in facts.values if place.startswith(f"{gpu} link ")]
        known = [link for link in links if link is not None]
        down = any(link == 0 for link in known) and any(link for link in known)
        return GpuWord(None if action is None else int(action), down if known else None)

    # ---- what goes out ----

    def _say_finding(self, finding: Finding, report: DriverReport | None = None) -> None:
        found = in_core(self._node, finding, self._clock.now(), report)
        self._say({"op": "finding", **asdict(replace(found, slot=self._slot_of(finding)))})

    def _slot_of(self, finding: Finding) -> int:
        """The slot that it is about, if each is one GPU; -1: the node."""
        facts = self._gpu_facts() if self._has_slots and finding.scope in DEVICES else None
        gpu = _OF_GPU.match(finding.place)
        return own_gpus(facts, self._policy.gpus_used).get(gpu[0], -1) if facts is not None and gpu else -1

    def _tell_gpus(self) -> None:
        """What CUDA may call the GPU of each slot."""
        facts = self._gpu_facts() if self._has_slots else None
        slots = own_gpus(facts, self._policy.gpus_used) if facts is not None else {}
        names = [str(facts.get(place, "uuid") or "") for place in slots] if facts is not None else []
        if names and names != self._slots_told:
            self._slots_told = names
            self._say({"op": "gpus", "names": names})

    def _tell_use(self, read: Mapping[str, Mapping[str, Any]]) -> None:
        """By what CUDA calls each of the job's GPUs; nothing until a look has told which those are."""
        facts = self._gpu_facts()
        numbers = own_gpus(facts, self._policy.gpus_used) if facts is not None else {}
        rows = [
            [
                numbers[place],
                int(place.removeprefix("gpu ")),
                *(_units(values.get(name), per) for name, per in USE_NAMES),
            ]
            for place, values in read.items()
            if place in numbers
        ]
        if rows:
            self._say({"op": "use", "gpus": rows})

    def _say(self, what: Mapping[str, Any]) -> None:
        self._said_at = self._clock.now()
        try:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()
        except OSError:
            os._exit(0)  # nobody reads: the agent is gone


def _spent_s(*of: int) -> float:
    """CPU seconds of this process and of the children that it has waited for, or of these."""
    used = [resource.getrusage(who) for who in of or (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _units(value: Any, per: int) -> int:
    return -1 if value is None else round(value / per)


def _value(found: Any) -> Any:
    return tuple(found) if isinstance(found, list) else found


def main() -> None:
    """Watch, and end at once: a library that is hard to leave must not keep us."""
    HealthWatch(json.loads(sys.argv[1])).run()
    os._exit(0)


if __name__ == "__main__":
    main()
