"""XID events: how they are waited for, told from echoes of our own kills, weighed together, and what they find.

One event rarely tells hardware from program. What does: the same GPU again in another attempt (hardware, perhaps), two
GPUs at once (the program), and what the GPU itself asks for. What our own kill leaves behind never counts. The table:
 ``xid_table``. ``XidWatch`` waits on a thread of its own: what came before it watches is lost for good, so it is
opened before ranks start, and stays open over restarts. The driver may hang in any call: only ``opened`` is waited for,
under a deadline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gangrun.core.evidence import DriverReport, traits_of
from gangrun.core.nodes import history
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Finding,
    FindingEvidence,
    Needs,
    Scope,
    Severity,
    Sticky,
    span,
)  # fmt: skip
from gangrun.health.gpu.xid_table import ALONE_SOFT, CLASS_CAUSES, ECHOES, RECOVERY_ACTIONS, XidClass, XidRow, row_of

if TYPE_CHECKING:
    from gangrun.ports import Clock

CHECK = "xid"
COALESCED_S = 5.0  # one fault is reported many times over
TOGETHER_S = 10.0  # so near in time is "at once"
NEAR_S = 60.0  # another XID this near tells of the same fault
REMEMBERED_S = 86400.0
ECHO_S = 5.0  # after all ranks of the node are down, what the driver reports is still of the kill
EVENTS_MAX_COUNT = 512
CONTAINED, NOT_CONTAINED = 94, frozenset({64, 95, 140})
WAIT_MS = 1000
ERRORS_MAX_COUNT = 5  # in a row: then the driver is not asked any more
XID, DOUBLE_BIT, UNAVAILABLE, RECOVERY = 0x8, 0x2, 0x4000, 0x8000
XID_OF_TYPE = {DOUBLE_BIT: 48, UNAVAILABLE: 79, RECOVERY: 154}  # what other types of event say in the XIDs' language
OF_THE_NODE = 109  # its GPUs share what this one tells of


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One report of the driver. ``by_us``: it came while we stopped the ranks, or just after."""

    at: float
    node: str
    gpu: str  # a stable name: the UUID, or the place where there is none
    xid: int
    attempt: int
    by_us: bool = False


@dataclass(frozen=True, slots=True)
class GpuWord:
    """What the GPU says of itself when asked after an event; None: it says nothing."""

    recovery_action: int | None = None
    links_down: bool | None = None


def findings(node: str, events: Iterable[XidEvent], words: Mapping[str, GpuWord], now: float) -> tuple[Finding, ...]:
    """Findings against ``node``. ``events`` may hold those of other nodes: company is evidence."""
    recent = coalesced(event for event in events if 0 <= now - event.at <= REMEMBERED_S and not is_echo(event))
    own = sorted({(event.gpu, event.xid) for event in recent if event.node == node})
    found = (_finding(node, gpu, row_of(xid), recent, words.get(gpu, GpuWord())) for gpu, xid in own)
    return tuple(finding for finding in found if finding is not None)


def report_of(event: XidEvent, uuid: str, found: Finding) -> DriverReport:
    """What the core remembers of an event, for longer than anybody watches: whose it is, what a second one is worth."""
    row = row_of(event.xid)
    again = history.POOR if row.kind is XidClass.APP else history.FATAL
    if row.kind is XidClass.INFO or found.severity is FAIL:
        again = ""
    whose = event.node if event.xid == OF_THE_NODE else uuid or f"{event.gpu} of {event.node}"
    return DriverReport(whose, event.xid, again)


def is_echo(event: XidEvent) -> bool:
    """Left behind by a program that we killed; what no kill can cause counts even then."""
    return event.by_us and (event.xid in ECHOES or row_of(event.xid).kind in (XidClass.APP, XidClass.INFO))


def coalesced(events: Iterable[XidEvent]) -> tuple[XidEvent, ...]:
    """One event for a burst: each report within five seconds of the one before belongs to it."""
    kept: list[XidEvent] = []
    latest: dict[tuple[str, str, int], float] = {}
    for event in sorted(events, key=lambda one: (one.at, one.node, one.gpu, one.xid)):
        key = (event.node, event.gpu, event.xid)
        if key not in latest or event.at - latest[key] > COALESCED_S:
            kept.append(event)
        latest[key] = event.at
    return tuple(kept)


