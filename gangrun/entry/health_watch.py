"""Watches one node's health while a run lives: ``python -m gangrun.entry.health_watch SPEC``.

The agent starts it and reads its lines. Whatever a sick driver or a dead file server does to it, the agent goes on
without: NVML is loaded here and nowhere else. It ends when its standard input does. One JSON object a line:

    out  {"op": "watching", "trouble": ...}  {"op": "finding", ...}  {"op": "looked", "n": ..., "late": ...}
         {"op": "alive"}
    in   {"op": "look", "n": ...}  {"op": "work", "n": ..., "tests": ..., "until": ...}
         {"op": "gang", "attempt": ..., "stopping": ...}
"""

from __future__ import annotations

import json
import os
import queue
import resource
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangrun.adapters.clock import SystemClock
from gangrun.config import environment
from gangrun.entry.health_counters import Kept
from gangrun.health.catalogue import FAMILIES
from gangrun.health.framework.check import HealthPolicy, Needs, as_warning
from gangrun.health.framework.evidence import News, in_core, travels
from gangrun.health.framework.readings import boot_id, facts_from
from gangrun.health.framework.rounds import CheckFamily, Rounds, Surroundings
from gangrun.health.gpu.devices import is_beside
from gangrun.health.gpu.xid import GpuWord, XidStory, XidWatch, report_of
from gangrun.health.gpu.xid_table import XidClass, row_of
from gangrun.health.host import site

if TYPE_CHECKING:
    from gangrun.core.model import DriverReport
    from gangrun.health.framework.check import CheckVerdict, Finding, NodeFacts

OPEN_WITHIN_S = 5.0
FIRST_LOOK_S = 5.0  # where nobody asks for one: an agent that came back, say
ALIVE_EVERY_S = 30.0
LATE_FIRST_S = 1.0  # after which is seen whether a look that was not back in time has come back, and so on, doubled
# Of one core: a family that costs more is looked at less often, so that all of them together stay under 0.5 %.
COST_SHARES, COST_SHARE = {"gpu": 0.002}, 0.0003
GPU = "gpu"


class InThisProcess:
    """``health.rounds.Probes``: GPUs are asked here, as this process may hang; what else may hang, in a child."""

    def __init__(self, python: str = "") -> None:
        from gangrun.adapters.local.probe_children import ProbeChildren

        self._python = (python,) if python else ()  # the one that trains, whose torch devices are tested with
        command = (sys.executable, "-m", "gangrun.entry.health_probe")
        self._children = ProbeChildren(command, environment.all_variables())

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        """One question; a call that hangs takes the thread of its family along, and no other."""
        if kind == "active":
            words += self._python
        if kind != GPU:
            return facts_from(self._children.ask(kind, words, within_s))
        from gangrun.entry.health_probe import answer

        return facts_from(answer(kind, words))


def families_of(off: frozenset[str], commands: Mapping[str, Any]) -> tuple[CheckFamily, ...]:
    """The catalogue without the checks that somebody turned off, and a site's own commands."""
    from dataclasses import replace

    from gangrun.config.site_checks import site_commands

    own = site.family(site_commands(commands))
    left = (replace(one, checks=tuple(c for c in one.checks if c.name not in off)) for one in FAMILIES)
    return (*(one for one in left if one.checks), *([own] if own is not None else []))


class Watch:
    """Looks when it is time, and says what is new."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._node = str(spec["node"])
        self._clock = SystemClock()
        self._heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._off = frozenset(spec.get("off", ()))
        self._families = families_of(self._off, spec.get("commands", {}))
        self._around = Surroundings(
            Path(spec.get("root", "/")),
            InThisProcess(str(spec.get("python", ""))),
            tuple(spec.get("directories", ())),
            tuple(spec.get("peers", ())),
            frozenset(spec.get("made_later", ())),
        )
        self._policy = HealthPolicy(**{name: _value(found) for name, found in spec.get("policy", {}).items()})
        self._rounds = Rounds(self._families, self._around, self._policy, self._clock)
        boot = boot_id(self._around.root) if spec.get("kept") else ""
        self._kept = Kept(Path(str(spec.get("kept"))), boot, self._clock.now)
        self._news, self._xids = News(), XidStory(self._node)
        self._due = {one.name: self._clock.now() + FIRST_LOOK_S for one in self._families}
        self._patience_s: dict[str, float] = {}
        self._said_at = self._clock.now()

    def run(self) -> None:
        """Until standard input ends."""
        threading.Thread(target=self._listen, name="from-the-agent", daemon=True).start()
        trouble = self._watch_events()
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
        return watch.trouble if watch.opened(OPEN_WITHIN_S) else f"the driver has not answered in {OPEN_WITHIN_S:g} s"

    def _told(self, said: Mapping[str, Any]) -> None:
        if said.get("op") == "gang":
            self._xids.gang(int(said.get("attempt", -1)), bool(said.get("stopping")), self._clock.now())
        elif said.get("op") == "look":
            self._news.forget()
            late = self._look_at_all()
            self._kept.keep(self._rounds.kept, at_once=True)
            self._say({"op": "looked", "n": said.get("n"), "late": late})
        elif said.get("op") == "work":
            self._work(said)

    def _work(self, said: Mapping[str, Any]) -> None:
        from gangrun.launch.health_work import at_the_gate

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
        if now >= self._said_at + ALIVE_EVERY_S:
            self._say({"op": "alive"})

    def _look(self, family: CheckFamily) -> bool:
        """True where something was new."""
        before_s = _spent_s()
        looked = self._rounds.look_at(family.name)
        return self._told_of(family, looked, _spent_s() - before_s)

    def _told_of(self, family: CheckFamily, looked: Iterable[CheckVerdict], spent_s: float) -> bool:
        """Say what is new, and when to look again: of what is still to come back soon, and then less and less often."""
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
        self._say({"op": "finding", **asdict(in_core(self._node, finding, self._clock.now(), report))})

    def _say(self, what: Mapping[str, Any]) -> None:
        self._said_at = self._clock.now()
        try:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()
        except OSError:
            os._exit(0)  # nobody reads: the agent is gone


def _spent_s() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _value(found: Any) -> Any:
    return tuple(found) if isinstance(found, list) else found


def main() -> None:
    """Watch, and end at once: a library that is hard to leave must not keep us."""
    Watch(json.loads(sys.argv[1])).run()
    os._exit(0)


if __name__ == "__main__":
    main()