def _finding(node: str, gpu: str, row: XidRow, recent: tuple[XidEvent, ...], word: GpuWord) -> Finding | None:
    mine = [event for event in recent if (event.node, event.gpu, event.xid) == (node, gpu, row.xid)]
    last = mine[-1]
    near = {
        event.xid for event in recent if (event.node, event.gpu) == (node, gpu) and abs(event.at - last.at) <= NEAR_S
    }
    kind, needs, why = _class_of(row, near, word)
    if kind is XidClass.SOFT:
        who = "the same GPU"
        faults = _faults(mine)
        if row.xid == OF_THE_NODE:
            who, faults = "the node", _faults([one for one in recent if (one.node, one.xid) == (node, row.xid)])
        if len(faults) > 1:
            kind, why = XidClass.HARD, f"{who} had it {len(faults)} times in {_time(faults)}"
    if kind is XidClass.APP:
        return _of_the_program(node, gpu, row, mine, recent)
    if kind is XidClass.INFO and not row.watch:
        return None
    severity = FAIL if kind is XidClass.HARD else WARN
    sticky = Sticky.BOOT if kind is XidClass.HARD else Sticky.CLEAN
    cause = CLASS_CAUSES[kind]
    return _say(gpu, row, severity, cause, needs, sticky, len(mine), why)


def _class_of(row: XidRow, near: set[int], word: GpuWord) -> tuple[XidClass, Needs, str]:
    """The class of an event among its neighbours, and the reason where it is not the table's."""
    if row.xid == 48 and 94 in near and 95 not in near:
        return XidClass.SOFT, Needs.RESET, "the error was contained (XID 94)"
    asked = RECOVERY_ACTIONS.get(word.recovery_action or 0)
    if row.kind is not XidClass.ASK:
        return row.kind, row.needs, ""
    if asked is not None:
        action, fatal, needs = asked
        return (XidClass.HARD if fatal else XidClass.SOFT), needs, f"the GPU asks {action}"
    if row.xid != 154 and word.links_down:
        return XidClass.HARD, Needs.RESET, "one of its NVLinks is down"
    for xid in (79, 48, 95):
        if xid in near and row.xid != 154:
            return XidClass.HARD, row_of(xid).needs, f"XID {xid} came with it"
    if row.xid in ALONE_SOFT:
        return XidClass.SOFT, Needs.NONE, "its links are up" if word.links_down is False else ""
    return XidClass.INFO, Needs.NONE, ""


def _of_the_program(node: str, gpu: str, row: XidRow, mine: list[XidEvent], recent: tuple[XidEvent, ...]) -> Finding:
    """Most of these are the program's. One GPU that has it in attempt after attempt, while no other does, is not."""
    alone = [event for event in mine if not _company(event, recent)]
    attempts_count = len({event.attempt for event in alone})
    others = {(event.node, event.gpu) for event in recent if event.xid == row.xid} - {(node, gpu)}
    if attempts_count > 1 and not others:
        why = f"the same GPU had it in {attempts_count} attempts in {_time(alone)}, and no other GPU did"
        return _say(gpu, row, WARN, CauseClass.EITHER, Needs.NONE, Sticky.CLEAN, len(mine), why)
    if row.xid == 69 and len(_faults(alone)) > 1:  # two kinds of people read this one in two ways
        why = f"the same GPU had it {len(_faults(alone))} times in {_time(alone)}"
        return _say(gpu, row, WARN, CauseClass.EITHER, Needs.NONE, Sticky.CLEAN, len(mine), why)
    company = next((found for event in reversed(mine) if (found := _company(event, recent))), 0)
    why = f"{company} other GPUs had it at once, so it is the program's" if company > 1 else ""
    why = "another GPU had it at once, so it is the program's" if company == 1 else why
    why = why or "by itself it is the program's, not the node's"
    return _say(gpu, row, Severity.OK, CauseClass.APPLICATION, Needs.RESTART, Sticky.NO, len(mine), why)


def _company(event: XidEvent, recent: tuple[XidEvent, ...]) -> int:
    """How many other GPUs, on any node, had the same at the same time in the same attempt."""
    return len(
        {
            (other.node, other.gpu)
            for other in recent
            if other.xid == event.xid
            and other.attempt == event.attempt
            and (other.node, other.gpu) != (event.node, event.gpu)
            and abs(other.at - event.at) <= TOGETHER_S
        }
    )


def _faults(events: list[XidEvent]) -> list[XidEvent]:
    """Events that are far enough apart to be faults of their own."""
    apart: list[XidEvent] = []
    for event in events:
        if not apart or event.at - apart[-1].at > NEAR_S:
            apart.append(event)
    return apart


def _time(events: list[XidEvent]) -> str:
    return span(events[-1].at - events[0].at)


def _say(
    gpu: str, row: XidRow, severity: Severity, cause: CauseClass, needs: Needs, sticky: Sticky, times: int, why: str
) -> Finding:
    sentence = f"XID {row.xid} on {gpu}: {row.means}" + (f"; {why}" if why else "")
    evidence = FindingEvidence(times, 0, REMEMBERED_S)
    return Finding(CHECK, Scope.GPU, gpu, severity, cause, needs, sticky, evidence, sentence)


# ---- what a node remembers of them -----------------------------------------------------------------------------------


class XidStory:
    """The driver's reports on this node, weighed together. ``gang`` says what runs, so that echoes are known."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._events: deque[XidEvent] = deque(maxlen=EVENTS_MAX_COUNT)
        self._attempt = -1
        self._stopping = False
        self._stopped_at = float("-inf")

    def gang(self, attempt: int, stopping: bool, now: float) -> None:
        """Which attempt runs here, and whether its ranks are being stopped."""
        if self._stopping and not stopping:
            self._stopped_at = now
        self._attempt, self._stopping = attempt, stopping

    def event(self, gpu: str, xid: int, at: float) -> XidEvent | None:
        """Take in one report; None where it is an echo of our own kill or a repetition within one burst."""
        by_us = self._stopping or at - self._stopped_at <= ECHO_S
        one = XidEvent(at, self._node, gpu, xid, self._attempt, by_us)
        burst = any((old.gpu, old.xid) == (gpu, xid) and at - old.at <= COALESCED_S for old in self._events)
        while self._events and at - self._events[0].at > REMEMBERED_S:
            self._events.popleft()
        self._events.append(one)
        return None if burst or is_echo(one) else one

    def weighed(self, finding: Finding) -> Finding:
        """A finding beside what the driver reported: memory errors that were contained hit one program, which is dead,
        and the GPU can be used until its next reset.
        """
        if not traits_of(finding.check).memory_errors or finding.severity is not FAIL:
            return finding
        seen = {event.xid for event in self._events if event.gpu == finding.place}
        if CONTAINED not in seen or seen & NOT_CONTAINED:
            return finding
        sentence = f"{finding.sentence}; contained (XID {CONTAINED}): only the program that was hit died"
        return replace(finding, severity=WARN, sentence=sentence)

    def finding(self, event: XidEvent, word: GpuWord, now: float) -> Finding | None:
        """What this event means beside all others."""
        found = findings(self._node, self._events, {event.gpu: word}, now)
        about = f"XID {event.xid} on {event.gpu}:"
        return next((one for one in found if one.place == event.gpu and one.sentence.startswith(about)), None)


# ---- waiting for them ------------------------------------------------------------------------------------------------


class GpuEvents(Protocol):
    """The driver's events (``adapters.nvml`` has the real one)."""

    def open(self) -> Mapping[str, str]:
        """Begin; why not, by GPU. ``OSError``: not at all."""

    def wait(self, within_ms: int) -> tuple[str, int, int] | None:
        """(UUID, type, number), or None in time. ``OSError``: the driver is not well."""

    def close(self) -> None:
        """Let go."""


class XidWatch(threading.Thread):
    """Calls ``post(uuid, xid, at)`` from its own thread for each event that tells of a fault."""

    def __init__(self, events: GpuEvents, post: Callable[[str, int, float], None], clock: Clock) -> None:
        super().__init__(name="xid-watch", daemon=True)
        self.trouble = ""  # why there is no watch, or no full one
        self._events = events
        self._post = post
        self._clock = clock
        self._ready = threading.Event()
        self._over = threading.Event()

    def opened(self, within_s: float) -> bool:
        """Wait until events are being watched, or cannot be; False: the driver has not answered yet."""
        return self._ready.wait(within_s)

    def close(self) -> None:
        """End after the wait in progress; nobody joins a thread that a driver may hold."""
        self._over.set()

    def run(self) -> None:
        """The thread's life."""
        try:
            refused = self._events.open()
        except Exception as error:  # noqa: BLE001 - without a watch a run goes on; whatever it was, that is all it costs
            self.trouble = f"GPU events are not watched: {error}"
            return
        finally:
            self._ready.set()
        self.trouble = "; ".join(f"{place}: {why}" for place, why in refused.items())
        try:
            self._watch()
        finally:
            self._events.close()

    def _watch(self) -> None:
        errors_count, why = 0, ""
        while not self._over.is_set() and errors_count < ERRORS_MAX_COUNT:
            try:
                event = self._events.wait(WAIT_MS)
                errors_count = 0
            except OSError as error:
                errors_count, why = errors_count + 1, str(error)
                self._over.wait(WAIT_MS / 1000)
                continue
            xid = None if event is None else xid_of(event[1], event[2])
            if event is not None and xid is not None:
                self._post(event[0], xid, self._clock.now())
        if errors_count:
            self.trouble = f"GPU events are no longer watched: {why}"


def xid_of(event_type: int, number: int) -> int | None:
    """The XID that an event stands for; None where it tells of no fault."""
    return number if event_type == XID else XID_OF_TYPE.get(event_type)
